"""Who says by which of a job's two rings an all-reduce goes (:mod:`inaproto.core.two_paths`).

A host asks when the operation starts, and waits for nobody: what is answered has been agreed on before, by
the hosts of the job and whoever lets jobs share the switches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inaproto.core.two_paths import BASE, Binding, Wait
from inaproto.units import Instant, OpIndex


class Turns(Protocol):
    """Of one job on one host."""

    def bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        """By which ring, or until when to wait; the same on all hosts, and the same when asked again."""

    def drained(self, op_index: OpIndex) -> None:
        """An operation of the ring through the switches is over here: nothing of it is on its way."""

    def ring_ended(self) -> None:
        """That ring has ended here, whatever was on it: what it carried goes on by another."""


TurnsOf = Callable[[str], Turns]
"""By the name of a job."""


class NoTurns:
    """Nobody gives turns: all goes by the base ring."""

    def bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        return Binding(BASE)

    def drained(self, op_index: OpIndex) -> None:
        """Nobody waits for it."""

    def ring_ended(self) -> None:
        """Nobody has to know."""


def no_turns(job: str) -> Turns:
    return NoTurns()
