"""One life of a host's connection to its switch: control channel, NIC, and the ranks that use them.

Invariants: a fabric lives as long as its control channel *and* its NIC; when either ends, every rank
on it waits for the next fabric, in the middle of its job, or has failed with ``FabricLost`` that says why; a
new fabric starts with nothing of the old one. One task waits for completions and steps the rings; none is
made per message or packet.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import trio

from inaproto.daemon.config import HostSettings
from inaproto.daemon.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.host_ring import Owner, Phase, RingMember
from inaproto.errors import (
    ConfigError,
    DecodeError,
    FabricError,
    FabricLost,
    InvariantBroken,
    JoinRefused,
    SwitchUnreachable,
)
from inaproto.ports import Nic, PortClosed, RandomBits, StreamNetwork
from inaproto.units import US, Instant, S
from inaproto.wire.control_messages import (
    SWITCH_AWAY,
    SWITCH_UNKNOWN,
    Closed,
    Error,
    Failed,
    Halt,
    Hello,
    JobStatus,
    Join,
    Message,
    Ping,
    Pong,
    Ring,
    Start,
    Welcome,
    job_error,
)

HEARTBEAT_S = 2.0
DEAD_S = 10.0
WELCOME_S = 5.0
NIC_CLOSE_S = 0.5
LAST_WORDS_S = 0.25
"""How long a lost link waits for the control channel to say why: a switch that stops closes both."""

log = logging.getLogger("inaproto.host")

OpenNic = Callable[[str], Awaitable[Nic]]
"""Opens a NIC whose port is attached at the switch's ``port_path``."""


class NoFabric(Exception):
    """The switch cannot be reached now."""


class HelloRefused(NoFabric):
    """The switch is there and does not want this host."""


def now() -> Instant:
    return Instant(int(trio.current_time() * S))


