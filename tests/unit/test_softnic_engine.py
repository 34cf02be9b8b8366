"""The softnic engine frame by frame, judged by the scalar decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from inaproto.core.rdma.deadlines import Deadlines
from inaproto.core.rdma.nic import UNANSWERED_BEFORE_ARP
from inaproto.core.rdma.packetiser import GatherList
from inaproto.core.rdma.queue_pair import udp_source_port
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.ports import CompletionKind, QpAddress, QpAttributes, Segment, Status
from inaproto.units import PSN_MASK, Frames, Instant
from inaproto.wire.connection import contradicts_itself
from inaproto.wire.icrc import seal
from inaproto.wire.roce import Opcode, RocePacket
from inaproto_adapters.softnic import SoftNicConfig, SoftNicEngine

T0 = Instant(0)
LEFT = SoftNicConfig(mac=b"\x52\x54\0\0\0\1", ip=b"\x0a\0\0\1", first_qpn=17, first_key=100)
RIGHT = SoftNicConfig(mac=b"\x52\x54\0\0\0\2", ip=b"\x0a\0\0\2", first_qpn=20, first_key=200)


class Link:
    """Two engines with one connected queue pair each, and memory to write from and to."""

    def __init__(self, left: SoftNicConfig = LEFT, right: SoftNicConfig = RIGHT, **attributes: Any) -> None:
        self.left, self.right = SoftNicEngine(left), SoftNicEngine(right)
        self.here, self.there = self.left.create_qp(psn=PSN_MASK), self.right.create_qp(psn=50)
        self.left.connect_qp(self.here.qpn, self.there, QpAttributes(**attributes))
        self.right.connect_qp(self.there.qpn, self.here, QpAttributes(**attributes))
        self.source = bytearray(np.random.default_rng(1).bytes(100_000))
        self.target = bytearray(100_000)
        self.mr_source = self.left.register_memory(memoryview(self.source))
        self.mr_target = self.right.register_memory(memoryview(self.target))

    def write(self, nbytes: int, wr_id: int = 1, imm: int = 7, now: Instant = T0) -> None:
        self.left.post_write_imm(
            self.here.qpn,
            wr_id,
            [Segment(self.mr_source.key, self.mr_source.va, nbytes)],
            remote_va=self.mr_target.va,
            rkey=self.mr_target.key,
            imm=imm,
            now=now,
        )

    def to_right(self, blocks: Sequence[Frames] | None = None, now: Instant = T0) -> None:
        self.right.handle_frames(self.left.take_output() if blocks is None else blocks, now)

    def to_left(self, now: Instant = T0) -> None:
        self.left.handle_frames(self.right.take_output(), now)


def packets(blocks: Sequence[Frames]) -> list[RocePacket]:
    return [RocePacket.decode_frame(row.tobytes(), verify=True) for block in blocks for row in block]


def block(frame: bytes | bytearray) -> Frames:
    return np.frombuffer(bytes(frame), np.uint8).reshape(1, -1)


def test_a_message_on_the_wire() -> None:
    link = Link()
    link.write(4 * 1024 + 3, imm=0x01020304)
    blocks = link.left.take_output()
    assert [len(frames) for frames in blocks] == [1, 3, 1], "the middle is one vector"
    sent = packets(blocks)
    assert [p.opcode for p in sent] == [
        Opcode.RC_WRITE_FIRST,
        *[Opcode.RC_WRITE_MIDDLE] * 3,
        Opcode.RC_WRITE_LAST_IMM,
    ]
    assert [p.bth.psn for p in sent] == [PSN_MASK, 0, 1, 2, 3]
    assert [p.bth.ack_request for p in sent] == [False] * 4 + [True]
    assert [p.ip.identification for p in sent] == [0, 1, 2, 3, 4]
    assert b"".join(p.payload for p in sent) == link.source[: 4 * 1024 + 3]
    assert [p.pad for p in sent] == [0, 0, 0, 0, 1]
    first, last = sent[0], sent[-1]
    assert first.reth is not None
    assert (first.reth.va, first.reth.rkey, first.reth.dma_length) == (
        link.mr_target.va,
        link.mr_target.key,
        4 * 1024 + 3,
    )
    assert last.imm is not None
    assert last.imm.value == 0x01020304
    for packet in sent:
        assert (packet.eth.src, packet.eth.dst) == (LEFT.mac, RIGHT.mac)
        assert (packet.ip.src, packet.ip.dst) == (LEFT.ip, RIGHT.ip)
        assert packet.bth.dest_qp == link.there.qpn
        assert packet.udp.src_port == udp_source_port(17, 20)


def test_all_packets_have_the_traffic_class_asked_for() -> None:
    link = Link(traffic_class=104)
    link.write(3000)
    sent = packets(blocks := link.left.take_output())
    link.to_right(blocks)
    sent += packets(link.right.take_output())
    assert [packet.ip.tos for packet in sent] == [104] * 4
    with pytest.raises(LocalMisuse, match="traffic class"):
        Link(traffic_class=256)


def test_all_packets_leave_from_the_udp_source_port_asked_for() -> None:
    """Acknowledgements, too: by it they come to the shard of the switch that has the ring."""
    link = Link(udp_source_port=0xFFC1)
    link.write(3000)
    sent = packets(blocks := link.left.take_output())
    link.to_right(blocks)
    sent += packets(link.right.take_output())
    assert [packet.udp.src_port for packet in sent] == [0xFFC1] * 4
    for impossible in (-1, 1 << 16):
        with pytest.raises(LocalMisuse, match="UDP source port"):
            Link(udp_source_port=impossible)


def test_the_udp_source_port_is_that_of_linux() -> None:
    """As a kernel's RoCE stack makes them (docs/protocol.md 3.2): queue pairs 17 and 17, 20 and 20."""
    assert udp_source_port(17, 17) == 0xC121
    assert udp_source_port(20, 20) == 0xC190
    assert udp_source_port(0xFFFFFF, 0x123456) == udp_source_port(0x123456, 0xFFFFFF) >= 0xC000


