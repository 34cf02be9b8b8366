"""Words that no honest neighbour says: each is blamed by its rule, and changes nothing.

``core/push_pull/rules.py``. A node (number 1, worker 0) has two children (nodes 2 and 3, workers 1 and 2) and
the root (node 9) above it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from inaproto.core.models.events import (
    Clocked,
    Connected,
    Done,
    Heard,
    NodeConfig,
    NodeEvent,
    Patience,
    Pulled,
    Pushed,
    RootConfig,
    ShardSpec,
    Tell,
    Woke,
)
from inaproto.core.models.node import ShardNode
from inaproto.core.models.shard import ShardRoot
from inaproto.core.models.tree.shape import Shape
from inaproto.errors import Blame
from inaproto.units import Instant
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import (
    Attach,
    Attached,
    Detach,
    Detached,
    Flush,
    Heartbeat,
    Merged,
    NodeId,
    PullRequest,
    Push,
    Weights,
)

NOW = Instant(0)
ROOT, ME, CHILD, OTHER, STRANGER = NodeId(9), NodeId(1), NodeId(2), NodeId(3), NodeId(77)
WORKERS = (WorkerId(0), WorkerId(1), WorkerId(2))
SHARD = ShardSpec(2, "int64", ahead_max=4)
QUIET = Patience(None, 0, 0, 0)


def clocks(**named: int) -> Clocks:
    """``w1=3``: worker 1 is at clock 3."""
    return Clocks({WorkerId(int(name[1:])): clock for name, clock in named.items()})


def alike(clock: int) -> Clocks:
    return Clocks.alike(WORKERS, clock)


def numbers(*values: int) -> Any:
    return np.array(values or (1, 1), np.int64)


class Node:
    def __init__(self, *, staleness: int = 0, knows_all: bool = True) -> None:
        config = NodeConfig(
            replace(SHARD, staleness=staleness),
            ME,
            (ROOT,),
            (CHILD, OTHER),
            WORKERS[0],
            QUIET,
            shape=None if staleness else Shape(WORKERS[0], (Shape(WORKERS[1]), Shape(WORKERS[2]))),
            workers=WORKERS if knows_all else None,
            nodes=(ME, CHILD, OTHER) if knows_all else None,
        )
        self.core = ShardNode(config, NOW)
        self.session = 0
        self.does(Woke())
        self.does(Connected(ROOT))

    def does(self, event: NodeEvent) -> list[Any]:
        actions = self.core.step(event, NOW)
        asked = [action.word for action in actions if isinstance(action, Tell) and action.peer == ROOT]
        self.asked = next((word for word in asked if isinstance(word, Attach)), None)
        return actions

    def hears(self, peer: NodeId, word: Any) -> list[Any]:
        return self.does(Heard(peer, word))

    def answered(self) -> Node:
        """The root answers as long as it is asked: all are at 0."""
        while self.asked is not None:
            self.session = self.asked.session
            base = Clocks.alike(self.asked.workers)
            self.hears(ROOT, Attached(self.session, base, base))
        return self

    def whole(self) -> Node:
        """With both children, which are attached."""
        self.answered()
        for child, worker in ((CHILD, WORKERS[1]), (OTHER, WORKERS[2])):
            self.does(Connected(child))
            self.hears(child, Attach(1, (worker,)))
            self.answered()
        return self

    def asks(self, *, clock: int = 1) -> Node:
        """Its worker makes updates to that clock, and pulls."""
        for one in range(1, clock + 1):
            self.does(Pushed(numbers()))
            assert Done(one, one) in self.does(Clocked(one))
        self.does(Pulled(clock + 1, 0))
        return self


def refused(core: ShardNode | ShardRoot, peer: NodeId, word: Any) -> str:
    """The rule; nothing else has changed."""
    view, deadline = core.view(), core.deadline
    [action] = core.step(Heard(peer, word), NOW)
    assert isinstance(action, Blame)
    assert action.peer == str(peer)
    assert len(action.evidence) <= 400
    assert (core.view(), core.deadline) == (view, deadline)
    return action.rule


def push(*, session: int = 1, clock: int = 1, delta: Any = None, worker: int = 1) -> Push:
    before, after = Clocks({WorkerId(worker): clock - 1}), Clocks({WorkerId(worker): clock})
    return Push(session, clock, before, after, numbers() if delta is None else delta)


FROM_A_CHILD = [
    (Attach(1, (WORKERS[1],)), "session is not new"),
    (Attach(0, (WORKERS[1],)), "session is not new"),
    (Attach(-3, (WORKERS[1],)), "session is not new"),
    (Attach(2, (WORKERS[2], WORKERS[1])), "workers are not in order"),
    (Attach(2, (WORKERS[1], WORKERS[1])), "workers are not in order"),
    (Attach(2, (WorkerId(1), WorkerId(77))), "node or worker of another tree"),
    (Attach(2, tuple(map(WorkerId, range(1, 200_000)))), "node or worker of another tree"),
    (Attach(2, (WORKERS[1],), clocks(w2=1)), "floor of other workers"),
    (Attach(2, (WORKERS[1],), clocks(w1=REMOVED + 1)), "a clock that cannot be"),
    (Attach(2, (WORKERS[1],), clocks(w1=-1)), "a clock that cannot be"),
    (push(worker=2), "push for workers of others"),
    (push(worker=0), "push for workers of others"),
    (push(session=7), "push of another session"),
    (push(session=0), "push of another session"),
    (push(delta=numbers(1, 1, 1)), "push of another shape"),
    (push(delta=np.ones((2, 1), np.int64)), "push of another shape"),
    (push(delta=np.ones(2, np.float32)), "push of another shape"),
    (replace(push(), before=NO_CLOCKS), "push of nobody's updates"),
    (Push(1, 1, NO_CLOCKS, NO_CLOCKS, None), "push of nobody's updates"),
    (replace(push(), after=clocks(w1=0)), "push goes back"),
    (replace(push(), after=clocks(w1=REMOVED)), "push goes back"),
    (Push(1, 0, clocks(w1=-1), clocks(w1=0), None), "push goes back"),
    (PullRequest(5), "needs what nobody has made"),
    (PullRequest(10**9), "needs what nobody has made"),
    (PullRequest(-1), "needs what nobody has made"),
    (Heartbeat((), (WORKERS[2],)), "lost workers of others"),
    (Heartbeat((), (WORKERS[1], WorkerId(99))), "lost workers of others"),
    (Heartbeat((), (WORKERS[1], WORKERS[1])), "lost workers of others"),
    (Heartbeat((STRANGER,), ()), "node or worker of another tree"),
    (Heartbeat(tuple(map(NodeId, range(100_000))), ()), "node or worker of another tree"),
    (Heartbeat((OTHER, OTHER), ()), "dead nodes named twice"),
    (Detach(2), "leaves another session"),
]


@pytest.mark.parametrize(("word", "rule"), FROM_A_CHILD, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("staleness", [0, 2])
def test_a_node_refuses_what_no_child_says(word: Any, rule: str, staleness: int) -> None:
    assert refused(Node(staleness=staleness).whole().core, CHILD, word) == rule


def root(*, staleness: int = 0) -> ShardRoot:
    """With the node as its only child, for all workers."""
    nodes = (ME, CHILD, OTHER)
    config = RootConfig(replace(SHARD, staleness=staleness), ROOT, WORKERS, (ME,), nodes, QUIET)
    found = ShardRoot(config, None, (), NOW)
    found.step(Connected(CHILD), NOW)
    found.step(Heard(CHILD, Attach(1, (WORKERS[1],))), NOW)
    found.step(Woke(), NOW)
    return found


@pytest.mark.parametrize(("word", "rule"), FROM_A_CHILD, ids=lambda one: one if isinstance(one, str) else "")
@pytest.mark.parametrize("staleness", [0, 2])
def test_the_root_refuses_what_no_child_says(word: Any, rule: str, staleness: int) -> None:
    assert refused(root(staleness=staleness), CHILD, word) == rule


@pytest.mark.parametrize(
    ("peer", "word", "rule"),
    [
        (STRANGER, Attach(1, ()), "node or worker of another tree"),
        (CHILD, Merged(NO_CLOCKS), "speaks to the root as if it were below"),
        (CHILD, Weights(alike(0), alike(0), numbers()), "speaks to the root as if it were below"),
    ],
)
def test_the_root_hears_nobody_from_above_or_beside(peer: NodeId, word: Any, rule: str) -> None:
    assert refused(root(), peer, word) == rule


@pytest.mark.parametrize(
    "said",
    [
        Push(1, 4, clocks(w1=0), clocks(w1=4), None),  # four windows in one
        Push(1, 10**9, clocks(w1=0), clocks(w1=FOREVER), None),  # last words of a window far off
        Push(1, FOREVER + 5, clocks(w1=0), clocks(w1=FOREVER), None),
        Push(1, 1, clocks(w1=0), clocks(w1=2), None),
    ],
)
def test_with_no_staleness_a_push_is_of_the_one_window_after_the_last(said: Push) -> None:
    assert refused(Node().whole().core, CHILD, said) == "push of several windows"
    assert refused(root(), CHILD, said) == "push of several windows"


def test_with_staleness_a_push_has_a_clock_that_can_be() -> None:
    for clock in (-1, REMOVED, 1 << 70):
        said = Push(1, clock, clocks(w1=0), clocks(w1=1), None)
        assert refused(Node(staleness=2).whole().core, CHILD, said) == "push goes back"


@pytest.mark.parametrize("staleness", [0, 1])
def test_windows_and_logs_have_a_bound_whatever_a_child_pushes(staleness: int) -> None:
    """Nothing is ``ahead_max`` beyond what the root has of the worker."""
    node = Node(staleness=staleness).whole()
    for clock in range(1, SHARD.ahead_max + 1):
        assert not any(isinstance(a, Blame) for a in node.hears(CHILD, push(clock=clock)))
        node.hears(CHILD, Flush())
    assert refused(node.core, CHILD, push(clock=SHARD.ahead_max + 1)) == "too far ahead"
    node.hears(ROOT, Merged(clocks(w1=1)))
    assert not any(isinstance(a, Blame) for a in node.hears(CHILD, push(clock=SHARD.ahead_max + 1)))
    assert node.core.view().logged <= SHARD.ahead_max + 1


def test_a_child_claims_no_worker_that_is_this_nodes_own() -> None:
    assert refused(Node().answered().core, CHILD, Attach(1, WORKERS[:2])) == "claims another's worker"


def test_an_ancestor_is_nobodys_child() -> None:
    assert refused(Node().answered().core, ROOT, Attach(1, WORKERS[1:])) == "would be below its own child"


@pytest.mark.parametrize(
    ("word", "rule"),
    [
        (push(), "pushes before it is attached"),
        (PullRequest(0), "asks before it is attached"),
        (Flush(), "asks before it is attached"),
    ],
)
def test_who_is_not_attached_yet_neither_pushes_nor_asks(word: Any, rule: str) -> None:
    """But for what was on its way when its session ended, which is nothing."""
    node = Node()
    node.hears(CHILD, Attach(1, (WORKERS[1],)))
    assert refused(node.core, CHILD, word) == rule
    node.hears(CHILD, Detach(1))
    assert node.hears(CHILD, word) == []


def test_what_a_worker_that_is_gone_may_still_need_is_not_known() -> None:
    node = Node().whole()
    node.hears(ROOT, Merged(clocks(w1=REMOVED)))
    assert not any(isinstance(action, Blame) for action in node.hears(CHILD, PullRequest(30)))


FROM_THE_PARENT = [
    (Attached(9, alike(0), alike(0)), "answers what was not asked"),
    (Detached(9, ""), "answers what was not asked"),
    (Weights(NO_CLOCKS, clocks(w0=0), numbers()), "weights without what the root had"),
    (Weights(alike(0), alike(1), numbers()), "weights without what the root had"),
    (Weights(NO_CLOCKS, NO_CLOCKS, numbers()), "weights of other workers"),
    (Weights(clocks(w0=1, w1=1), clocks(w0=1, w1=1), numbers()), "weights of other workers"),
    (Weights(alike(1), alike(1), numbers(1, 1, 1)), "weights of another shape"),
    (Weights(alike(1), alike(1), np.ones(2, np.float64)), "weights of another shape"),
    (Weights(alike(-1), alike(-1), numbers()), "a clock that cannot be"),
    (Weights(alike(1 << 63), alike(1), numbers()), "a clock that cannot be"),
    (Weights(alike(1000), alike(1000), numbers()), "too far ahead"),
    (Merged(clocks(w0=1000)), "too far ahead"),
    (Merged(clocks(w1=-1)), "a clock that cannot be"),
]


@pytest.mark.parametrize(
    ("word", "rule"), FROM_THE_PARENT, ids=lambda one: one if isinstance(one, str) else ""
)
@pytest.mark.parametrize("knows_all", [True, False])
def test_a_node_refuses_what_no_parent_says(word: Any, rule: str, knows_all: bool) -> None:
    assert refused(Node(knows_all=knows_all).whole().asks().core, ROOT, word) == rule


def test_weights_are_of_all_workers_and_of_no_others() -> None:
    more = Clocks({WorkerId(w): 1 for w in range(5)})
    assert refused(Node().whole().asks().core, ROOT, Weights(more, more, numbers())) == (
        "weights of other workers"
    )
    node = Node(knows_all=False).whole().asks()
    assert not any(isinstance(a, Blame) for a in node.hears(ROOT, Weights(more, more, numbers())))


def test_weights_are_not_taken_that_nobody_asked_for_nor_twice() -> None:
    node = Node().whole()
    word = Weights(alike(1), alike(1), numbers())
    assert refused(node.core, ROOT, word) == "answers what was not asked"
    node.asks()
    assert not any(isinstance(action, Blame) for action in node.hears(ROOT, word))
    assert refused(node.core, ROOT, word) == "answers what was not asked"


def test_a_session_is_answered_once() -> None:
    node = Node().whole()
    base = alike(0)
    assert refused(node.core, ROOT, Attached(node.session, base, base)) == "answers what was not asked"
    assert node.hears(ROOT, Attached(node.session - 1, base, base)) == [], "it asked again meanwhile"


@pytest.mark.parametrize(
    ("base", "known", "rule"),
    [
        (clocks(w1=0), NO_CLOCKS, "base of other workers"),
        (NO_CLOCKS, NO_CLOCKS, "base of other workers"),
        (clocks(w0=0), clocks(w1=0), "base of other workers"),
        (clocks(w0=1000), clocks(w0=0), "too far ahead"),
        (clocks(w0=-1), clocks(w0=0), "a clock that cannot be"),
        (clocks(w0=0), clocks(w0=-1), "a clock that cannot be"),
    ],
)
def test_a_base_is_of_those_who_were_asked_for_and_near_the_root(
    base: Clocks, known: Clocks, rule: str
) -> None:
    assert refused(Node().core, ROOT, Attached(1, base, known)) == rule


def test_a_base_is_not_behind_what_the_root_is_known_to_have() -> None:
    node = Node().whole().asks()
    for child in (1, 2):
        node.hears(NodeId(child + 1), push(worker=child))
    node.hears(ROOT, Merged(alike(1)))
    node.does(Connected(ROOT))
    assert node.asked is not None
    assert node.asked.floor == alike(1)
    said = Attached(node.asked.session, alike(0), NO_CLOCKS)
    assert refused(node.core, ROOT, said) == "base behind the root"


def test_a_floor_that_the_root_does_not_reach_is_asked_for_once_and_blamed_on_nobody() -> None:
    """Whoever forges a floor has it asked for above, and is answered as anybody is."""
    node = Node().answered()
    node.does(Connected(CHILD))
    node.hears(CHILD, Attach(1, (WORKERS[1],), clocks(w1=1000)))
    asked = node.asked
    assert asked is not None
    assert asked.floor == clocks(w0=0, w1=1000)
    base = Clocks.alike(asked.workers)
    said = node.hears(ROOT, Attached(asked.session, base, base))
    assert node.asked is None
    assert Tell(CHILD, Attached(1, clocks(w1=0), clocks(w1=0))) in said


def test_a_child_that_knows_more_of_the_root_comes_while_the_parent_is_asked_and_it_is_asked_again() -> None:
    node = Node().whole()
    node.hears(CHILD, Detach(1))
    node.does(Connected(ROOT))
    first = node.asked
    assert first is not None
    node.hears(CHILD, Attach(2, (WORKERS[1],), clocks(w1=2)))
    base = Clocks.alike(first.workers)
    node.hears(ROOT, Attached(first.session, base, base))
    assert node.asked is not None
    assert node.asked.floor.get(WORKERS[1]) == 2
