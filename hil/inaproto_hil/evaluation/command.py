"""What ``inaproto reproduce`` does: runs on all cores, a document, and the tables rendered from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from inaproto.errors import ConfigError
from inaproto.reader_gone import unread
from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_hil.evaluation.paper import PROSE, FoundT, Paper, RunT, as_json, number, verdict_of
from inaproto_hil.evaluation.performing import perform_all
from inaproto_hil.soak.folder import check_folder

_WIDTH: Final = 132
"""Columns of tables that no terminal bounds."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of ``inaproto reproduce``."""

    figures: tuple[str, ...]
    count: int
    """How often what is drawn is drawn."""
    json_at: str | None
    report_in: Path | None
    jobs: int | None
    engine: str
    tables: tuple[str, ...] = ()


def reproduce_paper(paper: Paper[RunT, FoundT], asked: Asked) -> int:
    """Exit status: 1 if a row is outside its tolerance. All figures if none is asked for."""
    if asked.report_in is not None:
        check_folder("--report", asked.report_in)
    keys = [*asked.figures, *(f"table-{number}" for number in asked.tables)]
    figures = [figure for figure in paper.figures if not keys or figure.key in keys]
    console = Console(stderr=True, highlight=False)
    if paper.without_numba is not None and not IS_COMPILED:
        slower = f"some {paper.without_numba} times slower (pip install 'inaproto[planning]')"
        console.print(f"reproduce: Numba is not installed: {slower}", style="yellow")
    runs = paper.needed(figures, asked.count)
    outcomes = perform_all(paper.perform, runs, asked.jobs, asked.engine, console, compile_once=paper.warm_up)
    report = paper.document(figures, outcomes, asked.count)
    page = None
    try:  # what has taken half an hour is not lost to a disk that is full
        if asked.json_at is not None and asked.json_at != "-":
            with _written("--json", Path(asked.json_at)) as file:
                file.write_text(as_json(report), encoding="utf-8")
        if asked.report_in is not None:
            from inaproto_hil.evaluation.report import write_report

            with _written("--report", asked.report_in) as folder:
                page = write_report(paper, folder, report)
    finally:
        tell(paper, report, page, to_stdout=asked.json_at == "-")
    return 1 if report["outside"] else 0


@contextmanager
def _written(option: str, at: Path) -> Iterator[Path]:
    """Raises ``ConfigError`` that names it where it cannot be."""
    try:
        yield at
    except OSError as error:
        raise ConfigError(f"{option} {at}: {error.strerror or error}") from None


# -- tables


def tell(paper: Paper[Any, Any], report: dict[str, Any], page: Path | None, *, to_stdout: bool) -> None:
    """The tables; before them the JSON, if it goes to stdout."""
    with unread():  # with | head, too, the files are there and the status is that of the values
        if to_stdout:
            click.echo(as_json(report), nl=False)
        shown = Console(stderr=to_stdout, highlight=False)
        if not shown.is_terminal:
            shown.width = _WIDTH
        for figure in report["figures"]:
            show_figure(shown, figure, paper)
        if page is not None:
            click.echo(f"report: {page}", err=to_stdout)
        _verdict(shown, report)
    closing = paper.closing(report)
    if closing is not None:
        click.echo(closing, err=to_stdout)


def show_figure(console: Console, figure: Mapping[str, Any], paper: Paper[Any, Any]) -> None:
    """A figure of the report, as a table; columns without a value are left out."""
    columns = list(paper.columns)
    rows = [(row, paper.cells(row)) for row in figure["rows"]]
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


def _verdict(console: Console, report: dict[str, Any]) -> None:
    found = verdict_of(report)
    is_good = found.is_good and not report.get("not_reproduced")
    console.print(found.text, style="green" if is_good else "yellow", soft_wrap=True)
    if report["outside"]:
        console.print("outside:", style="red")
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