def test_one_ack_answers_a_batch() -> None:
    link = Link(ack_every=8)
    link.right.post_receive(link.there.qpn, 3)
    link.write(100 * 1000)
    link.to_right()
    (ack,) = packets(link.right.take_output())
    assert ack.aeth is not None
    assert (ack.opcode, ack.bth.psn, ack.aeth.syndrome, ack.aeth.msn) == (Opcode.RC_ACK, 96, 0x1F, 1)
    assert ack.bth.dest_qp == link.here.qpn
    (received,) = link.right.take_completions()
    assert (received.kind, received.imm, received.nbytes) == (CompletionKind.RECEIVE_IMM, 7, 100_000)
    assert link.target == link.source


def test_each_message_of_a_window_goes_out_whole_and_asks_once() -> None:
    fitting = QpAttributes().for_messages(3, 100 * 1024)
    assert (fitting.mtu, fitting.ack_every, fitting.outstanding_packets) == (1024, 100, 300)
    link = Link(ack_every=fitting.ack_every, outstanding_packets=fitting.outstanding_packets)
    for _ in range(3):
        link.write(100 * 1000)
    sent = packets(link.left.take_output())
    assert len(sent) == 3 * 98
    assert [i for i, packet in enumerate(sent) if packet.bth.ack_request] == [97, 195, 293]


def test_a_long_message_asks_before_its_end() -> None:
    fitting = QpAttributes(mtu=256).for_messages(1, 700 * 256)
    assert (fitting.ack_every, fitting.outstanding_packets) == (256, 700)
    assert QpAttributes().for_messages(8, 0).outstanding_packets == 8


def test_ip_ids_grow_over_retransmissions() -> None:
    link = Link()
    link.write(3000)
    link.left.take_output()
    assert link.left.deadline is not None
    link.left.handle_timer(link.left.deadline)
    again = packets(link.left.take_output())
    assert [p.ip.identification for p in again] == [3, 4]
    assert [p.bth.psn for p in again] == [PSN_MASK, PSN_MASK]
    assert link.left.statistics()["retransmits"] == 2
    assert link.left.statistics()["timeouts"] == 1


