"""What all daemons said at one moment, and what they did between two: rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.daemon.net.control_address import Door
from inaproto.daemon.net.names import JOBS_SOCKET
from inaproto.daemon.observe.status import Report, ask_daemons
from inaproto.daemon.observe.status_tables import switches_of
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient

ANSWER_S: Final = 5.0
_SWITCH_RATES: Final = {
    "frames_in_per_s": ("totals", "frames_in"),
    "bytes_in_per_s": ("totals", "bytes_in"),
    "bytes_out_per_s": ("totals", "bytes_out"),
    "lost_per_s": ("totals", "frames_lost"),
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: float
    """Seconds of a clock that only goes forward."""
    report: Report
    controller: Mapping[str, Any] | None = None
    """Its status; None: there is none, or it did not answer."""
    jobs: Sequence[Mapping[str, Any]] = ()
    """Jobs of the controller that leads, those that are not over."""


@dataclass(frozen=True, slots=True)
class Whom:
    """Who is asked."""

    directory: Path | None
    sockets: Sequence[Path]
    doors: Sequence[Door]
    controllers: Sequence[str]


async def look(whom: Whom) -> Snapshot:
    """Who does not answer is among the problems of the report."""
    found: dict[str, Any] = {}

    async def ask_controller(controllers: Sequence[str]) -> None:
        found.update(await trio.to_thread.run_sync(_controller, controllers))

    async with trio.open_nursery() as nursery:
        if whom.controllers:
            nursery.start_soon(ask_controller, whom.controllers)
        report = (
            await ask_daemons(whom.directory, whom.sockets, whom.doors)
            if whom.directory is not None or whom.sockets or whom.doors
            else Report()
        )
    beside = _controllers_beside(report) if whom.directory is not None and not whom.controllers else []
    if beside:
        await ask_controller(beside)
    report.problems += found.get("problems", [])
    return Snapshot(trio.current_time(), report, found.get("status"), found.get("jobs", ()))


def _controllers_beside(report: Report) -> list[str]:
    """Sockets for questions, where hosts and switches say that they have a controller on this machine."""
    told = [one.get("controller", {}) for one in (*report.hosts, *switches_of(report))]
    beside = dict.fromkeys(Path(path).with_name(JOBS_SOCKET) for one in told for path in one.get("paths", ()))
    return [str(path) for path in beside if path.is_socket()]


def _controller(controllers: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"problems": []}
    client = JobClient(controllers, answer_s=ANSWER_S)
    try:
        found["status"] = client.status()
        if found["status"].get("leads"):
            found["jobs"] = client.jobs(live=True)
    except (ControllerRefused, ControllerUnreachable) as error:
        found["problems"] = str(error).splitlines()
    return found


# --- rates


def rates(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """Per second, of each daemon that is in both and was not started anew in between.

    ``hosts`` by name: ``operations_per_s`` and ``bytes_per_s``, each by path. ``switches`` by name, or by
    directory where it has none. What cannot be said is not there, rather than 0.
    """
    seconds = now.at - before.at
    hosts = _pairs(before.report.hosts, now.report.hosts, lambda one: str(one["name"]))
    switches = _pairs(switches_of(before.report), switches_of(now.report), switch_name)
    return {
        "seconds": seconds,
        "hosts": {name: _of_host(*pair, seconds) for name, pair in hosts.items()},
        "switches": {name: _of_switch(*pair, seconds) for name, pair in switches.items()},
    }


def switch_name(status: Mapping[str, Any]) -> str:
    return str(status.get("name") or status["dir"])


Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def _pairs(
    before: Sequence[Mapping[str, Any]],
    now: Sequence[Mapping[str, Any]],
    name_of: Callable[[Mapping[str, Any]], str],
) -> dict[str, Pair]:
    old = {name_of(one): one for one in before}
    return {
        name_of(one): (old[name_of(one)], one)
        for one in now
        if name_of(one) in old and old[name_of(one)]["pid"] == one["pid"]
    }


def _of_host(old: Mapping[str, Any], new: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    return {
        told: dict(_differences(old["totals"][key], new["totals"][key], seconds))
        for told, key in (("operations_per_s", "operations_by_path"), ("bytes_per_s", "bytes_by_path"))
    }


def _differences(
    old: Mapping[str, float], new: Mapping[str, float], seconds: float
) -> list[tuple[str, float]]:
    return [(key, (new[key] - old.get(key, 0)) / seconds) for key in new] if seconds > 0 else []


def _of_switch(old: Mapping[str, Any], new: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    if seconds <= 0:
        return {}
    found = {told: (new[part][key] - old[part][key]) / seconds for told, (part, key) in _SWITCH_RATES.items()}
    counters = (one["accelerator"]["counters"] for one in (old, new))
    was, has = ({"summed": one["aggregated_in"], "turns": one["pool_takeovers"]} for one in counters)
    return found | {f"{key}_per_s": (has[key] - was[key]) / seconds for key in has}
