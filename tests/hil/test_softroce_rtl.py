"""Kernel RoCE hosts and our NICs in one ring, summed by the RTL: nobody but the switch knows.

NetReduce sections 3.2 and 4: transport transparency, in hardware as far as simulation goes.
"""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("amaranth")

from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, load_adapter
from inaproto_hil.rtl.in_switch import DEFAULTS, open_rtl
from inaproto_hil.rtl.parameters import parameters_of
from inaproto_hil.rtl.verilated.build import build_accelerator
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.switched import SwitchedConfig, run_switched
from tests.hil import HANG_S
from tests.rtl.builds import needs_tools

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]


async def test_kernel_hosts_and_our_nics_are_summed_by_the_rtl(softroce: Image) -> None:
    needs_tools()
    build_accelerator(parameters_of("", DEFAULTS))  # before anybody waits
    config = SwitchedConfig(hosts=2, own=2, mtu=1024, rows=[("float32", 2 << 10)], iterations=200, timeout=17)
    found = await run_switched(
        softroce, config, partial(_weathered, Weather(drop=0.005)), partial(open_rtl, "")
    )
    assert [(row["iterations"], row["wrong"]) for row in found.rows] == [(200, 0)] * 2
    assert sum(one["retry_exceeded"] for one in found.devices) == 0


def _weathered(weather: Weather, port: FramePort, name: str) -> FramePort:
    wrapped: FramePort = load_adapter("weather").open(port, weather, seed=1, name=name)
    return wrapped
