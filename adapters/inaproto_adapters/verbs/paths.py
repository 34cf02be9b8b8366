"""How packets get from a port to a peer: the fields of an address handle, by what both ends are; no device.

On Ethernet every packet has a global routing header, whose GID is the peer's IP address. On InfiniBand a
packet goes by LID within a subnet, and has that header only where it leaves the subnet, by the LID of a
router, or where the port asks for it. What a path record of the subnet manager would say beside that (service
level, rate, MTU) is not asked: service level and MTU are settings, the rate is the port's.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final

from inaproto.errors import FabricError
from inaproto.ports import QpAddress
from inaproto.wire.messages.infiniband import GID_BYTES, InfinibandPort

PREFIX_BYTES: Final = 8
"""Of a GID: which subnet."""
UNICAST_LID_MAX: Final = 0xBFFF
_IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"


@dataclass(frozen=True, slots=True)
class OwnPort:
    """A port on InfiniBand, as this side knows its own."""

    at: InfinibandPort
    needs_grh: bool = False
    """Packets go by GID even within the subnet (a virtual port that shares its LID)."""
    router_lid: int = 0
    """By which packets leave the subnet; 0: they cannot."""


@dataclass(frozen=True, slots=True)
class Path:
    """Of an ``ibv_ah_attr`` what says where to."""

    dlid: int
    """0 on Ethernet."""
    dgid: bytes = b""
    """16 bytes; empty: packets have no global routing header."""


def path_to(own: OwnPort | None, peer: QpAddress) -> Path:
    """The way from a port to ``peer``; ``own`` is None on Ethernet.

    Raises ``FabricError`` where there is none, which no retry mends.
    """
    there = peer.infiniband
    if own is None:
        if there is not None:
            raise _no_way(peer, "it is on InfiniBand, and this host on Ethernet")
        return Path(0, peer.ip if len(peer.ip) == GID_BYTES else _IPV4_MAPPED + peer.ip)
    if there is None:
        raise _no_way(peer, "it is on Ethernet, and this host on InfiniBand")
    if there.gid[:PREFIX_BYTES] != own.at.gid[:PREFIX_BYTES]:
        if not own.router_lid:
            subnets = " and ".join(_prefix(gid) for gid in (there.gid, own.at.gid))
            raise _no_way(peer, f"it is in another subnet ({subnets}); set router_lid")
        return Path(own.router_lid, there.gid)
    if not 0 < there.lid <= UNICAST_LID_MAX and not own.needs_grh:
        raise _no_way(
            peer, f"its LID is {there.lid:#x}, which is that of no port; is there a subnet manager?"
        )
    return Path(there.lid, there.gid if own.needs_grh else b"")


def name_of(peer: QpAddress) -> str:
    """A peer's address, for people."""
    if peer.infiniband is None:
        return str(ipaddress.ip_address(peer.ip))
    return f"{ipaddress.IPv6Address(peer.infiniband.gid)} (LID {peer.infiniband.lid})"


def _prefix(gid: bytes) -> str:
    return str(ipaddress.IPv6Network((gid[:PREFIX_BYTES] + bytes(8), 64)))


def _no_way(peer: QpAddress, why: str) -> FabricError:
    return FabricError("connect", f"{name_of(peer)} QP {peer.qpn}", "finding a path", why, retryable=False)
