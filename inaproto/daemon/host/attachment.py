"""One life of a host's connection to its switch: control channel, NIC, and the rings that use them.

Of a job there may be two rings at a time: one that ends, and one that gathers the ranks of its next life.

Invariants: a fabric lives as long as its control channel *and* its NIC; when either ends, every rank
on it waits for the next fabric, in the middle of its job, or has failed with ``FabricLost`` that says why; a
new fabric starts with nothing of the old one. One task waits for completions and steps the rings, one adds
for jobs that have no other host, one for each ring waits until it is connected; none is made per message or
packet.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from itertools import count
from typing import Any

import trio

from inaproto.daemon.host.link_probing import LinkProbing
from inaproto.daemon.host.local_rank import LocalRank, Owner
from inaproto.daemon.host.operations import Phase
from inaproto.daemon.host.ring import HostRing
from inaproto.daemon.host.ring_link import RingLink, TreeLink
from inaproto.daemon.host.totals import HostTotals
from inaproto.daemon.host.turns import TurnsOf, no_turns
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.settings.config import HostSettings
from inaproto.errors import (
    DecodeError,
    FabricError,
    FabricLost,
    InvariantBroken,
    JoinRefused,
    SwitchUnreachable,
)
from inaproto.ports import Nic, PortClosed, QpAttributes, RandomBits
from inaproto.units import US, Instant, S
from inaproto.wire.client_messages import Join
from inaproto.wire.control_messages import (
    SWITCH_AWAY,
    Closed,
    Error,
    Failed,
    Halt,
    JobStatus,
    Message,
    Ping,
    Pong,
    Regroup,
    Regrouped,
    Ring,
    Start,
    Welcome,
    job_error,
)
from inaproto.wire.ina_messages import InaPark, InaStands
from inaproto.wire.link_messages import LinkProbe, LinkProbeWord
from inaproto.wire.sharing_messages import PeerWord, SharingAskPeer, SharingTellPeer

HEARTBEAT_S = 2.0
DEAD_S = 10.0
NIC_CLOSE_S = 0.5
HEARD_OF_MAX = 4096
"""Jobs whose rings are remembered: more than can be under way."""
LAST_WORDS_S = 0.25
"""How long a lost link waits for the control channel to say why: a switch that stops closes both."""

log = logging.getLogger("inaproto.host")


def now() -> Instant:
    return Instant(int(trio.current_time() * S))


class Fabric:
    """Made by :mod:`inaproto.daemon.host.opening`; :meth:`run` it until it ends."""

    def __init__(
        self,
        settings: HostSettings,
        stream: ControlStream,
        nic: Nic,
        welcome: Welcome,
        *,
        random_bits: RandomBits,
        turns_of: TurnsOf = no_turns,
        totals: HostTotals | None = None,
        heard_of_peer: Callable[[PeerWord], None] = lambda word: None,
    ) -> None:
        self.settings = settings
        self._totals = totals
        self._turns_of = turns_of
        self._heard_of_peer = heard_of_peer
        self._random_bits = random_bits
        self.welcome = welcome
        self._stream = stream
        self._nic = nic
        self._ids = count(2)
        self._rings: list[HostRing] = []
        self._asked: dict[int, LocalRank] = {}
        """By the id of the request that announced them."""
        self._regrouping: dict[int, Owner] = {}
        """Who waits for the answer to that request."""
        self._heard_of: dict[str, int] = {}
        """The last ring of each job that it was told of, until it is told that the job is over.

        It is not told of all ends: what it does not hear of any more makes room for others.
        """
        self._by_qpn: dict[int, HostRing] = {}
        self._heard = trio.current_time()
        self._submitted = trio.Event()
        self._hurried = trio.Event()
        self._to_add = trio.Event()
        attributes = QpAttributes(
            mtu=settings.mtu,
            timeout=settings.transport_timeout,
            retry_count=settings.retry_count,
            traffic_class=settings.traffic_class,
        )
        self._probing = LinkProbing(nic, attributes, self._tell)
        self._nursery: trio.Nursery | None = None
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
        return sum(len(rank.segments) for ring in self._rings for rank in ring.ranks.values())

    def rings_away(self) -> list[HostRing]:
        """Once it has ended: those that wait for the next switch."""
        return [ring for ring in self._rings if ring.is_away]

    def rings(self) -> list[HostRing]:
        self._forget_ended()
        return list(self._rings)

    # --- ranks

    def join(self, join: Join, owner: Owner) -> LocalRank:
        """Announce a rank. Raises ``JoinRefused`` when this host has it already, or no room for it."""
        if self.has_ended:
            raise InvariantBroken("a rank joins through a fabric that has ended")
        for ring in self._of_job(join.job):
            for other in list(ring.ranks.values()):
                if ring.may_have_orphans and other.owner.process_is_gone():
                    ring.gone(other, "its process closed the connection")  # heard after its successor
        for ring in self._of_job(join.job):
            holder = ring.ranks.get(join.rank)
            if holder is not None:
                who = f"rank {join.rank} ({self.settings.name}, pid {join.pid})"
                raise JoinRefused(f"{who} cannot join job {join.job!r}: {_why_not_beside(holder)}")
        return self._announce_new(LocalRank(join, owner, self.settings.name))

    def _announce_new(self, rank: LocalRank) -> LocalRank:
        """Put it to the ranks of its job that are gathering here, or begin to gather."""
        join = rank.join
        ring = next((ring for ring in self._of_job(join.job) if ring.is_gathering), None)
        if ring is None:
            ring = HostRing(
                join.job,
                settings=self.settings,
                nic=self._nic,
                tell=self._tell,
                clock=now,
                log=log.warning,
                random_bits=self._random_bits,
                turns=self._turns_of(join.job),
                hurry=self._hurry,
                totals=self._totals,
            )
            self._rings.append(ring)
            self._serve(ring)
        ring.add(rank)
        self._announce(ring, rank)
        return rank

    def rejoin(self, ring: HostRing) -> None:
        """Announce ranks that waited for a switch in the middle of their job; or that they ended since."""
        for word in ring.last_words:
            self._tell(word)
        if ring.last_words:
            return
        try:
            ring.rejoin(self._nic, self._tell)
        except JoinRefused as error:
            for word in ring.gone_messages(str(error)):
                self._tell(word)
            ring.fail(error)
            return
        self._rings.append(ring)
        self._serve(ring)
        for rank in ring.ranks.values():
            self._announce(ring, rank)

    def _announce(self, ring: HostRing, rank: LocalRank) -> None:
        request = next(self._ids)
        self._asked[request] = rank
        self._tell(ring.member_message(rank, request))

    def _serve(self, ring: HostRing) -> None:
        """Its completions are those of its present queue pairs."""
        for qpn in [qpn for qpn, other in self._by_qpn.items() if other is ring]:
            del self._by_qpn[qpn]
        for qpn in ring.queue_pairs:
            self._by_qpn[qpn] = ring

    def regroup(self, rank: LocalRank, owner: Owner, operations_done: int) -> None:
        """A rank whose job has failed goes on, without one that is lost."""
        request = next(self._ids)
        self._regrouping[request] = owner
        ring_id = rank.ring.ring_id if rank.ring is not None else None
        self._tell(
            Regroup(
                id=request,
                job=rank.join.job,
                ring_id=ring_id or 0,
                rank=rank.number,
                operations_done=operations_done,
            )
        )

    def gone_after_end(self, rank: LocalRank, owner: Owner, reason: str) -> None:
        """A process is lost that could have regrouped."""
        self._regrouping = {key: other for key, other in self._regrouping.items() if other is not owner}
        if rank.join.elastic and not rank.has_left and rank.ring is not None and rank.ring.ring_id:
            self._tell(rank.ring.gone_after_end(rank, reason))

    def submitted(self) -> None:
        """An operation was submitted: there is a new deadline to look at, and perhaps something to add."""
        self._submitted.set()
        self._to_add.set()

    def _hurry(self) -> None:
        """A ring has a deadline that may be earlier than all others."""
        self._hurried.set()

    def tell_peer(self, word: PeerWord) -> None:
        """A seat of another host, through the control plane of the switches."""
        self._tell(word)

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(EndOfChannel):  # the task that receives sees it too, and ends the fabric
            self._stream.send_nowait(message)

    def _forget_ended(self) -> None:
        for request in [key for key, rank in self._asked.items() if rank.has_ended]:
            del self._asked[request]
        ended = [ring for ring in self._rings if ring.phase is Phase.ENDED]
        if ended:
            self._rings = [ring for ring in self._rings if ring not in ended]
            self._by_qpn = {qpn: ring for qpn, ring in self._by_qpn.items() if ring not in ended}

    # --- life

    async def run(self) -> str:
        """Serve until the switch or the NIC is lost; returns why. No rank uses it any more by then."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._nic.run)
                nursery.start_soon(self._stream.run)
                nursery.start_soon(self._heartbeat)
                nursery.start_soon(self._watch_stalls)
                nursery.start_soon(self._complete)
                nursery.start_soon(self._add)
                await self._obey()
        finally:
            self._end()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + NIC_CLOSE_S):
                await self._nic.aclose()
        return self.lost

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _end(self) -> None:
        self.has_ended = True
        if not self.lost:  # it is this daemon that ends
            for ring in self.rings():
                ring.stop("its host daemon was stopped")
        error = FabricLost(
            f"host {self.settings.name} has lost its switch: {self.lost}; join again when it is back"
        )
        for ring in self.rings():
            ring.lose_fabric(error)
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
            case Ring(id=id):
                self._answered(id, message)
            case Start(job=job, ring_id=ring_id):
                for ring in self._of_job(job):
                    if ring.ring_id == ring_id:
                        ring.start(
                            message.ina_ring_id,
                            parked=message.ina_parked,
                            pool=message.ina_pool,
                            stand=message.ina_epoch,
                        )
                self.submitted()  # operations that waited for the ring have deadlines from now on
            case Halt(job=job, ring_id=ring_id):
                rings = self._of_job(job)
                in_it = [ring for ring in rings if ring.ring_id == ring_id]
                for ring in in_it if self._has_heard_of(job, ring_id) else in_it or rings:
                    ring.halt(message)
                    self._serve(ring)
            case InaPark(job=job):
                for ring in self._of_job(job):
                    ring.park(message)
            case InaStands(job=job):
                for ring in self._of_job(job):
                    ring.ina_stands(message)
            case JobStatus(job=job):
                for ring in self._of_job(job):
                    ring.status_of_job(message)
            case Failed():
                self._job_failed(message)
            case Closed(job=job, ring_id=ring_id):
                self._is_over(job, ring_id)
                for ring in self._of_job(job):
                    if ring.is_of(ring_id):
                        ring.closed()
            case Error(code=code) if code == SWITCH_AWAY:
                self._lose(message.message)
            case Regrouped(id=id) if id in self._regrouping:
                self._regrouping.pop(id).regrouped(message)
            case Error(of=of) if of in self._regrouping:
                self._regrouping.pop(of).regroup_refused(job_error(message))
            case Error(of=of):
                rank = self._asked.get(of)
                if rank is not None and rank.ring is not None and rank.ring.phase is Phase.JOINING:
                    rank.ring.refused(rank, job_error(message))
                else:
                    log.warning("the switch answers: %s: %s", message.code, message.message)
            case SharingAskPeer() | SharingTellPeer():
                self._heard_of_peer(message)
            case LinkProbe() | LinkProbeWord():
                if self._nursery is not None:
                    self._probing.heard(self._nursery, message)
            case Ping(id=id):
                self._tell(Pong(id=id))
            case Pong() | Regrouped():  # the process that asked has ended
                pass
            case _:
                log.warning("the switch sends a message %r that is not for hosts", message.TYPE)

    def _has_heard_of(self, job: str, ring_id: int) -> bool:
        """Whether this fabric was told of that ring, which ends: ranks that gather here are not of it.

        Else ranks came back to it by this fabric, and do not know of it.
        """
        return self._heard_of.get(job) == ring_id

    def _is_over(self, job: str, ring_id: int) -> bool:
        """Whether this fabric was told of that ring, whose end is that of its job."""
        is_known = self._has_heard_of(job, ring_id)
        if is_known:
            del self._heard_of[job]
        return is_known

    def _of_job(self, job: str) -> list[HostRing]:
        return [ring for ring in self.rings() if ring.job == job]

    def _answered(self, request: int, message: Ring) -> None:
        self._heard_of.pop(message.job, None)
        self._heard_of[message.job] = message.ring_id
        while len(self._heard_of) > HEARD_OF_MAX:
            del self._heard_of[next(iter(self._heard_of))]
        rank = self._asked.get(request)
        if rank is None or rank.ring is None:
            return
        ring = rank.ring
        strangers = ring.answered(rank, message, self.welcome.boot_id)
        for link in ring.take_connecting():
            if self._nursery is not None:
                self._nursery.start_soon(self._connect, ring, link)
        for stranger in strangers:
            self._tell(stranger.gone_message("its job has begun without it; it asks again"))
            self._asked = {key: other for key, other in self._asked.items() if other is not stranger}
            try:
                self._announce_new(stranger)
            except JoinRefused as error:
                stranger.fail(error)

    def _job_failed(self, failed: Failed) -> None:
        """The ranks of the ring that failed; one that is joining belongs to the job's next life.

        A rank that is joining has no ring: its join is refused by an ``Error``, or the switch ends.
        """
        error = job_error(failed)
        log.warning("job %s: %s", failed.job, error)
        ends = isinstance(error, SwitchUnreachable)  # in good order
        is_known = self._is_over(failed.job, failed.ring_id)
        for ring in self._of_job(failed.job):
            in_ring = ring.phase is not Phase.JOINING
            in_ring |= ring.has_come_back
            concerned = ring.is_of(failed.ring_id) if failed.ring_id else in_ring or ends
            if concerned and ends:
                ring.lose_fabric(error)
            elif concerned:
                ring.fail(error)
            elif failed.ring_id and not is_known and ring.ring_id is None:
                ring.lose(error)  # announced again, before they had started
            elif failed.ring_id:
                ring.fail_joining(failed.ring_id, error)

    async def _connect(self, ring: HostRing, link: RingLink | TreeLink) -> None:
        try:
            await link.wait.wait(link.connecting)
        except PortClosed:  # of which whoever waits for completions hears too
            return
        except FabricError as error:
            ring.connected(link, str(error))
        else:
            ring.connected(link)

    async def _complete(self) -> None:
        """Step the rings by what the NIC has completed."""
        while True:
            try:
                completions = await self._nic.wait_completions()
            except PortClosed as closed:
                await trio.sleep(LAST_WORDS_S)  # cancelled when the control channel ends, too
                return self._lose(f"link: {closed.reason}")
            for completion in completions:
                ring = self._by_qpn.get(completion.qpn)
                if ring is not None:
                    ring.completed(completion)
                else:
                    self._probing.completed(completion)

    async def _add(self) -> None:
        """Add for jobs whose ranks are all on this host: a slice of each, then let others run."""
        while True:
            self._to_add = trio.Event()
            has_more = False
            for ring in self.rings():
                has_more |= ring.add_slice()
            if has_more:
                await trio.lowlevel.checkpoint()
            else:
                self._submitted.set()  # ranks may wait for others from the end of a sum on
                await self._to_add.wait()

    async def _watch_stalls(self) -> None:
        while True:
            deadlines = [at for ring in self._rings if (at := ring.deadline) is not None]
            if not deadlines:
                self._submitted = trio.Event()
                await self._submitted.wait()
                continue
            # Later submissions have later deadlines: all rings have the same stall time and time limit (but
            # for one that waits for the switch's answer, which is short, and one that waits for its turns and
            # says so). A microsecond more, so that the
            # float clock is past the deadline for sure.
            with trio.move_on_at((min(deadlines) + US) / S):
                self._hurried = trio.Event()
                await self._hurried.wait()
            for ring in self.rings():
                ring.woke()

    async def _heartbeat(self) -> None:
        while trio.current_time() - self._heard <= DEAD_S:
            self._tell(Ping(id=next(self._ids)))
            await trio.sleep(HEARTBEAT_S)
        self._lose(f"the switch has not answered for {DEAD_S:g} s")

    def status(self) -> dict[str, Any]:
        return {
            "rings": [ring.status() for ring in self.rings()],
            "nic": self._nic.statistics(),
        }


def _why_not_beside(holder: LocalRank) -> str:
    """Why a process cannot have the rank of ``holder``, which is on this host."""
    pid = holder.join.pid
    if holder.has_left:
        return f"process {pid} has left it, but other ranks have not yet; try again when they have"
    return f"the rank is held by process {pid} on this host; end that process or take another rank"
