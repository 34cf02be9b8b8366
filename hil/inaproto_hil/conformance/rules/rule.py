"""What a rule is, and how those of a module are collected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from inaproto_hil.conformance.bench import Bench

Check = Callable[[Bench], Awaitable[None]]


@dataclass(frozen=True)
class Rule:
    name: str
    where: str
    """Sections of docs/protocol.md and of NetReduce."""
    check: Check


class Rules:
    """A decorator that makes rules of functions, and keeps them in the order in which they are written."""

    def __init__(self) -> None:
        self.all: list[Rule] = []

    def __call__(self, where: str) -> Callable[[Check], Check]:
        """The name of a rule is the first line of its docstring, without the stop."""

        def added(check: Check) -> Check:
            assert check.__doc__ is not None
            self.all.append(Rule(check.__doc__.strip().split("\n")[0].rstrip("."), where, check))
            return check

        return added
