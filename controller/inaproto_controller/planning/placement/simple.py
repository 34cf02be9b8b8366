"""Hosts as they come, or at random: what placement with a plan is measured against."""

from __future__ import annotations

from random import Random

import numpy as np

from inaproto_controller.planning.placement.occupancy import Occupancy

Hosts = tuple[int, ...]
"""Ascending."""


class FirstFit:
    """The lowest free hosts."""

    def place(self, occupancy: Occupancy, count: int) -> Hosts | None:
        """None if fewer are free."""
        if count > occupancy.free_hosts:
            return None
        return tuple(np.flatnonzero(occupancy.free)[:count].tolist())


class RandomFit:
    """Any free hosts, all choices alike."""

    def __init__(self, seed: int | str) -> None:
        self._random = Random(f"{seed}/random placement")

    def place(self, occupancy: Occupancy, count: int) -> Hosts | None:
        """None if fewer are free."""
        if count > occupancy.free_hosts:
            return None
        free: list[int] = np.flatnonzero(occupancy.free).tolist()
        return tuple(sorted(self._random.sample(free, count)))
