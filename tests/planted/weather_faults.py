"""Faults that the weather of real clusters finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inaproto.core.sharing.group import SharingGroup
from tests.planted.planting import PlantedFault, by_name, fault
from tests.planted.sharing_word_faults import SHARING

_FAULTS: Final = (
    fault(
        "lost_hosts_told_by_others_of_the_ring",
        SHARING,
        "forgets the seats of a lost host only while some host of their ring is there",
        SharingGroup._woke,
        "for seat in self._seats.of_host(host):",
        "for seat in [one for one in self._seats.of_host(host) if any("
        "at.host in self._connected for at in self._seats.jobs().get(one.job, ()))]:",
    ),
)
FAULTS: Final[Mapping[str, PlantedFault]] = {one.name: one for one in _FAULTS}
__getattr__ = by_name(FAULTS)
