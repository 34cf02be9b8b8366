"""Connection lookup table: which message a packet without INA header belongs to (NetReduce section 3.2).

A connection ``(source IP, destination IP, destination QP)`` maps to its ring and rank and to the
last ``2N`` messages of its flow, each with the PSN of its first packet. A packet is placed by PSN.

Invariants: the PSN ranges of the remembered messages are disjoint; a packet whose message's first
packet was lost lies in none of them and is dropped, go-back-N brings it again.

Departure: the paper keeps one message per connection. With more than one message in flight a
go-back-N resend that starts inside message k, after the first packet of k+1 has passed, could then
never be placed (``tests/paper/test_netreduce_3_2_lookup.py`` shows it), hence ``2N``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.ring_spec import FlowSpec
from inaproto.units import PortId
from inaproto.wire.packet import PacketBuilder
from inaproto.wire.vlan import vlan_of

Rows = slice | NDArray[np.intp]
"""Rows of a run, or offsets in a message: a slice where they are consecutive, else int indices."""


class MessageEntry(NamedTuple):
    """A message of one flow. ``serial`` is its ``msg_id`` unwrapped, counted from the ring's start."""

    serial: int
    psn0: int
    packets: int


NOWHERE: Final = -1
"""No port."""


@dataclass(slots=True)
class FlowRepair:
    """What a switch that repairs a flow (:mod:`inaproto.core.switch.repairs`) knows of it."""

    whole: int
    """All messages before it have come from the rank, every packet."""
    newest: int = -1
    """The newest message that has opened."""
    place: int = -1
    """Its index among the entries of its flow."""
    copies: dict[int, int] = field(default_factory=dict)
    """Positions of results that were sent late or again: the least position whose arrival says that they are
    lost."""
    warned: int = -1
    """The message of the latest loss behind the switch that the sender heard of."""
    way: tuple[bytes, bytes, int] = (b"", b"", 0)
    """Addresses and traffic class of ``builder``."""
    builder: PacketBuilder | None = None
    """It makes what is said to the sender."""


WAYS_MAX: Final = 4
"""Addresses, and VLANs, of first packets that a flow remembers: paths that it may be spread over."""
FIRST_SIGHTINGS: Final = 4
"""So often the same first packet has to come from elsewhere to be believed, if no other packet does."""


