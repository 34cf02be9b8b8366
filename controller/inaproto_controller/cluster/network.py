"""Where jobs' aggregation trees may be, and which of them exclude each other.

What trees are built against. A running job occupies a *slot*, a small number that is used anew after it has
ended; its candidate trees are its *roots*, numbered from 0 on.

In a fat tree (MINA, section III-C) two trees are decided by one number for each pair of jobs. A root's number
has its colour as digits, digit 0 least significant, so trees go up alike below layer l exactly if their
numbers are equal modulo W(l), the product of ``up`` below it. Pods that two jobs share at a layer they share
at every layer above, and W(l) divides W(l+1): the lowest shared layer alone says whether the trees conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from inaproto.errors import LocalMisuse
from inaproto_controller.cluster.compiled import jit
from inaproto_controller.cluster.topology import FatTree, Quota

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SLOTS_AT_FIRST: Final = 64
_WIDTH_AT_FIRST: Final = 16


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

    def near(self, slot: int) -> Ints:
        """Slots, ascending, of others whose trees may exclude one of that slot; no others can."""
        ...

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

    def slots_through(self, switch: int) -> Sequence[int]:
        """Slots of which some tree may have that switch; no others have."""
        ...

    def hosts_at(self, switch: int) -> Ints:
        """Hosts that are linked to it, ascending."""
        ...


class Relations(NamedTuple):
    """Whose trees may exclude whose, by slot. Who entered earlier is named earlier."""

    counts: Ints
    """(slots,)"""
    of: NDArray[np.int32]
    """(slots, width): of each slot, the first ``counts`` entries are the slots that it meets."""
    modulus: Ints
    """(slots, width): trees of the two conflict if the numbers of their roots are equal modulo this."""


class FatTreeNetwork:
    """Network of a fat tree, by closed form; O(1) for each pair of trees.

    A job that enters meets only those in the same pods, so time and memory grow with the pairs of jobs whose
    trees can conflict, and not with all pairs.
    """

    def __init__(self, tree: FatTree, quota: Quota) -> None:
        self.tree = tree
        self.quota = quota
        self._weights = [prod(tree.up[:layer]) for layer in range(tree.layers + 1)]
        """W(0), W(1), ..."""
        self._pod_hosts = [tree.pod_hosts(layer) for layer in range(tree.layers + 1)]
        self._above = 0 if quota is Quota.SWITCH else 1
        """Trees meet in a pod of a layer if both are so many layers higher, at least."""
        self._jobs: dict[int, _Placed] = {}
        self._entered = 0
        self._in_pods: list[dict[int, dict[int, None]]] = [{} for _ in range(tree.layers + 1)]
        """Slots whose trees can be met in a pod, by layer and pod."""
        self._tops: list[dict[int, dict[int, None]]] = [{} for _ in range(tree.layers + 1)]
        """Slots whose trees end in a pod, and can be met only below it."""
        self._relations = _no_relations(0)

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
    def relations(self) -> Relations:
        """Read only. When a job enters there may be more slots, or more of each: then these are others."""
        return self._relations

    def modulus(self, one: int, other: int) -> int:
        """Trees of the two slots conflict if their roots are equal modulo this; 0 if no trees do."""
        row = slice(0, int(self._relations.counts[one]))
        found = self._relations.modulus[one, row][self._relations.of[one, row] == other]
        return int(found[0]) if found.size else 0

    def enter(self, slot: int, hosts: Sequence[int]) -> int:
        """Raises ``LocalMisuse`` for a slot that is not free and for hosts that are none or not there."""
        places = np.asarray(hosts, np.int64)
        if not places.size or places.min() < 0 or places.max() >= self.hosts:
            raise LocalMisuse(f"hosts {hosts} of slot {slot}: some of 0 to {self.hosts - 1}")
        if slot < 0 or slot in self._jobs:
            raise LocalMisuse(f"slot {slot} is not free")
        pods = [frozenset(places.tolist())]
        while len(pods[-1]) > 1:
            pods.append(frozenset((places // self._pod_hosts[len(pods)]).tolist()))
        placed = _Placed(self._entered, tuple(pods))
        self._entered += 1
        met = self._met(placed)
        self._jobs[slot] = placed
        for in_pods, pod in self._places(placed):
            in_pods.setdefault(pod, {})[slot] = None
        self._relate(slot, met)
        return self._weights[placed.height]

    def _places(self, placed: _Placed) -> Iterator[tuple[dict[int, dict[int, None]], int]]:
        """The job's pods above hosts, each with those of its layer among which it counts."""
        for layer in range(1, placed.height + 1):
            in_pods = self._in_pods if layer + self._above <= placed.height else self._tops
            for pod in placed.pods[layer]:
                yield in_pods[layer], pod

    def _met(self, placed: _Placed) -> dict[int, int]:
        """Moduli of all that it meets, by slot: from the top layer down, so that the lowest shared one stays.

        The links that two trees may share begin at a shared pod; the lower tree ends at its root.
        """
        found: dict[int, int] = {}
        for layer in range(placed.height - self._above, 0, -1):
            in_pods, weight = self._in_pods[layer], self._weights[layer + self._above]
            for pod in placed.pods[layer]:
                for other in in_pods.get(pod, ()):
                    found[other] = weight
        return found

    def _relate(self, slot: int, met: Mapping[int, int]) -> None:
        others = np.array(sorted(met, key=lambda other: self._jobs[other].number), np.int64)
        known = self._relations
        width = max(others.size, int(known.counts[others].max(initial=-1)) + 1)
        if slot >= len(known.counts) or width > known.of.shape[1]:
            self._relations = known = _grown(known, slot + 1, width)
        _meet(known, slot, others, np.array([met[other] for other in others.tolist()], np.int64))

    def meets_nobody(self, slot: int) -> bool:
        """Whether no tree of the slot can exclude another's, wherever that is."""
        return self._job(slot).height < 1 + self._above

    def leave(self, slot: int) -> None:
        placed = self._job(slot)
        del self._jobs[slot]
        for in_pods, pod in self._places(placed):
            del in_pods[pod][slot]
            if not in_pods[pod]:
                del in_pods[pod]
        _part(self._relations, slot)

    def _job(self, slot: int) -> _Placed:
        placed = self._jobs.get(slot)
        if placed is None:
            raise LocalMisuse(f"no job in slot {slot}")
        return placed

    def near(self, slot: int) -> Ints:
        self._job(slot)
        known = self._relations
        return np.sort(known.of[slot, : known.counts[slot]]).astype(np.int64)

    def conflicts(self, slots: Ints, roots: Ints) -> Bools:
        return _conflicts(self._relations, slots, roots)

    def conflicts_with(self, slot: int, root: int, slots: Ints, roots: Ints) -> Bools:
        return _conflicts_with(self._relations, slot, root, slots, roots)

    def tree_size(self, slot: int, root: int) -> tuple[int, int]:
        nodes = [len(pods) for pods in self._job(slot).pods]  # alike for all its roots
        return sum(nodes[1:]), sum(nodes[:-1])

    def shared(self, slot: int, root: int) -> Sequence[tuple[int, int]]:
        return ()

    def roots_through(self, slot: int, switch: int) -> Ints:
        placed = self._job(slot)
        layer, number = self._place(switch)
        below = self._weights[layer]
        pod, alike = divmod(number, below)
        if layer > placed.height or pod not in placed.pods[layer]:
            return np.zeros(0, np.int64)
        return np.arange(alike, self._weights[placed.height], below)

    def slots_through(self, switch: int) -> Sequence[int]:
        layer, number = self._place(switch)
        pod = number // self._weights[layer]
        return [*self._in_pods[layer].get(pod, ()), *self._tops[layer].get(pod, ())]

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


