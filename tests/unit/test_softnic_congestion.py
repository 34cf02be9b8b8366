"""A NIC in user space with congestion control (docs/protocol.md 4.5): marks, notifications and rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.core.rdma.pacing import FRAME_OVERHEAD_BYTES
from inaproto.units import US, Frames, Instant
from inaproto.wire.cnp import CNP_BYTES, build_cnp, decode_cnp, mark
from inaproto.wire.icrc import verify
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.roce import Opcode
from tests.unit.test_softnic_arrivals import in_blocks
from tests.unit.test_softnic_engine import LEFT, RIGHT, Link

CONFIG = DcqcnConfig()
LINE = CONFIG.line_rate_bps
MTU = 1024
PACKET_NS = (MTU + FRAME_OVERHEAD_BYTES) * 8 * 10**9 / (LINE // 2)
"""At half the line rate."""


def regulated(**attributes: int) -> Link:
    link = Link(replace(LEFT, congestion=CONFIG), replace(RIGHT, congestion=CONFIG), **attributes)
    for wr_id in range(20):
        link.right.post_receive(link.there.qpn, wr_id)
    return link


def at(ns: float) -> Instant:
    return Instant(round(ns))


def marked(blocks: Sequence[Frames], *rows: int) -> list[Frames]:
    """A copy, with the rows with these numbers marked, counted over all blocks."""
    out, number = [], 0
    for block in blocks:
        copy = block.copy()
        for row in range(len(copy)):
            if number in rows:
                assert mark(copy[row : row + 1])
            number += 1
        out.append(copy)
    return out


def frames(blocks: Sequence[Frames]) -> list[bytes]:
    return [row.tobytes() for block in blocks for row in block]


def deadline(link: Link) -> Instant | None:
    return link.right.deadline


def cnps(blocks: Sequence[Frames]) -> list[bytes]:
    return [frame for frame in frames(blocks) if decode_cnp(frame) is not None]


def to_left_sender(link: Link) -> Frames:
    """A notification that the receiver sends to the left NIC's queue pair, over a message of its own."""
    link.write(10, now=at(0))
    link.right.handle_frames(marked(link.left.take_output(), 0), at(0))
    told = [block.copy() for block in link.right.take_output()]
    [found] = [block for block in told if block.shape[1] == CNP_BYTES]
    link.left.handle_frames([block for block in told if block is not found], at(0))
    assert link.left.take_completions()
    return found


@pytest.fixture(params=["compiled", "numpy"])
def _either(request: pytest.FixtureRequest, use_kernels: Callable[[str], None]) -> None:
    use_kernels(request.param)


# ---- what is sent --------------------------------------------------------------------------------


def test_packets_say_that_they_can_bear_a_mark_only_with_congestion_control() -> None:
    for link, ecn in ((regulated(), 2), (Link(), 0), (regulated(traffic_class=104), 2)):
        link.write(3000)
        assert {frame[15] & 3 for frame in frames(link.left.take_output())} == {ecn}
    assert frames(Link(traffic_class=104).left.take_output()) == []


