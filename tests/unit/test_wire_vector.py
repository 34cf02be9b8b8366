"""Vectors of packets against the scalar codec: both decode the same and build the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import DecodeError
from inaproto.units import PSN_MASK, Frames
from inaproto.wire import icrc
from inaproto.wire.roce import (
    Aeth,
    Bth,
    Imm,
    Opcode,
    Reth,
    RocePacket,
    extension_bytes,
)
from inaproto.wire.vector import FlowTemplate, PlainRun, RoceRun, decode_runs
from tests.unit.test_wire_roce import NOT_PACKETS
from tests.unit.wire_strategies import (
    CAPTURED_ACK,
    CAPTURED_NAK,
    has_imm,
    has_reth,
    ips,
    macs,
    packets,
    u,
)


def block(frames: list[bytes]) -> Frames:
    return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), len(frames[0]))


def strided(frames: Frames) -> Frames:
    """The same frames as a receive buffer holds them, with length prefixes between."""
    n, nbytes = frames.shape
    buffer = np.full((n, nbytes + 4), 0xA5, np.uint8)
    buffer[:, 4:] = frames
    return buffer[:, 4:]


def scalar(frame: bytes) -> RocePacket | None:
    try:
        return RocePacket.decode_frame(frame)
    except DecodeError:
        return None


def assert_rows_equal_scalar(run: RoceRun) -> None:
    """Every row of the run is what the scalar codec makes of it, field by field."""
    intact = run.intact()
    verified = run.verify()
    assert intact == verified.all()
    payload = run.payload()
    stored = run.icrc
    for row in range(len(run.frames)):
        frame = run.frames[row].tobytes()
        packet = RocePacket.decode_frame(frame)
        assert run.opcode == packet.opcode
        assert run.header_bytes == 54 + extension_bytes(packet.opcode)
        assert run.payload_bytes == len(packet.payload)
        assert run.pad == packet.pad
        assert run.dest_qp == packet.bth.dest_qp
        assert (run.src_ip, run.dst_ip) == (packet.ip.src, packet.ip.dst)
        assert (run.src_mac, run.dst_mac) == (packet.eth.src, packet.eth.dst)
        assert int(run.psn[row]) == packet.bth.psn
        assert bool(run.ack_request[row]) == packet.bth.ack_request
        assert payload[row].tobytes() == packet.payload
        assert int(stored[row]) == packet.icrc
        assert bool(verified[row]) == icrc.verify(frame)
        reth = packet.reth
        assert run.reth == (None if reth is None else (reth.va, reth.rkey, reth.dma_length))
        assert run.imm == (None if packet.imm is None else packet.imm.value)
        aeth = packet.aeth
        assert run.aeth == (None if aeth is None else (aeth.syndrome, aeth.msn))
    every_other = np.arange(len(run.frames)) % 2 == 0
    picked = run.select(every_other)
    assert np.array_equal(picked.frames, run.frames[every_other])
    assert np.array_equal(picked.psn, run.psn[every_other])
    assert np.array_equal(picked.ack_request, run.ack_request[every_other])
    assert np.array_equal(picked.verify(), verified[every_other])


def assert_decodes_as_scalar(frames: Frames) -> None:
    at = 0
    for run in decode_runs(frames):
        n = len(run.frames)
        assert n > 0
        assert np.array_equal(run.frames, frames[at : at + n])
        if isinstance(run, RoceRun):
            assert_rows_equal_scalar(run)
        else:
            assert isinstance(run, PlainRun)
            assert run.why
            for frame in run.frames:
                assert scalar(frame.tobytes()) is None
                assert frame[:6].tobytes() == run.dst_mac or len(frame) < 14
                assert frame[6:12].tobytes() == run.src_mac or len(frame) < 14
        at += n
    assert at == len(frames)


@st.composite
def mixtures(draw: st.DrawFn) -> Frames:
    """Frames of one length: flights of few flows, with rows corrupted, replaced by garbage, or mislaid."""
    template = draw(packets(payload_bytes_max=40))
    frames = [template.encode_frame()]
    nbytes = len(frames[0])
    for _ in range(draw(st.integers(0, 7))):
        kind = draw(st.sampled_from(("next", "next", "bits", "header", "garbage", "again")))
        frame = bytearray(frames[draw(st.integers(0, len(frames) - 1))])
        if kind == "next":
            frame[50:54] = draw(u(32)).to_bytes(4, "big")
            frame[18:20] = draw(u(16)).to_bytes(2, "big")
            if draw(st.booleans()) and scalar(bytes(frame)) is not None:
                icrc.seal(frame)
        elif kind == "bits":
            frame[draw(st.integers(0, nbytes - 1))] ^= 1 << draw(u(3))
        elif kind == "header":
            frame[draw(st.integers(12, min(nbytes, 74) - 1))] = draw(u(8))
        elif kind == "garbage":
            frame = bytearray(draw(st.binary(min_size=nbytes, max_size=nbytes)))
        frames.append(bytes(frame))
    return block(frames)


@given(mixtures(), st.booleans(), st.integers(0, 9))
def test_mixtures_decode_as_the_scalar_codec_does(frames: Frames, prefixed: bool, cut: int) -> None:
    if prefixed:
        frames = strided(frames)
    if cut:
        frames = frames[:, : max(0, frames.shape[1] - cut)]
    assert_decodes_as_scalar(frames)


@pytest.mark.parametrize(("frame", "reason"), NOT_PACKETS)
def test_what_is_no_packet(frame: bytes, reason: str) -> None:
    assert_decodes_as_scalar(block([frame, frame]))
    (run,) = decode_runs(block([frame]))
    assert isinstance(run, PlainRun), reason


@given(st.integers(0, 80), st.integers(0, 5), st.data())
def test_garbage_of_every_length(nbytes: int, n: int, data: st.DataObject) -> None:
    frames = block([data.draw(st.binary(min_size=nbytes, max_size=nbytes)) for _ in range(n)] or [b""])
    assert_decodes_as_scalar(frames if n else np.empty((0, nbytes), np.uint8))


@st.composite
def ethernet_padded(draw: st.DrawFn) -> Frames:
    packet = draw(packets(payload_bytes_max=20))
    return block([packet.encode_frame() + bytes(draw(st.integers(0, 30)))] * draw(st.integers(1, 3)))


@given(ethernet_padded())
def test_ethernet_padding(frames: Frames) -> None:
    assert_decodes_as_scalar(frames)


@st.composite
def flights(draw: st.DrawFn) -> tuple[FlowTemplate, dict[str, object], list[RocePacket]]:
    """Arguments of ``FlowTemplate.build``, and the same packets as records."""
    flow = FlowTemplate(
        src_mac=draw(macs),
        dst_mac=draw(macs),
        src_ip=draw(ips),
        dst_ip=draw(ips),
        udp_source_port=draw(u(16)),
        dest_qp=draw(u(24)),
        ttl=draw(st.sampled_from((1, 64, 255))),
        tos=draw(st.sampled_from((0, 104, 255))),
    )
    opcode = draw(st.sampled_from(Opcode))
    n = draw(st.integers(1, 6))
    nbytes = 0 if opcode == Opcode.RC_ACK else draw(st.integers(0, 50))
    payloads = [draw(st.binary(min_size=nbytes, max_size=nbytes)) for _ in range(n)]
    first_psn = draw(st.one_of(u(24), st.just(PSN_MASK)))
    ack_request = [draw(st.booleans()) for _ in range(n)]
    ip_id = draw(st.one_of(u(16), st.just(0xFFFF)))
    reth = (draw(u(64)), draw(u(32)), draw(u(32))) if has_reth(opcode) else None
    imm = draw(u(32)) if has_imm(opcode) else None
    aeth = (draw(u(8)), draw(u(24))) if opcode == Opcode.RC_ACK else None
    arguments: dict[str, object] = {
        "opcode": int(opcode),
        "psns": np.arange(first_psn, first_psn + n, dtype=np.int64),
        "ack_request": np.array(ack_request, np.bool_),
        "ip_id": ip_id,
        "payload": np.frombuffer(b"".join(payloads), np.uint8).reshape(n, nbytes),
        "reth": reth,
        "imm": imm,
        "aeth": aeth,
    }
    records = [
        RocePacket.build(
            src_mac=flow.src_mac,
            dst_mac=flow.dst_mac,
            src_ip=flow.src_ip,
            dst_ip=flow.dst_ip,
            udp_source_port=flow.udp_source_port,
            ttl=flow.ttl,
            ip_id=(ip_id + row) & 0xFFFF,
            bth=Bth(
                opcode=opcode,
                dest_qp=flow.dest_qp,
                psn=(first_psn + row) & PSN_MASK,
                ack_request=ack_request[row],
            ),
            reth=None if reth is None else Reth(va=reth[0], rkey=reth[1], dma_length=reth[2]),
            imm=None if imm is None else Imm(imm),
            aeth=None if aeth is None else Aeth(syndrome=aeth[0], msn=aeth[1]),
            payload=payloads[row],
        )
        for row in range(n)
    ]
    # The ICRC does not cover it, the IP checksum does.
    return flow, arguments, [replace(one, ip=replace(one.ip, tos=flow.tos)) for one in records]


@given(flights())
def test_vectors_are_built_as_the_scalar_codec_does(
    flight: tuple[FlowTemplate, dict[str, object], list[RocePacket]],
) -> None:
    flow, arguments, records = flight
    built = flow.build(**arguments)  # type: ignore[arg-type]
    assert [frame.tobytes() for frame in built] == [record.encode_frame() for record in records]
    runs = list(decode_runs(built))
    assert len(runs) == 1
    assert isinstance(runs[0], RoceRun)
    assert runs[0].verify().all()
    assert_rows_equal_scalar(runs[0])


def long_flight(n: int, payload_bytes: int) -> Frames:
    flow = FlowTemplate(
        src_mac=b"\x52\x54\0\0\0\1",
        dst_mac=b"\x52\x54\0\0\0\2",
        src_ip=b"\x0a\0\0\1",
        dst_ip=b"\x0a\0\0\2",
        udp_source_port=0xC123,
        dest_qp=0x11,
    )
    generator = np.random.default_rng(7)
    return flow.build(
        opcode=Opcode.RC_WRITE_MIDDLE,
        psns=np.arange(PSN_MASK - 50, PSN_MASK - 50 + n),
        ack_request=np.arange(n) % 66 == 65,
        ip_id=0xFFF0,
        payload=generator.integers(0, 256, (n, payload_bytes), np.uint8),
    )


def test_a_long_flight_is_one_run_across_the_psn_wrap() -> None:
    frames = strided(long_flight(170, 1024))
    (run,) = decode_runs(frames)
    assert isinstance(run, RoceRun)
    assert run.verify().all()
    assert run.psn[50:53].tolist() == [PSN_MASK, 0, 1]
    assert_rows_equal_scalar(run)


@pytest.mark.parametrize("row", [0, 1, 85, 168, 169])
def test_one_corrupted_packet_is_found(row: int) -> None:
    frames = long_flight(170, 256)
    frames[row, 100] ^= 4
    (run,) = decode_runs(frames)
    assert isinstance(run, RoceRun)
    assert np.flatnonzero(~run.verify()).tolist() == [row]


def test_a_selection_verifies_alike_whether_the_run_was_verified_before() -> None:
    frames = long_flight(9, 40)
    frames[4, 60] ^= 1
    wanted = np.arange(9) >= 3
    for verify_first in (True, False):
        (run,) = only_roce(frames)
        if verify_first:
            run.verify()
        assert run.select(wanted).verify().tolist() == [True, False, True, True, True, True]
        assert not run.intact()


def test_flows_of_one_length_are_kept_apart() -> None:
    frames = long_flight(6, 64)
    frames[2:4, 49] = 0x12
    frames[5, 42] = Opcode.RC_WRITE_LAST
    assert [len(run.frames) for run in decode_runs(frames)] == [2, 2, 1, 1]
    assert_decodes_as_scalar(frames)


def test_extension_headers_split_a_run() -> None:
    frames = block([CAPTURED_ACK, CAPTURED_ACK, CAPTURED_ACK[:54] + CAPTURED_NAK[54:]])
    runs = list(only_roce(frames))
    assert [len(run.frames) for run in runs] == [2, 1]
    assert [run.aeth for run in runs] == [(0x1F, 1), (0x60, 0)]
    assert_decodes_as_scalar(frames)


def test_flows_with_extension_headers_are_kept_apart() -> None:
    other_flow = CAPTURED_ACK[:49] + b"\x22" + CAPTURED_ACK[50:]
    frames = block([CAPTURED_ACK, CAPTURED_ACK, other_flow, other_flow[:54] + CAPTURED_NAK[54:], other_flow])
    runs = list(only_roce(frames))
    assert [len(run.frames) for run in runs] == [2, 1, 1, 1]
    assert [run.dest_qp for run in runs] == [0x11, 0x22, 0x22, 0x22]
    assert_decodes_as_scalar(frames)


def test_the_captured_ack_is_built() -> None:
    packet = RocePacket.decode_frame(CAPTURED_ACK)
    flow = FlowTemplate(
        packet.eth.src,
        packet.eth.dst,
        packet.ip.src,
        packet.ip.dst,
        udp_source_port=packet.udp.src_port,
        dest_qp=packet.bth.dest_qp,
    )
    built = flow.build(
        opcode=Opcode.RC_ACK,
        psns=np.array([packet.bth.psn]),
        ack_request=np.array([False]),
        ip_id=packet.ip.identification,
        payload=np.empty((1, 0), np.uint8),
        aeth=(0x1F, 1),
    )
    assert built.tobytes() == CAPTURED_ACK


def only_roce(frames: Frames) -> Iterator[RoceRun]:
    for run in decode_runs(frames):
        assert isinstance(run, RoceRun)
        yield run