def test_a_wrong_icrc_is_dropped_silently_and_shows_as_a_gap() -> None:
    link = Link()
    link.right.post_receive(link.there.qpn, 3)
    link.write(6 * 1024)
    blocks = [frames.copy() for frames in link.left.take_output()]
    blocks[1][1, 500] ^= 1
    link.to_right(blocks)
    (nak,) = packets(link.right.take_output())
    assert nak.aeth is not None
    assert (nak.aeth.syndrome, nak.bth.psn) == (0x60, 1)
    assert link.right.statistics()["icrc_errors"] == 1
    link.left.handle_frames([block(nak.encode_frame())], T0)
    resent = link.left.take_output()
    assert [p.opcode for p in packets(resent)] == [Opcode.RC_WRITE_MIDDLE] * 3 + [Opcode.RC_WRITE_LAST_IMM]
    link.to_right(resent)
    assert link.target[: 6 * 1024] == link.source[: 6 * 1024]


def test_a_lone_packet_with_wrong_icrc_has_no_effect() -> None:
    link = Link()
    link.write(100)
    (frames,) = link.left.take_output()
    bad = frames.copy()
    bad[0, -1] ^= 1
    link.to_right([bad])
    assert link.right.take_output() == link.right.take_completions() == []
    assert link.right.statistics()["packets_received"] == 0


@pytest.mark.parametrize(
    ("counter", "changes"),
    [
        ("not_for_us", {"mac": b"\x52\x54\0\0\0\x09"}),
        ("not_for_us", {"ip": b"\x0a\0\0\x09"}),
        ("unknown_qp", {"qpn": 21}),
    ],
)
def test_packets_for_others_are_counted_and_dropped(counter: str, changes: dict[str, Any]) -> None:
    link = Link()
    other = SoftNicEngine(LEFT)
    qp = other.create_qp(psn=PSN_MASK)
    other.connect_qp(qp.qpn, replace(link.there, **changes), QpAttributes())
    other.post_write_imm(qp.qpn, 1, [], remote_va=0, rkey=0, imm=1, now=T0)
    link.to_right(other.take_output())
    assert link.right.take_output() == []
    assert link.right.statistics()[counter] == 1


def test_a_packet_from_another_source_is_dropped() -> None:
    link = Link()
    stranger = SoftNicEngine(replace(LEFT, ip=b"\x0a\0\0\x09"))
    qp = stranger.create_qp(psn=PSN_MASK)
    stranger.connect_qp(qp.qpn, link.there, QpAttributes())
    stranger.post_write_imm(qp.qpn, 1, [], remote_va=0, rkey=0, imm=1, now=T0)
    link.to_right(stranger.take_output())
    assert link.right.take_output() == []
    assert link.right.statistics()["wrong_source"] == 1


def test_garbage_is_counted() -> None:
    link = Link()
    noise = np.random.default_rng(2).integers(0, 256, (50, 90), np.uint8)
    noise[:, :6] = list(RIGHT.mac)
    link.to_right([noise, noise[:, :5], noise[:0]])
    assert link.right.take_output() == []
    assert link.right.statistics()["other_frames"] == 100


def test_sends_are_refused_by_a_fatal_nak() -> None:
    """Two-sided SEND is not offered: the requester learns it instead of waiting."""
    link = Link()
    link.write(100)
    (frames,) = link.left.take_output()
    frame = bytearray(frames[0].tobytes())
    frame[42] = Opcode.RC_SEND_ONLY
    seal(frame)
    link.to_right([block(frame)])
    (nak,) = packets(link.right.take_output())
    assert nak.aeth is not None
    assert nak.aeth.syndrome == 0x61
    link.left.handle_frames([block(nak.encode_frame())], T0)
    assert [c.status for c in link.left.take_completions()] == [Status.REMOTE_INVALID_REQUEST]
    assert link.right.statistics()["blames"] == 1


def test_a_lost_fatal_nak_is_repeated() -> None:
    link = Link()
    link.right.deregister_memory(link.mr_target)
    link.write(2000)
    link.to_right()
    link.right.take_output()  # lost
    assert link.left.deadline is not None
    link.left.handle_timer(link.left.deadline)
    link.to_right()
    link.to_left()
    assert [c.status for c in link.left.take_completions()] == [Status.REMOTE_ACCESS]


