"""What ``inaproto reproduce paring`` does: plans on all cores, a document, the tables rendered from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from inaproto_hil.evaluation.mina.rows import Row
from inaproto_hil.evaluation.paring.figures import FIGURES, Figure, needed
from inaproto_hil.evaluation.paring.rows import NOT_REPRODUCIBLE, DrawnRow, Outcomes
from inaproto_hil.evaluation.paring.runs import perform, warm_up
from inaproto_hil.evaluation.performing import perform_all
from inaproto_hil.evaluation.tables import fields_of, number, outside, save_json, tell
from inaproto_hil.rigs import environment
from inaproto_hil.soak.folder import check_folder

VERSION: Final = 1
SOURCE: Final = (
    "Y. Qiu et al., PARING: Joint Task Placement and Routing for Distributed Training "
    "With In-Network Aggregation"
)
COLUMNS: Final = ("paper", "ours", "±95 %", "least", "most", "two pods", "verdict", "why")


def reproduce_paring(
    keys: Sequence[str],
    draws: int,
    json_at: str | None,
    report_in: Path | None,
    jobs: int | None,
) -> int:
    """Exit status: 1 if a row is outside its tolerance. ``keys``: figures, all if there are none."""
    if report_in is not None:
        check_folder("--report", report_in)
    figures = [figure for figure in FIGURES if not keys or figure.key in keys]
    console = Console(stderr=True, highlight=False)
    outcomes = perform_all(perform, needed(figures, draws), jobs, "local", console, compile_once=warm_up)
    report = document(figures, outcomes, draws)
    save_json(report, json_at)
    page = None
    if report_in is not None:
        from inaproto_hil.evaluation.paring.report import write_report

        page = write_report(report_in, report)
    tell(report, page, json_at, COLUMNS, cells)
    return 1 if report["outside"] else 0


def document(figures: Sequence[Figure], outcomes: Outcomes, draws: int) -> dict[str, Any]:
    """The whole report for ``json.dump``. Alike for the same code and draws, but for ``environment``."""
    shown: list[dict[str, Any]] = [
        {
            "key": figure.key,
            "title": figure.title,
            "setting": figure.setting,
            "rows": [_row(row) for row in figure.rows(outcomes, draws)],
            "curves": figure.curves(outcomes, draws),
        }
        for figure in figures
    ]
    return {
        "version": VERSION,
        "reproduces": "paring",
        "source": SOURCE,
        "draws": draws,
        "environment": environment.describe(),
        "runs": len(outcomes),
        "outside": outside(shown),
        "figures": shown,
    }


def _row(row: Row) -> dict[str, Any]:
    fields = {**fields_of(row), "least": None, "most": None, "two_pods": None, "why": None}
    if isinstance(row, DrawnRow):
        fields |= {"least": row.least, "most": row.most, "two_pods": row.first_pods, "why": row.why}
    told = row.verdict if isinstance(row, DrawnRow) else None
    fields["verdict"] = told or _verdict(row, fields["why"])
    return fields


def _verdict(row: Row, why: str | None) -> str:
    if row.is_inside is None:
        return NOT_REPRODUCIBLE if why is not None else "to compare"
    if not row.is_inside:
        return "outside"
    return "within tolerance" if row.below or row.above else "exact"


def cells(row: Mapping[str, Any]) -> list[str]:
    """Cells of a row, from the paper's value on; what is not there is a dash."""
    numbers = ("paper", "ours", "confidence_95", "least", "most", "two_pods")
    return [*(number(row[name]) for name in numbers), row["verdict"], row["why"] or "-"]
