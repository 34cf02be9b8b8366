"""The test vectors of ``docs/protocol.md`` 22 are what the code sends, takes and adds up.

The bytes of the page were written by a program that shares no code with the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from inaproto.core.plan.reduce import reduce_into
from inaproto.core.rdma.queue_pair import udp_source_port
from inaproto.core.switch.accelerator import Accelerator, EmitFrames, FramesArrived, InstallRing, PortUp
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.core.switch.tree.translation import start_psn
from inaproto.units import Instant, PortId
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Ready, decode_message, encode_message
from inaproto.wire.ina_header import FLAG_LAST, FLAG_RESULT, Dtype, InaHeader, Op, signature
from inaproto.wire.packet import PacketBuilder, decode_packet
from inaproto.wire.roce import Opcode
from inaproto.wire.tree_note import NoteKind, TreeNote
from inaproto.wire.trunk_hello import TrunkHello
from inaproto.wire.vector import FlowTemplate

_PAGE: Final = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()
_SECTION: Final = _PAGE.split("\n## 22. ")[1]
_BLOCK: Final = re.compile(r"\((\d+) bytes\):\n\n```text\n(.*?)```", re.DOTALL)
_KEY: Final = 0x0123456789ABCDEF
_MACS: Final = (bytes.fromhex("020000000001"), bytes.fromhex("020000000002"))
_IPS: Final = (bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
_OUT: Final = (0x110, 0x220)
_INTO: Final = (0x111, 0x221)
_PSN: Final = (0xFFFFFE, 0x000010)
_VA: Final = (0x10000, 0x20000)
_RKEY: Final = (0x1001, 0x2002)
_ELEMENTS: Final = ((1, 2, 0.5), (10, 20, 0.25))
_NOW: Final = Instant(0)


def blocks(section: str) -> list[bytes]:
    """The bytes that a section shows, one after the other."""
    text = _SECTION.split(f"\n### {section} ")[1].split("\n### ")[0]
    shown = []
    for size, lines in _BLOCK.findall(text):
        data = bytes.fromhex("".join(line.split()[0] for line in lines.splitlines()))
        assert len(data) == int(size), lines
        shown.append(data)
    return shown


def template(sender: int, qpn: int, dest_qp: int) -> FlowTemplate:
    other = 1 - sender
    return FlowTemplate(
        src_mac=_MACS[sender],
        dst_mac=_MACS[other],
        src_ip=_IPS[sender],
        dst_ip=_IPS[other],
        udp_source_port=udp_source_port(qpn, dest_qp),
        dest_qp=dest_qp,
    )


def write(rank: int, flags: int, elements: tuple[float, ...]) -> bytes:
    """The packet of position ``rank``."""
    other = 1 - rank
    header = InaHeader(
        dtype=Dtype.F16,
        op=Op.SUM,
        flags=flags,
        ring_id=7,
        epoch=1,
        op_index=0,
        msg_id=0,
        rank=rank,
        ring_size=2,
        msg_len=1,
        signature=signature(Dtype.F16, Op.SUM, (3,)),
        key=_KEY,
    )
    payload = header.encode() + np.array(elements, "<f2").tobytes()
    (row,) = PacketBuilder(template(rank, _OUT[rank], _INTO[other])).build(
        opcode=Opcode.RC_WRITE_ONLY_IMM,
        psn=_PSN[rank],
        ack_requests=[True],
        ip_id=1,
        payload=payload,
        reth=(_VA[other], _RKEY[other], len(payload)),
        imm=0,
    )
    return bytes(row)


def ring() -> RingSpec:
    flows = tuple(
        FlowSpec(rank, _IPS[rank], _IPS[1 - rank], _INTO[1 - rank], _MACS[rank], _MACS[1 - rank])
        for rank in (0, 1)
    )
    return RingSpec(ring_id=7, epoch=1, key=_KEY, window_messages=2, message_packets=4, mtu=1024, flows=flows)


def test_members_send_the_packets_of_the_page() -> None:
    assert blocks("22.2") == [write(rank, FLAG_LAST, _ELEMENTS[rank]) for rank in (0, 1)]


def test_numbers_that_the_page_says_of_its_ring() -> None:
    ports = [udp_source_port(_OUT[rank], _INTO[1 - rank]) for rank in (0, 1)]
    text = " ".join(_SECTION.split("\n### 22.2")[0].split())
    assert f"signature is {signature(Dtype.F16, Op.SUM, (3,)):#06x}" in text
    assert f"UDP source ports are {ports[0]:#x} and {ports[1]:#x}" in text
    assert f"psn0 of 7.3 is {start_psn(ring()):#08x}" in text


def test_an_accelerator_that_gets_them_sends_the_results_of_the_page() -> None:
    accelerator = Accelerator()
    for rank in (0, 1):
        accelerator.step(PortUp(PortId(rank)), _NOW)
    assert accelerator.step(InstallRing(ring()), _NOW) == []
    sent: list[list[tuple[int, bytes]]] = []
    for rank, frame in enumerate(blocks("22.2")):
        arrived = FramesArrived(PortId(rank), [np.frombuffer(frame, np.uint8).reshape(1, -1)])
        actions = accelerator.step(arrived, _NOW)
        sent.append(
            [
                (int(action.port), row.tobytes())
                for action in actions
                if isinstance(action, EmitFrames)
                for row in action.frames
            ]
        )
    first, second = blocks("22.3")
    assert sent[0] == []
    assert sorted(sent[1]) == [(0, second), (1, first)]
    assert first == write(0, FLAG_LAST | FLAG_RESULT, (11, 22, 0.75))


def test_a_receiver_answers_with_the_packets_of_the_page() -> None:
    builder = PacketBuilder(template(1, _INTO[1], _OUT[0]))
    answers = [
        builder.build(
            opcode=Opcode.RC_ACK, psn=_PSN[0], ack_requests=[False], ip_id=1, payload=b"", aeth=aeth
        )[0].tobytes()
        for aeth in ((0x1F, 1), (0x60, 0))
    ]
    assert blocks("22.4") == answers
    for answer in answers:
        packet = decode_packet(answer)
        assert packet is not None
        assert packet.intact()


def test_records_of_the_page_are_taken_and_given() -> None:
    note, hello, message = blocks("22.5")
    gap = TreeNote(kind=NoteKind.GAP, rank=1, ring_id=7, epoch=1, msg_id=5, offset=2, key=_KEY)
    greeting = TrunkHello(mac=_MACS[0], switch="leaf-a", peer="spine", boot_id="b7")
    ready = Ready(job="mnist", rank=1, id=3)
    assert (TreeNote.decode(note), gap.encode()) == (gap, note)
    assert (TrunkHello.decode(hello), greeting.encode()) == (greeting, hello)
    (record,) = ControlDecoder().feed(message)
    assert (decode_message(record), encode_message(ready)) == (ready, message)


_ROWS: Final = re.findall(r"^\| (\w+) \| (sum|max|min) \| ([^|]+) \| (0x\w+) \| 8\.1", _SECTION, re.MULTILINE)
_DTYPES: Final = {
    "float16": Dtype.F16,
    "bfloat16": Dtype.BF16,
    "float32": Dtype.F32,
    "int32": Dtype.I32,
}


@pytest.mark.parametrize(("name", "op", "operands", "result"), _ROWS)
def test_sums_of_the_page(name: str, op: str, operands: str, result: str) -> None:
    dtype = _DTYPES[name]
    values = [bytes.fromhex(text.strip()[2:])[::-1] for text in operands.split(",")]
    into = np.zeros(dtype.itemsize, np.uint8)
    reduce_into(dtype, Op[op.upper()], [np.frombuffer(value, np.uint8) for value in values], into)
    assert into.tobytes()[::-1].hex() == result[2:]


def test_every_sum_of_the_page_is_read() -> None:
    assert len(_ROWS) == 9
