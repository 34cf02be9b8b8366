"""Faults of a host's seat: how its ring comes and goes, and what it waits for (control worlds)."""

from __future__ import annotations

from typing import Any, Final

from inaproto.core.sharing.participant import SharingParticipant
from inaproto.core.sharing.seat import SharingSeat
from tests.planted.planting import Change, PlantedFault
from tests.planted.sharing_word_faults import SHARING


def _fault(name: str, text: str, function: Any, right: str, wrong: str) -> PlantedFault:
    return PlantedFault(name, SHARING, text, (Change(function, right, wrong),))


SEAT_FAULTS: Final = (
    _fault(
        "park_forgotten",
        "parks at once or never: a seat that drains when it is asked is not looked at again",
        SharingSeat.step,
        "self._is_parking = True",
        "return self._park_if_free(now)",
    ),
    _fault(
        "parked_under_an_operation",
        "leaves the switches while an operation is on them",
        SharingSeat._park_if_free,
        " or view.in_ina",
        "",
    ),
    _fault(
        "drained_with_the_results",
        "takes an operation for drained when its results are here, whatever is not acknowledged",
        SharingSeat.done,
        "self._running.get(index) is Path.FALLBACK",
        "index in self._running",
    ),
    _fault(
        "grant_of_another_life",
        "takes what was said to the seat of a ring that has ended",
        SharingParticipant.step,
        "said.seat != self._config.seat or said.term < self._term",
        "said.term < self._term",
    ),
)
