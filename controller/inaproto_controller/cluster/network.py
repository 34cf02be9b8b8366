"""Where jobs' aggregation trees may be, and which of them exclude each other.

What trees are built against. A running job occupies a *slot*, a small number that is used anew after it has
ended; its candidate trees are its *roots*, numbered from 0 on.

In a fat tree (MINA, section III-C) two trees are decided by one number for each pair of jobs. A root's number
has its colour as digits, digit 0 least significant, so trees go up alike below layer l exactly if their
numbers are equal modulo W(l), the product of ``up`` below it. Pods that two jobs share at a layer they share
at every layer above, and W(l) divides W(l+1): the lowest shared layer alone says whether the trees conflict.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.topology import FatTree, Quota

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_WORD: Final = 64
_SLOTS_AT_FIRST: Final = 64


class Network(Protocol):
    """Roots are those that ``enter`` counted; ``LocalMisuse`` for slots that are not what a call needs."""

    @property
    def hosts(self) -> int: ...

    @property
    def switches(self) -> int: ...

    @property
    def is_counted(self) -> bool:
        """Whether there is anything that more than one tree may use at a time, but not all."""
        ...

    def enter(self, slot: int, hosts: Sequence[int]) -> int:
        """A job takes this slot; returns how many candidate roots it has.

        1 for a job of one host: an empty tree, never in conflict.
        """
        ...

    def leave(self, slot: int) -> None: ...

    def conflicts(self, slots: Ints, roots: Ints) -> Bools:
        """(n, n) bool, symmetric, diagonal False: whether trees a and b exclude each other.

        Tree a is that with root ``roots[a]`` of the job in ``slots[a]``. Trees of one slot always do.
        """
        ...

    def conflicts_with(self, slot: int, root: int, slots: Ints, roots: Ints) -> Bools:
        """(n,) bool: that tree against each of these; False for trees of the same slot."""
        ...

    def tree_size(self, slot: int, root: int) -> tuple[int, int]:
        """Switches and links."""
        ...

    def shared(self, slot: int, root: int) -> Sequence[tuple[int, int]]:
        """What the tree uses that more than one may use at a time, by number, and how many may."""
        ...

    def roots_through(self, slot: int, switch: int) -> Ints:
        """Those of its roots whose trees have that switch, ascending. Switches count from 0, hosts' first."""
        ...

    def hosts_at(self, switch: int) -> Ints:
        """Hosts that are linked to it, ascending."""
        ...


