"""What the softnic engine takes, refuses and gives back: configuration, queue pairs, work requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.rdma.nic import UNANSWERED_BEFORE_ARP
from inaproto.core.rdma.queue_pair import udp_source_port
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.ports import Completion, CompletionKind, QpAttributes, Status
from inaproto.units import PSN_MASK, Instant
from inaproto_adapters.softnic import SoftNicEngine
from tests.unit.test_softnic_engine import LEFT, RIGHT, T0, Link, packets, questions, timers_pass

SEND, RECEIVE = CompletionKind.SEND, CompletionKind.RECEIVE_IMM
NOTHING_USED = dict.fromkeys(
    (
        "queue_pairs",
        "regions",
        "work_requests",
        "output_frames",
        "payloads",
        "messages",
        "unacknowledged",
    ),
    0,
)


def refused(does: Callable[..., object], words: str, *arguments: Any, **named: Any) -> None:
    """In just these words."""
    with pytest.raises(LocalMisuse) as caught:
        does(*arguments, **named)
    assert str(caught.value) == words


# --- configuration


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("mac", (b"\0\0\0\0\0\1", b"\xfe\0\0\0\0\0"), (b"\1\0\0\0\0\0", b"\0" * 5, b"\0" * 7)),
        ("ip", (b"\0\0\0\0",), (b"\0" * 3, b"\0" * 5)),
        *((f"{name}_max", (1,), (0,)) for name in ("qps", "regions", "send_queue", "receive_queue")),
        ("completions_max", (1,), (0,)),
        ("outstanding_packets_max", (1, PSN_MASK >> 1), (0, (PSN_MASK >> 1) + 1)),
        ("first_qpn", (2, PSN_MASK), (1, PSN_MASK + 1)),
    ],
)
def test_where_the_limits_of_a_configuration_lie(field: str, good: tuple[Any], bad: tuple[Any]) -> None:
    for value in good:
        assert getattr(replace(LEFT, **{field: value}), field) == value
    for value in bad:
        with pytest.raises(ConfigError, match=rf"^{field} must be "):
            replace(LEFT, **{field: value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mac": b"\1\2\3"}, "mac must be 6 bytes of a unicast address, not '01:02:03'"),
        ({"outstanding_packets_max": 0}, "outstanding_packets_max must be 1 to 8388607"),
        ({"first_qpn": 0}, "first_qpn must be 2 to 0xffffff (0 and 1 are reserved)"),
    ],
)
def test_a_wrong_configuration_is_told_in_full(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(LEFT, **changes)
    assert str(caught.value) == words


# --- queue pairs


def test_numbers_of_queue_pairs_go_round_past_the_reserved_ones() -> None:
    engine = SoftNicEngine(replace(LEFT, first_qpn=PSN_MASK - 1))
    made = [engine.create_qp(psn=psn) for psn in (0, PSN_MASK, 1, 1)]
    assert [qp.qpn for qp in made] == [PSN_MASK - 1, PSN_MASK, 2, 3]
    assert [(qp.mac, qp.ip, qp.psn) for qp in made[:2]] == [
        (LEFT.mac, LEFT.ip, 0),
        (LEFT.mac, LEFT.ip, PSN_MASK),
    ]
    for psn in (-1, PSN_MASK + 1):
        refused(engine.create_qp, f"first PSN {psn} does not fit 24 bits", psn=psn)


def test_a_queue_pair_is_connected_once_and_within_the_nics_mtu() -> None:
    engine = SoftNicEngine(replace(LEFT, mtu_max=1024, qps_max=1))
    qpn = engine.create_qp(psn=0).qpn
    refused(lambda: engine.create_qp(psn=0), "all 1 queue pairs are in use")
    peer = replace(RIGHT_QP, qpn=0)
    refused(
        lambda: engine.connect_qp(qpn, peer, QpAttributes(mtu=2048)), "MTU 2048 is more than this NIC's 1024"
    )
    refused(
        lambda: engine.connect_qp(qpn, peer, QpAttributes(mtu=1000)),
        "MTU 1000 is none of (256, 512, 1024, 2048, 4096)",
    )
    refused(lambda: engine.require_connected(qpn), f"queue pair {qpn} is not connected")
    engine.connect_qp(qpn, peer, QpAttributes(mtu=1024))
    engine.require_connected(qpn)
    refused(
        lambda: engine.connect_qp(qpn, peer, QpAttributes(mtu=1024)), f"queue pair {qpn} is connected already"
    )


RIGHT_QP = SoftNicEngine(RIGHT).create_qp(psn=0)


@pytest.mark.parametrize(
    ("remote", "attributes", "words"),
    [
        ({"mac": b"\0" * 5}, {}, "is no address of a queue pair"),
        ({"mac": b"\0" * 7}, {}, "is no address of a queue pair"),
        ({"ip": b"\0" * 5}, {}, "is no address of a queue pair"),
        ({"qpn": -1}, {}, "is no address of a queue pair"),
        ({"qpn": PSN_MASK + 1}, {}, "is no address of a queue pair"),
        ({}, {"traffic_class": -1}, "traffic class -1 is no byte"),
        ({}, {"traffic_class": 256}, "traffic class 256 is no byte"),
        ({}, {"timeout": 32}, "queue pair 17 cannot be connected: timeout must be 0 to 31, not 32"),
        ({}, {"ack_every": 0}, "queue pair 17 cannot be connected: ack_every must be 1 to 16777215, not 0"),
        ({}, {"retry_count": 8}, "queue pair 17 cannot be connected: retry_count must be 0 to 7, not 8"),
        ({}, {"rnr_retry": 8}, "queue pair 17 cannot be connected: rnr_retry must be 0 to 7, not 8"),
        ({"psn": -1}, {}, "queue pair 17 cannot be connected: "),
    ],
)
def test_what_cannot_be_connected_stays_unconnected(
    remote: dict[str, Any], attributes: dict[str, Any], words: str
) -> None:
    engine = SoftNicEngine(LEFT)
    qpn = engine.create_qp(psn=0).qpn
    with pytest.raises(LocalMisuse) as caught:
        engine.connect_qp(qpn, replace(RIGHT_QP, **remote), QpAttributes(**attributes))
    assert words in str(caught.value)
    assert "psn" not in remote or str(caught.value).startswith(words)
    engine.connect_qp(qpn, replace(RIGHT_QP, qpn=PSN_MASK), QpAttributes(traffic_class=255))


def test_the_source_port_takes_every_bit_of_both_numbers() -> None:
    """Folded at 20 and at 40 bits, then at 14, as Linux does it."""
    for here, there in ((17, 20), (0xABCDEF, 0xFEDCBA), (0xFFFFFF, 0xFFFFFF), (0x800001, 0xC00003), (1, 2)):
        product = here * there
        label = (product ^ product >> 20 ^ (product ^ product >> 20) >> 40) % (1 << 20)
        assert udp_source_port(here, there) == 0xC000 + (label % (1 << 14) ^ label // (1 << 14)), (
            here,
            there,
        )


@pytest.mark.parametrize(
    "does",
    [
        lambda engine: engine.connect_qp(99, RIGHT_QP, QpAttributes()),
        lambda engine: engine.require_connected(99),
        lambda engine: engine.post_receive(99, 1),
        lambda engine: engine.post_write_imm(99, 1, [], remote_va=0, rkey=0, imm=0, now=T0),
        lambda engine: engine.destroy_qp(99),
    ],
    ids=["connect", "require", "receive", "write", "destroy"],
)
def test_a_queue_pair_that_is_not_there(does: Callable[[SoftNicEngine], None]) -> None:
    refused(lambda: does(SoftNicEngine(LEFT)), "there is no queue pair 99")


def test_attributes_and_limits_reach_the_connection() -> None:
    """Each of them shows in what is sent, and when."""
    link = Link(
        replace(LEFT, outstanding_packets_max=4, send_queue_max=2),
        mtu=256,
        ack_every=2,
        timeout=3,
        retry_count=1,
    )
    link.write(256 * 6)
    sent = packets(blocks := link.left.take_output())
    link.to_right(blocks)
    assert link.target[: 256 * 4] == link.source[: 256 * 4], "the peer expects packets of that size"
    assert [len(packet.payload) for packet in sent] == [256] * 4
    assert [packet.bth.ack_request for packet in sent] == [False, True] * 2
    assert link.left.deadline == 4096 << 3
    link.write(1, wr_id=2)
    refused(lambda: link.write(1, wr_id=3), "send queue full: 2 writes are not completed yet")
    timers_pass(link, 2)
    assert [(one.wr_id, one.status) for one in link.left.take_completions()] == [
        (1, Status.RETRY_EXCEEDED),
        (2, Status.FLUSHED),
    ]


@pytest.mark.parametrize("rnr_retry", [0, 1])
def test_a_receiver_that_is_not_ready_is_asked_as_often_as_allowed(rnr_retry: int) -> None:
    link = Link(rnr_retry=rnr_retry)
    link.write(1)
    for _ in range(rnr_retry + 1):
        link.to_right()
        link.to_left()
        now = link.left.deadline
        if now is not None:
            link.left.handle_timer(Instant(now - 1))
            assert link.left.take_output() == [], "too early"
            link.left.handle_timer(now)
    assert [one.status for one in link.left.take_completions()] == [Status.RNR_RETRY_EXCEEDED]
    assert link.left.deadline is None
    assert (link.left.statistics()["rnr_naks_received"], link.left.statistics()["timeouts"]) == (
        rnr_retry + 1,
        0,
    )


def test_waiting_for_a_receive_is_no_reason_to_ask_where_the_peer_is() -> None:
    link = Link()
    link.write(1)
    for _ in range(7):
        link.to_right()
        link.to_left()
        timers_pass(link, 1)
    timers_pass(link, UNANSWERED_BEFORE_ARP - 1)
    assert questions(link) == [], "the end of that wait is not one of the timers that count"
    timers_pass(link, 1)
    assert len(questions(link)) == 1
    assert link.left.requester_steps == 1 + 7 * 2 + UNANSWERED_BEFORE_ARP


@pytest.mark.parametrize("spread", [True, False])
def test_timers_are_spread_by_the_peers_number_or_not_at_all(spread: bool) -> None:
    waits = []
    for first_qpn in (20, 21):
        link = Link(right=replace(RIGHT, first_qpn=first_qpn), timeout=10, spread_timers=spread)
        link.write(1)
        fourth = timers_pass(link, 4)
        waits.append(timers_pass(link, 1) - fourth)
    assert (waits[0] != waits[1]) == spread
    assert spread or waits == [4096 << 14] * 2


# --- work requests


def test_receives_posted_before_the_connection_are_kept_in_order_and_bounded() -> None:
    left, right = SoftNicEngine(LEFT), SoftNicEngine(replace(RIGHT, receive_queue_max=2))
    here, there = left.create_qp(psn=0), right.create_qp(psn=0)
    right.post_receive(there.qpn, 5)
    right.post_receive(there.qpn, 6)
    full = "receive queue full: 2 receives are not used yet"
    refused(lambda: right.post_receive(there.qpn, 7), full)
    right.connect_qp(there.qpn, here, QpAttributes())
    refused(lambda: right.post_receive(there.qpn, 7), full)
    assert right.resources["work_requests"] == 2
    left.connect_qp(here.qpn, there, QpAttributes())
    for number in (1, 2):
        left.post_write_imm(here.qpn, number, [], remote_va=0, rkey=0, imm=number, now=T0)
    right.handle_frames(left.take_output(), T0)
    assert right.take_completions() == [
        Completion(there.qpn, RECEIVE, 5, Status.SUCCESS, 1, 0),
        Completion(there.qpn, RECEIVE, 6, Status.SUCCESS, 2, 0),
    ]


def test_a_queue_pair_destroyed_unconnected_gives_its_receives_back() -> None:
    engine = SoftNicEngine(LEFT)
    qpn = engine.create_qp(psn=0).qpn
    refused(
        lambda: engine.post_write_imm(qpn, 1, [], remote_va=0, rkey=0, imm=0, now=T0),
        f"queue pair {qpn} is not connected",
    )
    engine.post_receive(qpn, 8)
    engine.destroy_qp(qpn)
    flushed = [Completion(qpn, RECEIVE, 8, Status.FLUSHED)]
    seen = engine.has_completions, engine.take_completions(), engine.has_completions
    assert seen == (True, flushed, False)
    assert engine.resources == NOTHING_USED


def test_the_widest_values_travel_and_one_more_is_refused() -> None:
    link = Link()
    widest = {"remote_va": (1 << 64) - 1, "rkey": (1 << 32) - 1, "imm": (1 << 32) - 1}
    for field, value in widest.items():
        for wrong in (value + 1, -1):
            told = widest | {field: wrong}
            words = (
                f"remote_va {told['remote_va']} must fit 64 bits, rkey {told['rkey']} and immediate "
                f"{told['imm']} 32 bits each"
            )
            refused(link.left.post_write_imm, words, link.here.qpn, 1, [], **told, now=T0)
    assert link.left.resources == NOTHING_USED | {"queue_pairs": 1, "regions": 1}
    link.left.post_write_imm(link.here.qpn, 1, [], **widest, now=T0)
    link.left.post_write_imm(link.here.qpn, 2, [], remote_va=0, rkey=0, imm=0, now=T0)
    for packet, values in zip(packets(link.left.take_output()), (widest.values(), (0, 0, 0)), strict=True):
        assert packet.reth is not None
        assert packet.imm is not None
        assert (packet.reth.va, packet.reth.rkey, packet.imm.value) == tuple(values)


def test_what_is_in_use_from_the_first_post_to_the_last_poll() -> None:
    link = Link()
    link.right.post_receive(link.there.qpn, 3)
    idle = NOTHING_USED | {"queue_pairs": 1, "regions": 1}
    link.write(5000)
    link.write(10, wr_id=2)
    busy = {"work_requests": 2, "output_frames": 6, "payloads": 2, "messages": 2, "unacknowledged": 6}
    assert link.left.resources == idle | busy
    link.to_right()
    assert link.left.resources == idle | busy | {"output_frames": 0}
    assert link.right.resources == idle | {"work_requests": 1, "output_frames": 1}
    assert link.right.take_completions() == [Completion(20, RECEIVE, 3, Status.SUCCESS, 7, 5000)]
    link.to_left()
    left_over = {"payloads": 1, "messages": 1, "unacknowledged": 1}
    assert link.left.resources == idle | left_over | {"work_requests": 2}
    assert link.left.take_completions() == [Completion(17, SEND, 1, Status.SUCCESS, 0, 5000)]
    assert link.left.resources == idle | left_over | {"work_requests": 1}
    link.left.destroy_qp(link.here.qpn)
    assert link.left.take_completions() == [Completion(17, SEND, 2, Status.FLUSHED, 0, 10)]
    link.left.deregister_memory(link.mr_source)
    assert link.left.resources == NOTHING_USED


def test_a_failed_queue_pair_flushes_both_halves_and_what_comes_later() -> None:
    """Of the side that gave up, and of the side that was wronged."""
    link = Link()
    for number in (5, 6):
        link.left.post_receive(link.here.qpn, number)
        link.right.post_receive(link.there.qpn, number)
    link.right.post_write_imm(link.there.qpn, 9, [], remote_va=0, rkey=0, imm=0, now=T0)
    link.right.take_output()
    link.right.deregister_memory(link.mr_target)
    link.write(100)
    link.write(200, wr_id=2)
    link.to_right()
    link.to_left()
    assert link.right.take_completions() == [
        Completion(20, RECEIVE, 5, Status.FLUSHED),
        Completion(20, RECEIVE, 6, Status.FLUSHED),
        Completion(20, SEND, 9, Status.FLUSHED),
    ]
    assert link.left.take_completions() == [
        Completion(17, SEND, 1, Status.REMOTE_ACCESS, 0, 100),
        Completion(17, SEND, 2, Status.FLUSHED, 0, 200),
        Completion(17, RECEIVE, 5, Status.FLUSHED),
        Completion(17, RECEIVE, 6, Status.FLUSHED),
    ]
    link.left.post_receive(link.here.qpn, 7)
    link.write(1, wr_id=8)
    assert link.left.resources["work_requests"] == 2
    assert link.left.take_completions() == [
        Completion(17, RECEIVE, 7, Status.FLUSHED),
        Completion(17, SEND, 8, Status.FLUSHED),
    ]
    assert link.left.take_output() == []
    assert (link.left.deadline, link.right.deadline) == (None, None)
    steps = link.left.requester_steps, link.left.responder_steps
    assert steps == (3, 2), "two writes and a NAK; two receives"
