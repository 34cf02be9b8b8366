"""Slots of switches as control messages, and back."""

from __future__ import annotations

from typing import assert_never

from inaproto.core.migration.ledger import (
    FromController,
    Lease,
    NotHeld,
    Order,
    Outcome,
    Renew,
    Renewed,
    SlotAnswer,
    SlotRequest,
    SlotsChanged,
)
from inaproto.wire.control_messages import Message
from inaproto.wire.slot_messages import (
    LeaseGone,
    LeaseRecord,
    LeaseRenew,
    LeaseRenewed,
    SlotHint,
    SlotOrder,
    SlotReport,
)


def order_message(request: SlotRequest) -> SlotOrder:
    return SlotOrder(
        term=request.term,
        number=request.number,
        boot=request.boot,
        order=request.order.value,
        lease=None if request.lease is None else _record(request.lease),
    )


def renew_message(lease: Lease) -> LeaseRenew:
    return LeaseRenew(lease=_record(lease))


def switch_message(said: SlotAnswer | SlotsChanged | Renewed | NotHeld) -> Message:
    """What a switch says to its controller, or to a host."""
    match said:
        case SlotAnswer():
            return SlotReport(
                switch=said.switch,
                boot=said.boot,
                term=said.term,
                number=said.number,
                outcome=said.outcome.value,
                held=tuple(map(_record, said.held)),
                newest_term=said.newest_term,
            )
        case SlotsChanged(switch, boot):
            return SlotHint(switch=switch, boot=boot)
        case Renewed(lease, lease_ns):
            return LeaseRenewed(lease=_record(lease), lease_ns=lease_ns)
        case NotHeld(lease, boot):
            return LeaseGone(lease=_record(lease), boot=boot)
        case _:
            assert_never(said)


def ledger_event(message: SlotOrder | LeaseRenew, host: str = "") -> FromController | Renew:
    """For the ledger of the switch; ``host`` is who has the session of a ``LeaseRenew``."""
    match message:
        case SlotOrder():
            lease = None if message.lease is None else _lease(message.lease)
            order = Order(message.order)
            return FromController(SlotRequest(message.term, message.number, message.boot, order, lease))
        case LeaseRenew():
            return Renew(host, _lease(message.lease))
        case _:
            assert_never(message)


def switch_said(
    message: SlotReport | SlotHint | LeaseRenewed | LeaseGone,
) -> SlotAnswer | SlotsChanged | Renewed | NotHeld:
    """``switch_message`` undone."""
    match message:
        case SlotReport():
            return SlotAnswer(
                switch=message.switch,
                boot=message.boot,
                term=message.term,
                number=message.number,
                outcome=Outcome(message.outcome),
                held=tuple(map(_lease, message.held)),
                newest_term=message.newest_term,
            )
        case SlotHint():
            return SlotsChanged(message.switch, message.boot)
        case LeaseRenewed():
            return Renewed(_lease(message.lease), message.lease_ns)
        case LeaseGone():
            return NotHeld(_lease(message.lease), message.boot)
        case _:
            assert_never(message)


def _record(lease: Lease) -> LeaseRecord:
    return LeaseRecord(job=lease.job, tree=lease.tree, epoch=lease.epoch)


def _lease(record: LeaseRecord) -> Lease:
    return Lease(record.job, record.tree, record.epoch)
