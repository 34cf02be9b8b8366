"""Nodes and root of push and pull: what callers and peers may not do, bounds, and what is seen from
outside."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from inaproto.core.models.events import (
    Abandoned,
    Clocked,
    Connect,
    Connected,
    Disconnect,
    Done,
    Heard,
    Left,
    Mark,
    NodeConfig,
    NodeEvent,
    Noted,
    Patience,
    Persist,
    Persisted,
    Pulled,
    Pushed,
    Refuse,
    Remove,
    Resumed,
    RootConfig,
    RootRecord,
    RootSnapshot,
    ShardSpec,
    Stirred,
    Tell,
    Woke,
)
from inaproto.core.models.node import ShardNode
from inaproto.core.models.parent_link import ParentLink
from inaproto.core.models.shard import ShardRoot
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Instant
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Attached,
    Detached,
    Heartbeat,
    HeartbeatAnswer,
    Merged,
    NodeId,
    PullRequest,
    Push,
)
from tests.property.push_pull_net import ROOT, Net

SHARD = ShardSpec(2, "int64")
QUIET = Patience(heartbeat_ns=None)
BEATS = Patience(heartbeat_ns=10 * MS, dead_ns=30 * MS, return_ns=30 * MS)
ME, CHILD, OTHER = NodeId(0), NodeId(1), NodeId(2)
MINE, ITS = WorkerId(0), WorkerId(1)
NOW = Instant(0)
CONFIG = NodeConfig(SHARD, ME, (ROOT,), (CHILD,), MINE, QUIET)
ROOT_CONFIG = RootConfig(SHARD, ROOT, (MINE, ITS), (ME,), (ME, CHILD), QUIET)


class Node:
    """A node, and what it has ordered."""

    def __init__(self, config: NodeConfig = CONFIG) -> None:
        self.core = ShardNode(config, NOW)
        self.does(Woke())

    def does(self, event: NodeEvent) -> list[Any]:
        return self.core.step(event, NOW)

    def hears(self, peer: NodeId, word: Any) -> list[Any]:
        return self.does(Heard(peer, word))

    def attached(self, *, clock: int = 0) -> Node:
        """With its child, both workers at ``clock``."""
        self.does(Connected(ROOT))
        self.hears(CHILD, Attach(1, (ITS,)))
        base = Clocks({MINE: clock})
        for session, vector in ((1, base), (2, base.with_(Clocks({ITS: clock})))):
            self.hears(ROOT, Attached(session, vector, vector))
        return self


def words(actions: list[Any], peer: NodeId) -> list[Any]:
    return [action.word for action in actions if isinstance(action, Tell) and action.peer == peer]


def blames(actions: list[Any]) -> list[str]:
    return [action.rule for action in actions if isinstance(action, Blame)]


def push(session: int = 1, clock: int = 1, delta: Any = (1, 1), worker: WorkerId = ITS) -> Push:
    array = None if delta is None else np.array(delta, np.int64)
    return Push(session, clock, Clocks({worker: clock - 1}), Clocks({worker: clock}), array)


def test_a_node_dials_its_parent_first_of_all() -> None:
    assert ShardNode(CONFIG, NOW).deadline == NOW
    assert ShardNode(CONFIG, NOW).step(Woke(), NOW) == [Connect(ROOT)]


def test_it_attaches_itself_and_then_its_children() -> None:
    node = Node()
    assert words(node.does(Connected(ROOT)), ROOT) == [Attach(1, (MINE,))]
    assert node.hears(CHILD, Attach(1, (ITS,))) == []
    said = node.hears(ROOT, Attached(1, Clocks({MINE: 0}), Clocks({MINE: 0})))
    assert words(said, ROOT) == [Attach(2, (MINE, ITS), Clocks({MINE: 0}))]
    assert Resumed(MINE, 0) in said
    both = Clocks({MINE: 0, ITS: 3})
    said = node.hears(ROOT, Attached(2, both, both))
    assert words(said, CHILD) == [Attached(1, Clocks({ITS: 3}), Clocks({ITS: 3}))]


def test_a_worker_does_nothing_before_it_has_resumed_nor_after_it_has_left() -> None:
    node = Node()
    events = (Pushed(np.zeros(2, np.int64)), Clocked(1), Pulled(1, 0), Left(1))
    for event in events:
        with pytest.raises(LocalMisuse, match="before it has resumed"):
            node.does(event)
    node.attached()
    node.does(Left(5))
    for event in events:
        with pytest.raises(LocalMisuse, match="has left"):
            node.does(event)


@pytest.mark.parametrize(("base", "durable"), [(4, 3), (1, 0)])
def test_a_worker_goes_on_only_where_the_root_is_with_it(base: int, durable: int) -> None:
    node = Node()
    node.does(Connected(ROOT))
    said = node.hears(ROOT, Attached(1, Clocks({MINE: base}), Clocks({MINE: durable})))
    assert Noted(Mark.ATTACHED, ROOT) in said
    assert node.core.view().worker_clock is None
    assert node.core.view().root == Clocks({MINE: durable})
    assert not any(isinstance(action, Resumed) for action in said)
    assert Resumed(MINE, base) in node.hears(ROOT, Merged(Clocks({MINE: base})))


def test_a_worker_that_waits_for_long_goes_on_where_the_root_is() -> None:
    """After ``dead_ns``: others may wait for it in another shard. What it makes again is taken where what is
    under way is not; that is no more than ``ahead_max``."""
    node = Node()
    node.does(Connected(ROOT))
    node.hears(ROOT, Attached(1, Clocks({MINE: 2 + SHARD.ahead_max}), Clocks({MINE: 2})))
    due = node.core.deadline
    assert due == QUIET.dead_ns
    node.core.step(Woke(), Instant(due - 1))
    assert node.core.view().worker_clock is None
    node.core.step(Woke(), due)
    assert node.core.view().worker_clock == 2


def test_who_was_away_itself_gives_its_parent_as_much_longer() -> None:
    """Silence while this process stood still is nobody's, nor is the time in which hosts may start."""
    link = ParentLink(replace(CONFIG, ancestors=(OTHER, ROOT), patience=BEATS), NOW)
    link.tick(NOW, (), (), 0)
    start = BEATS.start_ns
    link.was_away(5)
    assert link.tick(Instant(start + 4), (), (), 0) == []
    assert Noted(Mark.PARENT_DEAD, OTHER) in link.tick(Instant(start + 5), (), (), 0)
    link.connected(ROOT, Instant(start + 5))
    link.was_away(7)
    last = Instant(start + 5 + 7 + BEATS.dead_ns)
    assert not any(isinstance(one, Noted) for one in link.tick(Instant(last - 1), (), (), 0))
    assert Noted(Mark.PARENT_DEAD, ROOT) in link.tick(last, (), (), 0), "its connection may be one-sided"


