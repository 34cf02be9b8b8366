"""What of a fabric is there, and what stands in the way of a ring: switches away, trunks that are down.

A ring needs its switches, and of each but its root the trunk to the one above. Where one of them is missing
between its ranks, these cannot reach each other at all, and no path by the hosts helps; where all ranks are
below it, only the sum of the switches is out of reach.

A trunk is known by what the lower of its switches says of it, and as not up until it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from inaproto.core.aggregation_tree import TreeSwitch

NOT_SAID: Final = "it has not come up yet"
"""Why a trunk is down of which its switch has said nothing."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Names the switch, or the trunk and both its ends."""

    reason: str
    rank: int
    """The lowest of those behind it."""
    parts: bool
    """Ranks on its two sides have no way to each other."""
    is_trunk: bool = False
    is_starting: bool = False
    """Its switch has just come, and has said nothing of the trunk."""


class Ways:
    """Switches that are present, and trunks that are down; ``above`` is the switch above each."""

    def __init__(self, above: Mapping[str, str | None], *, root: str) -> None:
        self._above = above
        self.present: dict[str, None] = {root: None}
        self.down: dict[str, str] = {}
        """Why, by the lower switch."""

    def arrived(self, switch: str, *, is_trunk_up: bool) -> None:
        self.present[switch] = None
        if not is_trunk_up:
            self.down[switch] = NOT_SAID

    def lost(self, switch: str) -> bool:
        """Whether it was there. What it said of its trunk is of no worth any more."""
        self.down.pop(switch, None)
        if switch not in self.present:
            return False
        del self.present[switch]
        return True

    def trunk_said(self, switch: str, error: str) -> bool:
        """``error``: why its trunk is down; empty: it is up. Whether it was not before, and is now."""
        was_down = self.down.pop(switch, "") != ""
        if error:
            self.down[switch] = error
        return was_down and not error

    def obstacle(self, tree: TreeSwitch) -> Obstacle | None:
        """To a ring of this tree: the first that parts its ranks, or else the first; None: all is there."""
        found = list(self._obstacles(tree))
        return next((one for one in found if one.parts), found[0] if found else None)

    def _obstacles(self, tree: TreeSwitch) -> Iterator[Obstacle]:
        size = len(tree.ranks)
        for switch in tree.walk():
            name, ranks = switch.name, switch.ranks
            if name not in self.present:
                is_above_all = len(switch.children) == 1 and isinstance(switch.children[0], TreeSwitch)
                yield Obstacle(f"switch {name} is not connected", min(ranks), not is_above_all)
            elif switch is not tree and name in self.down:
                why = self.down[name]
                reason = f"the trunk between {name} and {self._above[name]} is down: {why}"
                yield Obstacle(reason, min(ranks), len(ranks) < size, True, why == NOT_SAID)
