"""MLNet section 4, its figures: what the text says, and the command that computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto_hil.evaluation import MLNET_FIGURES, reproduce
from inaproto_hil.evaluation.flows.trees import Scheme
from inaproto_hil.evaluation.mlnet.figures import FIGURES, Figure
from inaproto_hil.evaluation.mlnet.paper import PAPER
from inaproto_hil.evaluation.mlnet.rows import RATIOS, crossing_row
from inaproto_hil.evaluation.mlnet.runs import (
    Found,
    PhaseFound,
    PhaseRun,
    Run,
    TogetherFound,
    TogetherRun,
    perform,
)
from inaproto_hil.evaluation.report import render, write_report
from inaproto_hil.evaluation.rows import drawn_row
from tests.paper.test_mina_5_figures import Page

SEEDS = 2


def figure(key: str) -> Figure:
    return next(one for one in FIGURES if one.key == key)


def made(run: Run, *, rack: float = 5.0) -> Found:
    """Phases of 800/P for all but RACK."""
    if isinstance(run, TogetherRun):
        late = 0.5 if run.is_prioritised else 1.0
        ends = tuple(late * (10.0 + model) for model in range(20))
        return TogetherFound(ends, ends)
    time = rack if run.scheme is Scheme.RACK else 800 / run.servers
    return PhaseFound(time, time, time, 100 * time, (0.0, time), 7, 0.25, 2, 7)


def test_all_that_the_text_says_is_a_row() -> None:
    assert [one.key for one in FIGURES] == list(MLNET_FIGURES)
    said = {(one.name, one.servers, one.oversubscription): one.paper for one in RATIOS}
    assert said == {
        ("BINARY", 50, 1.0): 0.22,
        ("RACK", 50, 1.0): 0.42,
        ("RACK", 50, 4.0): 0.27,
        ("BINARY", 50, 4.0): 0.34,
        ("RACK", 400, 4.0): 0.29,
        ("BINARY", 400, 4.0): 0.60,
    }


def test_each_run_is_needed_once() -> None:
    runs = PAPER.needed(FIGURES, 3)
    assert len(set(runs)) == len(runs)


def test_what_is_outside_is_named_and_all_is_drawn(tmp_path: Path) -> None:
    figures = [figure(key) for key in ("1a", "1b", "3")]
    report = PAPER.document(figures, {run: made(run) for run in PAPER.needed(figures, SEEDS)}, SEEDS)
    named = {(row["figure"], row["what"]) for row in report["outside"]}
    assert ("1a", "BINARY over BASELINE, P = 50") in named
    assert ("1a", "RACK over BASELINE, P = 50") not in named
    assert ("3", "priority alone, median, %, compute 2") in named
    assert ("3", "priority alone, median, %, compute 8") not in named, "it is there to compare"
    assert not [row for row in report["outside"] if "phase, V/B" in row["what"]]
    page = Page(render(PAPER, report))
    assert page.tags.count("svg") == 3
    assert "report only" in page.words
    assert "script" not in page.tags
    assert write_report(PAPER, tmp_path, report) == tmp_path / "report.html"
    drawn = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert drawn == ["figure-1a.svg", "figure-1b.svg", "figure-3.svg"]


def test_every_row_that_nothing_is_asked_of_says_why_where_the_paper_has_a_value() -> None:
    figures = [one for one in FIGURES if one.key != "2"]
    report = PAPER.document(figures, {run: made(run) for run in PAPER.needed(figures, SEEDS)}, SEEDS)
    for one in report["figures"]:
        for row in one["rows"]:
            is_asked = row["verdict"] != "report only"
            assert is_asked == (row["inside"] is not None)
            assert is_asked or row["paper"] is None or row["why"]


def late(*, trees: float, both: float, differ: float) -> dict[str, Any]:
    """The document's figure 3, where models end so much sooner than the baseline's; every other draw, by
    ``differ`` more or less."""
    runs = PAPER.needed([figure("3")], SEEDS)
    shares = {(Scheme.BINARY, False): trees, (Scheme.BINARY, True): both}
    outcomes: dict[Run, Found] = {}
    for run in runs:
        assert isinstance(run, TogetherRun)
        share = shares.get((run.scheme, run.is_prioritised))
        share = 1.0 if share is None else share + differ * (-1) ** run.seed
        ends = tuple(share * (10.0 + model) for model in range(20))
        outcomes[run] = TogetherFound(ends, ends)
    return PAPER.document([figure("3")], outcomes, SEEDS)


def test_the_last_models_do_not_reproduce_where_draws_leave_it_open_and_trees_alone_do_no_better() -> None:
    what = "both, 95th percentile, %, compute 2"
    report = late(trees=0.6, both=0.6, differ=0.1)
    (row,) = report["not_reproduced"]
    assert (row["figure"], row["what"], row["paper"], row["ours"]) == ("3", what, -54.0, pytest.approx(-40.0))
    assert "are -50.0 to -30.0, 4 of 8 inside" in row["why"]
    assert "which come to -40.0 with them" in row["why"]
    assert what not in {one["what"] for one in report["outside"]}
    (shown,) = [one for one in report["figures"][0]["rows"] if one["what"] == what]
    assert (shown["inside"], shown["verdict"], shown["bounds"]) == (False, "does not reproduce", [-64, -44])
    assert "Outside, with a known reason:" in Page(render(PAPER, report)).words


@pytest.mark.parametrize(("trees", "both", "differ"), [(0.6, 0.6, 0.01), (0.5, 0.6, 0.06), (0.7, 0.6, 0.06)])
def test_it_is_outside_where_that_is_not_the_reason(trees: float, both: float, differ: float) -> None:
    report = late(trees=trees, both=both, differ=differ)
    assert not report["not_reproduced"]
    assert "both, 95th percentile, %, compute 2" in {one["what"] for one in report["outside"]}


@pytest.mark.parametrize(("differ", "is_open"), [(4.0, True), (0.01, False)])
def test_a_ratio_that_draws_leave_open_says_so(differ: float, is_open: bool) -> None:
    """BINARY's phase is 8 V/B of 18, more or less: about 0.49 for 0.34."""
    outcomes: dict[Run, Found] = {}
    for run in PAPER.needed([figure("1b")], SEEDS):
        assert isinstance(run, PhaseRun)
        is_tree = run.scheme is Scheme.BINARY_SHARED
        time = 8.0 + differ * (-1) ** run.seed if is_tree else 18.0
        outcomes[run] = PhaseFound(time, time, time, time, (0.0, time), 7, 0.25, 2, 7)
    report = PAPER.document([figure("1b")], outcomes, SEEDS)
    what = "BINARY over BASELINE, P = 50"
    assert (what in {one["what"] for one in report["not_reproduced"]}) == is_open
    assert (what in {one["what"] for one in report["outside"]}) != is_open


