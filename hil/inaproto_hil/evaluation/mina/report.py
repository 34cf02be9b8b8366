"""The page about MINA's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inaproto_hil.evaluation.mina.command import COLUMNS, cells
from inaproto_hil.evaluation.mina.plots import picture
from inaproto_hil.evaluation.report import render_report, write_page


def render(report: dict[str, Any]) -> str:
    return render_report(report, "mina_report.html", COLUMNS, cells, picture)


def write_report(folder: Path, report: dict[str, Any]) -> Path:
    """``report.html`` and ``report.json``; the folder is there. Returns the page."""
    return write_page(folder, report, render(report))
