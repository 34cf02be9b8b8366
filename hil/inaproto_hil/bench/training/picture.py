"""The picture of ``inaproto bench training``: a panel for each rate of links and number of ranks."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS, INK, PALE
from inaproto_controller.pictures.plot_look import LOOK
from inaproto_hil.bench.peers.config import BEFORE, GLOO, INAPROTO
from inaproto_hil.bench.peers.table import NAMES
from inaproto_hil.bench.training.table import heading

ORDER: Final = (INAPROTO, BEFORE, GLOO)
BAR: Final = 0.26
COMPUTATION: Final = "computation alone"


def drawing(report: Mapping[str, Any]) -> str:
    """An SVG file. Bars are medians over rounds, lines reach from the least to the most; the grey part of a
    bar is computation alone; above a bar of inaproto, times as many steps as gloo."""
    config = report["config"]
    rates, ranks = config["rates_bps"], config["ranks"]
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(1.0 + 3.4 * len(ranks), 0.9 + 2.9 * len(rates)), layout="constrained")
        panels = figure.subplots(len(rates), len(ranks), squeeze=False)
        for line, rate in zip(panels, rates, strict=True):
            for axes, count in zip(line, ranks, strict=True):
                _panel(axes, report, rate, count)
            line[0].set_ylabel("ms a step")
        named: dict[str, Any] = {}
        for axes in figure.axes:
            named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        named = dict(sorted(named.items(), key=lambda one: one[0] == COMPUTATION))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle("\n".join(heading(report)), fontsize=7, x=0.01, ha="left")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _panel(axes: Any, report: Mapping[str, Any], rate: int, ranks: int) -> None:
    models = report["config"]["models"]
    rows = [row for row in report["rows"] if (row["rate_bps"], row["ranks"]) == (rate, ranks)]
    shown = [name for name in ORDER if any(row["contender"] == name for row in rows)]
    for nth, name in enumerate(shown):
        mine = [row for row in rows if row["contender"] == name]
        at = [models.index(row["model"]) + (nth - (len(shown) - 1) / 2) * BAR for row in mine]
        steps = [row["step_ms"] for row in mine]
        spread = [
            [row["step_ms"] - row["step_ms_min"] for row in mine],
            [row["step_ms_max"] - row["step_ms"] for row in mine],
        ]
        axes.bar(at, steps, BAR, yerr=spread, capsize=2, color=COLOURS[nth], ecolor=INK, label=NAMES[name])
        compute = [min(row["compute_ms"] or 0.0, row["step_ms"]) for row in mine]
        if any(compute):
            axes.bar(at, compute, BAR * 0.8, color=PALE, label=COMPUTATION)
        for x, row in zip(at, mine, strict=True):
            if name == INAPROTO and row["x_gloo"] is not None:
                axes.annotate(
                    f"x {row['x_gloo']:.2f}", (x, row["step_ms_max"]), ha="center", va="bottom", fontsize=7
                )
    axes.set_title(f"{ranks} ranks, {rate / 1e6:g} Mbit/s")
    axes.set_xticks(range(len(models)), models)
    axes.set_ylim(bottom=0)
    axes.set_axisbelow(True)
    axes.margins(y=0.15)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