@dataclass(slots=True)
class Flow:
    """State of one connection: the table's entry, and what emission in PSN order needs.

    Positions are ``serial * message_packets + offset``, so they order all packets of the ring.
    """

    spec: FlowSpec
    ring_id: int
    psn_mask: int
    entries: list[MessageEntry | None]
    gap_signalled: int = -1
    """Position of the gap for which a later result was let through; once per gap."""
    reached: int = -1
    """Position of its latest packet: a sender that goes back has everything behind it still to send."""
    replay_next: int | None = None
    """Position that continues the replay in progress, if one is."""
    src_mac: bytes = b""
    dst_mac: bytes = b""
    """Those of ``spec``, or that a first packet had and the next one, first or not: of the routers between;
    where ``spec`` has none, of the last packet."""
    ingress: int = NOWHERE
    """Port of the last first packet, whose key was right: where the rank is."""
    tag: bytes = b""
    """Outer part of its last packet (VLAN tag, IPv6, options), with which its results leave; empty: none."""
    sources: tuple[bytes, ...] = ()
    """Ethernet addresses from which its last first packets came."""
    vlans: tuple[int, ...] = ()
    """VLANs in which they came; 0: in none."""
    is_routed: bool = False
    """Its packets come by a router, whose address says nothing of where its host is."""
    shown: tuple[bytes, bytes, int] = (b"", b"", -1)
    """Source, destination and PSN of the last first packet."""
    sightings: int = 0
    """How often in a row that one has come, if from elsewhere than where its flow is known to be."""
    untold: frozenset[PortId] = field(default=frozenset(), repr=False)
    """Ports by which its packets may come without saying where ordinary traffic finds its host."""
    repair: FlowRepair | None = field(default=None, repr=False)
    """None: its losses are left to its hosts."""
    latest: int = field(default=0, repr=False)
    """Index of the entry that was hit last: the next packet most likely hits it too."""

    @property
    def row(self) -> int:
        """Row of its packets, and of its results, in every region."""
        return self.spec.rank

    @property
    def barred_port(self) -> int:
        """Port on which its results never leave."""
        return self.ingress

    def may_come(self, port: int) -> bool:
        """Whether its packets can ever come there."""
        return True

    def emitted(self, frontier: int) -> int:
        """The position up to which its results were sent; ``frontier`` is that of the ring."""
        return frontier

    def is_at(self, port: int, src_mac: bytes, tag: bytes = b"") -> bool:
        """Whether packets without a key may come from there; at any port while the rank's is not known.

        An address counts that the control plane knows, or that first packets had, and a VLAN in which these
        came. What one packet brought takes nothing away: no ICRC covers it, and what was damaged would shut
        the rank out.
        """
        if self.ingress not in (NOWHERE, port):
            return False
        if tag != self.tag and self.vlans and vlan_of(tag) not in self.vlans:
            return False
        return src_mac in (self.spec.src_mac or src_mac, self.src_mac, *self.sources)

    def settle(self, port: int, src_mac: bytes, dst_mac: bytes, psn: int, tag: bytes = b"") -> None:
        """A packet that is the rank's own says that the rank is there. Results are steered to its addresses
        if the last first packet, of another PSN, had these, too."""
        self.ingress = port
        self.tag = tag
        if not self.spec.src_mac:
            self.src_mac, self.dst_mac = src_mac, dst_mac
        elif src_mac != self.src_mac or dst_mac != self.dst_mac:
            shown = self.shown
            if (src_mac, dst_mac) == shown[:2] and psn != shown[2]:
                self._move(src_mac, dst_mac)

    def show(self, src_mac: bytes, dst_mac: bytes, psn: int, tag: bytes = b"") -> None:
        """A first packet, with the ring's key, came with these: so do the packets behind it.

        Results are steered to another address when another packet had it, too, as a damaged packet may come
        twice; or when this one came so often that its sender must be waiting in vain for its result.
        """
        if self.vlans and (src_mac, dst_mac, tag) == (self.src_mac, self.dst_mac, self.tag):
            self.shown = src_mac, dst_mac, psn  # as ever: nobody else's address makes room for it
            return
        vlan = vlan_of(tag)
        if vlan not in self.vlans:
            self.vlans = (*self.vlans, vlan)[-WAYS_MAX:]
        if src_mac not in self.sources:
            self.sources = (*self.sources, src_mac)[-WAYS_MAX:]
        is_other = self.shown[:2] != (src_mac, dst_mac)
        self.sightings = 1 if is_other else self.sightings + 1
        if not is_other and (self.shown[2] != psn or self.sightings >= FIRST_SIGHTINGS):
            self._move(src_mac, dst_mac)
        self.shown = src_mac, dst_mac, psn

    def _move(self, src_mac: bytes, dst_mac: bytes) -> None:
        self.src_mac, self.dst_mac = src_mac, dst_mac
        self.is_routed = src_mac != (self.spec.src_mac or src_mac)

    @property
    def teaches(self) -> bool:
        """Whether where its packets come says where ordinary traffic finds its rank, at ``src_mac``: not if
        the last first packet came by a router."""
        source = self.shown[0]
        return not self.is_routed and (source == self.src_mac or not source)

    def open_message(self, entry: MessageEntry) -> bool:
        """Remember a message by its first packet. False when its serial is known with another PSN."""
        index = entry.serial % len(self.entries)
        present = self.entries[index]
        if present is not None and present.serial == entry.serial and present != entry:
            return False
        self.entries[index] = entry
        self.latest = index
        if self.repair is not None and entry.serial > self.repair.newest:
            self.repair.newest, self.repair.place = entry.serial, index
        return True

    def forget_messages(self) -> None:
        """Their slots are another ring's: what still comes of them belongs nowhere."""
        self.entries = [None] * len(self.entries)
        self.replay_next = None
        if self.repair is not None:
            self.repair.copies.clear()

    def locate(self, psns: NDArray[np.int64]) -> Iterator[tuple[MessageEntry, Rows, Rows]]:
        """Place packets by PSN: int64 (n,) -> (message, rows, offsets in the message).

        Rows that belong to no remembered message are in no answer, all others in one.
        """
        n = len(psns)
        first = int(psns[0])
        entry = self.entries[self.latest]
        if entry is None or (first - entry.psn0) & self.psn_mask >= entry.packets:
            entry = self._find(first)
        if entry is not None:
            offset = (first - entry.psn0) & self.psn_mask
            if offset + n <= entry.packets and (n == 1 or self._consecutive(psns)):
                yield entry, slice(0, n), slice(offset, offset + n)
                return
        found = []
        left = np.ones(n, np.bool_)  # ranges overlap where a sender breaks the rules: each row goes to one
        for candidate in self.entries:
            if candidate is None:
                continue
            offsets = (psns - candidate.psn0) & self.psn_mask
            rows = np.flatnonzero(left & (offsets < candidate.packets))
            if len(rows):
                left[rows] = False
                found.append((candidate, rows, offsets[rows]))
        yield from sorted(found, key=lambda answer: int(answer[1][0]))  # as they arrived

    def find(self, psn: int) -> tuple[MessageEntry, int] | None:
        """Place one packet: (message, offset)."""
        entry = self.entries[self.latest]
        if entry is None or (psn - entry.psn0) & self.psn_mask >= entry.packets:
            entry = self._find(psn)
        return None if entry is None else (entry, (psn - entry.psn0) & self.psn_mask)

    def _consecutive(self, psns: NDArray[np.int64]) -> bool:
        span = int(psns[-1] - psns[0])
        if span == len(psns) - 1:  # no wrap in between: strictly rising by that much is rising by ones
            return bool((psns[1:] > psns[:-1]).all())
        return bool((((psns[1:] - psns[:-1]) & self.psn_mask) == 1).all())

    def _find(self, psn: int) -> MessageEntry | None:
        for index, entry in enumerate(self.entries):
            if entry is not None and (psn - entry.psn0) & self.psn_mask < entry.packets:
                self.latest = index
                return entry
        return None


class LookupTable:
    """All connections of all rings."""

    def __init__(self) -> None:
        self._flows: dict[tuple[bytes, bytes, int], Flow] = {}

    def __len__(self) -> int:
        return len(self._flows)

    def add(self, spec: FlowSpec, *, ring_id: int, messages: int, psn_mask: int) -> Flow:
        entries: list[MessageEntry | None] = [None] * messages
        flow = Flow(
            spec, ring_id, psn_mask, entries, src_mac=spec.src_mac, dst_mac=spec.dst_mac, tag=spec.outer
        )
        self._flows[spec.connection] = flow
        return flow

    def put(self, flow: Flow) -> None:
        """Register a connection that has its state already."""
        self._flows[flow.spec.connection] = flow

    def __contains__(self, connection: tuple[bytes, bytes, int]) -> bool:
        return connection in self._flows

    def get(self, src_ip: bytes, dst_ip: bytes, dest_qp: int) -> Flow | None:
        return self._flows.get((src_ip, dst_ip, dest_qp))

    def remove(self, spec: FlowSpec) -> None:
        self._flows.pop(spec.connection, None)
