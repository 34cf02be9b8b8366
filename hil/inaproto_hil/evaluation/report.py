"""The page about a paper's figures, rendered from the document; it needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from inaproto_hil.evaluation.tables import PROSE, Cells, as_json

Picture = Callable[[Mapping[str, Any]], str | None]
"""Makes of a figure an ``<svg>`` element; None for one that is better read as a table."""


def render_report(
    report: Mapping[str, Any], template: str, columns: Sequence[str], cells: Cells, picture: Picture
) -> str:
    pages = Environment(
        loader=PackageLoader("inaproto_hil.evaluation", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [
        {
            **figure,
            "picture": picture(figure),
            "lines": [(row["what"], row["inside"], cells(row)) for row in figure["rows"]],
        }
        for figure in report["figures"]
    ]
    prose = [place for place, name in enumerate(columns) if name in PROSE]
    return pages.get_template(template).render(report=report, figures=figures, columns=columns, prose=prose)


def write_page(folder: Path, report: dict[str, Any], page: str) -> Path:
    """``report.html`` and ``report.json``; the folder is there. Returns the page."""
    (folder / "report.json").write_text(as_json(report), encoding="utf-8")
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path
