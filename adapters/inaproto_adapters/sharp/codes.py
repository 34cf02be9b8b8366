"""What the library's codes mean, and the errors of inaproto that they become."""

from __future__ import annotations

from typing import Final

from inaproto.core.collective.events import FINE, Outcome, Weight
from inaproto.errors import FabricError
from inaproto_adapters.sharp.layout import ERRORS

LOCK_FAILED: Final = -18
OOB_FAILED: Final = -15
_NAMES: Final = {code: name.removeprefix("SHARP_COLL_") for name, code in ERRORS.items()}
_WEIGHTS: Final = {
    **dict.fromkeys((-4, -6, -7, -11, -13, -18, -20), Weight.BUSY),
    **dict.fromkeys((-5, -8, OOB_FAILED), Weight.ENVIRONMENT),
    **dict.fromkeys((-2, -9, -10, -12, -14, -19), Weight.PERMANENT),
    **dict.fromkeys((-1, -3, -16, -17), Weight.FATAL),
}
REMEDIES: Final = {
    Weight.BUSY: "another job has the tree, its lock or the quota; it is tried again",
    Weight.ENVIRONMENT: "see that sharp_am runs and that all hosts reach it and each other",
    Weight.PERMANENT: "it is not tried again; see devices, variables SHARP_COLL_ and what the switches do",
    Weight.FATAL: "this process does not use SHARP any more for this job",
    Weight.FINE: "",
}


def outcome_of(code: int, why: str = "") -> Outcome:
    """The outcome of a call that returned ``code``; a code that is not in the interface is fatal."""
    if code == 0:
        return FINE
    return Outcome(code, _WEIGHTS.get(code, Weight.FATAL), why or name_of(code))


def name_of(code: int) -> str:
    """``ELOCK_FAILED (-18)``."""
    return f"{_NAMES.get(code, 'a code that is not in the interface')} ({code})"


def error_of(op: str, peer: str, phase: str, outcome: Outcome) -> FabricError:
    """The error that says what failed, with which code, and what to do; retryable if that may help."""
    code = name_of(outcome.code)
    code = f"{code}: " if outcome.code and code not in outcome.why else ""
    cause = f"{code}{outcome.why}; {REMEDIES[outcome.weight]}"
    retryable = outcome.weight in (Weight.BUSY, Weight.ENVIRONMENT)
    return FabricError(op, peer, phase, cause, retryable=retryable)
