"""What parameter servers and hosts' nodes count, for Prometheus: made from their status, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import Metric

from inaproto.core.models.events import Mark
from inaproto.daemon.observe.metric_families import Families


def server_metrics(status: Mapping[str, Any]) -> list[Metric]:
    """Metrics made of ``ParameterServer.status``."""
    made = Families()
    made.build("server", status["version"])
    made.gauge("uptime_seconds", "Since the daemon was started.", status["uptime_s"])
    shards = status["shards"]
    made.gauge("server_shards", "Shards of models that it holds.", len(shards))
    made.counter("server_records", "Steps written to disk.", sum(shard["records"] for shard in shards))
    made.gauge("server_log_bytes", "Since the last snapshots.", sum(shard["log_bytes"] for shard in shards))
    made.gauge(
        "server_direct_shards", "Whose trees are torn down.", sum(bool(shard["direct"]) for shard in shards)
    )
    made.gauge(
        "server_full_disks",
        "Shards of which nothing becomes durable until their disk has space.",
        sum(bool(shard["fault"]) for shard in shards),
    )
    made.gauge("server_dead_hosts", "Taken for dead.", sum(len(shard["dead"]) for shard in shards))
    made.gauge(
        "server_children",
        "Hosts that are attached to it, counted once a shard.",
        sum(child["attached"] for shard in shards for child in shard["children"]),
    )
    made.counters("server_refused", "Connections that were turned away.", "reason", status["refused"])
    tuned = [shard["in_degree"] for shard in shards if shard["in_degree"] is not None]
    if tuned:
        made.gauge(
            "server_in_degree", "Of its trees that are tuned, the greatest.", max(t["now"] for t in tuned)
        )
        made.counter("server_reshapes", "Changes of trees, ever.", sum(t["changes"] for t in tuned))
    _of_marks(made, "server_events", shards)
    return made.made


def model_metrics(made: Families, models: Sequence[Mapping[str, Any]]) -> None:
    """Metrics made of ``HostModels.status``: part of what a host tells."""
    shards = [shard for model in models for shard in model["shards"]]
    made.gauge("host_models", "Models that it trains by push and pull.", len(models))
    made.gauge(
        "host_model_workers",
        "Of which a process is here.",
        sum(one["worker"]["has_process"] for one in models),
    )
    made.counter("host_pulls", "Pulls that were answered.", sum(one["worker"]["pulls"] for one in models))
    made.gauge(
        "host_shards_attached",
        "Whose trees it is in, at a parent.",
        sum(shard["attached"] for shard in shards),
    )
    made.gauge(
        "host_pushes_logged", "That servers have not merged.", sum(shard["logged"] for shard in shards)
    )
    _of_marks(made, "host_overlay_events", shards)


def _of_marks(made: Families, name: str, shards: Sequence[Mapping[str, Any]]) -> None:
    counts: Counter[str] = Counter({mark.name.lower(): 0 for mark in Mark})
    for shard in shards:
        counts.update(shard["marks"])
    made.counters(name, "Of trees: failovers, fallbacks, what was answered how.", "event", counts)
