"""The report as one HTML page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from markupsafe import Markup
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS, INK, page_templates
from inaproto_controller.pictures.svg import look, text_of, within_page
from inaproto_controller.report.records import place_of
from inaproto_controller.report.words import agreement_lines, percent, seconds, summed_by

_SIZES_MAX: Final = 24
"""Sizes in the picture; the table has all."""


def page(found: Mapping[str, Any]) -> str:
    source = resources.files("inaproto_controller.report").joinpath("page.html.j2").read_text("utf-8")
    return (
        page_templates()
        .from_string(source)
        .render(
            found=found,
            seconds=seconds,
            percent=percent,
            summed_by=summed_by,
            agreement=list(agreement_lines(found)),
            pictures={name: Markup(drawing) for name, drawing in _pictures(found).items()},
        )
    )


def _pictures(found: Mapping[str, Any]) -> dict[str, str]:
    """SVG elements by name; one of which there would be nothing to see is empty."""
    drawn = {"share": "", "sizes": ""}
    with look():
        if found["bytes"]:
            drawn["share"] = within_page(text_of(_share(found)), "share")
        if found["measured"] is not None:
            drawn["sizes"] = within_page(text_of(_sizes(found["measured"]["sizes"])), "sizes")
    return drawn


def _share(found: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(10.0, 1.3), layout="constrained")
    axes = figure.subplots()
    left = 0.0
    for one in found["paths"]:
        width = 100 * one["share"]
        colour = COLOURS[place_of(one["path"])[0] % len(COLOURS)]
        label = f"{summed_by(one['path'])}: {percent(one['share'])}"
        axes.barh(0, width, left=left, color=colour, alpha=0.75, label=label)
        left += width
    axes.set_xlim(0, 100)
    axes.set_yticks([])
    axes.set_xlabel("% of the bytes")
    figure.legend(loc="outside upper left", ncols=3)
    return figure


def _sizes(sizes: list[Mapping[str, Any]]) -> Figure:
    shown = sizes[:_SIZES_MAX]
    figure = Figure(figsize=(10.0, 1.0 + 0.42 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for place, one in enumerate(shown):
        told = (("network_mean_s", COLOURS[0], "in the network"), ("hosts_mean_s", COLOURS[1], "by hosts"))
        for row, (key, colour, label) in enumerate(told):
            name = label if not place else None
            axes.barh(place + 0.38 * row - 0.19, 1000 * one[key], 0.36, color=colour, alpha=0.75, label=name)
    axes.set_yticks(range(len(shown)), [f"{one['size']:,} bytes" for one in shown], color=INK)
    axes.invert_yaxis()
    axes.set_xlabel("ms for an all-reduce, mean")
    figure.legend(loc="outside upper left", ncols=2)
    return figure
