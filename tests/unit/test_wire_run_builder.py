"""Packets built by tables are those built by computing."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.units import PSN_MASK
from inaproto.wire.roce import RocePacket
from inaproto.wire.run_builder import IDS, IP_CHECKSUMS, RunBuilder, folded
from inaproto.wire.vector import FlowTemplate

FLOW = FlowTemplate(
    src_mac=bytes.fromhex("020000000001"),
    dst_mac=bytes.fromhex("020000000002"),
    src_ip=bytes([10, 0, 0, 1]),
    dst_ip=bytes([10, 0, 0, 2]),
    udp_source_port=0xC123,
    dest_qp=0x77,
    tos=0x68,
)


@pytest.mark.parametrize("payload_bytes", [4, 256, 1024, 4096])
@pytest.mark.parametrize("opcode", [1, 7])
@pytest.mark.parametrize(
    ("psn", "ip_id"),
    [(0, 0), (5, 0xFFFF - 19), (0xFFFF - 19, 7), (PSN_MASK - 19, 0x1234), (0xABCDEF, 0xFF00)],
)
def test_a_run_is_what_the_flow_builds(payload_bytes: int, opcode: int, psn: int, ip_id: int) -> None:
    payload = np.random.default_rng(psn).integers(0, 256, (20, payload_bytes), dtype=np.uint8)
    asks = np.zeros(20, np.bool_)
    asks[[3, 19]] = True
    frames = RunBuilder(FLOW, opcode, payload_bytes).build(
        psn=psn, asking=[3, 19], ip_id=ip_id, payload=payload
    )
    psns = psn + np.arange(20)
    expected = FLOW.build(opcode=opcode, psns=psns, ack_request=asks, ip_id=ip_id, payload=payload)
    assert frames is not None
    assert frames.tobytes() == expected.tobytes()
    for row in frames:
        RocePacket.decode_frame(row.tobytes(), verify=True)


@pytest.mark.parametrize(("psn", "ip_id"), [(0xFFFF - 18, 0), (0, 0xFFFF - 18), (PSN_MASK - 18, 0)])
def test_what_wraps_is_left_to_the_flow(psn: int, ip_id: int) -> None:
    payload = np.zeros((20, 64), np.uint8)
    assert RunBuilder(FLOW, 7, 64).build(psn=psn, asking=(), ip_id=ip_id, payload=payload) is None


def test_a_run_does_not_remember_the_one_before() -> None:
    builder = RunBuilder(FLOW, 7, 64)
    payload = np.ones((3, 64), np.uint8)
    first = builder.build(psn=1, asking=[0, 1, 2], ip_id=1, payload=payload)
    second = builder.build(psn=1, asking=[], ip_id=1, payload=payload)
    assert first is not None
    assert second is not None
    assert (first[:, 50] == 0x80).all()
    assert (second[:, 50] == 0).all()


def test_checksums_by_the_folded_sum() -> None:
    for base in (1, 0x4500, 0xFFFE, 0xFFFF):
        for ident in (0, 1, 0x1234, 0xFFFF):
            total = base + ident
            while total > 0xFFFF:
                total = (total & 0xFFFF) + (total >> 16)
            assert IP_CHECKSUMS[base + ident] == ~total & 0xFFFF
            assert IDS[ident] == ident


def test_folded_sums() -> None:
    assert folded([]) == 0
    assert folded([0xFFFF]) == 0xFFFF
    assert folded([0xFFFF, 0xFFFF]) == 0xFFFF
    assert folded([0xFFFF, 1]) == 1
    assert folded([0x8000, 0x8001]) == 2
