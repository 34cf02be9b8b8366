"""The pictures of the report on MINA: drawn from its document, as SVG files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from matplotlib.axes import Axes

from inaproto_hil.evaluation.drawing import svg_of

_OURS: Final = "#1f5fbf"
_PAPER: Final = "#20242b"
_FAIR: Final = "#c62828"
_COLOURS: Final = {"least-fragments": _OURS, "first": _FAIR, "random": "#6a7078"}

Rows = Sequence[Mapping[str, Any]]


def drawing(figure: Mapping[str, Any]) -> str | None:
    """An SVG file; None for a figure that is better read as a table."""
    draw = _PICTURES.get(figure["key"])
    return None if draw is None else svg_of(lambda axes: draw(axes, figure["rows"]))


def _dots(axes: Axes, rows: Rows, labels: Sequence[str]) -> None:
    """Paper's, ours with its confidence interval, and what exclusive trees score."""
    places = range(len(rows))
    axes.plot(places, [row["paper"] for row in rows], "o", color=_PAPER, mfc="none", ms=8, label="paper")
    widths = [row["confidence_95"] or 0.0 for row in rows]
    ours = [row["ours"] for row in rows]
    axes.errorbar(places, ours, widths, fmt="o", color=_OURS, ms=4, capsize=3, label="ours, 95 % interval")
    fair = [row["beside"]["exclusive_score"] for row in rows]
    axes.plot(places, fair, "_", color=_FAIR, ms=14, label="trees that nobody shares")
    axes.set_xticks(places, labels)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("INA efficiency score")
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _overall(axes: Axes, rows: Rows) -> None:
    found = {
        match: row for row in rows if (match := re.fullmatch(r"(MINA|baseline), trace (\d+)", row["what"]))
    }
    _dots(axes, list(found.values()), [match[2] for match in found])
    axes.set_xlabel("stream of requests: MINA on the left, its baseline on the right")


def _table(axes: Axes, rows: Rows) -> None:
    found = {match[1]: row for row in rows if (match := re.match(r"score, (\d+)", row["what"]))}
    _dots(axes, list(found.values()), list(found))
    axes.set_xlabel("placement, trees, sharing: the paper's if 1")


def _candidates(axes: Axes, rows: Rows) -> None:
    _dots(axes, rows, [row["what"].removeprefix("k = ") for row in rows])
    axes.set_xlabel("candidate trees of a job")


def _uplinks(axes: Axes, rows: Rows) -> None:
    lines: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for row in rows:
        match = re.fullmatch(r"8:(\d+), ([a-z-]+)", row["what"])
        if match:
            lines.setdefault(match[2], []).append((int(match[1]), row))
    for placement, points in lines.items():
        uplinks = [uplink for uplink, _ in points]
        colour = _COLOURS[placement]
        axes.plot(
            uplinks, [row["paper"] for _, row in points], "--", color=colour, label=f"{placement}, paper"
        )
        widths = [row["confidence_95"] or 0.0 for _, row in points]
        ours = [row["ours"] for _, row in points]
        axes.errorbar(uplinks, ours, widths, color=colour, marker="o", ms=4, capsize=3, label=placement)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("uplinks for 8 links down")
    axes.set_ylabel("INA efficiency score")
    axes.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _pairs(axes: Axes, rows: Rows) -> None:
    matches = ((re.fullmatch(r"(\S+) with (\S+)", row["what"]), row["ours"]) for row in rows)
    found = {match.group(1, 2): score for match, score in matches if match}
    models = list(dict.fromkeys(one for one, _ in found))
    matrix = [[found[one, other] for other in models] for one in models]
    axes.imshow(matrix, vmin=0.5, vmax=1.0, cmap="Blues", aspect="auto")
    for down, values in enumerate(matrix):
        for across, value in enumerate(values):
            colour = "white" if value > 0.85 else _PAPER
            axes.text(across, down, f"{value:.3f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(len(models)), models)
    axes.set_yticks(range(len(models)), models)
    axes.set_title("score of two jobs, ours")


_PICTURES: Final[Mapping[str, Callable[[Axes, Rows], None]]] = {
    "11": _overall,
    "12": _pairs,
    "13": _uplinks,
    "14": _candidates,
    "table-1": _table,
}
