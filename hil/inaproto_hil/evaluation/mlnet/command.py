"""What ``inaproto reproduce mlnet`` does: flows on all cores, a document, the tables rendered from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_hil.evaluation.mina.rows import Row
from inaproto_hil.evaluation.mlnet.figures import FIGURES, Figure, needed
from inaproto_hil.evaluation.mlnet.rows import NOT_REPRODUCED, OUTSIDE, REPORTED, DrawnRow, Outcomes
from inaproto_hil.evaluation.mlnet.runs import PhaseFound, PhaseRun, perform, warm_up
from inaproto_hil.evaluation.performing import perform_all
from inaproto_hil.evaluation.tables import fields_of, number, save_json, tell
from inaproto_hil.rigs import environment
from inaproto_hil.soak.folder import check_folder

VERSION: Final = 1
SOURCE: Final = "L. Mai et al., Optimizing Network Performance in Distributed Machine Learning"
COLUMNS: Final = ("paper", "ours", "±95 %", "least", "most", "verdict", "why")


def reproduce_mlnet(
    keys: Sequence[str], seeds: int, json_at: str | None, report_in: Path | None, jobs: int | None
) -> int:
    """Exit status: 1 if a row is outside its tolerance, and it is not known why. ``keys``: figures, all if
    there are none."""
    if report_in is not None:
        check_folder("--report", report_in)
    figures = [figure for figure in FIGURES if not keys or figure.key in keys]
    console = Console(stderr=True, highlight=False)
    if not IS_COMPILED:
        console.print(
            "reproduce: Numba is not installed: some hundred times slower (pip install 'inaproto[planning]')",
            style="yellow",
        )
    outcomes = perform_all(perform, needed(figures, seeds), jobs, "local", console, compile_once=warm_up)
    report = document(figures, outcomes, seeds)
    save_json(report, json_at)
    page = None
    if report_in is not None:
        from inaproto_hil.evaluation.mlnet.report import write_report

        page = write_report(report_in, report)
    tell(report, page, json_at, COLUMNS, cells)
    if report["slowest_phase"] is not None:
        click.echo(in_words(report["slowest_phase"]), err=json_at == "-")
    return 1 if report["outside"] else 0


def document(figures: Sequence[Figure], outcomes: Outcomes, seeds: int) -> dict[str, Any]:
    """The whole report for ``json.dump``. Alike for the same code and seeds, but for ``environment`` and
    ``slowest_phase``."""
    shown: list[dict[str, Any]] = [
        {
            "key": figure.key,
            "title": figure.title,
            "setting": figure.setting,
            "rows": [_row(row) for row in figure.rows(outcomes, seeds)],
            "curves": figure.curves(outcomes, seeds),
        }
        for figure in figures
    ]
    return {
        "version": VERSION,
        "reproduces": "mlnet",
        "source": SOURCE,
        "seeds": seeds,
        "environment": environment.describe(),
        "runs": len(outcomes),
        "slowest_phase": _slowest(outcomes),
        "outside": _named(shown, OUTSIDE, "figure", "what"),
        "not_reproduced": _named(shown, NOT_REPRODUCED, "figure", "what", "paper", "ours", "why"),
        "figures": shown,
    }


def _named(figures: Sequence[Mapping[str, Any]], verdict: str, *fields: str) -> list[dict[str, Any]]:
    """The rows of which this is said."""
    rows = [{"figure": figure["key"], **row} for figure in figures for row in figure["rows"]]
    return [{field: row[field] for field in fields} for row in rows if row["verdict"] == verdict]


def _slowest(outcomes: Outcomes) -> dict[str, Any] | None:
    """The exact phase that took longest to compute."""
    found = [
        (one.seconds, run, one)
        for run, one in outcomes.items()
        if isinstance(run, PhaseRun) and isinstance(one, PhaseFound) and not run.is_stored and one.rated
    ]
    if not found:
        return None
    seconds, run, one = max(found, key=lambda each: each[0])
    return {
        "scheme": run.scheme.value,
        "servers": run.servers,
        "oversubscription": run.oversubscription,
        "rated": one.rated,
        "cpu_s": seconds,
    }


def in_words(slowest: Mapping[str, Any]) -> str:
    return (
        f"slowest phase of 1,024 servers: {slowest['cpu_s']:.1f} s of CPU, exact"
        f" ({slowest['scheme']}, P = {slowest['servers']}, 1:{slowest['oversubscription']:g})"
    )


def _row(row: Row) -> dict[str, Any]:
    fields = {**fields_of(row), "least": None, "most": None, "why": None}
    if isinstance(row, DrawnRow):
        fields |= {"least": row.least, "most": row.most, "why": row.why}
    fields["verdict"] = _verdict(row, fields["why"])
    return fields


def _verdict(row: Row, why: str | None) -> str:
    if row.is_inside is None:
        return REPORTED
    if not row.is_inside:
        return OUTSIDE if why is None else NOT_REPRODUCED
    return "within tolerance" if (row.below or 0) > 1e-6 or (row.above or 0) > 1e-6 else "exact"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Cells of a row, from the paper's value on; what is not there is a dash."""
    numbers = ("paper", "ours", "confidence_95", "least", "most")
    return [*(number(row[name]) for name in numbers), row["verdict"], row["why"] or "-"]
