"""What is said about slots of switches: the bytes, and what no peer may say."""

from __future__ import annotations

import pytest

from inaproto.errors import DecodeError
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Message, decode_message, encode_message
from inaproto.wire.messages.slots import (
    Lease,
    Order,
    Outcome,
    SlotAnswer,
    SlotRequest,
    SlotsChanged,
)

LEASE = Lease("a", 3, 7)
_TREE = b"\x83\xa3job\xa1a\xa4tree\x03\xa5epoch\x07"
SAID: dict[bytes, Message] = {
    b"\x87\xa1v\x01\xa4type\xaaslot_order\xa2id\x00\xa4term\x01\xa6number\x02\xa4boot\xa0\xa5order\xa3ask": (
        SlotRequest(1, 2, "", Order.ASK)
    ),
    b"\x88\xa1v\x01\xa4type\xaaslot_order\xa2id\x00\xa4term\x01\xa6number\x03\xa4boot\xa2b1"
    b"\xa5order\xa7acquire\xa5lease" + _TREE: SlotRequest(1, 3, "b1", Order.ACQUIRE, LEASE),
    b"\x8a\xa1v\x01\xa4type\xabslot_report\xa2id\x00\xa6switch\xa5leaf0\xa4boot\xa2b1\xa4term\x01"
    b"\xa6number\x03\xa7outcome\xa7granted\xa4held\x91" + _TREE + b"\xabnewest_term\x01": (
        SlotAnswer("leaf0", "b1", 1, 3, Outcome.GRANTED, (LEASE,), 1)
    ),
    b"\x85\xa1v\x01\xa4type\xa9slot_hint\xa2id\x00\xa6switch\xa5leaf0\xa4boot\xa2b1": (
        SlotsChanged("leaf0", "b1")
    ),
}


def test_messages_are_the_same_bytes_as_ever() -> None:
    assert {encode_message(message)[4:]: message for message in SAID.values()} == SAID


@pytest.mark.parametrize(
    ("field", "value"), [("term", 0), ("number", 0), ("order", "keep"), ("lease", {"job": "a"})]
)
def test_what_no_peer_may_say_is_refused_by_name(field: str, value: object) -> None:
    (record,) = ControlDecoder().feed(encode_message(SlotRequest(1, 1, "", Order.ASK)))
    with pytest.raises(DecodeError, match=field):
        decode_message(record | {field: value})


def test_a_request_is_the_same_whatever_its_id_is() -> None:
    """A ledger takes the same request under another id for no second one."""
    (record,) = ControlDecoder().feed(encode_message(SlotRequest(1, 1, "", Order.ASK)))
    assert decode_message(record | {"id": 9}) == SlotRequest(1, 1, "", Order.ASK)