class Fabric:
    """Made by :func:`open_fabric`; :meth:`run` it until it ends."""

    def __init__(
        self,
        settings: HostSettings,
        stream: ControlStream,
        nic: Nic,
        welcome: Welcome,
        *,
        random_bits: RandomBits,
    ) -> None:
        self.settings = settings
        self._random_bits = random_bits
        self.welcome = welcome
        self._stream = stream
        self._nic = nic
        self._ids = count(2)
        self._members: dict[int, RingMember] = {}
        """By the id of the request that announced them."""
        self._by_qpn: dict[int, RingMember] = {}
        self._heard = trio.current_time()
        self._submitted = trio.Event()
        self._scope = trio.CancelScope()
        self.lost = ""
        """Why it has ended; empty if it was this daemon that did."""
        self.has_ended = False
        """Its ranks have failed, and no other can join; its NIC may still be closing."""

    @property
    def nic(self) -> Nic:
        return self._nic

    @property
    def segments(self) -> int:
        """Of shared memory, registered by all processes."""
        return sum(len(member.segments) for member in self._members.values())

    def members_away(self) -> list[RingMember]:
        """Once it has ended: ranks that wait for the next switch."""
        return [member for member in self._members.values() if member.is_away]

    def members(self) -> list[RingMember]:
        self._forget_ended()
        return list(self._members.values())

    # --- ranks

    def join(self, join: Join, owner: Owner) -> RingMember:
        """Announce a rank. Raises ``JoinRefused`` when this host has it already, or no room for it."""
        if self.has_ended:
            raise InvariantBroken("a rank joins through a fabric that has ended")
        self._forget_ended()
        for other in list(self._members.values()):
            if other.join.job == join.job and other.is_orphan:  # its end may be heard after its successor
                other.gone("its process closed the connection")
                continue
            why = _refuse_beside(join, other)
            if why:
                who = f"rank {join.rank} ({self.settings.name}, pid {join.pid})"
                raise JoinRefused(f"{who} cannot join job {join.job!r}: {why}")
        member = RingMember(
            join,
            settings=self.settings,
            nic=self._nic,
            owner=owner,
            tell=self._tell,
            clock=now,
            log=log.warning,
            random_bits=self._random_bits,
        )
        self._announce(member)
        return member

    def rejoin(self, member: RingMember) -> None:
        """Announce a rank that waited for a switch in the middle of its job; or that it has ended since."""
        if member.last_words:
            self._tell(member.gone_message(member.last_words))
            return
        try:
            member.rejoin(self._nic, self._tell)
        except JoinRefused as error:
            self._tell(member.gone_message(str(error)))
            member.fail(error)
        else:
            self._announce(member)

    def _announce(self, member: RingMember) -> None:
        request = next(self._ids)
        self._members[request] = member
        self._serve(member)
        self._tell(member.member_message(request))

    def _serve(self, member: RingMember) -> None:
        """Its completions are those of its present queue pairs."""
        for qpn in [qpn for qpn, other in self._by_qpn.items() if other is member]:
            del self._by_qpn[qpn]
        for qpn in member.queue_pairs:
            self._by_qpn[qpn] = member

    def submitted(self) -> None:
        """An operation was submitted: the watch for stalls has a new deadline to look at."""
        self._submitted.set()

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(EndOfChannel):  # the task that receives sees it too, and ends the fabric
            self._stream.send_nowait(message)

    def _forget_ended(self) -> None:
        for request in [key for key, member in self._members.items() if member.phase is Phase.ENDED]:
            ended = self._members.pop(request)
            for qpn in [qpn for qpn, member in self._by_qpn.items() if member is ended]:
                del self._by_qpn[qpn]

    # --- life

    async def run(self) -> str:
        """Serve until the switch or the NIC is lost; returns why. No rank uses it any more by then."""
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._nic.run)
                nursery.start_soon(self._stream.run)
                nursery.start_soon(self._heartbeat)
                nursery.start_soon(self._watch_stalls)
                nursery.start_soon(self._complete)
                await self._obey()
        finally:
            self._end()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + NIC_CLOSE_S):
                await self._nic.aclose()
        return self.lost

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._scope.cancel()

    def _end(self) -> None:
        self.has_ended = True
        if not self.lost:  # it is this daemon that ends
            for member in self.members():
                member.gone("its host daemon was stopped")
        error = FabricLost(
            f"host {self.settings.name} has lost its switch: {self.lost}; join again when it is back"
        )
        for member in self.members():
            member.lose_fabric(error)
        self._stream.close(self.lost)

    async def _obey(self) -> None:
        """Do what the switch says."""
        while True:
            try:
                message = await self._stream.receive()
            except EndOfChannel as end:
                return self._lose(f"control channel {end.reason}")
            except DecodeError as error:
                return self._lose(f"the switch sent what is no message: {error}")
            self._heard = trio.current_time()
            self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Ring():
                member = self._members.get(message.id)
                if member is not None:
                    member.connect(message, self.welcome.boot_id)
            case Start(job=job, ring_id=ring_id):
                for member in self._of_job(job):
                    if member.ring_id == ring_id:
                        member.start()
                self._submitted.set()  # operations that waited for the ring have deadlines from now on
            case Halt(job=job):
                for member in self._of_job(job):
                    member.halt(message)
                    self._serve(member)
            case JobStatus(job=job):
                for member in self._of_job(job):
                    member.status_of_job(message)
            case Failed():
                self._job_failed(message)
            case Closed(job=job, ring_id=ring_id):
                for member in self._of_job(job):
                    if member.is_of(ring_id):
                        member.closed()
            case Error(code=code) if code == SWITCH_AWAY:
                self._lose(message.message)
            case Error(of=of):
                member = self._members.get(of)
                if member is not None and member.phase is Phase.JOINING:
                    member.fail(job_error(message))
                else:
                    log.warning("the switch answers: %s: %s", message.code, message.message)
            case Ping(id=id):
                self._tell(Pong(id=id))
            case Pong():
                pass
            case _:
                log.warning("the switch sends a message %r that is not for hosts", message.TYPE)

    def _of_job(self, job: str) -> list[RingMember]:
        return [member for member in self.members() if member.join.job == job]

    def _job_failed(self, failed: Failed) -> None:
        """The ranks of the ring that failed; one that is joining belongs to the job's next life.

        A rank that is joining has no ring: its join is refused by an ``Error``, or the switch ends.
        """
        error = job_error(failed)
        log.warning("job %s: %s", failed.job, error)
        ends = isinstance(error, SwitchUnreachable)  # in good order
        for member in self._of_job(failed.job):
            in_ring = member.phase is not Phase.JOINING
            in_ring |= member.has_come_back
            concerned = member.is_of(failed.ring_id) if failed.ring_id else in_ring or ends
            if concerned and ends:
                member.lose_fabric(error)
            elif concerned:
                member.fail(error)

    async def _complete(self) -> None:
        """Step the rings by what the NIC has completed."""
        while True:
            try:
                completions = await self._nic.wait_completions()
            except PortClosed as closed:
                await trio.sleep(LAST_WORDS_S)  # cancelled when the control channel ends, too
                return self._lose(f"link: {closed.reason}")
            for completion in completions:
                member = self._by_qpn.get(completion.qpn)
                if member is not None:
                    member.completed(completion)

    async def _watch_stalls(self) -> None:
        while True:
            deadlines = [member.deadline for member in self._members.values() if member.deadline is not None]
            if not deadlines:
                self._submitted = trio.Event()
                await self._submitted.wait()
                continue
            # Later submissions have later deadlines: all rings have the same stall time and time limit (but
            # for one that waits for the switch's answer, which is short). A microsecond more, so that the
            # float clock is past the deadline for sure.
            await trio.sleep_until((min(deadlines) + US) / S)
            for member in self.members():
                member.woke()

    async def _heartbeat(self) -> None:
        while trio.current_time() - self._heard <= DEAD_S:
            self._tell(Ping(id=next(self._ids)))
            await trio.sleep(HEARTBEAT_S)
        self._lose(f"the switch has not answered for {DEAD_S:g} s")

    def status(self) -> dict[str, Any]:
        return {
            "rings": [member.status() for member in self.members()],
            "nic": self._nic.statistics(),
        }


