"""Selective connections, where packets arrive (docs/protocol.md 4.4): what comes behind a gap is kept."""

from __future__ import annotations

import pytest

from inaproto.core.rdma.reliable_connection import (
    ACK,
    NAK_INVALID_REQUEST,
    NAK_SEQUENCE,
    RNR_NAK,
    TIMEOUT_UNIT_NS,
)
from inaproto.core.rdma.responder import (
    Awaited,
    Deliver,
    MessageInProgress,
    PacketArrived,
    Place,
    PostReceive,
    RcResponder,
    Reply,
    ResponderClosing,
    ResponderConfig,
    ResponderFailed,
    StretchBehind,
)
from inaproto.core.rdma.selective_responder import SelectiveResponder
from inaproto.errors import InvariantBroken
from inaproto.wire.behind_gap import BehindGap
from tests.unit.test_rc_responder import (
    FIRST,
    LAST_IMM,
    MIDDLE,
    MTU,
    NOW,
    ONLY,
    ONLY_IMM,
    RKEY,
    VA,
    arrive,
    run,
)

TIMER = TIMEOUT_UNIT_NS << 14


def responder(psn: int = 10, receives: int = 4, behind_max: int = 64) -> SelectiveResponder:
    made = SelectiveResponder(ResponderConfig(initial_psn=psn, behind_max=behind_max))
    for wr_id in range(receives):
        assert made.step(PostReceive(wr_id), NOW) == []
    return made


def nak(psn: int, *arrived: int, reach: int = 0, msn: int = 0) -> Reply:
    """``arrived``: PSNs that are there."""
    bits = sum(1 << (there - psn - 1) for there in arrived)
    return Reply(psn, NAK_SEQUENCE, msn, BehindGap(reach or max(arrived) - psn, bits))


def begun(length: int = 8 * MTU, **options: int) -> SelectiveResponder:
    """Its first packet, 10, is there; the last is 17."""
    core = responder(**options)
    assert arrive(core, run(FIRST, 10, length=length)) == [Place(VA, RKEY, 0, 1)]
    return core


def test_packets_behind_a_gap_are_placed_by_their_psn_and_told() -> None:
    core = begun()
    assert arrive(core, run(MIDDLE, 13, 14)) == [Place(VA + 3 * MTU, RKEY, 0, 2), nak(11, 13, 14)]
    assert core.counters.behind_gap == 2
    assert core.view().expected_psn == 11


def test_what_was_placed_behind_a_gap_before_it_is_told_is_as_if_it_came_now() -> None:
    core, other = begun(), begun()
    for psn, packets in ((13, 1), (14, 1), (12, 1), (16, 1)):
        assert core.room_behind(psn) is not None
        told = arrive(other, run(MIDDLE, *range(psn, psn + packets)))
        assert core.step(StretchBehind(psn, packets), NOW) == told[1:]
        assert core.counters == other.counters
    assert core.counters.behind_gap == 4
    assert core.counters.naks == 2, "two gaps"
    for psn in (11, 15):
        assert arrive(core, run(MIDDLE, psn)) == arrive(other, run(MIDDLE, psn))
    assert core.view() == other.view()


def test_where_there_is_room_behind_a_gap() -> None:
    """Up to the last packet of the message, what has come, and as far as packets are kept."""
    core = begun()
    assert core.room_behind(12) == (MessageInProgress(VA + 2 * MTU, RKEY, 6 * MTU, 8 * MTU), 5)
    arrive(core, run(MIDDLE, 14), run(MIDDLE, 16))
    assert core.room_behind(12) == (MessageInProgress(VA + 2 * MTU, RKEY, 6 * MTU, 8 * MTU), 2)
    for psn, why in (
        (10, "it came"),
        (11, "it is expected"),
        (14, "it came behind the gap"),
        (17, "it ends its message"),
        (18, "nobody knows its message"),
    ):
        assert core.room_behind(psn) is None, why
    assert begun(length=7 * MTU + 1).room_behind(12) == (
        MessageInProgress(VA + 2 * MTU, RKEY, 5 * MTU + 1, 7 * MTU + 1),
        5,
    )
    near = begun(behind_max=3)
    assert [near.room_behind(psn) is None for psn in (13, 14, 15, 16)] == [False, False, True, True]
    assert near.room_behind(13) == (MessageInProgress(VA + 3 * MTU, RKEY, 5 * MTU, 8 * MTU), 2)
    near.step(ResponderClosing(), NOW)
    assert near.room_behind(13) is None


@pytest.mark.parametrize("stretch", [(11, 1), (13, 3), (13, 0), (17, 1)])
def test_nothing_else_may_be_placed_behind_a_gap(stretch: tuple[int, int]) -> None:
    core = begun()
    arrive(core, run(MIDDLE, 15))
    with pytest.raises(InvariantBroken, match="was placed where there is room for"):
        core.step(StretchBehind(*stretch), NOW)


