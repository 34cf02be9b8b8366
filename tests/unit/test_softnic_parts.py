"""What the softnic engine counts and answers to the number, and its parts that stand alone."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from inaproto.core.rdma import receiving
from inaproto.core.rdma.arp import arp_question
from inaproto.core.rdma.counters import NicCounters
from inaproto.core.rdma.deadlines import Deadlines
from inaproto.core.rdma.memory import MemoryTable
from inaproto.core.rdma.output import Output
from inaproto.ports import Completion, CompletionKind, MemoryRegion, QpAttributes, Segment, Status
from inaproto.units import Frames, Instant
from inaproto.wire.icrc import seal
from inaproto.wire.vector import PlainRun, RoceRun, decode_runs
from inaproto_adapters.softnic import SoftNicEngine
from tests.unit.test_softnic_engine import LEFT, RIGHT, T0, Link, block, packets
from tests.unit.test_softnic_requests import refused


def rewritten(frame: Frames, changes: dict[int, int]) -> Frames:
    """One frame with these bytes changed, sealed anew."""
    data = bytearray(frame[0].tobytes())
    for at, value in changes.items():
        data[at] = value
    seal(data)
    return block(data)


# --- arrivals


def test_what_is_lost_on_either_side_is_counted() -> None:
    link = Link()
    link.write(3 * 1024)
    damaged = [frames.copy() for frames in link.left.take_output()]
    for frames in damaged:
        frames[:, -1] ^= 1
    link.to_right(damaged)
    link.left.count_lost_output(2)
    link.left.count_lost_output(3)
    counted = link.right.statistics()
    assert (counted["icrc_errors"], counted["packets_received"], link.right.responder_steps) == (3, 0, 0)
    assert link.left.statistics()["output_lost"] == 5


def test_counters_are_those_of_each_packet_in_a_vector() -> None:
    link = Link()
    link.write(8 * 1024)
    first, middle, last = (frames.copy() for frames in link.left.take_output())
    middle[2:4, -1] ^= 1
    link.to_right([first, middle, last, np.concatenate([middle[:1]] * 2)])
    counted = link.right.statistics()
    assert (counted["icrc_errors"], counted["packets_received"]) == (2, 8)
    assert (counted["out_of_sequence"], counted["duplicates"]) == (3, 2)
    assert counted["packets_sent"] == counted["acks_sent"] == 2
    assert link.right.responder_steps == 4, "one for each block"
    link.to_right([middle])
    assert link.right.statistics()["icrc_errors"] == 4
    for changed, counter in (({5: 9}, "not_for_us"), ({29: 9}, "wrong_source"), ({49: 9}, "unknown_qp")):
        strangers = np.concatenate([rewritten(first, changed)] * 3)
        link.to_right([strangers, strangers[:1]])
        assert link.right.statistics()[counter] == 4
    assert link.right.statistics()["packets_received"] == 12


def test_equal_writes_that_come_as_a_vector_are_placed_and_delivered() -> None:
    """Headers of a vector reach the responder, and whether the memory that they name may be written."""
    link = Link()
    for number in range(3):
        link.right.post_receive(link.there.qpn, number)
        link.write(12, wr_id=number)
    link.to_right([np.concatenate(link.left.take_output())])
    assert link.right.take_completions() == [
        Completion(20, CompletionKind.RECEIVE_IMM, number, Status.SUCCESS, 7, 12) for number in range(3)
    ]
    assert link.target[:12] == link.source[:12]
    link.write(12)
    link.right.deregister_memory(link.mr_target)
    link.to_right()
    link.to_left()
    assert [one.status for one in link.left.take_completions()] == [Status.SUCCESS] * 3 + [
        Status.REMOTE_ACCESS
    ]


def test_each_peer_that_breaks_a_rule_and_each_answered_question_is_counted() -> None:
    link = Link()
    here, there = link.left.create_qp(psn=0), link.right.create_qp(psn=0)
    link.left.connect_qp(here.qpn, there, QpAttributes())
    link.right.connect_qp(there.qpn, here, QpAttributes())
    link.right.deregister_memory(link.mr_target)
    segment = Segment(link.mr_source.key, link.mr_source.va, 1)
    for qpn in (here.qpn, link.here.qpn):
        link.left.post_write_imm(qpn, 1, [segment], remote_va=0, rkey=0, imm=0, now=T0)
    link.to_right()
    question = arp_question(mac=LEFT.mac, ip=LEFT.ip, asked=RIGHT.ip)
    link.to_right([question, np.concatenate([question] * 2)])
    counted = link.right.statistics()
    assert (counted["blames"], counted["arp_replies"], counted["other_frames"]) == (2, 3, 3)
    assert link.right.responder_steps == 2


def test_acks_that_come_as_a_vector_are_taken_one_by_one() -> None:
    link = Link()
    for number in range(3):
        link.right.post_receive(link.there.qpn, number)
        link.write(10, wr_id=number)
    blocks = link.left.take_output()
    acks = []
    for frames in blocks:
        link.to_right([frames])
        acks += link.right.take_output()
    link.left.handle_frames([np.concatenate(acks)], T0)
    assert [one.wr_id for one in link.left.take_completions()] == [0, 1, 2]
    assert link.left.requester_steps == 6
    assert link.left.statistics()["packets_received"] == 3
    assert link.left.take_output() == []


def test_answers_of_several_queue_pairs_leave_in_the_order_of_arrival_and_once() -> None:
    link = Link()
    here, there = link.left.create_qp(psn=0), link.right.create_qp(psn=0)
    link.left.connect_qp(here.qpn, there, QpAttributes())
    link.right.connect_qp(there.qpn, here, QpAttributes())
    for qpn in (link.there.qpn, there.qpn):
        link.right.post_receive(qpn, 1)
    link.left.post_write_imm(here.qpn, 1, [], remote_va=0, rkey=0, imm=0, now=T0)
    link.write(1)
    link.to_right()
    answers = packets(link.right.take_output())
    assert [packet.bth.dest_qp for packet in answers] == [here.qpn, link.here.qpn]
    assert [(packet.ip.identification, packet.payload) for packet in answers] == [(0, b""), (1, b"")]
    link.to_right([np.zeros((2, 64), np.uint8)])
    assert link.right.take_output() == [], "nothing is said twice"
    assert link.right.statistics()["acks_sent"] == 2


def test_a_reserved_syndrome_is_blamed() -> None:
    link = Link()
    link.right.post_receive(link.there.qpn, 1)
    link.write(1)
    link.to_right()
    (ack,) = link.right.take_output()
    link.left.handle_frames([rewritten(ack, {54: 0xFF})] * 2, T0)
    assert link.left.statistics()["blames"] == 2
    assert link.left.take_completions() == []
    link.left.handle_frames([ack], T0)
    assert [one.status for one in link.left.take_completions()] == [Status.SUCCESS]


def test_the_round_trip_is_measured_from_post_to_ack() -> None:
    """What a second NAK is compared with: half of it."""
    link = Link(timeout=20)
    link.right.post_receive(link.there.qpn, 1)
    link.write(1, now=Instant(1000))
    link.to_right(now=Instant(2000))
    link.to_left(now=Instant(9000))
    assert link.left.take_completions()[0].status is Status.SUCCESS
    link.write(3000, now=Instant(10_000))
    sent = link.left.take_output()
    for now, resends in ((11_000, True), (14_999, False), (15_000, True)):
        link.left.handle_frames([block(nak_for(link, sent))], Instant(now))
        assert bool(link.left.take_output()) == resends, now


def nak_for(link: Link, sent: list[Frames]) -> bytes:
    """The NAK of a fresh responder that has missed the first of these."""
    right = SoftNicEngine(RIGHT)
    there = right.create_qp(psn=50)
    right.connect_qp(there.qpn, replace(link.here, psn=0), QpAttributes())
    right.handle_frames(sent[1:], T0)
    (nak,) = right.take_output()
    return bytes(nak[0])


# --- parts that stand alone


def test_memory_is_found_by_key_and_address_alone() -> None:
    table = MemoryTable(regions_max=3, first_key=(1 << 32) - 0x9E3779B1)
    data = bytearray(b"0123456789")
    first, second = table.register(memoryview(data)), table.register(memoryview(bytes(4097)))
    third = table.register(memoryview(bytearray(1)))
    assert [region.key for region in (first, second, third)] == [0x61C8864F, 0x9E3779B1, 0x3C6EF362], (
        "0 is no key"
    )
    assert [region.va - (1 << 32) for region in (first, second, third)] == [0, 8192, 8192 + 12288]
    assert [region.nbytes for region in (first, second, third)] == [10, 4097, 1]
    refused(lambda: table.register(memoryview(b"x")), "all 3 memory regions are in use")
    assert len(table) == 3
    for key, begin, nbytes, inside in (
        (first.key, 0, 10, True),
        (first.key, 9, 1, True),
        (first.key, 10, 0, True),
        (first.key, -1, 1, False),
        (first.key, 9, 2, False),
        (first.key, 11, 0, False),
        (first.key, 3, -1, False),
        (third.key, 0, 1, False),
        (0, 0, 1, False),
    ):
        va, said = first.va + begin, Segment(key, first.va + begin, nbytes)
        assert table.permits(key, va, nbytes) == inside, said
        target = table.target(key, va, nbytes)
        if inside:
            pieces, (address, length) = table.sources([said])
            assert [piece.tobytes() for piece in pieces] == [data[begin : begin + nbytes]]
            assert ctypes.string_at(address, length) == data[begin : begin + nbytes]
            assert target is not None
            assert target.dtype == np.uint8
            assert target.tobytes() == data[begin : begin + nbytes]
        else:
            refused(table.sources, f"{said} is not inside a registered memory region", [said])
            assert target is None


def test_memory_is_written_whole_or_not_at_all() -> None:
    table = MemoryTable(regions_max=2, first_key=1)
    words = np.zeros(3, np.uint32)
    region, fixed = table.register(words.data), table.register(memoryview(b"fixed"))
    assert table.write(region.key, region.va + 4, memoryview(b"\1\0\0\0"))
    assert words.tolist() == [0, 1, 0]
    for key, va, payload in (
        (region.key, region.va + 9, b"1234"),
        (fixed.key, fixed.va, b"F"),
        (99, region.va, b"1"),
    ):
        assert not table.write(key, va, memoryview(payload))
    assert words.tolist() == [0, 1, 0]
    assert not table.permits(fixed.key, fixed.va, 1)
    assert table.target(fixed.key, fixed.va, 1) is None
    (piece,), _ = table.sources([Segment(fixed.key, fixed.va, 5)])
    assert bytes(piece) == b"fixed", "it may be read"


def test_memory_that_cannot_be_registered_or_given_back() -> None:
    table = MemoryTable(regions_max=1, first_key=7)
    square = np.zeros((4, 4), np.uint8)
    for buffer in (memoryview(b""), square[:, :2].data):
        refused(table.register, "only a contiguous buffer of at least one byte can be registered", buffer)
    region = table.register(square.data)
    assert region == MemoryRegion(7, 1 << 32, 16)
    for stranger in (replace(region, key=8), replace(region, nbytes=15), replace(region, va=0)):
        refused(table.deregister, f"memory region {stranger} is not registered", stranger)
    table.deregister(region)
    assert len(table) == 0
    again = table.register(square.data)
    assert (again.key, again.va) == ((7 + 0x9E3779B1) % (1 << 32), (1 << 32) + 8192), "nothing comes twice"


def test_deadlines_change_fall_due_and_are_given_up() -> None:
    deadlines = Deadlines()
    deadlines.arm(4, None)
    for key, at in ((4, 50), (9, 20), (4, 10), (4, 50), (1, 50), (9, 20)):
        deadlines.arm(key, Instant(at))
    seen = [(deadlines.due(Instant(now)), deadlines.earliest) for now in (19, 20, 60, 99)]
    assert seen == [([], 20), ([9], 50), ([1, 4], None), ([], None)], "of one time the smaller key is first"
    deadlines.arm(4, Instant(50))
    assert deadlines.due(Instant(50)) == [4], "it may be armed anew"


def test_a_sweep_of_stale_deadlines_loses_none() -> None:
    deadlines = Deadlines()
    for round_ in range(50):
        for key in range(20):
            deadlines.arm(key, Instant(1000 * round_ + (7 * key) % 20))
    assert deadlines.earliest == 49_000
    assert [(7 * key) % 20 for key in deadlines.due(Instant(50_000))] == list(range(20))


def test_output_over_its_bound_is_lost_and_counted_and_room_comes_back() -> None:
    counters = NicCounters()
    output = Output(counters, frames_max=5)
    frames = [np.full((count, 2), count, np.uint8) for count in (2, 2, 4, 3)]
    for some in frames:
        output.emit(some)
    taken = output.take()
    assert [some.tolist() for some in taken] == [[[2, 2]] * 2, [[2, 2]] * 2, [[4, 4]]]
    assert (counters.packets_sent, counters.output_lost, output.queued, output.take()) == (5, 6, 0, [])
    output.emit(frames[3])
    output.emit(frames[0])
    assert (counters.packets_sent, counters.output_lost, output.queued) == (10, 6, 5)


def test_more_of_a_message_is_taken_without_decoding(
    monkeypatch: pytest.MonkeyPatch, use_kernels: Callable[[str], None]
) -> None:
    """From the second message on; what is decoded then is what differs."""
    use_kernels("numpy")
    link = Link(ack_every=4)
    decoded: list[tuple[int, ...]] = []

    def counted(frames: Frames, *, by_connection: bool) -> Iterator[RoceRun | PlainRun]:
        decoded.append(frames.shape)
        return decode_runs(frames, by_connection=by_connection)

    monkeypatch.setattr(receiving, "decode_runs", counted)
    for number in range(3):
        link.right.post_receive(link.there.qpn, number)
        link.write(8 * 1024, wr_id=number)
        first, middle, last = link.left.take_output()
        steps = link.right.responder_steps
        received = link.right.statistics()["packets_received"]
        link.to_right([first, middle[:2]])
        assert link.right.take_output() == []  # nobody asked
        link.to_right([middle[2:4], middle[4:]])
        assert len(packets(link.right.take_output())) == 1  # of those that asked, the last
        link.to_right([last, middle[:2]])
        assert link.right.responder_steps == steps + 6
        assert link.right.statistics()["packets_received"] == received + 10
        assert link.right.statistics()["duplicates"] == 2 * (number + 1)
        assert link.target[: 8 * 1024] == link.source[: 8 * 1024]
        link.target[:] = bytes(len(link.target))
        link.to_left()
    assert decoded == [(2, 1082)]


def test_a_wrong_icrc_in_more_of_a_message_is_dropped_alone() -> None:
    link = Link()
    for number in range(2):
        link.right.post_receive(link.there.qpn, number)
        link.write(8 * 1024, wr_id=number)
        first, middle, last = (frames.copy() for frames in link.left.take_output())
        if number:
            middle[3, 60] ^= 1
        link.to_right([first, middle, last])
        link.to_left()
    counted = link.right.statistics()
    assert (counted["icrc_errors"], counted["out_of_sequence"], counted["naks_sent"]) == (1, 3, 1)


def test_packets_with_ethernet_padding_are_decoded_each_time() -> None:
    link = Link()
    for number in range(3):
        link.right.post_receive(link.there.qpn, number)
        link.write(8 * 1024, wr_id=number)
        first, middle, last = link.left.take_output()
        link.to_right([first, np.pad(middle, ((0, 0), (0, 4))), last])
        assert link.target[: 8 * 1024] == link.source[: 8 * 1024]
        link.target[:] = bytes(len(link.target))
        link.to_left()
    assert link.right.statistics()["icrc_errors"] == 0


def test_equal_acknowledgements_in_one_block() -> None:
    link = Link()
    link.right.post_receive(link.there.qpn, 0)
    link.write(12)
    link.to_right()
    (ack,) = link.right.take_output()
    link.left.handle_frames([np.concatenate([ack, ack])], T0)
    assert [completion.status for completion in link.left.take_completions()] == [Status.SUCCESS]
    assert link.left.deadline is None


def test_what_alternates_is_taken_connection_by_connection() -> None:
    link = Link()
    here, there = link.left.create_qp(psn=3), link.right.create_qp(psn=4)
    link.left.connect_qp(here.qpn, there, QpAttributes())
    link.right.connect_qp(there.qpn, here, QpAttributes())
    blocks = []
    for local, remote in ((link.here, link.there), (here, there)):
        link.right.post_receive(remote.qpn, 1)
        segment = Segment(link.mr_source.key, link.mr_source.va, 8 * 1024)
        target = {"remote_va": link.mr_target.va, "rkey": link.mr_target.key}
        link.left.post_write_imm(local.qpn, 1, [segment], imm=1, now=T0, **target)
        blocks.append(link.left.take_output())
    for left, right in zip(*blocks, strict=True):
        link.to_right([np.stack([left, right], axis=1).reshape(-1, left.shape[1])])
    assert len(link.right.take_completions()) == 2
    assert link.right.responder_steps == 2 + 6, "receives, and a run or a packet of each block and connection"
