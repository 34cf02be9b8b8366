"""For how long a tree that the fabric has refused to a job is left alone."""

from __future__ import annotations

from typing import Final

from inaproto.core.migration.bars import REMEMBERED, Bars
from inaproto.units import Instant, S
from inaproto.wire.messages.trees import FabricTree, TreePhase, TreeState, TreeWished

SPINE: Final = FabricTree("spine")
BARRED: Final = {"a": frozenset({SPINE})}


class Told:
    """A job that is wished to be at the spine, and what is reported of it."""

    def __init__(self) -> None:
        self.bars = Bars(1 * S, 4 * S)

    def look(self, phase: TreePhase, epoch: int, at: float, *, wish: int = 3, jobs: str = "a") -> object:
        states = {job: TreeState(job, ("h0", "h1"), epoch, phase) for job in jobs}
        wishes = {"a": TreeWished("a", wish, SPINE)}
        return self.bars.look(states, wishes, Instant(int(at * S)))


def test_a_tree_that_is_refused_is_barred_as_long_as_it_is_and_for_a_while() -> None:
    told = Told()
    assert told.look("refused", 3, 0) == BARRED
    assert told.look("refused", 3, 50) == BARRED
    assert told.look("parked", 4, 0.9, wish=4) == BARRED
    assert told.look("parked", 4, 1.1, wish=4) == {}


def test_a_refusal_of_an_older_wish_bars_nothing() -> None:
    """The root may report it after the wish has become another one."""
    assert Told().look("refused", 3, 0, wish=4) == {}


def test_it_is_barred_longer_each_time_up_to_a_bound_and_begins_anew_after_a_good_while() -> None:
    told = Told()
    at = 0.0
    for epoch, length in ((1, 1), (2, 2), (3, 4), (4, 4)):
        assert told.look("refused", epoch, at, wish=epoch) == BARRED
        assert told.look("parked", epoch, at + length - 0.1, wish=epoch) == BARRED
        at += length + 0.1
        assert told.look("parked", epoch, at, wish=epoch) == {}
    at += 4 * REMEMBERED + 1
    assert told.look("parked", 4, at, wish=4) == {}
    assert told.look("refused", 5, at, wish=5) == BARRED
    assert told.look("parked", 5, at + 1.1, wish=5) == {}


def test_bars_go_with_their_job() -> None:
    told = Told()
    assert told.look("refused", 3, 0) == BARRED
    assert told.look("refused", 3, 0, jobs="") == {}
    assert told.look("parked", 3, 0.1) == {}


def test_a_job_is_barred_whatever_others_are_reported_before_it() -> None:
    """Jobs that have no wish, or were not refused, say nothing of those behind them."""
    bars = Bars(1 * S, 4 * S)
    reported: tuple[tuple[str, TreePhase], ...] = (("0", "refused"), ("1", "parked"), ("a", "refused"))
    states = {job: TreeState(job, ("h0", "h1"), 3, phase) for job, phase in reported}
    wishes = {job: TreeWished(job, 3, SPINE) for job in ("1", "a")}
    assert bars.look(states, wishes, Instant(0)) == BARRED
