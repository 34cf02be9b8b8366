"""The picture of ``inaproto bench congestion``: rates and queue of the first bottleneck over time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from inaproto_controller.pictures.looks import COLOURS, INK
from inaproto_controller.pictures.plot_look import LOOK

_COLUMNS = ((True, "with DCQCN"), (False, "without"))


def drawing(report: Mapping[str, Any], kind: str = "png") -> bytes:
    """A PNG file, or another ``kind``: a row for each scenario, with and without DCQCN."""
    rows: dict[str, dict[bool, Mapping[str, Any]]] = {}
    for row in report["rows"]:
        rows.setdefault(row["scenario"], {})[row["dcqcn"]] = row
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(10.0, 2.3 * len(rows)), layout="constrained")
        panels = figure.subplots(len(rows), 2, squeeze=False, sharex=True)
        for axes_of_row, (name, found) in zip(panels, rows.items(), strict=True):
            for axes, (has_dcqcn, label) in zip(axes_of_row, _COLUMNS, strict=True):
                axes.set_title(f"{name}, {label}", fontsize=9)
                if has_dcqcn in found:
                    _panel(axes, found[has_dcqcn], report["config"])
        panels[-1][0].set_xlabel("ms")
        panels[-1][1].set_xlabel("ms")
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=110, metadata={"Software": None} if kind == "png" else None)
    return out.getvalue()


def _panel(axes: Any, row: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    curve = row["curve"]
    axes.plot(curve["ms"], curve["all_gbit_s"], color=COLOURS[0], linewidth=1.2)
    if any(curve["compared_gbit_s"]):
        axes.plot(curve["ms"], curve["compared_gbit_s"], color=COLOURS[1], linewidth=1.2)
        flows = 1 + row["others"] if row["kind"] in ("plain", "shared") else 1
        axes.axhline(config["rate_bps"] / 1e9 / flows, color=INK, linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.1 * config["rate_bps"] / 1e9)
    axes.set_ylabel("Gbit/s")
    queue = axes.twinx()
    queue.fill_between(
        curve["ms"], _kilobytes(curve["queue_bytes"]), color=COLOURS[6], alpha=0.35, linewidth=0
    )
    queue.set_ylabel("queue, KB")
    queue.set_ylim(bottom=0)


def _kilobytes(values: Sequence[float]) -> list[float]:
    return [value / 1000 for value in values]
