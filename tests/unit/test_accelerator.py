"""The accelerator, packet by packet: results, order, replays, refusals and disagreements."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.switch.accelerator import AcceleratorConfig, InstallRing, RemoveRing, RingFault
from inaproto.errors import Blame
from inaproto.wire import icrc
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.roce import RocePacket
from tests.accelerators import EACH_ACCELERATOR, FIXED, ONE_BY_ONE, software_only
from tests.unit.switched_ring import (
    MTU,
    NOW,
    SwitchedRing,
    block,
    by_port,
    dropped,
    emitted,
    into_qp,
    mac,
    others,
    ring_of,
)

pytestmark = EACH_ACCELERATOR

WIDE: dict[int, Any] = {2: (), 4: (), 8: software_only("64-bit elements are refused")}

# -- results


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_every_flow_gets_the_sum_under_its_own_headers_in_psn_order(ranks: int) -> None:
    ring = SwitchedRing(ranks)
    for serial in range(6):
        actions = ring.finish(serial)
        assert by_port(actions) == ring.results(serial)
        assert others(actions) == []
        assert all(icrc.verify(frame) for _, frame in emitted(actions))
    counters = ring.accelerator.view().counters
    assert counters.aggregated_in == counters.results_out == 6 * 4 * ranks
    assert dropped(ring) == {}


def test_what_is_summed_meanwhile_leaves_between_results_that_were_kept() -> None:
    """Rank 0 has lost a result and goes back, while rank 1 is slow: who receives that flow asks once more."""
    ring = SwitchedRing(2, message_packets=8, psn0=40)

    def sent(rank: int, offset: int) -> list[tuple[int, int]]:
        """Port and packet of each result."""
        frames = emitted(ring.send(rank, 0, offset))
        return sorted((port, RocePacket.decode_frame(frame).bth.psn - ring.psn0) for port, frame in frames)

    for offset in range(6):
        assert sent(0, offset) == []
    for offset in range(4):
        assert sent(1, offset) == [(0, offset), (1, offset)]
    assert sent(0, 1) == [(1, 1)], "kept, for that flow alone"
    assert sent(1, 4) == [(0, 4), (1, 4)]
    assert sent(0, 2) == [(1, 2)]


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=WIDE[dtype.itemsize]) for dtype in Dtype])
def test_every_element_type_and_operation(dtype: Dtype, op: Op) -> None:
    ring = SwitchedRing(3)
    assert by_port(ring.finish(0, dtype=dtype, op=op)) == ring.results(0, dtype=dtype, op=op)


@pytest.mark.parametrize("immediate", [True, False])
@pytest.mark.parametrize(("packets", "last_bytes"), [(1, 44), (1, MTU), (2, 4), (3, MTU), (4, 20)])
def test_short_messages(packets: int, last_bytes: int, immediate: bool) -> None:
    ring = SwitchedRing(2)
    for serial in range(5):
        layout: dict[str, Any] = {"packets": packets, "last_bytes": last_bytes, "immediate": immediate}
        assert by_port(ring.finish(serial, **layout)) == ring.results(serial, **layout)


@pytest.mark.parametrize("last_bytes", [2, 6, 62])
def test_a_pad_is_zero_in_results(last_bytes: int) -> None:
    ring = SwitchedRing(2)
    layout: dict[str, Any] = {"last_bytes": last_bytes, "dtype": Dtype.F16}
    actions = ring.finish(0, **layout)
    assert by_port(actions) == ring.results(0, **layout)


def test_a_message_that_carries_no_elements_comes_back_marked_as_a_result() -> None:
    ring = SwitchedRing(2)
    layout = {"packets": 1, "last_bytes": 40}
    assert by_port(ring.finish(0, **layout)) == ring.results(0, **layout)


def test_packets_of_one_block_are_summed_as_those_that_come_alone() -> None:
    ring = SwitchedRing(3, message_packets=9)
    blocks = [
        (block(first), block(*middle), block(last))
        for first, *middle, last in (ring.message(rank, 0) for rank in range(3))
    ]
    assert ring.arrive_blocks(0, *blocks[0]) == []
    assert ring.arrive_blocks(1, *blocks[1]) == []
    assert by_port(ring.arrive_blocks(2, *blocks[2])) == ring.results(0)


@software_only("its numbers have one width")
def test_message_ids_and_psns_wrap() -> None:
    ring = SwitchedRing(2, psn_bits=5, msg_id_bits=4, psn0=0)
    for serial in range(40):
        zero, one = (
            [
                ring.packet(rank, serial, offset, psn=(4 * serial + offset) & 31, msg_id=serial & 15)
                for offset in range(4)
            ]
            for rank in (0, 1)
        )
        assert ring.arrive(0, *zero) == []
        assert {port: len(frames) for port, frames in by_port(ring.arrive(1, *one)).items()} == {0: 4, 1: 4}


# -- order, gaps, replays


def test_what_is_finished_behind_a_missing_packet_is_held_and_only_its_loser_hears_of_it() -> None:
    ring = SwitchedRing(3)
    assert emitted(ring.send(0, 0)) == []
    assert emitted(ring.send(1, 0, 0, 2, 3)) == [], "rank 1 lost packet 1"
    actions = ring.send(2, 0)
    assert by_port(actions) == {
        1: [ring.result(0, 0, 0)],
        2: [ring.result(1, 0, 0), ring.result(1, 0, 2)],
        0: [ring.result(2, 0, 0)],
    }
    assert ring.accelerator.view().counters.gaps_signalled == 1
    assert emitted(ring.send(2, 0, 3)) == [], "once per gap"
    # The loser goes back to packet 1: everybody gets the rest, in order.
    actions = ring.send(1, 0, 1)
    assert by_port(actions) == ring.results(0, 1, 2, 3)


@software_only(ONE_BY_ONE)
def test_a_new_gap_is_signalled_anew() -> None:
    ring = SwitchedRing(2, message_packets=8)
    ring.send(0, 0)
    ring.send(1, 0, 0, 2, 3, 5, 6, 7)
    assert ring.accelerator.view().counters.gaps_signalled == 1
    actions = ring.send(1, 0, 1, 2, 3)
    assert ring.accelerator.view().counters.gaps_signalled == 1, "packet 4 is to come in the same resend"
    assert by_port(actions) == {
        0: [ring.result(1, 0, offset) for offset in (1, 2, 3)],
        1: [ring.result(0, 0, offset) for offset in (1, 2, 3)],
    }
    actions = ring.send(1, 0, 5)
    assert ring.accelerator.view().counters.gaps_signalled == 2
    assert by_port(actions) == {0: [ring.result(1, 0, 5)]}, "it was lost again"


def test_a_lost_result_is_replayed_on_its_own_flow_under_the_new_header() -> None:
    ring = SwitchedRing(3)
    ring.finish(0)
    actions = ring.send(1, 0, 1, ip_id=99)
    assert emitted(actions) == [(2, ring.result(1, 0, 1, ip_id=99))]
    assert ring.accelerator.view().counters.replayed == 1


def test_replays_stop_at_the_frontier() -> None:
    ring = SwitchedRing(2)
    ring.finish(0)
    ring.send(0, 1)
    ring.send(1, 1, 0, 1)
    actions = ring.send(0, 1, 0, 1, 2, 3)
    assert emitted(actions) == [(1, ring.result(0, 1, 0)), (1, ring.result(0, 1, 1))]


def test_a_short_hole_in_a_resend_is_filled_from_kept_results() -> None:
    ring = SwitchedRing(2)
    ring.finish(0)
    ring.send(0, 0, 0)
    assert emitted(ring.send(0, 0, 3)) == [(1, ring.result(0, 0, offset)) for offset in (1, 2, 3)]
    assert ring.accelerator.view().counters.replay_filled == 2


@software_only(FIXED)
def test_a_long_hole_in_a_resend_is_left() -> None:
    ring = SwitchedRing(2, config=AcceleratorConfig(replay_fill_packets_max=1))
    ring.finish(0)
    ring.send(0, 0, 0)
    assert emitted(ring.send(0, 0, 3)) == [(1, ring.result(0, 0, 3))]


def test_a_packet_whose_first_packet_was_lost_is_dropped() -> None:
    ring = SwitchedRing(2)
    assert ring.send(0, 0, 1, 2, 3) == []
    assert dropped(ring) == {"first packet of the message not seen": 3}
    ring.send(0, 0)
    assert by_port(ring.send(1, 0)) == ring.results(0)


def test_packets_older_than_the_tenant_are_dropped() -> None:
    ring = SwitchedRing(2, window_messages=1)
    for serial in range(3):
        ring.finish(serial)
    assert ring.send(0, 0, 0) == []
    assert dropped(ring)["older than the tenant"] == 1
    assert emitted(ring.send(0, 1, 0)) == [(1, ring.result(0, 1, 0))], "2N messages are kept"


def test_a_wrong_icrc_is_dropped_silently_and_the_resend_completes() -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    frames = ring.message(1, 0)
    damaged = bytearray(frames[2])
    damaged[60] ^= 4
    assert others(ring.arrive(1, *frames[:2], bytes(damaged), frames[3])) == []
    assert dropped(ring) == {"wrong ICRC": 1}
    assert by_port(ring.send(1, 0, 2)) == ring.results(0, 2, 3)


# -- refusals: the packet is dropped and its sender blamed; the ring goes on

REFUSALS: dict[str, dict[str, Any]] = {
    "wrong key": {"key": 0xBAD},
    "wrong ring": {"ring_id": 8},
    "wrong rank": {"claimed_rank": 2},
    "wrong epoch": {"epoch": 4},
    "wrong ring size": {"ring_size": 4},
    "message too long": {"msg_len": 5},
    "no INA header": {"payload": bytes(MTU)},
}


@pytest.mark.parametrize("rule", REFUSALS)
def test_a_header_that_is_not_the_ring_s_is_refused_and_blamed(rule: str) -> None:
    ring = SwitchedRing(3)
    (blame,) = ring.arrive(0, ring.packet(0, 0, 0, **REFUSALS[rule]))
    assert isinstance(blame, Blame)
    assert (blame.rule, blame.peer) == (rule, f"10.0.0.0 to queue pair {into_qp(1)}")
    assert str(0xFEED) not in str(blame)
    assert str(0xBAD) not in str(blame), "a key is a secret, even a wrong one"
    assert dropped(ring) == {rule: 1}
    assert by_port(ring.finish(0)) == ring.results(0)


def test_a_message_beyond_the_window_is_refused() -> None:
    ring = SwitchedRing(2)
    assert others(ring.send(0, 1, 0)) == []
    (blame,) = others(ring.send(0, 2, 0))
    assert isinstance(blame, Blame)
    assert blame.rule == "window passed"
    for serial in range(3):
        assert by_port(ring.finish(serial)) == ring.results(serial)


def test_a_message_that_comes_again_with_another_psn_is_refused() -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    (blame,) = others(ring.arrive(0, ring.packet(0, 0, 0, psn=77)))
    assert isinstance(blame, Blame)
    assert blame.rule == "message has another PSN"
    assert by_port(ring.send(1, 0)) == ring.results(0)


@pytest.mark.parametrize("payload", [bytes(40), b"INAP" + bytes(36), b"INAP\x02" + bytes(35), bytes(8)])
def test_an_only_packet_without_a_good_header_is_refused(payload: bytes) -> None:
    ring = SwitchedRing(2)
    (blame,) = ring.arrive(0, ring.packet(0, 0, 0, packets=1, payload=payload))
    assert isinstance(blame, Blame)
    assert blame.rule == "no INA header"


@pytest.mark.parametrize(("ring_id", "rule"), [(7, "connection not registered"), (8, "unknown ring")])
def test_ina_messages_on_a_connection_of_no_ring_are_dropped_never_bridged(ring_id: int, rule: str) -> None:
    ring = SwitchedRing(2)
    for packets in (1, 4):
        (blame,) = ring.arrive(0, ring.packet(0, 0, 0, packets=packets, dest_qp=0x999, ring_id=ring_id))
        assert isinstance(blame, Blame)
        assert blame.rule == rule
    assert dropped(ring) == {rule: 2}


# -- disagreements: the ring is faulted and forwards nothing any more

DIFFERENCES: dict[str, dict[str, Any]] = {
    "op_index": {"op_index": 9},
    "dtype": {"dtype": Dtype.F32},
    "op": {"op": Op.MAX},
    "LAST flag": {"flags": 0},
    "signature": {"signature": 0x5152},
    "msg_len": {"packets": 3},
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_whose_operations_differ_get_no_result(what: str) -> None:
    ring = SwitchedRing(3)
    ring.finish(0)
    ring.send(0, 1)
    (fault,) = ring.send(1, 1, **DIFFERENCES[what])
    assert isinstance(fault, RingFault)
    assert (fault.ring_id, fault.rank, fault.rule) == (7, 1, "operations differ")
    assert ring.accelerator.view().rings[7]["failed"]
    assert ring.send(2, 1) == [], "said once"
    assert ring.send(0, 0) == [], "kept results are not replayed either"
    assert dropped(ring)["ring failed"] >= 8


@software_only("it says no more than the rule")
def test_a_fault_says_what_both_ranks_sent() -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    (fault,) = ring.send(1, 0, op=Op.MAX)
    assert isinstance(fault, RingFault)
    assert "rank 1 sent operation" in fault.evidence
    assert "rank 0 sent operation" in fault.evidence


@software_only(ONE_BY_ONE)
@pytest.mark.parametrize("changes", [{"last_bytes": 60}, {"immediate": False}])
def test_last_packets_that_differ_fault_the_ring(changes: dict[str, Any]) -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    actions = ring.send(1, 0, **changes)
    (fault,) = others(actions)
    assert isinstance(fault, RingFault)
    assert (fault.rank, fault.rule) == (1, "operations differ")
    assert emitted(actions) == []


@pytest.mark.parametrize(
    ("offset", "changes"),
    [
        (1, {"payload": bytes(MTU - 4)}),
        (1, {"opcode": 0x09}),
        (3, {"opcode": 0x07}),
        (3, {"payload": b""}),
        (3, {"payload": bytes(MTU + 4)}),
        (3, {"payload": bytes(6)}),  # no whole number of int32
        (1, {"payload": bytes(MTU + 8)}),
    ],
)
def test_packets_of_another_layout_fault_the_ring(offset: int, changes: dict[str, Any]) -> None:
    ring = SwitchedRing(2)
    ring.send(0, 0)
    ring.send(1, 0, 0)
    actions = ring.arrive(1, ring.packet(1, 0, offset, **changes))
    (fault,) = others(actions)
    assert isinstance(fault, RingFault)
    assert (fault.rank, fault.rule) == (1, "packet layout")
    assert emitted(actions) == []
    assert dropped(ring) == {"layout": 1}
    assert ring.send(1, 0) == []


def test_a_first_packet_where_another_must_stand_is_refused() -> None:
    """It names the message, so its PSN is the message's first one: the fault is that it has two."""
    ring = SwitchedRing(2)
    ring.send(0, 0, 0)
    (blame,) = others(ring.arrive(0, ring.packet(0, 0, 1, opcode=0x06, payload=ring_header(ring))))
    assert isinstance(blame, Blame)
    assert blame.rule == "message has another PSN"


