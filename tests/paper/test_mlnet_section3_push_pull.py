"""MLNet, sections 3.1 and 3.2: push, pull and clock, aggregation up a tree and multicast down it.

The rules that the paper leaves open are those of docs/protocol.md 18.2 to 18.6. The net and the weights that
show which updates are in them are those of the property tests.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from inaproto.core.models import staleness
from inaproto.core.models.events import Answer, Mark, Patience, Pushed, ShardSpec
from inaproto.wire.messages.clocks import FOREVER, Clocks, WorkerId
from inaproto.wire.messages.models import NodeId, PullRequest, Push, Weights
from tests.property.push_pull_net import ROOT, Net

PAIR = {0: ROOT, 1: 0, 2: 0}
"""An interior node with a worker, and two leaves."""
TWO_SIDES = {0: ROOT, 1: 0, 2: ROOT}
QUIET = Patience(heartbeat_ns=None)
UPDATES = 12


def tree(parents: dict[int, int], s: int, *, ahead_max: int = 20) -> Net:
    shard = ShardSpec(len(parents) * UPDATES, "int64", s, ahead_max=ahead_max)
    net = Net(parents, shard, random=Random(0), updates=UPDATES, patience=QUIET)
    net.settle()
    return net


def update_all(net: Net, times: int = 1) -> None:
    for _ in range(times):
        for worker in net.workers:
            net.update(worker)
        net.settle()


def answer(net: Net, worker: int) -> Answer:
    return net.programs[WorkerId(worker)].answers[-1]


def included(net: Net, worker: int) -> list[int]:
    """Updates of each worker in the weights that it has pulled last."""
    return [int(counts.sum()) for counts in net.counts(answer(net, worker).weights)]


def test_section_3_1_an_update_is_what_was_pushed_between_two_clocks() -> None:
    net = tree({0: ROOT}, 0)
    ones = np.ones(UPDATES, np.int64)
    net.step(NodeId(0), Pushed(ones))
    net.step(NodeId(0), Pushed(2 * ones))
    net.update(0)
    net.settle()
    assert net.root is not None
    expected = 3 * ones
    expected[0] += 1
    assert (net.root.snapshot().weights == expected).all()
    assert net.root.view().clocks == Clocks({WorkerId(0): 1})


def test_section_3_1_the_model_s_clock_is_the_least_of_the_workers() -> None:
    vector = Clocks({WorkerId(0): 7, WorkerId(1): 3, WorkerId(2): 9})
    assert staleness.model_clock(vector) == 3
    assert staleness.model_clock(Clocks({WorkerId(0): 7, WorkerId(1): FOREVER})) == 7


@pytest.mark.parametrize("s", [0, 1, 2, 5])
def test_section_3_1_a_pull_is_legal_if_the_model_is_within_the_staleness_threshold(s: int) -> None:
    for model in range(12):
        for worker in range(model, 12):
            vector = Clocks({WorkerId(0): worker, WorkerId(1): model})
            assert staleness.is_legal(vector, staleness.needed(worker, s)) == (model >= worker - s)


def test_section_3_1_a_legal_pull_has_the_updates_of_every_worker_up_to_the_bound() -> None:
    net = tree(TWO_SIDES, 2)
    update_all(net, 3)
    net.update(0)
    net.pull(0, 2)
    net.settle()
    assert answer(net, 0).clock == 4
    assert all(clock >= 4 - 2 for clock in included(net, 0))


def test_section_3_1_a_pull_that_is_not_legal_waits_at_the_parameter_server() -> None:
    net = tree(TWO_SIDES, 0)
    net.update(2)
    net.pull(2)
    net.settle()
    assert net.programs[WorkerId(2)].answers == []
    assert net.root is not None
    assert [child.waiting for child in net.root.view().children] == [(), (1,)]
    net.update(0)
    net.update(1)
    net.settle()
    assert included(net, 2) == [1, 1, 1]


def test_section_3_2_a_push_is_in_the_worker_s_own_weights_at_once() -> None:
    """At s > 0; at s = 0 weights are those of a clock, whole (ours)."""
    for s in (1, 0):
        net = tree(PAIR, s)
        update_all(net, 2)
        net.pull(0, 2)
        net.settle()
        before = answer(net, 0).weights
        more = np.full(net.shard.elements, 5, np.int64)
        net.step(NodeId(0), Pushed(more))
        net.is_checked = False  # no update of a clock is like this
        net.pull(0, 2)
        assert (answer(net, 0).weights == (before + more if s else before)).all()


def test_section_3_2_a_node_sends_one_value_for_all_that_it_receives() -> None:
    """s = 0: one push upstream for each clock, when the window of that clock is full."""
    net = tree(PAIR, 0)
    for clock in range(1, 4):
        for worker in (1, 2, 0):
            assert net.words(Push, by=0) == clock - 1
            net.update(worker)
            net.settle()
        assert net.words(Push, by=0) == clock
        assert net.words(Push, to=0) == 2 * clock


def test_section_3_2_a_child_that_is_ahead_waits_for_its_window() -> None:
    net = tree(PAIR, 0)
    net.update(1)
    net.update(1)
    net.settle()
    assert net.words(Push, to=0) == 2
    net.update(2)
    net.update(0)
    net.settle()
    assert net.words(Push, by=0) == 1, "of the first clock alone"


def test_section_3_2_weights_are_multicast_one_copy_to_each_child() -> None:
    net = tree(PAIR, 0)
    for clock in range(1, 4):
        update_all(net)
        for worker in net.workers:
            net.pull(worker)
        net.settle()
        assert net.words(Weights, by=ROOT) == clock
        assert [net.words(Weights, by=0, to=child) for child in (1, 2)] == [clock, clock]


def test_section_3_2_pulls_that_ask_for_the_same_are_one_request_upstream() -> None:
    net = tree(PAIR, 0)
    net.update(1)
    net.update(2)
    net.pull(1)
    net.pull(2)
    net.settle()
    assert net.words(PullRequest, to=0) == 2
    assert net.words(PullRequest, by=0) == 1
    assert Mark.COALESCED in net.marks()
    net.update(0)
    net.settle()
    assert included(net, 1) == included(net, 2) == [1, 1, 1]


def test_section_3_2_a_pull_that_the_cache_satisfies_costs_no_upstream_traffic() -> None:
    net = tree(PAIR, 2)
    update_all(net, 3)
    net.pull(1, 2)
    net.settle()
    requests, pushes = net.words(PullRequest), net.words(Push)
    net.update(1)
    net.update(1)
    net.settle()
    net.pull(1, 2)
    assert answer(net, 1).clock == 5
    assert included(net, 1)[1] == 5, "its own updates are in it"
    assert net.words(PullRequest) == requests
    assert net.words(Push) == pushes, "nor a push: the next is due at clock 6"


@pytest.mark.parametrize("s", [0, 1, 3])
def test_section_3_2_a_push_goes_on_if_and_only_if_the_parent_is_not_within_the_threshold(s: int) -> None:
    """docs/protocol.md 18.6: at common multiples of s + 1, so that delays do not add up over the levels."""
    for up in range(12):
        for sub in range(up, 12):
            if sub - up > s:
                assert staleness.forwards(sub, up, s)
            assert staleness.forwards(sub, up, s) == any(t % (s + 1) == 0 for t in range(up + 1, sub + 1))


def test_section_3_2_a_node_withholds_what_its_parent_is_near_enough_to() -> None:
    net = tree({0: ROOT, 1: 0}, 3)
    for clock in range(1, 9):
        update_all(net)
        assert net.words(Push, by=1) == clock // 4
        assert net.words(Push, by=0) == clock // 4, "the levels do not add up"


def test_section_3_2_what_is_withheld_goes_up_before_a_pull_that_needs_it() -> None:
    """docs/protocol.md 18.6: at s > 0; at s = 0 nothing is withheld."""
    net = tree(TWO_SIDES, 3)
    update_all(net, 3)
    assert net.words(Push) == 0
    for worker in net.workers:
        net.pull(worker, 1)
    net.settle()
    assert all(min(included(net, worker)) >= 2 for worker in net.workers)
    assert Mark.FLUSHED in net.marks()


def test_section_3_2_the_slowest_worker_never_waits() -> None:
    """docs/protocol.md 18.6, liveness: of workers at any clocks within the bound, in a tree of height 3."""
    parents = {0: ROOT, 1: 0, 2: 1, 3: 1}
    for seed in range(20):
        draw = Random(seed)
        s = draw.randint(1, 3)
        net = tree(parents, s)
        for _ in range(40):
            program = net.programs[draw.choice(net.workers)]
            if program.is_waiting or program.clock == UPDATES:
                continue
            net.update(program.worker)
            net.pull(program.worker, s)
            net.settle()
            slowest = min(other.clock or 0 for other in net.programs.values())
            waiting = [other.clock for other in net.programs.values() if other.is_waiting]
            assert slowest not in waiting, f"seed {seed}"


@pytest.mark.parametrize("s", [0, 2])
def test_section_3_2_nobody_waits_for_a_worker_that_has_left(s: int) -> None:
    net = tree(TWO_SIDES, s)
    update_all(net, 1)
    net.leave(1)
    net.settle()
    for _ in range(3):
        for worker in (0, 2):
            net.update(worker)
            net.pull(worker, s)
        net.settle()
    assert [answer(net, worker).clock for worker in (0, 2)] == [4, 4]
    assert net.root is not None
    assert net.root.view().clocks[WorkerId(1)] == FOREVER


def test_section_3_2_a_node_sends_one_value_also_before_the_root_has_a_leaver_s_last_words() -> None:
    """s = 0: the window after them has no part of the leaver, and goes up whole."""
    net = tree({0: ROOT, 1: 0, 2: 0}, 0)
    update_all(net)
    net.leave(1)
    net.update(0)
    net.update(2)
    net.settle(persists=False)
    before = net.words(Push, by=0)
    net.update(0)
    net.update(2)
    net.settle(persists=False)
    assert net.words(Push, by=0) == before + 1
    assert Mark.LATE_PART not in net.marks()
    assert net.persisting, "the root does not have it yet"


def test_section_3_2_what_a_worker_has_pushed_since_its_last_clock_counts_when_it_leaves() -> None:
    for s in (0, 2):
        net = tree({0: ROOT, 1: 0}, s)
        net.step(NodeId(1), Pushed(np.full(net.shard.elements, 9, np.int64)))
        net.leave(1)
        net.leave(0)
        net.settle()
        assert net.root is not None
        assert (net.root.snapshot().weights == 9).all()


def test_a_worker_that_is_too_far_ahead_is_held_back_and_loses_nothing() -> None:
    """docs/protocol.md 18.2 keeps logs until the root has merged: they must have a bound (ours)."""
    net = tree(TWO_SIDES, 0, ahead_max=2)
    for _ in range(2):
        net.update(2)
        net.settle()
    net.update(2)
    net.settle()
    program = net.programs[WorkerId(2)]
    assert (program.is_waiting, program.clock) == (True, 2)
    assert Mark.HELD in net.marks()
    net.update(0)
    net.update(1)
    net.settle()
    assert (program.is_waiting, program.clock) == (False, 3)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_fixed_point_sums_are_those_of_the_rounded_values_in_any_order(dtype: str) -> None:
    """Ours: reals that travel as integers."""
    shard = ShardSpec(3, dtype, fraction_bits=10)
    rng = np.random.default_rng(5)
    made = {(w, t): rng.normal(size=3) for w in PAIR for t in (1, 2, 3)}
    net = Net(PAIR, shard, random=Random(3), updates=3, patience=QUIET, gradients=lambda w, t: made[w, t])
    assert net.run(10_000, haste=0)
    rounded = sum(np.rint(values * 1024) for values in made.values()) / 1024
    last = [program.answers[-1].weights for program in net.programs.values()]
    assert all((weights == rounded).all() for weights in last)
    assert all(weights.dtype == np.float64 for weights in last)
