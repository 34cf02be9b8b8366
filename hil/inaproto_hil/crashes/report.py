"""What a campaign found, as JSON, and as a table from that.

Times of a job are told in three ways, over the kills of nobody's controller (``decoy``) and over the others
(``kills``): how long training stood still (``stop``), which the lease of a seat should bound; the same for
the whole time between two all-reduces (``gap``); and how many stops were longer than the lease of a seat as
it is configured, as it was in force then (:mod:`inaproto_hil.crashes.leases`), and than the lease of a host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.table import Table

from inaproto_hil.crashes.campaign import Findings, Phase
from inaproto_hil.crashes.leases import SEAT_LEASE_S
from inaproto_hil.crashes.moments import NOT_SEEN, Aim
from inaproto_hil.crashes.stops import row
from inaproto_hil.rigs import environment

VERSION: Final = 2
LONGEST: Final = 10
ALL: Final = "all"
SEAT: Final = "lease of a seat"
SEAT_THEN: Final = "lease of a seat in force then"
HOST: Final = "lease of a host"
TIMES: Final = (1, 2, 4, 8)
"""Where kills cost few stops, but long ones, many short ones of the machine's would hide them."""
KILLS_A_TURN: Final = 10
"""A campaign sees a turn and a decision for so many kills at least, or is none."""
AIMS_JUDGED: Final = 10
"""So many kills that are aimed at something say how often it is seen."""

Samples = Mapping[str, Sequence[tuple[float, float]]]
"""Stops by job: when each began, and how long it was, seconds."""


class Stop(NamedTuple):
    job: str
    began: float
    length: float


def document(found: Findings) -> dict[str, Any]:
    """The whole report for ``json.dump``."""
    plan = found.plan
    return {
        "version": VERSION,
        "benchmark": "crashes",
        "config": {**asdict(plan), "database": "postgresql" if plan.database else ""},
        "env": environment.describe(),
        "wall_s": found.wall_s,
        "controller_starts_in_s": found.start_s,
        "kills": found.kills,
        "seen": found.seen,
        "leases": {
            SEAT: SEAT_LEASE_S,
            f"{SEAT}, longest told": found.leases.longest_s,
            HOST: plan.lease_ms / 1000,
        },
        "phases": [asdict(phase) | {"seconds": phase.ended - phase.began} for phase in found.phases],
        "training": [
            training
            for phase in found.phases
            for training in _training(found, phase)
            if training["stop"]["count"]
        ],
        "longest_stops": _longest(found),
        "training_stops": verdict(found),
        "judged_by": SEAT_THEN,
        "too_little": shortfalls(found),
        "violations": [asdict(one) | {"rerun": rerun(found, one.kill)} for one in found.violations],
    }


def _model(job: str) -> str:
    return job.rpartition(".")[0]


def _within(samples: Samples, phase: Phase, model: str = ALL) -> list[Stop]:
    """Those that ended in that phase."""
    return [
        Stop(job, began, length)
        for job, found in samples.items()
        if model in (ALL, _model(job))
        for began, length in found
        if phase.began <= began + length <= phase.ended
    ]


def _beyond(found: Findings, stops: Sequence[Stop]) -> dict[str, int]:
    """How many were longer than each lease."""
    then = [found.leases.in_force(one.job, one.began, one.began + one.length) for one in stops]
    long = {
        f"{times} times the {SEAT_THEN}" if times > 1 else SEAT_THEN: sum(
            one.length > times * lease_s for one, lease_s in zip(stops, then, strict=True)
        )
        for times in TIMES
    }
    host = sum(one.length > found.plan.lease_ms / 1000 for one in stops)
    return {SEAT: sum(one.length > SEAT_LEASE_S for one in stops), **long, HOST: host}


def _training(found: Findings, phase: Phase) -> list[dict[str, Any]]:
    models = dict.fromkeys(map(_model, found.stops))
    rows = []
    for model in (*models, ALL):
        stops = _within(found.stops, phase, model)
        rows.append(
            {
                "phase": phase.name,
                "job": model,
                "stop": row(one.length for one in stops),
                "gap": row(one.length for one in _within(found.gaps, phase, model)),
                "stops_beyond": _beyond(found, stops),
            }
        )
    return rows


