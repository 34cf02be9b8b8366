"""Beyond MINA, section V: a slice of ``inaproto reproduce mina --figure ours``."""

from __future__ import annotations

import pytest

from inaproto_hil.evaluation.mina import ours
from inaproto_hil.evaluation.mina.published import published
from inaproto_hil.evaluation.mina.runs import ClusterFound, OwnRun, Run, perform


def found(run: OwnRun) -> ClusterFound:
    _, outcome = perform(run)
    assert isinstance(outcome, ClusterFound)
    return outcome


@pytest.mark.parametrize("trace", [1, 2])
def test_with_downtime_ours_score_more_than_the_extended_revision_without(trace: int) -> None:
    theirs = published("ref13_later_algorithm_link_quota")["traces"][trace - 1]
    assert theirs["trace"] == trace
    score = found(OwnRun(trace)).score
    assert score is not None
    assert score > theirs["mina"]["JCTScore"]
    assert score > theirs["smart_placement_exclusive_first_tree_greedy"]["JCTScore"]
    assert score > theirs["first_placement_exclusive_first_tree_greedy"]["JCTScore"]


def test_every_score_has_its_seconds_its_exclusive_baseline_and_ten_streams_at_least() -> None:
    outcomes = {run: _made(run) for run in ours.runs(1)}
    rows = list(ours.rows(outcomes, 1))
    scores = [row for row in rows if row.beside is not None]
    assert scores
    for row in scores:
        assert row.beside is not None
        assert row.beside.saved_s is not None
        assert row.beside.exclusive_score == 0.5
        assert "published" in row.what or (row.runs >= 10 and row.half_width is not None)
    saved = [row for row in rows if "seconds that the mean job saves" in row.what]
    assert len(saved) == 12
    assert all(row.half_width is not None for row in saved)
    leads = [row for row in rows if "least lead" in row.what]
    assert [row.ours for row in leads] == [0.25] * 12
    assert all(row.is_inside for row in leads)


def _made(run: Run) -> ClusterFound:
    assert isinstance(run, OwnRun)
    score = 0.5 if run.trees == "exclusive" else 0.75
    return ClusterFound(score, score, 0.1, 0.01, 0.001, 10.0, 5.0, 15.0, 4000, 1000, 0.0, 300.0, 9)