class _Placed(NamedTuple):
    """A running job."""

    number: int
    """Order in which jobs entered."""
    pods: tuple[frozenset[int], ...]
    """That hold a host of it, by layer, hosts first; the last is the one that holds all."""

    @property
    def height(self) -> int:
        return len(self.pods) - 1


def _no_relations(slots: int) -> Relations:
    shape = slots, _WIDTH_AT_FIRST
    return Relations(np.zeros(slots, np.int64), np.zeros(shape, np.int32), np.zeros(shape, np.int64))


def _grown(known: Relations, slots: int, width: int) -> Relations:
    """With that many slots and entries of each, at least."""
    rows, columns = known.of.shape
    more = max(_SLOTS_AT_FIRST, slots, 2 * rows) - rows if slots > rows else 0
    wider = max(width, 2 * columns) - columns if width > columns else 0
    return Relations(
        np.pad(known.counts, (0, more)),
        np.pad(known.of, ((0, more), (0, wider))),
        np.pad(known.modulus, ((0, more), (0, wider))),
    )


@jit
def _meet(known: Relations, slot: int, others: Ints, moduli: Ints) -> None:
    """The slot enters; ``others``: whom it meets, in the order in which they entered."""
    for index in range(len(others)):
        other, modulus = others[index], moduli[index]
        known.of[slot, index] = other
        known.modulus[slot, index] = modulus
        at = known.counts[other]
        known.of[other, at] = slot
        known.modulus[other, at] = modulus
        known.counts[other] = at + 1
    known.counts[slot] = len(others)


@jit
def _part(known: Relations, slot: int) -> None:
    """The slot leaves."""
    for index in range(known.counts[slot]):
        other = known.of[slot, index]
        last = known.counts[other] - 1
        at = 0
        while known.of[other, at] != slot:
            at += 1
        while at < last:
            known.of[other, at] = known.of[other, at + 1]
            known.modulus[other, at] = known.modulus[other, at + 1]
            at += 1
        known.counts[other] = last
    known.counts[slot] = 0


@jit
def _conflicts(known: Relations, slots: Ints, roots: Ints) -> Bools:
    count = slots.size
    found = np.zeros((count, count), np.bool_)
    moduli = np.zeros(len(known.counts), np.int64)
    for one in range(count):
        slot, root = slots[one], roots[one]
        for index in range(known.counts[slot]):
            moduli[known.of[slot, index]] = known.modulus[slot, index]
        for other in range(one):
            modulus = moduli[slots[other]]
            exclude = slots[other] == slot or (modulus > 0 and (root - roots[other]) % modulus == 0)
            found[one, other] = exclude
            found[other, one] = exclude
        for index in range(known.counts[slot]):
            moduli[known.of[slot, index]] = 0
    return found


@jit
def _conflicts_with(known: Relations, slot: int, root: int, slots: Ints, roots: Ints) -> Bools:
    found = np.zeros(slots.size, np.bool_)
    moduli = np.zeros(len(known.counts), np.int64)
    for index in range(known.counts[slot]):
        moduli[known.of[slot, index]] = known.modulus[slot, index]
    for one in range(slots.size):
        modulus = moduli[slots[one]]
        found[one] = modulus > 0 and (roots[one] - root) % modulus == 0
    return found
