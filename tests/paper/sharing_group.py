"""A sharing group in memory: real coordinator and seats, messages in order, each step by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    FromCoordinator,
    FromPeer,
    FromSeat,
    Mark,
    Noted,
    OperationEnded,
    OperationStarting,
    ParticipantAction,
    ParticipantConfig,
    ParticipantEvent,
    PatienceConfig,
    Persist,
    Persisted,
    SeatsChanged,
    SharingAction,
    SharingConfig,
    SharingEvent,
    SharingRecord,
    StartOperation,
    Tell,
    TellCoordinator,
    TellPeer,
    Woke,
)
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.units import Epoch, Instant, JobId, OpIndex
from inaproto.wire.messages.sharing import CoordinatorMessage, PeerMessage, Rule, Seat, SeatMessage

Message = CoordinatorMessage | SeatMessage | PeerMessage


class Group:
    def __init__(
        self,
        rule: Rule,
        *,
        jobs: str = "AB",
        hosts: int = 2,
        capacity: int = 1,
        objections_max: int | None = 3,
        patience: PatienceConfig | None = None,
        make: Callable[[SharingConfig, SharingRecord | None], SharingCoordinator] = SharingCoordinator,
    ) -> None:
        self.make = make
        self.config = SharingConfig(
            "g", rule, capacity=capacity, objections_max=objections_max, patience=patience
        )
        self.seats = [Seat(JobId(job), f"h{host}") for job in jobs for host in range(hosts)]
        self.now = Instant(0)
        self.record: SharingRecord | None = None
        self.started: dict[tuple[Seat, int], Epoch | None] = {}
        self.under_way: deque[tuple[Seat | None, FromSeat | FromCoordinator | FromPeer]] = deque()
        """(receiver, what arrives); None is the coordinator."""
        self.delivered: list[Message] = []
        self.actions: list[SharingAction | ParticipantAction] = []
        self.persists = True
        self.pending: Persist | None = None
        self.participants = {seat: SharingParticipant(ParticipantConfig(seat)) for seat in self.seats}
        self.restart()

    def restart(self) -> None:
        """A coordinator, from the log."""
        self.coordinator = self.make(self.config, self.record)
        self.tell(Woke())
        self.tell(SeatsChanged(tuple(self.seats)))

    def tell(self, event: SharingEvent) -> None:
        for action in self.coordinator.step(event, self.now):
            self.actions.append(action)
            if isinstance(action, Tell):
                self.under_way.append((action.seat, FromCoordinator(action.message)))
            elif isinstance(action, Persist):
                self.pending = action
                if self.persists:
                    self.write()

    def write(self) -> None:
        action, self.pending = self.pending, None
        assert action is not None
        self.record = action.record
        self.tell(Persisted(action.token))

    def at(self, seat: Seat, event: ParticipantEvent) -> None:
        for action in self.participants[seat].step(event, self.now):
            self.actions.append(action)
            if isinstance(action, TellCoordinator):
                self.under_way.append((None, FromSeat(seat, action.message)))
            elif isinstance(action, TellPeer):
                self.under_way.append((action.seat, FromPeer(seat, action.message)))
            elif isinstance(action, StartOperation):
                self.started[seat, action.index] = action.epoch

    def deliver(self, *kinds: type) -> None:
        """All that is under way, and what follows from it; only these kinds, if any."""
        kept: deque[tuple[Seat | None, FromSeat | FromCoordinator | FromPeer]] = deque()
        while self.under_way:
            receiver, event = self.under_way.popleft()
            if kinds and not isinstance(event.message, kinds):
                kept.append((receiver, event))
                continue
            self.delivered.append(event.message)
            if receiver is None:
                assert isinstance(event, FromSeat)
                self.tell(event)
            else:
                assert not isinstance(event, FromSeat)
                self.at(receiver, event)
        self.under_way = kept

    def deliver_but(self, seat: Seat, *kinds: type) -> None:
        """All, but what the seat says; only these kinds of it, if any."""
        while self.under_way:
            receiver, event = self.under_way.popleft()
            is_muted = isinstance(event, FromSeat) and event.seat == seat
            if is_muted and (not kinds or isinstance(event.message, kinds)):
                continue
            self.delivered.append(event.message)
            if receiver is None:
                assert isinstance(event, FromSeat)
                self.tell(event)
            else:
                assert not isinstance(event, FromSeat)
                self.at(receiver, event)

    def lose(self) -> None:
        self.under_way.clear()

    def start(self, seat: Seat) -> Epoch | None:
        """The next operation; its epoch."""
        index = self.participants[seat].view().next_operation
        self.at(seat, OperationStarting(index))
        return self.started.get((seat, index))

    def run(self, job: str, operations: int = 1) -> list[set[Epoch | None]]:
        """Whole operations of a job: the epochs of each, over its seats."""
        found = []
        for _ in range(operations):
            epochs = {self.start(seat) for seat in self.of(job)}
            found.append(epochs)
            for seat in self.of(job):
                index = OpIndex(self.participants[seat].view().next_operation - 1)
                self.at(seat, OperationEnded(index))
        return found

    def of(self, job: str) -> list[Seat]:
        return [seat for seat in self.seats if seat.job == job]

    def pass_time(self, ns: int) -> None:
        """All timers that expire by then do."""
        self.now = Instant(self.now + ns)
        deadline = self.coordinator.deadline
        if deadline is not None and deadline <= self.now:
            self.tell(Woke())
        for seat, participant in self.participants.items():
            if participant.deadline is not None and participant.deadline <= self.now:
                self.at(seat, Woke())

    def marks(self) -> list[Mark]:
        return [action.mark for action in self.actions if isinstance(action, Noted)]

    def phases(self, job: str) -> list[str]:
        return [self.participants[seat].view().phase for seat in self.of(job)]
