"""What a campaign found, as JSON, and as a table from that.

Times of a job are told in three ways, over the kills of nobody's controller (``decoy``) and over the others
(``kills``): how long training stood still (``stop``), which the lease of a seat should bound; the same for
the whole time between two all-reduces (``gap``); and how many stops were longer than that lease.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table

from inaproto_hil import environment
from inaproto_hil.crashes.campaign import Findings, Phase
from inaproto_hil.crashes.stops import row

VERSION: Final = 1
LONGEST: Final = 10
ALL: Final = "all"


def document(found: Findings) -> dict[str, Any]:
    """The whole report for ``json.dump``."""
    plan, lease_s = found.plan, found.seat_lease_s
    return {
        "version": VERSION,
        "benchmark": "crashes",
        "config": {**asdict(plan), "database": "postgresql" if plan.database else ""},
        "env": environment.describe(),
        "wall_s": found.wall_s,
        "controller_starts_in_s": found.start_s,
        "kills": found.kills,
        "seen": found.seen,
        "seat_lease_s": lease_s,
        "phases": [asdict(phase) | {"seconds": phase.ended - phase.began} for phase in found.phases],
        "training": [
            training
            for phase in found.phases
            for training in _training(found, phase)
            if training["stop"]["count"]
        ],
        "longest_stops": _longest(found),
        "training_stops": verdict(found),
        "violations": [asdict(one) | {"rerun": rerun(found, one.kill)} for one in found.violations],
    }


def _model(job: str) -> str:
    return job.rpartition(".")[0]


def _within(samples: dict[str, list[tuple[float, float]]], phase: Phase, model: str) -> list[float]:
    """Those that ended in that phase."""
    return [
        length
        for job, found in samples.items()
        if model in (ALL, _model(job))
        for began, length in found
        if phase.began <= began + length <= phase.ended
    ]


def _training(found: Findings, phase: Phase) -> list[dict[str, Any]]:
    models = dict.fromkeys(map(_model, found.stops))
    rows = []
    for model in (*models, ALL):
        stops = _within(found.stops, phase, model)
        rows.append(
            {
                "phase": phase.name,
                "job": model,
                "stop": row(stops),
                "gap": row(_within(found.gaps, phase, model)),
                "stops_beyond_lease": sum(stop > found.seat_lease_s for stop in stops),
            }
        )
    return rows


def _longest(found: Findings) -> list[dict[str, Any]]:
    """Of the phase of kills, with the last kill before the end of each."""
    numbers, times = [one for one, _ in found.kill_times], [at for _, at in found.kill_times]
    ended = found.phases[-1].ended if found.phases else 0.0
    stops = sorted(
        (
            (length, began, job)
            for job, its in found.stops.items()
            for began, length in its
            if times and times[0] <= began + length <= ended
        ),
        reverse=True,
    )
    return [
        {
            "job": job,
            "stop_s": length,
            "kill": numbers[bisect_right(times, began + length) - 1],
            "began_after_it_s": began - times[bisect_right(times, began + length) - 1],
        }
        for length, began, job in stops[:LONGEST]
    ]


def verdict(found: Findings) -> str:
    """``yes``: no stop was longer than the lease. ``as without kills``: some were, and as long without."""
    longest = {phase.name: max(_within(found.stops, phase, ALL), default=0.0) for phase in found.phases}
    if "kills" not in longest or not found.seat_lease_s:
        return "not judged"
    if longest["kills"] <= found.seat_lease_s:
        return "yes"
    return "as without kills" if longest["kills"] <= longest.get("decoy", 0.0) else "no"


def rerun(found: Findings, kill: int) -> str:
    """What came before a kill is not the same in another run; some of it comes with it."""
    store = " --store postgresql" if found.plan.database else ""
    first = max(found.plan.first, kill - 3)
    return f"inaproto crashes{store} --seed {found.plan.seed} --kills {first}:{kill + 1} --baseline 0"


def show(report: dict[str, Any], console: Console) -> None:
    console.print(_tables(report))


def _tables(report: dict[str, Any]) -> RenderableType:
    times = Table(box=None, pad_edge=False, title="seconds", title_justify="left")
    columns = ("", "job", "stops", "p50", "p99", "p99.9", "max", "> lease", "gaps p50", "max")
    for name in columns:
        times.add_column(name, justify="left" if name in ("", "job") else "right", no_wrap=True)
    for one in report["training"]:
        stop, gap = one["stop"], one["gap"]
        figures = (stop["p50"], stop["p99"], stop["p99.9"], stop["max"])
        times.add_row(
            one["phase"],
            one["job"],
            f"{stop['count']:,}",
            *map(_s, figures),
            str(one["stops_beyond_lease"]),
            _s(gap["p50"]),
            _s(gap["max"]),
        )
    facts = Table(show_header=False, box=None, pad_edge=False)
    for phase in report["phases"]:
        said = ", ".join(f"{count} by {path}" for path, count in sorted(phase["paths"].items()))
        facts.add_row(
            phase["name"],
            f"{phase['kills']} in {phase['seconds']:.0f} s; {said}; "
            f"{phase['recoveries']} rings ended in the middle (all hosts)",
        )
    facts.add_row("aimed at", ", ".join(f"{name} {count}" for name, count in report["kills"].items()))
    facts.add_row("seen", ", ".join(f"{count} {name}" for name, count in report["seen"].items()))
    lease = (
        f"lease of a seat {report['seat_lease_s']:g} s, of a host {report['config']['lease_ms'] / 1000:g} s"
    )
    facts.add_row("training", f"stops no longer than the lease: {report['training_stops']} ({lease})")
    for one in report["longest_stops"][:3]:
        after = f"{one['began_after_it_s']:.3f} s after kill {one['kill']}"
        facts.add_row("", f"{one['stop_s']:.3f} s of {one['job']}, begun {after}")
    return Group(times, facts)


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