def test_without_heartbeats_a_parent_is_silent_from_when_its_connection_ends() -> None:
    patience = replace(QUIET, start_ns=0)
    link = ParentLink(replace(CONFIG, ancestors=(OTHER, ROOT), patience=patience), NOW)
    assert link.deadline == NOW, "it has to dial"
    link.tick(NOW, (), (), 0)
    assert link.deadline == patience.dead_ns, "who has never come may be dead too"
    link.connected(OTHER, Instant(1))
    assert [link.deadline] == [None]
    link.disconnected(OTHER, Instant(2))
    assert not link.may_ask
    assert link.deadline == 2 + patience.dead_ns
    link.tick(Instant(2 + patience.dead_ns), (), (), 0)
    assert link.parent == ROOT
    assert [link.deadline] == [None], "the root is waited for"


def test_a_tree_with_another_parent_is_gone_to_at_once() -> None:
    link = ParentLink(replace(CONFIG, ancestors=(OTHER, ROOT)), NOW)
    link.tick(NOW, (), (), 0)
    assert link.reshape((CHILD, ROOT), NOW) == [Disconnect(OTHER), Connect(CHILD)]
    assert (link.parent, link.skipped) == (CHILD, ())


@pytest.mark.parametrize(("clock", "has_left"), [(FOREVER, True), (REMOVED, False)])
def test_a_worker_that_had_left_is_told_so(clock: int, has_left: bool) -> None:
    node = Node()
    node.does(Connected(ROOT))
    said = node.hears(ROOT, Attached(1, Clocks({MINE: clock}), Clocks({MINE: clock})))
    assert Resumed(MINE, clock) in said
    node.does(Pushed(np.ones(2, np.int64)))
    for event in (Clocked(1), Pulled(2, 0), Left(3)):
        assert [type(action) for action in node.does(event)] == [Refuse]
    assert has_left == (clock == FOREVER)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(3, np.int64), np.zeros((2, 1), np.int64), np.zeros(2, np.int32), np.zeros(2, np.float64)],
)
def test_gradients_of_another_shape_or_dtype_are_misuse(wrong: Any) -> None:
    node = Node().attached()
    with pytest.raises(LocalMisuse, match=r"pushes \(2,\) of int64"):
        node.does(Pushed(wrong))