class FatTreeNetwork:
    """Network of a fat tree, by closed form; O(jobs) for a job that enters, O(1) for each pair of trees."""

    def __init__(self, tree: FatTree, quota: Quota) -> None:
        self.tree = tree
        self.quota = quota
        self._weights = [prod(tree.up[:layer]) for layer in range(tree.layers + 1)]
        """W(0), W(1), ..."""
        self._pod_hosts = [tree.pod_hosts(layer) for layer in range(tree.layers + 1)]
        self._words = [-(-tree.hosts // hosts // _WORD) for hosts in self._pod_hosts]
        self._heights: list[int | None] = []
        """Heights by slot; None where it is free."""
        self._sizes: list[tuple[int, int]] = []
        self._pods = [np.zeros((0, words), np.uint64) for words in self._words]
        """Bit masks of the pods that hold a host of the job, by layer, (slots, words); hosts are not kept."""
        self._moduli = np.zeros((0, 0), np.int64)

    @property
    def hosts(self) -> int:
        return self.tree.hosts

    @property
    def switches(self) -> int:
        return self.tree.switches

    @property
    def is_counted(self) -> bool:
        return False

    @property
    def moduli(self) -> Ints:
        """(slots, slots) int64, symmetric, read only: two trees conflict if the numbers of their roots are
        equal modulo this; 0 for slots of which no trees do, and of one slot with itself.

        Slots may become more when a job enters: then this is another array.
        """
        view = self._moduli.view()
        view.flags.writeable = False
        return view

    def enter(self, slot: int, hosts: Sequence[int]) -> int:
        """Raises ``LocalMisuse`` for a slot that is not free and for hosts that are none or not there."""
        places = np.asarray(hosts, np.int64)
        if not places.size or places.min() < 0 or places.max() >= self.hosts:
            raise LocalMisuse(f"hosts {hosts} of slot {slot}: some of 0 to {self.hosts - 1}")
        if slot < 0 or (slot < len(self._heights) and self._heights[slot] is not None):
            raise LocalMisuse(f"slot {slot} is not free")
        if slot >= len(self._heights):
            self._grow(max(_SLOTS_AT_FIRST, slot + 1, 2 * len(self._heights)))
        height, nodes = 0, [places.size]
        pods = places
        while pods.min() != pods.max():
            height += 1
            pods = places // self._pod_hosts[height]
            mask = np.zeros(self._words[height] * _WORD, np.bool_)
            mask[pods] = True
            nodes.append(int(mask.sum()))
            self._pods[height][slot] = np.packbits(mask, bitorder="little").view(np.uint64)
        self._heights[slot] = height
        self._sizes[slot] = (sum(nodes[1:]), sum(nodes[:height]))
        self._relate(slot, height)
        return self._weights[height]

    def meets_nobody(self, slot: int) -> bool:
        """Whether no tree of the slot can exclude another's, wherever that is."""
        return self._height(slot) < (1 if self.quota is Quota.SWITCH else 2)

    def _relate(self, slot: int, height: int) -> None:
        """Fill the moduli of this slot: from the top layer down, so that the lowest shared one stays."""
        ours = np.zeros(len(self._heights), np.int64)
        for layer in range(height, 0, -1):
            mask = self._pods[layer]
            shared = (mask & mask[slot]).any(axis=1)
            if self.quota is Quota.SWITCH:
                ours[shared] = self._weights[layer]
                continue
            # The links that two trees may share begin at a shared pod; the lower tree ends at its root.
            ours[shared] = 0
            if layer < height:
                higher = self._pods[layer + 1].any(axis=1)
                ours[shared & higher] = self._weights[layer + 1]
        ours[slot] = 0
        self._moduli[slot] = ours
        self._moduli[:, slot] = ours

    def _grow(self, slots: int) -> None:
        more = slots - len(self._heights)
        self._heights += [None] * more
        self._sizes += [(0, 0)] * more
        self._pods = [np.pad(masks, ((0, more), (0, 0))) for masks in self._pods]
        self._moduli = np.pad(self._moduli, (0, more))

    def leave(self, slot: int) -> None:
        self._height(slot)
        self._heights[slot] = None
        for masks in self._pods:
            masks[slot] = 0
        self._moduli[slot] = 0
        self._moduli[:, slot] = 0

    def _height(self, slot: int) -> int:
        height = self._heights[slot] if 0 <= slot < len(self._heights) else None
        if height is None:
            raise LocalMisuse(f"no job in slot {slot}")
        return height

    def conflicts(self, slots: Ints, roots: Ints) -> Bools:
        return _conflicts(self._moduli, slots, roots)

    def conflicts_with(self, slot: int, root: int, slots: Ints, roots: Ints) -> Bools:
        moduli = self._moduli[slot, slots]
        excludes: Bools = (moduli > 0) & ((roots - root) % np.maximum(moduli, 1) == 0)
        return excludes

    def tree_size(self, slot: int, root: int) -> tuple[int, int]:
        self._height(slot)  # alike for all its roots
        return self._sizes[slot]

    def shared(self, slot: int, root: int) -> Sequence[tuple[int, int]]:
        return ()

    def roots_through(self, slot: int, switch: int) -> Ints:
        height = self._height(slot)
        layer, number = self._place(switch)
        below = self._weights[layer]
        pod, alike = divmod(number, below)
        if layer > height or not self._pods[layer][slot, pod // _WORD] >> np.uint64(pod % _WORD) & np.uint64(
            1
        ):
            return np.zeros(0, np.int64)
        return np.arange(alike, self._weights[height], below)

    def hosts_at(self, switch: int) -> Ints:
        layer, number = self._place(switch)
        if layer > 1:
            return np.zeros(0, np.int64)
        rack = number // self._weights[1]
        return np.arange(rack * self._pod_hosts[1], (rack + 1) * self._pod_hosts[1])

    def _place(self, switch: int) -> tuple[int, int]:
        """Layer, and number within it."""
        number = switch
        for layer in range(1, self.tree.layers + 1):
            nodes = self.tree.nodes(layer)
            if 0 <= number < nodes:
                return layer, number
            number -= nodes
        raise LocalMisuse(f"no switch {switch}; there are {self.switches}")


@jit
def _conflicts(moduli: Ints, slots: Ints, roots: Ints) -> Bools:
    count = slots.size
    found = np.zeros((count, count), np.bool_)
    for one in range(count):
        slot, root = slots[one], roots[one]
        for other in range(one):
            if slots[other] == slot:
                exclude = True
            else:
                modulus = moduli[slot, slots[other]]
                exclude = modulus > 0 and (root - roots[other]) % modulus == 0
            found[one, other] = exclude
            found[other, one] = exclude
    return found
