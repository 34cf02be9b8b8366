"""Packets of a message as a NIC tells its responder of them, and edges of what compiled kernels take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from inaproto.core.rdma.reliable_connection import NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS
from inaproto.core.rdma.responder import (
    PacketArrived,
    ResponderAction,
    RunArrived,
    StretchBehind,
    StretchPlaced,
)
from inaproto.units import Instant
from inaproto.wire.icrc import seal
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.roce import SYNDROME_NAK, Opcode
from inaproto.wire.vector import BTH_END
from tests.property.test_messages_by_kernels import Receiver
from tests.unit.test_softnic_arrivals import at_once, in_blocks, rows
from tests.unit.test_softnic_engine import LEFT, RIGHT, T0, Link, packets

USE = Callable[[str], None]


def told(one: Receiver, pair: int = 0) -> list[str]:
    """What the responder of a connection hears of from now on: how packets came, and how many."""
    connection = one.nic._qps[one.pairs[pair][1].qpn].connection
    assert connection is not None
    heard, step = list[str](), connection.responder.step

    def hear(event: Any, now: Instant) -> list[ResponderAction]:
        match event:
            case StretchPlaced() | StretchBehind():
                heard.append(f"{'placed' if isinstance(event, StretchPlaced) else 'behind'} {event.packets}")
            case RunArrived():
                heard.append(f"run {len(event.psn)}")
            case PacketArrived():
                heard.append("packet")
            case _:
                pass  # it is no packet
        return step(event, now)

    connection.responder.step = hear  # type: ignore[method-assign]
    return heard


@pytest.mark.parametrize(
    ("selective", "parts", "expected"),
    [
        (True, [range(11)], ["placed 11"]),
        (True, [range(3), range(3, 11)], ["placed 3", "placed 8"]),
        (True, [(0, 1, 2, *range(4, 11))], ["placed 3", "behind 6", "packet"]),
        (True, [range(3), (1, 4)], ["placed 3", "packet", "behind 1"]),
        (True, [range(3), (1, *range(4, 10), 1)], ["placed 3", "packet", "behind 6", "packet"]),
        (True, [range(3), (1, *range(4, 10), 1, 2)], ["placed 3", "run 1", "run 6", "run 2"]),
        (True, [(0, 4), (1, 2, 3)], ["placed 1", "behind 1", "run 3"]),
        (True, [(0, 4), (1, 6, 7, 8, 9)], ["placed 1", "behind 1", "packet", "behind 4"]),
        (
            True,
            [(0, 3), (1, *range(4, 10), 1, 1)],
            ["placed 1", "behind 1", "packet", "behind 6", "packet", "packet"],
        ),
        (True, [(0, 2), (10,), (1,)], ["placed 1", "behind 1", "packet", "packet"]),
        (False, [range(11)], ["placed 11"]),
        (False, [(0, 1, 2, *range(4, 11))], ["placed 3", "run 6", "packet"]),
        (False, [range(3), (1, *range(4, 10))], ["placed 3", "run 7"]),
    ],
)
def test_which_packets_go_together_to_the_responder(
    parts: list[Iterable[int]], expected: list[str], use_kernels: USE, *, selective: bool
) -> None:
    """A message of eleven: the kernel takes what fits where it is, few others go alone so that it may."""
    use_kernels("compiled")
    one = Receiver(selective=selective)
    one.nic.post_receive(one.pairs[0][1].qpn, 0)
    frames = one.message(0, 0, 2816, rkey=one.target.key)
    heard = told(one)
    for part in parts:
        at_once(one.nic, in_blocks(frames[at] for at in part), T0)
    assert heard == expected
    assert one.nic.responder_steps == 1 + len(expected)  # and the receive


@pytest.mark.parametrize(("nbytes", "expected"), [(0, "packet"), (1, "placed 1"), (256, "placed 1")])
def test_a_message_of_one_packet_that_has_bytes_goes_by_the_kernel(
    nbytes: int, expected: str, use_kernels: USE
) -> None:
    use_kernels("compiled")
    one = Receiver()
    one.nic.post_receive(one.pairs[0][1].qpn, 0)
    heard = told(one)
    at_once(one.nic, in_blocks(one.message(0, 0, nbytes, rkey=one.target.key)), T0)
    assert heard == [expected]
    assert len(one.nic.take_completions()) == 1


def rebuilt(frame: bytes, *changes: tuple[slice, bytes]) -> bytes:
    """The same packet with other bytes there, its lengths and checksums right."""
    changed = bytearray(frame)
    for place, others in changes:
        changed[place] = others
    changed[16:18] = (len(changed) - 14).to_bytes(2, "big")
    changed[38:40] = (len(changed) - 34).to_bytes(2, "big")
    changed[24:26] = bytes(2)
    changed[24:26] = internet_checksum(bytes(changed[14:34])).to_bytes(2, "big")
    seal(changed)
    return bytes(changed)


@pytest.mark.parametrize("kernels", ["compiled", "numpy"])
@pytest.mark.parametrize("nbytes", [2561, 2562, 2816])
def test_a_message_that_ends_without_immediate_behind_a_gap_is_kept(
    nbytes: int, kernels: str, use_kernels: USE
) -> None:
    """One whose last packet had one byte was once taken for a middle one, and the NIC failed."""
    use_kernels(kernels)
    one = Receiver(selective=True)
    frames = one.message(0, 0, nbytes, rkey=one.target.key)
    frames[10] = rebuilt(frames[10], (slice(54, 58), b""), (slice(42, 43), bytes([Opcode.RC_WRITE_LAST])))
    at_once(one.nic, in_blocks([*frames[:2], *frames[4:]]), T0)
    assert one.nic.statistics()["kept_behind_gap"] == 7
    at_once(one.nic, in_blocks(frames[2:4]), T0)
    assert one.memory[:nbytes] == Random(5).randbytes(3000)[:nbytes]
    [*_, [answer]] = one.nic.take_output()
    assert int.from_bytes(answer[51:54].tobytes(), "big") == 0xFFFFFA


def test_without_kernels_what_is_alike_goes_together(use_kernels: USE) -> None:
    """Twice, for the second may be known by what the first looked like."""
    use_kernels("numpy")
    one = Receiver()
    heard = [told(one, pair) for pair in range(2)]
    for wr_id in range(10):
        one.nic.post_receive(one.pairs[0][1].qpn, wr_id)
    for _ in range(2):
        equal = [frame for _ in range(5) for frame in one.message(0, 0, 4, rkey=one.target.key)]
        at_once(one.nic, in_blocks(equal), T0)
    assert heard == [["run 5"] * 2, []]
    assert len(one.nic.take_completions()) == 10
    ours, theirs = (one.message(pair, pair, 2816, rkey=one.target.key) for pair in range(2))
    at_once(one.nic, in_blocks([ours[0], theirs[0], ours[1], theirs[1], ours[2], ours[3]]), T0)
    assert heard == [["run 5"] * 2 + ["packet", "run 3"], ["packet"] * 2]


def forbidden(one: Receiver, what: str) -> list[bytes]:
    """Packets the last of which no responder may take."""
    first, *_ = frames = one.message(0, 0, 2816, rkey=77 if what == "an unknown key" else one.target.key)
    match what:
        case "a middle of no message":
            return [rebuilt(frames[1], (slice(51, 54), b"\xff\xff\xf0"))]
        case "a beginning inside another":
            return [*frames[:3], rebuilt(first, (slice(51, 54), b"\xff\xff\xf3"))]
        case "a send":
            return [rebuilt(first, (slice(42, 43), bytes([Opcode.RC_SEND_ONLY])), (slice(54, 70), b""))]
        case _:
            return [first]


@pytest.mark.parametrize("kernels", ["compiled", "numpy"])
@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize(
    ("what", "syndrome"),
    [
        ("a middle of no message", NAK_INVALID_REQUEST),
        ("a beginning inside another", NAK_INVALID_REQUEST),
        ("a send", NAK_INVALID_REQUEST),
        ("an unknown key", NAK_REMOTE_ACCESS),
    ],
)
def test_what_may_not_be_ends_the_connection(
    what: str, syndrome: int, kernels: str, use_kernels: USE, *, selective: bool
) -> None:
    use_kernels(kernels)
    one = Receiver(selective=selective)
    at_once(one.nic, in_blocks(forbidden(one, what)), T0)
    [[answer]] = one.nic.take_output()
    assert answer[BTH_END] == syndrome
    assert one.nic.statistics()["blames"] == 1
    assert not any(one.memory[3 * 256 :])


@pytest.mark.parametrize("kernels", ["compiled", "numpy"])
@pytest.mark.parametrize("padding", [0, 1])
def test_a_nak_that_tells_what_came_is_answered_with_what_did_not(
    padding: int, kernels: str, use_kernels: USE
) -> None:
    """With padding of Ethernet behind it, it is decoded as a vector."""
    use_kernels(kernels)
    link = Link(replace(LEFT, selective=True), replace(RIGHT, selective=True))
    link.write(8 * 1024)
    sent = [row.tobytes() for row in rows(link.left.take_output())]
    link.to_right(in_blocks([*sent[:3], sent[4], sent[6]]))
    [nak] = link.right.take_output()
    assert nak[0, BTH_END] == SYNDROME_NAK
    link.left.handle_frames([np.pad(nak, ((0, 0), (0, padding)))], T0)
    assert [packet.bth.psn for packet in packets(link.left.take_output())] == [2, 4]


@pytest.mark.parametrize("kernels", ["compiled", "numpy"])
def test_nothing_is_kept_behind_a_gap_where_memory_was_given_back(kernels: str, use_kernels: USE) -> None:
    use_kernels(kernels)
    one = Receiver(selective=True)
    frames = one.message(0, 0, 2816, rkey=one.target.key)
    at_once(one.nic, in_blocks(frames[:2]), T0)
    one.nic.deregister_memory(one.target)
    at_once(one.nic, in_blocks(frames[3:9]), T0)
    counts = one.nic.statistics()
    assert (counts["kept_behind_gap"], counts["out_of_sequence"]) == (0, 6)
    assert not any(one.memory[512:])