def _longest(found: Findings) -> list[dict[str, Any]]:
    """The longest stops in the phase of kills, with the last kill before the end of each."""
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
    """Judge stops of training in the phase of kills by the lease of the job's seats that was in force then.

    ``yes``: none was longer. ``as without kills``: some were, but of those without kills no smaller share
    was, nor was longer than twice that lease, or as in :data:`TIMES`, or than the lease of a host.
    """
    shares: dict[str, dict[str, float]] = {}
    for phase in found.phases:
        stops = _within(found.stops, phase)
        if stops:
            beyond = _beyond(found, stops)
            shares[phase.name] = {lease: count / len(stops) for lease, count in beyond.items()}
    if "kills" not in shares:
        return "not judged"
    kills, decoy = shares["kills"], shares.get("decoy")
    if not kills[SEAT_THEN]:
        return "yes"
    is_alike = decoy is not None and all(kills[lease] <= decoy[lease] for lease in kills if lease != SEAT)
    return "as without kills" if is_alike else "no"


def shortfalls(found: Findings) -> list[str]:
    """What was hardly seen: controllers that have nothing to do break no promise, and prove nothing."""
    kills = found.plan.stop - found.plan.first
    least = {name: max(1, kills // KILLS_A_TURN) for name in ("turns", "decisions")}
    least |= dict.fromkeys(("welcomes", "rounds", "wishes of trees", "leases", "promises checked"), 1)
    said = [
        f"{found.seen.get(name, 0)} {name} were seen, not {count}"
        for name, count in least.items()
        if found.seen.get(name, 0) < count
    ]
    if not found.paths.get("switch"):
        said.append("no all-reduce went through the switches")
    missed = sum(count for aim, count in found.kills.items() if aim.endswith(NOT_SEEN))
    aimed = sum(count for aim, count in found.kills.items() if aim not in (Aim.ANY, Aim.AT_WORK))
    if aimed >= AIMS_JUDGED and 2 * missed > aimed:
        said.append(f"of {aimed} kills that were aimed at something {missed} did not see it")
    return said


def rerun(found: Findings, kill: int) -> str:
    """What came before a kill is not the same in another run; some of it comes with it."""
    store = " --store postgresql" if found.plan.database else ""
    first = max(found.plan.first, kill - 3)
    return f"inaproto crashes{store} --seed {found.plan.seed} --kills {first}:{kill + 1} --baseline 0"


def show(report: dict[str, Any], console: Console) -> None:
    console.print(_tables(report))


def _tables(report: dict[str, Any]) -> RenderableType:
    times = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title="seconds", title_justify="left")
    leases = report["leases"]
    columns = ("", "job", "stops", "p50", "p99", "p99.9", "max", f">{leases[SEAT]:g}", ">then")
    for name in (*columns, f">{leases[HOST]:g}", "gap", "max"):
        times.add_column(name, justify="left" if name in ("", "job") else "right", no_wrap=True)
    for one in report["training"]:
        stop, gap = one["stop"], one["gap"]
        figures = (stop["p50"], stop["p99"], stop["p99.9"], stop["max"])
        times.add_row(
            one["phase"],
            one["job"],
            f"{stop['count']:,}",
            *map(_s, figures),
            *(f"{one['stops_beyond'][lease]:,}" for lease in (SEAT, SEAT_THEN, HOST)),
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
    facts.add_row("training", _judged(report))
    for one in report["longest_stops"][:3]:
        after = f"{one['began_after_it_s']:.3f} s after kill {one['kill']}"
        facts.add_row("", f"{one['stop_s']:.3f} s of {one['job']}, begun {after}")
    return Group(times, facts)


def _judged(report: dict[str, Any]) -> str:
    """The leases to judge by, and how many stops were longer than each."""
    leases = report["leases"]
    longest_s = leases[f"{SEAT}, longest told"]
    said = f"stops no longer than the lease of the job's seats in force then: {report['training_stops']}"
    whose = f"lease of a seat {leases[SEAT]:g} s, while votes were late up to {longest_s:g} s"
    lines = [said, f"{whose}; of a host {leases[HOST]:g} s"]
    for one in report["training"]:
        if one["job"] == ALL:
            beyond, count = one["stops_beyond"], one["stop"]["count"]
            lines.append(
                f"{one['phase']}: of {count:,} stops {beyond[SEAT_THEN]:,} were longer than that, "
                f"{beyond[SEAT]:,} than {leases[SEAT]:g} s, {beyond[HOST]:,} than {leases[HOST]:g} s"
            )
    return "\n".join(lines)


def _s(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
