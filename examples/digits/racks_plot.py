"""The picture of the act ``racks``: how long each sum took, by which path, and what happened to the racks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from examples.digits.plot import BLUE, GREY, ORANGE, RED, STYLE, loss_curve, wire_rates
from examples.digits.racks_watch import CUT, FALLBACK, REBOOT, RETURNED

PATHS = (
    ("switch", "summed in the switches", BLUE),
    ("chain", "summed by the hosts", ORANGE),
    ("halted", "the ring had ended", GREY),
)
MARKS = {CUT: ("link cut", GREY), REBOOT: ("leaf reboots", RED), FALLBACK: ("fallback", ORANGE)}
MARKS |= {RETURNED: ("returned", BLUE)}


def draw(summary: dict[str, Any], series: dict[str, Any], path: Path) -> None:
    """Write the PNG. ``series`` has the lists that are too long for the summary, see ``racks.py``."""
    config = summary["config"]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplot_mosaic(
            [["sums", "sums"], ["loss", "wire"]], figsize=(12.5, 8.5), dpi=130, height_ratios=(1.2, 1)
        )
        same = "bit-identical to" if summary["identical"] else "DIFFERENT from"
        figure.suptitle(
            f"Two racks train while a link flaps and a leaf reboots: weights {same} one process",
            fontsize=14,
            y=0.985,
            fontweight="bold",
        )
        figure.text(
            0.5,
            0.94,
            f"{len(summary['weights_sha256']) - 1} ranks, added as {summary['plan']}; "
            f"{summary['allreduces']} all-reduces of {summary['allreduce_bytes'] / 1024:.0f} KiB; "
            f"wire: {config['weather'] or 'clear'}; seed {config['seed']}",
            ha="center",
            color="#444444",
        )
        _sums(axes["sums"], summary, series)
        loss_curve(axes["loss"], series)
        wire_rates(axes["wire"], series)
        figure.tight_layout(rect=(0, 0, 1, 0.955))
        figure.savefig(path)
        plt.close(figure)


def _sums(axes: Axes, summary: dict[str, Any], series: dict[str, Any]) -> None:
    sums = series["sums"]
    for path, label, colour in PATHS:
        chosen = [each for each in sums if each["path"] == path]
        if chosen:
            axes.scatter(
                np.array([each["at_s"] for each in chosen]),
                np.array([1e3 * each["sum_s"] for each in chosen]),
                s=14,
                color=colour,
                linewidths=0,
                label=f"{label}: {len(chosen)} steps",
            )
    axes.set(
        title=f"Time of each sum; the longest wait was {summary['longest_ms'] / 1e3:.1f} s",
        xlabel="time (s)",
        ylabel="all-reduce of the slowest rank (ms)",
        yscale="log",
    )
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # room for what happened, above the points
    _shade(axes, series["paths"], axes.get_xlim())
    for number, event in enumerate(each for each in summary["events"] if each["kind"] in MARKS):
        text, colour = MARKS[event["kind"]]
        axes.axvline(event["at_s"], color=colour, linewidth=1.2, alpha=0.8)
        axes.annotate(
            text,
            (event["at_s"], 0.97 - 0.055 * (number % 4)),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            color=colour,
            fontsize=9,
            va="top",
        )
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=3, handletextpad=0.2, columnspacing=1.2)


def _shade(axes: Axes, spans: list[dict[str, Any]], limits: tuple[float, float]) -> None:
    """The path that the job had at each time, behind the points."""
    colours = {path: colour for path, _, colour in PATHS}
    ends = [*(span["at_s"] for span in spans[1:]), limits[1]]
    for span, end_s in zip(spans, ends, strict=True):
        axes.axvspan(
            max(span["at_s"], limits[0]), end_s, color=colours[span["path"]], alpha=0.07, linewidth=0
        )
    axes.set_xlim(limits)
