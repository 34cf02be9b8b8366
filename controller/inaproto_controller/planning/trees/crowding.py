"""Trees that use what several may use at a time: who is in each other's way once there is no room left."""

from __future__ import annotations

from collections.abc import Iterable

from inaproto_controller.cluster.network import Network


class Crowds:
    """Costs nothing where all is for one at a time: that is what conflicts say."""

    def __init__(self, network: Network, trees: Iterable[tuple[int, int]]) -> None:
        """``trees``: slot and root of each."""
        self._network = network
        self._users: dict[int, set[int]] = {}
        """Slots, by what they use."""
        for slot, root in trees if network.is_counted else ():
            self.add(slot, root)

    def add(self, slot: int, root: int) -> None:
        for number, _ in self._network.shared(slot, root) if self._network.is_counted else ():
            self._users.setdefault(number, set()).add(slot)

    def met(self, slot: int, root: int) -> set[int]:
        """Slots of others that use something of that tree which has no room for one more."""
        found: set[int] = set()
        for number, room in self._network.shared(slot, root) if self._users else ():
            others = self._users.get(number, set()) - {slot}
            if len(others) >= room:
                found |= others
        return found