def test_a_mark_leaves_checksums_right_and_is_set_once() -> None:
    link = regulated()
    link.write(10)
    [frame] = link.left.take_output()
    frame = frame.copy()
    assert (mark(frame), mark(frame)) == (True, False)
    assert frame[0, 15] & 3 == 3
    assert verify(frame.tobytes())
    assert internet_checksum(frame[0, 14:34].tobytes()) == 0
    plain = Link()
    plain.write(10)
    [frame] = plain.left.take_output()
    assert not mark(frame.copy()), "it cannot bear one"
    assert not mark(np.zeros((1, 60), np.uint8))


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("row", [0, 1, 5, 7])
def test_a_marked_packet_anywhere_in_a_message_is_told_once_to_its_sender(row: int) -> None:
    link = regulated()
    link.write(8 * MTU)
    link.right.handle_frames(marked(link.left.take_output(), row), at(0))
    [told] = cnps(link.right.take_output())
    found = decode_cnp(told)
    assert found is not None
    assert (found.dest_qp, found.dst_ip, found.dst_mac) == (link.here.qpn, LEFT.ip, LEFT.mac)
    assert told[46] == 0x40, "BECN"
    assert told[15] & 3 == 0, "it bears no mark"
    assert internet_checksum(told[14:34]) == 0
    counts = link.right.statistics()
    assert (counts["marks_received"], counts["cnps_sent"]) == (1, 1)
    assert link.target[: 8 * MTU] == link.source[: 8 * MTU]


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("rows", [(0, 4, 19), range(20)], ids=["some", "all"])
def test_marks_of_a_second_message_are_told_at_the_end_of_the_interval(rows: Sequence[int]) -> None:
    link = regulated()
    for _ in range(2):
        link.write(20 * MTU)
    both = link.left.take_output()
    for nth, blocks in enumerate((both[:3], both[3:])):
        link.right.handle_frames(marked(blocks, *rows), at(nth * 10 * US))
    assert len(cnps(link.right.take_output())) == 1
    assert deadline(link) == 50 * US
    link.right.handle_timer(at(50 * US))
    assert len(cnps(link.right.take_output())) == 1
    assert deadline(link) is None
    assert link.right.statistics()["marks_received"] == 2 * len(rows)


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize(
    ("row", "parts", "marks"),
    [(20, (range(1), range(2, 39)), 1), (1, (range(3), (1, *range(5, 9))), 2)],
    ids=["kept", "alone"],
)
def test_marks_behind_a_gap_count_too(row: int, parts: Sequence[Sequence[int]], marks: int) -> None:
    link = Link(
        replace(LEFT, congestion=CONFIG, selective=True), replace(RIGHT, congestion=CONFIG, selective=True)
    )
    link.right.post_receive(link.there.qpn, 1)
    link.write(40 * MTU)
    rows = frames(marked(link.left.take_output(), row))
    for nth, part in enumerate(parts):
        link.right.handle_frames(in_blocks(rows[at] for at in part), at(nth * 10 * US))
    assert link.right.statistics()["marks_received"] == marks
    assert len(cnps(link.right.take_output())) == 1, "the second waits for the end of the interval"


def test_a_damaged_packet_and_an_acknowledgement_tell_nothing() -> None:
    link = regulated()
    link.write(8 * MTU)
    damaged = marked(link.left.take_output(), 3)
    for block in damaged:
        block[:, 60] ^= 1
    link.right.handle_frames(damaged, at(0))
    assert link.right.statistics()["marks_received"] == 0
    link = regulated()
    link.write(10)
    link.to_right()
    link.left.handle_frames(marked(link.right.take_output(), 0), at(0))
    assert link.left.statistics()["cnps_sent"] == 0
    assert link.left.take_completions()


def test_without_congestion_control_marks_and_notifications_change_nothing() -> None:
    notification = to_left_sender(regulated())
    link = Link()
    link.right.post_receive(link.there.qpn, 1)
    link.write(8 * MTU)
    blocks = [block.copy() for block in link.left.take_output()]
    for block in blocks:
        block[:, 15] |= 3
    link.right.handle_frames(blocks, at(0))
    assert cnps(link.right.take_output()) == []
    link.left.handle_frames([notification], at(0))
    assert link.left.statistics()["cnps_received"] == 1
    link.write(8 * MTU)
    assert len(frames(link.left.take_output())) == 8


# ---- rates ---------------------------------------------------------------------------------------


def test_a_notification_halves_the_rate_and_packets_leave_one_by_one() -> None:
    link = regulated()
    link.left.handle_frames([to_left_sender(link)], at(0))
    link.write(6 * MTU, now=at(0))
    times: list[Instant] = []
    while len(times) < 6:
        now = link.left.deadline
        assert now is not None
        link.left.handle_timer(now)
        sent = frames(link.left.take_output())
        assert len(sent) <= 1
        times += [now] * len(sent)
    assert [b - a for a, b in pairwise(times)] == pytest.approx([PACKET_NS] * 5, abs=1)


