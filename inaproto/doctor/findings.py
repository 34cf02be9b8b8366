"""What a check says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inaproto.doctor.site import Site


class Outcome(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNTESTABLE = "not testable here"


@dataclass(frozen=True, slots=True)
class Finding:
    """``found`` says what is there; ``mend`` is the command or edit that changes it, empty if none is due."""

    outcome: Outcome
    found: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """``look`` gives at least one finding; it raises for no state of the machine."""

    name: str
    """Stable: docs/operating.md, scripts."""
    why: str
    """Why it matters, in a sentence."""
    look: Callable[[Site], Iterable[Finding]]


def ok(found: str) -> Finding:
    return Finding(Outcome.OK, found)


def warning(found: str, mend: str) -> Finding:
    return Finding(Outcome.WARNING, found, mend)


def failed(found: str, mend: str) -> Finding:
    return Finding(Outcome.FAILED, found, mend)


def untestable(found: str, mend: str = "") -> Finding:
    return Finding(Outcome.UNTESTABLE, found, mend)
