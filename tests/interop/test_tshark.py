"""tshark as an outside judge: it takes every kind of frame that we emit for well-formed RoCEv2.

tshark shows the ICRC but does not check it; scapy does (``test_scapy.py``). It has no dissector for
the INA header: what it takes for the data of a first packet is decoded by us. A failure prints what
tshark says of the frame.
"""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inaproto.wire.ethernet import mac_text
from inaproto.wire.ina_header import FLAG_LAST, Dtype, InaHeader, Op, signature
from inaproto.wire.ipv4 import ip_text
from inaproto.wire.roce import (
    SYNDROME_ACK,
    SYNDROME_NAK,
    SYNDROME_RNR,
    Aeth,
    Bth,
    Imm,
    NakCode,
    Opcode,
    Reth,
    RocePacket,
)
from inaproto.wire.vector import FlowTemplate
from tests.unit.wire_strategies import CAPTURED_ACK, CAPTURED_NAK, EMITTED, has_imm, has_reth

SRC_MAC, DST_MAC = bytes.fromhex("525400000001"), bytes.fromhex("525400000002")
SRC_IP, DST_IP = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
PSNS = count(0xFFFFF0)

INA_HEADER = InaHeader(
    dtype=Dtype.F32,
    op=Op.SUM,
    flags=FLAG_LAST,
    ring_id=1,
    epoch=0,
    op_index=7,
    msg_id=9,
    rank=0,
    ring_size=4,
    msg_len=3,
    signature=signature(Dtype.F32, Op.SUM, (650,)),
    key=0x0123456789ABCDEF,
)

FIELDS = (
    "frame.protocols",
    "_ws.malformed",
    "_ws.expert.message",
    "eth.src",
    "eth.dst",
    "ip.src",
    "ip.dst",
    "ip.id",
    "ip.checksum.status",
    "udp.dstport",
    "infiniband.bth.opcode",
    "infiniband.bth.padcnt",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.immdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.invariant.crc",
    "data.data",
)

build = partial(
    RocePacket.build, src_mac=SRC_MAC, dst_mac=DST_MAC, src_ip=SRC_IP, dst_ip=DST_IP, udp_source_port=0xC121
)


def data_packet(opcode: Opcode, payload: bytes, *, ack_request: bool = False) -> RocePacket:
    return build(
        bth=Bth(opcode=opcode, dest_qp=0x12, psn=next(PSNS) & 0xFFFFFF, ack_request=ack_request),
        reth=Reth(va=0x7F00_0000_1000, rkey=0xCAFE, dma_length=len(payload)) if has_reth(opcode) else None,
        imm=Imm(9) if has_imm(opcode) else None,
        payload=payload,
    )


def acknowledgement(syndrome: int) -> RocePacket:
    return build(
        bth=Bth(opcode=Opcode.RC_ACK, dest_qp=0x11, psn=next(PSNS) & 0xFFFFFF),
        aeth=Aeth(syndrome=syndrome, msn=0x010203),
    )


def emitted_frames() -> Iterator[bytes]:
    """All opcodes, pads 0 to 3, INA first packets, ACK, NAK and RNR NAK; scalar and vector encoder."""
    gradients = np.linspace(-1, 1, 256, dtype="<f4").tobytes()
    yield CAPTURED_ACK
    yield CAPTURED_NAK
    for opcode in EMITTED:
        if opcode != Opcode.RC_ACK:
            for less in range(4):
                yield data_packet(
                    opcode, gradients[less:], ack_request=has_imm(opcode) or less == 2
                ).encode_frame()
            yield data_packet(opcode, b"").encode_frame()
    for opcode in (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY_IMM):
        yield data_packet(opcode, INA_HEADER.encode() + gradients[:984]).encode_frame()
    for syndrome in (
        SYNDROME_ACK,
        SYNDROME_RNR | 14,
        *(SYNDROME_NAK | code for code in NakCode if code != NakCode.INVALID_RD_REQUEST),
    ):
        yield acknowledgement(syndrome).encode_frame()
    flow = FlowTemplate(SRC_MAC, DST_MAC, SRC_IP, DST_IP, udp_source_port=0xC121, dest_qp=0x12)
    for opcode in EMITTED:
        n = 3 if opcode == Opcode.RC_WRITE_MIDDLE else 1
        nbytes = 0 if opcode == Opcode.RC_ACK else 1024
        payload = np.frombuffer(gradients[:nbytes] * n, np.uint8).reshape(n, nbytes)
        for frame in flow.build(
            opcode=opcode,
            psns=np.array([next(PSNS) for _ in range(n)]),
            ack_request=np.zeros(n, np.bool_),
            ip_id=0xFFFF,
            payload=payload,
            reth=(1 << 40, 0xCAFE, 4096) if has_reth(opcode) else None,
            imm=9 if has_imm(opcode) else None,
            aeth=(SYNDROME_ACK, 3) if opcode == Opcode.RC_ACK else None,
        ):
            yield frame.tobytes()


