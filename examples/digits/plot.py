"""The picture of a demo run: learning on the left, what the wire did to it on the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

# Okabe & Ito's palette: told apart by colour-blind readers, and in grey.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7f7f7f"
STYLE: Any = {  # Any: older matplotlib wants dict[str, Any], newer one with its own key type
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def draw(summary: dict[str, Any], series: dict[str, Any], path: Path) -> None:
    """Write the PNG. ``series`` has the lists that are too long for the summary, see ``demo.py``."""
    with plt.rc_context(STYLE):
        figure, ((loss, latency), (accuracy, wire)) = plt.subplots(2, 2, figsize=(12.5, 8), dpi=130)
        config = summary["config"]
        same = "bit-identical to" if summary["identical"] else "DIFFERENT from"
        figure.suptitle(
            f"{config['ranks']} workers train through an aggregating switch: weights {same} one process",
            fontsize=14,
            y=0.985,
            fontweight="bold",
        )
        figure.text(
            0.5,
            0.94,
            f"handwritten digits, {summary['parameters']:,} parameters, {summary['allreduces']} all-reduces "
            f"of {summary['allreduce_bytes'] / 1024:.0f} KiB; wire: {config['weather'] or 'clear'}; "
            f"seed {config['seed']}",
            ha="center",
            color="#444444",
        )
        loss_curve(loss, series)
        _accuracy(accuracy, summary, series)
        _latency(latency, summary, series)
        wire_rates(wire, series)
        figure.tight_layout(rect=(0, 0, 1, 0.955))
        figure.savefig(path)
        plt.close(figure)


def loss_curve(axes: Axes, series: dict[str, Any]) -> None:
    steps, values = np.array(series["step"]), np.array(series["loss"])
    axes.plot(steps, values, color=BLUE, alpha=0.25, linewidth=0.8, label="minibatch")
    width = max(1, len(values) // 30)
    if len(values) > 2 * width:
        smooth = np.convolve(values, np.ones(width) / width, mode="valid")
        axes.plot(steps[width - 1 :], smooth, color=BLUE, linewidth=2, label=f"mean of {width} steps")
    axes.set(title="Training loss", xlabel="step", ylabel="cross-entropy per sample (nats)", yscale="log")
    axes.legend()


def _accuracy(axes: Axes, summary: dict[str, Any], series: dict[str, Any]) -> None:
    epochs = np.arange(1, len(series["accuracy"]) + 1)
    steps = epochs * series["steps_per_epoch"]
    axes.plot(
        steps, 100 * np.array(series["reference_accuracy"]), "o", markersize=8, markerfacecolor="none",
        color=GREY, label="one process, test set",
    )  # fmt: skip
    axes.plot(
        steps, 100 * np.array(series["train_accuracy"]), color=ORANGE, label="switch, training minibatches"
    )
    axes.plot(steps, 100 * np.array(series["accuracy"]), ".-", color=BLUE, label="switch, test set")
    low = 100 * min(*series["accuracy"], *series["train_accuracy"])
    axes.set(
        title=f"Accuracy: {100 * summary['accuracy']:.1f} % on {summary['test_samples']} held-out images",
        xlabel="step",
        ylabel="right answers (%)",
        ylim=(max(0.0, low - 3), 101),
    )
    axes.legend(loc="lower right")


def _latency(axes: Axes, summary: dict[str, Any], series: dict[str, Any]) -> None:
    milliseconds = 1e3 * np.array(series["slowest_s"])
    axes.scatter(series["step"], milliseconds, s=6, color=BLUE, alpha=0.5, linewidths=0)
    for name, colour in (("p50", GREEN), ("p90", ORANGE), ("p99", RED)):
        value = summary["latency_ms"][name]
        axes.axhline(value, color=colour, linewidth=1.5, label=f"{name} {value:.3g} ms")
    axes.set(title="All-reduce latency", xlabel="step", ylabel="time of the slowest rank (ms)", yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.0, 0.985), ncols=3, handlelength=1, columnspacing=1, borderpad=0
    )


def wire_rates(axes: Axes, series: dict[str, Any]) -> None:
    samples = series["wire"]
    seconds = np.array([sample["at_s"] for sample in samples])
    for name, label, colour in (
        ("retransmits", "packets sent again by the hosts", BLUE),
        ("frames_lost", "frames lost", RED),
        ("reordered", "frames reordered", ORANGE),
        ("duplicated", "frames duplicated", GREEN),
    ):
        totals = np.array([sample[name] for sample in samples])
        rates = np.diff(totals) / np.diff(seconds)
        rates[rates == 0] = np.nan  # a log scale has no place for it
        axes.plot(seconds[1:], rates, ".-", markersize=4, color=colour, label=f"{label}: {totals[-1]:,}")
    axes.set(
        title="What the wire did, and what it cost",
        xlabel="time (s)",
        ylabel="per second",
        yscale="log",
        xlim=(0, None),
    )
    # Room for the totals above the curves.
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.45)
    axes.legend(loc="upper left")
