"""RC responder: a packet alone is a run of one, whom it blames for what, and what its counters count."""

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
    Reply,
    ResponderClosing,
    ResponderConfig,
    ResponderCounters,
    ResponderFailed,
    ResponderState,
    ResponderView,
    RunArrived,
)
from inaproto.errors import Blame, ConfigError, LocalMisuse
from inaproto.units import PSN_MASK
from inaproto.wire.roce import Opcode
from tests.unit.test_rc_responder import (
    FIRST,
    LAST,
    LAST_IMM,
    MIDDLE,
    MTU,
    NOW,
    ONLY,
    ONLY_IMM,
    RKEY,
    VA,
    arrive,
    responder,
    run,
)

STARTS, IMMEDIATE = {FIRST, ONLY, ONLY_IMM}, {LAST_IMM, ONLY_IMM}


def packet(
    opcode: int,
    psn: int,
    *,
    nbytes: int = MTU,
    length: int = 0,
    asks: bool = False,
    permitted: bool = True,
) -> PacketArrived:
    return PacketArrived(
        opcode=opcode,
        psn=psn,
        ack_request=asks,
        payload_bytes=nbytes,
        reth=(VA, RKEY, length) if opcode in STARTS else None,
        imm=77 if opcode in IMMEDIATE else None,
        permitted=permitted,
    )


def as_run(alone: PacketArrived) -> RunArrived:
    psn, asks = np.array([alone.psn], np.int64), np.array([alone.ack_request])
    rest = (alone.payload_bytes, alone.reth, alone.imm, alone.permitted)
    return RunArrived(alone.opcode, psn, asks, *rest)


# --- a packet alone


arrivals = st.builds(
    packet,
    st.sampled_from([FIRST, MIDDLE, LAST, LAST_IMM, ONLY, ONLY_IMM, Opcode.RC_SEND_ONLY]),
    st.sampled_from([6, 7, 0, 1, 2, 3, 4, 5]),
    nbytes=st.sampled_from([MTU, MTU, MTU, 3, 0]),
    length=st.sampled_from([2 * MTU, 3 * MTU, MTU + 3, MTU, 3, 0]),
    asks=st.booleans(),
    permitted=st.sampled_from([True, True, True, True, False]),
)


@given(st.lists(arrivals | st.just(PostReceive(5)), max_size=40))
def test_a_packet_alone_is_a_run_of_one(events: list[PacketArrived | PostReceive]) -> None:
    config = ResponderConfig(initial_psn=6, psn_mask=7)
    alone, in_runs = RcResponder(config), RcResponder(config)
    for event in events:
        run_event = as_run(event) if isinstance(event, PacketArrived) else event
        assert alone.step(event, NOW) == in_runs.step(run_event, NOW)
        assert alone.view() == in_runs.view()
        assert alone.counters == in_runs.counters


def test_packets_alone_one_by_one() -> None:
    core = responder()
    assert core.step(packet(FIRST, 10, length=3 * MTU), NOW) == [Place(VA, RKEY, 0, 1)]
    assert core.step(packet(MIDDLE, 11, asks=True), NOW) == [Place(VA + MTU, RKEY, 0, 1), Reply(11, ACK, 0)]
    assert core.step(packet(LAST_IMM, 13), NOW) == [Reply(12, NAK_SEQUENCE, 0)]
    assert core.step(packet(LAST_IMM, 14, asks=True), NOW) == [], "silent until it comes"
    assert core.step(packet(MIDDLE, 11), NOW) == [Reply(11, ACK, 0)]
    assert core.step(packet(LAST_IMM, 12), NOW) == [
        Place(VA + 2 * MTU, RKEY, 0, 1),
        Deliver(0, 77, 3 * MTU),
    ]
    assert (core.counters.duplicates, core.counters.out_of_sequence) == (1, 2)


