"""The picture of ``inaproto bench peers``: bandwidth by size, a panel for each number of hosts."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS, PALE
from inaproto_controller.pictures.plot_look import LOOK
from inaproto_hil.bench.peers.table import NAMES, heading, size_said


def drawing(report: Mapping[str, Any]) -> str:
    """An SVG file. Points are medians over rounds, lines reach from the least to the most, dotted: bounds."""
    hosts = sorted(set(report["config"]["hosts"]))
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(1.0 + 4.0 * len(hosts), 4.0), layout="constrained")
        panels = figure.subplots(1, len(hosts), sharey=True, squeeze=False)[0]
        for axes, count in zip(panels, hosts, strict=True):
            _panel(axes, report, count)
        panels[0].set_ylabel("% of line" if report["line_rate_bps"] else "MB/s of vector")
        lines, names = panels[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=len(NAMES), frameon=False)
        figure.suptitle("\n".join(heading(report)), fontsize=7, x=0.01, ha="left")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _panel(axes: Any, report: Mapping[str, Any], hosts: int) -> None:
    rows = [row for row in report["rows"] if row["hosts"] == hosts and row["algbw"] is not None]
    sizes = sorted({row["size"] for row in rows})
    rate = report["line_rate_bps"]
    for nth, name in enumerate(NAMES):
        mine = sorted((row for row in rows if row["contender"] == name), key=lambda row: int(row["size"]))
        if not mine:
            continue
        values = [[_value(row, time, rate) for row in mine] for time in ("", "_max", "_min")]
        middle, least, most = values
        spread = [
            [one - low for one, low in zip(middle, least, strict=True)],
            [high - one for one, high in zip(middle, most, strict=True)],
        ]
        at = [sizes.index(row["size"]) for row in mine]
        axes.errorbar(at, middle, yerr=spread, marker="o", capsize=3, color=COLOURS[nth], label=NAMES[name])
        if mine[0]["pct_bound"] is not None:
            axes.axhline(mine[0]["pct_bound"], color=COLOURS[nth], linewidth=0.8, linestyle=":")
    axes.set_title(f"{hosts} hosts")
    axes.set_xticks(range(len(sizes)), [size_said(size) for size in sizes])
    axes.set_xlabel("bytes of vector; dotted: bounds" if rate else "bytes of vector")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=PALE, linewidth=0.5)


def _value(row: Mapping[str, Any], time: str, rate: float | None) -> float:
    """Bandwidth by its time: ``""``, ``"_min"`` or ``"_max"``."""
    megabytes = float(row["size"] / row[f"time_us{time}"])
    return megabytes if rate is None else 100 * 8e6 * megabytes / rate
