"""Faults of hosts whose places in a collective library a controller gives and takes back."""

from __future__ import annotations

from typing import Final

from inaproto.core.grants.newest import NewestWishes
from inaproto.core.grants.places import Places
from inaproto.core.host.carrier import Carrier
from inaproto.core.host.collective import CollectiveCalls
from tests.planted.planting import PlantedFault, fault
from tests.planted.shapes import places_moved

PLACE: Final = "MINA IV-A; docs/protocol.md 17"

PLACE_FAULTS: Final[tuple[PlantedFault, ...]] = (
    fault(
        "place_forgotten_when_taken",
        PLACE,
        "holds a place no more when it is taken back, though the job is attached",
        Places.wish,
        "if users:",
        "if users and number in wanted:",
        shape=places_moved,
    ),
    fault(
        "old_wishes_taken",
        PLACE,
        "takes wishes in the order in which they come",
        NewestWishes.take,
        "(term, revision) < self.taken",
        "False",
        shape=places_moved,
    ),
    fault(
        "wishes_of_another_term_taken",
        PLACE,
        "takes wishes by their revision, whoever says them",
        NewestWishes.take,
        "term < self.term or (term, revision) < self.taken",
        "revision < self.revision",
        shape=places_moved,
    ),
    fault(
        "attached_before_it_is_known",
        PLACE,
        "attaches when a job begins, and then looks whether it may",
        Carrier._stand_beside,
        "self._of_collective(self._allowed)",
        "pass",
        shape=places_moved,
    ),
    fault(
        "place_never_left",
        PLACE,
        "says to no other host that its place was taken back",
        CollectiveCalls._vote,
        "self._is_allowed",
        "True",
        shape=places_moved,
    ),
)