def test_a_model_that_ends_before_its_flows_can_have_been_carried_is_found() -> None:
    runs = PAPER.needed([figure("3")], SEEDS)
    outcomes: dict[Run, Found] = {run: made(run) for run in runs}
    assert PAPER.document([figure("3")], outcomes, SEEDS)["figures"][0]["rows"][-1]["verdict"] == "exact"
    found = outcomes[runs[0]]
    assert isinstance(found, TogetherFound)
    outcomes[runs[0]] = found._replace(makespans=(0.0, *found.makespans[1:]))
    assert PAPER.document([figure("3")], outcomes, SEEDS)["figures"][0]["rows"][-1]["verdict"] == "outside"


def test_no_model_of_a_run_ends_before_its_flows_can_have_been_carried() -> None:
    for is_prioritised in (False, True):
        found = perform(TogetherRun(2.0, Scheme.BASELINE, is_prioritised, 1))[1]
        assert isinstance(found, TogetherFound)
        assert all(
            one >= floor - 1e-9 for one, floor in zip(sorted(found.makespans), found.floors, strict=True)
        )


def test_the_crossing_lies_where_the_phase_is_as_long_as_the_baseline_s() -> None:
    points = (100, 200, 300)
    runs: list[Run] = [PhaseRun(Scheme.RACK, one, 1.0, 0) for one in points]
    outcomes = {run: made(run, rack=3.0) for run in runs}
    row = crossing_row(outcomes, Scheme.RACK, points, 1)
    assert row.ours == pytest.approx(200 + 100 * 1 / (1 + 1 / 3))
    beyond = crossing_row({run: made(run, rack=0.1) for run in runs}, Scheme.RACK, points, 1)
    assert (beyond.ours, "beyond" in beyond.what) == (300.0, True)


def test_a_mean_is_held_against_the_paper_s_value() -> None:
    inside = drawn_row("x", [1.0, 3.0], 2.5, (0.5, 0.0))
    assert (inside.ours, inside.least, inside.most, inside.is_inside) == (2.0, 1.0, 3.0, True)
    assert drawn_row("x", [1.0, 3.0], 2.6, (0.5, 0.0)).is_inside is False


def test_runs_are_the_same_each_time_and_schemes_meet_the_same_hosts() -> None:
    run = TogetherRun(2.0, Scheme.BASELINE, True, 3)
    assert perform(run) == perform(run)
    one = perform(PhaseRun(Scheme.BASELINE, 50, 4.0, 0))[1]
    assert isinstance(one, PhaseFound)
    assert one.time == pytest.approx(one.fullest, rel=1e-9)
    assert one.total == pytest.approx(4686, abs=10)
    again = perform(PhaseRun(Scheme.BASELINE, 50, 4.0, 0))[1]
    assert isinstance(again, PhaseFound)
    assert again._replace(seconds=0.0) == one._replace(seconds=0.0)


def test_the_command_says_what_is_inside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["mlnet", "--figure", "2", "--seeds", "1", "--jobs", "1", "--out", str(out), "--json", "-"]
    done = CliRunner().invoke(reproduce, words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    assert [row["verdict"] for row in report["figures"][0]["rows"][-3:]] == ["exact"] * 3
    assert "3 of 3 values are inside their tolerances" in done.stderr
    assert "slowest phase of 1,024 servers" in done.stderr


@pytest.mark.parametrize("words", [["--figure", "4"], ["--seeds", "0"]])
def test_wrong_options_are_refused(words: list[str]) -> None:
    assert CliRunner().invoke(reproduce, ["mlnet", *words]).exit_code == 2
