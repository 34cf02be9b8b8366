"""Faults that damage shows where no ICRC looks: in the addresses of a frame."""

from __future__ import annotations

from typing import Final

from inaproto.core.tree_region import TreeRegion
from tests.planted.planting import Change, PlantedFault
from tests.planted.shapes import damaged_addresses

TREE: Final = "NetReduce 3.3, several racks; inaproto.core.tree_region"

ADDRESS_FAULTS: Final = (
    PlantedFault(
        "damaged_addresses_kept",
        TREE,
        "tells of a first packet again when that packet came again, and of what follows it never",
        (
            Change(
                TreeRegion.to_note_again,
                "self.header[row, 0, :_ADDRESSES_END] = addresses",
                "pass",
            ),
            Change(TreeRegion.to_note_again, "return differ or at == 0", "return at == 0"),
        ),
        shape=damaged_addresses,
    ),
)