def test_gradients_are_copied_and_weights_cannot_be_written() -> None:
    net = Net({0: ROOT}, ShardSpec(1, "int64"), random=Random(0), updates=1, patience=QUIET)
    net.settle()
    mine = np.ones(1, np.int64)
    net.step(ME, Pushed(mine))
    mine[0] = 99
    net.is_checked = False
    net.step(ME, Clocked(1))
    net.pull(0)
    net.settle()
    weights = net.programs[MINE].answers[-1].weights
    assert weights.tolist() == [1]
    assert not weights.flags.writeable


def test_requests_out_of_order_are_misuse_and_change_nothing() -> None:
    node = Node(replace(CONFIG, shard=replace(SHARD, ahead_max=1))).attached()
    node.does(Clocked(1))
    node.does(Clocked(2))
    view = node.core.view()
    for event in (Pushed(np.zeros(2, np.int64)), Clocked(3), Pulled(3, 0), Left(3)):
        with pytest.raises(LocalMisuse, match="before its clock is done"):
            node.does(event)
    assert node.core.view() == view
    assert Done(2, 2) in node.hears(ROOT, Merged(Clocks({MINE: 1})))


def test_pulls_have_a_bound_and_a_staleness() -> None:
    node = Node(replace(CONFIG, shard=replace(SHARD, ahead_max=2))).attached()
    with pytest.raises(LocalMisuse, match="staleness"):
        node.does(Pulled(1, -1))
    node.does(Pulled(1, 0))
    with pytest.raises(LocalMisuse, match="twice"):
        node.does(Pulled(1, 0))
    node.does(Pulled(2, 0))
    with pytest.raises(LocalMisuse, match="waits for 2 pulls"):
        node.does(Pulled(3, 0))


def test_a_node_without_a_worker_has_nobody_to_push() -> None:
    node = Node(replace(CONFIG, worker=None))
    with pytest.raises(LocalMisuse, match="has no worker"):
        node.does(Clocked(1))


def test_what_a_process_that_is_gone_had_not_finished_is_dropped() -> None:
    node = Node(replace(CONFIG, children=())).attached()
    node.does(Pushed(np.ones(2, np.int64)))
    node.does(Pulled(1, 0))
    node.does(Abandoned())
    assert node.core.view().waiting == ()
    assert not words(node.does(Clocked(2)), ROOT), "the child's part of the window is missing"
    [sent] = [w for w in words(node.hears(CHILD, push()), ROOT) if isinstance(w, Push)]
    assert sent == Push(2, 1, Clocks({MINE: 0, ITS: 0}), Clocks({MINE: 1, ITS: 1}), np.array([1, 1]))


