"""RC responder, rule by rule, on vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.rdma.reliable_connection import (
    ACK,
    NAK_INVALID_REQUEST,
    NAK_REMOTE_ACCESS,
    NAK_SEQUENCE,
    RNR_NAK,
    Outcome,
)
from inaproto.core.rdma.responder import (
    Deliver,
    MessageInProgress,
    PacketArrived,
    Place,
    PostReceive,
    RcResponder,
    ReceiveFlushed,
    Reply,
    ResponderAction,
    ResponderClosing,
    ResponderConfig,
    ResponderFailed,
    ResponderState,
    RunArrived,
)
from inaproto.errors import Blame, ConfigError, LocalMisuse
from inaproto.units import PSN_MASK, Instant
from inaproto.wire.roce import Opcode

NOW = Instant(5)
VA, RKEY = 0x10000, 9
MTU = 1024
FIRST, MIDDLE = Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_MIDDLE
LAST, LAST_IMM = Opcode.RC_WRITE_LAST, Opcode.RC_WRITE_LAST_IMM
ONLY, ONLY_IMM = Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM
BYTES_MAX = 1 << 31


def responder(psn: int = 10, receives: int = 4) -> RcResponder:
    made = RcResponder(ResponderConfig(initial_psn=psn))
    for wr_id in range(receives):
        assert made.step(PostReceive(wr_id), NOW) == []
    return made


def run(
    opcode: int,
    *psns: int,
    nbytes: int = MTU,
    length: int = 0,
    imm: int = 77,
    asks: tuple[int, ...] = (),
    permitted: bool = True,
) -> RunArrived:
    """A run of packets; ``length`` is the RETH's for opcodes that have one, ``asks`` the PSNs with AckReq."""
    return RunArrived(
        opcode=opcode,
        psn=np.array(psns, np.int64),
        ack_request=np.isin(psns, asks),
        payload_bytes=nbytes,
        reth=(VA, RKEY, length) if opcode in {FIRST, ONLY, ONLY_IMM} else None,
        imm=imm if opcode in {LAST_IMM, ONLY_IMM} else None,
        permitted=permitted,
    )


def arrive(core: RcResponder, *runs: RunArrived) -> list[ResponderAction]:
    return [action for event in runs for action in core.step(event, NOW)]


def test_a_message_of_six_packets_in_three_runs() -> None:
    core = responder()
    length = 5 * MTU + 3
    assert arrive(core, run(FIRST, 10, length=length)) == [Place(VA, RKEY, 0, 1)]
    assert arrive(core, run(MIDDLE, 11, 12, 13, 14, asks=(13,))) == [
        Place(VA + MTU, RKEY, 0, 4),
        Reply(14, ACK, 0),
    ]
    assert core.place_at == MessageInProgress(VA + 5 * MTU, RKEY, 3, length)
    assert arrive(core, run(LAST_IMM, 15, nbytes=3, asks=(15,))) == [
        Place(VA + 5 * MTU, RKEY, 0, 1),
        Deliver(0, 77, length),
        Reply(15, ACK, 1),
    ]
    assert core.view().in_progress is None
    assert core.view().receives == 3


def test_without_ack_request_nothing_is_answered() -> None:
    core = responder()
    actions = arrive(core, run(FIRST, 10, length=2 * MTU), run(LAST, 11))
    assert actions == [Place(VA, RKEY, 0, 1), Place(VA + MTU, RKEY, 0, 1)]
    assert core.view().msn == 1
    assert core.view().receives == 4, "a write without immediate consumes no receive"


def test_messages_of_one_packet_in_one_run() -> None:
    """Three writes to one address, as a run whose rows have equal RETHs."""
    core = responder()
    actions = arrive(core, run(ONLY_IMM, 10, 11, 12, nbytes=5, length=5, asks=(10, 11)))
    assert actions == [
        Place(VA, RKEY, 0, 1), Deliver(0, 77, 5),
        Place(VA, RKEY, 1, 1), Deliver(1, 77, 5),
        Place(VA, RKEY, 2, 1), Deliver(2, 77, 5),
        Reply(11, ACK, 2),
    ]  # fmt: skip