def write_pcap(path: Path, frames: list[bytes]) -> None:
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for index, frame in enumerate(frames):
            file.write(struct.pack("<IIII", index, 0, len(frame), len(frame)) + frame)


Dissect = Callable[[list[bytes]], list[dict[str, list[str]]]]


@pytest.fixture
def dissect(program: Callable[[str], Path], runtime_dir: Path) -> Dissect:
    """What tshark makes of frames: the values of ``FIELDS`` that each has."""
    tshark = program("tshark")

    def run(frames: list[bytes]) -> list[dict[str, list[str]]]:
        capture = runtime_dir / "frames.pcap"
        write_pcap(capture, frames)
        command: list[str | Path] = [tshark, "-n", "-o", "ip.check_checksum:TRUE", "-T", "json"]
        for field in FIELDS:
            command += ["-e", field]
        done = subprocess.run(
            [*command, "-r", capture], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        dissected: list[dict[str, Any]] = json.loads(done.stdout)
        return [packet["_source"]["layers"] for packet in dissected]

    return run


def number(values: list[str]) -> int:
    (text,) = values
    if text in ("True", "False"):
        return text == "True"
    return int(text, 0)


def test_tshark_reads_what_we_write(dissect: Dissect) -> None:
    frames = list(emitted_frames())
    dissected = dissect(frames)
    assert len(dissected) == len(frames)
    for frame, seen in zip(frames, dissected, strict=True):
        packet = RocePacket.decode_frame(frame, verify=True)
        note = f"{packet}: tshark says {seen}"
        assert seen["frame.protocols"][0].startswith("eth:ethertype:ip:udp:infiniband"), note
        assert "_ws.malformed" not in seen, note
        assert "_ws.expert.message" not in seen, note
        assert (seen["eth.src"], seen["eth.dst"]) == ([mac_text(packet.eth.src)], [mac_text(packet.eth.dst)])
        assert (seen["ip.src"], seen["ip.dst"]) == ([ip_text(packet.ip.src)], [ip_text(packet.ip.dst)]), note
        assert number(seen["ip.id"]) == packet.ip.identification, note
        assert seen["ip.checksum.status"] in (["1"], ["Good"]), note
        assert number(seen["infiniband.bth.opcode"]) == packet.opcode, note
        assert number(seen["infiniband.bth.padcnt"]) == packet.pad, note
        assert number(seen["infiniband.bth.destqp"]) == packet.bth.dest_qp, note
        assert number(seen["infiniband.bth.a"]) == packet.bth.ack_request, note
        assert number(seen["infiniband.bth.psn"]) == packet.bth.psn, note
        assert number(seen["infiniband.invariant.crc"]) == int.from_bytes(frame[-4:], "big"), note
        assert_extensions(packet, seen, note)
        shown = seen.get("data.data", [""])[0].replace(":", "")
        assert shown.startswith(packet.payload.hex()), note
        assert len(shown) // 2 - len(packet.payload) in (0, packet.pad), note


def assert_extensions(packet: RocePacket, seen: dict[str, list[str]], note: str) -> None:
    assert ("infiniband.reth.va" in seen) == (packet.reth is not None), note
    if packet.reth is not None:
        assert number(seen["infiniband.reth.va"]) == packet.reth.va, note
        assert number(seen["infiniband.reth.r_key"]) == packet.reth.rkey, note
        assert number(seen["infiniband.reth.dmalen"]) == packet.reth.dma_length, note
    assert ("infiniband.immdt" in seen) == (packet.imm is not None), note
    if packet.imm is not None:
        assert int(seen["infiniband.immdt"][0].replace(":", ""), 16) == packet.imm.value, note
    assert ("infiniband.aeth.syndrome" in seen) == (packet.aeth is not None), note
    if packet.aeth is not None:
        assert number(seen["infiniband.aeth.syndrome"]) == packet.aeth.syndrome, note
        assert number(seen["infiniband.aeth.msn"]) == packet.aeth.msn, note


def test_an_ina_message_on_the_wire(dissect: Dissect) -> None:
    frame = data_packet(Opcode.RC_WRITE_FIRST, INA_HEADER.encode() + bytes(984)).encode_frame()
    (seen,) = dissect([frame])
    data = bytes.fromhex(seen["data.data"][0].replace(":", ""))
    assert InaHeader.decode(data) == INA_HEADER


def test_the_judge_does_see_malformed_packets(dissect: Dissect) -> None:
    """Else the test above would prove nothing."""
    frame = data_packet(Opcode.RC_WRITE_ONLY_IMM, b"").encode_frame()
    cut = bytearray(frame[:-16])
    cut[16:18] = (len(cut) - 14).to_bytes(2, "big")
    cut[38:40] = (len(cut) - 34).to_bytes(2, "big")
    (seen,) = dissect([bytes(cut)])
    assert "_ws.malformed" in seen
