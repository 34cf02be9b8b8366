"""A host in a job, from its first rank's joining to its last one's leaving (NetReduce 3.1, 3.4).

The members of a ring are hosts. The ranks that a host has of a job (:mod:`inaproto.core.host.ranks`) share
its links. The host takes part in an all-reduce when all its ranks have called it
(:mod:`inaproto.core.host.gathering`): it sends the sum of their parts, and copies results to all of them.
Operations are carried by engines (:mod:`inaproto.core.host.rings`), whose orders are passed on. A job may
have two rings at once (:mod:`inaproto.core.host.ina_ring`), each with a link. What a ring waits for before
it begins is in :mod:`inaproto.core.host.beginning`.

The ring may end and be followed by another (:mod:`inaproto.core.host.recovery`): the queue pairs failed, a
switch restarted, an accelerator refused. The host is then halted, says how far it is, gets queue pairs for
the next ring, and its operations go on there, on the path that the switch names. A host that has lost the
switch altogether waits for it, and announces its ranks again with their progress. Which words of the switch
are for which job is in :mod:`inaproto.core.host.hearing`.

Invariants: whatever ends a job ends it once, tells each rank once, and gives queue pairs and memory back.
Until the first ring connects ranks come and go by themselves; from then on the loss of one is the end of all.
A host whose ranks have left keeps everything until the ranks of all hosts have (``Closed``): its transport
may still have to repeat what a neighbour lacks, or to acknowledge. What an all-reduce waits for is asked of
the switch, and known to it (:mod:`inaproto.core.host.carrier`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from inaproto.core.host import events, operations
from inaproto.core.host.beginning import Beginning
from inaproto.core.host.carrier import Actions, Carrier, Unusable
from inaproto.core.host.config import HostConfig
from inaproto.core.host.ina_ring import InaRing
from inaproto.core.host.journal import Past
from inaproto.core.host.operations import BoundPath, Operation, ResultArrived, SendCompleted, Woke
from inaproto.core.host.ranks import HostedRank, HostedRanks
from inaproto.core.host.reports import broken, halted
from inaproto.core.host.rings import Engine, connections_of, links_for
from inaproto.core.host.view import IN_RING, HostView, Phase
from inaproto.core.plan.accumulators import Accumulators
from inaproto.errors import FabricLost, JobError, JoinRefused, LocalMisuse, RankLost, SwitchUnreachable
from inaproto.units import Instant, S
from inaproto.wire.control_messages import (
    AskCalls,
    Closed,
    Gone,
    Halt,
    JobStatus,
    Left,
    Message,
    Ready,
    Ring,
    Start,
)
from inaproto.wire.messages.client import DonePath, Join
from inaproto.wire.messages.ina import InaPark, InaStands

HALTS_SHOWN: Final = 5
_ENDED, _AWAY = Phase.ENDED, Phase.AWAY  # a member of an enumeration takes longer to look up than a constant


class HostJob:
    """See the module. ``opening`` are the links that are to be there before its first rank joins."""

    def __init__(self, config: HostConfig) -> None:
        self.config = config
        self.phase = Phase.JOINING
        self.ranks = HostedRanks()
        self.ring: Ring | None = None
        """The present one, or the last."""
        self.has_started = False
        """It has, or had, a ring in which all hosts were ready."""
        self.last_words: list[Gone] = []
        """Why its ranks ended while the host had no switch, which is to be told."""
        self._links: events.LinksOpened
        self._carrier = Carrier(config, self.ranks)
        self._ina_ring = InaRing(config.job, self._carrier, self.ranks)
        self._is_broken = False
        """The present ring is, as this host has told the switch."""
        self._began_at = 0
        """Progress when the last ring ended: only later results are in the slots of the present link."""
        self._came_back = False
        """Announced again, and not in a ring since."""
        self._away_until: Instant | None = None
        self._halts: list[str] = []
        self.recoveries = 0
        self.run = (0, 0)
        """Id of the first ring that started, and its hosts."""
        self._boot_id = ""
        """Boot of the switch of its last ring."""
        self._prepared_for: int | None = None
        """Ring of which it has heard only that it is to make other links than it has."""
        self._halting: Halt | None = None
        """What is answered as soon as there are links for the next ring."""
        self._returning: tuple[int, ...] | None = None
        """Its ranks are announced again by these requests as soon as there are links."""
        self._beginning = Beginning()
        self._now = Instant(0)
        self._out: list[events.HostAction] = []

    @staticmethod
    def of_successor(config: HostConfig, past: Past, now: Instant) -> HostJob:
        """A host in a job whose daemon was another one: it waits for a switch, as one that has lost it.

        Its ranks call anew what lacks results, before it has a switch. Raises ``LocalMisuse`` for a past of
        which this host cannot be.
        """
        job = HostJob(config)
        if not config.recover_ns:
            raise LocalMisuse("this host daemon has recover_ms = 0, so no job outlives a ring")
        for join in past.joins:
            left = past.left.get(join.rank)
            done = past.next_index
            called = done if left is None else left
            job.ranks.add(HostedRank(join, 0, called=called, done=done, left_after=left))
        job.has_started, job.phase, job._boot_id = True, Phase.AWAY, past.boot_id
        job._began_at, job.run = past.progress, past.run
        job._away_until = Instant(now + config.recover_ns)
        job.recoveries, job._halts = 1, ["its host daemon is another one"]
        job._carrier.succeed(past, now)
        return job

    def __str__(self) -> str:
        return self.ranks.describe(self.config.job)

    @property
    def done_path(self) -> DonePath:
        """The path of the present ring, as results are said to have come by it."""
        return self._carrier.done_path

    @property
    def facts(self) -> tuple[list[Join], dict[int, int], str, tuple[int, int]]:
        """For the journal: who is here, and who of them has left after how many all-reduces; the boot of the
        switch of the last ring, and ``run``."""
        left = {rank.number: rank.left_after for rank in self.ranks if rank.left_after is not None}
        return [rank.join for rank in self.ranks], left, self._boot_id, self.run

    @property
    def opening(self) -> events.OpenLinks:
        return links_for(self.config, "switch", "", size=0, children=0)

    # --- what it is

    @property
    def engine(self) -> Engine | None:
        """The engine of the present rings, or the last."""
        return self._carrier.engine

    @property
    def accumulators(self) -> Accumulators | None:
        """Those of the present ring, if its hosts sum along it."""
        return self._carrier.accumulators

    @property
    def ring_id(self) -> int | None:
        known = None if self.ring is None else self.ring.ring_id
        return known if self._prepared_for is None else self._prepared_for

    @property
    def has_ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def has_come_back(self) -> bool:
        """It was announced again after its host had lost the switch, and is in no ring since."""
        return self._came_back

    @property
    def is_gathering(self) -> bool:
        """Its job has no ring yet: another rank may join it."""
        return self.phase is Phase.JOINING and not self.has_started

    @property
    def may_have_orphans(self) -> bool:
        """A process may have given up waiting for the others; nobody depends on it yet."""
        begins = self.phase is Phase.HALTED and not self.has_started
        return begins or self.phase in (Phase.JOINING, Phase.CONNECTING)

    @property
    def is_away(self) -> bool:
        return self.phase is Phase.AWAY

    @property
    def ina_stands(self) -> bool:
        """A ring through the switches stands beside the present one, or is parked."""
        return self._ina_ring.is_attached

    @property
    def progress(self) -> int:
        """Results that this host has taken, since the job began."""
        return self._carrier.progress

    @property
    def deadline(self) -> Instant | None:
        if self.engine is None and self.phase is not Phase.AWAY:
            return None
        if not self.has_started or self.phase in (Phase.LEFT, Phase.ENDED):
            return None
        found = self._carrier.deadline, self._away_until
        return min((at for at in found if at is not None), default=None)

    @property
    def waits_here(self) -> bool:
        """Some ranks have called an all-reduce that others here have not, and nothing else runs."""
        return self._carrier.waits_here

    def view(self) -> HostView:
        halts, carrier = tuple(self._halts), self._carrier
        return HostView.of(self.phase, carrier, self.ring, recoveries=self.recoveries, halts=halts)

    # --- step

    def step(self, event: events.HostEvent, now: Instant) -> list[events.HostAction]:
        """Apply ``event``; the actions are to be performed in order."""
        self._now, self._out = now, []
        if isinstance(event, events.Completed):
            for each in event.events:
                self._happened(each, now)
        else:
            self._happened(event, now)
        return self._out

    def _happened(self, event: events.HostEvent, now: Instant) -> None:
        match event:
            case events.Exchanged():
                if self._is_in_ring:
                    path, edge, acknowledged, receives, results = event
                    self._follow(self._carrier.exchanged(path, edge, acknowledged, results, now))
                    if receives and self.phase is not _ENDED and not self._is_broken:
                        self._out.append(events.PostReceives(path, edge, receives))
            case events.MessageArrived():
                if self._is_in_ring:
                    path, edge, wr_id, imm, nbytes, header = event
                    self._follow(self._carrier.step(ResultArrived(imm, nbytes, header, path, edge), now))
                    if self.phase is not _ENDED and not self._is_broken:
                        self._out.append(events.PostReceive(path, edge, wr_id))
            case events.MessageAcknowledged():
                if self._is_in_ring:
                    path, edge, msg_id = event
                    self._follow(self._carrier.step(SendCompleted(msg_id, path, edge), now))
            case events.RankCalled(number, operation):
                self._called(number, operation)
            case operations.Filled():
                self._follow(self._carrier.step(event, now))
            case events.SummedLocally(op_index):
                if not self.has_ended:
                    self._follow(self._carrier.summed(op_index, now))
            case Woke():
                self._woke()
            case events.Said(message):
                self._heard(message)
            case events.Answered(ring, boot_id):
                self._answered(ring, boot_id)
            case events.LinksOpened():
                self._links_opened(event)
            case events.LinkReady() | events.LinkLost() | events.ConnectionFailed() | events.NicRefused():
                self._on_links(event)
            case events.LinksRefused(why):
                host = self.config.host
                self._lose(JoinRefused(f"job {self.config.job!r}: host {host} has no room for it: {why}"))
            case events.LinkUnusable(why):
                self._lose(JoinRefused(f"{self}: the switch's ring cannot be used here: {why}"))
            case events.RankJoined() | events.RankLeft() | events.RankGone():
                self._of_process(event)
            case events.BindingSaid(op_index, binding):
                self._follow(self._carrier.answered(op_index, binding, now))
            case events.BindingChanged():
                if self.has_started and not self.has_ended:
                    self._follow(self._carrier.step(Woke(), now))
            case events.BindingDiffers(op_index, host):
                if self._ina_ring.may_carry(op_index):  # the switch ends the ring, before a stall
                    self._follow(self._carrier.ask(now, unlike=host))
            case events.TurnsParked(message):
                if self._is_usable:
                    self._out += self._ina_ring.park(message)
            case events.OfCollective(of):
                self._follow(self._carrier.collected(of, now))
            case events.SwitchLost(error):
                self._lose_switch(error)
            case events.SwitchBack(ids, mtu):
                self.config = self.config.with_mtu(mtu)
                self._carrier.config = self.config
                self._switch_back(ids)
            case events.JoinDenied(id, error):
                self._denied(id, error)
            case events.JobFailed(error):
                self._fail(error)
            case events.JobUnknown(error):
                self._lose(error)
            case events.JoiningFailed(ring_id, error):
                self._fail_joining(ring_id, error)
            case events.Faulted(why):
                text = f"{self}: a fault in the host daemon ended it: {why}; please report it"
                self._lose(FabricLost(text))
            case events.Stopped(reason):
                if not self.has_ended and self.ranks.have_all_left and not self.config.recover_ns:
                    self._fail(SwitchUnreachable(f"{self}: {reason}"))  # who has left hears that it is over
                elif not self.has_ended:
                    self._tell(*self.ranks.gone(reason))
                    self._close()
            case events.Completed():
                raise LocalMisuse("what is completed comes in no bundle of bundles")
            case _:
                assert_never(event)

    def _follow(self, actions: Actions) -> None:
        """Pass on what the operations order, and do what becomes of them."""
        is_cut = self.phase is _AWAY
        self._out += [it for it in actions if not isinstance(it, events.Tell)] if is_cut else actions
        verdict = self._carrier.verdict
        if isinstance(verdict, Unusable):
            self._break(verdict.reason, differs=verdict.differs)
        elif verdict is not None:
            self._lose(verdict)

    def _called(self, number: int, operation: Operation) -> None:
        """Raises ``LocalMisuse`` for a rank that may not call that now."""
        rank = self.ranks.get(number)
        if rank is None or not self.has_started or rank.has_left or self.has_ended:
            raise LocalMisuse(f"rank {number} of {self} calls all-reduce {operation.index}, and may not")
        self._follow(self._carrier.call(number, operation, self._now))

    def _woke(self) -> None:
        """Look at the clock: the switch may have been away for too long, or an operation have stalled."""
        if self._away_until is not None and self._now >= self._away_until:
            seconds = self.config.recover_ns / S
            why = self._halts[-1] if self._halts else "unknown"
            text = f"{self}: its switch has not come back within {seconds:g} s; it was lost: {why}"
            self._out.append(events.Noted("a rank gave its switch up"))
            self._fail(SwitchUnreachable(text))
        elif self.has_started and not self.has_ended and not self.ranks.have_all_left:
            self._follow(self._carrier.woke(self._now))

    def _tell(self, *messages: Message) -> None:
        """Nobody hears it while the host has no switch."""
        if self.phase is not Phase.AWAY:
            self._out += [events.Tell(message) for message in messages]

    @property
    def _is_in_ring(self) -> bool:
        return self._carrier.engine is not None and self.phase in IN_RING

    @property
    def _is_usable(self) -> bool:
        return self._is_in_ring and not self._is_broken

    # --- joining

    def _of_process(self, event: events.RankJoined | events.RankLeft | events.RankGone) -> None:
        if isinstance(event, events.RankJoined):
            if not self.is_gathering:
                raise LocalMisuse(f"a rank joins {self}, which gathers no more")
            rank = HostedRank(event.join, event.id)
            self.ranks.add(rank)
            self._announce(rank)
            return
        rank_or_none = self.ranks.get(event.number)
        if rank_or_none is None:
            return  # withdrawn meanwhile
        if isinstance(event, events.RankLeft):
            self._leave(rank_or_none)
        else:
            self._gone(rank_or_none, event.reason)

    def _announce(self, rank: HostedRank) -> None:
        """Tell the switch of one of the ranks."""
        progress = self.progress if self.has_started else None
        links = self._links.base
        self._tell(rank.member(self.config, links, progress=progress, boot_id=self._boot_id))

    def _withdraw(self, rank: HostedRank) -> None:
        self.ranks.remove(rank.number)
        self._beginning.withdraw(rank.number)
        if not len(self.ranks):
            self._close()

    def _answered(self, ring: Ring, boot_id: str) -> None:
        """A rank was taken into a ring: connect when the switch has answered all of them that are here.

        Those here that the ring was made without go on by themselves.
        """
        rank = self.ranks.by_request(ring.id)
        if rank is None or self.phase not in (Phase.JOINING, Phase.HALTED):
            return
        here = ring.ranks[ring.position] if ring.position < len(ring.ranks) else ()
        if rank.number not in here:
            text = f"{self}: the switch's ring {here} cannot be used here: it is without them"
            self._lose(JoinRefused(text))
            return
        if not self._beginning.answered(rank.number, ring, here):
            return
        strangers = [other for other in self.ranks if other.number not in here]
        for stranger in strangers:  # before the ring: if that cannot be used, they do not end with it
            self.ranks.remove(stranger.number)
            self._out.append(events.LetGo(stranger.number))
        self._connect(ring, boot_id)
        for stranger in strangers:
            self._tell(stranger.gone("its job has begun without it; it asks again"))

    def _connect(self, ring: Ring, boot_id: str) -> None:
        """All ranks are there: post receives, connect the queue pairs."""
        if self._came_back:
            self._out.append(events.Noted("a rank came back from away"))
        self.ring, self._boot_id, self._prepared_for = ring, boot_id, None
        self._is_broken = self._came_back = False
        try:
            self._out += self._carrier.connect(ring)
            orders = connections_of(ring, has_ina=self._links.ina is not None)
        except (LocalMisuse, ValueError) as error:
            self._lose(JoinRefused(f"{self}: the switch's ring cannot be used here: {error}"))
            return
        self.phase = Phase.CONNECTING
        self._beginning.connect(orders)
        self._out += orders
        if not orders:
            self._tell(Ready(job=self.config.job, rank=self.ranks.lowest))

    def _links_opened(self, links: events.LinksOpened) -> None:
        self._links = links
        halt, self._halting = self._halting, None
        ids, self._returning = self._returning, None
        if self.phase in (Phase.ENDED, Phase.AWAY):
            self._out.append(events.CloseLinks())
        elif halt is not None:
            self.phase = Phase.HALTED
            ring_id, job = halt.ring_id, self.config.job
            self._tell(halted(job, self.ranks, ring_id=ring_id, progress=self.progress, links=links))
        elif ids is not None:
            self.phase = Phase.JOINING
            self._came_back = True
            for rank, request in zip(self.ranks, ids, strict=True):
                rank.id = request
                self._announce(rank)

    # --- links

    def _on_links(
        self, event: events.LinkReady | events.LinkLost | events.ConnectionFailed | events.NicRefused
    ) -> None:
        match event:
            case events.NicRefused(why):
                if not self.has_ended:
                    self._transport_failed(f"{self}: {why}")
            case events.ConnectionFailed():
                if self._is_in_ring and self.ring is not None:
                    reason = self._beginning.failed_early(self.config.job, self.ring, event)
                    if reason:
                        self._transport_failed(reason)
            case events.LinkReady(path):
                self._connected(path)
            case events.LinkLost(path, why):
                self._connected(path, f"{self}: {why}")
            case _:
                assert_never(event)

    def _connected(self, path: BoundPath, failure: str = "") -> None:
        """Say that this host is ready: what is sent to it now arrives. Or why it will not be.

        The others begin as soon as all are: what came sooner would be lost, until a timer brings it again.
        """
        if self.phase is not Phase.CONNECTING or not self._beginning.awaits(path):
            return  # that ring has ended
        reason = self._beginning.connected(path, failure)
        if reason:
            self._transport_failed(reason)
        elif self._beginning.is_connected and not self._is_broken:
            self._tell(Ready(job=self.config.job, rank=self.ranks.lowest))

    def _transport_failed(self, reason: str) -> None:
        """The queue pairs of this ring are of no use any more."""
        if self.config.recover_ns:
            self._break(reason)
        else:
            self._lose(FabricLost(reason))

    # --- what the switch says

    def _heard(self, message: Start | Halt | InaPark | InaStands | JobStatus | AskCalls | Closed) -> None:
        match message:
            case Start():
                self._start(message)
            case Halt():
                self._halt(message)
            case InaPark():
                if self._is_usable:
                    self._out += self._ina_ring.ask_to_park(message)
            case InaStands():
                if self._is_usable:
                    self._out += self._ina_ring.stand(message)
            case JobStatus():
                self._follow(self._carrier.heard(message, self._now))
            case AskCalls():
                if not self.has_ended:
                    self._follow(self._carrier.tell_calls(self._now))
            case Closed():
                if self.ranks.have_all_left and not self.has_ended:
                    self._close()
                    self._out += [events.RankClosed(rank.number) for rank in self.ranks]
            case _:
                assert_never(message)

    def _start(self, message: Start) -> None:
        """All hosts are ready; the switches have the ring that it names beside this one, or will have it."""
        ring = self.ring
        if self.phase is not Phase.CONNECTING or ring is None:
            return
        if self._links.ina is not None and not self._is_broken:
            self._out += self._ina_ring.attach(self.config, ring, message)
            if not self.ina_stands:
                self._links = replace(self._links, ina=None)
        self.phase = Phase.LEFT if self.ranks.have_all_left else Phase.RUNNING
        if not self.has_started:
            self.has_started, self.run = True, (ring.ring_id, len(ring.peers))
            self._out.append(events.RanksBegun(ring.ring_id))
        self._follow(self._carrier.start(self._now))

    def _halt(self, message: Halt) -> None:
        """The ring has ended: say how far this host is, with queue pairs for the next."""
        is_halted = self.phase is Phase.HALTED and message.ring_id != self.ring_id
        if is_halted or self.phase is Phase.JOINING:
            # Its path was chosen meanwhile, or asked for: slots may be larger.
            self._out.append(events.CloseLinks())
            self._prepared_for = message.ring_id
            if not is_halted:
                self._carrier.watch.ended()  # all ranks have joined
        elif message.ring_id == self.ring_id and self.phase in IN_RING:
            self._stop_ring(message.reason)
        else:
            return
        size, path = self.ranks.size, message.path
        try:
            order = links_for(self.config, path, message.plan, size=size, children=message.children)
        except LocalMisuse as error:
            text = f"{self}: the path {path} that its switch names cannot be used here: {error}"
            self._lose(JoinRefused(text))
            return
        self._halting = message
        self._out.append(order)

    def _stop_ring(self, reason: str) -> None:
        """Take nothing more of the ring, keep what others may lack, give the links back."""
        self.recoveries += 1
        self._halts = [*self._halts[1 - HALTS_SHOWN :], reason]
        self._beginning.clear()
        if self._carrier.resumes or self.phase is Phase.HALTED:
            self._out.append(events.Noted("a rank was halted before it could go on"))
        if self.ring is not None and self.phase in IN_RING:
            self._out += self._ina_ring.end()
            operations = self._carrier.halt()
            beside = None if self._links.ina is None else self.ring.ina_ring_id
            self._out.append(events.KeepResults(tuple(operations.kept), self._began_at, beside))
            self._began_at = operations.progress
        self._out.append(events.CloseLinks(recovers=True))

    def _break(self, reason: str, *, differs: bool = False) -> None:
        """The ring cannot go on here. The switch ends it for all, or the job, if ranks differ in what they
        call."""
        if self._is_broken or self.ring is None or self.phase not in IN_RING:
            return
        self._is_broken = True
        self._carrier.halt()
        follows = "its ranks call different all-reduces" if differs else "the job goes on by another"
        self._out.append(events.Log(f"{self}: its ring broke, {follows}: {reason}"))
        ring_id, job, done = self.ring.ring_id, self.config.job, self.progress
        self._tell(broken(job, self.ranks, ring_id=ring_id, progress=done, reason=reason, differs=differs))

    # --- the switch is lost, and back

    def _lose_switch(self, error: JobError) -> None:
        """Wait for the next, if it comes in time. Ranks that have not started are announced to it anew."""
        if self.phase in (Phase.ENDED, Phase.AWAY):
            return
        if not self.has_started:
            self._close()
            self._out += [events.AnnounceAgain(rank.number) for rank in self.ranks]
        elif self.config.recover_ns:
            self._stop_ring(str(error))
            self._out.append(events.ForgetNic())
            self._halting = self._returning = None
            self._away_until = Instant(self._now + self.config.recover_ns)
            self.phase = Phase.AWAY
        else:
            self._fail(error)

    def _switch_back(self, ids: tuple[int, ...]) -> None:
        """Announce the ranks to it as soon as there are links; or that they have ended since."""
        words, self.last_words = self.last_words, []
        if self.phase is Phase.ENDED:
            self._tell(*words)
        elif self.phase is Phase.AWAY:
            self._returning = ids
            self._away_until = None
            self._out.append(replace(self.opening, registers=True))
            self.phase = Phase.JOINING

    # --- ends

    def _leave(self, rank: HostedRank) -> None:
        """A process has said that it is finished."""
        if not self.has_started or self.has_ended:
            self._gone(rank, "it left before the job had started")
        elif rank.called > rank.done:
            self._gone(rank, f"it left while its all-reduce {rank.done} was running")
        else:
            rank.left_after = rank.called
            if self.phase is Phase.RUNNING and self.ranks.have_all_left:
                self.phase = Phase.LEFT
            self._tell(Left(job=self.config.job, rank=rank.number, operations=rank.left_after))
            if 1 < len(self.ranks) == self.ranks.size:
                self._out.append(events.RankHasLeft(rank.number))

    def _gone(self, rank: HostedRank, reason: str) -> None:
        """A process is lost to the job: tell the switch, which tells the others. Those here hear it now."""
        if rank.has_left:
            return
        if rank.has_ended:
            if self.last_words:  # no switch has heard yet that the job has failed
                self.last_words.append(rank.gone(reason, ring_id=self.ring_id or 0))
            return
        rank.has_ended = True
        self._out.append(events.RankEnded(rank.number))
        if self.is_gathering:
            self._tell(rank.gone(reason))
            self._withdraw(rank)
            return
        place = f"rank {rank.number} ({self.config.host}, pid {rank.join.pid})"
        error = RankLost(f"{place} of job {self.config.job!r} is lost: {reason}")
        self._tell_gone(str(error), first=rank.gone(reason))
        self._fail(error)

    def _lose(self, error: JobError) -> None:
        """This host cannot go on, and found so itself."""
        if not self.has_ended:
            self._tell_gone(str(error))
            self._fail(error)

    def _tell_gone(self, reason: str, *, first: Gone | None = None) -> None:
        """The first that it hears ends the job at the switch, with its words.

        Those that have left are not lost, unless all have: then others may lack what this host sent last.
        """
        words = [] if first is None else [first]
        if first is None or not self.ranks.are_elastic:
            others = self.ranks.gone(reason) or [rank.gone(reason) for rank in self.ranks]
            words += [word for word in others if first is None or word.rank != first.rank]
        if self.phase is Phase.AWAY:
            self.last_words = words
        self._tell(*words)

    def _denied(self, id: int, error: JobError) -> None:
        """The switch does not take a rank."""
        rank = self.ranks.by_request(id)
        if rank is None or self.phase is not Phase.JOINING:
            pass
        elif self.is_gathering:
            self._out.append(events.RankFailed(rank.number, error))
            self._withdraw(rank)
        elif self.ranks.are_elastic and isinstance(error, RankLost):
            self._fail(error)  # another is lost, while these were away
        else:
            self._lose(error)

    def _fail_joining(self, ring_id: int, error: JobError) -> None:
        """The job of that ring has failed: its ranks here end, those that joined anew go on."""
        for number in self._beginning.answered_of(ring_id):
            self._out.append(events.RankFailed(number, error))
            self._withdraw(self.ranks[number])

    def _fail(self, error: JobError) -> None:
        """The job has failed; the switch knows."""
        if self.has_ended:
            return
        self._follow(self._carrier.fail(error, self._now))
        told = [rank.number for rank in self.ranks if not rank.has_ended]
        if self.phase is Phase.HALTED and not self.has_started:
            # A process that joined anew is in the job's next life, with the link that is closed now.
            self._tell(*self.ranks.gone(str(error)))
        self._close()
        self._out += [events.RankFailed(number, error) for number in told]

    def _close(self) -> None:
        """Give queue pairs and memory back."""
        if self.has_ended:
            return
        self.phase = Phase.ENDED
        self._out += self._carrier.close()
        self._out += self._ina_ring.end()
        for rank in self.ranks:
            rank.has_ended = True
        self._out += [events.CloseLinks(), events.Ended()]
