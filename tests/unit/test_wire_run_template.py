"""Templates recognise the packets of their flow: they answer what decoding says, and nothing else matches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.units import PSN_MASK, Frames
from inaproto.wire.icrc import seal
from inaproto.wire.roce import Opcode
from inaproto.wire.run_template import RunTemplate
from inaproto.wire.vector import FlowTemplate, RoceRun, decode_runs

FLOW = FlowTemplate(
    b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2", b"\xc0\xa8\0\1", b"\xc0\xa8\0\2", 0xC123, 0xABCDEF
)


def frames_of(
    psn: int,
    asks: list[bool],
    *,
    ip_id: int = 0xFFFE,
    nbytes: int = 6,
    opcode: int = Opcode.RC_WRITE_MIDDLE,
    flow: FlowTemplate = FLOW,
) -> Frames:
    n = len(asks)
    payload = np.arange(n * nbytes, dtype=np.uint8).reshape(n, nbytes)
    psns = (psn + np.arange(n)) & PSN_MASK
    return flow.build(opcode=opcode, psns=psns, ack_request=np.array(asks), ip_id=ip_id, payload=payload)


def decoded(frames: Frames) -> RoceRun:
    (run,) = decode_runs(frames)
    assert isinstance(run, RoceRun)
    return run


def template(**changes: Any) -> RunTemplate:
    return RunTemplate(decoded(frames_of(0x123456, [True, False], **changes)))


def assert_matches(made: RunTemplate, frames: Frames) -> None:
    run = decoded(frames)
    assert run.intact()
    matched = made.match(frames)
    assert matched is not None
    first, share, headers = matched
    assert first == int(run.psn[0])
    assert share.dtype == np.uint32
    assert np.array_equal(share, run.header_crc)
    assert np.array_equal(headers[:, :54], frames[:, :54])
    assert headers.flags.c_contiguous


@given(
    st.integers(0, PSN_MASK),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.integers(0, 0xFFFF),
    st.sampled_from([0, 1, 4, 7, 64]),
)
def test_a_match_is_what_decoding_says(psn: int, asks: list[bool], ip_id: int, nbytes: int) -> None:
    made = template(nbytes=nbytes)
    frames = frames_of(psn, asks, ip_id=ip_id, nbytes=nbytes)
    if (psn & 0xFFFF) + len(asks) > 0x1_0000:
        assert made.match(frames) is None, "the low half of the PSN wraps: left to the decoder"
    else:
        assert_matches(made, frames)


@pytest.mark.parametrize("psn", [0, 0xFFFC, 0x00FF_0000, 0x12_FFFD, 0xFF_FFFD, 0x80_0000])
def test_runs_at_the_edges_of_the_psn(psn: int) -> None:
    made = template()
    room = 0x1_0000 - (psn & 0xFFFF)
    for n in (1, 2, min(room, 3)):
        assert_matches(made, frames_of(psn, [True] * n))
    if room < 5:
        assert made.match(frames_of(psn, [False] * (room + 1))) is None


def test_runs_of_changing_length_are_matched_by_one_template() -> None:
    made = template()
    for n in (1, 3, 3, 2, 1, 5):
        assert_matches(made, frames_of(0x20_0000 + n, [False] * n))


def test_an_answer_survives_what_becomes_of_the_frames() -> None:
    """Headers are a copy: the frames lie in a buffer that is used again."""
    made = template()
    frames = frames_of(9, [False, True])
    before = frames.copy()
    matched = made.match(frames)
    assert matched is not None
    frames[:] = 0
    assert np.array_equal(matched[2][:, :54], before[:, :54])


VARYING = {18, 19, 24, 25, 50, 51, 52, 53}
"""Columns in which packets of one flow differ: IP id, IP checksum, PSN with AckReq."""


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("column", [column for column in range(54) if column not in VARYING])
def test_any_other_header_byte_that_differs_is_no_match(row: int, column: int) -> None:
    made = template()
    frames = frames_of(7, [False] * 3).copy()
    for bit in (0, 7):
        frames[row, column] ^= 1 << bit
        assert made.match(frames) is None
        frames[row, column] ^= 1 << bit
    assert made.match(frames) is not None


@pytest.mark.parametrize("column", [50, 51, 52, 53])
@pytest.mark.parametrize("bit", range(8))
def test_psns_that_are_not_consecutive_are_no_match(column: int, bit: int) -> None:
    made = template()
    frames = frames_of(7, [False] * 3).copy()
    frames[1, column] ^= 1 << bit
    is_ack_request = column == 50 and bit == 7
    assert (made.match(frames) is not None) is is_ack_request


@pytest.mark.parametrize("bit", range(7))
def test_reserved_bits_beside_ack_request_are_no_match(bit: int) -> None:
    made = template()
    frames = frames_of(7, [True]).copy()
    frames[0, 50] ^= 1 << bit
    assert made.match(frames) is None


@given(st.integers(0, 0xFFFF), st.sampled_from([24, 25]))
def test_ip_ids_and_checksums_may_be_anything(ip_id: int, column: int) -> None:
    """A router rewrites the checksum, and the ICRC does not cover it."""
    made = template()
    frames = frames_of(7, [False] * 2, ip_id=ip_id).copy()
    frames[1, column] ^= 0xFF
    assert_matches(made, frames)


def test_ip_ids_that_do_not_count_up_are_covered_too() -> None:
    frames = frames_of(7, [False, True, False]).copy()
    for row, ip_id in enumerate((0xABCD, 0x0001, 0x8000)):
        frames[row, 18:20] = np.frombuffer(ip_id.to_bytes(2, "big"), np.uint8)
        whole = bytearray(frames[row].tobytes())
        seal(whole)
        frames[row] = np.frombuffer(whole, np.uint8)
    assert_matches(template(), frames)


def test_packets_of_another_length_or_opcode_or_flow_are_no_match() -> None:
    made = template()
    assert made.match(frames_of(7, [False], nbytes=8)) is None, "as long, but with another pad"
    assert made.match(frames_of(7, [False], nbytes=9)) is None
    assert made.match(frames_of(7, [False], opcode=Opcode.RC_WRITE_LAST)) is None
    other = FlowTemplate(FLOW.src_mac, FLOW.dst_mac, FLOW.src_ip, FLOW.dst_ip, 0xC123, 0xABCDEE)
    assert made.match(frames_of(7, [False], flow=other)) is None


def test_a_template_knows_its_addresses() -> None:
    made = template()
    assert (made.src_mac, made.dst_mac) == (FLOW.src_mac, FLOW.dst_mac)
