"""The page about MLNet's figures, and its pictures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inaproto_hil.evaluation.mlnet.command import COLUMNS, cells
from inaproto_hil.evaluation.mlnet.plots import drawing, picture
from inaproto_hil.evaluation.report import render_report, write_page


def render(report: dict[str, Any]) -> str:
    return render_report(report, "mlnet_report.html", COLUMNS, cells, picture)


def write_report(folder: Path, report: dict[str, Any]) -> Path:
    """``report.html``, ``report.json`` and ``figure-N.svg``; the folder is there. Returns the page."""
    for figure in report["figures"]:
        svg = drawing(figure)
        if svg is not None:
            (folder / f"figure-{figure['key']}.svg").write_text(svg, encoding="utf-8")
    return write_page(folder, report, render(report))
