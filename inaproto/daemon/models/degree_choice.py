"""The in-degree of a shard's tree, chosen while it trains (MLNet section 5, its future work).

Where the models file says ``tune_in_degree``, all processes know a tree for each of these in-degrees, of one
order of hosts. The server looks every few clocks at how long they last, how much of the time weights were
waited for, and how full the busiest link was meanwhile, its own or that of a host, as heartbeats tell. What
:class:`inaproto.core.models.tuning.DegreeTuner` makes of it the root does
(:mod:`inaproto.core.models.tree.epochs`), unless hosts are missing or the last change is not over: then
nobody looks, either.

A link is *full* where its bytes, received and sent, would take all the time at its rate in which weights were
waited for: with no staleness that is all the time in which anybody sends. Its rate is ``link_mbit`` of the
models file; without it the greatest that was ever seen for ``RATE_NS``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from inaproto.core.models.events import Reshape, RootView
from inaproto.core.models.tuning import Decision, DegreeTuner, DegreeTuning, Look
from inaproto.daemon.models.staleness_choice import told
from inaproto.units import MS, Instant, S
from inaproto.wire.messages.clocks import FOREVER

log = logging.getLogger("inaproto.overlay")

LOOK_CLOCKS: Final = 5
"""Between two looks."""
RATE_NS: Final = 50 * MS
_DECISIONS_KEPT: Final = 16


class LinkLoad:
    """How full this process's link was while weights were waited for."""

    def __init__(self, rate: int | None, now: Instant, carried: int) -> None:
        """``rate``: bytes/s each way, as configured; ``carried``: bytes so far, both ways."""
        self._rate = float(rate or 0)
        self._is_measured = rate is None
        self._sampled = now, carried
        self._looked = now, carried
        self._waits_since: Instant | None = None
        self._waited_ns = 0

    def goes_on(self, is_waited: bool, now: Instant, carried: int) -> None:
        """After each step: whether anybody waits for weights now."""
        if is_waited and self._waits_since is None:
            self._waits_since = now
        elif not is_waited and self._waits_since is not None:
            self._waited_ns += now - self._waits_since
            self._waits_since = None
        since, before = self._sampled
        if now >= since + RATE_NS:
            if self._is_measured:
                self._rate = max(self._rate, (carried - before) * S / (now - since))
            self._sampled = now, carried

    def look(self, now: Instant, carried: int) -> tuple[int, int]:
        """Since the last look, in thousandths: (the share of the time in which weights were waited for, how
        full the link was then)."""
        since, before = self._looked
        waited = self._waited_ns
        if self._waits_since is not None:
            waited += now - self._waits_since
            self._waits_since = now
        self._looked, self._waited_ns = (now, carried), 0
        if now <= since or not waited:
            return 0, 0
        busy_ns = (carried - before) * S / self._rate if self._rate else 0
        return min(1000, waited * 1000 // (now - since)), min(1000, int(busy_ns * 1000 / waited))


class DegreeChoice:
    """Chooses the in-degree for one shard's root; ``degrees[tree]`` are the in-degrees of its trees."""

    def __init__(self, name: str, degrees: Sequence[int], load: LinkLoad, tree: int) -> None:
        self._name = name
        self._degrees = tuple(degrees)
        self._tuning = DegreeTuning(degrees=tuple(sorted(degrees)))
        self._tuner = DegreeTuner(self._tuning, self._degrees[tree])
        self._load = load
        self._looked_at: tuple[Instant, int] | None = None
        """When, and at which clock of the model; None: while the tree changes, or hosts are missing."""
        self.decisions: deque[Decision] = deque(maxlen=_DECISIONS_KEPT)
        """The newest."""

    def stepped(self, view: RootView, now: Instant, carried: int) -> Reshape | None:
        """After a clock, or a change of the tree; what the root is to do about it."""
        clock = view.model_clock
        if not view.may_reshape or clock >= FOREVER:
            self._looked_at = None
            return None
        if self._degrees[view.epoch.tree] != self._tuner.degree:  # it was not done after all
            self._tuner = DegreeTuner(self._tuning, self._degrees[view.epoch.tree])
        if self._looked_at is None:
            self._load.look(now, carried)
            self._looked_at = now, clock
            return None
        since, then = self._looked_at
        if clock < then + LOOK_CLOCKS or now <= since:
            return None
        waited, full = self._load.look(now, carried)
        self._looked_at = now, clock
        look = Look(clock, max(1, (now - since) // (clock - then)), waited, max(full, view.load), 0)
        decision = self._tuner.step(look)
        if decision is None:
            return None
        self.decisions.append(decision)
        log.info("%s: %s", self._name, told(decision))
        return Reshape(self._degrees.index(decision.new), told(decision))

    def status(self) -> dict[str, Any]:
        return {"decisions": [told(one) for one in self.decisions]}
