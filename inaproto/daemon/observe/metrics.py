"""What host daemons and switches count, for Prometheus: made from their status, and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client.metrics_core import Metric

from inaproto.daemon.observe.metric_families import Families
from inaproto.daemon.observe.model_metrics import model_metrics

PATHS: Final = ("switch", "chain", "overlay", "ring", "local", "sharp")
DAY_S: Final = 86_400
CODES: Final = ("failed", "absent", "lost", "timed_out", "differs")
"""Paths by which an operation was summed; all are told from the start, so that rates have no gap."""


def _of_certificates(made: Families, status: Mapping[str, Any]) -> None:
    """Of a daemon that has several, the one that runs out first."""
    places = (status, *(status.get(name) for name in ("control_listen", "control", "controller")))
    told = [place["credentials"] for place in places if place is not None and "credentials" in place]
    left = [one["days_left"] for one in told if "days_left" in one]
    if left:
        made.gauge("certificate_seconds_left", "Until its certificate runs out.", min(left) * DAY_S)


def host_metrics(status: Mapping[str, Any]) -> list[Metric]:
    """Metrics made of ``HostDaemon.status``."""
    made = Families()
    made.build("host", status["version"])
    made.gauge("uptime_seconds", "Since the daemon was started.", status["uptime_s"])
    _of_certificates(made, status)
    _of_operations(made, status["totals"])
    switch, rings = status["switch"], status["rings"]
    made.gauge("host_connected", "1 while the host has its switch.", float(switch["connected"]))
    made.counter("host_connections", "Times that it found its switch.", switch["connections"])
    made.gauge("host_clients", "Connections of processes.", status["clients"])
    ranks = [rank for ring in rings for rank in ring["ranks"]]
    made.gauge("host_ranks", "Ranks that are here.", len(ranks))
    made.gauge(
        "host_registered_bytes",
        "Memory that processes share with the daemon.",
        sum(rank["segment_bytes"] for rank in ranks),
    )
    made.gauge(
        "host_operations_queued",
        "All-reduces that have been called and have not begun, in the longest queue of each ring.",
        sum(ring.get("operations_queued", 0) for ring in rings),
    )
    made.gauge(
        "host_stalled_rings", "Rings in which nothing moves.", sum(bool(ring["stall"]) for ring in rings)
    )
    _of_rings(made, "host_rings", "Rings of this host.", [(ring["phase"], ring["path"]) for ring in rings])
    made.counters(
        "host_nic_events",
        "What its NIC counts, in packets unless the event says bytes; from 0 with each connection.",
        "event",
        {name: value for name, value in status["nic"].items() if isinstance(value, int)},
    )
    if status["models"]:
        model_metrics(made, status["models"])
    of_spans(made, status)
    return made.made


def of_spans(made: Families, status: Mapping[str, Any]) -> None:
    """Of a daemon that traces."""
    if status["spans"] is not None:
        made.counters(
            "spans",
            "Spans that were made for a collector, by what became of them.",
            "fate",
            {fate: status["spans"][fate] for fate in ("sent", "lost")},
        )


def _of_operations(made: Families, totals: Mapping[str, Any]) -> None:
    none = dict.fromkeys(PATHS, 0.0)
    made.counters(
        "host_operations",
        "All-reduces that have ended, by who summed: the switch, or the hosts.",
        "path",
        none | totals["operations_by_path"],
    )
    made.counters(
        "host_reduced_bytes", "Bytes of these, once for a host.", "path", none | totals["bytes_by_path"]
    )
    made.counters(
        "host_operation_seconds",
        "From the call of each to its end, added up.",
        "path",
        none | totals["seconds_by_path"],
    )
    made.counter("host_recoveries", "Rings that ended in the middle of their jobs.", totals["recoveries"])
    made.counters(
        "host_redone_operations",
        "All-reduces that a collective library tried, and that were redone without it.",
        "code",
        dict.fromkeys(CODES, 0.0) | totals["redone_by_code"],
    )


def _of_rings(made: Families, name: str, what: str, pairs: list[tuple[str, str]]) -> None:
    counts: dict[tuple[str, str], float] = {}
    for pair in pairs:
        counts[pair] = counts.get(pair, 0) + 1
    made.table(name, what, ("phase", "path"), counts)


# --- the switch


def switch_metrics(status: Mapping[str, Any]) -> list[Metric]:
    """Metrics made of ``Switch.status``."""
    made = Families()
    made.build("switch", status["version"])
    made.gauge("uptime_seconds", "Since the daemon was started.", status["uptime_s"])
    _of_certificates(made, status)
    of_spans(made, status)
    _of_ports(made, status)
    _of_accelerator(made, status)
    jobs = status["jobs"]
    made.gauge("switch_hosts", "Hosts that have a session.", len(status["hosts"]))
    _of_rings(made, "switch_jobs", "Jobs that have met here.", [(job["phase"], job["path"]) for job in jobs])
    made.gauge(
        "switch_jobs_not_summed",
        "Jobs that the hosts sum because the switch cannot; inaproto status says why.",
        sum(bool(job["fallback"]) for job in jobs),
    )
    made.gauge(
        "switch_ranks_missing", "Ranks that others wait for.", sum(len(job["missing"]) for job in jobs)
    )
    for name, value in status["rendezvous"].items():
        made.counter(f"switch_{name}", f"Of the rendezvous: {name.replace('_', ' ')}.", value)
    made.counters(
        "switch_blames", "Packets and messages that broke a rule, by rule.", "rule", status["blames"]
    )
    slots = status["controller"]["slots"]
    made.gauge("switch_slots", "Leases that it may give to jobs at once.", slots["capacity"])
    made.gauge("switch_slots_lent", "Leases that jobs have.", len(slots["held"]))
    made.counters("switch_leases", "Leases that were taken and came back.", "event", slots["counters"])
    _of_fabric(made, status)
    _of_shards(made, status.get("shards", []))
    return made.made


def _of_shards(made: Families, shards: Sequence[Mapping[str, Any]]) -> None:
    made.gauge("switch_shards", "Processes that have rings of this switch.", len(shards))
    made.gauge("switch_shards_up", "Those that are there.", sum(shard["is_up"] for shard in shards))
    made.counter(
        "switch_shard_starts", "Times that one was started.", sum(shard["starts"] for shard in shards)
    )


def _of_ports(made: Families, status: Mapping[str, Any]) -> None:
    totals = status["totals"]
    made.gauge("switch_ports", "Ports that are up.", len(status["ports"]))
    made.counter("switch_ports_seen", "Ports that ever were.", totals["ports_seen"])
    for way in ("in", "out"):
        told = "received" if way == "in" else "sent"
        made.counter(f"switch_{told}_bytes", f"{told.capitalize()} at all ports.", totals[f"bytes_{way}"])
    made.counters(
        "switch_frames",
        "Frames at all ports: in, out, and what became of those that neither weather nor ports let through.",
        "event",
        {name.removeprefix("frames_"): value for name, value in totals.items() if name.startswith("frames_")},
    )
    links = status["links"]
    made.gauge(
        "switch_links_away", "Interfaces that cannot be used.", sum(not link["is_attached"] for link in links)
    )


def _of_accelerator(made: Families, status: Mapping[str, Any]) -> None:
    accelerator = status["accelerator"]
    counters = dict(accelerator["counters"])
    dropped = counters.pop("dropped")
    made.gauge("accelerator_memory_bytes", "Memory that rings and pools take.", accelerator["memory_bytes"])
    made.gauge("accelerator_connections", "Entries of its lookup table.", accelerator["connections"])
    made.gauge("accelerator_rings", "Rings that are installed.", len(accelerator["rings"]))
    for name, value in counters.items():
        made.counter(f"accelerator_{name}", f"Of the accelerator: {name.replace('_', ' ')}.", value)
    made.counters("accelerator_dropped_packets", "Packets that it dropped, by rule.", "rule", dropped)
    pools = accelerator["pools"].values()
    made.gauge("switch_pools", "Pools of slots that rings share.", len(pools))
    made.gauge("switch_pool_bytes", "Memory of these.", sum(pool["memory_bytes"] for pool in pools))
    made.gauge(
        "switch_pool_turns",
        "Turns that stand in them.",
        sum(holder is not None for pool in pools for holder in pool["holders"]),
    )


def _of_fabric(made: Families, status: Mapping[str, Any]) -> None:
    for where, told in (("machines", "control_listen"), ("sessions", "control_sessions")):
        refused = (status.get(told) or {}).get("refused", {})
        made.counters(f"switch_refused_{where}", "Peers that were turned away, by reason.", "reason", refused)
    trunks = status.get("trunks", [])
    made.gauge("switch_trunks", "Trunks to other switches.", len(trunks))
    made.gauge("switch_trunks_up", "Trunks that are up.", sum(trunk["is_up"] for trunk in trunks))
    if "control" in status:
        made.gauge(
            "switch_admitted",
            "1 while the root's control plane has admitted this switch.",
            float(status["control"]["connected"] and status["control"]["is_admitted"]),
        )
    fabric = status.get("fabric")
    if fabric is not None:
        members = fabric["switches"]
        made.gauge("fabric_switches", "Switches of the fabric.", len(members))
        made.gauge(
            "fabric_switches_open", "Switches that take part.", sum(member["is_open"] for member in members)
        )
        for name, value in fabric["counters"].items():
            made.counter(f"fabric_{name}", f"Of the fabric: {name.replace('_', ' ')}.", value)
