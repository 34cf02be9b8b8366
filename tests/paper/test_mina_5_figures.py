"""MINA, section V: a slice of the figures of ``inaproto reproduce mina``; tests/figures has all of them."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from inaproto_controller.cluster.model import EVALUATED
from inaproto_controller.planning.turns.policy import Policy
from inaproto_hil.evaluation import reproduce
from inaproto_hil.evaluation.command import show_figure
from inaproto_hil.evaluation.mina.figures import FIGURES, Figure
from inaproto_hil.evaluation.mina.paper import PAPER
from inaproto_hil.evaluation.mina.runs import (
    ClusterFound,
    ClusterRun,
    ConflictFound,
    ConflictRun,
    PairRun,
    Run,
    perform,
)
from inaproto_hil.evaluation.rows import Row
from inaproto_hil.evaluation.spread import spread
from tests.data.mina.reference import reference


def figure(key: str) -> Figure:
    return next(one for one in FIGURES if one.key == key)


def rows_of(key: str, seeds: int = 1) -> dict[str, Row]:
    outcomes = dict(map(perform, PAPER.needed([figure(key)], seeds)))
    return {row.what: row for row in figure(key).rows(outcomes, seeds)}


def test_pairs_on_the_compiled_loop_are_those_of_figure_12() -> None:
    rows = rows_of("12")
    pairs = [row for what, row in rows.items() if " with " in what]
    assert len(pairs) == len(EVALUATED) ** 2
    assert all(row.ours == pytest.approx(row.paper, abs=1e-9) for row in pairs)
    assert all(row.is_inside for row in rows.values())


def test_the_first_1000_requests_conflict_as_in_figure_2() -> None:
    expected = reference("ref11_tree_conflicts")
    _, found = perform(ConflictRun(1000))
    assert isinstance(found, ConflictFound)
    assert list(map(int, found.without_tree)) == expected["conflict"][:1000]
    # What the last of them sees, when nobody waits behind, is not what it sees among 5000.
    as_long = [list(row) for row in found.fragments if row[0] < 1000]
    assert as_long == expected["fragments"][: len(as_long)]
    assert len(as_long) > 500


def test_a_step_over_the_bandwidth_is_figure_5() -> None:
    rows = rows_of("5")
    assert len(rows) == 13
    assert all(row.is_inside for row in rows.values())


def test_mina_saves_what_it_saves_in_the_paper() -> None:
    """Trees built anew at each placement, one draw of candidates: the mean of many is in tests/figures."""
    _, found = perform(ClusterRun(1, "least-fragments", "rebuild-all", Policy.SCORE))
    assert isinstance(found, ClusterFound)
    assert found.score == pytest.approx(0.982, abs=0.03)
    assert found.utilisation == pytest.approx(0.2242, abs=0.005)
    assert found.swaps_counted == pytest.approx(11_079, rel=0.1)
    assert found.swaps == pytest.approx(45_493, rel=0.1)
    assert found.saved_share is not None
    assert 0 < found.saved_share < 0.0023
    assert found.queued_mean is not None
    assert found.queued_mean > 0


def test_each_run_is_needed_once_and_every_score_has_its_fair_baseline() -> None:
    runs = PAPER.needed(FIGURES, 5)
    assert len(set(runs)) == len(runs)
    for run in runs:
        if isinstance(run, ClusterRun) and run.trees != "exclusive" and run.order.value == "hash":
            fair = [one for one in runs if isinstance(one, ClusterRun) and one.trees == "exclusive"]
            assert any((one.trace, one.uplinks) == (run.trace, run.uplinks) for one in fair)
    drawn = {run.seed for run in runs if isinstance(run, ClusterRun) and run.trees == "rebuild-all"}
    assert drawn == set(range(5))


def test_a_value_on_its_bound_is_inside_and_one_beyond_is_not() -> None:
    def inside(ours: float) -> bool | None:
        return Row("score", ours, 0.5, 0.25, 0.125).is_inside

    assert [inside(ours) for ours in (0.2, 0.25, 0.5, 0.625, 0.63)] == [False, True, True, True, False]
    assert Row("score", 0.5, 0.5).is_inside is None


def test_confidence_intervals_are_student_s() -> None:
    assert spread([4.0]) == (4.0, None, 1)
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.7764451 * math.sqrt(2.5 / 5))


# -- the command


class Page(HTMLParser):
    """Titles and cells, and that nothing is fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        fetched = [value or "" for name, value in attrs if name in ("src", "href")]
        assert not [value for value in fetched if not value.startswith("#")]

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_the_command_says_what_is_inside_and_writes_a_page(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["mina", "--figure", "12", "--figure", "5", "--jobs", "1", "--report", str(out)]
    done = CliRunner().invoke(reproduce, [*words, "--json", "-"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    assert report["outside"] == []
    assert [one["key"] for one in report["figures"]] == ["5", "12"]
    assert "65 of 65 values are inside their tolerances" in done.stderr
    page = Page((out / "report.html").read_text())
    assert "Figure 12: pairs that share a switch" in page.words
    assert "mean score of 49 pairs" in page.words
    assert "11.387 %" in page.words
    assert page.tags.count("svg") == 1
    assert "script" not in page.tags


def test_pages_and_status_are_there_though_nobody_reads_the_tables(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    words = ["reproduce", "mina", "--figure", "5", "--jobs", "1", "--report", str(tmp_path / "out")]
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "inaproto.cli", *words, "--json", str(tmp_path / "mina.json")],
            stdout=writes,
            stderr=subprocess.PIPE,
            timeout=600,
            check=False,
        )
    finally:
        os.close(writes)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "mina.json").exists()


@pytest.mark.parametrize("option", ["--json", "--report"])
def test_tables_are_there_though_the_disk_is_full(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the evaluation takes half an hour of CPU."""

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", refuse)
    at = str(tmp_path / "found")
    done = CliRunner().invoke(reproduce, ["mina", "--figure", "5", "--jobs", "1", option, at])
    assert done.exit_code == 2
    assert "values are inside their tolerances" in done.stdout
    assert done.stderr.splitlines()[-1] == f"inaproto: {option} {at}: No space left on device"


def test_what_is_outside_is_named_and_drawn() -> None:
    from inaproto_hil.evaluation.report import render

    def made(run: Run) -> ClusterFound:
        score = 0.5 if isinstance(run, ClusterRun) and run.seed else 0.625
        return ClusterFound(score, score, 0.1, 0.01, 0.001, 10.0, 5.0, 15.0, 4000, 1000, 0.0, 300.0, 9)

    outcomes = {run: made(run) for run in PAPER.needed([figure("14"), figure("13"), figure("table-1")], 2)}
    report = PAPER.document([figure("14"), figure("13"), figure("table-1")], outcomes, 2)
    named = [row["what"] for row in report["outside"] if row["figure"] == "14"]
    assert named == [f"k = {count}" for count in (1, 2, 3, 4, 5, 6, 8)]
    first = report["figures"][0]["rows"][0]
    assert first["ours"] == 0.5625
    assert first["confidence_95"] == pytest.approx(12.7062047 * math.sqrt(2 * 0.0625**2 / 2))
    assert first["beside"] == {
        "saved_s": 0.01,
        "saved_share": 0.001,
        "jct_s": 10.0,
        "queued_s": 5.0,
        "jct_with_queue_s": 15.0,
        "swaps_per_job": 2.0,
        "exclusive_score": 0.625,
    }
    page = Page(render(PAPER, report))
    assert page.tags.count("svg") == 3
    assert "k = 1" in page.words


@pytest.mark.parametrize("words", [["--figure", "3"], ["--table", "2"], ["--seeds", "0"]])
def test_what_there_is_not_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(reproduce, ["mina", *words])
    assert done.exit_code == 2
    assert words[1] in done.output


def test_a_pair_without_time_has_no_score() -> None:
    _, found = perform(PairRun("opt-125m-4", "opt-125m-4", 0.0))
    assert isinstance(found, ClusterFound)
    assert found.score is None


def test_figures_of_rows_with_long_names_are_whole() -> None:
    beside = {
        "saved_s": 1.2345,
        "saved_share": 0.12345,
        "jct_s": 8.0,
        "queued_s": 123.4,
        "swaps_per_job": 0.1,
        "exclusive_score": 0.5432,
    }
    row = {
        "what": "a row whose name is long, " * 6,
        "paper": 0.9876,
        "ours": 0.8765,
        "confidence_95": 0.0123,
        "inside": False,
        "beside": beside,
    }
    text = io.StringIO()
    shown = {"title": "title", "setting": "setting", "rows": [row]}
    show_figure(Console(file=text, width=100), shown, PAPER)
    for figure in ("0.9876", "0.8765", "0.0123", "NO", "1.2 s", "12.345 %", "123.4 s", "0.1", "0.5432"):
        assert figure in text.getvalue()
    assert "…" not in text.getvalue()