def ring_header(ring: SwitchedRing) -> bytes:
    return ring.header(0, 0, 4).encode() + bytes(MTU - 40)


def test_other_rings_do_not_notice_a_ring_that_failed() -> None:
    ring = SwitchedRing(2)
    flows = tuple(
        type(flow)(flow.rank, flow.src_ip, flow.dst_ip, flow.dst_qp + 0x100) for flow in ring.spec.flows
    )
    other = ring_of(2, ring_id=8, flows=flows)
    assert ring.accelerator.step(InstallRing(other), NOW) == []
    ring.send(0, 0)
    ring.send(1, 0, op=Op.MIN)
    zero, one = (
        [ring.packet(rank, 0, at, ring_id=8, dest_qp=into_qp((rank + 1) % 2) + 0x100) for at in range(4)]
        for rank in (0, 1)
    )
    assert ring.arrive(0, *zero) == []
    assert {port: len(frames) for port, frames in by_port(ring.arrive(1, *one)).items()} == {0: 4, 1: 4}
    assert ring.accelerator.step(RemoveRing(7), NOW) == []
    assert list(ring.accelerator.view().rings) == [8]


def test_results_follow_a_receiver_that_moved_to_another_port() -> None:
    ring = SwitchedRing(2)
    ring.finish(0)
    ring.arrive(2, b"\xff" * 6 + mac(1) + bytes(48))
    ring.send(0, 1)
    frames = ring.message(1, 1)
    actions = ring.arrive(2, *frames)
    assert by_port(actions) == {2: ring.results(1)[1], 0: ring.results(1)[0]}
