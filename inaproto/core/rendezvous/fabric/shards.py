"""Shards of a switch: accelerators in processes of their own, and which rings each of them has.

All packets of a ring must meet in one accelerator. Only first packets of messages name the ring, so ports are
told apart by the UDP source port, which RoCEv2 leaves to the sender (annex A17 of the InfiniBand architecture
specification calls it a source of entropy): each shard has one (:func:`inaproto.wire.udp.shard_port`), the
hosts of its rings send from it, and the kernel, or a NIC, gives the shard what comes from there, at every
port of the switch. Everything else is for the process that has the control plane, which is an accelerator
without a number.

Rules:

- *Ownership*: a ring is the shard's that has the fewest, of those the lowest. It is the control plane's
  process's if one of its hosts cannot send from a port that it is told, if it takes its slots by turns from a
  pool, which is in one accelerator, or if no shard is there.
- *Death*: a shard that is lost takes its rings with it and nothing else; a shard that comes again is told of
  the rings that it had, as removed, before its ports open: raw packets of theirs would pass it else.

Invariants: a ring has one owner from the order to install it on until it is given up; what a shard had is
remembered for ``retired_ns``, for ``retired_max`` rings at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.udp import SHARDS_MAX, shard_port

ALONE: Final = ""
"""Name of the switch, and of the accelerator that is in the process of the control plane."""


def shard_name(number: int) -> str:
    """As orders, events and people call it; numbers begin with 1."""
    return f"shard {number}"


def owner_of(spec: RingSpec, chooses_port: Mapping[bytes, bool], rings: Mapping[int, int]) -> int:
    """The shard to which a ring belongs, 0: to none.

    ``chooses_port``: of each host, by its IP address, whether it sends from a port that it is told;
    ``rings``: how many rings each shard has that is there.
    """
    can_choose = all(chooses_port.get(flow.src_ip) for flow in spec.flows)
    if not rings or not can_choose or spec.pool is not None:
        return 0
    return min(rings, key=lambda shard: (rings[shard], shard))


@dataclass(slots=True)
class _Had:
    """A ring that a shard was told to install."""

    spec: RingSpec
    until: Instant | None = None
    """When its hosts have long stopped; None: it was not given up."""


class Shards:
    """Who has what; ``count`` shards, none of them there yet. Raises ``LocalMisuse`` for too many."""

    def __init__(
        self,
        count: int = 0,
        *,
        retired_ns: int = 60 * S,
        retired_max: int = 1024,
        hosts_max: int = 1 << 16,
    ) -> None:
        if not 0 <= count <= SHARDS_MAX:
            raise LocalMisuse(f"{count} shards; there can be {SHARDS_MAX}")
        self._numbers = {shard_name(number): number for number in range(1, count + 1)}
        self._retired_ns = retired_ns
        self._retired_max = retired_max
        self._hosts_max = hosts_max
        self._present: set[int] = set()
        self._owners: dict[int, int] = {}
        """Shards of the rings that have one, by ring id."""
        self._had: dict[int, dict[int, _Had]] = {number: {} for number in self._numbers.values()}
        self._hosts: dict[bytes, bool] = {}

    def host_seen(self, host: bytes, *, chooses_port: bool) -> None:
        """It is here, (again) so."""
        if self._numbers:
            self._hosts.pop(host, None)
            self._hosts[host] = chooses_port
            while len(self._hosts) > self._hosts_max:
                del self._hosts[next(iter(self._hosts))]

    def take(self, spec: RingSpec) -> str:
        """A ring is wanted; returns who has it from now on."""
        rings = dict.fromkeys(sorted(self._present), 0)
        for number in self._owners.values():
            if number in rings:
                rings[number] += 1
        number = self._owners.get(spec.ring_id) or owner_of(spec, self._hosts, rings)
        if number:
            self._owners[spec.ring_id] = number
            self._had[number][spec.ring_id] = _Had(spec)
        return self.owner(spec.ring_id)

    def owner(self, ring_id: int) -> str:
        """Who has a ring; whatever no shard has, the process of the control plane."""
        number = self._owners.get(ring_id)
        return shard_name(number) if number else ALONE

    def source_port(self, ring_id: int) -> int:
        """From which its hosts send; 0: whichever they like."""
        number = self._owners.get(ring_id)
        return shard_port(number) if number else 0

    def give_up(self, ring_id: int, now: Instant) -> str | None:
        """A ring is not wanted any more; returns who is to be told, None: nobody is there."""
        number = self._owners.pop(ring_id, None)
        if number is None:
            return ALONE
        had = self._had[number]
        given_up = had.pop(ring_id)
        for old in [key for key, one in had.items() if one.until is not None and one.until <= now]:
            del had[old]
        given_up.until = Instant(now + self._retired_ns)
        had[ring_id] = given_up
        for old in [key for key, one in had.items() if one.until is not None][: -self._retired_max]:
            del had[old]
        return shard_name(number) if number in self._present else None

    def arrived(self, name: str, now: Instant) -> list[RingSpec] | None:
        """A shard is there, and has no ring; returns those that it had before. None: it is no shard."""
        number = self._numbers.get(name)
        if number is None:
            return None
        self._present.add(number)
        return [one.spec for one in self._had[number].values() if one.until is None or now < one.until]

    def lost(self, name: str) -> list[int]:
        """A shard is gone; returns its rings."""
        number = self._numbers.get(name)
        if number not in self._present:
            return []
        self._present.remove(number)
        return [ring_id for ring_id, owner in self._owners.items() if owner == number]
