"""Fat trees of any depth, radix and oversubscription, the aggregation trees in them, and which of those
conflict.

MINA, section III-C. Hosts are layer 0; a node of layer l has ``down[l-1]`` children and ``up[l]``
parents. It is numbered within its layer by mixed-radix digits, digit 0 least significant: digit i runs over
``up[i]`` below its layer (which of the alike nodes), over ``down[i]`` from its layer on (where it is).

A job's tree is one of its roots: its *colour*, the root's digits below its layer, says at each layer which
way all its hosts go up. So whether two trees conflict is a matter of shared pods and equal digits, and no
tree is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import product
from math import prod
from typing import NamedTuple

from inaproto.errors import ConfigError


class Quota(Enum):
    """What an operation with INA has for itself."""

    LINK = "link"
    """Every link of its tree: trees may share switches (MINA, section III-C, "edge-disjoint")."""
    SWITCH = "switch"
    """Every switch of its tree."""


Colour = tuple[int, ...]
"""Colour of a tree of height h: digits 0..h-1 of its root."""


class Link(NamedTuple):
    layer: int
    """Layer of its lower end."""
    child: int
    """Number of that end within its layer."""
    up: int
    """Index of its parent."""


class Switch(NamedTuple):
    layer: int
    number: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """Where the hosts of a job are."""

    height: int
    """Layer of its closest common ancestors; 0 for one host."""
    pods: tuple[int, ...]
    """For layers 0..height: bit mask of the subtrees of this layer that hold a host; hosts for layer 0."""


@dataclass(frozen=True, slots=True)
class FatTree:
    """Raises ``ConfigError`` for what is none."""

    down: tuple[int, ...]
    up: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.down or len(self.down) != len(self.up) or min(*self.down, *self.up) < 1:
            raise ConfigError(
                f"down {self.down} and up {self.up}: as many positive numbers each, one a layer"
            )

    @classmethod
    def of_degree(cls, degree: int, *, uplinks: int | None = None) -> FatTree:
        """Three layers of switches with ``degree`` ports; ``uplinks`` of each: half of them by default.

        Fewer are an oversubscription of ``degree / 2`` to ``uplinks`` at each layer.
        """
        if degree < 2 or degree % 2:
            raise ConfigError(f"degree {degree}: an even number of ports")
        half = degree // 2
        ups = half if uplinks is None else uplinks
        return cls((half, half, degree), (1, ups, ups))

    @property
    def layers(self) -> int:
        """Number of layers of switches."""
        return len(self.down)

    @property
    def hosts(self) -> int:
        return prod(self.down)

    def pod_hosts(self, layer: int) -> int:
        """Hosts below one position of a layer."""
        return prod(self.down[:layer])

    def nodes(self, layer: int) -> int:
        """Number of nodes of a layer, 0 for hosts."""
        return prod(self.up[:layer]) * prod(self.down[layer:])

    def links(self, layer: int) -> int:
        """From a layer to the next."""
        return self.nodes(layer) * self.up[layer]

    @property
    def switches(self) -> int:
        return sum(self.nodes(layer) for layer in range(1, self.layers + 1))

    # -- jobs

    def footprint(self, hosts: Iterable[int]) -> Footprint:
        """``hosts``: at least one."""
        places = list(hosts)
        masks = [_mask(places)]
        height, size = 0, 1
        while len(set(places)) > 1:
            size = self.down[height]
            places = sorted({place // size for place in places})
            masks.append(_mask(places))
            height += 1
        return Footprint(height, tuple(masks))

    def colours(self, height: int) -> Iterator[Colour]:
        """Colours of all candidate roots, in the order of their numbers: digit 0 varies fastest."""
        for digits in product(*(range(count) for count in reversed(self.up[:height]))):
            yield digits[::-1]

    def conflict(self, one: Footprint, its: Colour, other: Footprint, others: Colour, quota: Quota) -> bool:
        """Whether two trees of different jobs need the same link, or the same switch."""
        for layer in range(1, min(one.height, other.height) + 1):
            if its[:layer] != others[:layer]:
                return False  # from here on they go apart
            if not one.pods[layer] & other.pods[layer]:
                continue
            if quota is Quota.SWITCH:
                return True
            if layer < min(one.height, other.height) and its[layer] == others[layer]:
                return True
        return False

    # -- trees, node by node: for pictures, and as the judge of the above

    def tree_switches(self, footprint: Footprint, colour: Colour) -> Iterator[Switch]:
        for layer in range(1, footprint.height + 1):
            for pod in _bits(footprint.pods[layer]):
                yield Switch(layer, self._node(layer, pod, colour))

    def tree_links(self, footprint: Footprint, colour: Colour) -> Iterator[Link]:
        for layer in range(footprint.height):
            for pod in _bits(footprint.pods[layer]):
                yield Link(layer, self._node(layer, pod, colour), colour[layer])

    def _node(self, layer: int, pod: int, colour: Sequence[int]) -> int:
        number, weight = 0, 1
        for digit, radix in zip(colour[:layer], self.up, strict=False):
            number += digit * weight
            weight *= radix
        return number + pod * weight


def _mask(places: Iterable[int]) -> int:
    mask = 0
    for place in places:
        mask |= 1 << place
    return mask


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