def timers_pass(link: Link, times: int, now: Instant = T0) -> Instant:
    """So many in a row on the left; what is sent meanwhile stays in its output."""
    for _ in range(times):
        assert link.left.deadline is not None
        now = link.left.deadline
        link.left.handle_timer(now)
    return now


def questions(link: Link) -> list[bytes]:
    frames = [row.tobytes() for frames in link.left.take_output() for row in frames]
    return [frame for frame in frames if frame[12:14] == b"\x08\x06"]


def test_who_gets_no_ack_asks_where_its_peer_is() -> None:
    """The answer sets the bridges on its way right."""
    link = Link(timeout=10)
    link.write(100)
    now = timers_pass(link, UNANSWERED_BEFORE_ARP - 1)
    assert questions(link) == []
    now = timers_pass(link, 1, now)
    (question,) = questions(link)
    assert question[:12] == b"\xff" * 6 + LEFT.mac
    assert question[22:42] == LEFT.mac + LEFT.ip + bytes(6) + RIGHT.ip
    assert not contradicts_itself(question)
    link.to_right([block(question)])
    (answer,) = (row.tobytes() for frames in link.right.take_output() for row in frames)
    assert answer[:12] == LEFT.mac + RIGHT.mac
    assert not contradicts_itself(answer)
    timers_pass(link, UNANSWERED_BEFORE_ARP, now)
    assert len(questions(link)) == 1
    assert link.left.statistics()["arp_questions"] == 2


def test_an_ack_says_that_the_peer_is_found() -> None:
    link = Link(timeout=10)
    link.right.post_receive(link.there.qpn, 1)
    link.write(100)
    now = timers_pass(link, UNANSWERED_BEFORE_ARP - 1)
    link.to_right(now=now)
    link.to_left(now)
    link.write(100, now=now)
    now = timers_pass(link, UNANSWERED_BEFORE_ARP - 1, now)
    assert questions(link) == []
    timers_pass(link, 1, now)
    assert len(questions(link)) == 1


def test_arp_requests_for_our_address_are_answered() -> None:
    engine = SoftNicEngine(LEFT)
    asker_mac, asker_ip = b"\x52\x54\0\0\0\2", b"\x0a\0\0\2"
    head = b"\xff" * 6 + asker_mac + bytes.fromhex("08060001080006040001") + asker_mac + asker_ip + bytes(6)
    engine.handle_frames([block(head + LEFT.ip), block(head + b"\x0a\0\0\3"), block(head[:-1])], T0)
    (reply,) = engine.take_output()
    assert reply[0].tobytes() == (
        asker_mac
        + LEFT.mac
        + bytes.fromhex("08060001080006040002")
        + LEFT.mac
        + LEFT.ip
        + asker_mac
        + asker_ip
    )
    padded = block(head + LEFT.ip + bytes(18))
    engine.handle_frames([padded], T0)
    assert engine.take_output()[0].shape == (1, 42)


def test_output_is_bounded() -> None:
    link = Link(left=replace(LEFT, output_frames_max=10))
    link.right.post_receive(link.there.qpn, 1)
    link.write(20 * 1024)
    blocks = link.left.take_output()
    assert sum(map(len, blocks)) == 10
    assert link.left.statistics()["output_lost"] == 10
    link.to_right(blocks)
    link.to_left()
    while (deadline := link.left.deadline) is not None:
        link.left.handle_timer(deadline)
        link.to_right()
        link.to_left()
    assert link.target[: 20 * 1024] == link.source[: 20 * 1024]


def test_the_completion_queue_cannot_overflow() -> None:
    link = Link(left=replace(LEFT, completions_max=3))
    for wr_id in range(3):
        link.left.post_receive(link.here.qpn, wr_id)
    with pytest.raises(LocalMisuse, match="poll first"):
        link.write(1)
    with pytest.raises(LocalMisuse, match="poll first"):
        link.left.post_receive(link.here.qpn, 9)
    link.left.destroy_qp(link.here.qpn)
    assert len(link.left.take_completions()) == 3
    qp = link.left.create_qp(psn=0)
    link.left.post_receive(qp.qpn, 1)


