"""What is said about the slots of switches (MINA section IV-A).

controller -> switch: SlotRequest. switch -> controller: SlotAnswer, and unasked SlotsChanged.

Checks are of form alone; what they mean is for :mod:`inaproto.core.migration.ledger` to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from inaproto.wire.messages.fields import Choice, Integer, Many, Record
from inaproto.wire.messages.types import U32, Name, Secret, Unnumbered

LEASES_MAX: Final = 1 << 12
"""Most leases that a switch lends at once."""

Positive64 = Annotated[int, Integer(1, (1 << 64) - 1)]


@dataclass(frozen=True, slots=True, order=True)
class Lease:
    """What a slot is lent to. ``epoch`` grows with every tree that any job acquires: a fencing token."""

    job: Name
    tree: U32
    epoch: U32

    def __str__(self) -> str:
        return f"job {self.job}'s tree {self.tree} (epoch {self.epoch})"


LeaseField = Annotated[Lease, Record(Lease)]


class Order(Enum):
    ASK = "ask"
    """What is held?"""
    ACQUIRE = "acquire"
    RELEASE = "release"


class Outcome(Enum):
    TOLD = "told"
    GRANTED = "granted"
    REFUSED = "refused"
    """No slot is free, or the job has another lease here."""
    RELEASED = "released"
    """It is not held now, and perhaps was not before."""
    OLD_BOOT = "old_boot"
    """Not obeyed: the switch has restarted since."""
    OLD_TERM = "old_term"
    """Not obeyed: a newer coordinator has spoken."""


@dataclass(frozen=True, slots=True)
class SlotRequest(Unnumbered, type="slot_order"):
    """Request of the coordinator to a switch."""

    term: Positive64
    """Term of the coordinator, from 1."""
    number: Positive64
    """Per switch and term, from 1."""
    boot: Secret
    """Boot of the switch, as the coordinator knows it; empty in an ``ASK``."""
    order: Annotated[Order, Choice(Order)]
    lease: LeaseField | None = None
    """None in an ``ASK``."""


@dataclass(frozen=True, slots=True)
class SlotAnswer(Unnumbered, type="slot_report"):
    """Answer to a ``SlotRequest``."""

    switch: Name
    boot: Name
    term: Positive64
    """Term of the request."""
    number: Positive64
    outcome: Annotated[Outcome, Choice(Outcome)]
    held: Annotated[tuple[Lease, ...], Many(Record(Lease), LEASES_MAX)]
    """After the request, in order."""
    newest_term: Positive64
    """Newest term that the switch has heard of."""


@dataclass(frozen=True, slots=True)
class SlotsChanged(Unnumbered, type="slot_hint"):
    """Unasked, a hint: ask anew. Said when leases ran out, and to a coordinator that has just connected."""

    switch: Name
    boot: Name
