"""The edge of a NIC: outside, frames as the network has them; inside plain ones (:mod:`inaproto.wire.outer`).

A NIC may have an IPv6 address, be in a VLAN, or give its frames a priority alone (a tag of VLAN 0, IEEE
802.1Q). What its packets are put into says this side; what others send must be of the NIC's VLAN and for its
address, and an IPv6 address must be in full that of a peer. A NIC without all that changes nothing here;
packets with a priority tag or IPv4 options reach it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from inaproto.core.rdma.arp import arp_question, arp_replies
from inaproto.core.rdma.counters import NicCounters
from inaproto.core.rdma.neighbours import neighbour_advertisements, neighbour_solicitation
from inaproto.units import Frames
from inaproto.wire.outer import IPV6_ADDRESS_BYTES, addresses_of, dress, outer_of, peel, short_ip
from inaproto.wire.path_probe import question
from inaproto.wire.vlan import TAG_BEGIN, TAG_BYTES, TAG_END, vlan_of, with_tag

_PRIORITY_SHIFT: Final = 13
_IPV4: Final = b"\x08\x00"
_TAG: Final = b"\x81\x00"
_LINK_CONTROL: Final = b"\x88\x08"
"""Type of frames that say something of the link, and are in no VLAN."""


class Edge:
    """``vlan`` 0: none; ``priority``: PCP of the tag, which is there if either is not 0."""

    def __init__(self, *, mac: bytes, ip: bytes, vlan: int = 0, priority: int = 0) -> None:
        self._mac, self._ip, self._vlan = mac, ip, vlan
        self._is_ipv6 = len(ip) == IPV6_ADDRESS_BYTES
        control = priority << _PRIORITY_SHIFT | vlan
        self._tag = _TAG + control.to_bytes(2, "big") if control else b""
        self.changes_all: Final = bool(self._tag) or self._is_ipv6
        """Whether all that comes and goes must pass here; else what a NIC finds to be no plain packet."""
        self._outers: dict[bytes, bytes] = {}
        """Outer part of packets to each peer, by its short address."""
        self._peers: dict[bytes, None] = {}

    def connect(self, peer_ip: bytes) -> None:
        """Packets may come from this address, and go there."""
        self._peers[peer_ip] = None
        self._outers[short_ip(peer_ip)] = outer_of(self._ip, peer_ip, tag=self._tag)

    def inward(self, blocks: Sequence[Frames], counters: NicCounters) -> list[Frames]:
        """The frames that are for this side, plain; others are counted."""
        found: list[Frames] = []
        for outer, parts in peel(blocks):
            for part in parts:
                if not outer:
                    for rows in self._untagged(part, counters):
                        found += self._strange(rows, counters)
                elif not self._is_for_us(outer):
                    counters.not_for_us += len(part)
                elif not self._is_of_peer(outer):
                    counters.wrong_source += len(part)
                else:
                    found.append(part)
        return found

    def outward(self, blocks: Sequence[Frames]) -> list[Frames]:
        """Frames of this side as the network has them; each block is for one peer."""
        return [
            dress(frames, self._outers.get(frames[0, 30:34].tobytes(), self._tag))
            if frames[0, 12:14].tobytes() == _IPV4
            else with_tag(frames, self._tag)
            for frames in blocks
        ]

    def replies(self, frames: Frames) -> list[Frames]:
        """Answers to who asks for the NIC's Ethernet address among plain frames."""
        if self._is_ipv6:
            return list(neighbour_advertisements(frames, mac=self._mac, ip=self._ip))
        return list(arp_replies(frames, mac=self._mac, ip=self._ip))

    def question(self, asked: bytes) -> Frames:
        """One frame that asks for a peer's Ethernet address."""
        if self._is_ipv6:
            return neighbour_solicitation(mac=self._mac, ip=self._ip, asked=asked)
        return arp_question(mac=self._mac, ip=self._ip, asked=asked)

    def probe(self, token: int, nbytes: int) -> Frames:
        """A frame that asks the switch whether frames of this length come through, its tag included."""
        return question(mac=self._mac, token=token, nbytes=nbytes - len(self._tag))

    def _is_for_us(self, outer: bytes) -> bool:
        if vlan_of(outer) != self._vlan:
            return False
        addresses = addresses_of(outer)
        return addresses[1] == self._ip if addresses is not None else not self._is_ipv6

    def _is_of_peer(self, outer: bytes) -> bool:
        """Whether its IPv6 address is a peer's; whether one of IPv4 is, the queue pair tells."""
        addresses = addresses_of(outer)
        return addresses is None or addresses[0] in self._peers

    def _untagged(self, frames: Frames, counters: NicCounters) -> list[Frames]:
        """Frames that are no packets in another form: what has the NIC's VLAN tag loses it, or has none."""
        n, length = frames.shape
        if length >= TAG_END and n and frames[0, TAG_BEGIN : TAG_BEGIN + 2].tobytes() == _LINK_CONTROL:
            return [frames]
        if length >= TAG_END + 2 and n:
            tags = frames[:, TAG_BEGIN:TAG_END]
            is_tagged = (tags[:, 0] == _TAG[0]) & (tags[:, 1] == _TAG[1])
            vlans = (tags[:, 2] & 15).astype(np.uint16) << 8 | tags[:, 3]
            ours = is_tagged & (vlans == self._vlan)
        else:
            is_tagged = ours = np.zeros(n, np.bool_)
        found = []
        if ours.any():
            rows = frames[ours]
            out = np.empty((len(rows), length - TAG_BYTES), np.uint8)
            out[:, :TAG_BEGIN] = rows[:, :TAG_BEGIN]
            out[:, TAG_BEGIN:] = rows[:, TAG_END:]
            found.append(out)
        if not self._vlan and not is_tagged.any():
            return [frames]
        plain = ~is_tagged if not self._vlan else np.zeros(n, np.bool_)
        if plain.any():
            found.append(frames[plain])
        counters.other_frames += n - int(ours.sum()) - int(plain.sum())
        return found

    def _strange(self, frames: Frames, counters: NicCounters) -> list[Frames]:
        """Leave IPv4 out for a NIC with an IPv6 address: inside, a short address might look like one."""
        if not self._is_ipv6 or frames.shape[1] < TAG_END:
            return [frames]
        is_ipv4 = (frames[:, TAG_BEGIN] == _IPV4[0]) & (frames[:, TAG_BEGIN + 1] == _IPV4[1])
        counters.not_for_us += int(is_ipv4.sum())
        return [frames[~is_ipv4]] if not is_ipv4.all() else []
