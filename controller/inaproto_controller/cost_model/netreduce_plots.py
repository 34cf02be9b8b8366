"""Figure 7 of NetReduce, drawn from its equations, and a ring against a sum in the network, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inaproto_controller.cost_model.netreduce import ALGORITHMS
from inaproto_controller.cost_model.netreduce_simulation import Simulation
from inaproto_controller.cost_model.netreduce_sweeps import MS, Sweep, sweeps
from inaproto_controller.pictures.plot_look import LOOK

FIGURE_7: Final = "netreduce-figure-7.svg"
HEADLINE: Final = "netreduce-ring-against-network.svg"

_LINES: Final = {
    "FR": ("#6a7078", "o"),
    "TA": ("#c62828", "s"),
    "PN": ("#1f5fbf", "D"),
    "PR": ("#2e7d32", "^"),
}


def draw(folder: Path, simulation: Simulation | None = None) -> list[Path]:
    """Writes the pictures into ``folder``; returns their paths. Crosses are simulated, stage by stage."""
    with mpl.rc_context(LOOK):
        paths = [_save(_figure_7(simulation or Simulation()), folder / FIGURE_7)]
        if simulation is not None and simulation.headline:
            paths.append(_save(_headline(simulation), folder / HEADLINE))
    return paths


def _figure_7(simulation: Simulation) -> Figure:
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    for place, sweep in enumerate(sweeps(), start=1):
        _panel(figure.add_subplot(1, 3, place), sweep, simulation)
    if simulation.points:
        figure.axes[0].plot([], [], "x", color="#20242b", markersize=7, label="simulated")
    figure.suptitle("Time of an all-reduce by four algorithms (NetReduce, figure 7)")
    highest = max(axes.get_ylim()[1] for axes in figure.axes)
    for axes in figure.axes:
        axes.set_ylabel("ms for 100 MB")
        axes.set_ylim(0, highest)  # side by side they are compared
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=5
    )
    return figure


def _headline(simulation: Simulation) -> Figure:
    """Lines are the model, marks the simulated runs."""
    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    times, speedups = figure.subplots(1, 2)
    gpus = [one.gpus for one in simulation.headline]
    for label, name, runs in (
        ("ring", "FR", [one.ring for one in simulation.headline]),
        ("sum in the network", "PN", [one.netreduce for one in simulation.headline]),
    ):
        colour, marker = _LINES[name]
        times.plot(gpus, [1e3 * one.model for one in runs], color=colour, label=f"{label}, model")
        simulated = [1e3 * one.overlapped for one in runs]
        times.plot(gpus, simulated, marker, color=colour, markersize=5, label=f"{label}, simulated")
    times.set_title("100 MB, 100 Gbit/s, alpha = 1 us")
    times.set_ylabel("ms")
    times.legend(frameon=False)
    colour, marker = _LINES["PN"]
    model = [one.ring.model / one.netreduce.model for one in simulation.headline]
    speedups.plot(gpus, model, color=colour, label="model")
    simulated = [one.speedup for one in simulation.headline]
    speedups.plot(gpus, simulated, marker, color=colour, markersize=5, label="simulated")
    speedups.set_title("times as fast as the ring")
    speedups.legend(frameon=False, loc="lower right")
    for axes in (times, speedups):
        axes.set_xscale("log", base=2)
        axes.set_xticks(gpus, [str(count) for count in gpus])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("GPUs")
    return figure


def _panel(axes: Axes, sweep: Sweep, simulation: Simulation) -> None:
    values = [float(row.value) for row in sweep.rows]
    for algorithm in ALGORITHMS:
        colour, marker = _LINES[algorithm.name]
        times = [float(row.seconds[algorithm.name] / MS) for row in sweep.rows]
        axes.plot(
            values,
            times,
            color=colour,
            marker=marker,
            markersize=3,
            label=f"{algorithm.name}: {algorithm.title}",
        )
        simulated = [
            (float(row.value), 1e3 * simulation.points[row.cluster][algorithm.name].staged)
            for row in sweep.rows
            if row.cluster in simulation.points
        ]
        for value, time in simulated:
            axes.plot(value, time, "x", color=colour, markersize=7, zorder=3)
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(f"{sweep.panel}: {sweep.fixed}")
    axes.set_xlabel(f"{sweep.varied} ({sweep.unit})")


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, format="svg", metadata={"Date": None})
    return path