def test_opcodes_and_requests_for_acks_are_as_without_a_rate() -> None:
    link, plain = regulated(ack_every=4), Link(ack_every=4)
    link.left.handle_frames([to_left_sender(link)], at(0))
    plain.write(10)
    plain.left.take_output()
    for one in (link, plain):
        one.write(10 * MTU, now=at(0))
    unpaced = frames(plain.left.take_output())
    paced: list[bytes] = []
    while len(paced) < 10:
        now = link.left.deadline
        assert now is not None
        link.left.handle_timer(now)
        paced += frames(link.left.take_output())

    def told(frame: bytes) -> tuple[int, int, int]:
        return frame[42], frame[50], int.from_bytes(frame[51:54], "big")

    assert list(map(told, paced)) == list(map(told, unpaced))
    assert paced[0][42] == Opcode.RC_WRITE_FIRST


def test_the_retransmission_timer_waits_for_the_rest_of_an_ack_group() -> None:
    """At the least rate a packet takes longer than the timer, and nobody was asked for an ACK meanwhile."""
    link = regulated(timeout=5, retry_count=1)
    notification = to_left_sender(link)
    for _ in range(40):
        link.left.handle_frames([notification], at(0))
    link.write(8 * MTU, now=at(0))
    sent, now = 0, at(0)
    while sent < 8:
        assert link.left.deadline is not None
        now = link.left.deadline
        link.left.handle_timer(now)
        sent += len(frames(link.left.take_output()))
    assert link.left.statistics()["timeouts"] == 0
    assert link.left.statistics()["retransmits"] == 0


def test_go_back_n_goes_back_at_the_rate() -> None:
    link = regulated()
    link.left.handle_frames([to_left_sender(link)], at(0))
    link.write(20 * MTU, now=at(0))
    now, dropped = at(0), False
    while link.right.statistics()["messages_received"] < 2:
        assert link.left.deadline is not None
        now = max(now, link.left.deadline)
        link.left.handle_timer(now)
        for block in link.left.take_output():
            if not dropped and link.right.statistics()["packets_received"] == 6:
                dropped = True
                continue
            link.right.handle_frames([block.copy()], now)
        link.left.handle_frames([block.copy() for block in link.right.take_output()], now)
    assert dropped
    assert link.left.statistics()["naks_received"] == 1
    assert link.target[: 20 * MTU] == link.source[: 20 * MTU]


def test_the_rate_grows_back_until_nothing_is_held_back() -> None:
    link = regulated()
    link.left.handle_frames([to_left_sender(link)], at(0))
    for _ in range(100):
        if link.left.deadline is None:
            break
        link.left.handle_timer(link.left.deadline)
    assert link.left.deadline is None
    link.write(20 * MTU, now=at(10**9))
    assert len(frames(link.left.take_output())) == 20


def test_a_notification_of_another_peer_is_not_obeyed() -> None:
    link = regulated()
    frame = bytearray(to_left_sender(link)[0].tobytes())
    frame[29] ^= 7
    told = build_cnp(bytes(frame[:54]), 0)
    link.left.handle_frames([told], at(0))
    assert link.left.statistics()["wrong_source"] == 1
    link.left.handle_frames([told[:, :-1].copy()], at(0))
    assert link.left.statistics()["cnps_received"] == 0
    assert link.left.statistics()["other_frames"] == 1


def test_a_destroyed_queue_pair_leaves_no_timer() -> None:
    link = regulated()
    link.left.handle_frames([to_left_sender(link)], at(0))
    link.write(8 * MTU, now=at(0))
    link.left.destroy_qp(link.here.qpn)
    assert link.left.deadline is None
    assert not any(link.left.resources.values()) or link.left.resources["regions"] == 1
