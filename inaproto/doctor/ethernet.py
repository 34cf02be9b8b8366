"""The Ethernet interface under a host or a port of the switch: link, MTU, flow control, offloads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from inaproto.doctor.findings import Check, Finding, failed, ok, untestable, warning
from inaproto.doctor.site import Site

NET: Final = "/sys/class/net"
OVERHEAD: Final = 96
"""Bytes that Linux takes off an interface's MTU for the largest RoCE headers, before it picks a path MTU."""
PATH_MTUS: Final = (4096, 2048, 1024, 512, 256)
DEFAULT_MTU: Final = 1024


def of_each_link(look: Callable[[Site, str], Iterator[Finding]]) -> Callable[[Site], Iterator[Finding]]:
    """A check of every interface that is asked for, or of none, with the reason."""

    def look_all(site: Site) -> Iterator[Finding]:
        links = site.links()
        if not links:
            yield untestable(site.why_no_links())
        for interface in dict.fromkeys(name for name, _ in links):
            yield from look(site, interface)

    return look_all


# --- link


def _look_at_link(site: Site, interface: str) -> Iterator[Finding]:
    state = site.read(f"{NET}/{interface}/operstate")
    yield look_at_link(interface, state, site.number(f"{NET}/{interface}/speed"))


def look_at_link(interface: str, state: str | None, mbits: int | None) -> Finding:
    """``mbits``: None or -1 where the driver does not say."""
    if state is None:
        return failed(f"there is no interface {interface}", "ip -brief link")
    if state == "down":
        return failed(f"{interface} is down", f"ip link set {interface} up; then look at cable and switch")
    if state not in {"up", "unknown"}:  # veth and tun say unknown
        return failed(
            f"{interface} is {state}", f"ip link set {interface} up; ip -details link show {interface}"
        )
    speed = f", {mbits} Mbit/s" if mbits is not None and mbits > 0 else ", speed not told"
    return ok(f"{interface} is {state}{speed}")


# --- MTU


def path_mtu_of(mtu: int) -> int:
    """Largest RoCE path MTU of an interface of this MTU; 0 if it has none."""
    return next((path for path in PATH_MTUS if path + OVERHEAD <= mtu), 0)


def _look_at_mtu(site: Site, interface: str) -> Iterator[Finding]:
    wanted = [site.asked.mtu] if site.asked.mtu else site.of_hosts("mtu") or [DEFAULT_MTU]
    yield look_at_mtu(interface, site.number(f"{NET}/{interface}/mtu"), max(wanted))


def look_at_mtu(interface: str, mtu: int | None, wanted: int) -> Finding:
    """``wanted`` is the path MTU."""
    if mtu is None:
        return untestable(f"the MTU of {interface} cannot be read")
    path = path_mtu_of(mtu)
    need = 4200 if wanted == 4096 else wanted + OVERHEAD
    if path < wanted:
        return failed(
            f"{interface} has MTU {mtu}: RoCE packets of {path or 'no size'}, wanted {wanted}",
            f"ip link set {interface} mtu {need}   (and at every port on the way), or --mtu {path or 256}",
        )
    return ok(f"{interface} has MTU {mtu}, enough for path MTU {path}; hosts use {wanted}")


# --- pause frames


def _look_at_pause(site: Site, interface: str) -> Iterator[Finding]:
    ran = site.run(["ethtool", "-a", interface])
    if ran is None:
        yield untestable("the program ethtool is missing", "apt-get install ethtool")
    elif ran.status:
        yield untestable(f"{interface}: its driver does not tell ({ran.output.strip()[:80]})")
    else:
        yield look_at_pause(interface, ran.output)


def look_at_pause(interface: str, text: str) -> Finding:
    """``text``: what ``ethtool -a`` prints."""
    on = [way for way in ("RX", "TX") if re.search(rf"^{way}:\s+on", text, re.MULTILINE)]
    if on:
        return warning(
            f"{interface}: global pause is on ({' and '.join(on)}): one slow receiver stops all traffic",
            f"ethtool -A {interface} autoneg off rx off tx off   (PFC stops one priority alone)",
        )
    return ok(f"{interface}: global pause is off")


# --- offloads


def packet_ports(site: Site) -> list[str]:
    """Interfaces that are ports of a switch daemon here."""
    names = (str(port.get("name", "")) for switch in site.switches for port in switch.get("ports", ()))
    parts = (name.partition(":") for name in names)
    joined = (interfaces for kind, _, interfaces in parts if kind in ("packet", "veth", "xdp"))
    return list(dict.fromkeys(name for interfaces in joined for name in interfaces.split("+")))


def _look_at_offloads(site: Site) -> Iterator[Finding]:
    interfaces = packet_ports(site)
    if not interfaces:
        yield untestable("no switch here has an interface as a port (give --dir of its sockets)")
    for interface in interfaces:
        ran = site.run(["ethtool", "-k", interface])
        if ran is None:
            yield untestable("the program ethtool is missing", "apt-get install ethtool")
            return
        yield look_at_offloads(interface, ran.output)


def look_at_offloads(interface: str, text: str) -> Finding:
    """``text``: what ``ethtool -k`` prints."""
    if re.search(r"^large-receive-offload: on", text, re.MULTILINE):
        return failed(
            f"{interface}: LRO is on: the NIC merges packets in a way that nobody can undo",
            f"ethtool -K {interface} lro off",
        )
    if re.search(r"^generic-receive-offload: on", text, re.MULTILINE):
        return ok(f"{interface}: GRO is on; the port takes apart again what it merges")
    return ok(f"{interface}: packets come as they were sent (GRO and LRO off)")


LINK: Final = Check("link", "no packet leaves by a link that is down", of_each_link(_look_at_link))
MTU: Final = Check(
    "mtu",
    "packets larger than a link are dropped in silence, and each time sent again: the job hangs",
    of_each_link(_look_at_mtu),
)
PAUSE: Final = Check(
    "pause",
    "pause frames stop all priorities at once, and spread from switch to switch",
    of_each_link(_look_at_pause),
)
OFFLOADS: Final = Check(
    "offloads",
    "merged packets are no RoCE packets any more: each has its own PSN and ICRC",
    _look_at_offloads,
)