@pytest.mark.parametrize("psn_mask", [7, 0xFF, PSN_MASK])
def test_what_lies_half_the_numbers_away_is_a_duplicate(psn_mask: int) -> None:
    half = (psn_mask + 1) // 2
    for event, is_early in ((half, False), (half - 1, True), (half + 1, False)):
        core = RcResponder(ResponderConfig(initial_psn=0, psn_mask=psn_mask))
        expected = [Reply(0, NAK_SEQUENCE, 0)] if is_early else [Reply(psn_mask, ACK, 0)]
        assert core.step(packet(MIDDLE, event), NOW) == expected
        other = RcResponder(ResponderConfig(initial_psn=0, psn_mask=psn_mask))
        assert arrive(other, run(MIDDLE, event)) == expected


def test_after_a_fatal_nak_a_packet_alone_is_ignored_or_answered_again() -> None:
    core = responder()
    bad = packet(ONLY, 10, nbytes=1, length=1, permitted=False)
    core.step(bad, NOW)
    assert core.step(packet(ONLY, 11, nbytes=1, length=1), NOW) == []
    assert core.step(packet(ONLY, 9, nbytes=1, length=1), NOW) == []
    assert core.step(bad, NOW) == [Reply(10, NAK_REMOTE_ACCESS, 0)]
    assert core.counters.ignored == 3


# --- what it says


IN_MESSAGE = run(FIRST, 10, length=3 * MTU)


@pytest.mark.parametrize(
    ("before", "bad", "rule", "evidence"),
    [
        ([], run(Opcode.RC_SEND_ONLY, 10), "opcode not served", "opcode 0x04 with 1024 bytes, RETH None"),
        (
            [],
            replace(run(ONLY, 10, nbytes=5, length=5), reth=None),
            "headers do not fit the opcode",
            "opcode 0x0a with 5 bytes, RETH None",
        ),
        ([], run(MIDDLE, 10), "no message begun", "opcode 0x07 with 1024 bytes, RETH None"),
        (
            [],
            run(ONLY, 10, nbytes=5, length=6),
            "lengths do not add up",
            f"opcode 0x0a with 5 bytes, RETH ({VA}, {RKEY}, 6)",
        ),
        (
            [],
            run(ONLY, 10, nbytes=5, length=5, permitted=False),
            "address not permitted",
            f"opcode 0x0a with 5 bytes, RETH ({VA}, {RKEY}, 5)",
        ),
        (
            [IN_MESSAGE],
            run(FIRST, 11, length=2 * MTU),
            "message begun inside another",
            f"opcode 0x06 with 1024 bytes, RETH ({VA}, {RKEY}, 2048)",
        ),
    ],
)
def test_the_requester_is_blamed_in_stable_words(
    before: list[RunArrived], bad: RunArrived, rule: str, evidence: str
) -> None:
    core = responder(receives=0)
    arrive(core, *before)
    at = f", at PSN {10 + len(before)}, message {core.place_at}"
    blame, *_ = arrive(core, bad)
    assert blame == Blame("requester", rule, evidence + at)


def test_misuse_says_what_is_wrong() -> None:
    core = RcResponder(ResponderConfig(initial_psn=0, receives_max=1))
    core.step(PostReceive(1), NOW)
    with pytest.raises(LocalMisuse, match=r"^receive queue full: 1 receives are not used yet$"):
        core.step(PostReceive(2), NOW)
    core.step(ResponderClosing(), NOW)
    with pytest.raises(LocalMisuse, match=r"^receive posted to a closed queue pair$"):
        core.step(PostReceive(2), NOW)


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("initial_psn", 0, PSN_MASK),
        ("mtu", 1, 4096),
        ("receives_max", 1, 1 << 20),
        ("rnr_timer", 0, 31),
    ],
)
def test_limits_of_the_configuration(field: str, least: int, most: int) -> None:
    config = ResponderConfig(initial_psn=0)
    for value in (least, most):
        assert getattr(replace(config, **{field: value}), field) == value
    for value in (least - 1, most + 1):
        with pytest.raises(ConfigError) as caught:
            replace(config, **{field: value})
        assert str(caught.value) == f"{field} must be {least} to {most}, not {value}"