def test_an_empty_message_places_nothing() -> None:
    core = responder()
    event = run(ONLY_IMM, 10, nbytes=0, length=0, asks=(10,), permitted=False)
    assert arrive(core, event) == [Deliver(0, 77, 0), Reply(10, ACK, 1)]


def test_a_gap_gets_one_nak_until_the_expected_packet_arrives() -> None:
    core = responder()
    arrive(core, run(FIRST, 10, length=20 * MTU))
    assert arrive(core, run(MIDDLE, 12, 13, asks=(13,))) == [Reply(11, NAK_SEQUENCE, 0)]
    assert arrive(core, run(MIDDLE, 14, 15)) == []
    assert arrive(core, run(MIDDLE, 13, 12)) == []
    assert arrive(core, run(MIDDLE, 11)) == [Place(VA + MTU, RKEY, 0, 1)]
    assert arrive(core, run(MIDDLE, 13)) == [Reply(12, NAK_SEQUENCE, 0)]
    assert core.counters.naks == 2
    assert core.counters.out_of_sequence == 7


def test_a_gap_inside_a_run() -> None:
    core = responder()
    arrive(core, run(FIRST, 10, length=20 * MTU))
    actions = arrive(core, run(MIDDLE, 11, 12, 14, 15, 13, 14, asks=(12, 15, 14)))
    assert actions == [
        Place(VA + MTU, RKEY, 0, 2),
        Place(VA + 3 * MTU, RKEY, 4, 2),
        Reply(13, NAK_SEQUENCE, 0),
        Reply(14, ACK, 0),
    ]


def test_duplicates_are_answered_with_the_newest_psn_and_not_placed() -> None:
    core = responder()
    arrive(core, run(FIRST, 10, length=20 * MTU), run(MIDDLE, 11, 12))
    assert arrive(core, run(MIDDLE, 11, 12)) == [Reply(12, ACK, 0)]
    assert arrive(core, run(FIRST, 10, length=20 * MTU)) == [Reply(12, ACK, 0)]
    assert arrive(core, run(MIDDLE, 11, 12, 13, 14)) == [Place(VA + 3 * MTU, RKEY, 2, 2), Reply(12, ACK, 0)]
    assert core.counters.duplicates == 5


def test_an_ack_gives_way_to_a_later_reply_of_the_same_run() -> None:
    core = responder()
    arrive(core, run(FIRST, 10, length=20 * MTU))
    assert arrive(core, run(MIDDLE, 11, 13, asks=(11,))) == [
        Place(VA + MTU, RKEY, 0, 1),
        Reply(12, NAK_SEQUENCE, 0),
    ]


def test_psns_wrap() -> None:
    core = responder(psn=PSN_MASK - 1)
    length = 4 * MTU
    arrive(core, run(FIRST, PSN_MASK - 1, length=length))
    assert arrive(core, run(MIDDLE, PSN_MASK, 0, asks=(PSN_MASK,))) == [
        Place(VA + MTU, RKEY, 0, 2),
        Reply(0, ACK, 0),
    ]
    assert arrive(core, run(MIDDLE, PSN_MASK)) == [Reply(0, ACK, 0)]
    assert arrive(core, run(LAST_IMM, 1))[-1] == Deliver(0, 77, length)


def test_without_a_receive_the_last_packet_gets_rnr_nak_and_may_come_again() -> None:
    core = responder(receives=0)
    arrive(core, run(FIRST, 10, length=2 * MTU))
    assert arrive(core, run(LAST_IMM, 11, asks=(11,))) == [Reply(11, RNR_NAK | 12, 0)]
    assert arrive(core, run(ONLY_IMM, 12, nbytes=1, length=1)) == [], "silent until it comes again"
    core.step(PostReceive(5), NOW)
    assert arrive(core, run(LAST_IMM, 11, asks=(11,))) == [
        Place(VA + MTU, RKEY, 0, 1),
        Deliver(5, 77, 2 * MTU),
        Reply(11, ACK, 1),
    ]


