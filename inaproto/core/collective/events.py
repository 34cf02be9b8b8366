"""Configuration, phases, events and actions of :mod:`inaproto.core.collective.session`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from inaproto.errors import LocalMisuse
from inaproto.units import MS, Instant, S


class Phase(Enum):
    """Where a session is."""

    DETACHED = "detached"
    AGREE = "agree"
    INIT = "init"
    COMM = "comm"
    VOTE = "vote"
    ATTACHED = "attached"
    DRAIN = "drain"
    RELEASE = "release"
    DEAD = "dead"


class Weight(IntEnum):
    """What a code means for whoever acquires; of several the greatest counts."""

    FINE = 0
    BUSY = 1
    """Somebody else has it now: try again after a back-off."""
    ENVIRONMENT = 2
    """Something around is not there: say so, and try again slowly."""
    PERMANENT = 3
    """No later try does better."""
    FATAL = 4
    """The context cannot be used any more."""


class Call(Enum):
    """Calls that block, one at a time."""

    INIT = "init"
    COMM = "comm_init"
    DEREGISTER = "dereg_mr"
    DESTROY = "comm_destroy"
    FINALIZE = "finalize"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A code of the library with its weight and, where it is not the library's, its reason."""

    code: int = 0
    weight: Weight = Weight.FINE
    why: str = ""


FINE: Final = Outcome()


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Times in nanoseconds. ``jitters``: thousandths by which each back-off is longer, in turn."""

    tries_max: int = 20
    exchange_ns: int = 30 * S
    """For what all ranks say to each other outside of a call."""
    call_ns: int = 60 * S
    """For a blocking call; then its callbacks are refused."""
    unwind_ns: int = 10 * S
    """For a call whose callbacks are refused, to return."""
    drain_ns: int = 60 * S
    backoff_ns: int = 100 * MS
    backoff_max_ns: int = 5 * S
    jitters: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        times = (self.exchange_ns, self.call_ns, self.unwind_ns, self.drain_ns, self.backoff_ns)
        if min(self.tries_max, *times) < 1 or self.backoff_max_ns < self.backoff_ns:
            raise LocalMisuse(f"a session's configuration has a number that is too small: {self}")
        if not self.jitters or min(self.jitters) < 0:
            raise LocalMisuse("a session's jitters: at least one, none below 0")


@dataclass(frozen=True, slots=True)
class AttachWanted:
    """The caller wants a place."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """All ranks know the number of the job of this try."""

    job_id: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A call has returned."""

    call: Call
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Voted:
    """What each rank has of the call that was voted on, by rank."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class PeerFailed:
    """A rank voted with a failure while this one was still in the call, whose callbacks answer so from now
    on: there is no other vote on it."""

    rank: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ExchangeLost:
    """The ranks do not reach each other any more: no later try of this session can be agreed on."""

    why: str


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """An operation was refused, or has passed its deadline."""

    index: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ReleaseWanted:
    """The caller wants to leave, whatever it has."""


@dataclass(frozen=True, slots=True)
class Drained:
    """No operation is outstanding."""


@dataclass(frozen=True, slots=True)
class Woke:
    """Time has passed, up to the deadline at least."""


SessionEvent = (
    AttachWanted
    | Agreed
    | Returned
    | Voted
    | PeerFailed
    | ExchangeLost
    | OperationFailed
    | ReleaseWanted
    | Drained
    | Woke
)


@dataclass(frozen=True, slots=True)
class Agree:
    """Agree with all ranks on a number of a job that was never used; ``attempt`` counts from 1."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a call that blocks. ``job_id`` is that of ``Call.INIT``."""

    call: Call
    job_id: int = 0


@dataclass(frozen=True, slots=True)
class Vote:
    """Tell all ranks what this one has of ``call``, and hear what they have."""

    call: Call
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Refuse:
    """Every callback answers with a failure from now on."""


@dataclass(frozen=True, slots=True)
class Attached:
    """All ranks have their places."""

    attempts: int


@dataclass(frozen=True, slots=True)
class NotAttached:
    """No rank has a place, or this one lost its own while it was to be attached; nothing is held."""

    outcome: Outcome
    attempts: int


@dataclass(frozen=True, slots=True)
class Redo:
    """An operation failed and is to be done anew by all ranks, by another way: its sums here are nobody's."""

    index: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Drain:
    """Admit no more operations, and say when none is outstanding."""


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing is held any more; or, where the session is dead, nothing can be given back."""

    is_clean: bool


@dataclass(frozen=True, slots=True)
class Died:
    """The context is not used any more: what it holds is given back when the process ends."""

    outcome: Outcome


SessionAction = Agree | Begin | Vote | Refuse | Attached | NotAttached | Redo | Drain | Released | Died


@dataclass(frozen=True, slots=True)
class SessionView:
    """A picture of a session."""

    phase: Phase
    attempts: int
    has_context: bool
    has_comm: bool
    last: Outcome
    """The outcome of the last try, or what the session died of."""
    retry_at: Instant | None
