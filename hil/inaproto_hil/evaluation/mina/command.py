"""What ``inaproto reproduce mina`` does: runs on all cores, a document, the tables rendered from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_controller.cluster.model import CLUSTER, EVALUATED, SHARING, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_hil.evaluation.mina.figures import FIGURES, Figure, needed
from inaproto_hil.evaluation.mina.rows import Outcomes, Row
from inaproto_hil.evaluation.mina.runs import Run, perform, warm_up
from inaproto_hil.evaluation.performing import perform_all
from inaproto_hil.evaluation.tables import fields_of, number, outside, save_json, show_figure, tell
from inaproto_hil.rigs import environment
from inaproto_hil.soak.folder import check_folder

VERSION: Final = 1
SOURCE: Final = (
    "S. Dong et al., MINA: Fine-grained In-network Aggregation Resource Scheduling "
    "for Machine Learning Service"
)
COLUMNS: Final = ("paper", "ours", "±95 %", "inside", "saves", "of JCT", "waits", "swaps/job", "exclusive")


def reproduce_mina(
    keys: Sequence[str],
    seeds: int,
    json_at: str | None,
    report_in: Path | None,
    jobs: int | None,
    engine: str,
) -> int:
    """Exit status: 1 if a row is outside its tolerance. ``keys``: figures, all if there are none."""
    if report_in is not None:
        check_folder("--report", report_in)
    figures = [figure for figure in FIGURES if not keys or figure.key in keys]
    console = Console(stderr=True, highlight=False)
    if not IS_COMPILED:
        console.print(
            "reproduce: Numba is not installed: some fifty times slower (pip install 'inaproto[planning]')",
            style="yellow",
        )
    outcomes = run_all(needed(figures, seeds), jobs, engine, console)
    report = document(figures, outcomes, seeds)
    save_json(report, json_at)
    page = None
    if report_in is not None:
        from inaproto_hil.evaluation.mina.report import write_report

        page = write_report(report_in, report)
    tell(report, page, json_at, COLUMNS, cells)
    return 1 if report["outside"] else 0


def run_all(runs: Sequence[Run], jobs: int | None, engine: str, console: Console) -> Outcomes:
    return perform_all(perform, runs, jobs, engine, console, compile_once=warm_up)


# -- the document


def document(figures: Sequence[Figure], outcomes: Outcomes, seeds: int) -> dict[str, Any]:
    """The whole report for ``json.dump``. Alike for the same code and seeds, but for ``environment``."""
    shown: list[dict[str, Any]] = [
        {
            "key": figure.key,
            "title": figure.title,
            "setting": figure.setting,
            "rows": [_row(row) for row in figure.rows(outcomes, seeds)],
        }
        for figure in figures
    ]
    return {
        "version": VERSION,
        "reproduces": "mina",
        "source": SOURCE,
        "seeds": seeds,
        "environment": environment.describe(),
        "runs": len(outcomes),
        "step_gains": {
            name: {model: StepTimes(measured(model), speeds, hosts=2).gain for model in EVALUATED}
            for name, speeds in (("cluster", CLUSTER), ("sharing", SHARING))
        },
        "outside": outside(shown),
        "figures": shown,
    }


def _row(row: Row) -> dict[str, Any]:
    return {**fields_of(row), "beside": None if row.beside is None else asdict(row.beside)}


# -- tables


def show(console: Console, figure: dict[str, Any]) -> None:
    """A figure of the report, as a table."""
    show_figure(console, figure, COLUMNS, cells)


def cells(row: Mapping[str, Any]) -> list[str]:
    """Cells of a row, from the paper's value on; what is not there is a dash."""
    said = {None: "-", True: "yes", False: "NO"}[row["inside"]]
    beside = row["beside"] or {}
    share = beside.get("saved_share")
    return [
        number(row["paper"]),
        number(row["ours"]),
        number(row["confidence_95"]),
        said,
        _seconds(beside.get("saved_s")),
        "-" if share is None else f"{100 * share:.3f} %",
        _seconds(beside.get("queued_s")),
        "-" if beside.get("jct_s") is None else f"{beside['swaps_per_job']:.1f}",
        number(beside.get("exclusive_score")),
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f} s" if abs(value) < 1 else f"{value:.1f} s"
