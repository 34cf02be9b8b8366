"""Answers to a queue pair whose requests are not in the capture are nobody's fault (IBTA 9.7.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.wire.packet import decode_packet
from inaproto.wire.roce import Opcode
from tests.inspect.captures import Passed, frames_of, inspect, ring_world, tap
from tests.inspect.damages import IN, SENDER, nth, packet_at, sealed
from tests.inspect.test_kernel import capture as kernel_capture

OTHER_PORT = b"\xd1\x23"
UNKNOWN = "answers that may be to another queue pair, not judged"
OTHERS = [(1, 0, None), (1, 3, None), (-2, -1, None), (0, 2, None), (-1, 0, 0x60), (0, 0, 0x60), (0, 0, 0x62)]
"""PSN and MSN beside those of the answer that is there, and another syndrome: what is delivered elsewhere."""


def elsewhere(frame: bytes, psn: int, msn: int, syndrome: int | None) -> bytes:
    """The answer of another connection between the same two hosts, which is about as far."""
    packet = decode_packet(frame)
    assert packet is not None
    aeth = bytes([frame[54] if syndrome is None else syndrome])
    aeth += ((int.from_bytes(frame[55:58], "big") + msn) & 0xFF_FFFF).to_bytes(3, "big")
    qp = (packet.dest_qp ^ 0x40).to_bytes(3, "big")
    moved = ((packet.psn + psn) & 0xFF_FFFF).to_bytes(3, "big")
    return sealed(frame, (34, OTHER_PORT), (47, qp), (51, moved), (54, aeth))


def is_answer(one: Passed) -> bool:
    """To rank 1."""
    packet = decode_packet(one.data)
    return packet is not None and packet.opcode == Opcode.RC_ACK and packet.dst_ip == SENDER


@pytest.mark.parametrize("captured", ["both", "only the other one's"])
@pytest.mark.parametrize("other", OTHERS)
def test_answers_to_a_connection_that_was_not_captured_are_not_blamed_on_one_that_was(
    other: tuple[int, int, int | None], captured: str
) -> None:
    passed = tap(ring_world("answers of two", elements=(900, 300, 1000, 900, 300)))
    together = []
    for one in passed:
        if not is_answer(one) or captured == "both":
            together.append(one)
        if is_answer(one):
            together.append(replace(one, data=elsewhere(one.data, *other)))
    for with_directions in (True, False):
        inspector, found = inspect(frames_of(together, with_directions=with_directions))
        assert not found, found[0].as_dict()
        assert inspector.books.notes[UNKNOWN]


def test_without_a_port_in_common_an_answer_is_judged_once_it_has_proved_whose_it_is() -> None:
    """Its counts of messages grow as the connection's messages end."""
    passed = tap(ring_world("ports differ", elements=(900, 300, 1000, 900, 300)))
    differ = [
        replace(one, data=sealed(one.data, (34, OTHER_PORT))) if is_answer(one) else one for one in passed
    ]
    inspector, found = inspect(frames_of(differ))
    assert not found
    assert inspector.books.checked["ACK beyond what was sent"]
    target = packet_at(differ, nth(differ, Opcode.RC_WRITE_FIRST, IN, 0)).dst_ip
    late = nth(differ, Opcode.RC_ACK, IN, -1, target)
    psn = (packet_at(differ, late).psn + 9) & 0xFF_FFFF
    differ[late] = replace(differ[late], data=sealed(differ[late].data, (51, psn.to_bytes(3, "big"))))
    _, found = inspect(frames_of(differ))
    assert [one.rule.name for one in found] == ["ACK beyond what was sent"]


@pytest.mark.parametrize("name", ["kernel-writes", "kernel-ring"])
def test_answers_of_a_kernel_are_judged(name: str) -> None:
    inspector, found = inspect(kernel_capture(name))
    assert not found
    assert inspector.books.checked["ACK beyond what was sent"]