# --- what it counts and shows


def test_a_new_responder_waits_for_its_first_psn() -> None:
    assert RcResponder(ResponderConfig(initial_psn=7)).view() == ResponderView(
        state=ResponderState.READY, expected_psn=7, msn=0, receives=0, silent=False, in_progress=None
    )


def test_the_longest_message_may_begin() -> None:
    core = responder()
    assert arrive(core, run(FIRST, 10, length=1 << 31)) == [Place(VA, RKEY, 0, 1)]
    assert core.place_at == MessageInProgress(VA + MTU, RKEY, (1 << 31) - MTU, 1 << 31)


def test_counters_count_each_of_their_kind() -> None:
    core = responder(receives=2)
    assert core.counters == ResponderCounters()
    arrive(core, run(ONLY_IMM, 10, 11, nbytes=1, length=1))
    arrive(core, run(ONLY_IMM, 12, nbytes=1, length=1), run(ONLY_IMM, 12, nbytes=1, length=1))
    core.step(PostReceive(9), NOW)
    arrive(core, run(ONLY_IMM, 12, nbytes=1, length=1))
    arrive(core, run(ONLY, 14, 15, nbytes=1, length=1), run(ONLY, 13, nbytes=1, length=1))
    arrive(core, run(ONLY, 15, nbytes=1, length=1), run(ONLY, 11, 12, nbytes=1, length=1))
    arrive(core, run(MIDDLE, 14, 15, 16), run(MIDDLE, 14))
    assert core.counters == ResponderCounters(
        packets=4, messages=4, duplicates=2, out_of_sequence=3, naks=3, rnr_naks=2, ignored=3
    )


def test_the_view_in_the_middle_of_a_message() -> None:
    core = responder()
    arrive(core, run(FIRST, 10, length=4 * MTU), run(MIDDLE, 12))
    assert core.view() == ResponderView(
        state=ResponderState.READY,
        expected_psn=11,
        msn=0,
        receives=4,
        silent=True,
        in_progress=MessageInProgress(VA + MTU, RKEY, 3 * MTU, 4 * MTU),
    )
    arrive(core, run(MIDDLE, 11))
    assert core.view().silent is False


def test_a_failed_queue_pair_has_no_message_in_progress() -> None:
    core = responder()
    arrive(core, run(FIRST, 10, length=4 * MTU), run(MIDDLE, 11, permitted=False))
    assert core.view().in_progress is None
    assert core.place_at is None
    assert core.view().state is ResponderState.ERROR


def test_a_packet_that_waits_for_a_receive_holds_back_only_itself() -> None:
    """Those behind it in the run are early then, and silently dropped, each counted."""
    core = responder(receives=0)
    assert arrive(core, run(ONLY_IMM, 10, 11, 12, nbytes=1, length=1)) == [Reply(10, RNR_NAK | 12, 0)]
    assert core.counters.out_of_sequence == 2
    assert (core.counters.packets, core.counters.rnr_naks) == (0, 1)


def test_what_follows_a_failed_packet_in_its_run_is_ignored() -> None:
    core = responder()
    actions = arrive(core, run(MIDDLE, 10, 11, 10, 12))
    assert [action for action in actions if isinstance(action, Reply)] == [
        Reply(10, NAK_INVALID_REQUEST, 0),
        Reply(10, NAK_INVALID_REQUEST, 0),
    ]
    assert actions[-1] == ResponderFailed(Outcome.REMOTE_INVALID_REQUEST)
    assert core.counters.ignored == 3


def test_messages_are_counted_by_msn_with_its_own_wrap() -> None:
    core = responder(receives=0)
    core._msn = 0xFF_FFFF  # sixteen million messages later
    assert arrive(core, run(ONLY, 10, nbytes=1, length=1, asks=(10,)))[-1] == Reply(10, ACK, 0)
