"""Hosts behind routers: each with links of equal cost to several ports of the switch, some of which fail.

A link of a router is that of a host: of its own, or of one beside it on which nothing runs. A router sends a
flow by one of its links that are up, as a hash of IP addresses and UDP source port says, from that link's
Ethernet address, to that of a link of the receiver's router, which another hash chooses. It takes what comes
by a link that is up to that link's address, and hands it to the host that has the IP address. What is no IPv4
does not pass it. It knows at once which links are up, those of other routers as well.

The weather of a link falls between the router and the switch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from inaproto.units import Frames
from inaproto.wire.crc import crc32
from inaproto.wire.ipv4 import internet_checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.world import World

NO_WAY: Final = "nothing that its router takes"
PASSED_ON: Final = "handed to another host by its router"
_IPV4: Final = bytes([8, 0])
_TYPE, _HEADER, _TTL, _CHECKSUM = slice(12, 14), slice(14, 34), 22, slice(24, 26)
_RECEIVER, _FLOW = slice(30, 34), slice(26, 36)


class SimRouter:
    """``hosts``: whose links it has."""

    def __init__(self, world: World, number: int, hosts: Sequence[SimHost]) -> None:
        self._world = world
        self._hosts = tuple(hosts)
        self._mac = bytes([2, 0, 0, 0, 4, number + 1])
        """Towards the hosts."""
        self.addresses: tuple[bytes, ...] = tuple(bytes([2, 0, 0, 1, 4, host.number + 1]) for host in hosts)
        """Of its links."""
        self._down = [0] * len(self._hosts)
        self._lost: set[int] = set()

    # --- links

    @property
    def links(self) -> int:
        return len(self._hosts)

    def link_fails(self, link: int) -> bool:
        """Until ``link_returns``; whether it was up."""
        self._down[link] += 1
        return self._down[link] == 1

    def link_returns(self, link: int) -> None:
        self._down[link] -= 1

    def lose_link(self, link: int) -> bool:
        """For good, unless it is the last one; whether it is so."""
        if link in self._lost or len(self._lost) + 1 == self.links:
            return False
        self._lost.add(link)
        self.link_fails(link)
        return True

    def _is_up(self, link: int) -> bool:
        host = self._hosts[link]
        return not self._down[link] and host.switch.port_of(host) is not None

    def _link_for(self, flow: bytes) -> int | None:
        """By which a flow goes; None: all are down."""
        up = [link for link in range(self.links) if self._is_up(link)]
        return up[crc32(flow) % len(up)] if up else None

    def address_at(self, host: SimHost) -> bytes:
        """Of the link that is a host's."""
        return self.addresses[self._hosts.index(host)]

    def address_for(self, flow: bytes) -> bytes | None:
        """Where others send a flow to that is for a host behind it."""
        link = self._link_for(b"down" + flow)
        return None if link is None else self.addresses[link]

    # --- frames

    def send(self, frames: Frames) -> None:
        """What a host behind it sends goes on, each frame by its link."""
        routed = [self._routed(frames[row : row + 1]) for row in range(len(frames))]
        for link, of_link in groupby(routed, key=lambda one: None if one is None else one[0]):
            if link is None:
                self._world.mark("a router had no way for a packet")
            else:
                block = np.concatenate([one[1] for one in of_link if one is not None])
                self._hosts[link].uplink.send(block)

    def _routed(self, frame: Frames) -> tuple[int, Frames] | None:
        if not _passes(frame):
            return None
        flow = frame[0, _FLOW].tobytes()
        link, receiver = self._link_for(flow), self._next_hop(frame[0, _RECEIVER].tobytes(), flow)
        if link is None or receiver is None:
            return None
        return link, _readdressed(frame, receiver + self.addresses[link])

    def _next_hop(self, ip: bytes, flow: bytes) -> bytes | None:
        host = next((host for host in self._world.hosts if host.ip == ip), None)
        return None if host is None or host.router is None else host.router.address_for(flow)

    def taker_at(self, host: SimHost) -> Callable[[list[Frames]], None]:
        """Of what comes by a host's link."""
        return partial(self._arrived, self._hosts.index(host))

    def _arrived(self, link: int, blocks: list[Frames]) -> None:
        at = self._hosts[link]
        for host, frames in groupby(_each(blocks), key=partial(self._host_for, link)):
            taken = list(frames)
            if host is None:
                at.lose(NO_WAY, taken)
                continue
            if host is not at:
                at.lose(PASSED_ON, taken)
                host.frames_elsewhere += len(taken)
                self._world.mark("a packet came by another link of its router")
            host.frames_arrived([_readdressed(frame, host.mac + self._mac) for frame in taken])

    def _host_for(self, link: int, frame: Frames) -> SimHost | None:
        if frame[0, :6].tobytes() != self.addresses[link] or not _passes(frame):
            return None
        if not self._is_up(link):
            self._world.mark("a packet came by a link of a router that was down")
            return None
        ip = frame[0, _RECEIVER].tobytes()
        return next((host for host in self._hosts if host.ip == ip), None)


def _each(blocks: list[Frames]) -> Iterator[Frames]:
    return (block[row : row + 1] for block in blocks for row in range(len(block)))


def _passes(frame: Frames) -> bool:
    """Whether it is IPv4, whole as far as a router looks, and may pass another one."""
    return frame.size >= _HEADER.stop and frame[0, _TYPE].tobytes() == _IPV4 and frame[0, _TTL] > 1


def _readdressed(frame: Frames, addresses: bytes) -> Frames:
    """By a router, whose hop counts."""
    frame = frame.copy()
    frame[0, :12] = np.frombuffer(addresses, np.uint8)
    frame[0, _TTL] -= 1
    frame[0, _CHECKSUM] = 0
    checksum = internet_checksum(frame[0, _HEADER].tobytes())
    frame[0, _CHECKSUM] = np.frombuffer(checksum.to_bytes(2, "big"), np.uint8)
    return frame


def make_routers(world: World) -> None:
    """Those of a world that has any, each at the hosts of its number."""
    for number in sorted(set(world.config.routers)):
        hosts = [host for host, its in zip(world.hosts, world.config.routers, strict=True) if its == number]
        router = SimRouter(world, number, hosts)
        for host in hosts:
            host.router = router
