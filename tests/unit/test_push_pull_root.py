"""What the root says of its decisions: which tree, who is removed, who is missing (MLNet 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.models.children import Children
from inaproto.core.models.events import (
    Connected,
    Disconnected,
    Heard,
    Mark,
    NodeConfig,
    Noted,
    Patience,
    Persist,
    Persisted,
    Remove,
    Reshape,
    RootConfig,
    RootEvent,
    RootRecord,
    ShardSpec,
    Tell,
    Woke,
)
from inaproto.core.models.shard import ShardRoot
from inaproto.core.models.tree.epochs import Orders, Stand
from inaproto.errors import LocalMisuse
from inaproto.units import Instant
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Detach,
    Detached,
    Epoch,
    HeartbeatAnswer,
    Mode,
    NodeId,
    Reshaped,
)

A, B, C, SERVER = NodeId(0), NodeId(1), NodeId(2), NodeId(9)
WORKERS = tuple(WorkerId(node) for node in (A, B, C))
SHARD = ShardSpec(2, "int64", ahead_max=3)
PATIENCE = Patience(heartbeat_ns=None, dead_ns=5, return_ns=5, start_ns=20)
CONFIG = RootConfig(
    SHARD, SERVER, WORKERS, (A, B), (A, B, C), PATIENCE, others=(Stand((), (C, A)), Stand((), (B,)))
)


class Root:
    def __init__(self, config: RootConfig = CONFIG, here: Sequence[NodeId] = (A, B)) -> None:
        self.core, self.now = ShardRoot(config, None, (), Instant(0)), 0
        for node in here:
            self.does(Connected(node), Heard(node, Attach(1, (WorkerId(node),))))

    def does(self, *events: RootEvent) -> list[Any]:
        return [action for event in events for action in self.core.step(event, Instant(self.now))]

    @property
    def below(self) -> list[NodeId]:
        return [child.node for child in self.core.view().children]


def notes(actions: list[Any]) -> list[Noted]:
    return [action for action in actions if isinstance(action, Noted)]


def test_another_tree_is_durable_before_anybody_hears_of_it() -> None:
    """Its first clock is beyond what any worker can have finished: the furthest durable one, ``ahead_max``
    further, and one more for a last word."""
    root = Root()
    epoch = Epoch(1, 0, 1, 5)
    assert root.does(Reshape(1, "a trial")) == [Persist(RootRecord(NO_CLOCKS, None, epoch), 1)]
    assert notes(root.does(Reshape(2, "soon"))) == [
        Noted(Mark.NOT_RESHAPED, why="tree 2: the last change is not over")
    ]
    assert root.does(Persisted(1)) == [
        Noted(Mark.RESHAPED, why="tree 1 in place of 0 at clock 5: a trial"),
        Tell(A, Reshaped(epoch)),
        Tell(B, Reshaped(epoch)),
    ]
    assert root.below == [A, B], "B goes by itself, C comes by itself"
    assert root.does(Heard(C, Attach(1, (WORKERS[2],))))[0] == Tell(C, Reshaped(epoch))
    assert root.below == [C, A, B], "in the order of the new tree, who is none of it last"
    assert not root.core.view().may_reshape, "no window of the new tree has come"


@pytest.mark.parametrize(
    ("here", "tree", "why"), [((A, B), 0, "tree 0: it is used"), ((A,), 1, "tree 1: hosts are missing")]
)
def test_a_tree_that_cannot_be_chosen_stays_out_of_the_record(
    here: Sequence[NodeId], tree: int, why: str
) -> None:
    root = Root(replace(CONFIG, patience=replace(PATIENCE, start_ns=0), teardown_failures=3), here=here)
    root.now = 5 if len(here) == 1 else 0
    root.does(Disconnected(B), Woke())
    root.now += 5 if len(here) == 1 else 0
    root.does(Woke())
    assert root.does(Reshape(tree, "x")) == [Noted(Mark.NOT_RESHAPED, why=why)]
    with pytest.raises(LocalMisuse, match="tree 3 is none of the 3"):
        root.does(Reshape(3, "x"))


def test_an_epoch_of_trees_that_are_none_to_choose_from_is_not_gone_on_with() -> None:
    orders = Orders(CONFIG, Epoch(4, 2, 1, 30))
    assert [orders.knows(Epoch(1, before, tree, 0)) for before, tree in ((2, 2), (3, 2), (2, 3))] == [
        True,
        False,
        False,
    ]
    assert orders.stand.children == (C, A)
    assert [Epoch(4, 2, 1, 30).tree_at(clock) for clock in (29, 30)] == [2, 1]


def test_who_comes_out_of_place_is_adopted_and_added_last_and_who_leaves_is_awaited_no_more() -> None:
    """MLNet 3.2: children of a node that failed go to its parent."""
    root = Root()
    assert Noted(Mark.ADOPTED, C) in root.does(Heard(C, Attach(1, (WORKERS[2],))))
    assert root.below == [A, B, C]
    root.does(Heard(C, Detach(1)), Heard(A, Detach(1)))
    assert root.below == [B]


def test_a_removal_says_whom_and_after_which_clock() -> None:
    root = Root()
    assert notes(root.does(Remove(WORKERS[1]))) == [
        Noted(Mark.WORKER_REMOVED, why="worker 1 after its clock 0")
    ]
    assert root.core.view().lost == (WORKERS[2],)


def test_a_tree_that_falls_and_is_built_up_says_for_whom() -> None:
    root = Root(replace(CONFIG, teardown_failures=1))
    root.does(Disconnected(B))
    root.now = 5
    assert root.does(Woke()) == [
        Noted(Mark.CHILD_DEAD, B),
        Noted(Mark.TORN_DOWN, why="dead: 1"),
        Tell(A, Mode(True)),
    ]
    root.does(Heard(C, Attach(1, ())), Connected(B), Heard(B, Attach(2, (WORKERS[1],))))
    root.now = 10
    assert notes(root.does(Woke())) == [Noted(Mark.BUILT_UP, why="dead: none")]


def test_who_was_away_itself_waits_longer_for_those_that_have_yet_to_start() -> None:
    """Silence while this process stood still is nobody's; nor is the time in which hosts may start."""
    children = Children(NodeConfig(SHARD, A, (SERVER,), (B, C), patience=PATIENCE), (B, C), Instant(0))
    assert children.deadline == 20
    children.was_away(7)
    assert children.deadline == 27
    assert children.age(Instant(26)) == []
    assert children.age(Instant(27)) == [Noted(Mark.CHILD_DEAD, B), Noted(Mark.CHILD_DEAD, C)]
    assert children.dead == {B, C}


