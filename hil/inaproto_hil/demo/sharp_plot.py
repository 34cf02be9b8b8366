"""The picture of ``inaproto demo sharp``: how long each all-reduce took, by which way, and what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

COLOURS: Final = {"sharp": "tab:green", "switch": "tab:blue", "chain": "tab:orange", "overlay": "tab:red"}
INCHES: Final = (11.0, 2.2)
"""Width of the picture, and height of each job's part."""


def draw(found: dict[str, Any], path: Path) -> None:
    """``found``: the act's JSON."""
    jobs = found["seen"]
    figure = Figure(figsize=(INCHES[0], INCHES[1] * len(jobs) + 0.8), layout="constrained")
    parts = figure.subplots(len(jobs), 1, sharex=True, squeeze=False)[:, 0]
    for part, (job, seen) in zip(parts, jobs.items(), strict=True):
        for way in sorted({one[2] for one in seen}):
            its = [(at, seconds * 1e3) for at, seconds, by in seen if by == way]
            part.plot(*zip(*its, strict=True), ".", ms=3, color=COLOURS.get(way, "grey"), label=f"by {way}")
        for number, event in enumerate(found["events"], start=1):
            part.axvline(event["at_s"], color="0.8", lw=0.8, zorder=0)
            if part is parts[0]:
                part.annotate(
                    str(number),
                    (event["at_s"], 1.02 + 0.08 * (number % 3)),
                    xycoords=("data", "axes fraction"),
                    ha="center",
                )
        part.set_yscale("log")
        part.set_ylabel(f"job {job}\nall-reduce (ms)")
        part.legend(loc="upper left", markerscale=3, fontsize="small")
    parts[-1].set_xlabel("seconds")
    words = "\n".join(f"{number}  {event['text']}" for number, event in enumerate(found["events"], start=1))
    figure.text(0.01, -0.02, words, va="top", fontsize="small", family="monospace")
    figure.savefig(path, dpi=110, bbox_inches="tight")
