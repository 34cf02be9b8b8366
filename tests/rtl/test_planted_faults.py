"""Each fault planted in the RTL is found by the judge, in a few short campaigns; the RTL itself passes them
all."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

from pathlib import Path

from inaproto_hil.rtl.equivalence.compare import Report, compare
from inaproto_hil.rtl.equivalence.device import SoftwareDevice
from inaproto_hil.rtl.equivalence.rtl_device import RtlDevice
from inaproto_hil.rtl.equivalence.traffic import Campaign
from tests.rtl.builds import SMALL, library, needs_tools
from tests.rtl.faults import FAULTS, Planted, planted

pytestmark = pytest.mark.rtl

CAMPAIGNS = 120
"""Ranks that disagree stop their ring, so they do it seldom, and about one of six things: about the operation
in one campaign of forty."""
FRAMES = 500


def hunted(built: Path) -> Report | None:
    """The first campaign in which the RTL and the software core differ."""
    for seed in range(CAMPAIGNS):
        device = RtlDevice(built, SMALL)
        try:
            report = compare(SoftwareDevice(SMALL), device, Campaign(seed, SMALL, FRAMES), every=1)
        finally:
            device.close()
        if report.difference is not None:
            return report
    return None


def test_the_rtl_without_a_fault_passes_all_of_it() -> None:
    report = hunted(library(SMALL))
    assert report is None, str(report)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_planted_fault_is_found(fault: Planted) -> None:
    needs_tools()
    from inaproto_hil.rtl.verilated.build import build_accelerator

    with planted(fault):
        faulty = build_accelerator(SMALL)
    report = hunted(faulty)
    assert report is not None, f"{fault.name}: not found in {CAMPAIGNS} campaigns of {FRAMES} frames"
    assert report.difference is not None
    assert str(report.seed) in str(report)
