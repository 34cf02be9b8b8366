"""Drives a host in a job (:mod:`inaproto.core.host.job`): memory of processes, NIC, switch, turns and log.

How events follow each other, and what becomes of links, is in :mod:`inaproto.core.host.driver`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, assert_never

from inaproto.core.host import events
from inaproto.core.host.collective import Allowed, Attach, FellBack, FromShell, Release, Stands, Try
from inaproto.core.host.driver import HostDriver
from inaproto.core.host.engines.two_paths import AskBinding, Bound, Drained
from inaproto.core.host.holdings import Holdings
from inaproto.core.host.job import HostJob
from inaproto.core.host.journal import Journal, Past
from inaproto.core.host.link import Link
from inaproto.core.host.meeting_place import MeetingPlace, common_place
from inaproto.core.host.operations import (
    BoundPath,
    Filled,
    OperationFailed,
    Overdue,
    RingBroken,
    Stalled,
    Woke,
)
from inaproto.core.host.ranks import REASON_CHARACTERS_MAX
from inaproto.core.host.view import Phase
from inaproto.daemon.host.adding import Adding, UnderWay
from inaproto.daemon.host.collective import CollectiveHost, CollectiveSeat
from inaproto.daemon.host.link_memory import LinkMemory
from inaproto.daemon.host.link_waits import Connecting
from inaproto.daemon.host.local_rank import Keeps, LocalRank
from inaproto.daemon.host.request_batches import batched
from inaproto.daemon.host.ring_orders import ClientTensors
from inaproto.daemon.host.ring_settings import MTU_DEFAULT, host_config, qp_attributes
from inaproto.daemon.host.ring_status import ring_status
from inaproto.daemon.host.shared_arena import SharedArena
from inaproto.daemon.host.totals import HostTotals
from inaproto.daemon.host.turn_orders import TurnOrders
from inaproto.daemon.host.turns import Turns
from inaproto.daemon.settings.config import HostSettings
from inaproto.errors import Blame, FabricError, JobError, JoinRefused, LocalMisuse, Unsupported
from inaproto.ports import Completion, Nic, RandomBits
from inaproto.units import PSN_BITS, Instant, OpIndex
from inaproto.wire.control_messages import Gone, Message
from inaproto.wire.messages.client import AllReduce, DonePath
from inaproto.wire.messages.client import Filled as FilledMessage
from inaproto.wire.messages.collective import CollectiveWord

_MEETING_BITS: Final = 64
_SUCCESSOR: Final = "going on by a successor of the host daemon"


class HostRing(HostDriver):
    """The ranks of job ``job`` on this host, and their rings; ``tell`` sends a message to the switch.

    Raises ``JoinRefused`` when memory or the NIC's resources are short.
    """

    def __init__(
        self,
        job: str,
        *,
        settings: HostSettings,
        nic: Nic,
        tell: Callable[[Message], None],
        clock: Callable[[], Instant],
        log: Callable[[str], None],
        random_bits: RandomBits,
        turns: Turns | None = None,
        hurry: Callable[[], None] = lambda: None,
        totals: HostTotals | None = None,
        memory: LinkMemory | None = None,
        collective: CollectiveHost | None = None,
        past: tuple[SharedArena, Past] | None = None,
        switch_succeeds: bool = True,
        mtu: int = MTU_DEFAULT,
    ) -> None:
        """``past``: of a daemon before this one, of whose ranks these are (:meth:`resume`).

        ``switch_succeeds``: the switch lets ranks come back through another daemon. ``mtu``: the largest that
        the path carries, if settings say none.
        """
        self.job = job
        self._why_no_successor = _why_no_successor(
            recovers=settings.recover_ms > 0, is_exact=collective is None, switch_succeeds=switch_succeeds
        )
        self.nic = nic
        self.ranks: dict[int, LocalRank] = {}
        """Its ranks by number, ascending."""
        self._random_bits = random_bits
        self._meets = MeetingPlace()
        """Where its ranks meet, if all ranks of the job are here."""
        self._turns = turns or Turns()
        self._tell, self._log = tell, log
        self._totals = totals or HostTotals()
        self._record = self._totals.begin(job, clock())
        config = host_config(job, settings, None if collective is None else collective.terms, mtu=mtu)
        core = HostJob(config) if past is None else HostJob.of_successor(config, past[1], clock())
        self._arena: SharedArena | None = None
        journal: Journal | None = None
        if past is not None:
            self._arena, its = past
            journal = Journal.of_successor(self._arena, its)
        elif not self._why_no_successor:
            try:
                self._arena = SharedArena()
                window, tensor_bytes = config.window_messages, config.tensor_bytes
                journal = Journal(self._arena, window_messages=window, tensor_bytes=tensor_bytes)
            except OSError as error:
                text = f"job {job!r}: host {settings.name} has no memory for its journal: {error}"
                raise JoinRefused(text) from None
        self._keeps = Keeps(-1, 0)
        """What its ranks are given to keep for a successor of this daemon."""
        self._recover_ms = settings.recover_ms
        holdings = Holdings(
            core,
            allocate=(memory or LinkMemory()).allocate,
            first_psn=lambda: random_bits(PSN_BITS),
            attributes=qp_attributes(settings, mtu),
            journal=journal,
        )
        super().__init__(clock)
        self._turn_orders = TurnOrders(self._turns, feed=self.feed, clock=clock, hurry=hurry)
        self.begin(core, holdings)
        self._hurry = hurry
        self._seat: CollectiveSeat | None = None
        """With the collective library of this host, if it has one."""
        self._collective = collective
        if collective is not None:
            self._seat = CollectiveSeat(
                job, collective, feed=self._collected, tell=self._tell_hosts, hosts=self._hosts
            )
        self._connecting: list[Connecting] = []
        """Waits for links of the present rings."""
        self._unwatched: list[Connecting] = []
        """Those that nobody waits in yet."""
        self._strangers: list[LocalRank] = []
        self._has_several = False
        """All-reduces were called and have not ended: several may end at once."""
        self._fills = False
        """A rank has called an all-reduce before its tensor was there."""
        self._under_way = UnderWay()
        if past is not None:
            return
        try:
            opened = holdings.open(core.opening, nic)
        except (LocalMisuse, FabricError, OSError) as error:
            text = f"job {job!r}: host {settings.name} has no room for it: {error}"
            raise JoinRefused(text) from None
        self.feed(opened)

    def __str__(self) -> str:
        return str(self.core)

    @property
    def phase(self) -> Phase:
        return self.core.phase

    @property
    def ring_id(self) -> int | None:
        return self.core.ring_id

    @property
    def is_away(self) -> bool:
        return self.core.is_away

    @property
    def last_words(self) -> list[Gone]:
        return self.core.last_words

    @property
    def queue_pairs(self) -> list[int]:
        return [qpn for link in self.holdings.links.values() for qpn in link.qpns]

    # --- what is ordered

    def _faulted(self, fault: Exception) -> None:
        told = "".join(traceback.format_exception(fault))
        self._log(f"{self}: {fault!r}\n{told}")
        super()._faulted(fault)

    def _perform(self, action: events.ShellAction) -> None:
        match action:
            case events.Tell(message):
                self._tell(message)
            case events.AllReduceDone(op_index, path):
                self._done(op_index, path)
            case (
                events.BeginTurns()
                | events.EndTurns()
                | events.ParkTurns()
                | AskBinding()
                | Bound()
                | Drained()
            ):
                self._turn_orders.perform(action)
            case Attach() | Release():
                if self._seat is not None:
                    self._seat.perform(action)
            case FellBack(_, code, reason):
                self._totals.redone[code.name.lower()] += 1
                self._record.redone(code.name.lower(), reason)
            case Stands(op_index, attempt):
                text = f"from all-reduce {op_index} on the collective sums, in attempt {attempt}"
                self._log(f"{self}: {text}")
            case events.Log(text):
                self._log(text)
            case Blame():
                self._log(f"{self}: {action}")
            case OperationFailed() | Stalled() | Overdue() | RingBroken() | events.Noted():
                pass  # owners learn of it by what follows
            case _:
                self._on_ranks(action)

    def _on_ranks(
        self,
        action: events.RanksBegun
        | events.RanksWait
        | events.RankFailed
        | events.RankClosed
        | events.RankHasLeft
        | events.RankEnded
        | events.AnnounceAgain
        | events.LetGo
        | events.Ended
        | events.ForgetNic,
    ) -> None:
        match action:
            case events.RanksBegun(ring_id):
                self._ranks_begun(ring_id)
            case events.RanksWait(refused):
                for rank in self.ranks.values():
                    rank.owner.waits(refused)
            case events.RankFailed(number, error):
                self._end_of(number).fail(error)
            case events.RankClosed(number):
                self.ranks[number].owner.rank_closed()
            case events.RankHasLeft(number):
                for rank in self.ranks.values():
                    if rank.meets and not rank.has_left:  # else its library knows no such word
                        rank.owner.other_left(number)
            case events.RankEnded(number):
                self._end_of(number).end()
            case events.AnnounceAgain(number):
                self.ranks[number].owner.announce_again()
            case events.LetGo(number):
                stranger = self.ranks.pop(number)
                stranger.ring = None
                self._strangers.append(stranger)
            case events.ForgetNic():
                for rank in self.ranks.values():
                    rank.deregister()
            case events.Ended():
                self._record.has_ended = True
                self.holdings.sums.clear()
                self._under_way.give_up()
                for rank in self.ranks.values():
                    rank.end()
            case _:
                assert_never(action)

    def _end_of(self, number: int) -> LocalRank:
        """It is of this ring no more if it was withdrawn from its job."""
        return self.ranks[number] if self.core.ranks.get(number) else self.ranks.pop(number)

    def _ranks_begun(self, ring_id: int) -> None:
        local = len(self.ranks) == self.core.ranks.size
        alone = len(self.ranks) == 1 and not local
        if local:
            self._why_no_successor = self._why_no_successor or "all its ranks are on this host"
        if any(not rank.join.life for rank in self.ranks.values()):
            why = str(Unsupported(_SUCCESSOR, "a process has the library of a release that looks for none"))
            self._why_no_successor = self._why_no_successor or why
        if not self._why_no_successor and self._arena is not None:
            self._keeps = Keeps(self._arena.descriptor, self._recover_ms)
        if local and len(self.ranks) > 1:
            self._meets = self._meeting_place()
        for rank in self.ranks.values():
            rank.fills = alone and self.core.view().collective is None
            rank.owner.joined(
                ring_id,
                self.core.config.operations_max,
                local=local and not self._meets.why_not,
                fills=rank.fills,
                keeps=self._keeps,
                meets=self._meets,
            )
        self._note_run()

    def _meeting_place(self) -> MeetingPlace:
        """Where ranks that are all here may add up among themselves; the daemon adds if they do not meet."""
        named = {number: rank.meets for number, rank in self.ranks.items()}
        name = f"{self._random_bits(_MEETING_BITS):016x}" if any(named.values()) else ""
        found = common_place(named, name)
        if found.why_not:
            self._log(f"{self}: its ranks do not add in place among themselves: {found.why_not}")
        return found

    def _note_run(self) -> None:
        ring_id, hosts = self.core.run
        self._record.rings(ring_id, size=self.core.ranks.size, ranks=len(self.ranks), hosts=max(1, hosts))

    # --- successors

    @property
    def may_have_successor(self) -> bool:
        """Its ranks go on if this daemon ends: nobody is told that they are lost."""
        return self._keeps.successor_ms > 0 and not self.core.has_ended

    def let_go(self) -> None:
        """It has ended: its journal's memory and descriptors go now, and not when a collector comes by.

        Amid a step there may still be something to write, and the collector has to do it.
        """
        if not self._steps.is_stepping:
            self._arena = None
            self.holdings.let_go()

    def is_of(self, file: tuple[int, int]) -> bool:
        """Its journal is in that file."""
        return self._arena is not None and self._arena.file == file

    def adopt(self, rank: LocalRank) -> bool:
        """As :class:`~inaproto.daemon.host.successions.GoesOn`."""
        hosted = self.core.ranks.get(rank.number)
        if hosted is None or not hosted.has_left or hosted.join.life != rank.join.life:
            return False
        rank.ring, rank.hosted = self, hosted
        self.ranks[rank.number] = rank
        return True

    def resume(self, returned: Mapping[int, Sequence[AllReduce]], past: Past) -> None:
        """All its ranks that have not left are back (``ranks``): go on where the daemon before this one was.

        ``returned``: what each of them has called and not heard the end of. Raises ``JobError``.
        """
        now = self._clock()
        self._note_run()
        self._keeps = Keeps(-1 if self._arena is None else self._arena.descriptor, self._recover_ms)
        for number, rank in self.ranks.items():
            rank.hosted = self.core.ranks[number]
            rank.hosted.join = rank.join  # with the pid of who is there, not of who was said to be
            rank.fills = len(self.ranks) == 1
        for number, requests in returned.items():
            for request in requests:
                if request.op_index < past.next_index:
                    self.ranks[number].has_done(request, now)
                else:
                    self.submit(self.ranks[number], request)
        self.holdings.tensors = self._tensors()
        if past.torn is not None:
            torn, index = past.kept[-1][0].operation, past.torn.op_index
            called = [it.tensors[index].operation for it in self.ranks.values() if index in it.tensors]
            if called != [torn] * len(self.ranks):
                raise JobError(f"all-reduce {index} was under way, and not all ranks here called it so")
        self.holdings.restore(past)
        if self._arena is not None and self.holdings.journal is not None:
            self._arena.keep_only(self.holdings.journal.nbytes)  # what was behind it is in the journal by now
        for rank in self.ranks.values():
            rank.tell_done(past.next_index, past.path, now)

    # --- sums of one host

    def begin_slice(self) -> Adding | None:
        """A part of what only ranks of this host are to add up, for a thread."""
        return self._under_way.begin(self.take_slice())

    def end_slice(self, adding: Adding) -> None:
        """It was added, or given up."""
        if self._under_way.end(adding):
            self.added(adding.part, adding.fault)

    def _tensors(self) -> ClientTensors:
        return ClientTensors([self.ranks[number].tensors for number in self.core.ranks.numbers])

    # --- the collective beside the rings

    def heard(self, word: CollectiveWord) -> None:
        """Another host of the job says that."""
        if self._seat is not None and self.phase is not Phase.ENDED:
            self._seat.heard(word)

    def _collected(self, event: FromShell) -> None:
        with batched(self.nic):
            self.feed(events.OfCollective(event))
        self._hurry()

    def look_at_place(self) -> None:
        """Whether it may be attached may have changed."""
        if self._collective is not None and self.phase is not Phase.ENDED:
            self._collected(Allowed(self._collective.places.may_attach(self.job)))

    def _tell_hosts(self, word: CollectiveWord) -> None:
        self._tell(word)

    def _hosts(self) -> tuple[tuple[str, ...], int]:
        ring = self.core.ring
        return ((), 0) if ring is None else (ring.peers, ring.position)

    def _memory_to_try(self, order: Try) -> tuple[memoryview, memoryview]:
        if self._seat is None:
            return super()._memory_to_try(order)
        return self._seat.memory_to_try(order.operation.nbytes)

    def _try(self, order: Try) -> None:
        if self._seat is not None:
            self._seat.try_it(order)

    # --- links

    def _nic_for(self, order: events.OpenLinks) -> Nic:
        if order.registers:
            for rank in self.ranks.values():
                rank.register(self.nic)
        return self.nic

    def _begin_connecting(self, path: BoundPath) -> None:
        wait = Connecting(self.holdings.links[path], self.nic)
        self._connecting.append(wait)
        self._unwatched.append(wait)

    def _closing(self, order: events.CloseLinks | events.CloseIna | events.KeepResults) -> None:
        """Nobody waits for links that are about to be given back."""
        if isinstance(order, events.CloseLinks):
            self._totals.recoveries += order.recovers
            self._record.recoveries += order.recovers
        links = self.holdings.closed_by(order)
        for wait in [wait for wait in self._connecting if wait.link in links]:
            wait.end()
            self._connecting.remove(wait)
            if wait in self._unwatched:
                self._unwatched.remove(wait)

    def take_connecting(self) -> list[Connecting]:
        """Once for each ring with neighbours: :meth:`connected` wants to hear what becomes of them."""
        waits, self._unwatched = self._unwatched, []
        return waits

    def connected(self, link: Link, failure: str = "") -> None:
        """What neighbours send on it now arrives; or why it will not."""
        for path, other in self.holdings.links.items():
            if other is link:
                self.feed(events.LinkLost(path, failure) if failure else events.LinkReady(path))
                return

    # --- ranks

    def add(self, rank: LocalRank, request: int) -> None:
        """A rank joins while the job gathers; the switch is asked by ``request``."""
        rank.ring = self
        self.ranks = dict(sorted((self.ranks | {rank.number: rank}).items()))
        self.feed(events.RankJoined(rank.join, request))
        rank.hosted = self.core.ranks.get(rank.number)
        self.look_at_place()

    def take_strangers(self) -> list[LocalRank]:
        """Ranks that the ring was made without: they are this object's no more."""
        strangers, self._strangers = self._strangers, []
        return strangers

    def submit(self, rank: LocalRank, request: AllReduce) -> None:
        """A rank calls an all-reduce. Raises ``JobError`` for what no client library asks."""
        if not self.core.has_started or rank.has_left:
            raise JobError(f"{rank}: all_reduce {request.op_index} before the rank has joined")
        operation = rank.call(request, self._clock(), self.core.config.operations_max)
        self._has_several = len(rank.tensors) > 1
        self._fills = self._fills or operation.filled is not None
        if rank.number == self.core.ranks.lowest:
            waited = request.wait_ns is not None and request.work_ns is not None
            times = (request.wait_ns or 0, request.work_ns or 0) if waited else None
            self._turns.called(operation.index, operation.nbytes, times)
        with batched(self.nic):
            self.feed(events.RankCalled(rank.number, operation))

    def filled(self, rank: LocalRank, told: FilledMessage) -> None:
        """More of a tensor is there. Raises ``JobError`` for what no client library says."""
        if rank.filled(told):
            with batched(self.nic):
                self.feed(Filled(OpIndex(told.op_index), told.nbytes))

    def completed_all(self, completions: Iterable[Completion]) -> None:
        """As every host's; what a process is to hear of it, it hears at once."""
        if self._has_several:
            with ExitStack() as held:
                for rank in self.ranks.values():
                    held.enter_context(rank.owner.held())
                super().completed_all(completions)
        else:
            super().completed_all(completions)
        if self._fills:
            self._tell_results()

    def _tell_results(self) -> None:
        """Processes hear of results that they may copy by now."""
        operations = None if self.core.engine is None else self.core.engine.operations
        if operations is not None and operations.running is not None:
            for rank in self.ranks.values():
                rank.took(operations.running.index, operations.results * operations.tensor_bytes)

    def leave(self, rank: LocalRank) -> None:
        """A process has said that it is finished."""
        if self.ranks.get(rank.number) is rank and not rank.has_left:
            self.feed(events.RankLeft(rank.number))

    def gone(self, rank: LocalRank, reason: str) -> None:
        """A process is lost to the job."""
        if self.ranks.get(rank.number) is rank:
            self.feed(events.RankGone(rank.number, reason))

    def gone_after_end(self, rank: LocalRank, reason: str) -> Gone:
        """Says that a rank is lost whose job had failed: it cannot go on with the others."""
        text = reason[:REASON_CHARACTERS_MAX]
        return Gone(job=self.job, rank=rank.number, reason=text, ring_id=self.ring_id or 0)

    def _done(self, op_index: OpIndex, path: DonePath) -> None:
        tensors = [rank.tensors[op_index] for rank in self.ranks.values()]
        if tensors:
            since = min(tensor.since for tensor in tensors)
            self._totals.done(self._record, path, tensors[0].operation.nbytes, since, self._clock())
        self._turns.done(op_index)
        for rank in self.ranks.values():
            rank.done(op_index, path, self._clock())
            self._has_several = len(rank.tensors) > 1

    # --- clock, switch and end

    def woke(self) -> None:
        """Look at the clock: the running operation may have stalled, or taken too long."""
        self.feed(Woke())

    def rejoin(
        self, nic: Nic, tell: Callable[[Message], None], request: Callable[[], int], mtu: int = 0
    ) -> None:
        """The host has a switch again: announce the ranks to it, or that they have ended since.

        ``mtu``: the largest that the path to it carries; 0: as before.
        """
        self.nic, self._tell = nic, tell
        self.feed(events.SwitchBack(tuple(request() for _ in self.ranks), mtu))

    def give_up(self, why: str) -> None:
        """No ring of the job can be used by this host: its ranks end, and with them the job."""
        self.feed(events.LinkUnusable(why))

    def lose_fabric(self, error: JobError) -> None:
        """The host has lost its switch: wait for the next, if it comes in time."""
        self.feed(events.SwitchLost(error))

    def close(self, reason: str = "its host daemon was stopped") -> None:
        """Give queue pairs and memory back; tell the switch why."""
        self.feed(events.Stopped(reason))

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        ranks = self.core.ranks
        view, why = self.core.view(), self._why_no_successor
        found = ring_status(self.job, ranks.size, view, self.ranks.values(), self._clock(), why)
        return found | {"adds_apart": self._meets.why_not}


def _why_no_successor(*, recovers: bool, is_exact: bool, switch_succeeds: bool) -> str:
    """Why the ranks of a job end with their host daemon, as far as that is known before it begins."""
    if not recovers:
        return "recover_ms is 0"
    if not is_exact:
        return str(Unsupported(_SUCCESSOR, "the job may have results of a collective library"))
    if not switch_succeeds:
        return str(Unsupported(_SUCCESSOR, "the switch is of a release in which no rank comes back to one"))
    return ""
