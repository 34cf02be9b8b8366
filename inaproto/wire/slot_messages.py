"""Control messages about the slots of switches (MINA section IV-A).

controller -> switch: SlotOrder. switch -> controller: SlotReport, and unasked SlotHint.
host -> switch: LeaseRenew, for each switch of a tree that one of its jobs uses. switch -> host: LeaseRenewed,
LeaseGone.

Checks are of form alone; what they mean is for :mod:`inaproto.core.migration.ledger` to say, which has the
same records under its own names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from inaproto.wire.control_fields import Integer, Many, OneOf, Record
from inaproto.wire.control_types import U32, U64, Message, Name, Secret

LEASES_MAX: Final = 1 << 12
"""Most leases that a switch lends at once."""

Positive64 = Annotated[int, Integer(1, (1 << 64) - 1)]
OrderName = Literal["ask", "acquire", "release"]
OutcomeName = Literal["told", "granted", "refused", "released", "old_boot", "old_term"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """What a slot is lent to."""

    job: Name
    tree: U32
    epoch: U32
    """As in the INA header."""


LeaseField = Annotated[LeaseRecord, Record(LeaseRecord)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOrder(Message):
    TYPE: ClassVar[str] = "slot_order"
    term: Positive64
    """Term of the controller."""
    number: Positive64
    """Per switch and term."""
    boot: Secret = ""
    """Boot of the switch, as the controller knows it; empty where it only asks."""
    order: Annotated[OrderName, OneOf(("ask", "acquire", "release"))]
    lease: LeaseField | None = None
    """None where it only asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotReport(Message):
    """Answers a ``SlotOrder``."""

    TYPE: ClassVar[str] = "slot_report"
    switch: Name
    boot: Name
    term: Positive64
    """Term of the order."""
    number: Positive64
    outcome: Annotated[OutcomeName, OneOf(("told", "granted", "refused", "released", "old_boot", "old_term"))]
    held: Annotated[tuple[LeaseRecord, ...], Many(Record(LeaseRecord), LEASES_MAX)]
    newest_term: Positive64
    """Newest term that the switch has heard of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHint(Message):
    """What the switch lends has changed by itself, or it is there again: ask."""

    TYPE: ClassVar[str] = "slot_hint"
    switch: Name
    boot: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenew(Message):
    """The job uses its tree on the host of this session."""

    TYPE: ClassVar[str] = "lease_renew"
    lease: LeaseField


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed(Message):
    TYPE: ClassVar[str] = "lease_renewed"
    lease: LeaseField
    lease_ns: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGone(Message):
    """The switch does not lend it (any more)."""

    TYPE: ClassVar[str] = "lease_gone"
    lease: LeaseField
    boot: Name


SLOT_MESSAGES: Final[tuple[type[Message], ...]] = (
    SlotOrder,
    SlotReport,
    SlotHint,
    LeaseRenew,
    LeaseRenewed,
    LeaseGone,
)
