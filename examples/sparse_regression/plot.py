"""The picture: the loss over time and over clocks for each staleness, and how sparse weights become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from examples.digits.plot import BLUE, GREEN, GREY, ORANGE, RED, STYLE

COLOURS = (BLUE, ORANGE, GREEN, RED, GREY)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Write the picture, PNG or SVG by the name's end."""
    runs = summary["runs"]
    with plt.rc_context(STYLE):
        figure, (over_time, over_clocks, sparse) = plt.subplots(1, 3, figsize=(13.5, 4.6), dpi=130)
        config = summary["config"]
        figure.suptitle(
            f"Sparse logistic regression, {config['workers']} workers, {config['servers']} parameter servers"
            + (", one of them killed half-way" if config["kill"] else ""),
            fontsize=13,
            fontweight="bold",
        )
        _losses(over_time, runs, "seconds", "time (s)", "Loss over time")
        _losses(over_clocks, runs, "clocks", "clock of worker 0", "Loss over clocks")
        for colour, run in zip(COLOURS, runs, strict=False):
            sparse.plot(run["clocks"], [100 * share for share in run["zero_shares"]], color=colour)
        sparse.set(title="Weights that are exactly 0", xlabel="clock of worker 0", ylabel="share (%)")
        sparse.set_ylim(0, 101)
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)


def _losses(axes: Axes, runs: list[dict[str, Any]], along: str, label: str, title: str) -> None:
    for colour, run in zip(COLOURS, runs, strict=False):
        axes.plot(run[along], run["losses"], color=colour, label=f"s = {run['staleness']}")
        if along == "seconds" and run["killed_s"] is not None:
            axes.axvline(run["killed_s"], color=colour, linestyle=":", linewidth=1.2)
    if along == "seconds" and any(run["killed_s"] is not None for run in runs):
        axes.plot([], [], color=GREY, linestyle=":", label="server killed")
    axes.set(title=title, xlabel=label, ylabel="cross-entropy per sample (nats)", yscale="log")
    axes.legend()
