"""The page about MINA's figures, rendered from the document; it needs nothing from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from inaproto_hil.reproduce.mina import COLUMNS, cells
from inaproto_hil.reproduce.mina_plots import picture


def render(report: dict[str, Any]) -> str:
    pages = Environment(
        loader=PackageLoader("inaproto_hil.reproduce", "."),
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
    return pages.get_template("mina_report.html").render(report=report, figures=figures, columns=COLUMNS)


def write_report(folder: Path, report: dict[str, Any]) -> Path:
    """``report.html`` and ``report.json``; the folder is there. Returns the page."""
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    path = folder / "report.html"
    path.write_text(render(report), encoding="utf-8")
    return path
