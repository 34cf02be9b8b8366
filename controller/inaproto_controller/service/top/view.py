"""A snapshot and its rates as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inaproto.daemon.observe.status_tables import (
    fallback_note,
    recovery_note,
    ring_names,
    switches_of,
    whose_turn,
)
from inaproto.plain_cells import plain
from inaproto_controller.service.top.snapshot import Snapshot, switch_name

JOBS_SHOWN: Final = 30
NOTES_SHOWN: Final = 10
SILENT_SHOWN: Final = 8
UNDEFINED: Final = "-"
_SCALES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Further(NamedTuple):
    """Commands that show all of what there is no room for."""

    jobs: str
    notes: str


def show(snapshot: Snapshot, rates: Mapping[str, Any], further: Further) -> RenderableType:
    report = snapshot.report
    parts: list[RenderableType] = []
    switches = switches_of(report)
    if snapshot.controller is not None:
        parts += _controller(snapshot.controller, snapshot.jobs, further.jobs)
    if report.hosts:
        parts.append(_hosts(report.hosts, rates["hosts"]))
    if switches:
        parts.append(_switches(switches, rates["switches"]))
    parts += _pools(switches, ring_names(report))
    parts += _notes(switches, report.hosts, further.notes)
    parts += [Text(problem, style="yellow") for problem in report.problems]
    return Group(*parts) if parts else Text("nobody answers")


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*plain(*row))
    return table


def _controller(
    status: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], further: str
) -> Iterable[RenderableType]:
    role = f"leads, term {status['term']}" if status["leads"] else f"does not lead: {status['problem']}"
    presences = [agent["presence"] for agent in status["agents"].values()]
    yield Text(f"controller {role}; {presences.count('up')} of {len(presences)} hosts and switches report")
    silent = [name for name, agent in status["agents"].items() if agent["presence"] != "up"]
    if silent and status["leads"]:
        more = f" and {len(silent) - SILENT_SHOWN} more" if len(silent) > SILENT_SHOWN else ""
        yield Text(f"  not heard of: {', '.join(silent[:SILENT_SHOWN])}{more}", style="yellow")
    history = status["history"]
    aborts = ", ".join(
        f"{count} {why.replace('_', ' ')}" for why, count in history["aborts"].items() if count
    )
    yield Text(
        f"  rounds {history['rounds']['committed']} committed, aborted: {aborts or 'none'}; "
        f"turns {history['turns']}, migrations {history['migrations']}, fallbacks {history['fallbacks']}"
    )
    if status.get("sharing"):
        columns = ("pool", "its turn", "epoch", "from", "next", "round", "turns of jobs")
        yield _table("turns", columns, map(_group, status["sharing"]))
    if jobs:
        yield _table("jobs", ("number", "job", "state", "hosts", "tree", "why"), map(_job, jobs[:JOBS_SHOWN]))
    if len(jobs) > JOBS_SHOWN:
        yield Text(f"  and {len(jobs) - JOBS_SHOWN} more: {further}")


def _group(group: Mapping[str, Any]) -> tuple[object, ...]:
    """Group of jobs that share a pool."""
    turns, missing = group["turns"], len(group["missing"])
    jobs = (f"{name} {job['turns']}" for name, job in group["jobs"].items())
    return (
        group["pool"],
        ", ".join(str(one["job"]) for one in turns) or "nobody's",
        ", ".join(str(one["epoch"]) for one in turns) or UNDEFINED,
        ", ".join(str(one["first"]) for one in turns) or UNDEFINED,
        group["wanted"] or UNDEFINED,
        group["phase"] + (f", {missing} missing" if missing else ""),
        ", ".join(jobs),
    )


def _job(job: Mapping[str, Any]) -> tuple[object, ...]:
    hosts = len(job["hosts"]) or f"wants {job['hosts_wanted']}"
    tree = job["tree"]["root"] if job["tree"] else UNDEFINED
    return job["number"], job["name"], job["state"], hosts, tree, job["why"]


def _hosts(hosts: Sequence[Mapping[str, Any]], rates: Mapping[str, Any]) -> Table:
    columns = ("host", "switch", "ranks", "ops/s", "B/s", "queued", "waits for", "recoveries")
    return _table("hosts", columns, (_host(host, rates.get(str(host["name"]))) for host in hosts))


def _host(host: Mapping[str, Any], rates: Mapping[str, Any] | None) -> tuple[object, ...]:
    rings = host["rings"]
    waits = ", ".join(f"{ring['job']}: rank {rank}" for ring in rings for rank in ring["waiting_for"])
    return (
        host["name"],
        "connected" if host["switch"]["connected"] else "away",
        sum(len(ring["ranks"]) for ring in rings),
        _by_path(rates and rates["operations_per_s"]),
        _by_path(rates and rates["bytes_per_s"]),
        sum(ring.get("operations_queued", 0) for ring in rings),
        waits or UNDEFINED,
        host["totals"]["recoveries"] or UNDEFINED,
    )


def _by_path(rates: Mapping[str, float] | None) -> str:
    if rates is None:
        return UNDEFINED
    return ", ".join(f"{path} {scaled(rate)}" for path, rate in rates.items() if rate) or "0"


def _switches(switches: Sequence[Mapping[str, Any]], rates: Mapping[str, Any]) -> Table:
    columns = ("switch", "hosts", "jobs", "summed/s", "in B/s", "out B/s", "lost/s", "turns/s", "memory")
    return _table("switches", columns, (_switch(one, rates.get(switch_name(one), {})) for one in switches))


def _switch(switch: Mapping[str, Any], rates: Mapping[str, float]) -> tuple[object, ...]:
    keys = ("summed_per_s", "bytes_in_per_s", "bytes_out_per_s", "lost_per_s", "turns_per_s")
    told = (scaled(rates[key]) if key in rates else UNDEFINED for key in keys)
    memory = scaled(switch["accelerator"]["memory_bytes"])
    return switch_name(switch), len(switch["hosts"]), len(switch["jobs"]), *told, memory


def _pools(switches: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> Iterable[RenderableType]:
    """``names``: of rings."""
    rows = [
        (
            switch_name(switch),
            name,
            len(pool["rings"]),
            *whose_turn(pool, names),
            *(pool[count] for count in ("takeovers", "conflicts", "stale")),
        )
        for switch in switches
        for name, pool in switch["accelerator"].get("pools", {}).items()
    ]
    if rows:
        columns = ("switch", "pool", "jobs", "its turn", "epoch", "turns", "conflicts", "stale")
        yield _table("pools", columns, rows)


def _notes(
    switches: Sequence[Mapping[str, Any]], hosts: Sequence[Mapping[str, Any]], further: str
) -> Iterable[RenderableType]:
    """Fallbacks and recoveries with their reasons, and what does not move."""
    jobs = [job for switch in switches for job in switch["jobs"]]
    notes = [note for job in jobs for note in (fallback_note(job), recovery_note(job)) if note]
    notes += [
        f"{host['name']}, {ring['job']}: {ring['stall']}"
        for host in hosts
        for ring in host["rings"]
        if ring["stall"]
    ]
    yield from (Text(note) for note in notes[:NOTES_SHOWN])
    if len(notes) > NOTES_SHOWN:
        yield Text(f"and {len(notes) - NOTES_SHOWN} more: {further}")


def scaled(value: float) -> str:
    """Number with three digits: 12.3M."""
    for scale, letter in _SCALES:
        if value >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"
