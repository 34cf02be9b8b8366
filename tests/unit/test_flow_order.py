"""Frames of one receive, flow by flow: which orders stay, and what is a vector."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from inaproto.core.switch.flow_order import flow_by_flow, joined, joined_rows
from inaproto.units import Frames
from inaproto_hil.bench.traffic import Sender, host_ip, receiving_qp, ring_spec

MTU = 64
RING = (host_ip(0), host_ip(1), receiving_qp(1))


def of_ring(psn: int, packets: int = 6) -> list[bytes]:
    """A message of rank 0 as single frames: a first, middles and a last one."""
    sender = Sender(ring_spec(2, packets=packets, mtu=MTU), 0, psn)
    data = np.arange(packets * MTU - 40, dtype=np.uint8)
    return [row.tobytes() for block in sender.message(0, data) for row in block]


def to_queue_pair(frames: list[bytes], qp: int) -> list[bytes]:
    return [frame[:47] + qp.to_bytes(3, "big") + frame[50:] for frame in frames]


def plain(source: int, target: int, text: bytes) -> bytes:
    macs = bytes([2, 0, 0, 0, 9, target]) + bytes([2, 0, 0, 0, 9, source])
    return (macs + b"\x08\x00\x45" + bytes(31) + text).ljust(MTU + 58, b"\0")


def as_blocks(frames: list[bytes]) -> list[Frames]:
    """Blocks as ports make them: neighbours of one length."""
    blocks: list[list[bytes]] = []
    for frame in frames:
        if blocks and len(blocks[-1][0]) == len(frame):
            blocks[-1].append(frame)
        else:
            blocks.append([frame])
    return [np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1) for rows in blocks]


def grouped(blocks: list[Frames], *rings: tuple[bytes, bytes, int]) -> list[list[bytes]]:
    return [[row.tobytes() for row in block] for block in flow_by_flow(blocks, rings.__contains__)]


def test_two_rings_that_alternate_are_two_vectors() -> None:
    one, other = of_ring(100), to_queue_pair(of_ring(7), 0x999)
    mixed = [frame for pair in zip(one, other, strict=True) for frame in pair]
    second = (*RING[:2], 0x999)
    expected = [one[:1], one[1:5], one[5:], other[:1], other[1:5], other[5:]]
    assert grouped(as_blocks(mixed), RING, second) == expected


def test_a_port_that_hands_over_single_frames_gets_vectors_too() -> None:
    frames = of_ring(100)
    blocks = [block for frame in frames for block in as_blocks([frame])]
    assert grouped(blocks, RING) == [frames[:1], frames[1:5], frames[5:]]


def test_two_frames_are_a_vector_of_two() -> None:
    frames = of_ring(100)
    blocks = [block for frame in frames[1:3] for block in as_blocks([frame])]
    assert grouped(blocks, RING) == [frames[1:3]]


def test_queue_pairs_are_told_apart_by_all_their_bits() -> None:
    one, other = of_ring(100)[1:3], to_queue_pair(of_ring(7)[1:3], RING[2] | 0x10_0000)
    mixed = [frame for pair in zip(one, other, strict=True) for frame in pair]
    rest = plain(1, 2, b"x")[:12] + mixed[1][12:]
    assert grouped(as_blocks([*mixed, rest]), RING) == [one, other, [rest]]


def test_connections_of_no_ring_keep_their_order_with_all_else_between_two_hosts() -> None:
    one, other = of_ring(100)[1:5], to_queue_pair(of_ring(7)[1:5], 0x999)
    mixed = [frame for pair in zip(one, other, strict=True) for frame in pair]
    assert grouped(as_blocks(mixed)) == [mixed]


@pytest.mark.parametrize("at", [12, 14, 20, 23, 37])
def test_what_only_resembles_a_packet_of_a_ring_keeps_its_place_among_plain_frames(at: int) -> None:
    frames = of_ring(100)[1:5]
    damaged = bytearray(frames[1])
    damaged[at] ^= 0x15
    before = frames[0][:12] + plain(1, 2, b"before")[12:]
    found = grouped(as_blocks([before, frames[0], bytes(damaged), frames[2]]), RING)
    assert found == [[before, bytes(damaged)], [frames[0]], [frames[2]]]


def test_a_vector_of_a_ring_has_consecutive_packets() -> None:
    a, b, c, d = of_ring(0xFF_FFFD)[1:5]
    other = plain(1, 2, b"x")
    assert grouped(as_blocks([a, other, c, b, d, other, a, b]), RING)[:4] == [[a], [c], [b], [d]]
    assert grouped(as_blocks([a, other, b, other, c, other, d]), RING)[0] == [a, b, c, d]


def test_every_pair_of_addresses_keeps_its_order_and_nothing_is_lost() -> None:
    for seed in range(50):
        rng = Random(seed)
        streams = [of_ring(rng.randrange(1 << 24)), to_queue_pair(of_ring(5), 0x999)]
        streams += [
            [plain(a, b, bytes([n])) for n in range(rng.randrange(8))] for a in (1, 2) for b in (3, 4)
        ]
        left, mixed = [list(stream) for stream in streams], []
        while any(left):
            mixed.append(rng.choice([stream for stream in left if stream]).pop(0))
        blocks = as_blocks(mixed)
        found = [frame for block in grouped(blocks, RING, (*RING[:2], 0x999)) for frame in block]
        assert sorted(found) == sorted(mixed)
        for stream in streams:
            assert [frame for frame in found if frame in stream] == stream


def test_frames_of_any_length_and_empty_blocks_are_taken() -> None:
    blocks = [np.zeros((2, length), np.uint8) for length in (0, 1, 13, 14, 49, 54, 60)]
    found = grouped([np.zeros((0, 60), np.uint8), *blocks])
    assert sum(len(block) for block in found) == 14
    assert grouped([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_packets_one_by_one_are_joined_as_parts_of_blocks_are(seed: int) -> None:
    rng = Random(seed)
    frames = [rng.choice(of_ring(0xFFFFFC)) for _ in range(rng.randrange(1, 9))]
    if rng.random() < 0.5:
        frames = sorted(frames, key=of_ring(0xFFFFFC).index)
    one_by_one = [np.frombuffer(frame, np.uint8)[None] for frame in frames]
    for parts in (one_by_one, as_blocks(frames)):
        found = [block.tolist() for block in joined_rows(one_by_one)]
        assert found == [block.tolist() for block in joined(RING, parts)]
