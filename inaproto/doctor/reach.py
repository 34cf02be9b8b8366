"""The way to a peer: by the right interface, to a known MAC address, with several NICs in one subnet."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from typing import Final

from inaproto.doctor.findings import Check, Finding, failed, ok, untestable, warning
from inaproto.doctor.site import Site

_NO_PEER: Final = "no peer to look for: give --peer ADDRESS"
_COMPLETE: Final = 0x2


# --- route


def _look_at_route(site: Site) -> Iterator[Finding]:
    peer, links = site.asked.peer, site.links()
    if not peer or not links:
        yield untestable(_NO_PEER if not peer else site.why_no_links())
        return
    for interface, ip in links:
        source = ["from", ip] if ip else []
        ran = site.run(["ip", "-json", "route", "get", peer, *source])
        if ran is None:
            yield untestable("the program ip is missing", "apt-get install iproute2")
            return
        yield look_at_route(interface, ip, peer, ran.status, ran.output)


def look_at_route(interface: str, ip: str, peer: str, status: int, text: str) -> Finding:
    """``text``: what ``ip -json route get`` prints."""
    bits = 128 if ":" in peer else 32
    add = f"ip route add {peer}/{bits} dev {interface} src {ip or 'ADDRESS'}"
    try:
        device = json.loads(text)[0]["dev"] if not status else ""
    except (ValueError, LookupError, TypeError):
        device = ""
    if not device:
        return failed(f"there is no route to {peer}: {text.strip()[:80]}", add)
    if device != interface:
        return failed(
            f"the route from {ip} to {peer} leaves by {device}, not by {interface}",
            f"ip route add {peer}/{bits} dev {interface} src {ip} table 101; "
            f"ip {'-6 ' * (bits == 128)}rule add from {ip} lookup 101",
        )
    return ok(f"{peer} is reached by {interface}")


# --- neighbour


def _look_at_neighbour(site: Site) -> Iterator[Finding]:
    peer, links = site.asked.peer, site.links()
    if not peer or not links:
        yield untestable(_NO_PEER if not peer else site.why_no_links())
        return
    for interface, ip in links:
        if ip:
            site.round_trip(ip, peer)  # makes the kernel ask for its address
        if ":" in peer:
            yield _look_at_ipv6_neighbour(site, interface, peer)
        else:
            yield look_at_neighbour(interface, peer, site.read("/proc/net/arp"))


def _look_at_ipv6_neighbour(site: Site, interface: str, peer: str) -> Finding:
    ran = site.run(["ip", "-json", "-6", "neighbour", "show", peer, "dev", interface])
    if ran is None:
        return untestable("the program ip is missing", "apt-get install iproute2")
    return look_at_ipv6_neighbour(interface, peer, ran.output)


def look_at_ipv6_neighbour(interface: str, peer: str, text: str) -> Finding:
    """``text``: what ``ip -json -6 neighbour show`` prints of it."""
    try:
        entries = [(str(one.get("lladdr", "")), one.get("state", ())) for one in json.loads(text)]
    except (ValueError, TypeError, AttributeError):
        entries = []
    if not entries:
        return warning(
            f"{peer} has no entry at {interface}: it is behind a router, or was never asked for",
            f"ip -6 neighbour show dev {interface}; ip route get {peer}",
        )
    mac, states = entries[0]
    if mac and "FAILED" not in states:
        return ok(f"{peer} is {mac} at {interface}")
    return failed(
        f"{peer} does not answer neighbour solicitations at {interface}",
        f"is it up, and in the same VLAN? ip -6 neighbour flush dev {interface}; ping -I {interface} {peer}",
    )


def look_at_neighbour(interface: str, peer: str, table: str | None) -> Finding:
    """``table``: ``/proc/net/arp``."""
    if table is None:
        return untestable("/proc/net/arp cannot be read")
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 6 and fields[0] == peer and fields[5] == interface:
            if int(fields[2], 16) & _COMPLETE:
                return ok(f"{peer} is {fields[3]} at {interface}")
            break
    else:
        return warning(
            f"{peer} has no entry at {interface}: it is behind a router, or was never asked for",
            f"ip neighbour show dev {interface}; ip route get {peer}",
        )
    return failed(
        f"{peer} does not answer ARP at {interface}",
        f"is it up, and in the same VLAN? ip neighbour flush dev {interface}; arping -I {interface} {peer}",
    )


# --- several NICs in one subnet


def _look_at_subnets(site: Site) -> Iterator[Finding]:
    addresses = site.addresses()
    if not addresses:
        yield untestable(site.why_no_links() if not site.ips else "ip -json address says nothing")
        return
    shared = shared_subnets(addresses)
    if not shared:
        yield ok("no two interfaces are in one subnet")
    for subnet, interfaces in shared.items():
        settings = {name: _settings(site, name) for name in interfaces}
        yield look_at_shared(subnet, settings)


def shared_subnets(addresses: list[tuple[str, str, int]]) -> dict[str, list[str]]:
    """Subnets that are at more than one interface, with those."""
    found: dict[str, dict[str, None]] = {}
    for name, ip, length in addresses:
        subnet = str(ipaddress.IPv4Network(f"{ip}/{length}", strict=False))
        found.setdefault(subnet, {})[name] = None
    return {subnet: list(names) for subnet, names in found.items() if len(names) > 1}


def _settings(site: Site, interface: str) -> dict[str, int]:
    """What is in force: the larger of the interface's value and that of all."""
    return {
        name: max(site.number(f"/proc/sys/net/ipv4/conf/{where}/{name}") or 0 for where in ("all", interface))
        for name in ("arp_ignore", "arp_announce", "rp_filter")
    }


def look_at_shared(subnet: str, settings: dict[str, dict[str, int]]) -> Finding:
    """``settings``: of each interface in ``subnet``."""
    wrong = {
        name: [
            key
            for key, bad in (
                ("arp_ignore", values["arp_ignore"] < 1),
                ("arp_announce", values["arp_announce"] < 2),
                ("rp_filter", values["rp_filter"] == 1),
            )
            if bad
        ]
        for name, values in settings.items()
    }
    if not any(wrong.values()):
        return ok(f"{', '.join(settings)} share {subnet}, and each answers for its own address alone")
    told = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in wrong.items() if keys)
    return failed(
        f"{', '.join(settings)} share {subnet}, and answer for each other ({told})",
        "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 "
        "net.ipv4.conf.all.rp_filter=2; and a route table for each address (docs/operating.md)",
    )


ROUTE: Final = Check(
    "route",
    "packets that leave by another interface carry the wrong address, or never arrive",
    _look_at_route,
)
NEIGHBOUR: Final = Check(
    "neighbour",
    "a queue pair cannot be connected to a peer whose MAC address is not known",
    _look_at_neighbour,
)
SUBNETS: Final = Check(
    "subnets",
    "by default any interface answers ARP for all addresses of its machine: packets come by the wrong NIC",
    _look_at_subnets,
)
