"""A learning Ethernet bridge: how the switch forwards everything that is not aggregated.

Source addresses are learnt per port; known unicast goes to its port, the rest is flooded. A frame
is never sent back to the port it came from. The table is bounded: when it is full, the address that
was learnt first makes room.

Departure from IEEE 802.1D: no address is learnt from a RoCE packet whose IP address came with another one
before. A packet's own check covers its IP address and not those of Ethernet; one that was damaged on its way
must not send a host's frames elsewhere. In a tree of accelerators nothing would correct it: the host's own
packets end at its first switch. After ``CHANGE_SIGHTINGS`` such packets the host does have another address.

Ports may stand *aside*: they are up and down like others, but no frame is forwarded from or to them, and no
address is learnt there. So links beyond a spanning tree close no loop.
"""

from __future__ import annotations

from typing import Final

from inaproto.units import PortId

_GROUP_BIT = 1
OF_A_LINK: Final = bytes.fromhex("0180c20000")
"""Addresses up to 01:80:c2:00:00:0f are for the far end of a link (IEEE 802.1D, table 7-10)."""
CHANGE_SIGHTINGS: Final = 4


class Bridge:
    def __init__(self, *, addresses_max: int = 4096, aside: frozenset[PortId] = frozenset()) -> None:
        self._addresses_max = addresses_max
        self._aside = aside
        self._port_of: dict[bytes, int] = {}
        self._ports: dict[int, None] = {}
        self._mac_of: dict[bytes, bytes] = {}
        """Ethernet addresses by IP address."""
        self.changes = 0
        """Grows whenever frames may leave elsewhere than before."""
        self._doubted: dict[bytes, tuple[bytes, int]] = {}
        """Another address that each IP address in ``_mac_of`` came with, and how often in a row."""

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(self._ports)

    @property
    def addresses(self) -> dict[bytes, int]:
        return dict(self._port_of)

    def port_up(self, port: int) -> None:
        self._ports[port] = None
        self.changes += 1

    def port_down(self, port: int) -> None:
        """Forget the port and the addresses behind it."""
        self._ports.pop(port, None)
        self.changes += 1
        self._port_of = {mac: at for mac, at in self._port_of.items() if at != port}

    def learn(self, mac: bytes, port: int, ip: bytes = b"") -> None:
        """``mac`` is at ``port``; ``ip`` is the source of a RoCE packet."""
        if self._port_of.get(mac) == port and (
            not ip or (self._mac_of.get(ip) == mac and ip not in self._doubted)
        ):
            return
        if not mac or mac[0] & _GROUP_BIT or port in self._aside or (ip and not self._fits(mac, ip)):
            return
        if mac not in self._port_of and len(self._port_of) >= self._addresses_max:
            del self._port_of[next(iter(self._port_of))]
        self._port_of[mac] = port
        self.changes += 1

    def _fits(self, mac: bytes, ip: bytes) -> bool:
        """Whether the host with this IP address may have this one of Ethernet; it is remembered then."""
        known = self._mac_of.get(ip, mac)
        doubted, sightings = self._doubted.pop(ip, (mac, 0))
        sightings = sightings + 1 if doubted == mac else 1
        if known != mac and sightings < CHANGE_SIGHTINGS:
            self._doubted[ip] = mac, sightings
            return False
        if ip not in self._mac_of and len(self._mac_of) >= self._addresses_max:
            oldest = next(iter(self._mac_of))
            del self._mac_of[oldest]
            self._doubted.pop(oldest, None)
        self._mac_of[ip] = mac
        return True

    def egress(self, mac: bytes, ingress: int) -> tuple[int, ...]:
        """Ports on which a frame for ``mac`` leaves that came in on ``ingress``."""
        if ingress in self._aside:
            return ()
        port = self._port_of.get(mac)
        if port is not None and port in self._ports:
            return () if port == ingress else (port,)
        if is_of_a_link(mac):
            return ()
        return tuple(other for other in self._ports if other != ingress and other not in self._aside)


def is_of_a_link(mac: bytes) -> bool:
    """Whether frames for this address end at the far end of the link."""
    return mac[:5] == OF_A_LINK and mac[5] < 16
