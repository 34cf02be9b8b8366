"""Faults that damage shows where no ICRC looks: in the addresses of a frame."""

from __future__ import annotations

from typing import Final

from inaproto.core.lookup_table import Flow
from tests.planted.planting import Change, PlantedFault
from tests.planted.shapes import damaged_addresses

LOOKUP: Final = "NetReduce 3.2, the lookup table; inaproto.core.lookup_table"

ADDRESS_FAULTS: Final = (
    PlantedFault(
        "addresses_from_packets",
        LOOKUP,
        "believes the latest packet where a rank is, though the control plane knows its address",
        (
            Change(Flow.settle, "if not self.spec.src_mac:", "if True:"),
            Change(Flow.is_at, "src_mac == (self.spec.src_mac or src_mac)", "src_mac == self.src_mac"),
        ),
        shape=damaged_addresses,
    ),
)