def test_words_of_another_session_or_of_somebody_else_are_nothing() -> None:
    node = Node().attached()
    view = node.core.view()
    assert node.hears(OTHER, push()) == []
    assert node.hears(OTHER, PullRequest(3)) == []
    assert node.hears(OTHER, Merged(Clocks({MINE: 3}))) == []
    assert node.hears(ROOT, Detached(1, "long ago")) == []
    assert node.hears(ROOT, Attached(1, Clocks({MINE: 9}), NO_CLOCKS)) == []
    assert node.core.view() == view


def test_requests_and_children_have_bounds() -> None:
    node = Node(replace(CONFIG, shard=replace(SHARD, ahead_max=1), children_max=1)).attached()
    assert node.hears(OTHER, Attach(1, ())) == [Blame(str(OTHER), "one child too many", "1 are attached")]
    node.hears(ROOT, Merged(Clocks({ITS: FOREVER})))  # of whom it is not known how far it was
    for needed in (5, 6):
        assert blames(node.hears(CHILD, PullRequest(needed))) == []
    assert blames(node.hears(CHILD, PullRequest(7))) == ["one request too many"]
    assert blames(node.hears(CHILD, PullRequest(6))) == [], "it is there already"


def _asked(actions: list[Any]) -> list[int]:
    return [word.needed for word in words(actions, ROOT) if isinstance(word, PullRequest)]


def test_requests_of_processes_that_are_gone_are_not_in_the_way_of_later_ones() -> None:
    """The other worker stands still at clock 0. Each process makes two clocks, asks for new weights, and is
    gone."""
    spec = ShardSpec(2 * 12, "int64", 1, ahead_max=2)
    net = Net({0: ROOT, 1: ROOT}, spec, random=Random(0), updates=12)
    net.settle()
    for _ in range(12):
        net.step(NodeId(0), Abandoned())
        net.programs[MINE].is_waiting = False
        net.update(0)
        net.settle()
        net.pull(0)
        net.settle()
    assert net.root is not None
    assert net.root.view().children[0].waiting == (1, 2, 3, 4), "as many as it may"
    for _ in range(12):
        net.update(1)
        net.settle()
        net.programs[ITS].is_waiting = False
    assert not net.programs[MINE].is_waiting
    assert net.programs[MINE].answers[-1].clock == 12


def test_a_request_that_is_earlier_than_as_many_as_may_wait_goes_up_in_a_new_session() -> None:
    """Of somebody who bears more staleness: others could wait for him."""
    shard = replace(SHARD, staleness=1, ahead_max=2)
    node = Node(replace(CONFIG, shard=shard, children=()))
    node.does(Connected(ROOT))
    node.hears(ROOT, Attached(1, Clocks({MINE: 9}), Clocks({MINE: 9})))
    asked = []
    for clock in range(9, 13):
        asked += _asked(node.does(Pulled(clock, 0)))
        node.does(Abandoned())
        node.does(Clocked(20 + clock))
        node.hears(ROOT, Merged(Clocks({MINE: clock + 1})))
    assert asked == [9, 10, 11], "and 0, when it was new"
    assert node.core.view().asked == (0, 9, 10, 11)
    assert _asked(node.does(Pulled(1, 0))) == [], "those before it are answered before it"
    [attach] = [word for word in words(node.does(Pulled(2, 5)), ROOT) if isinstance(word, Attach)]
    assert attach.session == 2
    now = Clocks({MINE: 13})
    assert _asked(node.hears(ROOT, Attached(2, now, now))) == [0, 8, 13]


def test_a_heartbeat_is_answered_and_says_whether_there_is_a_parent() -> None:
    node = Node()
    assert words(node.hears(CHILD, Heartbeat()), CHILD) == [HeartbeatAnswer(False)]
    node.attached()
    assert words(node.hears(CHILD, Heartbeat()), CHILD) == [HeartbeatAnswer(True)]


