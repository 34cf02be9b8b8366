"""RoCE devices of one machine that know each other's MAC addresses before they are used.

A queue pair whose peer is unknown is connected when ARP has answered. Who is told first sends at once, and
what comes to a queue pair that is not connected yet is dropped in silence: a window, until a timer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from inaproto_adapters.verbs.neighbours import resolve
from inaproto_adapters.verbs.nic import VerbsNic


async def resolve_each_other(nics: Sequence[VerbsNic]) -> None:
    """Until all do: the caller has the deadline."""
    for nic, peer in permutations(nics, 2):
        while not await resolve(nic.device.ip, peer.device.ip, nic.device.interface):
            pass  # asked again
