"""What ``inaproto doctor`` looks at for ports on interfaces: which kind an interface can have."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Final

from inaproto.doctor.ethernet import NET, of_each_link
from inaproto.doctor.findings import Check, Finding, ok, untestable, warning
from inaproto.doctor.site import Site
from inaproto_adapters.frames.xdp import QUEUES_MAX, chunk_for, mtu_max
from inaproto_adapters.frames.xdp_program import MACHINES

LINUX_MIN: Final = (5, 9)


def _look_at_port(site: Site, interface: str) -> Iterator[Finding]:
    release = site.read("/proc/sys/kernel/osrelease") or ""
    yield look_at_port(
        interface,
        machine=platform.machine(),
        release=release,
        mtu=site.number(f"{NET}/{interface}/mtu"),
        queues=sum(name.startswith("rx-") for name in site.names(f"{NET}/{interface}/queues")),
        has_device=bool(site.names(f"{NET}/{interface}/device")),
    )


def look_at_port(
    interface: str, *, machine: str, release: str, mtu: int | None, queues: int, has_device: bool
) -> Finding:
    """``release``: of the kernel; ``queues``: by which the interface receives."""
    if machine not in MACHINES or linux(release) < LINUX_MIN:
        return ok(f"{interface}: packet:{interface} alone; xdp: takes Linux 5.9 on {', '.join(MACHINES)}")
    if mtu is None:
        return untestable(f"the MTU of {interface} cannot be read")
    if chunk_for(mtu) is None:
        most = f"{mtu_max()} (RoCE path MTU 2048)"
        return ok(f"{interface}: packet:{interface} alone at MTU {mtu}; xdp: takes up to {most}")
    if queues > QUEUES_MAX:
        return warning(
            f"{interface}: packet:{interface} alone; it has {queues} queues, and xdp: serves {QUEUES_MAX}",
            f"ethtool -L {interface} combined {QUEUES_MAX}",
        )
    takes = "CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF"
    if has_device:
        how = f"zero-copy or copied by the driver, as that can ({takes})"
        return ok(f"{interface}: packet:{interface} (CAP_NET_RAW) or xdp:{interface}, {how}")
    return ok(
        f"{interface}: packet:{interface} (CAP_NET_RAW), which passes runs of packets together where a cable "
        f"ends inside the machine (veth); xdp:{interface} ({takes}) passes each by itself, copied by the "
        "kernel, as no hardware is behind it"
    )


def linux(release: str) -> tuple[int, ...]:
    """The first two numbers of a kernel's release; zeros if it has none."""
    parts = release.partition("-")[0].split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


PORTS: Final = Check(
    "ports",
    "AF_XDP saves most of a packet socket's work at a card, and costs more at a cable inside the machine",
    of_each_link(_look_at_port),
)
CHECKS: Final = (PORTS,)
