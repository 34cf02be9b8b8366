"""Parts of a node of push and pull, each by itself: clocks to ask for, absence, sums to send (MLNet 3.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inaproto.core.models.absence import Absence
from inaproto.core.models.asking import Asking
from inaproto.core.models.children import Bond, Child, Children
from inaproto.core.models.events import Done, NodeConfig, Patience, Pulled, Refuse, RootConfig, ShardSpec
from inaproto.core.models.failures import Failures
from inaproto.core.models.ledger import Ledger
from inaproto.core.models.local_worker import GONE, LocalWorker
from inaproto.core.models.requests import next_requests
from inaproto.core.models.rules import Above, Below, fault_from_above, fault_from_below
from inaproto.core.models.subtree import Subtree
from inaproto.core.models.tree.epochs import Orders
from inaproto.core.models.updates import Update
from inaproto.errors import LocalMisuse
from inaproto.units import Instant
from inaproto.wire.messages.clocks import FOREVER, REMOVED, Clocks, WorkerId
from inaproto.wire.messages.models import Attach, Attached, Epoch, Heartbeat, NodeId, PullRequest, Reshaped

ME, CHILD, OTHER, ROOT = NodeId(0), NodeId(1), NodeId(2), NodeId(9)
A, B, C = WorkerId(0), WorkerId(1), WorkerId(2)
SHARD = ShardSpec(1, "int64", ahead_max=4)
PATIENCE = Patience(heartbeat_ns=None, dead_ns=10, return_ns=10, start_ns=100)
CONFIG = NodeConfig(SHARD, ME, (ROOT,), (CHILD, OTHER), A, PATIENCE)
NOW = Instant(0)


@pytest.mark.parametrize(("beat", "slept", "away"), [(10, 15, 0), (10, 16, 6), (11, 16, 0), (None, 99, 0)])
def test_all_but_one_of_the_heartbeats_that_were_missed_is_absence(
    beat: int | None, slept: int, away: int
) -> None:
    absence = Absence(replace(PATIENCE, heartbeat_ns=beat), Instant(5))
    assert absence.deadline == (None if beat is None else 5 + beat)
    assert absence.until(Instant(5 + slept)) == away
    assert absence.until(Instant(5 + slept)) == 0


# --- what the parent is asked


def subtree(merged: Clocks, root: Clocks) -> Subtree:
    sub = Subtree(CONFIG, Orders(CONFIG), NOW)
    sub.ledger.reset(merged)
    sub.heard_of_root(root)
    return sub


@pytest.mark.parametrize(
    ("said", "is_due"),
    [
        (Attach(1, (B,)), False),
        (Attach(1, (C,)), True),
        (Attach(1, (B,), Clocks({B: 3})), False),
        (Attach(1, (B,), Clocks({B: 4})), True),
        (Attach(1, (B,), epoch=2), False),
        (Attach(1, (B,), epoch=3), True),
    ],
    ids=["known", "new", "no further", "further", "same epoch", "later epoch"],
)
def test_the_parent_is_asked_only_for_what_a_child_knows_and_this_node_does_not(
    said: Attach, is_due: bool
) -> None:
    """docs/protocol.md 18.5: what the root has cannot be sent again, so a child is answered with it."""
    sub, asking = subtree(Clocks({B: 4}), Clocks({B: 3})), Asking()
    sub.children.attach(CHILD, said, NOW)
    asking.child_came(said, {B}, sub, 2)
    assert asking.is_due(sub) is is_due
    if is_due:
        asked = asking.asks(5, sub, 2)
        assert set(said.workers) <= set(asked.workers)
        asking.is_answered(sub, 2)
        assert not asking.is_due(sub), "whatever came of it the child is answered"


def test_a_worker_below_whom_nothing_is_merged_of_is_asked_for() -> None:
    sub, asking = subtree(Clocks(), Clocks()), Asking()
    said = Attach(1, (B,))
    sub.children.attach(CHILD, said, NOW)
    asking.child_came(said, {B}, sub, 0)
    assert asking.is_due(sub)


def test_a_child_that_came_after_the_question_is_asked_for_in_the_next() -> None:
    sub, asking = subtree(Clocks({B: 0, C: 0}), Clocks({B: 0, C: 0})), Asking()
    first = Attach(1, (B,), Clocks({B: 2}))
    sub.children.attach(CHILD, first, NOW)
    asking.child_came(first, {B}, sub, 0)
    asking.asks(1, sub, 0)
    sub.children.attach(OTHER, Attach(1, (C,), Clocks({C: 1})), NOW)
    asking.is_answered(sub, 0)
    assert asking.is_due(sub)
    assert asking.asks(2, sub, 0).floor == Clocks({B: 2, C: 1})
    assert asking.lost({A, B}) == (C,)


@pytest.mark.parametrize(
    ("needs", "asked", "expected"),
    [
        ([3, 5, 8], [], [3, 5, 8]),
        ([3, 5, 8], [5], [3, 8]),
        ([3, 5, 7, 8], [], [3, 5, 7]),
        ([3, 4, 8], [4, 8], [3]),
        ([3, 4, 8], [5, 6, 8], None),
        ([6, 7, 8], [2, 6, 7], []),
        ([5, 7], [2, 3, 5], []),
        ([4, 6, 7], [2, 3, 5], None),
    ],
)
def test_the_least_clocks_are_asked_for_and_none_waits_behind_later_ones(
    needs: list[int], asked: list[int], expected: list[int] | None
) -> None:
    """docs/protocol.md 18.5: three may be open; None: they are all made anew, in another session."""
    assert next_requests(needs, asked, 3) == expected


# --- sums


def update(worker: WorkerId, clock: int, after: int | None = None) -> Update:
    before, last = Clocks({worker: clock - 1}), Clocks({worker: clock if after is None else after})
    return Update(clock, before, last, np.ones(1, np.int64))


def test_all_windows_that_are_whole_go_up_at_once_and_in_order() -> None:
    ledger = Ledger(0, Orders(CONFIG))
    ledger.reset(Clocks({A: 0, B: 0}))
    for one in (update(A, 1), update(A, 2), update(B, 1), update(B, 2), update(A, 3)):
        assert ledger.take(0, one)
    assert ledger.forward([A, B], is_flush=False, is_held=True, is_gone=lambda _: False) == []
    sent = ledger.forward([A, B], is_flush=False, is_held=False, is_gone=lambda _: False)
    assert sorted({one.clock for one in sent}) == [1, 2]
    assert ledger.forwarded == Clocks({A: 2, B: 2})
    assert len(ledger.unmerged) == len(sent) + 1


def test_a_sum_is_of_the_clock_of_those_that_are_awaited() -> None:
    """c_sub, at s > 0: who has gone another way does not hold it back."""
    ledger = Ledger(2, Orders(CONFIG))
    ledger.reset(Clocks({A: 6, B: 0}))
    ledger.take(0, update(A, 7))
    [sent] = ledger.forward([A], is_flush=True, is_held=False, is_gone=lambda _: False)
    assert sent.clock == 7


@pytest.mark.parametrize(("at_root", "expected"), [(REMOVED, REMOVED), (5, FOREVER), (None, FOREVER)])
def test_an_end_is_as_the_root_has_it(at_root: int | None, expected: int) -> None:
    """A worker that left here may have been removed there before its last words came."""
    ledger = Ledger(0, Orders(CONFIG))
    ledger.reset(Clocks({A: FOREVER, B: 3}))
    ledger.prune(Clocks({B: 3} if at_root is None else {A: at_root, B: 3}), [])
    assert ledger.merged == ledger.forwarded == Clocks({A: expected, B: 3})


def test_an_end_that_is_under_way_is_kept_until_the_root_has_it() -> None:
    ledger = Ledger(0, Orders(CONFIG))
    ledger.reset(Clocks({A: 3}))
    ledger.take(0, update(A, 4, FOREVER))
    ledger.prune(Clocks({A: REMOVED}), [A])
    assert ledger.merged == Clocks({A: FOREVER})


# --- the own worker


def worker(clock: int = 3) -> LocalWorker:
    own = LocalWorker(A, SHARD)
    own.resume(clock)
    return own


def test_who_leaves_is_done_when_the_root_has_it_and_its_pulls_are_refused() -> None:
    own = worker()
    own.pulls_for(Pulled(1, 0))
    last, refused = own.leaves(7)
    assert refused == [Refuse(1, "the worker leaves")]
    assert last is not None
    assert own.prune(Clocks({A: 3})) == own.prune(Clocks()) == []
    with pytest.raises(LocalMisuse, match="worker 0 cannot leave: it has left"):
        own.leaves(8)
    assert own.prune(Clocks({A: FOREVER})) == [Done(7, FOREVER)]
    assert own.kept == []


def test_who_was_removed_is_told_whatever_it_asks() -> None:
    own = worker()
    own.leaves(7)
    assert own.prune(Clocks({A: REMOVED})) == [Refuse(7, GONE)]
    removed = worker(REMOVED)
    assert removed.leaves(8) == (None, [Refuse(8, GONE)])
    assert not removed.is_to_be_flushed


def test_what_a_process_that_is_there_has_finished_is_withheld() -> None:
    own = worker()
    own.clocks(1)
    assert own.finish(0) is not None
    assert not own.is_to_be_flushed
    own.abandons()
    assert own.is_to_be_flushed


# --- what the root concludes


def failures(**change: object) -> tuple[Failures, Children]:
    nodes = (ME, CHILD, OTHER)
    config = RootConfig(SHARD, ROOT, (A, B, C), nodes, nodes, PATIENCE, **change)  # type: ignore[arg-type]
    return Failures(config, NOW), Children(config, nodes, NOW)


def test_a_worker_that_was_here_is_gone_after_twice_its_patience_and_one_that_never_was_is_not() -> None:
    """MLNet 3.2: nobody tells of a node that dies together with its parent."""
    judge, children = failures(teardown_failures=1)
    judge.met([A])
    assert judge.absent == (B, C)
    judge.removed(children, Clocks({A: 0, B: 0, C: 0}), Instant(5))
    assert judge.absent_since(A) == 5
    assert judge.deadline == 5 + 2 * PATIENCE.dead_ns + 1
    assert judge.new_mode(children, Instant(25)) is None
    assert judge.new_mode(children, Instant(26)) is True


def test_who_was_away_itself_counts_nobodys_absence_meanwhile() -> None:
    judge, children = failures(teardown_failures=4, removal_ns=50)
    judge.met([A])
    judge.removed(children, Clocks({A: 0, B: FOREVER}), Instant(5))
    assert judge.absent == (A, C), "who has left is not missed"
    judge.was_away(7)
    assert (judge.absent_since(A), judge.absent_since(C)) == (12, 7)
    judge.is_direct = True
    assert judge.new_mode(children, Instant(20)) is None
    judge.was_away(3)
    assert judge.new_mode(children, Instant(32)) is None
    assert judge.new_mode(children, Instant(33)) is False, "fewer are missing for return_ns"
    assert judge.why == "0, 1, 2"


# --- what a word may say at most


def above(**change: object) -> Above:
    known = Above(
        shard=SHARD, session=1, is_attached=False, is_asking=True, asking=(B,), floor=Clocks(),
        workers=frozenset((B,)), are_all=False, requests=0, own=None, own_clock=None, trees=2,
    )  # fmt: skip
    return replace(known, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epoch", "rule"),
    [
        (Epoch(1, 0, 1, 0), None),
        (Epoch(1, 1, 0, FOREVER - 1), None),
        (Epoch(0, 0, 1, 0), "tree that is none to choose from"),
        (Epoch(1, 2, 1, 0), "tree that is none to choose from"),
        (Epoch(1, 0, 2, 0), "tree that is none to choose from"),
        (Epoch(1, 0, 1, -1), "a clock that cannot be"),
        (Epoch(1, 0, 1, FOREVER), "a clock that cannot be"),
    ],
)
def test_an_epoch_is_of_two_of_the_trees_and_begins_at_a_clock(epoch: Epoch, rule: str | None) -> None:
    fault = fault_from_above(Reshaped(epoch), above())
    assert (fault and fault.rule) == rule


@pytest.mark.parametrize(("base", "is_fault"), [(4, False), (5, True), (FOREVER, False)])
def test_a_base_is_no_further_than_a_worker_may_be_unless_it_has_left(base: int, is_fault: bool) -> None:
    said = Attached(1, Clocks({B: base}), Clocks({B: 0}))
    fault = fault_from_above(said, above())
    assert (fault and fault.rule) == ("too far ahead" if is_fault else None)


@pytest.mark.parametrize(
    ("workers", "said", "rule"),
    [
        ((B,), PullRequest(7), None),
        ((B,), PullRequest(8), "needs what nobody has made"),
        ((), PullRequest(4), None),
        ((), PullRequest(5), "needs what nobody has made"),
        ((C,), PullRequest(FOREVER), None),
        ((), Heartbeat(load=1000), None),
        ((), Heartbeat(load=1001), "a load that cannot be"),
    ],
)
def test_what_an_attached_child_may_need_and_say_of_its_load(
    workers: tuple[WorkerId, ...], said: PullRequest | Heartbeat, rule: str | None
) -> None:
    child = Child(CHILD, 0, is_of_tree=True, bond=Bond.ATTACHED, session=1, workers=workers)
    known = Below(SHARD, Clocks({B: 3, C: FOREVER}), None, None, None)
    fault = fault_from_below(said, child, known)
    assert (fault and fault.rule) == rule
