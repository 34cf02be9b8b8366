"""A NIC in memory that is on InfiniBand for all who use it: it has a GID and a LID, and no other address.

Below it is the softnic, which has Ethernet addresses that nobody is told; which LID has which of them only
this module knows, as a subnet manager does.
"""

from __future__ import annotations

import ipaddress
from dataclasses import replace

from inaproto.errors import FabricError
from inaproto.ports import NicCapabilities, QpAddress, QpAttributes
from inaproto.wire.messages.infiniband import InfinibandPort
from inaproto_adapters.softnic import SoftNic

FIRST_LID = 4
HOSTS_MAX = 250


def port_of(host: int) -> InfinibandPort:
    """Where host ``host`` is."""
    gid = bytes.fromhex("fe80000000000000") + bytes([0x24, 0x8A, 7, 3, 0, 0, 0, host + 1])
    return InfinibandPort(gid=gid, lid=FIRST_LID + host)


def gid_of(host: int) -> str:
    """As the setting ``gid`` has it."""
    return str(ipaddress.IPv6Address(port_of(host).gid))


def ethernet_of(host: int) -> tuple[bytes, bytes]:
    """MAC and IP address below."""
    ip = bytes([10, 0, 0, host + 1])
    return b"\x02\x00" + ip, ip


class InfinibandNic(SoftNic):
    """See the module; ``host`` is to be set before it is used."""

    host = 0

    @property
    def capabilities(self) -> NicCapabilities:
        return replace(super().capabilities, mac=bytes(6), ip=bytes(4), infiniband=port_of(self.host))

    def create_qp(self, *, psn: int) -> QpAddress:
        made = super().create_qp(psn=psn)
        return replace(made, mac=bytes(6), ip=bytes(4), infiniband=port_of(self.host))

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        there = remote.infiniband
        if there is None or any(remote.mac) or any(remote.ip):
            raise FabricError("connect", str(remote), "finding a path", "not on InfiniBand", retryable=False)
        mac, ip = ethernet_of((there.lid - FIRST_LID) % HOSTS_MAX)
        super().connect_qp(qpn, replace(remote, mac=mac, ip=ip, infiniband=None), attributes)
