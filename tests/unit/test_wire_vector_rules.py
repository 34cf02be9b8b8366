"""Vectors of packets, by hand: why a frame is plain, headers of a flow, rows parted by their extensions."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from inaproto.wire.icrc import seal
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.roce import Aeth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.vector import FlowTemplate, PlainRun, RoceRun, decode_runs
from tests.unit.test_wire_vector import block

FLOW = FlowTemplate(
    b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2", b"\xc0\xa8\0\1", b"\xc0\xa8\0\2", 0xC123, 0xABCDEF
)


def frame(
    psn: int = 7, *, nbytes: int = 0, opcode: int = Opcode.RC_WRITE_MIDDLE, ip_id: int = 0, va: int = 0
) -> bytes:
    reth = (va, 3, 4) if opcode in {Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY} else None
    (row,) = FLOW.build(
        opcode=opcode,
        psns=np.array([psn]),
        ack_request=np.array([True]),
        ip_id=ip_id,
        payload=np.ones((1, nbytes), np.uint8),
        reth=reth,
    )
    return bytes(row)


def put(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


SHORT = "too short for RoCEv2, or IP options"
LENGTHS = "IP or UDP length does not fit the frame"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (put(frame(), 12, b"\x86\xdd"), "not IPv4"),
        (frame()[:57], SHORT),
        (put(frame(), 14, b"\x46"), SHORT),
        (put(frame(), 23, b"\6"), "not UDP, or a fragment"),
        (put(frame(), 20, b"\x20\0"), "not UDP, or a fragment"),
        (put(frame(), 20, b"\0\1"), "not UDP, or a fragment"),
        (put(frame(), 36, b"\x12\xb8"), "not the RoCEv2 port"),
        (put(frame(), 16, b"\0\x2d"), LENGTHS),
        (put(frame(), 38, b"\0\x19"), LENGTHS),
        (put(put(frame(nbytes=4), 16, b"\0\x2b"), 38, b"\0\x17"), LENGTHS),
        (put(frame(), 42, b"\x0c"), "opcode 0x0c is not handled"),
        (put(frame(), 43, b"\x10"), "shorter than its extension headers and pad"),
        (put(frame(), 42, b"\x11"), "shorter than its extension headers and pad"),
    ],
)
def test_why_a_frame_is_plain(data: bytes, why: str) -> None:
    for frames in (block([data]), block([data, data])):
        [run] = decode_runs(frames)
        assert isinstance(run, PlainRun)
        assert (run.why, run.dst_mac, run.src_mac) == (why, FLOW.dst_mac, FLOW.src_mac)


def test_the_shortest_frames() -> None:
    [run] = decode_runs(block([b"1234567890123", b"1234567890123"]))
    assert isinstance(run, PlainRun)
    assert (run.why, run.dst_mac, run.src_mac) == ("13 bytes are no Ethernet frame", b"", b"")
    [run] = decode_runs(block([b"12345678901234"]))
    assert isinstance(run, PlainRun)
    assert (run.why, run.dst_mac, run.src_mac) == ("not IPv4", b"123456", b"789012")
    [packet] = decode_runs(block([frame()]))
    assert isinstance(packet, RoceRun)
    assert list(decode_runs(np.zeros((0, 60), np.uint8))) == []


def test_headers_of_a_flow_leave_room_for_what_differs() -> None:
    header = FLOW.header(Opcode.RC_WRITE_MIDDLE, 5)
    assert (header[18:20], header[24:26], header[50:54]) == (b"\0\0", b"\0\0", b"\0\0\0\0")
    assert int.from_bytes(header[16:18], "big") == 20 + 8 + 12 + 8 + 4
    assert int.from_bytes(header[38:40], "big") == 8 + 12 + 8 + 4
    assert header[43] >> 4 == 3


def test_the_largest_values_of_every_extension() -> None:
    for opcode, reth, imm, aeth in (
        (Opcode.RC_WRITE_ONLY_IMM, ((1 << 64) - 1, (1 << 32) - 1, (1 << 32) - 2), (1 << 32) - 3, None),
        (Opcode.RC_ACK, None, None, (0xFF, 0xFF_FFFE)),
    ):
        frames = FLOW.build(
            opcode=opcode,
            psns=np.array([1, 2]),
            ack_request=np.array([False, False]),
            ip_id=0,
            payload=np.zeros((2, 0), np.uint8),
            reth=reth,
            imm=imm,
            aeth=aeth,
        )
        [run] = decode_runs(frames)
        assert isinstance(run, RoceRun)
        assert (run.reth, run.imm, run.aeth) == (reth, imm, aeth)
        record = RocePacket.decode_frame(frames[1].tobytes(), verify=True)
        assert record.reth == (None if reth is None else Reth(va=reth[0], rkey=reth[1], dma_length=reth[2]))
        assert record.imm == (None if imm is None else Imm(imm))
        assert record.aeth == (None if aeth is None else Aeth(syndrome=aeth[0], msn=aeth[1]))


def test_ip_checksums_whose_carry_carries() -> None:
    plain = put(frame()[14:34], 10, bytes(2))
    words = sum(int.from_bytes(plain[at : at + 2], "big") for at in range(0, 20, 2))
    twice = (0xFFFF - words) & 0xFFFF
    assert words + twice > 0xFFFF
    for ip_id in (twice - 1, twice, twice + 1):
        assert internet_checksum(frame(ip_id=ip_id)[14:34]) == 0


def runs_of(*frames: bytes) -> list[tuple[int, int, tuple[int, int, int] | None]]:
    """(rows, first PSN, RETH) of each run."""
    found = []
    for run in decode_runs(block(list(frames))):
        assert isinstance(run, RoceRun)
        assert run.verify().all()
        found.append((len(run.frames), int(run.psn[0]), run.reth))
    return found


def test_rows_that_only_their_extensions_part() -> None:
    """Alone, and as a part of a block with other packets."""
    only = [frame(psn, opcode=Opcode.RC_WRITE_ONLY, nbytes=4, va=psn // 3) for psn in (6, 7, 9)]
    middle = frame(20, nbytes=20)
    assert len(middle) == len(only[0])
    parted = [(2, 6, (2, 3, 4)), (1, 9, (3, 3, 4))]
    assert runs_of(*only) == parted
    assert runs_of(middle, *only, middle) == [(1, 20, None), *parted, (1, 20, None)]
    assert runs_of(middle, *only[1:]) == [(1, 20, None), (1, 7, (2, 3, 4)), (1, 9, (3, 3, 4))]
    assert runs_of(*only[1:], middle) == [(1, 7, (2, 3, 4)), (1, 9, (3, 3, 4)), (1, 20, None)]


def test_headers_are_seen_with_and_without_a_copy_of_them() -> None:
    frames = block([frame(psn, nbytes=8) for psn in (1, 2, 3)])
    [run] = decode_runs(frames)
    assert isinstance(run, RoceRun)
    assert run.headers is not None
    assert run.headers_view is run.headers
    chosen = run.select(np.array([True, False, True]))
    assert chosen.headers is None
    assert chosen.headers_view is chosen.frames
    for view in (run.headers_view[[0, 2]], chosen.headers_view):
        assert np.array_equal(view[:, :54], frames[[0, 2], :54])
    assert chosen.psn.tolist() == [1, 3]
    assert chosen.verify().tolist() == [True, True]


def test_lengths_of_more_than_fifteen_bits() -> None:
    """No port carries such frames, but a length is a number without sign."""
    data = frame(nbytes=40_000)
    [run] = decode_runs(block([data]))
    assert isinstance(run, RoceRun)
    assert run.payload_bytes == 40_000
    assert run.intact()


def test_checksums_are_words_of_32_bits() -> None:
    """Whatever way they were found: alone, by rows that differ, by rows that do not."""
    for frames in (
        block([frame(psn=1, nbytes=8)]),
        block([frame(psn=psn, nbytes=8) for psn in (1, 2, 3)]),
        block([frame(psn=1, nbytes=8)] * 3),
    ):
        [run] = decode_runs(frames)
        assert isinstance(run, RoceRun)
        assert run.intact()
        assert run.header_crc.dtype == run.icrc.dtype == np.uint32
        assert run.header_crc.shape == (len(frames),)


def test_connections_that_alternate_are_runs_one_after_the_other() -> None:
    """In the order of their first packets, and each in its own; a byte that routers may change parts none."""
    flows = [
        FLOW,
        replace(FLOW, dest_qp=0xABCDEE),
        replace(FLOW, src_ip=b"\xc1" + FLOW.src_ip[1:]),
        replace(FLOW, dst_ip=FLOW.dst_ip[:3] + b"\3"),
    ]
    rng = Random("alternating")
    turns = [rng.randrange(4) for _ in range(400)]
    rows = []
    for psn, turn in enumerate(turns):
        payload = np.full((1, 64), turn, np.uint8)
        asks = np.array([False])
        (row,) = flows[turn].build(
            opcode=7, psns=np.array([psn]), ack_request=asks, ip_id=psn, payload=payload
        )
        row[46] = rng.randrange(2)
        rows.append(row.tobytes())
    found = list(decode_runs(block(rows), by_connection=True))
    assert all(isinstance(run, RoceRun) for run in found)
    runs = [run for run in found if isinstance(run, RoceRun)]
    order = list(dict.fromkeys(turns))
    assert [(run.dest_qp, run.src_ip, run.dst_ip) for run in runs] == [
        (flows[turn].dest_qp, flows[turn].src_ip, flows[turn].dst_ip) for turn in order
    ]
    for run, turn in zip(runs, order, strict=True):
        assert run.psn.tolist() == [psn for psn, other in enumerate(turns) if other == turn]
        assert (run.payload() == turn).all()
        assert run.verify().all()


@pytest.mark.parametrize(
    ("column", "bits", "by_connection"),
    [
        (6, 0x20, 1),
        (11, 0x01, 1),
        (20, 0x40, 1),
        (43, 0xCF, 1),
        (44, 0x80, 1),
        (45, 0x01, 1),
        (5, 0x01, 3),
        (20, 0x20, 3),
        (42, 0x02, 3),
        (43, 0x10, 3),
        (49, 0x01, 2),
    ],
)
def test_what_no_receiver_looks_at_parts_flows_and_no_connections(
    column: int, bits: int, by_connection: int
) -> None:
    rows = [bytearray(frame(psn, nbytes=8)) for psn in range(3)]
    rows[1][column] ^= bits
    for row in rows:
        seal(row)
    together = block([bytes(row) for row in rows])
    assert len(list(decode_runs(together))) == 3
    runs = list(decode_runs(together, by_connection=True))
    assert len(runs) == by_connection
    if by_connection == 1:
        (run,) = runs
        assert isinstance(run, RoceRun)
        assert run.psn.tolist() == [0, 1, 2]
        assert run.verify().all()
