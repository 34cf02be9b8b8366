"""The page about a paper's figures, rendered from the document; it needs nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from inaproto_hil.evaluation.paper import PROSE, Fields, Paper, as_json, verdict_of


def render(paper: Paper[Any, Any], report: Fields) -> str:
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
            "picture": None if (svg := paper.drawing(figure)) is None else svg[svg.index("<svg") :],
            "lines": [(row["what"], row["inside"], paper.cells(row)) for row in figure["rows"]],
        }
        for figure in report["figures"]
    ]
    prose = [place for place, name in enumerate(paper.columns) if name in PROSE]
    page = pages.get_template(f"{paper.name}_report.html")
    return page.render(
        report=report,
        verdict=verdict_of(report),
        figures=figures,
        columns=list(paper.columns),
        prose=prose,
    )


def write_report(paper: Paper[Any, Any], folder: Path, report: Fields) -> Path:
    """``report.html``, ``report.json`` and ``figure-N.svg``; the folder is there. Returns the page."""
    for figure in report["figures"]:
        svg = paper.drawing(figure)
        if svg is not None:
            (folder / f"figure-{figure['key']}.svg").write_text(svg, encoding="utf-8")
    (folder / "report.json").write_text(as_json(report), encoding="utf-8")
    path = folder / "report.html"
    path.write_text(render(paper, report), encoding="utf-8")
    return path
