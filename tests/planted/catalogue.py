"""All planted faults, by name.

``install("single_lookup_entry")`` gives a context in which the product has that fault; so does the attribute
of the same name, for ``inaproto replay LOG --with tests.planted.catalogue:single_lookup_entry``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final

from tests.planted.address_faults import ADDRESS_FAULTS
from tests.planted.collective_faults import COLLECTIVE_FAULTS
from tests.planted.congestion_faults import CONGESTION_FAULTS
from tests.planted.control_faults import CONTROL_FAULTS
from tests.planted.elastic_faults import ELASTIC_FAULTS
from tests.planted.host_faults import HOST_FAULTS
from tests.planted.job_faults import JOB_FAULTS
from tests.planted.job_seat_faults import JOB_SEAT_FAULTS
from tests.planted.launch_faults import LAUNCH_FAULTS
from tests.planted.link_faults import LINK_FAULTS
from tests.planted.place_faults import PLACE_FAULTS
from tests.planted.placement_faults import PLACEMENT_FAULTS
from tests.planted.plane_faults import PLANE_FAULTS
from tests.planted.planting import PlantedFault, by_name
from tests.planted.receiver_faults import RECEIVER_FAULTS
from tests.planted.recovery_faults import RECOVERY_FAULTS
from tests.planted.selective_faults import SELECTIVE_FAULTS
from tests.planted.sender_faults import SENDER_FAULTS
from tests.planted.successor_faults import SUCCESSOR_FAULTS
from tests.planted.switch_faults import SWITCH_FAULTS
from tests.planted.turn_faults import TURN_FAULTS

FAULTS: Final[Mapping[str, PlantedFault]] = {
    fault.name: fault
    for fault in (
        *SENDER_FAULTS,
        *SWITCH_FAULTS,
        *RECEIVER_FAULTS,
        *SELECTIVE_FAULTS,
        *CONGESTION_FAULTS,
        *CONTROL_FAULTS,
        *PLANE_FAULTS,
        *RECOVERY_FAULTS,
        *HOST_FAULTS,
        *JOB_FAULTS,
        *ELASTIC_FAULTS,
        *ADDRESS_FAULTS,
        *TURN_FAULTS,
        *LAUNCH_FAULTS,
        *PLACEMENT_FAULTS,
        *COLLECTIVE_FAULTS,
        *SUCCESSOR_FAULTS,
        *LINK_FAULTS,
        *PLACE_FAULTS,
        *JOB_SEAT_FAULTS,
    )
}


def install(name: str) -> AbstractContextManager[None]:
    """Plant the fault ``name`` while the context lasts."""
    return FAULTS[name]()


__getattr__ = by_name(FAULTS)
