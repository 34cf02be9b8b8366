"""The header of host messages: golden bytes, round trip, every refusal; neither is taken for the other."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.host_header import HOST_HEADER_BYTES, HOST_MAGIC, HostHeader, Kind
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, InaHeader
from tests.unit.test_wire_ina_header import HEADER as FIELDS
from tests.unit.wire_strategies import ina_headers

HEADER = HostHeader(Kind.ACCUMULATOR, FIELDS)
GOLDEN = bytes.fromhex("494e4148010301110102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20")


def test_golden_bytes() -> None:
    assert len(GOLDEN) == HOST_HEADER_BYTES
    assert HOST_MAGIC.to_bytes(4, "big") == b"INAH"
    assert HEADER.encode() == GOLDEN
    assert HostHeader.decode(GOLDEN) == HEADER
    assert HostHeader.decode(memoryview(GOLDEN + b"accumulators")) == HEADER
    assert replace(HEADER, kind=Kind.RESULT).encode()[FLAGS_OFFSET] == 0x21


def test_a_header_for_a_log_keeps_the_key_secret() -> None:
    assert str(HEADER) == f"accumulator of {FIELDS}"
    assert str(FIELDS.key) not in str(HEADER) + repr(HEADER)


@given(st.sampled_from(Kind), ina_headers())
def test_round_trip(kind: Kind, fields: InaHeader) -> None:
    header = HostHeader(kind, replace(fields, flags=fields.flags & ~FLAG_RESULT))
    assert HostHeader.decode(header.encode()) == header


@given(st.binary(max_size=48))
def test_only_decode_errors_escape_and_what_decodes_encodes_again(data: bytes) -> None:
    whole = (b"INAH\x01" + data)[:60]
    with contextlib.suppress(DecodeError):
        assert HostHeader.decode(whole).encode() == whole[:HOST_HEADER_BYTES]


def test_neither_header_is_taken_for_the_other() -> None:
    with pytest.raises(DecodeError, match="magic is 0x494e4148, not 0x494e4150"):
        InaHeader.decode(GOLDEN)
    with pytest.raises(
        DecodeError, match=r"^host header: magic is 0x494e4150, not 0x494e4148 \(at byte 0\)$"
    ):
        HostHeader.decode(FIELDS.encode())


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (FLAGS_OFFSET, 0x01, r"^host header: unknown kind 0 \(at byte 7\)$"),
        (FLAGS_OFFSET, 0x30, r"^host header: unknown kind 3 \(at byte 7\)$"),
        (FLAGS_OFFSET, 0x12, r"^host header: the flag RESULT is an accelerator's \(at byte 7\)$"),
        (FLAGS_OFFSET, 0x14, "unknown flags 0x04"),
        (4, 2, "version 2"),
        (5, 9, "unknown dtype 9"),
        (24, 0xFF, "rank 65298 in a ring"),
    ],
)
def test_headers_that_are_none(at: int, value: int, reason: str) -> None:
    data = bytearray(GOLDEN)
    data[at] = value
    with pytest.raises(DecodeError, match=reason):
        HostHeader.decode(data)


def test_too_few_bytes() -> None:
    with pytest.raises(DecodeError, match=r"^host header: 39 bytes, needs 40 \(at byte 39\)$"):
        HostHeader.decode(GOLDEN[:39])


def test_no_sender_says_that_its_payload_is_an_accelerator_s() -> None:
    marked = replace(FIELDS, flags=FLAG_RESULT)
    with pytest.raises(LocalMisuse, match=r"^host header: the flag RESULT is set by accelerators alone$"):
        HostHeader(Kind.RESULT, marked).encode()
