"""A report on a paper's figures as text: tables, the verdict, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from inaproto.reader_gone import unread
from inaproto_hil.evaluation.mina.rows import Row

_WIDTH: Final = 132
"""Width of tables that no terminal bounds."""

PROSE: Final = ("why",)
"""Columns of words that may wrap."""

Cells = Callable[[Mapping[str, Any]], Sequence[str]]
"""Makes the cells of a row of a figure; what is not there is a dash."""


def save_json(report: dict[str, Any], json_at: str | None) -> None:
    if json_at is not None and json_at != "-":
        Path(json_at).write_text(as_json(report), encoding="utf-8")


def tell(
    report: dict[str, Any], page: Path | None, json_at: str | None, columns: Sequence[str], cells: Cells
) -> None:
    """The tables; before them the JSON, if it goes to stdout."""
    to_stdout = json_at == "-"
    with unread():  # with | head, too, the files are there and the status is that of the values
        if to_stdout:
            click.echo(as_json(report), nl=False)
        shown = Console(stderr=to_stdout, highlight=False)
        if not shown.is_terminal:
            shown.width = _WIDTH
        for figure in report["figures"]:
            show_figure(shown, figure, columns, cells)
        if page is not None:
            click.echo(f"report: {page}", err=to_stdout)
        _verdict(shown, report)


def as_json(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1) + "\n"


def fields_of(row: Row) -> dict[str, Any]:
    """What all papers' rows say."""
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
    }


def outside(figures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows that are not within their tolerances."""
    return [
        {"figure": figure["key"], "what": row["what"]}
        for figure in figures
        for row in figure["rows"]
        if row["inside"] is False
    ]


def show_figure(console: Console, figure: Mapping[str, Any], columns: Sequence[str], cells: Cells) -> None:
    """A figure of the report, as a table; columns without a value are left out."""
    rows = [(row, cells(row)) for row in figure["rows"]]
    there = [place for place in range(len(columns)) if any(shown[place] != "-" for _, shown in rows)]
    table = Table(box=None, pad_edge=False)
    table.add_column("")  # long names wrap, so that figures do not
    for place in there:
        is_prose = columns[place] in PROSE
        table.add_column(columns[place], justify="left" if is_prose else "right", no_wrap=not is_prose)
    for row, shown in rows:
        style = "red" if row["inside"] is False else None
        table.add_row(row["what"], *(shown[place] for place in there), style=style)
    console.print(figure["title"], style="bold")
    console.print(figure["setting"], style="dim")
    console.print(table)
    console.print()


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and value != 1:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.1f}"
    return f"{value:.2g}" if abs(value) < 1e-4 else f"{value:.4f}"


def _verdict(console: Console, report: dict[str, Any]) -> None:
    rows = [row["inside"] for figure in report["figures"] for row in figure["rows"]]
    asked, inside = len(rows) - rows.count(None), rows.count(True)
    if not report["outside"]:
        console.print(f"{inside} of {asked} values are inside their tolerances", style="green")
    else:
        count = len(report["outside"])
        console.print(f"{count} of {asked} values are outside their tolerances:", style="red")
        for row in report["outside"]:
            console.print(f"  {row['figure']}: {row['what']}", markup=False)
    for row in report.get("not_reproduced", ()):
        told = f"{number(row['ours'])} for {number(row['paper'])}"
        console.print(
            f"does not reproduce: {row['figure']}: {row['what']}: {told}: {row['why']}",
            markup=False,
            style="yellow",
            soft_wrap=True,
        )
