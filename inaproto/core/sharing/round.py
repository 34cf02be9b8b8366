"""One round of a sharing group: what it is about, its votes, and what they come to (MINA IV-B, steps 3 to 5).

Part of :mod:`inaproto.core.sharing.rounds`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inaproto.core.sharing.events import Mark, SharingConfig
from inaproto.core.sharing.standing_turns import StandingTurns
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.sharing import AT_ONCE, Decision, Rule, Seat, Turn, Version, Vote


@dataclass(frozen=True, slots=True)
class Change:
    """What a round is about."""

    granted: JobId | None
    operations: int | None
    ended: Epoch | None
    seats: tuple[Seat, ...]
    first: OpIndex = field(default=AT_ONCE, compare=False)
    """The earliest operation of the turn that is granted. To wish for another is no reason to abort."""
    until: OpIndex | None = field(default=None, compare=False)
    """None of its operations is this one or a later one."""

    def margin(self, config: SharingConfig) -> int:
        """Operations between the greatest index reported and the first that the decision concerns."""
        if config.rule is Rule.EQUAL_INDEX:
            return 0
        return config.end_margin if self.granted is None else config.margin


@dataclass(slots=True)
class Round:
    version: Version
    change: Change
    votes: dict[Seat, Vote] = field(default_factory=dict)
    asked: frozenset[Seat] = field(init=False)
    """The seats of the change, to be looked up: each of them votes."""

    def __post_init__(self) -> None:
        self.asked = frozenset(self.change.seats)

    def greatest(self, job: JobId) -> OpIndex:
        """Index that a seat of ``job`` has reported; 0 if none has."""
        return max((vote.index for seat, vote in self.votes.items() if seat.job == job), default=AT_ONCE)

    def objection(self, config: SharingConfig, turns: StandingTurns) -> Mark | None:
        """Step 4. By index there is none."""
        if config.rule is Rule.BY_INDEX:
            return None
        indices: dict[JobId, OpIndex] = {}
        for seat, vote in self.votes.items():
            if indices.setdefault(seat.job, vote.index) != vote.index:
                return Mark.ABORTED_UNEQUAL
        ended = turns.with_epoch(self.change.ended)
        if ended is None:
            return None
        is_in_ina = any(vote.in_ina for seat, vote in self.votes.items() if seat.job == ended.turn.job)
        return Mark.ABORTED_IN_INA if is_in_ina else None

    def decision(self, config: SharingConfig, turns: StandingTurns, epoch: Epoch) -> Decision:
        """All have voted, and nothing speaks against it. ``epoch``: of the newest turn."""
        change, margin = self.change, self.change.margin(config)
        granted, until, ended = None, AT_ONCE, turns.with_epoch(change.ended)
        if ended is not None:
            until = OpIndex(self.greatest(ended.turn.job) + margin)
        if change.granted is not None:
            first = max(OpIndex(self.greatest(change.granted) + margin), change.first)
            last = None if change.operations is None else OpIndex(first + change.operations)
            if change.until is not None:
                last = change.until if last is None else min(last, change.until)
                first = min(first, last)
            granted = Turn(change.granted, turns.next_epoch(epoch, config.capacity, ended), first, last)
        return Decision(granted, change.ended, until)


def apply(decision: Decision, turns: StandingTurns, told: tuple[Seat, ...], config: SharingConfig) -> None:
    """``told``: whom it concerns. By equal indices no seat is in an operation, so what ends is over."""
    ended = turns.with_epoch(decision.ended)
    if ended is not None and config.rule is Rule.EQUAL_INDEX:
        turns.end(ended.turn.epoch)
    elif ended is not None:
        ended.shorten(decision.until)
        ended.told = ended.turn.until
    granted = decision.granted
    if granted is not None:
        turns.begin(granted, tuple(seat for seat in told if seat.job == granted.job))
