"""Trees that a fabric has refused to a job are left alone for a while, longer each time.

Invariant: only a refusal of the wish that stands now counts; one of an older wish says nothing of the tree
that is wished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inaproto.units import Instant
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished

REMEMBERED: Final = 4
"""A bar is forgotten after so many times its length."""


@dataclass(slots=True)
class _Bar:
    until: int
    length_ns: int
    epoch: int
    """Epoch of the wish that was refused."""
    is_refused: bool = True
    """It still is, by what is reported."""

    def holds(self, now: Instant) -> bool:
        return self.is_refused or self.until > now


class Bars:
    def __init__(self, first_ns: int, longest_ns: int) -> None:
        self._first_ns, self._longest_ns = first_ns, longest_ns
        self._bars: dict[tuple[str, FabricTree], _Bar] = {}

    def look(
        self, states: Mapping[str, TreeState], wishes: Mapping[str, TreeWished], now: Instant
    ) -> Mapping[str, frozenset[FabricTree]]:
        """The trees that no job is to get now, by job, after what is reported of them."""
        for name, state in states.items():
            wish = wishes.get(name)
            if wish is None or wish.tree is None or state.phase != "refused" or state.epoch != wish.epoch:
                continue
            old = self._bars.get((name, wish.tree))
            if old is None or old.epoch != wish.epoch:
                length = self._first_ns if old is None else min(2 * old.length_ns, self._longest_ns)
                self._bars[name, wish.tree] = _Bar(now + length, length, wish.epoch)
        barred: dict[str, set[FabricTree]] = {}
        for (name, tree), bar in list(self._bars.items()):
            bar.is_refused = name in states and (states[name].phase, states[name].epoch) == (
                "refused",
                bar.epoch,
            )
            if name not in states or (not bar.is_refused and bar.until + REMEMBERED * bar.length_ns < now):
                del self._bars[name, tree]
            elif bar.holds(now):
                barred.setdefault(name, set()).add(tree)
        return {name: frozenset(trees) for name, trees in barred.items()}
