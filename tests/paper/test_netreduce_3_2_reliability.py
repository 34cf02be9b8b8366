"""NetReduce section 3.2, "Reliability": what is lost comes again by RC's go-back-N, and by nothing else.

The section takes go-back-N as given ("the sender retransmits the packets from the lost one on"). Three ways
to get it almost right cost only time in a simulated world, so they are pinned here: to resend the missing
packet alone, to go back once more for every repeated NAK, and to go back to the wrong place on a timeout.
A timeout proves no loss where results wait for the slowest rank: it asks, and sends the rest when the
receiver's answer says from where on.
What a rank may take for a result, and what the switch may sum, belongs to the same promise: nothing but
this ring's packets, and nothing that was not summed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.host.engines.in_network import (
    Operation,
    PostMessage,
    ResultArrived,
    RingBroken,
    RingConfig,
    RingEngine,
    Submit,
)
from inaproto.core.rdma.reliable_connection import ACK, NAK_SEQUENCE
from inaproto.core.rdma.requester import (
    AckArrived,
    PostWrite,
    RcRequester,
    RequesterAction,
    RequesterConfig,
    TimerExpired,
    Transmit,
)
from inaproto.errors import Blame
from inaproto.units import Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.ina_header import FLAG_RESULT, Dtype, InaHeader, Op
from tests.accelerators import EACH_ACCELERATOR
from tests.unit.switched_ring import SwitchedRing, by_port, others

FIRST_PSN = 100
ROUND_TRIP_NS = 1000


def requester(*messages: int) -> tuple[RcRequester, list[int]]:
    """With messages of so many packets posted, and the PSNs that went out."""
    made = RcRequester(RequesterConfig(initial_psn=FIRST_PSN, ack_every=4))
    actions: list[RequesterAction] = []
    for number, packets in enumerate(messages):
        actions += made.step(PostWrite(number, packets * 1024, 0x1000, 7, number), Instant(0))
    return made, psns(actions)


def psns(actions: list[RequesterAction]) -> list[int]:
    return [
        psn
        for sent in actions
        if isinstance(sent, Transmit)
        for psn in range(sent.psn, sent.psn + sent.count)
    ]


def test_a_nak_brings_every_packet_from_the_missing_one_on() -> None:
    nic, first = requester(4, 4)
    assert first == list(range(100, 108))
    again = psns(nic.step(AckArrived(102, NAK_SEQUENCE, 0), Instant(ROUND_TRIP_NS)))
    for psn in range(102, 108):
        again += psns(nic.step(AckArrived(psn, ACK, 0), Instant(2 * ROUND_TRIP_NS)))
    assert again == list(range(102, 108)), "each once more, in order, and none left out"


def test_a_timeout_brings_every_packet_from_the_first_unacknowledged_on() -> None:
    """A few to ask where the receiver is; all the rest, in order, as soon as it says."""
    nic, _ = requester(4, 4, 4)
    nic.step(AckArrived(101, ACK, 0), Instant(ROUND_TRIP_NS))
    deadline = nic.deadline
    assert deadline is not None
    assert psns(nic.step(TimerExpired(), deadline)) == [102, 102]
    again = psns(nic.step(AckArrived(102, ACK, 0), deadline))
    assert again == list(range(103, 112))


def test_one_gap_brings_one_go_back() -> None:
    nic, _ = requester(4, 4)
    nic.step(AckArrived(103, ACK, 0), Instant(ROUND_TRIP_NS))
    nak = AckArrived(104, NAK_SEQUENCE, 0)
    assert psns(nic.step(nak, Instant(2 * ROUND_TRIP_NS))) == list(range(104, 108))
    assert psns(nic.step(nak, Instant(2 * ROUND_TRIP_NS + 1))) == [], "no answer to the resent packets yet"


@EACH_ACCELERATOR
@pytest.mark.parametrize(
    ("field", "value", "rule"), [("key", 0xBAD, "wrong key"), ("epoch", 4, "wrong epoch")]
)
def test_the_switch_sums_for_the_ring_and_its_epoch_alone(field: str, value: int, rule: str) -> None:
    ring = SwitchedRing(3)
    foreign: dict[str, Any] = {field: value}
    (blame,) = others(ring.arrive(0, ring.packet(0, 0, 0, **foreign)))
    assert isinstance(blame, Blame)
    assert blame.rule == rule
    assert by_port(ring.finish(0)) == ring.results(0), "and the ring goes on"


def test_a_rank_takes_nothing_for_a_result_that_was_not_summed() -> None:
    engine = RingEngine(RingConfig(ring_id=RingId(7), epoch=Epoch(1), key=9, rank=Rank(0), ring_size=2))
    (post,) = engine.step(Submit(Operation(OpIndex(0), Dtype.F32, Op.SUM, 400, 5)), Instant(0))
    assert isinstance(post, PostMessage)
    raw = replace(InaHeader.decode(post.header), rank=1)
    blame, _, broken = engine.step(ResultArrived(0, 440, raw.encode()), Instant(0))
    assert isinstance(blame, Blame)
    assert blame.rule == "result not aggregated"
    assert isinstance(broken, RingBroken)

    other = RingEngine(engine.config)
    other.step(Submit(Operation(OpIndex(0), Dtype.F32, Op.SUM, 400, 5)), Instant(0))
    summed = replace(raw, flags=raw.flags | FLAG_RESULT)
    assert not [
        said
        for said in other.step(ResultArrived(0, 440, summed.encode()), Instant(0))
        if isinstance(said, Blame)
    ]