def test_who_keeps_nothing_behind_a_gap_has_no_room_there() -> None:
    core = RcResponder(ResponderConfig(initial_psn=10))
    assert core.room_behind(12) is None
    with pytest.raises(InvariantBroken, match="nothing is kept behind a gap"):
        core.step(StretchBehind(12, 1), NOW)


def test_while_there_is_a_gap_whatever_comes_is_told() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 12))
    assert arrive(core, run(MIDDLE, 13)) == [Place(VA + 3 * MTU, RKEY, 0, 1), nak(11, 12, 13)]
    assert arrive(core, run(MIDDLE, 14, asks=(14,))) == [
        Place(VA + 4 * MTU, RKEY, 0, 1),
        nak(11, 12, 13, 14),
    ]
    assert core.counters.naks == 1, "one gap"


def test_what_may_be_placed_before_it_is_told_is_in_order() -> None:
    core = begun()
    assert core.awaits == Awaited(11, core.place_at, True)
    arrive(core, run(MIDDLE, 13))
    assert core.awaits is None


def test_where_a_packet_goes_follows_from_its_psn() -> None:
    core = begun()
    arrive(core, run(FIRST, 18, length=3 * MTU))
    assert core.place_of(12) == MessageInProgress(VA + 2 * MTU, RKEY, 6 * MTU, 8 * MTU)
    assert core.place_of(19) == MessageInProgress(VA + MTU, RKEY, 2 * MTU, 3 * MTU)
    assert core.place_of(21) is None, "nobody knows its message"
    for psn in (10, 11, 11 + (1 << 23)):
        assert core.place_of(psn) == core.place_at, "what came before may lead up to the expected one"
    core.step(ResponderClosing(), NOW)
    assert core.place_of(19) is None


@pytest.mark.parametrize("length", [8 * MTU, 7 * MTU + 1])
def test_a_run_is_placed_up_to_the_last_packet_of_its_message(length: int) -> None:
    core = begun(length=length)
    assert arrive(core, run(MIDDLE, 13, 14, 15, 16, 17)) == [
        Place(VA + 3 * MTU, RKEY, 0, 4),
        nak(11, 13, 14, 15, 16, reach=6),
    ]
    assert core.counters.out_of_sequence == 1


def test_of_a_run_behind_a_gap_what_has_come_is_left_out() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 13))
    assert arrive(core, run(MIDDLE, 12, 13, 14)) == [
        Place(VA + 2 * MTU, RKEY, 0, 1),
        Place(VA + 4 * MTU, RKEY, 2, 1),
        nak(11, 12, 13, 14),
    ]
    assert arrive(core, run(MIDDLE, 12, 13, 14)) == [nak(11, 12, 13, 14)]
    assert core.counters.duplicates == 4


def test_another_gap_is_told() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 12))
    assert arrive(core, run(MIDDLE, 15)) == [Place(VA + 5 * MTU, RKEY, 0, 1), nak(11, 12, 15)]
    assert core.counters.naks == 2


def test_what_comes_into_a_gap_is_told_and_the_last_closes_it() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 13, 16))
    assert arrive(core, run(MIDDLE, 11)) == [Place(VA + MTU, RKEY, 0, 1), nak(12, 13, 16)]
    assert arrive(core, run(MIDDLE, 15)) == [Place(VA + 5 * MTU, RKEY, 0, 1), nak(12, 13, 15, 16)]
    assert arrive(core, run(MIDDLE, 12)) == [Place(VA + 2 * MTU, RKEY, 0, 1), nak(14, 15, 16)]
    assert arrive(core, run(MIDDLE, 14)) == [Place(VA + 4 * MTU, RKEY, 0, 1), Reply(16, ACK, 0)]
    assert core.place_at == MessageInProgress(VA + 7 * MTU, RKEY, MTU, 8 * MTU)


def test_a_packet_is_placed_once() -> None:
    core = begun()
    arrive(core, run(MIDDLE, 12))
    assert arrive(core, run(MIDDLE, 12)) == [nak(11, 12)]
    assert arrive(core, run(MIDDLE, 11, 12, 13)) == [
        Place(VA + MTU, RKEY, 0, 1),
        Place(VA + 3 * MTU, RKEY, 2, 1),
        Reply(12, ACK, 0),
    ]
    assert core.counters.duplicates == 2
    assert core.counters.packets == 4


def test_a_message_is_delivered_when_all_before_it_is_there() -> None:
    core = begun()
    length = 2 * MTU
    assert arrive(core, run(LAST_IMM, 17, imm=1))[0] == Place(VA + 7 * MTU, RKEY, 0, 1)
    arrive(core, run(FIRST, 18, length=length), run(LAST_IMM, 19, imm=2))
    arrive(core, run(MIDDLE, 12, 13, 14, 15, 16))
    assert arrive(core, run(MIDDLE, 11)) == [
        Place(VA + MTU, RKEY, 0, 1),
        Deliver(0, 1, 8 * MTU),
        Deliver(1, 2, length),
        Reply(19, ACK, 2),
    ]


