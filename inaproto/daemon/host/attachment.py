"""One life of a host's connection to its switch: control channel, NIC, and the rings that use them.

Of a job there may be two rings at a time: one that ends, and one that gathers the ranks of its next life.

Invariants: a fabric lives as long as its control channel *and* its NIC; when either ends, every rank
on it waits for the next fabric, in the middle of its job, or has failed with ``FabricLost`` that says why; a
new fabric starts with nothing of the old one. One task waits for completions and steps the rings, some add
for jobs that have no other host, one for each ring waits until it is connected; none is made per message or
packet.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import trio

from inaproto.core.host.hearing import Hearing
from inaproto.core.host.journal import JournalRefused, Past
from inaproto.core.host.ranks import REASON_CHARACTERS_MAX
from inaproto.core.host.view import Phase
from inaproto.daemon.host.adding import Adders
from inaproto.daemon.host.collective import CollectiveHost
from inaproto.daemon.host.link_memory import LinkMemory
from inaproto.daemon.host.link_probing import LinkProbing
from inaproto.daemon.host.link_waits import Connecting
from inaproto.daemon.host.local_rank import LocalRank, Owner
from inaproto.daemon.host.path_mtu import PathProbing
from inaproto.daemon.host.placement import Placement
from inaproto.daemon.host.regrouping import Regrouping
from inaproto.daemon.host.request_batches import batched
from inaproto.daemon.host.ring import HostRing
from inaproto.daemon.host.ring_settings import link_bytes, qp_attributes
from inaproto.daemon.host.shared_arena import SharedArena
from inaproto.daemon.host.successions import Succession, left_rank
from inaproto.daemon.host.totals import HostTotals
from inaproto.daemon.host.traced_ring import TracedRing
from inaproto.daemon.host.turns import TurnsOf, no_turns
from inaproto.daemon.net.control_stream import DEAD_S, ControlStream, EndOfChannel
from inaproto.daemon.settings.config import HostSettings
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.errors import (
    DecodeError,
    FabricError,
    FabricLost,
    InvariantBroken,
    JobError,
    JoinRefused,
    LocalMisuse,
)
from inaproto.ports import (
    Completion,
    Nic,
    PortClosed,
    RandomBits,
    RegistersInParts,
    TellsCompletions,
)
from inaproto.units import MS, Instant
from inaproto.wire.control import why_not
from inaproto.wire.control_messages import (
    SWITCH_AWAY,
    AskCalls,
    Closed,
    Error,
    Failed,
    Gone,
    Halt,
    JobStatus,
    Message,
    Ping,
    Pong,
    RankRefused,
    Regrouped,
    Ring,
    Start,
    Welcome,
    job_error,
)
from inaproto.wire.messages.client import Join
from inaproto.wire.messages.collective import CollectiveWord
from inaproto.wire.messages.ina import InaPark, InaStands
from inaproto.wire.messages.probe import LinkProbe, LinkProbeWord
from inaproto.wire.messages.sharing import AskPeer, PeerMessage, TellPeerDecision

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

HEARTBEAT_S = 2.0
NIC_CLOSE_S = 0.5
LAST_WORDS_S = 0.25
"""How long a lost link waits for the control channel to say why: a switch that stops closes both."""

log = logging.getLogger("inaproto.host")


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
        memory: LinkMemory | None = None,
        heard_of_peer: Callable[[PeerMessage], None] = lambda word: None,
        add_in_threads: bool = True,
        placement: Placement | None = None,
        collective: CollectiveHost | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings
        self._make_ring: Callable[..., HostRing] = (
            HostRing if tracing is None else partial(TracedRing, tracing)
        )
        self._totals = totals
        self._memory = memory or LinkMemory(link_bytes(settings))
        self._turns_of = turns_of
        self._collective = collective
        self._heard_of_peer = heard_of_peer
        self._random_bits = random_bits
        self.welcome = welcome
        self._stream = stream
        self._nic = nic
        self._batch = batched(nic)
        self._ids = count(2)
        self._rings: list[HostRing] = []
        self.regrouping = Regrouping(self._ids, self._tell)
        self._hearing = Hearing(welcome.boot_id)
        self._by_qpn: dict[int, HostRing] = {}
        self._heard = trio.current_time()
        self._alarm = Alarm(self._deadline, self._wake)
        patience_ms = min(settings.stall_ms, settings.operation_timeout_ms or settings.stall_ms)
        self._patience_ns = patience_ms * MS
        self._adders = Adders(self.rings, self._look, threads=add_in_threads, placement=placement)
        self._probing = LinkProbing(nic, qp_attributes(settings), self._tell)
        mtu_max = min(welcome.mtu_max, nic.capabilities.mtu_max)
        self._path = PathProbing(settings, nic, mtu_max=mtu_max, answers=welcome.path_probes)
        if isinstance(nic, TellsCompletions):
            nic.tell_completions(self._completed)
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
        """Segments of shared memory, registered by all processes."""
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
        if problem := self._path.found.problem:
            self.tell_refusal(join, problem)
            who = f"rank {join.rank} ({self.settings.name}, pid {join.pid})"
            raise JoinRefused(f"{who} cannot join job {join.job!r}: {problem}")
        for ring in self._of_job(join.job):
            for other in list(ring.ranks.values()):
                if ring.core.may_have_orphans and other.owner.process_is_gone():
                    ring.gone(other, "its process closed the connection")  # heard after its successor
        for ring in self._of_job(join.job):
            holder = ring.ranks.get(join.rank)
            if holder is not None:
                who = f"rank {join.rank} ({self.settings.name}, pid {join.pid})"
                reason = holder.why_not_beside()
                self.tell_refusal(join, reason)
                raise JoinRefused(f"{who} cannot join job {join.job!r}: {reason}")
        return self._announce_new(LocalRank(join, owner))

    def tell_refusal(self, join: Join, reason: str) -> None:
        """This host does not take a process as a rank that others, at other hosts too, may wait for."""
        self._tell(RankRefused(id=next(self._ids), job=join.job, rank=join.rank, pid=join.pid, reason=reason))

    def _announce_new(self, rank: LocalRank) -> LocalRank:
        """Put it to the ranks of its job that are gathering here, or begin to gather."""
        join = rank.join
        ring = next((ring for ring in self._of_job(join.job) if ring.core.is_gathering), None)
        if ring is None:
            ring = self._ring(join.job, self._collective_for(join))
            self._rings.append(ring)
            self._serve(ring)
        ring.add(rank, next(self._ids))
        return rank

    def _ring(
        self, job: str, collective: CollectiveHost | None, past: tuple[SharedArena, Past] | None = None
    ) -> HostRing:
        return self._make_ring(
            job,
            settings=self.settings,
            nic=self._nic,
            tell=self._tell,
            clock=current_instant,
            log=log.warning,
            random_bits=self._random_bits,
            turns=self._turns_of(job),
            hurry=self._alarm.look,
            totals=self._totals,
            memory=self._memory,
            collective=collective,
            past=past,
            switch_succeeds=self.welcome.succeeds,
            mtu=self._path.found.mtu,
        )

    def _collective_for(self, join: Join) -> CollectiveHost | None:
        """The library of this host, if the job may have results that are not of its reduction plan."""
        return None if join.exact_plan else self._collective

    async def prepare(self, ranks: Sequence[LocalRank]) -> None:
        """What they share is registered before they rejoin, with turns for others where that takes long."""
        try:
            for buffer in [buffer for rank in ranks for buffer in rank.segments.values()]:
                # Whoever rejoins is told of it, or that the NIC is gone.
                with contextlib.suppress(LocalMisuse, FabricError, PortClosed):
                    await buffer.register_slowly(self._nic)
        except BaseException:
            self._stream.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + NIC_CLOSE_S):
                await self._nic.aclose()
            raise

    def rejoin(self, ring: HostRing) -> None:
        """Announce ranks that waited for a switch in the middle of their job; or that they ended since.

        Where the path does not carry the packets of their job, they end: it would stand still.
        """
        if (problem := self._path.found.problem) and ring.is_away:
            ring.give_up(f"host {self.settings.name}: {problem}")
        ring.rejoin(self._nic, self._tell, lambda: next(self._ids), self._path.found.mtu)
        if ring.phase is not Phase.ENDED:
            self._rings.append(ring)
            self._serve(ring)

    def succeed(self, succession: Succession) -> None:
        """Go on with ranks that a daemon before this one had. Raises ``JobError``."""
        past, job = succession.past, succession.job
        try:
            if problem := self._path.found.problem:
                raise FabricLost(problem)
            ring = self._ring(job, None, (succession.arena, past))
            for join in past.joins:
                rank = succession.ranks.get(join.rank) or left_rank(join)
                rank.ring, rank.returns = ring, False
                ring.ranks[join.rank] = rank
            ring.resume(succession.calls, past)
        except Exception as why:  # whatever a process has written there, it ends this job and no other
            text = f"job {job!r} cannot go on by this host daemon: {why}"
            if not isinstance(why, LocalMisuse | InvariantBroken | JournalRefused | JobError | OSError):
                log.exception("%s", text)
            for join in past.joins:
                self._tell(Gone(job=job, rank=join.rank, reason=text[:REASON_CHARACTERS_MAX]))
            raise JobError(text) from None
        self.rejoin(ring)
        for rank in succession.ranks.values():
            rank.owner.resumed()
        for rank in succession.leaving:
            if not rank.has_left:
                ring.leave(rank)
        self.submitted()

    def _serve(self, ring: HostRing) -> None:
        """Its completions are those of its present queue pairs."""
        for qpn in [qpn for qpn, other in self._by_qpn.items() if other is ring]:
            del self._by_qpn[qpn]
        for qpn in ring.queue_pairs:
            self._by_qpn[qpn] = ring

    def submitted(self) -> None:
        """An operation was submitted: there may be a deadline to look at, and something to add."""
        self._look()
        self._adders.look()

    def _look(self) -> None:
        """An operation may have begun to wait: its ring looks at the clock when it stalls, or is overdue."""
        self._alarm.look_before(Instant(current_instant() + self._patience_ns))

    def tell_peer(self, word: PeerMessage) -> None:
        """A seat of another host, through the control plane of the switches."""
        self._tell(word)

    def _tell(self, message: Message) -> None:
        with contextlib.suppress(EndOfChannel):  # the task that receives sees it too, and ends the fabric
            self._stream.send_nowait(message)

    def _forget_ended(self) -> None:
        ended = [ring for ring in self._rings if ring.phase is Phase.ENDED]
        if ended:
            for ring in ended:
                ring.let_go()
            self._rings = [ring for ring in self._rings if ring not in ended]
            self._by_qpn = {qpn: ring for qpn, ring in self._by_qpn.items() if ring not in ended}

    # --- life

    async def run(self, ready: Callable[[], None] = lambda: None) -> str:
        """Serve until the switch or the NIC is lost; returns why. No rank uses it any more by then.

        ``ready`` is called when ranks may join: when it is known which packets the path carries.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._nic.run)
                nursery.start_soon(self._stream.run)
                nursery.start_soon(self._heartbeat)
                nursery.start_soon(self._alarm.run)
                nursery.start_soon(self._complete)
                nursery.start_soon(self._adders.run)
                nursery.start_soon(self._look_at_path, ready)
                if isinstance(self._nic, RegistersInParts):
                    nursery.start_soon(self._memory.run)
                await self._obey()
        finally:
            self._end()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + NIC_CLOSE_S):
                await self._nic.aclose()
        return self.lost

    async def _look_at_path(self, ready: Callable[[], None]) -> None:
        await self._path.look()
        if not self.has_ended:
            ready()
        await self._path.keep_looking()

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    def _end(self) -> None:
        self.has_ended = True
        if not self.lost:  # it is this daemon that ends
            for ring in self.rings():
                if not ring.may_have_successor:
                    ring.close()
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
                return self._lose(why_not(error, "the switch sent what is no message"))
            self._heard = trio.current_time()
            self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Error(code=code) if code == SWITCH_AWAY:
                self._lose(message.message)
            case Regrouped():  # or the process that asked has ended
                self.regrouping.answered(message)
            case Error():
                if not (self.regrouping.answered(message) or self._heard_by(message, self.rings())):
                    log.warning("the switch answers: %s: %s", message.code, message.message)
            case Failed(job=job):
                log.warning("job %s: %s", job, job_error(message))
                self._heard_by(message, self._of_job(job))
            case Start(job=job):
                self._heard_by(message, self._of_job(job))
                self.submitted()  # operations that waited for the ring have deadlines from now on
            case Ring(job=job) | Halt(job=job) | JobStatus(job=job) | AskCalls(job=job) | Closed(job=job):
                self._heard_by(message, self._of_job(job))
            case InaPark(job=job) | InaStands(job=job):
                self._heard_by(message, self._of_job(job))
            case AskPeer() | TellPeerDecision():
                self._heard_of_peer(message)
            case CollectiveWord(job=job):
                for ring in self._of_job(job):
                    ring.heard(message)
            case LinkProbe() | LinkProbeWord():
                if self._nursery is not None:
                    self._probing.heard(self._nursery, message)
            case Ping(id=id):
                self._tell(Pong(id=id))
            case Pong():
                pass
            case _:
                log.warning("the switch sends a message %r that is not for hosts", message.TYPE)

    def _of_job(self, job: str) -> list[HostRing]:
        return [ring for ring in self.rings() if ring.job == job]

    def _heard_by(self, message: Message, rings: list[HostRing]) -> bool:
        """Tell those of ``rings`` whom the message concerns; whether it concerns any."""
        routed = self._hearing.heard(message, [ring.core for ring in rings])
        for number, event in routed:
            ring = rings[number]
            ring.feed(event)
            self._serve(ring)
            for wait in ring.take_connecting():
                if self._nursery is not None:
                    self._nursery.start_soon(self._connect, ring, wait)
            for stranger in ring.take_strangers():
                try:
                    self._announce_new(stranger)
                except JoinRefused as error:
                    stranger.fail(error)
        return bool(routed)

    async def _connect(self, ring: HostRing, wait: Connecting) -> None:
        try:
            await wait.wait()
        except PortClosed:  # of which whoever waits for completions hears too
            return
        except FabricError as error:
            ring.connected(wait.link, str(error))
        else:
            ring.connected(wait.link)

    async def _complete(self) -> None:
        """Step the rings by what the NIC has completed, and has not told at once."""
        while True:
            try:
                completions = await self._nic.wait_completions()
            except PortClosed as closed:
                await trio.sleep(LAST_WORDS_S)  # cancelled when the control channel ends, too
                return self._lose(f"link: {closed.reason}")
            self._completed(completions)

    def _completed(self, completions: Sequence[Completion]) -> None:
        found: dict[HostRing, list[Completion]] = {}
        last, its, by_qpn = None, [], self._by_qpn
        for completion in completions:
            ring = by_qpn.get(completion.qpn)
            if ring is None:
                self._probing.completed(completion)
                continue
            if ring is not last:  # mostly all are of one
                last, its = ring, found.setdefault(ring, [])
            its.append(completion)
        with self._batch:
            for ring, its in found.items():
                ring.completed_all(its)

    def _deadline(self) -> Instant | None:
        return min((at for ring in self._rings if (at := ring.deadline) is not None), default=None)

    def _wake(self) -> None:
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
            "nic_way": self._nic.capabilities.way,
            "mtu": self._path.found.mtu,
            "path": self._path.found.status(),
        }