def test_receives_run_out_within_a_run() -> None:
    core = responder(receives=1)
    actions = arrive(core, run(ONLY_IMM, 10, 11, 12, nbytes=1, length=1, asks=(10, 11, 12)))
    assert actions == [Place(VA, RKEY, 0, 1), Deliver(0, 77, 1), Reply(11, RNR_NAK | 12, 1)]


TWO, THREE = run(FIRST, 10, length=2 * MTU), run(FIRST, 10, length=3 * MTU)


@pytest.mark.parametrize(
    ("before", "bad"),
    [
        pytest.param([], run(MIDDLE, 10), id="middle without first"),
        pytest.param([], run(LAST, 10), id="last without first"),
        pytest.param([], run(FIRST, 10, length=MTU), id="first that is all"),
        pytest.param([], run(FIRST, 10, nbytes=100, length=5000), id="first that is short"),
        pytest.param([], run(FIRST, 10, length=BYTES_MAX + 1), id="message too long"),
        pytest.param([], run(ONLY, 10, nbytes=5, length=6), id="only that is not all"),
        pytest.param([], run(ONLY, 10, nbytes=2048, length=2048), id="only above the mtu"),
        pytest.param([], run(Opcode.RC_SEND_ONLY, 10), id="send"),
        pytest.param([], replace(run(ONLY, 10, nbytes=5, length=5), reth=None), id="no reth"),
        pytest.param([], replace(run(ONLY_IMM, 10, nbytes=5, length=5), imm=None), id="no immediate"),
        pytest.param([THREE], run(FIRST, 11, length=3 * MTU), id="first in message"),
        pytest.param([THREE], run(ONLY, 11, nbytes=1, length=1), id="only in message"),
        pytest.param([THREE], run(MIDDLE, 11, nbytes=512), id="short middle"),
        pytest.param([THREE], run(LAST, 11), id="last too early"),
        pytest.param([TWO], run(LAST, 11, nbytes=1000), id="last too short"),
        pytest.param([TWO], run(MIDDLE, 11), id="middle too late"),
    ],
)
def test_what_rc_forbids_is_fatal(before: list[RunArrived], bad: RunArrived) -> None:
    core = responder(receives=2)
    arrive(core, *before)
    psn = int(bad.psn[0])
    blame, *rest = arrive(core, bad)
    assert isinstance(blame, Blame)
    assert rest == [
        ReceiveFlushed(0),
        ReceiveFlushed(1),
        Reply(psn, NAK_INVALID_REQUEST, 0),
        ResponderFailed(Outcome.REMOTE_INVALID_REQUEST),
    ]
    assert core.view().state is ResponderState.ERROR


def test_too_many_middles_are_placed_as_far_as_they_fit() -> None:
    core = responder(receives=0)
    arrive(core, run(FIRST, 10, length=4 * MTU))
    place, _blame, *rest = arrive(core, run(MIDDLE, 11, 12, 13, asks=(11,)))
    assert place == Place(VA + MTU, RKEY, 0, 2)
    assert rest == [Reply(13, NAK_INVALID_REQUEST, 0), ResponderFailed(Outcome.REMOTE_INVALID_REQUEST)]


@pytest.mark.parametrize("opcode", [FIRST, MIDDLE, LAST_IMM])
def test_memory_that_is_not_permitted_is_fatal_at_any_packet(opcode: Opcode) -> None:
    core = responder(receives=1)
    runs = [run(FIRST, 10, length=3 * MTU), run(MIDDLE, 11), run(LAST_IMM, 12)]
    index = [FIRST, MIDDLE, LAST_IMM].index(opcode)
    arrive(core, *runs[:index])
    actions = arrive(core, replace(runs[index], permitted=False))
    assert actions[-2:] == [
        Reply(10 + index, NAK_REMOTE_ACCESS, 0),
        ResponderFailed(Outcome.REMOTE_ACCESS),
    ]