def silence(core: ShardNode | ShardRoot, now: Instant) -> list[Any]:
    """What it does while it is woken at its deadlines, and hears nothing for ``dead_ns``."""
    until, done = Instant(now + BEATS.dead_ns), list[Any]()
    while now < until:
        assert core.deadline is not None
        now = min(until, max(now, core.deadline))
        done += core.step(Woke(), now)
    return done


def test_a_child_whose_word_is_on_its_way_lives_and_is_answered_as_if_by_a_heartbeat() -> None:
    """That one is behind the word, which may take longer than patience; strangers are not answered."""
    node = Node(replace(CONFIG, patience=BEATS)).attached()
    server = ShardRoot(replace(ROOT_CONFIG, patience=BEATS), None, [], NOW)
    server.step(Connected(ME), NOW)
    server.step(Heard(ME, Attach(1, (MINE, ITS))), NOW)
    now = NOW
    for _ in range(9):
        now = Instant(now + BEATS.dead_ns // 2)
        node.core.step(Stirred(ROOT), now)
        assert words(node.core.step(Stirred(CHILD), now), CHILD) == [HeartbeatAnswer(True)]
        assert words(server.step(Stirred(ME), now), ME) == [HeartbeatAnswer(True)]
        assert words(server.step(Stirred(OTHER), now), OTHER) == []
    assert server.view().dead == ()
    assert node.core.view().dead == ()
    assert Noted(Mark.CHILD_DEAD, CHILD) in silence(node.core, now)
    assert Noted(Mark.CHILD_DEAD, ME) in silence(server, now)


def test_a_parent_whose_word_is_on_its_way_lives_and_is_not_answered() -> None:
    node = Node(replace(CONFIG, ancestors=(OTHER, ROOT), children=(), patience=BEATS))
    node.does(Connected(OTHER))
    node.hears(OTHER, Attached(1, Clocks({MINE: 0}), Clocks({MINE: 0})))
    now = NOW
    for _ in range(9):
        now = Instant(now + BEATS.dead_ns // 2)
        said = node.core.step(Stirred(OTHER), now)
        assert not any(isinstance(word, HeartbeatAnswer) for word in words(said, OTHER))
    assert node.core.view().parent == OTHER
    assert Noted(Mark.PARENT_DEAD, OTHER) in silence(node.core, now)


def root(s: int = 0) -> ShardRoot:
    found = ShardRoot(replace(ROOT_CONFIG, shard=replace(SHARD, staleness=s)), None, [], NOW)
    found.step(Heard(ME, Attach(1, (MINE, ITS))), NOW)
    return found


def test_the_root_makes_one_step_durable_at_a_time_in_order() -> None:
    server = root(1)
    [first] = [a for a in server.step(Heard(ME, push(worker=MINE)), NOW) if isinstance(a, Persist)]
    assert (first.record.clocks, first.token) == (Clocks({MINE: 1}), 1)
    assert server.step(Heard(ME, push(worker=ITS)), NOW) == []
    assert server.step(Heard(ME, push(worker=MINE, clock=2)), NOW) == []
    assert server.snapshot() == RootSnapshot(np.zeros(2, np.int64), Clocks({MINE: 0, ITS: 0}))
    actions = server.step(Persisted(1), NOW)
    [second] = [a for a in actions if isinstance(a, Persist)]
    assert second.record == RootRecord(Clocks({MINE: 2, ITS: 1}), np.full(2, 2))
    assert words(actions, ME) == [Merged(Clocks({MINE: 1, ITS: 0}))]
    for wrong in (1, 3):
        with pytest.raises(LocalMisuse, match="token"):
            server.step(Persisted(wrong), NOW)


def test_a_root_goes_on_from_a_snapshot_and_the_records_after_it() -> None:
    records = [RootRecord(Clocks({MINE: 1}), np.array([1, 2])), RootRecord(Clocks({ITS: FOREVER}), None)]
    snapshot = RootSnapshot(np.array([10, 10]), Clocks({MINE: 0, ITS: 0}))
    server = ShardRoot(ROOT_CONFIG, snapshot, records, NOW)
    assert server.snapshot() == RootSnapshot(np.array([11, 12]), Clocks({MINE: 1, ITS: FOREVER}))
    assert snapshot.weights.tolist() == [10, 10]


@pytest.mark.parametrize(
    "snapshot",
    [
        RootSnapshot(np.zeros(3, np.int64), Clocks({MINE: 0, ITS: 0})),
        RootSnapshot(np.zeros(2, np.int32), Clocks({MINE: 0, ITS: 0})),
        RootSnapshot(np.zeros(2, np.int64), Clocks({MINE: 0})),
    ],
)
def test_a_snapshot_of_another_shard_is_misuse(snapshot: RootSnapshot) -> None:
    with pytest.raises(LocalMisuse):
        ShardRoot(ROOT_CONFIG, snapshot, [], NOW)


def test_a_push_that_does_not_go_on_detaches_its_child_until_it_attaches_anew() -> None:
    server = root()
    said = server.step(Heard(ME, push(worker=MINE, clock=2)), NOW)
    assert [type(word) for word in words(said, ME)] == [Detached]
    assert any(isinstance(action, Noted) for action in said)
    assert server.step(Heard(ME, push(worker=MINE)), NOW) == [], "of a session that has ended"
    [again] = words(server.step(Heard(ME, Attach(2, (MINE,))), NOW), ME)
    assert again.base == Clocks({MINE: 0})


def test_removing_takes_a_worker_of_the_model_and_once() -> None:
    server = root(1)
    with pytest.raises(LocalMisuse, match="not of this model"):
        server.step(Remove(WorkerId(9)), NOW)
    [persist] = [a for a in server.step(Remove(ITS), NOW) if isinstance(a, Persist)]
    assert persist.record == RootRecord(Clocks({ITS: REMOVED}), None)
    assert server.step(Remove(ITS), NOW) == []


@pytest.mark.parametrize(
    "change",
    [
        {"elements": 0}, {"dtype": "float16"}, {"staleness": -1}, {"staleness": 8}, {"fraction_bits": -1},
        {"dtype": "float32", "fraction_bits": 3},
    ],
)  # fmt: skip
def test_a_shard_that_cannot_be_is_misuse(change: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse):
        replace(SHARD, **change)


@pytest.mark.parametrize(
    "change",
    [{"ancestors": ()}, {"ancestors": (CHILD, ROOT)}, {"children": (ME,)}, {"children_max": 0}],
)
def test_a_place_in_the_tree_that_cannot_be_is_misuse(change: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse):
        replace(CONFIG, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"workers": ()}, {"workers": (MINE, MINE)}, {"children": (OTHER,)}, {"nodes": (ME, CHILD, ROOT)},
        {"teardown_failures": 0}, {"children_max": 1}, {"removal_ns": 0}, {"removal_ns": -1},
    ],
)  # fmt: skip
def test_a_root_that_cannot_be_is_misuse(change: dict[str, Any]) -> None:
    with pytest.raises(LocalMisuse):
        replace(ROOT_CONFIG, **change)


@pytest.mark.parametrize("change", [{"dead_ns": -1}, {"return_ns": -1}, {"heartbeat_ns": 0}])
def test_a_patience_that_cannot_be_is_misuse(change: dict[str, int]) -> None:
    with pytest.raises(LocalMisuse):
        Patience(**change)


def test_views_of_the_same_state_are_equal() -> None:
    assert Node().attached().core.view() == Node().attached().core.view()
    assert root().view() == root().view()
