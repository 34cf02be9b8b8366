"""Rings whose NICs keep what comes behind a gap: results leave as they are done."""

from __future__ import annotations

from tests.unit.switched_ring import SwitchedRing, block, by_port, emitted


def ring() -> SwitchedRing:
    return SwitchedRing(2, selective=True)


def test_results_behind_a_missing_packet_leave_at_once() -> None:
    switched = ring()
    switched.send(0, 0, 0, 2, 3)
    actions = switched.send(1, 0)
    assert by_port(actions) == switched.results(0, 0, 2, 3)
    assert by_port(switched.send(0, 0, 1)) == switched.results(0, 1)


def test_a_message_behind_one_that_is_missing_leaves_at_once() -> None:
    switched = ring()
    switched.send(0, 0)
    assert by_port(switched.finish(1)) == switched.results(1)
    assert by_port(switched.send(1, 0)) == switched.results(0)
    view = switched.accelerator.view()
    assert view.rings[7]["next_message"] == 2
    assert view.counters.gaps_signalled == 0


def test_what_comes_again_is_answered_on_its_own_flow_with_no_more_than_that() -> None:
    switched = ring()
    switched.finish(0)
    assert by_port(switched.send(0, 0, 1)) == {1: switched.results(0, 1)[1]}
    assert by_port(switched.send(0, 0, 3)) == {1: switched.results(0, 3)[1]}
    together = block(*switched.message(0, 0)[1:3])
    assert by_port(switched.arrive_blocks(0, together)) == {1: switched.results(0, 1, 2)[1]}


def test_what_comes_again_before_its_result_is_done_changes_nothing() -> None:
    switched = ring()
    switched.send(0, 0)
    assert switched.send(0, 0, 1, 2) == []
    assert by_port(switched.send(1, 0)) == switched.results(0)


def test_a_result_leaves_once_for_each_rank() -> None:
    switched = ring()
    sent: list[tuple[int, bytes]] = []
    for offset in (0, 2, 3, 1):
        for rank in range(2):
            sent += emitted(switched.send(rank, 0, offset))
    results = switched.results(0, 0, 2, 3, 1)
    assert sorted(sent) == sorted((port, frame) for port in results for frame in results[port])
    assert switched.accelerator.view().counters.results_out == 8
