"""Kernel RoCE hosts whose frames the switch daemon sums: transport transparency, judged by Linux itself."""

from __future__ import annotations

from functools import partial

import pytest

from inaproto.ports import FramePort, load_adapter
from inaproto.sim.weather import Weather
from inaproto_hil.softroce.cut import Cut
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.switched import SwitchedConfig, run_switched

pytestmark = [pytest.mark.hil, pytest.mark.timeout(900)]


async def test_three_kernel_hosts_are_summed(softroce: Image) -> None:
    config = SwitchedConfig(
        hosts=3, mtu=1024, rows=[("float32", 64 << 10), ("bfloat16", 100_000), ("int32", 1 << 18)]
    )
    found = await run_switched(softroce, config)
    assert [row["wrong"] for row in found.rows] == [0, 0, 0]
    assert all(row["paths"] == ["switch"] for row in found.rows)
    assert sum(one["retry_exceeded"] for one in found.devices) == 0


async def test_frames_that_are_lost_come_again(softroce: Image) -> None:
    """Loss on all links, in both directions, besides frames that come twice or damaged."""
    weather = Weather(drop=0.005, duplicate=0.003, corrupt=0.002)
    found = await run_switched(
        softroce,
        SwitchedConfig(hosts=2, mtu=1024, rows=[("float32", 1 << 18)], iterations=4, timeout=15),
        partial(_weathered, weather),
    )
    assert [row["wrong"] for row in found.rows] == [0]
    assert sum(one["retransmits"] for one in found.devices) > 0
    assert sum(one["retry_exceeded"] for one in found.devices) == 0


async def test_queue_pairs_whose_retries_are_spent_are_made_anew(softroce: Image) -> None:
    """The wire is cut until the kernel's devices have given up: the job goes on when it is mended."""
    cut = Cut(after=300)
    config = SwitchedConfig(
        hosts=2, mtu=1024, rows=[("float32", 64 << 10)], iterations=12, timeout=15, retry_count=3
    )
    found = await run_switched(softroce, config, cut.wrap)
    assert cut.frames_lost > 0
    assert sum(one["retry_exceeded"] for one in found.devices) > 0
    assert [(row["iterations"], row["wrong"]) for row in found.rows] == [(12, 0)]


async def test_our_nics_and_the_kernel_s_sum_together(softroce: Image) -> None:
    """Two userspace NICs outside and two kernel devices in the guest in one ring; the links lose frames."""
    weather = Weather(drop=0.005)
    config = SwitchedConfig(
        hosts=2, own=2, mtu=1024, rows=[("float32", 8 << 10)], iterations=1000, timeout=15, seconds=300
    )
    found = await run_switched(softroce, config, partial(_weathered, weather))
    assert [(row["iterations"], row["wrong"]) for row in found.rows] == [(1000, 0)] * 2
    assert sum(one["retry_exceeded"] for one in found.devices) == 0
    assert sum(one["retransmits"] for one in found.devices) > 0


def _weathered(weather: Weather, port: FramePort, name: str) -> FramePort:
    wrapped: FramePort = load_adapter("weather").open(port, weather, seed=1, name=name)
    return wrapped
