"""What may happen next in the explored ring, and the faults that may strike what is sent meanwhile."""

from __future__ import annotations

from typing import Final, NamedTuple

BEGIN: Final = 0
DELIVER: Final = 1
DELIVER_LATER: Final = 2
EXPIRE: Final = 3
EXPIRE_EARLY: Final = 4
ARRIVE_LATE: Final = 5

LOST: Final = 0
DOUBLED: Final = 1
COPY_LATE: Final = 2
LATE: Final = 3


class Fault(NamedTuple):
    what: int
    number: int
    """Number of the packet, among those sent in the step."""


class Step(NamedTuple):
    what: int
    where: int
    """Rank, channel, or index among the late packets."""
    faults: tuple[Fault, ...] = ()
