"""What coordinators of sharing groups must find again: in the store, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.sharing.events import SharingRecord, TurnRecord
from inaproto.errors import ConfigError
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages import sharing as words
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
RECORDS = st.builds(
    SharingRecord,
    NUMBERS,
    EPOCHS,
    st.lists(st.builds(TurnRecord, TURNS, st.lists(SEATS, max_size=3).map(tuple)), max_size=3).map(tuple),
    VERSIONS,
    st.none() | DECISIONS,
    st.lists(SEATS, max_size=3).map(tuple),
)


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