def test_a_child_that_is_taken_for_dead_is_told_and_strangers_get_no_answer() -> None:
    root = Root()
    root.does(Disconnected(A))
    assert Tell(B, HeartbeatAnswer(True)) not in root.does(Woke())
    children = Children(CONFIG, (A,), Instant(0))
    children.attach(A, Attach(1, ()), Instant(0))
    children.disconnected(A, Instant(1))
    children.attach(A, Attach(2, ()), Instant(2))
    assert [children.deadline] == [None], "it is there again"
    children.disconnected(A, Instant(3))
    assert children.deadline == 8
    patience = replace(PATIENCE, heartbeat_ns=1)
    beating = Children(replace(CONFIG, patience=patience), (A,), Instant(0))
    beating.attach(A, Attach(1, ()), Instant(2))
    assert beating.age(Instant(7)) == [
        Noted(Mark.CHILD_DEAD, A),
        Tell(A, Detached(1, "silent for too long")),
    ]


def test_when_all_have_left_no_tree_is_chosen() -> None:
    records = [RootRecord(Clocks(dict.fromkeys(WORKERS, FOREVER)), None)]
    core = ShardRoot(CONFIG, None, records, Instant(0))
    assert core.step(Reshape(1, "x"), Instant(0)) == [
        Noted(Mark.NOT_RESHAPED, why="tree 1: all workers have left")
    ]
