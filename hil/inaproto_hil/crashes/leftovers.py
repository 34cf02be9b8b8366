"""After all jobs are over: what any part of the cluster still has, each part asked, and the store read."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

_TABLES: Final = {
    "slots that are taken": "SELECT agent, port, number FROM slots",
    "grants": "SELECT number, agent FROM grants",
    "live jobs": "SELECT name FROM jobs WHERE is_live = 1",
}


def of_controller(status: Mapping[str, Any]) -> list[str]:
    """What is left over at the controller, by its status."""
    found = [] if status["leads"] else [f"it does not lead: {status['problem']}"]
    if status["grants"]:
        found.append(f"{status['grants']} grants")
    found += [f"{count} {state} jobs" for state, count in status["jobs"].items() if state in _LIVE and count]
    for name, agent in status["agents"].items():
        if agent["presence"] != "up" or agent["holds"]:
            found.append(f"{name} is {agent['presence']} and holds {agent['holds']}")
    for group in status["sharing"]:
        found += [f"pool {group['pool']}: epoch {turn['epoch']} of {turn['job']}" for turn in group["turns"]]
        found += [f"pool {group['pool']}: job {job}" for job in group["jobs"]]
    for name, switch in status["trees"].get("switches", {}).items():
        found += [f"{name} lends a slot to job {lease['job']}" for lease in switch["lent"]]
    found += [f"a tree of job {job}" for job in status["trees"].get("jobs", {})]
    return found


_LIVE: Final = ("submitted", "queued", "placed", "running")


def of_host(status: Mapping[str, Any]) -> list[str]:
    controller = status["controller"]
    found = [f"{controller['grants']} grants"] if controller["grants"] else []
    found += [f"a seat of {seat['job']}" for seat in controller["turns"]]
    found += [f"a ring of {ring.get('job', '?')}" for ring in status["rings"]]
    others = status["clients"] - 1  # who asks is one of them
    return [*found, *([f"{others} clients"] if others else [])]


def of_switch(status: Mapping[str, Any]) -> list[str]:
    accelerator = status["accelerator"]
    controller = status["controller"]
    found = [f"{controller['grants']} grants"] if controller["grants"] else []
    found += [f"a slot lent to job {lease['job']}" for lease in controller["slots"]["held"]]
    found += [f"ring {ring}" for ring in accelerator["rings"]]
    found += [f"pool {pool}" for pool in accelerator["pools"]]
    used = accelerator.get("memory_bytes", 0)
    return [*found, *([f"{used} bytes of memory"] if used else [])]


def of_store(rows: Mapping[str, list[tuple[Any, ...]]]) -> list[str]:
    return [f"{what}: {found}" for what, found in rows.items() if found]


def read_sqlite(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        return {what: database.execute(query).fetchall() for what, query in _TABLES.items()}


def read_postgresql(url: str) -> dict[str, list[tuple[Any, ...]]]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as database:
        return {what: database.execute(query.encode()).fetchall() for what, query in _TABLES.items()}
