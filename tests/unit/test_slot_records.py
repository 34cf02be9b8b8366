"""Slots of switches as control messages, and back, over real bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from inaproto.daemon.switch.slot_records import (
    ledger_event,
    order_message,
    renew_message,
    switch_message,
    switch_said,
)
from inaproto.errors import DecodeError
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Message, decode_message, encode_message
from inaproto.wire.slot_messages import LeaseGone, LeaseRenew, LeaseRenewed, SlotHint, SlotOrder, SlotReport

NAMES = st.text(min_size=1, max_size=8)
U32 = st.integers(0, (1 << 32) - 1)
SERIALS = st.integers(1, (1 << 64) - 1)
LEASES = st.builds(Lease, NAMES, U32, U32)


def carried(message: Message) -> Message:
    (record,) = ControlDecoder().feed(encode_message(message))
    return decode_message(record)


@given(
    st.builds(
        SlotRequest,
        SERIALS,
        SERIALS,
        st.text(max_size=8),
        st.sampled_from(Order),
        st.none() | LEASES,
    )
)
def test_requests(request: SlotRequest) -> None:
    message = carried(order_message(request))
    assert isinstance(message, SlotOrder)
    assert ledger_event(message) == FromController(request)


@given(LEASES)
def test_renewals_carry_the_host_of_their_session(lease: Lease) -> None:
    message = carried(renew_message(lease))
    assert isinstance(message, LeaseRenew)
    assert ledger_event(message, "h1") == Renew("h1", lease)


@given(
    st.builds(
        SlotAnswer,
        NAMES,
        NAMES,
        SERIALS,
        SERIALS,
        st.sampled_from(Outcome),
        st.lists(LEASES, max_size=4).map(tuple),
        SERIALS,
    )
    | st.builds(SlotsChanged, NAMES, NAMES)
    | st.builds(Renewed, LEASES, U32)
    | st.builds(NotHeld, LEASES, NAMES)
)
def test_what_switches_say(said: SlotAnswer | SlotsChanged | Renewed | NotHeld) -> None:
    message = carried(switch_message(said))
    assert isinstance(message, SlotReport | SlotHint | LeaseRenewed | LeaseGone)
    assert switch_said(message) == said


@pytest.mark.parametrize("field", ["term", "number"])
def test_terms_and_numbers_begin_at_one(field: str) -> None:
    (record,) = ControlDecoder().feed(encode_message(order_message(SlotRequest(1, 1, "", Order.ASK))))
    with pytest.raises(DecodeError, match=field):
        decode_message(record | {field: 0})
