"""Drives a host in a job (:mod:`inaproto.core.host.job`): events one after the other, orders one by one.

What a host orders of links and memory is carried out here, by its holdings; what is for processes, the switch
and its turns is left to whoever has those. Daemons and simulated hosts share this module.

Invariants: calls never block and never wait; what happens while orders are performed is dealt with after
them; a NIC that refuses to send is given nothing more of the same orders, but results are taken; a fault of
this program ends this job and no other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final, assert_never

from inaproto.core.host import collective, events
from inaproto.core.host.engines.host_tree import Fold, PostDown
from inaproto.core.host.engines.hosts import Combine, PostSlot
from inaproto.core.host.engines.two_paths import OnPath
from inaproto.core.host.holdings import Holdings, LinkOrder
from inaproto.core.host.job import HostJob
from inaproto.core.host.link import LinkNic
from inaproto.core.host.local_reduction import Slice
from inaproto.core.host.operations import BASE, BoundPath, PostMessage, TakeResult
from inaproto.core.host.performer import Tensors
from inaproto.core.host.view import Phase
from inaproto.core.rdma.verbs import Completion, Segment
from inaproto.core.steps import Steps
from inaproto.errors import FabricError, InvariantBroken, LocalMisuse
from inaproto.units import Instant

_OF_MESSAGES: Final = (
    PostMessage,
    TakeResult,
    events.PostReceives,
    PostSlot,
    Combine,
    events.PostReceive,
    OnPath,
    Fold,
    PostDown,
)
"""Orders about memory and NIC: those that each message brings, so they are looked at first."""
_BESIDE: Final = (collective.Vote, collective.TakeTried, collective.Try, events.CountVotes)
_BY_NIC: Final = (PostMessage, PostSlot, PostDown, events.PostReceives, events.PostReceive)
_WRITTEN: Final = (events.RanksBegun, events.RankFailed, events.Ended)
_TOLD: Final = (
    events.Tell,
    events.CloseLinks,
    events.CloseIna,
    events.RankFailed,
    events.RankClosed,
    events.RankHasLeft,
    events.RankEnded,
    events.AnnounceAgain,
    events.LetGo,
    events.Ended,
    events.ForgetNic,
    events.EndTurns,
    collective.Release,
    events.Log,
)
"""Whatever else cannot be performed, these are."""


class HostDriver(ABC):
    """Steps a core by the events that it is fed; ``clock`` is the host's."""

    core: HostJob
    holdings: Holdings

    def __init__(self, clock: Callable[[], Instant]) -> None:
        self._clock = clock
        self._steps: Steps[events.HostEvent] = Steps(self._step)
        self.feed = self._steps.post
        """It has happened: do what follows, and what follows of that."""

    def begin(self, core: HostJob, holdings: Holdings) -> None:
        """Drive ``core`` from now on; what waits for another one is forgotten."""
        self._steps.clear()
        self.core, self.holdings = core, holdings

    @property
    def deadline(self) -> Instant | None:
        """When it is to be woken at the latest."""
        return self.core.deadline

    @abstractmethod
    def _perform(self, action: events.ShellAction) -> None:
        """Carry out what is neither of links nor of memory."""

    @abstractmethod
    def _nic_for(self, order: events.OpenLinks) -> LinkNic:
        """The NIC for the links of ``order``, which knows the memory of the ranks. Raises ``LocalMisuse``."""

    @abstractmethod
    def _tensors(self) -> Tensors[Segment]:
        """Those of the ranks that are in the job's first ring, in order."""

    @abstractmethod
    def _begin_connecting(self, path: BoundPath) -> None:
        """A link is being connected: feed ``LinkReady`` when it is, or ``LinkLost``."""

    @abstractmethod
    def _closing(self, order: events.CloseLinks | events.CloseIna | events.KeepResults) -> None:
        """A ring has ended: some links are about to be given back (``Holdings.closed_by``)."""

    def _faulted(self, fault: Exception) -> None:
        """A fault of this program."""
        self.feed(events.Faulted(str(fault)))

    def completed(self, completion: Completion) -> None:
        """A work request of one of the queue pairs has ended."""
        event = self.holdings.event_of(completion)
        if event is not None:
            self.feed(event)

    def completed_all(self, completions: Iterable[Completion]) -> None:
        """Several have, of its queue pairs; in one step: whoever polled a NIC hands on all that it found.

        Where a host has two rings orders are for the one or the other from step to step.
        """
        if len(self.holdings.links) > 1:
            for completion in completions:
                self.completed(completion)
            return
        found = self.holdings.events_of(completions)
        if len(found) > 1:
            self.feed(events.Completed(tuple(found)))
        elif found:
            self.feed(found[0])

    def take_slice(self) -> Slice | None:
        """A part of what only ranks of this host are to add up, for whoever can; None: not now."""
        self._end_sums()
        if self.core.phase is not Phase.RUNNING:
            return None
        try:
            return self.holdings.take_slice()
        except (InvariantBroken, LocalMisuse) as fault:
            self._faulted(fault)
            return None

    def added(self, part: Slice, fault: Exception | None = None) -> None:
        """It was added, or could not be, by a fault of this program."""
        if fault is not None:
            self._faulted(fault)
            return
        self.holdings.added(part)
        self._end_sums()

    def _end_sums(self) -> None:
        """Those that all ranks have, once the ring runs (again)."""
        while self.core.phase is Phase.RUNNING and (operation := self.holdings.take_sum()) is not None:
            self.feed(events.SummedLocally(operation.index))

    def _step(self, event: events.HostEvent) -> None:
        try:
            actions = self._stepped(event)
        except (InvariantBroken, LocalMisuse) as fault:  # ours: this job must not go on, others may
            if isinstance(event, events.Faulted):
                raise  # the job cannot even be ended
            self._faulted(fault)
            return
        if actions:
            self._perform_all(actions)

    def _stepped(self, event: events.HostEvent) -> list[events.HostAction]:
        """What the core orders; who has left is written down before anybody hears of it."""
        actions = self.core.step(event, self._clock())
        if isinstance(event, events.RankLeft):
            self.holdings.write_facts()
        return actions

    def _perform_all(self, actions: list[events.HostAction]) -> None:
        """All of them, though the NIC may refuse to send: results that were taken must be taken."""
        holdings = self.holdings
        refused: FabricError | None = None
        fault: Exception | None = None
        if holdings.tensors is None and self.core.engine is not None:
            holdings.tensors = self._tensors()
        holdings.begin()
        perform = holdings.perform
        for action in actions:
            try:
                if isinstance(action, _OF_MESSAGES):
                    if fault is None and (refused is None or not isinstance(action, _BY_NIC)):
                        perform(action)
                elif fault is not None and not isinstance(action, _TOLD):
                    pass
                elif isinstance(action, events.OpenLinks):
                    self._open(action)
                elif isinstance(action, LinkOrder):
                    self._on_links(action)
                elif isinstance(action, events.SumLocally):
                    holdings.sum(action)
                elif isinstance(action, _BESIDE):
                    self._beside(action)
                else:
                    if isinstance(action, _WRITTEN):
                        self._write(action)
                    self._perform(action)
            except FabricError as error:
                refused = refused or error
            except (InvariantBroken, LocalMisuse) as error:
                fault = error
        if fault is not None:
            self._faulted(fault)
        elif refused is not None:
            self.feed(events.NicRefused(str(refused)))

    def _write(self, action: events.RanksBegun | events.RankFailed | events.Ended) -> None:
        """Into the journal, before anybody hears of it."""
        match action:
            case events.RanksBegun():
                self.holdings.write_facts(begins=True)
            case events.RankFailed(_, error):
                self.holdings.write_end(error)
            case events.Ended():
                self.holdings.write_end()
            case _:
                assert_never(action)

    # --- the collective beside the rings

    def _memory_to_try(self, order: collective.Try) -> tuple[memoryview, memoryview]:
        """As long as the operation: what the attachment reads, and where its result is to lie."""
        raise InvariantBroken("a host without a collective tries an operation")

    def _try(self, order: collective.Try) -> None:
        """The memory is filled: feed what becomes of it."""
        raise InvariantBroken("a host without a collective tries an operation")

    def _beside(
        self, order: collective.Try | collective.Vote | collective.TakeTried | events.CountVotes
    ) -> None:
        holdings = self.holdings
        tensors = holdings.of_votes()
        match order:
            case collective.Vote():
                tensors.vote(order)
            case events.CountVotes(op_index):
                self.feed(events.OfCollective(collective.Counted(op_index, *tensors.count(op_index))))
            case collective.TakeTried():
                holdings.apart.take(order, tensors)
            case collective.Try():
                holdings.apart.fill(order, tensors, *self._memory_to_try(order))
                self._try(order)
            case _:
                assert_never(order)

    # --- links

    def _open(self, order: events.OpenLinks) -> None:
        try:
            opened = self.holdings.open(order, self._nic_for(order))
        except (LocalMisuse, FabricError, OSError) as error:
            self.holdings.close_all()
            self.feed(events.LinksRefused(str(error)))
        else:
            self.feed(opened)

    def _on_links(self, order: LinkOrder) -> None:
        holdings = self.holdings
        if isinstance(order, events.ConnectLink | events.ConnectTree):
            holdings.write_facts()
            try:
                holdings.on_links(order)
            except (LocalMisuse, ValueError) as error:
                self.feed(events.LinkUnusable(str(error)))
            else:
                self._begin_connecting(BASE if isinstance(order, events.ConnectTree) else order.path)
        else:
            if isinstance(order, events.CloseLinks) and self.core.has_ended:
                holdings.write_end()  # before the results that it had taken are given up
            self._closing(order)
            holdings.on_links(order)
