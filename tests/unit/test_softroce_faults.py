"""Faults of the bench's wire that wait for what the hosts do: what they let pass, and when."""

from __future__ import annotations

import pytest

from inaproto.wire.packet import PacketBuilder, decode_packet
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import FlowTemplate
from tests.hil.softroce import faults
from tests.hil.softroce.wire import Count, Fault

FLOW = FlowTemplate(b"\x52\x54\0\0\0\1", b"\x52\x54\0\0\0\2", b"\x0a\0\0\1", b"\x0a\0\0\2", 0xC123, 17)
BACK = FlowTemplate(b"\x52\x54\0\0\0\2", b"\x52\x54\0\0\0\1", b"\x0a\0\0\2", b"\x0a\0\0\1", 0xC123, 18)


def passed(fault: Fault, sent: str) -> str:
    """``sent``: ``d`` and PSN for data, ``a`` and PSN for an ACK; what came out for each, in its place."""
    count = Count()
    said = []
    for word in sent.split():
        psn = int(word[1:])
        if word[0] == "d":
            (row,) = PacketBuilder(FLOW).build(
                opcode=Opcode.RC_WRITE_MIDDLE, psn=psn, ack_requests=[False], ip_id=1, payload=bytes(4)
            )
        else:
            (row,) = PacketBuilder(BACK).build(
                opcode=Opcode.RC_ACK, psn=psn, ack_requests=[False], ip_id=1, payload=b"", aeth=(0x1F, 0)
            )
        packet = decode_packet(bytes(row))
        assert packet is not None
        out = [decode_packet(one.frame) for one in fault(count.look(packet))]
        kinds = [f"{'a' if one.opcode == Opcode.RC_ACK else 'd'}{one.psn}" for one in out if one is not None]
        said.append("+".join(kinds) or "-")
    return " ".join(said)


@pytest.mark.parametrize(
    ("fault", "sent", "expected"),
    [
        (faults.drop(1), "d7 d8 d9 d8 d9", "d7 - d9 d8 d9"),
        # Sent again too early: the second of the flow is still the one that is lost.
        (faults.drop(1), "d7 d7 d8 d8", "d7 d7 - d8"),
        (faults.duplicate(1), "d7 d7 d8 d8", "d7 d7 d8+d8 d8"),
        (faults.overtake(1), "d7 d8 d9 d8 d9", "d7 - d9 d8+d8 d9"),
        (faults.drop(0, data=False), "d7 a7 d8 a8", "d7 - d8 a8"),
        (faults.drop_acks_until_resent(8), "d7 a7 d8 a8 a8 d8 a8", "d7 a7 d8 - - d8 a8"),
        (faults.drop_acks_until_resent(8), "d7 d7 d8 a8 d8 a8", "d7 d7 d8 - d8 a8"),
        (faults.hold_until_resent(2, data=True), "d7 d8 d7 d8 d7 d8", "- - - - d7+d8+d7+d8+d7 d8"),
        (faults.hold_until_resent(1, data=False), "d7 a7 d8 a8 d7 a8", "d7 - d8 - a7+a8+d7 a8"),
    ],
)
async def test_what_passes(fault: Fault, sent: str, expected: str) -> None:
    assert passed(fault, sent) == expected
