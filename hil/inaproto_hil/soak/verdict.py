"""What a campaign came to, in words, and the exit status that goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.marks import declared_of, seeds_min_of
from inaproto_hil.soak.campaign import TIME_IS_UP, Campaign
from inaproto_hil.soak.stop import EXIT_STOPPED


class State(Enum):
    PASSED = "passed"
    FAILED = "failed"
    OPEN = "open"
    """No rule was broken so far, and there is more to run."""
    NONE = "none"
    """Nothing was run, so there is nothing to say."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of a campaign, and the exit status that goes with it."""

    failures: int
    unseen: tuple[str, ...]
    """Declared marks that no seed met."""
    marks_required: bool
    interrupted: str
    seeds: int
    finished: bool
    """All that was planned is done."""
    by_signal: bool
    differing: int = 0
    """Failing seeds that did otherwise when they were run again."""

    @classmethod
    def of(cls, ours: Campaign, *, require_marks: bool | None) -> Verdict:
        kind = WorldKind(ours.plan.world)
        unseen = tuple(name for name in declared_of(kind) if name not in ours.tally.marks)
        required = require_marks
        if required is None:
            required = ours.tally.seeds >= seeds_min_of(kind) and ours.plan.variant is None
        return cls(
            len(ours.tally.failures),
            unseen,
            required,
            ours.interrupted,
            ours.tally.seeds,
            ours.finished or (ours.plan.stop is None and ours.interrupted == TIME_IS_UP),
            ours.by_signal,
            len(ours.differing),
        )

    @property
    def state(self) -> State:
        if self.failures or (self.marks_required and self.unseen and self.finished):
            return State.FAILED
        if not self.seeds:
            return State.NONE
        return State.PASSED if self.finished else State.OPEN

    @property
    def status(self) -> int:
        if self.by_signal:
            return EXIT_STOPPED
        if self.state in (State.FAILED, State.NONE):
            return 1
        return int(self.interrupted not in ("", TIME_IS_UP))

    def __str__(self) -> str:
        words = []
        if self.failures:
            words.append(f"FAILED: {self.failures} {'seeds' if self.failures > 1 else 'seed'} broke a rule")
        if self.differing:
            words.append(f"FAILED: {self.differing} of them did otherwise when run again")
        match self.state:
            case State.FAILED:
                if self.unseen and self.marks_required:
                    words.append(f"FAILED: {len(self.unseen)} declared marks were never seen")
            case State.NONE:
                words.append("no verdict: no seed was run")
            case State.OPEN:
                words.append("no rule broken so far")
            case State.PASSED:
                words.append("passed: every rule was kept in every world")
        if self.unseen and not self.marks_required and self.seeds:
            words.append(f"{len(self.unseen)} marks not seen, which too few seeds need not show")
        if self.interrupted and not (self.finished and self.interrupted == TIME_IS_UP):
            words.append(f"not finished: {self.interrupted}")
        return "; ".join(words)
