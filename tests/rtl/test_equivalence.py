"""The RTL and the software core, frame by frame under faults: every byte that leaves and every counter is
the same.

What NetReduce sections 3.1 and 3.2 ask of an accelerator, in hardware. ``make rtl`` runs 200 campaigns.
"""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

from inaproto_hil.rtl.equivalence.compare import compare
from inaproto_hil.rtl.equivalence.device import SoftwareDevice
from inaproto_hil.rtl.equivalence.rtl_device import RtlDevice
from inaproto_hil.rtl.equivalence.traffic import Campaign
from inaproto_hil.rtl.parameters import Parameters
from tests.rtl.builds import LARGER, SMALL, library

pytestmark = pytest.mark.rtl

WIDE = Parameters(ports=2, words=8, rings=1, children=2, window=2, slots=32, mtu=256)


@pytest.mark.parametrize(
    ("parameters", "campaigns", "stalls"),
    [(SMALL, 20, 0.0), (SMALL, 10, 0.3), (LARGER, 10, 0.0), (WIDE, 10, 0.0)],
    ids=["small", "small-with-stalls", "larger", "256-bit"],
)
def test_nothing_differs(parameters: Parameters, campaigns: int, stalls: float) -> None:
    built = library(parameters)
    for seed in range(1000, 1000 + campaigns):
        device = RtlDevice(built, parameters, stalls=(seed, stalls) if stalls else None)
        try:
            report = compare(SoftwareDevice(parameters), device, Campaign(seed, parameters, 500))
        finally:
            device.close()
        assert report.difference is None, str(report)
