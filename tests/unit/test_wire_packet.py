"""Packets one at a time, held equal to vectors of packets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inaproto.units import Frames
from inaproto.wire import packet
from inaproto.wire.crc import copy_rows
from inaproto.wire.icrc import seal
from inaproto.wire.packet import ACK_BYTES, PacketBuilder, ack_key, decode_packet
from inaproto.wire.roce import Opcode, RocePacket
from inaproto.wire.run_builder import RunBuilder
from inaproto.wire.vector import FlowTemplate, PlainRun, RoceRun, decode_runs
from tests.unit.test_wire_vector import block, ethernet_padded, flights, mixtures
from tests.unit.wire_strategies import has_imm, has_reth


def assert_decodes_as_the_vector_does(frame: bytes) -> None:
    (run,) = decode_runs(block([frame]))
    packet = decode_packet(frame)
    if packet is None:
        padded = isinstance(run, RoceRun) and run.header_bytes + run.payload_bytes + run.pad + 4 < len(frame)
        assert padded or isinstance(run, PlainRun)
        return
    assert isinstance(run, RoceRun)
    for name in ("opcode", "dest_qp", "src_ip", "dst_ip", "src_mac", "dst_mac"):
        assert getattr(packet, name) == getattr(run, name)
    for name in ("header_bytes", "payload_bytes", "pad"):
        assert getattr(packet, name) == getattr(run, name)
    assert (packet.psn, packet.ack_request) == (run.psn[0], run.ack_request[0])
    assert packet.extensions() == (run.reth, run.imm, run.aeth)
    assert (bytes(packet.tail), bytes(packet.payload())) == (run.tail.tobytes(), run.payload().tobytes())
    assert packet.intact() == run.intact()
    assert packet.header_share() == (int(run.header_crc[0]) if run.intact() else None)


@given(st.one_of(mixtures(), ethernet_padded()), st.integers(0, 9))
def test_a_packet_decodes_as_a_vector_of_one(frames: Frames, cut: int) -> None:
    for row in frames[:, : max(1, frames.shape[1] - cut)]:
        assert_decodes_as_the_vector_does(row.tobytes())


@given(st.binary(min_size=ACK_BYTES, max_size=ACK_BYTES), st.integers(0, ACK_BYTES - 1))
def test_what_has_the_key_of_an_acknowledgement_is_one_between_the_same_two(other: bytes, at: int) -> None:
    flow = FlowTemplate(b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2", b"\x0a\0\0\1", b"\x0a\0\0\2", 0xC123, 0x11)
    (row,) = PacketBuilder(flow).build(
        opcode=Opcode.RC_ACK, psn=5, ack_requests=[False], ip_id=1, payload=b"", aeth=(0x1F, 5)
    )
    one = row.tobytes()
    assert len(one) == ACK_BYTES
    changed = one[:at] + other[at : at + 1] + one[at + 1 :]
    told, found = decode_packet(one), decode_packet(changed)
    assert told is not None
    if ack_key(changed) == ack_key(one):
        assert found is not None
        assert found._replace(data=one, psn=5, ack_request=False) == told


@given(st.integers(0, 4095), st.sampled_from(Opcode))
def test_a_changed_bit_of_a_right_packet_is_seen(bit: int, opcode: Opcode) -> None:
    flow = FlowTemplate(b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2", b"\x0a\0\0\1", b"\x0a\0\0\2", 0xC123, 0x11)
    extensions: dict[str, Any] = {
        "reth": (1, 2, 3) if has_reth(opcode) else None,
        "imm": 4 if has_imm(opcode) else None,
        "aeth": (0x1F, 5) if opcode == Opcode.RC_ACK else None,
    }
    (row,) = PacketBuilder(flow).build(
        opcode=opcode, psn=5, ack_requests=[True], ip_id=1, payload=b"abcd", **extensions
    )
    frame = bytearray(row)
    at = 14 + bit // 8 % (len(frame) - 14)
    frame[at] ^= 1 << bit % 8
    assert_decodes_as_the_vector_does(bytes(frame))


@given(flights())
def test_packets_are_built_as_the_vector_builds_them(
    flight: tuple[FlowTemplate, dict[str, Any], list[RocePacket]],
) -> None:
    flow, arguments, records = flight
    builder = PacketBuilder(flow)
    for _ in range(2):  # the second time from what the first one remembered
        built = builder.build(
            opcode=arguments["opcode"],
            psn=int(arguments["psns"][0]),
            ack_requests=arguments["ack_request"].tolist(),
            ip_id=arguments["ip_id"],
            payload=arguments["payload"].tobytes(),
            reth=arguments["reth"],
            imm=arguments["imm"],
            aeth=arguments["aeth"],
        )
        assert [row.tobytes() for row in built] == [record.encode_frame() for record in records]
        assert built.flags.writeable


def test_what_a_builder_remembers_is_bounded_and_stays_right() -> None:
    flow = FlowTemplate(b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2", b"\x0a\0\0\1", b"\x0a\0\0\2", 0xC123, 0x11)
    builder = PacketBuilder(flow)
    for nbytes in (*range(200), *range(200)):
        (row,) = builder.build(
            opcode=Opcode.RC_WRITE_LAST, psn=nbytes, ack_requests=[True], ip_id=7, payload=bytes(nbytes)
        )
        frame = bytearray(row)
        seal(frame)
        assert frame == row.tobytes()
        assert np.array_equal(
            row,
            flow.build(
                opcode=Opcode.RC_WRITE_LAST,
                psns=np.array([nbytes]),
                ack_request=np.array([True]),
                ip_id=7,
                payload=np.zeros((1, nbytes), np.uint8),
            )[0],
        )


FLOW = FlowTemplate(
    src_mac=bytes.fromhex("020000000001"),
    dst_mac=bytes.fromhex("020000000002"),
    src_ip=bytes([10, 0, 0, 1]),
    dst_ip=bytes([10, 0, 0, 2]),
    udp_source_port=0xC123,
    dest_qp=0x77,
)


@pytest.mark.parametrize("payload_bytes", [256, 253])
@pytest.mark.parametrize(("psn", "ip_id"), [(9, 8), (0xFFFE, 8), (9, 0xFFFE), (0xAB_0000, 0)])
@pytest.mark.parametrize("asking", [[], [0, 4]])
def test_a_run_is_what_the_flow_builds(payload_bytes: int, psn: int, ip_id: int, asking: list[int]) -> None:
    """With numbers that wrap and payloads that are padded among them."""
    builder = PacketBuilder(FLOW)
    payload = np.random.default_rng(psn).integers(0, 256, (5, payload_bytes), dtype=np.uint8)
    asks = np.isin(np.arange(5), asking)
    for opcode in (7, 1, 7):
        made = builder.build_run(opcode, psn=psn, asking=asking, ip_id=ip_id, payload=payload)
        psns = psn + np.arange(5)
        expected = FLOW.build(opcode=opcode, psns=psns, ack_request=asks, ip_id=ip_id, payload=payload)
        assert made.tobytes() == expected.tobytes()


def test_payloads_of_a_run_are_copied_as_the_builder_was_told() -> None:
    copied: list[tuple[int, ...]] = []

    def copy(source: Frames, target: Frames) -> NDArray[np.uint32]:
        copied.append(source.shape)
        return copy_rows(source, target)

    builder = PacketBuilder(FLOW, copy)
    payload = np.ones((3, 64), np.uint8)
    twin = PacketBuilder(FLOW).build_run(7, psn=0, asking=[], ip_id=0, payload=payload)
    assert builder.build_run(7, psn=0, asking=[], ip_id=0, payload=payload).tobytes() == twin.tobytes()
    assert copied == [(3, 64)]


def test_layouts_of_runs_are_kept_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []

    class Counting(RunBuilder):
        def __init__(self, flow: FlowTemplate, opcode: int, payload_bytes: int) -> None:
            made.append((opcode, payload_bytes))
            super().__init__(flow, opcode, payload_bytes)

    monkeypatch.setattr(packet, "RunBuilder", Counting)
    builder = PacketBuilder(FLOW)

    def build(payload_bytes: int) -> None:
        builder.build_run(7, psn=0, asking=[], ip_id=0, payload=np.zeros((1, payload_bytes), np.uint8))

    lengths = [4 * n for n in range(1, packet._LAYOUTS_MAX + 1)]
    for length in (*lengths, lengths[0]):
        build(length)
    assert made == [(7, length) for length in lengths]
    build(4000)
    build(lengths[0])
    assert made[-2:] == [(7, 4000), (7, lengths[0])]
