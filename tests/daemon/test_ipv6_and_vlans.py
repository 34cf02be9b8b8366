"""Host daemons with softnics over IPv6 and in VLANs: one switch daemon sums them, over lossy links."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, load_adapter
from inaproto_hil.softroce.ring import RingPlan, run
from inaproto_hil.softroce.switched import switch_outside

IPV4 = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
IPV6 = ["fd00::1", "fd00::2", "2001:db8::3"]
DEADLINE_S = 300.0


def in_weather(port: FramePort, name: str) -> FramePort:
    wrapped: FramePort = load_adapter("weather").open(port, Weather(drop=0.005), seed=1, name=name)
    return wrapped


@pytest.mark.parametrize(
    ("ips", "vlan"), [(IPV6, 0), (IPV4, 100), (IPV6, 100)], ids=["IPv6", "VLAN", "IPv6 in a VLAN"]
)
async def test_all_reduces_are_exact_and_go_by_the_switch(ips: list[str], vlan: int) -> None:
    plan = RingPlan(
        ips=ips,
        first_rank=0,
        ranks=len(ips),
        control_port=0,
        mtu=1024,
        timeout=12,
        retry_count=7,
        window=2,
        message_packets=16,
        rows=[("float32", 40_000), ("int64", 8)],
        iterations=3,
        seconds=DEADLINE_S,
        vlan=vlan,
    )
    told: list[dict[str, Any]] = []
    with trio.fail_after(DEADLINE_S):
        async with switch_outside(in_weather) as switch:
            await run(plan, switch.folder, told.append)
    assert [(row["wrong"], row["paths"]) for row in told[:2]] == [(0, ["switch"])] * 2
    assert all(nic["packets_received"] and not nic["not_for_us"] for nic in told[-1]["devices"])
