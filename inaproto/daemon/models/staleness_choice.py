"""How stale a worker's weights may be, chosen while it trains (MLNet section 5, its future work).

Where the models file says ``tune_staleness``, a pull that names no staleness gets the one that
:class:`inaproto.core.models.tuning.StalenessTuner` chose for this worker, at most that of the trees. What
it looks at is measured here, on the worker's own host, so it needs no word of anybody: how much of the time
the worker waits for weights, and how far these move from one look to the next. A server promises for each
pull the staleness that was asked for, whatever others ask: so workers need not agree, and a change takes
effect at once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from inaproto.core.models.tuning import Decision, Look, StalenessTuner, StalenessTuning
from inaproto.units import Instant
from inaproto.wire.messages.arrays import Numbers

log = logging.getLogger("inaproto.overlay")

LOOK_CLOCKS: Final = 5
"""Clocks of the worker between two looks."""
_DECISIONS_KEPT: Final = 16
_MILLION: Final = 1_000_000
CHANGE_PPM_MAX: Final = 1_000 * _MILLION
"""Told where weights come from nothing: a thousand times their length."""


class StalenessChoice:
    """Chooses the staleness of one worker of one model; begins with that of the trees."""

    def __init__(self, model: str, tuning: StalenessTuning, staleness: int) -> None:
        self._model = model
        self._tuner = StalenessTuner(tuning, staleness)
        self._asked_at: Instant | None = None
        self._waited_ns = 0
        self._looked_at: tuple[Instant, int, Sequence[Numbers]] | None = None
        """When, at which clock of the worker, and at which weights."""
        self.decisions: deque[Decision] = deque(maxlen=_DECISIONS_KEPT)
        """The newest."""

    @property
    def staleness(self) -> int:
        return self._tuner.staleness

    def asked(self, now: Instant) -> None:
        """The worker waits for weights."""
        self._asked_at = now

    def answered(self, clock: int, parts: Sequence[Numbers], now: Instant) -> None:
        """They are there; ``parts`` are not kept longer than to the next look, and not written."""
        if self._asked_at is not None:
            self._waited_ns += now - self._asked_at
            self._asked_at = None
        if self._looked_at is None:
            self._begin(clock, parts, now)
            return
        since, then, before = self._looked_at
        clocks = clock - then
        if clocks < LOOK_CLOCKS or now <= since:
            if clocks < 0:
                self._begin(clock, parts, now)  # the worker's host had died
            return
        look = Look(
            clocks=clock,
            lasted_ns=max(1, (now - since) // clocks),
            waited_permille=min(1000, self._waited_ns * 1000 // (now - since)),
            link_permille=0,
            change_ppm=change_ppm(before, parts) // clocks,
        )
        decision = self._tuner.step(look)
        if decision is not None:
            self.decisions.append(decision)
            log.info("model %s: %s", self._model, told(decision))
        self._begin(clock, parts, now)

    def _begin(self, clock: int, parts: Sequence[Numbers], now: Instant) -> None:
        self._looked_at = now, clock, parts
        self._waited_ns = 0

    def status(self) -> dict[str, Any]:
        return {"staleness": self.staleness, "decisions": [told(one) for one in self.decisions]}


def told(decision: Decision) -> str:
    """For people."""
    return f"{decision.what} {decision.old} -> {decision.new} ({decision.rule}): {decision.why}"


def change_ppm(before: Sequence[Numbers], after: Sequence[Numbers]) -> int:
    """Distance of two weights, in millionths of the length of ``after`` (2-norm); of all parts together."""
    moved = sum(_square(new.astype(np.float64) - old) for old, new in zip(before, after, strict=True))
    length = sum(_square(new.astype(np.float64)) for new in after)
    if not np.isfinite(moved + length):
        return CHANGE_PPM_MAX  # it diverges
    if not moved:
        return 0
    share = np.sqrt(moved / length) if length else np.inf
    return int(min(share * _MILLION, CHANGE_PPM_MAX))


def _square(values: Numbers) -> float:
    return float(np.dot(values, values))
