"""The report as one JSON document, from the statuses of daemons; text and page are made of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto_controller.report.records import (
    FAST,
    HostRecord,
    Ring,
    Status,
    Statuses,
    place_of,
    records_of,
)
from inaproto_controller.report.savings import Links, measured, modelled

FORMAT: Final = 1
_OTHER_SIZES: Final = -1
TURNS: Final = "jobs take turns at the switches' memory: hosts sum while another job has its turn"


def document(
    job: str,
    rings: Sequence[Ring],
    statuses: Statuses,
    links: Links,
    *,
    controller: Status | None,
    version: str,
) -> dict[str, Any]:
    """``rings``: at least one; ``controller``: what its job API says of it, if it was asked and knows."""
    paths = _paths(rings, links)
    return {
        "format": FORMAT,
        "version": version,
        "job": job,
        "run": rings[0].run,
        "other_runs": len(rings[0].runs) - 1,
        "has_ended": all(one.record["ended"] for ring in rings for one in ring.hosts),
        "hosts": rings[0].size,
        "hosts_told": sorted({one.host for ring in rings for one in ring.hosts}),
        "ranks": rings[0].first.record["size"],
        "parallel_rings": len(rings),
        "seconds": max(_seconds(one.record) for ring in rings for one in ring.hosts),
        "links": {
            "bytes_per_s": links.bytes_per_s,
            "hop_s": links.hop_s,
            "source": links.source,
            "rate_source": links.rate_source,
            "hop_source": links.hop_source,
            "text": str(links),
        },
        "operations": sum(one["operations"] for one in paths),
        "bytes": sum(one["bytes"] for one in paths),
        "paths": paths,
        "by_model": _by_model(paths),
        "measured": _measured(rings),
        "reasons": _reasons(rings, controller),
        "recoveries": max(one.record["recoveries"] for ring in rings for one in ring.hosts),
        "controller": None if controller is None else _controller(controller),
        "by_host": [_host(ring, one) for ring in rings for one in ring.hosts],
        "agreement": agreement(statuses),
    }


def _seconds(record: Status) -> float:
    last = record["last_s_ago"]
    return float(record["began_s_ago"] - (0.0 if last is None else last))


def _paths(rings: Sequence[Ring], links: Links) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for ring in rings:
        model = modelled(ring, links)
        for row in ring.first.rows:
            one = found.setdefault(
                row["path"],
                {
                    "path": row["path"],
                    "operations": 0,
                    "bytes": 0,
                    "called_s": 0.0,
                    "busy_s": 0.0,
                    "model": None,
                },
            )
            for key in ("operations", "bytes", "called_s", "busy_s"):
                one[key] += row[key]
        for path, seconds in model.items():
            if seconds is not None:
                before = found[path]["model"] or dict.fromkeys(seconds, 0.0)
                found[path]["model"] = {key: before[key] + seconds[key] for key in seconds}
    total = sum(one["bytes"] for one in found.values())
    for one in found.values():
        one["share"] = one["bytes"] / total if total else None
    return sorted(found.values(), key=lambda one: place_of(one["path"]))


def _by_model(paths: Iterable[Mapping[str, Any]]) -> dict[str, float] | None:
    """``saved_s``: by what the network summed; ``missed_s``: if it had summed the rest as well."""
    modelled = [one for one in paths if one["model"] is not None]
    if not modelled:
        return None
    gains = [(one["path"] in FAST, one["model"]["ring_s"] - one["model"]["network_s"]) for one in modelled]
    return {
        "ring_s": sum(one["model"]["ring_s"] for one in modelled),
        "saved_s": sum((gain for is_fast, gain in gains if is_fast), 0.0),
        "missed_s": sum((gain for is_fast, gain in gains if not is_fast), 0.0),
    }


def _measured(rings: Sequence[Ring]) -> dict[str, Any] | None:
    """Of parallel rings the one that gained least: they work at the same time, and a job waits for all."""
    found = [one for one in map(measured, rings) if one is not None]
    return min(found, key=lambda one: float(one["saved_s"])) if len(found) == len(rings) else None


def _reasons(rings: Sequence[Ring], controller: Status | None) -> list[dict[str, Any]]:
    """Why hosts summed, and why rings ended: each with who says so, and how often."""
    found: list[dict[str, Any]] = []
    for ring in rings:
        for way in () if ring.ways is None else ring.ways["ways"]:
            reason = way["reason"] or (TURNS if way["path"] == "shared" else "")
            if reason:
                found.append(
                    _reason("switch", reason, way["times"], path=way["path"], lasted_s=way["lasted_s"])
                )
        ends = () if ring.ways is None else ring.ways["ring_ends"]
        found += [_reason("switch", f"a ring ended: {end['reason']}", end["times"]) for end in ends]
        redone: dict[tuple[str, str], int] = {}
        for one in ring.hosts:
            for row in one.record["redone"]:
                key = row["code"], row["reason"]
                redone[key] = max(redone.get(key, 0), row["times"])
        for (code, reason), times in redone.items():
            found.append(_reason("hosts", f"SHARP, {code}: {reason}", times, path="sharp"))
    if controller is not None and controller.get("no_tree"):
        found.append(_reason("controller", f"no tree: {controller['no_tree']}", 1))
    return found


def _reason(
    who: str, text: str, times: int, *, path: str = "", lasted_s: float | None = None
) -> dict[str, Any]:
    return {"said_by": who, "reason": text, "times": times, "path": path, "lasted_s": lasted_s}


def _controller(job: Status) -> dict[str, Any]:
    return {key: job[key] for key in ("number", "state", "why", "hosts", "tree", "no_tree") if key in job}


def _host(ring: Ring, one: HostRecord) -> dict[str, Any]:
    record = one.record
    return {
        "host": one.host,
        "ring": ring.name,
        "ranks": record["ranks"],
        "operations_by_path": one.by_path("operations"),
        "bytes_by_path": one.by_path("bytes"),
        "busy_s_by_path": one.by_path("busy_s"),
        "recoveries": record["recoveries"],
        "rows": list(one.rows),
    }


# -- whether it adds up


def agreement(statuses: Statuses) -> dict[str, Any]:
    """What jobs had, all of them that the daemons have had, against what hosts and switches count.

    A switch counts packets of results that it sent for the first time (``results_out``), and the bytes of an
    all-reduce say how many those are. More of them than all-reduces need were of rings that broke.
    """
    hosts = {host["name"]: _host_agrees(host) for host in statuses.hosts if "job_totals" in host}
    packets = sum(_packets_of(host) for host in statuses.hosts)
    counted = [one["accelerator"]["counters"]["results_out"] for one in statuses.switches]
    return {
        "hosts": hosts,
        "switches": None
        if not counted
        else {
            "results_out": sum(counted),
            "packets_of_all_reduces": packets,
            "difference": sum(counted) - packets,
        },
    }


def _host_agrees(host: Status) -> dict[str, dict[str, int]]:
    """By path: bytes by its jobs, and by its counter."""
    totals = host["job_totals"]
    found = {path: [0, nbytes] for path, nbytes in host["totals"]["bytes_by_path"].items()}
    for row in [*totals["forgotten"], *(row for one in records_of(host) for row in one["paths"])]:
        found.setdefault(row["path"], [0, 0])[0] += row["bytes"]
    return {path: {"by_jobs": mine, "counted": theirs} for path, (mine, theirs) in found.items()}


def _packets_of(host: Status) -> int:
    """Packets of results that switches had to send to this host; about, for sizes not told apart."""
    rows = [*host.get("job_totals", {}).get("forgotten", ())]
    rows += [row for one in records_of(host) for row in one["paths"]]
    found = 0
    for row in rows:
        if row["path"] == "switch":
            size = row["size"] if row["size"] != _OTHER_SIZES else row["bytes"] // row["operations"]
            found += row["operations"] * packets(size, host["mtu"], host["message_packets"])
    return found


def packets(nbytes: int, mtu: int, message_packets: int) -> int:
    """Packets of an all-reduce in switches: each message begins with a header."""
    room = mtu * message_packets - INA_HEADER_BYTES
    whole, rest = divmod(nbytes, room)
    return whole * message_packets + (math.ceil((rest + INA_HEADER_BYTES) / mtu) if rest or not whole else 0)
