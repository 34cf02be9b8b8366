"""What is down, and what that takes from jobs: hosts, and trees.

A switch that is down takes the trees that have it; hosts whose every switch is down are cut off, which is as
if they were down themselves. A row takes its hosts and its switches. Plain operations find other ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto_controller.cluster.network import Network
from inaproto_controller.simulate.failures import FailureEvent, Part


class Row(NamedTuple):
    """Racks that fail together."""

    hosts: NDArray[np.int64]
    switches: tuple[int, ...]


def rows_of(network: Network, racks: int) -> list[Row]:
    """So many racks each, in the order of their switches; the last row may have fewer.

    A rack is hosts and the switches that these are linked to: neighbours by number with the same hosts.
    """
    found: list[Row] = []
    for switch in range(network.switches):
        hosts = network.hosts_at(switch)
        if not hosts.size:
            continue
        if found and np.array_equal(found[-1].hosts, hosts):
            found[-1] = found[-1]._replace(switches=(*found[-1].switches, switch))
        else:
            found.append(Row(hosts, (switch,)))
    return [_joined(found[first : first + racks]) for first in range(0, len(found), racks)]


def _joined(racks: Sequence[Row]) -> Row:
    return Row(
        np.unique(np.concatenate([rack.hosts for rack in racks])),
        tuple(switch for rack in racks for switch in rack.switches),
    )


def parts_of(network: Network, row_racks: int | None) -> dict[Part, int]:
    """How many there are that can fail; no rows if nobody says how many racks one has."""
    rows = 0 if row_racks is None else len(rows_of(network, row_racks))
    return {Part.HOST: network.hosts, Part.SWITCH: network.switches, Part.ROW: rows}


class Changed(NamedTuple):
    """What an event changes: hosts that went, hosts that came back, ascending; switches that did either."""

    lost: list[int]
    back: list[int]
    switches: list[int]


class Outages:
    def __init__(self, network: Network, events: Sequence[FailureEvent], rows: Sequence[Row] = ()) -> None:
        """``events``: those that happen, in order, as ``failures.checked`` lets them pass."""
        self._network = network
        self._events = events
        self._rows = rows
        self._next = 0
        self._reasons = np.zeros(network.hosts, np.int64)
        """Why a host is down: it failed, its row did, and it is cut off; one each."""
        self._switches: dict[int, int] = {}
        """Reasons of those that are down, in the order in which they failed."""
        self._ways = np.zeros(network.hosts, np.int64)
        """Switches that a host has, of those that are up; where none fail they are not counted."""
        self.hosts_down = 0
        if any(event.part is not Part.HOST for event in events):
            for switch in range(network.switches):
                self._ways[network.hosts_at(switch)] += 1
            self._reasons += self._ways == 0
            self.hosts_down = int(np.count_nonzero(self._reasons))

    @property
    def next_at(self) -> float:
        """When the next one happens; infinity if there is none."""
        return self._events[self._next].seconds if self._next < len(self._events) else float("inf")

    def take(self) -> Changed:
        """The next event, now."""
        event = self._events[self._next]
        self._next += 1
        change = -1 if event.up else 1
        before: dict[int, bool] = {}
        switches = []
        if event.part is Part.HOST:
            self._blame([event.number], change, before)
        elif event.part is Part.SWITCH:
            switches += self._switch(event.number, change, before)
        else:
            row = self._rows[event.number]
            self._blame(row.hosts.tolist(), change, before)
            for switch in row.switches:
                switches += self._switch(switch, change, before)
        now = {host: bool(self._reasons[host]) for host in sorted(before)}
        lost = [host for host, is_down in now.items() if is_down and not before[host]]
        back = [host for host, is_down in now.items() if before[host] and not is_down]
        self.hosts_down += len(lost) - len(back)
        return Changed(lost, back, switches)

    def _blame(self, hosts: Sequence[int], change: int, before: dict[int, bool]) -> None:
        """One reason more or less to be down; ``before`` notes whether they were."""
        for host in hosts:
            before.setdefault(host, bool(self._reasons[host]))
            self._reasons[host] += change

    def _switch(self, switch: int, change: int, before: dict[int, bool]) -> list[int]:
        """One reason more or less for a switch; the switch, if it went or came back."""
        reasons = self._switches.pop(switch, 0)
        if reasons + change:
            self._switches[switch] = reasons + change
        if reasons and reasons + change:
            return []
        hosts = self._network.hosts_at(switch)
        was_cut_off = self._ways[hosts] == 0
        self._ways[hosts] -= change
        is_cut_off = self._ways[hosts] == 0
        self._blame(hosts[is_cut_off & ~was_cut_off].tolist(), 1, before)
        self._blame(hosts[was_cut_off & ~is_cut_off].tolist(), -1, before)
        return [switch]

    def barred(self, slot: int) -> frozenset[int]:
        """Roots of the job in that slot whose trees have a switch that is down."""
        if not self._switches:
            return frozenset()
        return frozenset(
            root for switch in self._switches for root in self._network.roots_through(slot, switch).tolist()
        )
