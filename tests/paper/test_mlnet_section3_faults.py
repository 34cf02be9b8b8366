"""MLNet, section 3.2, fault tolerance; parameters and details are those of docs/protocol.md 18.8.

After every fault the model has every update once: the net checks every pull, and each test the end.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from inaproto.core.models.events import Abandoned, Ending, Mark, Pushed, ShardSpec
from inaproto.units import MS
from inaproto.wire.messages.clocks import REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    NodeId,
    PullRequest,
    Push,
    Weights,
)
from tests.property.push_pull_net import QUICK, ROOT, Net

LINE = {0: ROOT, 1: 0, 2: 1}
UPDATES = 6
BEAT, DEAD, RETURN = 10 * MS, 30 * MS, 30 * MS
"""``QUICK`` patience."""


def tree(
    parents: dict[int, int], s: int = 0, *, bare: tuple[int, ...] = (), removal_ns: int | None = None
) -> Net:
    shard = ShardSpec((len(parents) - len(bare)) * UPDATES, "int64", s, ahead_max=8)
    net = Net(parents, shard, random=Random(0), updates=UPDATES, bare=bare, removal_ns=removal_ns)
    net.settle()
    return net


def finish(net: Net) -> None:
    """All workers make all their updates and leave."""
    assert net.run(20_000, haste=0)
    net.check_end()


def sums(net: Net) -> list[int]:
    """Updates of each worker that the root has durably."""
    assert net.root is not None
    counts = net.counts(net.root.snapshot().weights)
    assert set(np.unique(counts)) <= {0, 1}
    return [int(count) for count in counts.sum(axis=1)]


def parent(net: Net, node: int) -> int:
    view = net.nodes[NodeId(node)].view()
    return view.parent if view.is_attached else -1


def test_section_3_2_a_node_checks_the_liveness_of_its_parent_by_heartbeats() -> None:
    net = tree(LINE)
    net.elapse(5 * BEAT)
    assert net.words(Heartbeat, by=2, to=1) == 5
    assert net.words(HeartbeatAnswer, by=1, to=2) == 5


def test_section_3_2_children_of_a_node_that_fails_go_to_its_parent() -> None:
    net = tree(LINE)
    net.elapse(BEAT)
    net.crash(NodeId(1))
    net.elapse(DEAD - 1)
    assert parent(net, 2) == -1, "it may be back"
    net.elapse(1)
    assert parent(net, 2) == 0
    assert {Mark.PARENT_DEAD, Mark.ADOPTED} <= net.marks()
    net.start(NodeId(1))
    finish(net)


def test_section_3_2_they_exchange_clocks_and_what_the_new_parent_lacks_is_sent_again() -> None:
    net = tree({0: ROOT, 1: 0, 2: 1, 3: 1}, bare=(1,))
    net.update(2)
    net.settle()
    assert net.words(Push, by=1) == 0, "its window lacks worker 3"
    net.crash(NodeId(1))
    net.elapse(DEAD)
    assert net.words(Push, by=2, to=0) == 1
    net.start(NodeId(1))
    finish(net)


def test_section_3_2_what_the_new_parent_has_is_not_sent_again() -> None:
    """It may have come through the node that failed."""
    net = tree({0: ROOT, 1: 0, 2: 1}, bare=(1,))
    net.update(2)
    net.settle()
    assert net.words(Push, by=1) == 1
    net.crash(NodeId(1))
    net.elapse(DEAD)
    assert net.words(Push, by=2, to=0) == 0
    assert net.nodes[NodeId(2)].view().logged == 1, "but kept: the root lacks it"
    net.start(NodeId(1))
    finish(net)


def test_section_3_2_a_sum_of_which_a_part_came_another_way_is_made_anew() -> None:
    """The parent lives, and is only taken for dead: it has what its child sends again."""
    net = tree(LINE)
    net.update(2)
    net.settle()
    net.cut_off(NodeId(2), NodeId(1))
    net.elapse(2 * DEAD)
    assert parent(net, 2) == 0
    assert net.words(Push, by=2, to=0) == 1
    net.update(1)
    net.update(0)
    net.settle()
    assert {Mark.REFUSED_PUSH, Mark.RESET} <= net.marks()
    assert sums(net) == [1, 1, 1]
    net.heal()
    finish(net)


def test_section_3_2_the_staleness_bound_holds_for_workers_below_a_node_that_failed() -> None:
    net = tree({0: ROOT, 1: 0, 2: 1, 3: 0}, 1)
    for _ in range(3):
        for worker in net.workers:
            net.update(worker)
        net.settle()
    net.crash(NodeId(1))
    net.elapse(DEAD)
    net.update(2)
    net.pull(2, 1)
    net.settle()
    program = net.programs[WorkerId(2)]
    assert not program.answers, "the worker of node 1 is at clock 3, of which the root has 2"
    net.start(NodeId(1))
    net.settle()
    resumed = net.programs[WorkerId(1)].clock
    assert resumed == 2, "what its node had not forwarded is lost, and made again"
    net.elapse(2 * RETURN)
    net.update(1)
    for other in (0, 3):
        net.pull(other, 0)
    net.settle()
    assert program.answers[-1].clock == 4
    finish(net)


def test_section_3_2_children_of_a_root_that_fails_wait_for_the_replacement() -> None:
    net = tree(LINE)
    for worker in net.workers:
        net.update(worker)
    net.crash(ROOT)
    net.elapse(5 * DEAD)
    assert [net.nodes[node].view().parent for node in sorted(net.nodes)] == [ROOT, 0, 1], "nobody moves"
    net.start_root()
    net.settle()
    assert sums(net) == [1, 1, 1]
    finish(net)


@pytest.mark.parametrize("s", [0, 2])
def test_section_3_2_what_the_root_had_not_made_durable_is_sent_again(s: int) -> None:
    net = tree(LINE, s)
    for _ in range(3):
        for worker in (2, 1, 0):
            net.update(worker)
            net.settle(persists=False)
    assert sums(net) == [0, 0, 0]
    assert net.root is not None
    assert net.root.view().merged.minimum() > 0
    net.crash(ROOT)
    net.start_root()
    net.settle()
    assert sums(net) == [3 // (s + 1) * (s + 1)] * 3
    assert Mark.RESENT in net.marks()
    finish(net)


def test_nothing_that_is_not_durable_is_shown() -> None:
    net = tree(LINE)
    for worker in net.workers:
        net.update(worker)
        net.pull(worker) if worker == 2 else None
    net.settle(persists=False)
    assert net.persisting
    assert net.words(Weights) == 0
    assert net.words(Merged) == 0
    net.settle()
    assert net.words(Weights, by=ROOT) == 1
    assert net.nodes[NodeId(2)].view().kept == 0


def test_section_3_2_a_node_that_is_back_restores_its_model_and_takes_its_old_place() -> None:
    net = tree(LINE)
    for worker in net.workers:
        net.update(worker)
        net.settle()
    for worker in net.workers:
        net.pull(worker)
    net.settle()
    net.crash(NodeId(1))
    net.elapse(DEAD)
    net.start(NodeId(1))
    net.settle()
    view = net.nodes[NodeId(1)].view()
    assert view.included == Clocks.alike(net.workers, 1), "the weights that its parent has"
    assert view.worker_clock == 1
    assert parent(net, 2) == 0, "it must answer for a while"
    net.elapse(RETURN + BEAT)
    assert parent(net, 2) == 1
    assert Mark.RETURNED in net.marks()
    assert net.nodes[NodeId(1)].view().merged == Clocks({WorkerId(1): 1, WorkerId(2): 1})
    finish(net)


def test_section_3_2_a_worker_goes_on_where_the_root_is_with_it() -> None:
    """What its host had forwarded counts; the rest is lost with the host, and made again."""
    net = tree({0: ROOT, 1: 0, 2: 0}, 3)
    for _ in range(5):
        net.update(1)
    net.settle()
    assert net.nodes[NodeId(0)].view().merged[WorkerId(1)] == 4
    net.crash(NodeId(1))
    net.start(NodeId(1))
    net.settle()
    assert net.programs[WorkerId(1)].clock == 4
    assert net.root is not None
    assert net.root.view().clocks[WorkerId(1)] == 4, "flushed for it: else it could still be lost"
    finish(net)


def test_section_3_2_others_stall_at_the_bound_while_a_worker_is_away_until_it_is_removed() -> None:
    net = tree({0: ROOT, 1: 0, 2: ROOT}, removal_ns=500 * MS)
    for worker in net.workers:
        net.update(worker)
    net.settle()
    net.crash(NodeId(1))
    for other in (0, 2):
        net.update(other)
        net.pull(other)
    net.elapse(400 * MS)
    assert all(net.programs[WorkerId(worker)].is_waiting for worker in (0, 2))
    net.elapse(200 * MS)
    assert not any(net.programs[WorkerId(worker)].is_waiting for worker in (0, 2))
    assert net.root is not None
    assert net.root.view().clocks == Clocks({WorkerId(0): 2, WorkerId(1): REMOVED, WorkerId(2): 2})
    assert sums(net) == [2, 1, 2]
    net.start(NodeId(1))
    net.settle()
    assert net.programs[WorkerId(1)].has_left, "it is told so"


def test_a_worker_that_is_removed_before_its_last_words_came_is_told_that_they_do_not_count() -> None:
    net = tree({0: ROOT, 1: ROOT}, removal_ns=500 * MS)
    net.cut_off(NodeId(1), ROOT)
    net.update(1)
    net.leave(1)
    net.elapse(600 * MS)
    net.heal()
    net.settle()
    assert sums(net) == [0, 0]
    assert net.root is not None
    assert net.root.view().clocks[WorkerId(1)] == 0, "at s = 0 with the first window"
    net.update(0)
    net.settle()
    assert net.root.view().clocks == Clocks({WorkerId(0): 1, WorkerId(1): REMOVED})
    assert len(net.refused) == 1
    assert sums(net) == [1, 0]


def test_nobody_is_dead_who_has_yet_to_start() -> None:
    """Hosts start one by one (ours)."""
    patience = replace(QUICK, start_ns=20 * DEAD)
    net = Net(LINE, ShardSpec(9, "int64"), random=Random(0), updates=3, patience=patience)
    for node in (0, 1):
        net.crash(NodeId(node))
    net.elapse(10 * DEAD)
    assert net.marks() == set()
    net.start(NodeId(0))
    net.elapse(5 * DEAD)
    net.start(NodeId(1))
    net.elapse(BEAT)
    assert [parent(net, node) for node in (0, 1, 2)] == [ROOT, 0, 1]
    net.crash(NodeId(1))
    net.elapse(2 * DEAD)
    assert parent(net, 2) == 0, "one that it had met"
    net.start(NodeId(1))
    assert net.run(20_000, haste=0)
    net.check_end()


def test_what_a_process_that_is_gone_has_finished_is_not_withheld() -> None:
    """Ours: the next process may be long in coming, and its host could die meanwhile."""
    net = tree({0: ROOT, 1: 0}, 2)
    net.update(1)
    net.settle()
    assert sums(net) == [0, 0], "withheld"
    net.step(NodeId(1), Pushed(np.ones(net.shard.elements, np.int64)))
    net.step(NodeId(1), Abandoned())
    net.settle()
    assert sums(net) == [0, 1], "but not what was not finished"
    assert net.nodes[NodeId(1)].view().worker_clock == 1
    finish(net)


def test_nor_is_a_clock_that_was_held_back() -> None:
    net = tree({0: ROOT, 1: 0}, 2)
    net.shard = replace(net.shard, ahead_max=3)
    for node in (0, 1):
        net.crash(NodeId(node))
        net.start(NodeId(node))
    net.settle()
    for _ in range(4):
        net.update(1)
        net.settle()
    assert net.programs[WorkerId(1)].is_waiting, "the fourth is held back"
    net.step(NodeId(1), Abandoned())
    net.settle()
    assert sums(net) == [0, 4]
    assert net.nodes[NodeId(1)].view().worker_clock == 4
    finish(net)


def test_what_a_process_had_finished_reaches_the_root_though_a_parent_dies_over_it() -> None:
    net = tree({0: ROOT, 1: 0}, 2)
    net.update(1)
    net.settle()
    net.step(NodeId(1), Abandoned())
    net.crash(NodeId(0))
    net.elapse(2 * DEAD)
    assert parent(net, 1) == ROOT
    assert sums(net) == [0, 1]
    net.start(NodeId(0))
    finish(net)


@pytest.mark.parametrize("s", [0, 2])
def test_a_host_that_ends_in_order_leaves_nothing_that_would_have_to_be_made_again(s: int) -> None:
    """Ours. At s = 0 its part of a window goes up alone."""
    net = tree({0: ROOT, 1: 0, 2: 0}, s)
    net.update(0)
    net.settle()
    assert net.words(Push, by=0) == 0
    net.step(NodeId(0), Ending())
    net.settle()
    net.crash(NodeId(0))
    for worker in (1, 2):
        net.update(worker)
    net.elapse(2 * DEAD)
    assert net.root is not None
    assert net.root.view().merged[WorkerId(0)] == 1
    net.start(NodeId(0))
    net.elapse(2 * DEAD)
    assert net.programs[WorkerId(0)].clock == 1
    finish(net)


def test_no_worker_is_removed_that_has_yet_to_start() -> None:
    """However soon one that was here is (ours); also after the root has started again."""
    patience = replace(QUICK, start_ns=20 * DEAD)
    shard = ShardSpec(3, "int64")
    for has_restarted in (False, True):
        net = Net(
            {0: ROOT, 1: ROOT, 2: ROOT},
            shard,
            random=Random(0),
            updates=1,
            patience=patience,
            removal_ns=2 * DEAD,
        )
        net.crash(NodeId(2))
        if has_restarted:
            net.crash(ROOT)
            net.start_root()
        net.settle()
        net.crash(NodeId(1))
        net.elapse(19 * DEAD)
        assert net.root is not None
        assert [net.root.view().merged[worker] == REMOVED for worker in net.workers] == [False, True, False]
        net.elapse(2 * DEAD)
        assert [net.root.view().merged[worker] == REMOVED for worker in net.workers] == [False, True, True]


@pytest.mark.parametrize("who", [ROOT, 0])
def test_who_stood_still_takes_nobody_for_dead_for_it(who: int) -> None:
    """Ours: a stopped process, a machine that slept. What the others said meanwhile is read first."""
    net = tree(WIDE, removal_ns=4 * DEAD if who == ROOT else None)
    net.elapse(2 * DEAD)
    net.still.add(NodeId(who))
    net.elapse(5 * DEAD)
    net.still.clear()
    net.elapse(4 * DEAD)
    core = net.root if who == ROOT else net.nodes[NodeId(who)]
    assert core is not None
    counted = core.view().counters
    assert counted[Mark.AWAY.value] == 1
    assert not {Mark.CHILD_DEAD.value, Mark.PARENT_DEAD.value, Mark.WORKER_REMOVED.value} & set(counted)
    assert Mark.TORN_DOWN not in net.marks()
    assert {node: parent(net, node) for node in WIDE} == WIDE
    child = NodeId(0 if who == ROOT else 2)
    net.crash(child)
    net.elapse(2 * DEAD)
    assert core.view().counters[Mark.CHILD_DEAD.value] == 1, "who is silent is dead as ever"
    net.start(child)
    finish(net)


WIDE = {0: ROOT, 1: ROOT, 2: 0, 3: 0, 4: 1, 5: 1}


def test_section_3_2_one_failure_leaves_the_tree_as_it_is() -> None:
    for broken in range(6):
        net = tree(WIDE)
        net.elapse(BEAT)
        net.crash(NodeId(broken))
        net.elapse(4 * DEAD)
        assert net.root is not None
        assert not net.root.view().is_direct
        assert net.root.view().dead == (broken,)


def test_section_3_2_a_link_that_fails_counts_as_one_failure() -> None:
    net = tree(WIDE)
    net.cut_off(NodeId(2), NodeId(0))
    net.elapse(4 * DEAD)
    assert parent(net, 2) == ROOT
    assert net.root is not None
    assert len(net.root.view().dead) == 1


@pytest.mark.parametrize("broken", [(0, 1), (2, 5), (0, 3), (1, 4)])
def test_section_3_2_several_failures_at_once_tear_the_tree_down_and_it_is_built_up_again(
    broken: tuple[int, int],
) -> None:
    net = tree(WIDE)
    for worker in net.workers:
        net.update(worker)
    net.settle()
    for node in broken:
        net.crash(NodeId(node))
    net.elapse(4 * DEAD)
    assert net.root is not None
    assert net.root.view().is_direct
    living = [node for node in WIDE if node not in broken]
    assert all(parent(net, node) == ROOT for node in living), "workers push to the server themselves"
    for node in broken:
        net.start(NodeId(node))
    net.elapse(RETURN + 2 * DEAD)
    assert not net.root.view().is_direct
    assert {node: parent(net, node) for node in WIDE} == WIDE
    assert {Mark.TORN_DOWN, Mark.BUILT_UP} <= net.marks()
    finish(net)


def test_a_tree_that_falls_again_and_again_is_built_up_later_and_later() -> None:
    net = tree(WIDE)
    waits = []
    for _ in range(4):
        for node in (2, 5):
            net.crash(NodeId(node))
        net.elapse(4 * DEAD)
        assert net.root is not None
        assert net.root.view().is_direct
        for node in (2, 5):
            net.start(NodeId(node))
        since = net.now
        while net.root.view().is_direct:
            net.elapse(BEAT)
        waits.append((net.now - since) // RETURN)
    assert waits == [1, 2, 4, 8]
    finish(net)


def test_section_3_2_what_was_withheld_is_sent_to_the_root_when_the_tree_is_torn_down() -> None:
    net = tree(WIDE, 3)
    for _ in range(2):
        for worker in net.workers:
            net.update(worker)
        net.settle()
    assert sums(net) == [0] * 6
    net.crash(NodeId(2))
    net.crash(NodeId(5))
    net.elapse(4 * DEAD)
    for living in (0, 1, 3, 4):
        net.pull(living, 2)
    net.settle()
    assert all(not net.programs[WorkerId(w)].is_waiting for w in (0, 1, 3, 4))
    net.start(NodeId(2))
    net.start(NodeId(5))
    finish(net)


def test_a_node_without_children_or_worker_is_no_burden() -> None:
    net = tree({0: ROOT, 1: 0, 2: ROOT}, bare=(2,))
    net.elapse(2 * BEAT)
    assert net.words(Attach, by=2) == 1
    assert net.words(PullRequest, by=2) == 0
    finish(net)
