"""Pictures of the report, from its JSON document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from inaproto_controller.pictures.looks import COLOURS, INK, PALE
from inaproto_controller.pictures.svg import look, text_of, within_page
from inaproto_controller.simulate.scenario.measures import BY_KEY

_LINES_MAX: Final = len(COLOURS)
"""Variants in one diagram; the table has all."""
_COMPARED: Final = ("score", "saved_s_mean", "jct_with_queue_s_mean", "fairness")
_OVER_TIME: Final = (
    ("hosts_busy", "hosts busy"),
    ("with_tree", "jobs with a tree"),
    ("groups", "sharing groups"),
    ("queued", "jobs in the queue"),
)


def pictures(found: Mapping[str, Any]) -> dict[str, str]:
    """SVG elements by name; a picture of which there would be nothing to see is left out."""
    variants = found["variants"]
    drawn: dict[str, Callable[[], Figure]] = {"compared": lambda: _compared(variants)}
    if any(variant["moments"] for variant in variants):
        drawn["over-time"] = lambda: _over_time(variants[:_LINES_MAX], found["cluster"]["hosts"])
    if any(variant["by_model"] for variant in variants):
        drawn["by-model"] = lambda: _by_model(found["models"], variants[:_LINES_MAX])
    if any(variant["jobs"] for variant in variants):
        drawn["waiting"] = lambda: _waiting(variants[:_LINES_MAX])
    with look():
        return {name: within_page(text_of(draw()), name) for name, draw in drawn.items()}


def _compared(variants: Sequence[Mapping[str, Any]]) -> Figure:
    figure = Figure(figsize=(10.0, 0.9 + 0.34 * len(variants)), layout="constrained")
    places = range(len(variants))
    for axes, key in zip(figure.subplots(1, len(_COMPARED), sharey=True), _COMPARED, strict=True):
        measure = BY_KEY[key]
        for place, variant, colour in zip(places, variants, cycle(COLOURS), strict=False):
            value = variant["measures"][key]
            if value["mean"] is None:
                axes.text(0, place, " undefined", va="center", color=INK)
                continue
            axes.barh(place, value["mean"], height=0.7, color=colour, alpha=0.75)
            if value["ci95"] is not None:
                axes.errorbar(value["mean"], place, xerr=value["ci95"], color=INK, capsize=2, linewidth=1)
        axes.set_title(measure.label + (f", {measure.unit}" if measure.unit else ""))
    first = figure.axes[0]
    first.set_yticks(list(places), [_short(variant["name"], 36) for variant in variants])
    first.invert_yaxis()
    return figure


def _over_time(variants: Sequence[Mapping[str, Any]], hosts: int) -> Figure:
    figure = Figure(figsize=(10.0, 5.0), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True).flat
    for axes, (key, label) in zip(panels, _OVER_TIME, strict=True):
        for variant, colour in zip(variants, COLOURS, strict=False):
            moments = variant["moments"] or []
            times = [moment["at_s"] for moment in moments]
            values = [moment[key] for moment in moments]
            axes.step(times, values, where="post", color=colour, linewidth=1.1, label=variant["name"])
        axes.set_title(label)
        axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure.axes[0].axhline(hosts, color=PALE, linewidth=1)
    for axes in figure.axes[2:]:
        axes.set_xlabel("s")
    _legend(figure, figure.axes[0])
    return figure


def _by_model(models: Sequence[Mapping[str, Any]], variants: Sequence[Mapping[str, Any]]) -> Figure:
    """Bars for what was saved, a mark for what INA could save a job that has it for itself."""
    figure = Figure(figsize=(10.0, 0.9 + len(models) * (0.2 + 0.16 * len(variants))), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(variants)
    for number, (variant, colour) in enumerate(zip(variants, COLOURS, strict=False)):
        label: str | None = variant["name"]
        for place, model in enumerate(models):
            part = variant["by_model"].get(model["name"])
            share = None if part is None else part["saved_share"]["mean"]
            if share is not None:
                at = place + (number + 0.5) * height - 0.4
                axes.barh(at, 100 * share, height=height * 0.9, color=colour, alpha=0.75, label=label)
                label = None
    for place, model in enumerate(models):
        most = 100 * model["possible_share"]
        axes.plot([most, most], [place - 0.42, place + 0.42], color=INK, linewidth=1.5)
    axes.set_yticks(range(len(models)), [_short(model["name"], 40) for model in models])
    axes.invert_yaxis()
    axes.set_xlabel("% of job time saved; black: the most that INA can")
    _legend(figure, axes)
    return figure


def _waiting(variants: Sequence[Mapping[str, Any]]) -> Figure:
    figure = Figure(figsize=(10.0, 2.8), layout="constrained")
    axes = figure.subplots()
    for variant, colour in zip(variants, COLOURS, strict=False):
        times = sorted(job["finish_s"] - job["arrival_s"] for job in variant["jobs"] or ())
        shares = [100 * (place + 1) / len(times) for place in range(len(times))]
        axes.step(times, shares, where="post", color=colour, linewidth=1.2, label=variant["name"])
    axes.set_ylim(0, 100)
    axes.set_xlim(left=0)
    axes.set_xlabel("s from arrival to the end")
    axes.set_ylabel("% of jobs done by then")
    _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(
            handles,
            [_short(label, 50) for label in labels],
            loc="outside upper left",
            ncols=min(len(handles), 3),
        )


def _short(name: str, length: int) -> str:
    return name if len(name) <= length else name[: length - 3] + "..."
