"""Rings of a pool: the RTL hands slots on by turns as the software core does, whatever disturbs them."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

from inaproto_hil.rtl.equivalence.compare import compare
from inaproto_hil.rtl.equivalence.device import SoftwareDevice
from inaproto_hil.rtl.equivalence.rtl_device import RtlDevice
from tests.rtl.builds import library
from tests.rtl.turn_traffic import SIZES, TurnTraffic
from tests.seeds import seeds

FRAMES = 1500


def counted(seed: int) -> dict[str, int]:
    device = SoftwareDevice(SIZES)
    traffic = TurnTraffic(seed, FRAMES)
    for spec in traffic.specs:
        assert device.install(spec) is None
    for port, frame in traffic:
        device.frame(port, frame)
    return device.counters()


def test_the_traffic_has_turns_conflicts_and_packets_of_turns_that_are_over() -> None:
    total: dict[str, int] = {}
    for seed in range(12):
        for name, count in counted(seed).items():
            total[name] = total.get(name, 0) + count
    wanted = (
        "pool_takeovers",
        "pool_conflicts",
        "stale_turns",
        "results_out",
        "replayed",
        "wrong epoch",
        "window passed",
    )
    assert all(total.get(name) for name in wanted), total


@pytest.mark.rtl
@pytest.mark.parametrize("seed", seeds(30))
def test_nothing_differs(seed: int) -> None:
    device = RtlDevice(library(SIZES), SIZES)
    try:
        report = compare(SoftwareDevice(SIZES), device, TurnTraffic(seed, FRAMES), every=50)
    finally:
        device.close()
    assert report.difference is None, str(report)
