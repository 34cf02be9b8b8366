"""Words of sharing as control messages, there and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.sharing import messages as words
from inaproto.core.sharing.events import SharingRecord, TurnRecord
from inaproto.daemon.host.sharing_records import (
    answer_message,
    answer_of,
    order_message,
    order_of,
    peer_message,
    peer_of,
)
from inaproto.errors import ConfigError
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Message, decode_message, encode_message
from inaproto_controller.service.turns.store import (
    Floor,
    decode_floor,
    decode_record,
    encode_floor,
    encode_record,
)

NAMES = st.text(min_size=1, max_size=20)
NUMBERS = st.integers(0, 1 << 60)
SEATS = st.builds(words.Seat, NAMES.map(JobId), NAMES, NUMBERS)
VERSIONS = st.builds(words.Version, NUMBERS, NUMBERS)
EPOCHS = st.integers(0, (1 << 32) - 1).map(Epoch)
INDICES = NUMBERS.map(OpIndex)
TURNS = st.builds(words.Turn, NAMES.map(JobId), EPOCHS, INDICES, st.none() | INDICES)
DECISIONS = st.builds(words.Decision, st.none() | TURNS, st.none() | EPOCHS, INDICES)
ORDERS = st.one_of(
    st.builds(
        words.Prepare,
        SEATS,
        NUMBERS,
        VERSIONS,
        st.sampled_from(words.Rule),
        st.none() | NAMES.map(JobId),
        st.none() | EPOCHS,
        EPOCHS,
        st.integers(0, 100),
        NUMBERS,
        st.lists(SEATS, max_size=4).map(tuple),
    ),
    st.builds(words.Commit, SEATS, NUMBERS, VERSIONS, DECISIONS),
    st.builds(words.Abort, SEATS, NUMBERS, VERSIONS),
    st.builds(words.EndTurn, SEATS, NUMBERS, EPOCHS, st.none() | INDICES),
)
ANSWERS = st.one_of(
    st.builds(words.Vote, SEATS, VERSIONS, EPOCHS.map(OpIndex), st.booleans()),
    st.builds(words.Refusal, SEATS, VERSIONS),
    st.builds(words.Done, SEATS, VERSIONS),
    st.builds(words.Drained, SEATS, EPOCHS),
    st.builds(words.Ask, SEATS, VERSIONS),
)
PEERS = st.one_of(
    st.builds(words.AskPeer, SEATS, SEATS, VERSIONS, st.none() | EPOCHS.map(OpIndex)),
    st.builds(words.TellPeerDecision, SEATS, SEATS, VERSIONS, st.none() | DECISIONS),
)
RECORDS = st.builds(
    SharingRecord,
    NUMBERS,
    EPOCHS,
    st.lists(st.builds(TurnRecord, TURNS, st.lists(SEATS, max_size=3).map(tuple)), max_size=3).map(tuple),
    VERSIONS,
    st.none() | DECISIONS,
    st.lists(SEATS, max_size=3).map(tuple),
)


def carried(message: Message) -> Any:
    """Over the wire."""
    (record,) = ControlDecoder().feed(encode_message(message))
    return decode_message(record)


@given(ORDERS)
def test_what_a_coordinator_says(said: words.CoordinatorMessage) -> None:
    assert order_of(carried(order_message(said))) == said


@given(ANSWERS)
def test_what_a_seat_says(said: words.SeatMessage) -> None:
    assert answer_of(carried(answer_message(said))) == said


@given(PEERS)
def test_what_seats_say_to_each_other(said: words.PeerMessage) -> None:
    assert peer_of(carried(peer_message(said))) == said


@given(RECORDS)
def test_what_is_in_the_store(record: SharingRecord) -> None:
    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"format": 2}', b'{"format": 1}', b"\xff"])
def test_a_record_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ConfigError, match="record of a sharing group"):
        decode_record(body)


def test_the_floor_of_groups_that_are_gone_is_found_again() -> None:
    floor = Floor(7, Epoch(1 << 31))
    assert decode_floor(encode_floor(floor)) == floor
    assert floor.above(Floor(9, Epoch(1))) == Floor(9, Epoch(1 << 31))
    for body in (b"", b"[]", b'{"term": 1}', b'{"term": "x", "epoch": 1}', b'{"term": 1, "epoch": null}'):
        with pytest.raises(ConfigError, match="cannot be read"):
            decode_floor(body)
