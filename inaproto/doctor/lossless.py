"""A lossless class for RoCE: priority flow control (IEEE 802.1Qbb) and congestion marks (RFC 3168).

RoCE survives loss by go-back-N, at the cost of a window or a timer for each; on a link that is shared, a
lossless priority with ECN is what keeps that rare. NetReduce relies on the NICs' congestion control
(section 3.2, "Congestion Control").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from inaproto.doctor.ethernet import NET, of_each_link
from inaproto.doctor.findings import Check, Finding, ok, untestable, warning
from inaproto.doctor.site import Site

PRIORITY: Final = 3
"""What vendors' guides take for RoCE, hence what the remedies say."""


def _look_at_pfc(site: Site, interface: str) -> Iterator[Finding]:
    ran = site.run(["dcb", "pfc", "show", "dev", interface])
    if ran is not None and not ran.status:
        yield look_at_priorities(interface, lossless_in_dcb(ran.output))
        return
    vendor = site.run(["mlnx_qos", "-i", interface])
    if vendor is not None and not vendor.status:
        yield look_at_priorities(interface, lossless_in_mlnx_qos(vendor.output))
    elif ran is None:
        yield untestable("the program dcb is missing", "apt-get install iproute2   (6.1 or later has dcb)")
    else:
        yield untestable(f"{interface}: its driver has no DCB ({ran.output.strip()[:60]})")


def lossless_in_dcb(text: str) -> list[int]:
    """Priorities whose PFC is on, of what ``dcb pfc show`` prints: ``prio-pfc 0:off ... 3:on``."""
    found = re.search(r"(?:prio|pg)-pfc((?:\s+\d:(?:on|off))+)", text)
    return [int(one) for one in re.findall(r"(\d):on", found[1])] if found else []


def lossless_in_mlnx_qos(text: str) -> list[int]:
    """Read what ``mlnx_qos -i`` prints: a line ``enabled`` with a 0 or 1 for each priority."""
    found = re.search(r"^\s*enabled((?:\s+[01]){8})", text, re.MULTILINE)
    return [priority for priority, flag in enumerate(found[1].split()) if flag == "1"] if found else []


def look_at_priorities(interface: str, lossless: list[int]) -> Finding:
    if not lossless:
        return warning(
            f"{interface}: no priority is lossless",
            f"dcb pfc set dev {interface} prio-pfc all:off {PRIORITY}:on   (the switch's port, too)",
        )
    if len(lossless) == 8:
        return warning(
            f"{interface}: all priorities are lossless, which is a global pause",
            f"dcb pfc set dev {interface} prio-pfc all:off {PRIORITY}:on",
        )
    return ok(f"{interface}: lossless priorities: {', '.join(map(str, lossless))}")


def _look_at_ecn(site: Site, interface: str) -> Iterator[Finding]:
    folder = f"{NET}/{interface}/ecn"
    sides = {
        side: {
            number: site.read(f"{folder}/{side}/enable/{number}") == "1"
            for number in site.names(f"{folder}/{side}/enable")
        }
        for side in ("roce_np", "roce_rp")
    }
    yield look_at_ecn(interface, sides)


def look_at_ecn(interface: str, sides: dict[str, dict[str, bool]]) -> Finding:
    """``sides``: of notification and reaction point, by priority, whether it is on."""
    if not any(sides.values()):
        return untestable(f"{interface}: its driver has no files for it (mlx5 has: {NET}/{interface}/ecn)")
    both = [
        number for number in sides["roce_np"] if sides["roce_np"][number] and sides["roce_rp"].get(number)
    ]
    if not both:
        path = f"{NET}/{interface}/ecn"
        return warning(
            f"{interface}: no priority both marks and obeys congestion",
            f"echo 1 > {path}/roce_np/enable/{PRIORITY}; echo 1 > {path}/roce_rp/enable/{PRIORITY}",
        )
    return ok(f"{interface}: congestion control is on for priorities {', '.join(both)}")


def _look_at_trust(site: Site, interface: str) -> Iterator[Finding]:
    yield look_at_trust(interface, site.read(f"{NET}/{interface}/qos/trust"))


def look_at_trust(interface: str, trust: str | None) -> Finding:
    if trust is None:
        return untestable(f"{interface}: its driver does not say by what it sorts (mlnx_qos -i {interface})")
    if trust != "dscp":
        return warning(
            f"{interface}: sorts packets by {trust}, not by DSCP: untagged RoCE packets are of priority 0",
            f"mlnx_qos -i {interface} --trust dscp",
        )
    return ok(f"{interface}: sorts packets by DSCP")


PFC: Final = Check(
    "pfc",
    "with no lossless priority, a burst is lost, and go-back-N sends windows again",
    of_each_link(_look_at_pfc),
)
ECN: Final = Check(
    "ecn",
    "without ECN, PFC is the only brake, and pauses spread through the network",
    of_each_link(_look_at_ecn),
)
TRUST: Final = Check(
    "dscp", "a lossless class helps only the packets that are sorted into it", of_each_link(_look_at_trust)
)