def test_after_a_fatal_nak_only_the_failed_packet_is_answered() -> None:
    core = responder()
    bad = run(ONLY, 11, nbytes=1, length=1, permitted=False)
    arrive(core, run(ONLY, 10, nbytes=1, length=1), bad)
    assert arrive(core, run(ONLY, 12, nbytes=1, length=1), run(ONLY, 10, nbytes=1, length=1)) == []
    assert arrive(core, bad) == [Reply(11, NAK_REMOTE_ACCESS, 1)]
    assert core.step(PostReceive(9), NOW) == [ReceiveFlushed(9)]
    assert core.counters.ignored == 3
    core.step(ResponderClosing(), NOW)
    assert arrive(core, bad) == []


def test_closing_flushes_receives_and_ends_all_answers() -> None:
    core = responder(receives=2)
    assert core.step(ResponderClosing(), NOW) == [ReceiveFlushed(0), ReceiveFlushed(1)]
    assert arrive(core, run(ONLY, 10, nbytes=1, length=1, asks=(10,))) == []
    with pytest.raises(LocalMisuse, match="closed"):
        core.step(PostReceive(1), NOW)


def test_misuse_and_configuration() -> None:
    core = RcResponder(ResponderConfig(initial_psn=0, receives_max=1))
    core.step(PostReceive(1), NOW)
    with pytest.raises(LocalMisuse, match="receive queue full"):
        core.step(PostReceive(2), NOW)
    assert core.view().receives == 1
    assert core.deadline is None
    for field, value in (("initial_psn", -1), ("mtu", 0), ("receives_max", 0), ("rnr_timer", 32)):
        with pytest.raises(ConfigError, match=field):
            replace(core.config, **{field: value})


@st.composite
def lone_packets(draw: st.DrawFn) -> PacketArrived:
    """Mostly what a sender could send at PSNs of 3 bits, in any order; sometimes what none may."""
    opcode = draw(st.sampled_from((FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, Opcode.RC_SEND_ONLY)))
    starts, immediate = opcode in {FIRST, ONLY, ONLY_IMM}, opcode in {LAST_IMM, ONLY_IMM}
    odd = draw(st.integers(0, 19)) == 0
    nbytes = draw(st.sampled_from((0, 3, MTU))) if odd or opcode not in {FIRST, MIDDLE} else MTU
    length = {FIRST: draw(st.sampled_from((MTU + 3, 3 * MTU))), ONLY: nbytes, ONLY_IMM: nbytes}.get(opcode, 0)
    return PacketArrived(
        opcode=opcode,
        psn=draw(st.integers(0, 7)),
        ack_request=draw(st.booleans()),
        payload_bytes=nbytes,
        reth=(VA, RKEY, length) if starts != (odd and draw(st.booleans())) else None,
        imm=77 if immediate else None,
        permitted=draw(st.integers(0, 19)) > 0,
    )


@given(st.lists(st.one_of(lone_packets(), st.just(PostReceive(1))), max_size=30), st.booleans())
def test_a_packet_alone_is_a_run_of_one(
    events: list[PacketArrived | PostReceive], follows_the_sender: bool
) -> None:
    config = ResponderConfig(initial_psn=6, psn_mask=7, receives_max=100)
    quick, general = RcResponder(config), RcResponder(config)
    for event in events:
        if isinstance(event, PostReceive):
            assert quick.step(event, NOW) == general.step(event, NOW)
            continue
        if follows_the_sender:
            event = event._replace(psn=quick.view().expected_psn)
        as_run = RunArrived(
            opcode=event.opcode,
            psn=np.array([event.psn], np.int64),
            ack_request=np.array([event.ack_request]),
            payload_bytes=event.payload_bytes,
            reth=event.reth,
            imm=event.imm,
            permitted=event.permitted,
        )
        assert quick.step(event, NOW) == general.step(as_run, NOW)
        assert quick.view() == general.view()
        assert quick.counters == general.counters
