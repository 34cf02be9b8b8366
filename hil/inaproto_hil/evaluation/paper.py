"""The evaluation of a paper: its figures, the runs behind them, and the document that says what they found.

Pure: runs are data, what they find is data, and which of them runs where is the caller's
(:mod:`inaproto_hil.evaluation.command`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from inaproto_hil.evaluation.rows import DIFFERS, NOT_REPRODUCIBLE, DrawnRow, Row
from inaproto_hil.rigs import environment

RunT = TypeVar("RunT")
FoundT = TypeVar("FoundT")
FoundT_contra = TypeVar("FoundT_contra", contravariant=True)
VERSION: Final = 1
PROSE: Final = ("why",)
"""Columns of words that may wrap."""
TO_COMPARE: Final = "to compare"
Fields = Mapping[str, Any]
"""A part of the document, as ``json.load`` gives it back."""


class Figure(Protocol[RunT, FoundT_contra]):
    """One figure or table; ``count`` is how often what is drawn is drawn."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def setting(self) -> str: ...

    def runs(self, count: int, /) -> Iterable[RunT]: ...

    def rows(self, outcomes: Mapping[RunT, FoundT_contra], count: int, /) -> Iterable[Row]: ...

    def curves(self, outcomes: Mapping[RunT, FoundT_contra], count: int, /) -> Fields | None: ...


@dataclass(frozen=True)
class FigureOf(Generic[RunT, FoundT]):
    """A figure by its functions."""

    key: str
    """``2`` for Figure 2, ``table-1``."""
    title: str
    setting: str
    runs: Callable[[int], Iterable[RunT]]
    rows: Callable[[Mapping[RunT, FoundT], int], Iterable[Row]]
    curves: Callable[[Mapping[RunT, FoundT], int], Fields | None] = lambda outcomes, count: None


@dataclass(frozen=True, kw_only=True)
class Paper(Generic[RunT, FoundT]):
    name: str
    source: str
    drawn: str
    """What the number of draws is called: ``seeds``, ``draws``."""
    figures: Sequence[Figure[RunT, FoundT]]
    perform: Callable[[RunT], tuple[RunT, FoundT]]
    warm_up: Callable[[], None]
    length: Callable[[RunT], int]
    """How long a run takes, among the others."""
    fields: Callable[[Row], Fields]
    """What a row of the document has beyond those of other papers."""
    columns: Mapping[str, Callable[[Fields], str]]
    """The columns of tables: what each shows of a row of the document, a dash for nothing."""
    drawing: Callable[[Fields], str | None]
    """A figure of the document as an SVG file; None for one that is better read as a table."""
    has_curves: bool = True
    excuses: bool = False
    """A row outside its tolerance whose reason is known does not reproduce, and is no failure."""
    more: Callable[[Mapping[RunT, FoundT]], Fields] = lambda outcomes: {}
    """Further fields of the document."""
    closing: Callable[[Fields], str | None] = lambda report: None
    """What is said of the document behind its tables."""
    without_numba: str | None = None
    """How many times slower it is then; None: it is not."""

    def needed(self, figures: Sequence[Figure[RunT, FoundT]], count: int) -> list[RunT]:
        """Each run once, those that take longest first."""
        found: dict[RunT, None] = {run: None for figure in figures for run in figure.runs(count)}
        return sorted(found, key=self.length, reverse=True)

    def document(
        self, figures: Sequence[Figure[RunT, FoundT]], outcomes: Mapping[RunT, FoundT], count: int
    ) -> dict[str, Any]:
        """The whole report for ``json.dump``. Alike for the same code and draws, but for ``environment`` and
        times."""
        shown: list[dict[str, Any]] = []
        for figure in figures:
            rows = [{**_fields_of(row), **self.fields(row)} for row in figure.rows(outcomes, count)]
            one = {"key": figure.key, "title": figure.title, "setting": figure.setting, "rows": rows}
            shown.append(one | ({"curves": figure.curves(outcomes, count)} if self.has_curves else {}))
        rows = [{"figure": figure["key"], **row} for figure in shown for row in figure["rows"]]
        outside = [row for row in rows if row["inside"] is False]
        excused = [row for row in outside if self.excuses and row["why"] is not None]
        failed = [row for row in outside if row not in excused]
        verdicts = {"outside": [_some(row, "figure", "what") for row in failed]}
        if self.excuses:
            told = ("figure", "what", "paper", "ours", "why")
            verdicts["not_reproduced"] = [_some(row, *told) for row in excused]
        return {
            "version": VERSION,
            "reproduces": self.name,
            "source": self.source,
            self.drawn: count,
            "environment": environment.describe(),
            "runs": len(outcomes),
            **self.more(outcomes),
            **verdicts,
            "figures": shown,
        }

    def cells(self, row: Fields) -> list[str]:
        """A row of the document, column by column."""
        return [cell(row) for cell in self.columns.values()]


def _some(row: Fields, *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names}


def _fields_of(row: Row) -> dict[str, Any]:
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


def as_json(report: Fields) -> str:
    return json.dumps(report, indent=1) + "\n"


def drawn_fields(row: Row, *names: str) -> dict[str, Any]:
    """Those fields of a ``DrawnRow``; of another row, that it has none."""
    return {name: getattr(row, name) if isinstance(row, DrawnRow) else None for name in names}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a whole document."""

    text: str
    is_good: bool
    """Whether all that was asked is inside, and nothing was found that the paper has otherwise."""


def verdict_of(report: Fields) -> Verdict:
    """How many values are inside their tolerances, and what is said of those of which nothing is asked."""
    rows = [row for figure in report["figures"] for row in figure["rows"]]
    asked = [row["inside"] for row in rows if row["inside"] is not None]
    others = Counter(row.get("verdict") or TO_COMPARE for row in rows if row["inside"] is None)
    inside = asked.count(True)
    text = f"{inside} of {len(asked)} {_values(len(asked))} inside their tolerances"
    open_ = others.keys() & {NOT_REPRODUCIBLE, DIFFERS}
    if others:
        count = sum(others.values())
        told = [f"{times} {said}" for said, times in sorted(others.items())]
        reasons = "; the last column says why" if open_ else ""
        text += f"; nothing is asked of {count} more: {', '.join(told)}{reasons}"
    return Verdict(text, inside == len(asked) and not open_)


def _values(count: int) -> str:
    return "value is" if count == 1 else "values are"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value) and value != 1:
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.1f}"
    return f"{value:.2g}" if abs(value) < 1e-4 else f"{value:.4f}"


def printed(value: float | None) -> str:
    """A number of the paper's, with no more digits than it has."""
    shown = number(value)
    return shown.rstrip("0").rstrip(".") if "." in shown and "e" not in shown else shown


def shows_printed(name: str) -> Callable[[Fields], str]:
    """A column with the paper's number of that name."""
    return lambda row: printed(row[name])


def shows(name: str) -> Callable[[Fields], str]:
    """A column with the number of that name."""
    return lambda row: number(row[name])


def says(name: str) -> Callable[[Fields], str]:
    """A column with the words of that name."""
    return lambda row: row[name] or "-"
