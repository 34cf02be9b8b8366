"""What ``inaproto reproduce mina`` does: runs on all cores, a document, the tables rendered from it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inaproto.core.step_times import StepTimes
from inaproto.reader_gone import unread
from inaproto.task_engines import open_engine
from inaproto_controller.compiled import IS_COMPILED
from inaproto_controller.model import CLUSTER, EVALUATED, SHARING, measured
from inaproto_controller.reproduce.figures import FIGURES, Figure, needed
from inaproto_controller.reproduce.rows import Outcomes, Row
from inaproto_controller.reproduce.runs import Found, Run, perform, warm_up
from inaproto_hil import environment
from inaproto_hil.soak.folder import check_folder

VERSION: Final = 1
SOURCE: Final = (
    "S. Dong et al., MINA: Fine-grained In-network Aggregation Resource Scheduling "
    "for Machine Learning Service"
)
COLUMNS: Final = ("paper", "ours", "±95 %", "inside", "saves", "of JCT", "waits", "swaps/job", "exclusive")
_LINE_EVERY_S: Final = 60.0
_WIDTH: Final = 132
"""Of tables that no terminal bounds."""


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
    page = None
    if json_at is not None and json_at != "-":
        Path(json_at).write_text(_json(report), encoding="utf-8")
    if report_in is not None:
        from inaproto_hil.reproduce.mina_report import write_report

        page = write_report(report_in, report)
    with unread():  # with | head, too, the files are there and the status is that of the values
        _tell(report, page, json_at)
    return 1 if report["outside"] else 0


def _tell(report: dict[str, Any], page: Path | None, json_at: str | None) -> None:
    """The tables; before them the JSON, if it goes to stdout."""
    to_stdout = json_at == "-"
    if to_stdout:
        click.echo(_json(report), nl=False)
    shown = Console(stderr=to_stdout, highlight=False)
    if not shown.is_terminal:
        shown.width = _WIDTH
    for figure in report["figures"]:
        show(shown, figure)
    if page is not None:
        click.echo(f"report: {page}", err=to_stdout)
    _verdict(shown, report)


def run_all(runs: Sequence[Run], jobs: int | None, engine: str, console: Console) -> Outcomes:
    """On a terminal with a bar, elsewhere with a line a minute."""
    count = min(jobs or len(os.sched_getaffinity(0)), max(1, len(runs)))
    if engine == "local":
        with console.status("compiling") if console.is_terminal else nullcontext():
            warm_up()  # else every process would make the same compiled code
    opened = open_engine(engine, count)
    found: dict[Run, Found] = {}
    bar = Progress(
        TextColumn("reproduce"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("runs"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bar, closing(opened.outcomes(perform, runs)) as outcomes:
        task = bar.add_task("", total=len(runs))
        line_at = time.monotonic()
        for run, outcome in outcomes:
            found[run] = outcome
            bar.advance(task)
            now = time.monotonic()
            if not console.is_terminal and now - line_at >= _LINE_EVERY_S:
                line_at = now
                console.print(f"reproduce: {len(found)} of {len(runs)} runs")
    return found


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
    outside = [
        {"figure": figure["key"], "what": row["what"]}
        for figure in shown
        for row in figure["rows"]
        if row["inside"] is False
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
        "outside": outside,
        "figures": shown,
    }


def _row(row: Row) -> dict[str, Any]:
    bounds = None
    if row.paper is not None and row.below is not None and row.above is not None:
        bounds = [row.paper - row.below, row.paper + row.above]
    return {
        "what": row.what,
        "paper": row.paper,
        "ours": row.ours,
        "confidence_95": row.half_width,
        "runs": row.runs,
        "bounds": bounds,
        "inside": row.is_inside,
        "beside": None if row.beside is None else asdict(row.beside),
    }


def _json(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1) + "\n"


# -- tables


def show(console: Console, figure: dict[str, Any]) -> None:
    """A figure of the report, as a table."""
    rows = [(row, cells(row)) for row in figure["rows"]]
    there = [place for place in range(len(COLUMNS)) if any(shown[place] != "-" for _, shown in rows)]
    table = Table(box=None, pad_edge=False)
    table.add_column("")  # long names wrap, so that figures do not
    for place in there:
        table.add_column(COLUMNS[place], justify="right", no_wrap=True)
    for row, shown in rows:
        style = "red" if row["inside"] is False else None
        table.add_row(row["what"], *(shown[place] for place in there), style=style)
    console.print(figure["title"], style="bold")
    console.print(figure["setting"], style="dim")
    console.print(table)
    console.print()


def cells(row: dict[str, Any]) -> list[str]:
    """Of a row: the paper's value to what exclusive trees score; what is not there is a dash."""
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


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and value != 1:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.1f}"
    return f"{value:.2g}" if abs(value) < 1e-4 else f"{value:.4f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f} s" if abs(value) < 1 else f"{value:.1f} s"


def _verdict(console: Console, report: dict[str, Any]) -> None:
    asked = sum(row["inside"] is not None for figure in report["figures"] for row in figure["rows"])
    outside = report["outside"]
    if not outside:
        console.print(f"{asked} of {asked} values are inside their tolerances", style="green")
        return
    console.print(f"{len(outside)} of {asked} values are outside their tolerances:", style="red")
    for row in outside:
        console.print(f"  {row['figure']}: {row['what']}", markup=False)
