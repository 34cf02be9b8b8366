"""A rule of a world is broken: the exception of checkers and parts, and what a run keeps of the first one."""

from __future__ import annotations

import traceback
from dataclasses import dataclass


class Violated(Exception):
    """A rule is broken. ``rule`` is a stable short name, ``evidence`` says who and what."""

    def __init__(self, rule: str, evidence: str) -> None:
        super().__init__(f"{rule}: {evidence}")
        self.rule = rule
        self.evidence = evidence


@dataclass(frozen=True, slots=True)
class Violation:
    """The first rule that was broken."""

    rule: str
    evidence: str
    event: int
    """Number of the event at which it was found; the same in every run of this configuration."""
    at_ns: int
    checker: str


def violation_of(error: Exception, event: int, at_ns: int) -> Violation:
    """Name the rule that ``error`` broke; an exception of a part is a broken rule, too."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    file = where.filename.rpartition("/")[2]
    if isinstance(error, Violated):
        return Violation(error.rule, error.evidence, event, at_ns, file.removesuffix(".py"))
    evidence = f"{type(error).__name__}: {error} ({where.name} in {file}:{where.lineno})"
    return Violation("no part raises", evidence, event, at_ns, "world")