def test_a_packet_whose_message_has_not_begun_is_as_if_lost_but_told_that_it_came() -> None:
    core = begun()
    assert arrive(core, run(MIDDLE, 20, 21)) == [nak(11, reach=10)]
    assert core.counters.out_of_sequence == 2
    assert arrive(core, run(FIRST, 18, length=5 * MTU)) == [
        Place(VA, RKEY, 0, 1),
        nak(11, 18, reach=10),
    ]
    assert arrive(core, run(MIDDLE, 20)) == [Place(VA + 2 * MTU, RKEY, 0, 1), nak(11, 18, 20, reach=10)]


@pytest.mark.parametrize(
    "wrong",
    [
        run(FIRST, 15, length=3 * MTU),
        run(MIDDLE, 17),
        run(LAST_IMM, 16),
        run(LAST_IMM, 17, nbytes=5),
        run(MIDDLE, 13, nbytes=MTU - 4),
        run(MIDDLE, 13, permitted=False),
        run(0x04, 13),
    ],
)
def test_what_contradicts_what_is_known_is_as_if_lost(wrong: object) -> None:
    core = begun()
    (told,) = arrive(core, wrong)  # type: ignore[arg-type]
    assert isinstance(told, Reply)
    assert told.behind is not None
    assert not told.behind.arrived
    assert core.counters.out_of_sequence == 1


def test_a_message_over_one_that_has_begun_ends_the_queue_pair() -> None:
    core = responder()
    arrive(core, run(FIRST, 13, length=3 * MTU))
    assert arrive(core, run(FIRST, 16, length=3 * MTU))[0] == Place(VA, RKEY, 0, 1), "it begins behind it"
    actions = arrive(core, run(FIRST, 10, length=8 * MTU, asks=(10,)))
    assert [action for action in actions if isinstance(action, Reply)] == [Reply(10, NAK_INVALID_REQUEST, 0)]
    assert isinstance(actions[-1], ResponderFailed)


def test_no_more_is_kept_than_the_bound() -> None:
    core = begun(behind_max=3)
    assert arrive(core, run(MIDDLE, 13, 14, 15)) == [Place(VA + 3 * MTU, RKEY, 0, 2), nak(11, 13, 14)]
    assert arrive(core, run(MIDDLE, 16)) == []
    assert arrive(core, run(MIDDLE, 13, 14, 15)) == [nak(11, 13, 14)]
    assert core.counters.out_of_sequence == 3
    assert arrive(begun(behind_max=3), run(MIDDLE, 15)) == []


def test_without_a_receive_a_packet_is_forgotten_until_it_comes_again() -> None:
    core = responder(receives=0)
    only = PacketArrived(ONLY_IMM, 11, True, 8, (VA, RKEY, 8), 5, True)
    before = PacketArrived(0x0A, 10, False, 8, (VA, RKEY, 8), None, True)
    assert core.step(only, NOW) == [Place(VA, RKEY, 0, 1), nak(10, 11)]
    assert core.step(before, NOW) == [Place(VA, RKEY, 0, 1), Reply(11, RNR_NAK | 12, 1)]
    core.step(PostReceive(3), NOW)
    assert core.step(only, NOW) == [Place(VA, RKEY, 0, 1), Deliver(3, 5, 8), Reply(11, ACK, 2)]
    assert core.counters.packets == 2


def test_without_a_receive_what_is_behind_the_forgotten_packet_is_kept() -> None:
    core = responder(receives=0)
    arrive(core, run(ONLY_IMM, 11, nbytes=8, length=8), run(ONLY_IMM, 12, nbytes=8, length=8, imm=6))
    arrive(core, run(ONLY, 10, nbytes=8, length=8))
    for wr_id in (0, 1):
        core.step(PostReceive(wr_id), NOW)
    assert arrive(core, run(ONLY_IMM, 11, nbytes=8, length=8)) == [
        Place(VA, RKEY, 0, 1),
        Deliver(0, 77, 8),
        Deliver(1, 6, 8),
        Reply(12, ACK, 3),
    ]
    assert core.counters.packets == 3


def test_without_a_receive_the_message_of_the_forgotten_packet_stays_in_progress() -> None:
    core = begun(length=3 * MTU, receives=0)
    arrive(core, run(LAST_IMM, 12))
    assert arrive(core, run(MIDDLE, 11)) == [Place(VA + MTU, RKEY, 0, 1), Reply(12, RNR_NAK | 12, 0)]
    core.step(PostReceive(0), NOW)
    assert arrive(core, run(LAST_IMM, 12))[:2] == [Place(VA + 2 * MTU, RKEY, 0, 1), Deliver(0, 77, 3 * MTU)]


def test_in_order_all_is_as_ever() -> None:
    core = begun()
    assert arrive(core, run(MIDDLE, 11, 12, asks=(12,))) == [Place(VA + MTU, RKEY, 0, 2), Reply(12, ACK, 0)]
    assert arrive(core, run(MIDDLE, 11)) == [Reply(12, ACK, 0)]
    short = run(ONLY_IMM, 10, nbytes=8, length=8)
    assert arrive(responder(receives=0), short) == [Reply(10, RNR_NAK | 12, 0)]
