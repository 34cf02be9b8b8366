"""Pictures of a campaign, as data URIs for its page."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inaproto.sim.campaign.kinds import WORD_KINDS, WorldKind
from inaproto.sim.campaign.marks import declared_of
from inaproto.sim.frames.draw.swarm import FaultKind
from inaproto_hil.soak.tally import Tally, bin_start

_BLUE = "#1f5fbf"
_RED = "#c62828"
_LOOK: Any = {
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "svg.fonttype": "path",
    "svg.hashsalt": "inaproto",
}


def pictures(tally: Tally, kind: WorldKind) -> Iterator[tuple[str, str]]:
    """(name, data URI) of each picture that has something to show."""
    if not tally.seeds:
        return
    with mpl.rc_context(_LOOK):
        yield "core steps of a world", _histogram(tally.steps_bins, "core steps of a world", "core steps")
        yield (
            "virtual time of a world",
            _histogram(tally.virtual_bins, "virtual time of a world", "milliseconds"),
        )
        yield "speed", _speed(tally)
        yield "faults and weather", _faults(tally, kind)
        yield "marks", _marks(tally, kind)


def _uri(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _axes(height: float = 3.0) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.0, height), layout="constrained")
    axes: Axes = figure.add_subplot()
    return figure, axes


def _histogram(bins: Mapping[str, int], title: str, label: str) -> str:
    figure, axes = _axes()
    starts = sorted(map(int, bins))
    lefts = [bin_start(number) for number in starts]
    widths = [bin_start(number + 1) - bin_start(number) for number in starts]
    axes.bar(
        lefts, [bins[str(number)] for number in starts], widths, align="edge", color=_BLUE, edgecolor="white"
    )
    axes.set_xscale("log")
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_ylabel("worlds")
    return _uri(figure)


def _speed(tally: Tally) -> str:
    figure, axes = _axes()
    rates = [steps / seconds / 1000 for _, steps, seconds in tally.blocks if seconds > 0]
    thin = max(1, math.ceil(len(rates) / 1000))
    firsts = [first for first, _, seconds in tally.blocks if seconds > 0]
    axes.plot(firsts[::thin], rates[::thin], ".", markersize=4, color=_BLUE, alpha=0.6)
    median = tally.steps_per_s_median
    if median is not None:
        axes.axhline(median / 1000, color="#20242b", linewidth=1, label=f"median {median / 1000:.0f}")
        axes.legend(frameon=False)
    axes.set_ylim(bottom=0)
    axes.set_title("speed of each block of seeds")
    axes.set_xlabel("first seed of the block")
    axes.set_ylabel("1000 core steps/s per core")
    return _uri(figure)


def _faults(tally: Tally, kind: WorldKind) -> str:
    if kind in WORD_KINDS:
        names = [name for name in declared_of(kind) if name.startswith(("fault: ", "a message ", "a word "))]
        return _bars(tally, names, "what befell the worlds", "seeds that met it", log=False)
    names = [f"fault: {fault}" for fault in FaultKind]
    names += sorted(name for name in tally.marks if name.startswith("fault: trunk "))
    names += sorted(name for name in tally.marks if name.startswith("weather: "))
    return _bars(tally, names, "what befell the worlds", "seeds that met it", log=False)


def _marks(tally: Tally, kind: WorldKind) -> str:
    names = sorted(declared_of(kind), key=lambda name: tally.marks.get(name, [0, 0])[0])
    return _bars(tally, names[::-1], "declared marks", "seeds that met it (red: none)", log=True)


def _bars(tally: Tally, names: list[str], title: str, label: str, *, log: bool) -> str:
    figure, axes = _axes(0.9 + 0.2 * len(names))
    seeds = [tally.marks.get(name, [0, 0])[0] for name in names]
    rows = list(range(len(names)))[::-1]
    axes.barh(rows, seeds, color=_BLUE, height=0.7)
    axes.set_yticks(rows, [textwrap.shorten(name, 64) for name in names])
    for tick, count in zip(axes.get_yticklabels(), seeds, strict=True):
        tick.set_color("#20242b" if count else _RED)
    for row, count in zip(rows, seeds, strict=True):
        axes.annotate(
            f" {count:,}", (max(count, 1 if log else 0), row), va="center", fontsize=8, color="#6a7078"
        )
    if log:
        axes.set_xscale("log")
        axes.set_xlim(left=0.9)
    axes.margins(x=0.1, y=0.01)
    axes.set_title(title)
    axes.set_xlabel(label)
    return _uri(figure)
