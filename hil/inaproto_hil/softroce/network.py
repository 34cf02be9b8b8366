"""The guest's network: several RoCE hosts in one kernel, each behind a NIC of its own.

Soft-RoCE serves the initial network namespace only, so all devices are in it, and what one host sends to
another would stay inside the kernel. Policy routing sends each packet out of the NIC that has its source
address instead: the rule that looks up local addresses first goes to the end.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HOSTS_MAX: Final = 80
"""Routing rules of hosts come before the one for local addresses, which is number 100."""
CONTROL_NETWORK: Final = "10.0.9.0/24"
CONTROL_GATEWAY: Final = "10.0.9.2"
"""The machine's own loopback, as the guest sees it."""
CONTROL_MAC: Final = "52:54:00:ff:ff:01"
ROCE_OVERHEAD: Final = 104
"""Bytes of an Ethernet MTU above that of the path: IP, UDP, RoCE headers and ICRC, and room to spare."""


@dataclass(frozen=True, slots=True)
class GuestHost:
    """Host ``number`` from 1 on; with IPv6 addresses of each kind, by the one of IPv6."""

    number: int
    ipv6: bool = False

    @property
    def mac(self) -> str:
        return f"52:54:00:00:00:{self.number:02x}"

    @property
    def ip(self) -> str:
        return f"fd00::{self.number:x}" if self.ipv6 else f"10.0.0.{self.number}"

    @property
    def ip_bytes(self) -> bytes:
        return ipaddress.ip_address(self.ip).packed

    @property
    def device(self) -> str:
        return f"rxe{self.number}"


def set_up(hosts: Sequence[GuestHost], *, ethernet_mtu: int, vlan: int | None = None) -> str:
    """The part of the guest's job that makes its network: shell.

    In a ``vlan`` hosts have their addresses at interfaces of it, and their devices, those of the NICs,
    a GID for each: packets from that are tagged.
    """
    lines = [
        "set -e",
        "nic() { for d in /sys/class/net/*; do",
        '  if [ "$(cat $d/address)" = "$1" ] && [ -e $d/device ]; then basename $d; return; fi; done',
        '  echo "no NIC $1" >&2; exit 1; }',
        f"C=$(nic {CONTROL_MAC}); ip addr add 10.0.9.15/24 dev $C; ip link set $C up",
        "for where in all default; do",
        "  echo 1 > /proc/sys/net/ipv4/conf/$where/accept_local",
        "  echo 0 > /proc/sys/net/ipv4/conf/$where/rp_filter",
        "  echo 1 > /proc/sys/net/ipv4/conf/$where/arp_ignore",
        "  echo 2 > /proc/sys/net/ipv4/conf/$where/arp_announce",
        "done",
        "ip rule add pref 100 lookup local",
        "ip rule del pref 0",
    ]
    if any(host.ipv6 for host in hosts):
        lines += ["ip -6 rule add pref 100 lookup local", "ip -6 rule del pref 0"]
    for host in hosts:
        table, conf = 100 + host.number, "/proc/sys/net/ipv4/conf/$D"
        lines += [
            f"D=$(nic {host.mac})",
            f"echo 1 > {conf}/accept_local; echo 0 > {conf}/rp_filter",
            f"echo 1 > {conf}/arp_ignore; echo 2 > {conf}/arp_announce",
            f"ip link set $D mtu {ethernet_mtu} up",
            *([] if vlan is None else _in_vlan(vlan, host, ethernet_mtu)),
            *(_over_ipv6(host, table) if host.ipv6 else _over_ipv4(host, table)),
            f"rdma link add {host.device} type rxe netdev $(nic {host.mac})",
        ]
    return "\n".join([*lines, ""])


def _over_ipv4(host: GuestHost, table: int) -> list[str]:
    return [
        f"ip addr add {host.ip}/24 dev $D",
        f"ip route add 10.0.0.0/24 dev $D src {host.ip} table {table}",
        f"ip rule add pref {10 + host.number} from {host.ip} iif lo lookup {table}",
    ]


def _over_ipv6(host: GuestHost, table: int) -> list[str]:
    """Without a check for duplicates, during which an address may not be used."""
    return [
        "echo 0 > /proc/sys/net/ipv6/conf/$D/accept_ra",
        f"ip addr add {host.ip}/64 dev $D nodad",
        f"ip -6 route add fd00::/64 dev $D src {host.ip} table {table}",
        f"ip -6 rule add pref {10 + host.number} from {host.ip} iif lo lookup {table}",
    ]


def _in_vlan(vlan: int, host: GuestHost, mtu: int) -> list[str]:
    name, conf = f"vlan{host.number}", f"/proc/sys/net/ipv4/conf/vlan{host.number}"
    return [
        f"ip link add link $D name {name} type vlan id {vlan}",
        f"echo 1 > {conf}/accept_local; echo 0 > {conf}/rp_filter",
        f"echo 1 > {conf}/arp_ignore; echo 2 > {conf}/arp_announce",
        f"ip link set {name} mtu {mtu} up",
        f"D={name}",
    ]
