"""MINA, sections III-C, III-D and IV-B: a switch sums for one job at a time, and jobs take turns at it.

The paper takes both from the switches that it has: one active INA job for each switch, and who uses it out
of turn disturbs the other. Here a turn has a number, the epoch of the INA header, and a switch serves the
highest that it has seen (ours).
"""

from __future__ import annotations

import pytest

from inaproto.core.switch.accelerator import EmitFrames, RingFault
from tests.property.pool_world import PoolWorld
from tests.unit.pooled_rings import pool_at, pool_of, two_rings, two_trees
from tests.unit.switched_ring import SwitchedRing, by_port, others


def turn(ring: SwitchedRing, epoch: int, serial: int) -> None:
    ring.epoch = epoch
    assert by_port(ring.finish(serial)) == ring.results(serial)


def test_jobs_take_turns_at_the_slots_of_a_switch_operation_by_operation() -> None:
    one, two = two_rings()
    memory = one.accelerator.view().memory_bytes
    for number in range(6):
        turn(one, 2 * number, number)
        turn(two, 2 * number + 1, number)
    assert one.accelerator.view().memory_bytes == memory == pool_of(one).memory_bytes
    assert sum(len(ring.array.regions) > 1 for ring in one.accelerator.rings.values()) == 1


def test_jobs_take_turns_at_the_switches_of_a_tree() -> None:
    one, two = two_trees()
    for number in range(6):
        for ring, epoch in ((one, 2 * number), (two, 2 * number + 1)):
            ring.forget()
            ring.hosts.epoch = epoch
            ring.finish(number)
            assert ring.got == ring.results(number)
    assert {pool_at(one, name).takeovers for name in one.switches} == {12}


def test_a_turn_that_is_over_gives_no_right_to_slots() -> None:
    """A host that did not hear of the end goes on with the next message; a late copy comes by, too."""
    one, two = two_rings()
    turn(one, 1, 0)
    turn(two, 2, 0)
    assert one.send(0, 1, epoch=1) == []
    assert one.send(0, 0, epoch=1) == []
    assert (pool_of(one).holders, pool_of(one).stale) == ((2,), 2)
    turn(two, 2, 1)


def test_what_a_job_left_in_the_slots_is_never_a_result_of_the_next() -> None:
    """Both send message 0 with the same operation: only ring and key tell the headers apart."""
    one, two = two_rings()
    turn(one, 1, 0)
    two.epoch = 2
    assert two.send(0, 0) == two.send(1, 0) == []
    assert by_port(two.send(2, 0)) == two.results(0)


def test_late_packets_without_header_belong_to_no_message_of_the_next_turn() -> None:
    one, two = two_rings()
    turn(one, 1, 0)
    turn(two, 2, 0)
    turn(one, 3, 1)
    assert one.send(0, 0, 1, 2, 3) == [], "the kept results of the turn before are gone"


def test_two_jobs_that_use_a_switch_at_once_are_found_and_the_older_turn_is_stopped() -> None:
    one, two = two_rings()
    one.epoch, two.epoch = 1, 2
    one.send(0, 0)
    one.send(1, 0)
    told = others(two.send(0, 0))
    assert [(said.ring_id, said.rule) for said in told if isinstance(said, RingFault)] == [(1, "turn lost")]
    late = one.send(2, 0)
    assert not [action for action in late if isinstance(action, EmitFrames)]
    two.send(1, 0)
    assert by_port(two.send(2, 0)) == two.results(0)
    assert pool_of(one).conflicts == 1


@pytest.mark.parametrize("seed", range(6))
def test_whoever_breaks_the_rule_of_turns_gets_the_right_bytes_or_nothing(seed: int) -> None:
    PoolWorld(seed, disciplined=False).run_wild()
