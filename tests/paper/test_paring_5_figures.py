"""PARING, section V: a slice of what ``inaproto reproduce paring`` computes; tests/figures has all of it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto_controller.planning.paring.fat_tree_names import switches_named
from inaproto_hil.evaluation import PARING_FIGURES, reproduce
from inaproto_hil.evaluation.paring import published
from inaproto_hil.evaluation.paring.figures import FIGURES, Figure
from inaproto_hil.evaluation.paring.paper import PAPER
from inaproto_hil.evaluation.paring.published import EXPERIMENTS, GB_PER_HOP, Experiment
from inaproto_hil.evaluation.paring.rows import (
    ALIKE,
    AS_PRINTED,
    BEYOND,
    UNKNOWN,
    Outcomes,
    Reasons,
    bound_of_rate,
    judged_row,
    rate_rows,
    rises,
    time_rows,
    traffic_rows,
)
from inaproto_hil.evaluation.paring.runs import (
    AS_DRAWN,
    ATP_FIRST,
    FAST,
    PANAMA_TO_SERVER,
    PRINTED_INNER,
    PRINTED_LEAF,
    Found,
    Outcome,
    Planned,
    PlanRun,
    Proved,
    Run,
    perform,
    switches_of,
)
from inaproto_hil.evaluation.paring.settings import grid, setting_at
from inaproto_hil.evaluation.report import render, write_report
from inaproto_hil.evaluation.rows import DIFFERS, NOT_REPRODUCIBLE, DrawnRow, Row
from tests.paper.test_mina_5_figures import Page


def figure(key: str) -> Figure:
    return next(one for one in FIGURES if one.key == key)


def outcomes_at_printed_points(experiment: Experiment) -> Outcomes:
    """Of one draw and the fixed network; exact mode is left to tests/figures."""
    runs = [
        PlanRun(setting_at(experiment, point), experiment.is_coarse, draw)
        for point in experiment.points
        for draw in (0, None)
    ]
    return dict(map(perform, runs))


def asked(rows: list[Row]) -> list[str]:
    outside = [row.what for row in rows if row.is_inside is False]
    assert outside == []
    return [row.what for row in rows if row.is_inside]


# -- what the paper says, and what it cannot mean


def test_figure_1_is_what_the_paper_says() -> None:
    outcomes = dict(map(perform, PAPER.needed([figure("1")], 1)))
    rows = {row.what: row for row in figure("1").rows(outcomes, 1)}
    assert len(asked(list(rows.values()))) == 12
    assert rows[f"{AS_DRAWN}: traffic, GB"].ours == 15
    assert not any(what.startswith("PARING:") for what in rows), "the tree of figure 1(c) is no planner's"
    printed = rows[f"PARING, {PRINTED_INNER}: time, s"]
    assert isinstance(printed, DrawnRow)
    assert printed.why is not None


@pytest.mark.parametrize(
    ("values", "fixed", "known", "verdict", "why"),
    [
        ((3.0, 3.0), 3.0, None, AS_PRINTED, None),
        ((3.0, 3.0), 3.0, "a slip", AS_PRINTED, None),
        ((2.0, 4.0), 2.0, None, NOT_REPRODUCIBLE, UNKNOWN),
        ((2.0, 2.0), 4.0, None, NOT_REPRODUCIBLE, UNKNOWN),
        ((3.0, 3.0), 4.0, None, NOT_REPRODUCIBLE, UNKNOWN),
        ((2.0, 2.0), 2.0, None, DIFFERS, ALIKE),
        ((4.0, 5.0), 4.5, None, DIFFERS, BEYOND),
        ((4.0, 5.0), 4.5, "a slip", NOT_REPRODUCIBLE, "a slip"),
    ],
)
def test_what_is_not_asked_for_is_judged_by_what_ours_come_to(
    values: tuple[float, ...], fixed: float, known: str | None, verdict: str, why: str | None
) -> None:
    row = judged_row("a rate", values, fixed, 3.0, reasons=Reasons(known))
    assert (row.verdict, row.why, row.is_inside) == (verdict, why, None)


def test_a_rate_that_is_level_from_the_first_does_not_rise() -> None:
    one, two, three = (Fraction(number) for number in (1, 2, 3))
    assert rises([one, two, three, three])
    assert not rises([three, three, three])
    assert not rises([one, two, three])
    assert not rises([one, three, two, two])


@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_traffic_rates_and_times_that_can_be_asked_for_are_the_paper_s(number: int) -> None:
    experiment = EXPERIMENTS[number - 1]
    outcomes = outcomes_at_printed_points(experiment)
    traffic = asked(traffic_rows(outcomes, experiment, 1))
    rates, times = asked(rate_rows(outcomes, experiment, 1)), asked(time_rows(outcomes, experiment, 1))
    assert any(what.endswith(published.DEEPSYS) for what in traffic)
    assert any(what.endswith("highest rate") for what in rates)
    assert len(times) == (0 if number == 2 else 1)
    bold = f"S = 12: PARING, {PRINTED_INNER}, two pods"
    assert (bold in traffic, bold in rates) == (number == 2, number == 2)
    assert ("S = 12: PANAMA, to a server, two pods" in traffic) == (number == 5)
    assert sum("% less than DeepSys" in what for what in traffic) == (3 if number == 1 else 0)


def test_printed_rates_exceed_what_any_tree_has_if_all_inputs_count() -> None:
    """Spec of the evaluation: 10/7 of two switches, 2.5 of 35 workers, 10/3 of eight switches, and both 5."""
    beyond = set()
    for experiment in EXPERIMENTS:
        for point, systems in experiment.points.items():
            setting = setting_at(experiment, point)
            rate = systems[published.PARING].rate
            if rate is not None and rate > bound_of_rate(setting.workers, setting.switches):
                beyond.add((experiment.number, rate))
    assert beyond == {
        (1, Fraction(5, 2)),
        (2, Fraction(10, 7)),
        (3, Fraction(10, 3)),
        (4, Fraction(5)),
        (5, Fraction(5)),
        (6, Fraction(10, 3)),
    }


def test_printed_percentages_are_those_of_the_decoded_values() -> None:
    for experiment in EXPERIMENTS:
        for point, saved in experiment.saved.items():
            systems = experiment.points[point]
            ours = systems[published.PARING].rate
            assert ours is not None
            for system, percent in saved.items():
                theirs = systems[system].rate
                assert theirs is not None
                assert float(100 - 100 * theirs / ours) == pytest.approx(percent, abs=0.06), system


def test_of_two_percentages_of_section_2_b_the_second_is_marina_s() -> None:
    """60.0 and 46.1 % less traffic than DeepSys and DeepSys+ATP, it says; section V-C has 51.6 for ATP."""
    systems = EXPERIMENTS[0].points[Fraction(35)]
    ours = systems[published.PARING].hops
    less = {name: 100 - 100 * ours / systems[name].hops for name in systems}
    printed = {published.DEEPSYS: 60.0, published.SOAR: 19.1, published.ATP: 51.6, published.MARINA: 46.1}
    for name, percent in printed.items():
        assert less[name] == pytest.approx(percent, abs=0.06), name


@pytest.mark.parametrize(
    ("number", "point", "system", "gigabytes"),
    [
        (2, 2, published.PARING, 87.3),
        (2, 2, published.SOAR, 168.4),
        (2, 2, published.ATP, 142.3),
        (2, 2, published.MARINA, 154.4),
        (2, 12, published.PARING, 69.9),
        (2, 12, published.SOAR, 65.1),
        (2, 12, published.ATP, 71.6),
        (2, 12, published.MARINA, 97.7),
        (4, 15, published.PARING, 57.2),
        (4, 15, published.MARINA, 47.7),
        (4, 15, published.PANAMA, 58.8),
        (5, 12, published.PARING, 76.3),
        (5, 12, published.PANAMA, 60.4),
    ],
)
def test_printed_gigabytes_are_whole_links(number: int, point: int, system: str, gigabytes: float) -> None:
    printed = EXPERIMENTS[number - 1].points[Fraction(point)][system]
    assert printed.hops * float(GB_PER_HOP) == pytest.approx(gigabytes, abs=0.1)


# -- networks


def test_more_switches_include_fewer_and_the_first_six_are_edge_switches() -> None:
    for draw in (None, 0, 1):
        named = [switches_of(draw, count).split() for count in range(2, 14, 2)]
        assert all(one == names[: len(one)] for names in named for one in named if len(one) <= len(names))
        assert [name[0] for name in named[-1]] == ["e"] * 6 + ["a"] * 6
        assert len(set(switches_named(6, " ".join(named[-1])))) == 12
    assert switches_of(0, 12) != switches_of(1, 12)


def test_each_run_is_needed_once_and_printed_points_are_among_the_grid() -> None:
    runs = PAPER.needed(FIGURES, 3)
    assert len(set(runs)) == len(runs)
    for experiment in EXPERIMENTS:
        assert set(experiment.points) <= set(grid(experiment))
    assert [one.key for one in FIGURES] == list(PARING_FIGURES)


# -- the command


def made(run: Run) -> Found:
    """All alike, so that what is asked for is outside."""
    one = Outcome(50, Fraction(1))
    if isinstance(run, PlanRun):
        ours = (FAST, PRINTED_INNER, PRINTED_LEAF, ATP_FIRST, PANAMA_TO_SERVER)
        return Planned(dict.fromkeys((*ours, *published.SYSTEMS), one), Fraction(1), Fraction(1))
    return Proved(one, one, True)


def test_what_is_outside_is_named_and_drawn(tmp_path: Path) -> None:
    figures = [figure(key) for key in ("2", "9", "19")]
    report = PAPER.document(figures, {run: made(run) for run in PAPER.needed(figures, 2)}, 2)
    named = {(row["figure"], row["what"]) for row in report["outside"]}
    assert ("2", "n = 35: DeepSys") in named
    assert ("9", "fast: rises with R, then is level") in named, "it is level from the first"
    page = Page(render(PAPER, report))
    assert page.tags.count("svg") == 3
    assert "not reproducible" in page.words
    assert "script" not in page.tags
    assert write_report(PAPER, tmp_path, report) == tmp_path / "report.html"
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        "figure-19.svg",
        "figure-2.svg",
        "figure-9.svg",
    ]


def test_the_command_says_what_is_inside_and_why_the_rest_is_not_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["paring", "--figure", "1", "--jobs", "1", "--out", str(out), "--json", "-"]
    done = CliRunner().invoke(reproduce, words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report == json.loads((out / "report.json").read_text())
    assert [row["verdict"] for row in report["figures"][0]["rows"][:2]] == ["exact", "exact"]
    told = " ".join(done.stderr.split())
    assert "12 of 12 values are inside their tolerances; nothing is asked of 6 more: 2 as printed, " in told
    assert "4 not reproducible; the last column says why" in told
    page = " ".join((out / "report.html").read_text().split())
    assert "All values" not in page
    assert '<p class="partly">12 of 12 values are inside their tolerances; nothing is asked of 6 more' in page
    assert '<th class="prose">why</th>' in page, "over its words"
    assert "<td>19.4</td>" in page, "the paper has no more digits"
    assert "none that Algorithms 2 to 4" in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [["--figure", "20"], ["--draws", "0"]])
def test_what_there_is_not_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(reproduce, ["paring", *words])
    assert done.exit_code == 2
    assert words[1] in done.output
