"""What of a fabric is there, and what stands in the way of a ring: switches away, trunks that are down.

A ring needs its switches, and of each but its root the trunk to the one above. Where one of the fabric's own
tree is missing between its ranks, these cannot reach each other at all, and no path by the hosts helps; where
all ranks are below it, or it is only in the tree that was assigned to the ring, only the sum of the switches
is out of reach.

A trunk is known by what the lower of its switches says of it, and as not up until it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.rendezvous.fabric.shapes import links_of
from inaproto.wire.messages.trees import Link

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
    """Switches that are present, and trunks that are down; ``above`` are the switches above each."""

    def __init__(self, above: Mapping[str, Sequence[str]], *, root: str) -> None:
        self._above = above
        self.present: dict[str, None] = {root: None}
        self.down: dict[Link, str] = {}
        """Why."""

    def arrived(self, switch: str, *, is_trunk_up: bool) -> None:
        self.present[switch] = None
        if not is_trunk_up:
            self.down |= {(switch, above): NOT_SAID for above in self._above[switch]}

    def lost(self, switch: str) -> bool:
        """Whether it was there. What it said of its trunks is of no worth any more."""
        for above in self._above.get(switch, ()):
            self.down.pop((switch, above), None)
        if switch not in self.present:
            return False
        del self.present[switch]
        return True

    def trunk_said(self, link: Link, error: str) -> bool:
        """``error``: why a trunk is down; empty: it is up. Whether it was not before, and is now."""
        was_down = self.down.pop(link, "") != ""
        if error:
            self.down[link] = error
        return was_down and not error

    def obstacle(self, own: TreeSwitch, assigned: TreeSwitch | None = None) -> Obstacle | None:
        """What is in a ring's way: the first that parts its ranks, or else the first; None: all is there.

        ``own`` is its part of the fabric's tree, ``assigned`` the tree that it goes along, if that is
        another.
        """
        found = list(self._obstacles(own))
        parting = next((one for one in found if one.parts), None)
        if parting is not None or assigned is None:
            return parting or next(iter(found), None)
        return next((replace(one, parts=False) for one in self._obstacles(assigned)), None)

    def _why_down(self, one: str, other: str) -> str:
        """Why the trunk between them is down, whichever is the lower one in the fabric; empty: it is up."""
        return self.down.get((one, other), "") or self.down.get((other, one), "")

    def _obstacles(self, tree: TreeSwitch) -> Iterator[Obstacle]:
        size = len(tree.ranks)
        above = dict(links_of(tree))
        for switch in tree.walk():
            name, ranks = switch.name, switch.ranks
            if name not in self.present:
                is_above_all = len(switch.children) == 1 and isinstance(switch.children[0], TreeSwitch)
                yield Obstacle(f"switch {name} is not connected", min(ranks), not is_above_all)
            elif switch is not tree and (why := self._why_down(name, above[name])):
                reason = f"the trunk between {name} and {above[name]} is down: {why}"
                yield Obstacle(reason, min(ranks), len(ranks) < size, True, why == NOT_SAID)
