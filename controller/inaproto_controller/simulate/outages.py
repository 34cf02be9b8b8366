"""What is down, and what that takes from jobs: hosts, and trees.

A switch that is down takes the trees that have it; hosts whose every switch is down are cut off, which is as
if they were down themselves. Plain operations find other ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.network import Network
from inaproto_controller.simulate.failures import FailureEvent, Part


class Changed(NamedTuple):
    """What an event changes: hosts that went, hosts that came back, ascending."""

    lost: list[int]
    back: list[int]


class Outages:
    def __init__(self, network: Network, events: Sequence[FailureEvent]) -> None:
        """``events``: those that happen, in order, as ``failures.checked`` lets them pass."""
        self._network = network
        self._events = events
        self._next = 0
        self._hosts = np.zeros(network.hosts, np.bool_)
        """Down themselves."""
        self._switches: dict[int, None] = {}
        """Down, in the order in which they failed."""
        self._ways = np.zeros(network.hosts, np.int64)
        """Switches that a host has, of those that are up."""
        if any(event.part is Part.SWITCH for event in events):
            for switch in range(network.switches):
                self._ways[network.hosts_at(switch)] += 1
        else:
            self._ways += 1

    @property
    def next_at(self) -> float:
        """When the next one happens; infinity if there is none."""
        return self._events[self._next].seconds if self._next < len(self._events) else float("inf")

    def take(self) -> Changed:
        """The next event, now."""
        event = self._events[self._next]
        self._next += 1
        before = self._is_down()
        if event.part is Part.HOST:
            self._hosts[event.number] = not event.up
        else:
            self._ways[self._network.hosts_at(event.number)] += 1 if event.up else -1
            if event.up:
                del self._switches[event.number]
            else:
                self._switches[event.number] = None
        after = self._is_down()
        return Changed(np.flatnonzero(after & ~before).tolist(), np.flatnonzero(before & ~after).tolist())

    @property
    def hosts_down(self) -> int:
        return int(self._is_down().sum())

    def _is_down(self) -> NDArray[np.bool_]:
        down: NDArray[np.bool_] = self._hosts | (self._ways == 0)
        return down

    def barred(self, slot: int) -> frozenset[int]:
        """Roots of the job in that slot whose trees have a switch that is down."""
        if not self._switches:
            return frozenset()
        return frozenset(
            root for switch in self._switches for root in self._network.roots_through(slot, switch).tolist()
        )
