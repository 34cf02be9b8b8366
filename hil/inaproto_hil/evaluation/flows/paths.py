"""Paths of flows as arrays: which directed links each takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]
"""Numbers of links and flows: half the memory of ``Ints``, which is what limits how fast rates are found."""
Floats = NDArray[np.float64]

NO_LINK: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """Paths of F flows. A flow without links stays on its host."""

    first: Numbers
    """(F+1,): where each flow's links begin in ``links``."""
    links: Numbers
    """Links of flow 0, then of flow 1, ...; no link twice on a path."""

    @classmethod
    def of_table(cls, table: Numbers) -> Paths:
        """``table``: (F, most links of any path), with ``NO_LINK`` where there is none."""
        is_link = table != NO_LINK
        first = np.zeros(len(table) + 1, np.int32)
        np.cumsum(is_link.sum(axis=1), out=first[1:])
        return cls(first, table[is_link].astype(np.int32))

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def hops(self) -> Numbers:
        """(F,): links of each."""
        return np.diff(self.first)

    @property
    def flow_of_entry(self) -> Numbers:
        """Beside each of ``links``, whose it is."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.hops)

    def taken(self, flows: Ints) -> Paths:
        """Those of some flows, in that order."""
        hops = self.hops[flows]
        first = np.zeros(len(flows) + 1, np.int32)
        np.cumsum(hops, out=first[1:])
        within = np.arange(first[-1]) - np.repeat(first[:-1], hops)
        return Paths(first, self.links[np.repeat(self.first[flows], hops) + within])

    def loads(self, links: int, volumes: Floats) -> Floats:
        """(links,): what flows of ``volumes`` (F,) bring on each link together."""
        return np.bincount(self.links, np.repeat(volumes, self.hops), minlength=links).astype(np.float64)