def test_limits_of_queue_pairs_regions_and_queues() -> None:
    engine = SoftNicEngine(replace(LEFT, qps_max=2, regions_max=1, receive_queue_max=1))
    first = engine.create_qp(psn=0)
    second = engine.create_qp(psn=0)
    with pytest.raises(LocalMisuse, match="queue pairs"):
        engine.create_qp(psn=0)
    engine.destroy_qp(first.qpn)
    assert engine.create_qp(psn=0).qpn not in {first.qpn, second.qpn}, "a number is not used again at once"
    engine.register_memory(memoryview(bytearray(1)))
    with pytest.raises(LocalMisuse, match="regions"):
        engine.register_memory(memoryview(bytearray(1)))
    engine.post_receive(second.qpn, 1)
    with pytest.raises(LocalMisuse, match="receive queue full"):
        engine.post_receive(second.qpn, 2)


def test_counters_survive_their_queue_pair() -> None:
    link = Link()
    link.write(10)
    assert link.left.deadline is not None
    link.left.handle_timer(link.left.deadline)
    before = link.left.statistics()
    assert before["retransmits"] == 1
    link.left.destroy_qp(link.here.qpn)
    assert link.left.statistics() == before
    assert link.left.deadline is None


def test_regions_do_not_touch() -> None:
    engine = SoftNicEngine(LEFT)
    regions = [engine.register_memory(memoryview(bytearray(n))) for n in (1, 4096, 4097, 8)]
    for low, high in pairwise(regions):
        assert low.va + low.nbytes < high.va
    assert len({region.key for region in regions}) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mac", b"\x01\0\0\0\0\1"),
        ("mac", b"\0"),
        ("ip", b"\0"),
        ("qps_max", 0),
        ("completions_max", 0),
        ("outstanding_packets_max", 1 << 23),
        ("first_qpn", 1),
    ],
)
def test_configuration_names_the_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(LEFT, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["remote_va", "rkey", "imm"])
def test_values_that_do_not_fit_the_wire_are_refused(field: str) -> None:
    link = Link()
    with pytest.raises(LocalMisuse, match=field):
        link.left.post_write_imm(
            link.here.qpn, 1, [], **({"remote_va": 0, "rkey": 0, "imm": 0} | {field: 1 << 64}), now=T0
        )


def test_a_remote_address_that_is_none_is_refused() -> None:
    engine = SoftNicEngine(LEFT)
    qp = engine.create_qp(psn=0)
    good = QpAddress(LEFT.mac, LEFT.ip, 5, 0)
    for remote in (replace(good, mac=b""), replace(good, ip=b""), replace(good, qpn=-1)):
        with pytest.raises(LocalMisuse, match="no address"):
            engine.connect_qp(qp.qpn, remote, QpAttributes())
    with pytest.raises(LocalMisuse, match="initial_psn"):
        engine.connect_qp(qp.qpn, replace(good, psn=-1), QpAttributes())


def test_gather_rows() -> None:
    data = np.arange(100, dtype=np.uint8)
    gather = GatherList([data[:10], data[10:10], data[10:64], data[64:]])
    assert gather.nbytes == 100
    for begin, count, row_bytes in [(0, 1, 10), (0, 2, 10), (5, 3, 20), (10, 5, 10), (10, 9, 10), (99, 1, 1)]:
        rows = gather.rows(begin, count, row_bytes)
        assert rows.shape == (count, row_bytes)
        assert rows.tobytes() == data[begin : begin + count * row_bytes].tobytes()
    assert np.shares_memory(gather.rows(10, 5, 10), data), "within one piece nothing is copied"
    assert GatherList([]).rows(0, 1, 0).shape == (1, 0)


def test_deadlines() -> None:
    deadlines = Deadlines()
    assert deadlines.due(Instant(1000)) == []
    for key, at in ((1, 50), (2, 30), (3, 30), (2, 40)):
        deadlines.arm(key, Instant(at))
    assert deadlines.earliest == 30
    assert deadlines.due(Instant(29)) == []
    assert deadlines.due(Instant(45)) == [3, 2]
    deadlines.arm(1, None)
    assert deadlines.due(Instant(1000)) == []
    for at in range(10_000):
        deadlines.arm(1, Instant(at))
    assert deadlines.earliest == 9_999
    assert len(deadlines._heap) < 100, "stale entries are swept"
