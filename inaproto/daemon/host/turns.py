"""Who says by which of a job's two rings an all-reduce goes (:mod:`inaproto.core.host.engines.two_paths`).

A host asks when the operation starts, and waits for nobody: what is answered has been agreed on before, by
the hosts of the job and whoever lets jobs share the switches.
"""

from __future__ import annotations

from collections.abc import Callable

from inaproto.core.host.engines.two_paths import Binding, Wait
from inaproto.core.host.operations import BASE, BoundPath
from inaproto.core.switch.ring_spec import SHARED_POOL
from inaproto.units import Instant, OpIndex


class Turns:
    """The turns of one job on one host; here nobody gives any, and all goes by the base ring.

    The job's ring through the switches comes and goes (``begin``, ``ring_ended``); what is said between is of
    that ring, and of the ring of the hosts beside it. Who gives turns leaves out what it need not know.
    """

    def begin(
        self,
        *,
        ring_id: int,
        hosts: int,
        next_operation: OpIndex,
        changed: Callable[[], object],
        pool: str = SHARED_POOL,
        stand: int = 0,
        differs: Callable[[OpIndex, str], object] = lambda op_index, host: None,
    ) -> None:
        """The ring through the switches stands. ``changed``: to be called when an answer may be another;
        ``pool``: where it has its turns; ``stand``: of the wish for its tree; ``differs``: to be called when
        an operation that goes through the switches here is known to go by the base ring at another host."""

    def park(self, parked: Callable[[], object]) -> None:
        """Asks that the ring leave its switches: ``parked`` is to be called, once, as soon as it has no turn,
        none can be agreed on, and nothing of it is under way here. From then on all goes by the base ring,
        until ``begin`` is called again. Not called where the ring ends before."""
        parked()

    def called(self, op_index: OpIndex, nbytes: int, waited: tuple[int, int] | None) -> None:
        """A process has called an all-reduce. ``waited``: that it had waited for results since the one before
        it, from so many nanoseconds ago until so many."""

    def bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        """Says by which ring an operation goes, or until when to wait; the same on all hosts, and the same
        when asked again."""
        return Binding(BASE)

    def bound(self, op_index: OpIndex, path: BoundPath) -> None:
        """An operation has been started, by this ring, asked for or not."""

    def done(self, op_index: OpIndex) -> None:
        """An operation has its results here."""

    def drained(self, op_index: OpIndex) -> None:
        """An operation of the ring through the switches is over here: nothing of it is on its way."""

    def ring_ended(self) -> None:
        """The ring has ended here; what was on it goes on by another. May be said twice."""


TurnsOf = Callable[[str], Turns]
"""The turns of a job, by its name."""


def no_turns(job: str) -> Turns:
    return Turns()