def _refuse_beside(join: Join, other: RingMember) -> str:
    """Why a rank cannot be on this host together with ``other``; empty if it can."""
    there = other.join
    if there.job != join.job:
        return ""
    if there.rank == join.rank and other.phase is Phase.LEFT:
        return f"process {there.pid} has left it, but other ranks have not yet; try again when they have"
    if there.rank == join.rank:
        return f"the rank is held by process {there.pid} on this host; end that process or take another rank"
    if (there.rank - join.rank) % join.size in (1, join.size - 1):
        return (
            f"its neighbour, rank {there.rank} (pid {there.pid}), is on the same host, and what they send "
            "each other would not pass through the switch; run one of them on another host"
        )
    return ""


async def open_fabric(
    settings: HostSettings,
    open_nic: OpenNic,
    *,
    network: StreamNetwork,
    random_bits: RandomBits,
    instance: str = "",
) -> Fabric:
    """Connect to the switch; ``instance`` names the daemon that does.

    Raises ``NoFabric``; ``ConfigError`` when they can never work together.
    """
    path = settings.control_path
    try:
        stream = ControlStream(network.dial(path))
    except OSError as error:
        raise NoFabric(f"cannot connect to {path}: {error.strerror}") from None
    try:
        welcome = await _introduce(settings, stream, path, instance)
        nic = await _open_nic(settings, open_nic, welcome)
    except BaseException:
        stream.close()
        raise
    return Fabric(settings, stream, nic, welcome, random_bits=random_bits)


async def _introduce(settings: HostSettings, stream: ControlStream, path: Path, instance: str) -> Welcome:
    try:
        with trio.fail_after(WELCOME_S):
            mac, ip = settings.mac_bytes, settings.ip_bytes
            name, switch = settings.name, settings.switch
            await stream.send(Hello(id=1, host=name, mac=mac, ip=ip, instance=instance, switch=switch))
            answer = await stream.receive()
    except trio.TooSlowError:
        raise NoFabric(f"{path} takes connections but does not answer within {WELCOME_S:g} s") from None
    except EndOfChannel as end:
        raise NoFabric(f"{path}: {end.reason}") from None
    except DecodeError as error:
        raise NoFabric(f"{path}: whatever listens there is no inaproto switch: {error}") from None
    match answer:
        case Welcome():
            return answer
        case Error(code=code) if code == SWITCH_AWAY:
            raise NoFabric(answer.message)
        case Error(code=code) if code == SWITCH_UNKNOWN:
            raise ConfigError(f"dir, switch or ip: {answer.message}")
        case Error():
            raise HelloRefused(answer.message)
        case _:
            raise NoFabric(f"{path}: answered hello by {answer.TYPE!r}; is it an inaproto switch?")


async def _open_nic(settings: HostSettings, open_nic: OpenNic, welcome: Welcome) -> Nic:
    try:
        nic = await open_nic(welcome.port_path)
    except PortClosed as closed:
        raise NoFabric(f"cannot attach to {welcome.port_path}: {closed.reason}") from None
    except (FabricError, OSError) as error:
        raise NoFabric(f"cannot attach to {welcome.port_path}: {error}") from None
    mtu_max = min(welcome.mtu_max, nic.capabilities.mtu_max)
    if settings.mtu > mtu_max:
        await nic.aclose()
        raise ConfigError(f"mtu: {settings.mtu} is too large; the switch and the NIC take {mtu_max}")
    return nic
