"""What the controller counts, for Prometheus: made from its status, and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from inaproto.daemon.observe.metric_families import Families, count_by
from inaproto.daemon.observe.metrics import of_spans
from inaproto_controller.service.observed import Presence
from inaproto_controller.service.sharp.service import STATES


def controller_metrics(status: Mapping[str, Any]) -> list[Metric]:
    """Metrics made of ``Controller.status``."""
    made = Families()
    made.build("controller", status["version"])
    made.gauge("uptime_seconds", "Since the daemon was started.", status["uptime_s"])
    made.gauge("controller_leads", "1 while it leads; of a pair one does.", float(status["leads"]))
    made.gauge("controller_term", "Of its leadership; 0 while it does not lead.", status["term"])
    made.gauge(
        "controller_store_works",
        "1 if its store could be used the last time.",
        float(status["store_works"]),
    )
    if status["leads"]:  # else it is of a term that is over, and of a pair the other one tells it
        _of_jobs(made, status)
        _of_trees(made, status["trees"])
        if status["reservations"] is not None:
            _of_reservations(made, status["reservations"])
    _of_history(made, status["history"])
    _of_loop(made, status["loop"])
    of_spans(made, status)
    return made.made


def _of_loop(made: Families, loop: Mapping[str, Any]) -> None:
    made.histogram(
        "controller_loop_step_seconds",
        "What one task did while all others of the controller waited.",
        loop["buckets"],
        loop["busy_s"],
    )
    made.gauge(
        "controller_loop_longest_seconds",
        "The longest of these since the daemon was started, without the time in which it did not run.",
        loop["longest_cpu_s"],
    )


def _of_trees(made: Families, trees: Mapping[str, Any]) -> None:
    """Metrics of jobs on the path ``shared``."""
    switches = trees.get("switches", {}).values()
    made.gauge("controller_slots", "Leases that switches may give.", sum(one["slots"] for one in switches))
    made.gauge("controller_slots_lent", "Leases that jobs have.", sum(len(one["lent"]) for one in switches))
    made.gauge(
        "controller_moves_under_way",
        "Jobs that change the tree.",
        len(trees.get("moves", {}).get("under_way", ())),
    )
    made.counters(
        "controller_trees",
        "What became of trees of jobs: acquired, lost, refused; leases of nobody that were freed.",
        "event",
        dict(trees.get("counters", {})),
    )


def _of_reservations(made: Families, found: Mapping[str, Any]) -> None:
    """Metrics of SHARP resources in UFM."""
    made.gauge("controller_ufm_answers", "1 while UFM answers.", float(found["answers"]))
    made.gauges(
        "controller_reservations",
        "Reservations of SHARP resources in UFM, by state.",
        "state",
        count_by((one["state"] for one in found["reservations"]), STATES),
    )


def _of_jobs(made: Families, status: Mapping[str, Any]) -> None:
    made.gauge("controller_revision", "Commits that the store has had.", status["revision"])
    made.gauges("controller_jobs", "Jobs that are known, by state.", "state", status["jobs"])
    made.gauge(
        "controller_jobs_without_tree",
        "Jobs that would gain by a tree and have none; inaproto job show says why.",
        status["jobs_without_tree"],
    )
    made.gauge("controller_grants", "Rights that jobs have at hosts and switches.", status["grants"])
    made.gauge(
        "controller_grants_to_be_freed",
        "Of these, released and not yet given up by their agents.",
        status["grants_to_be_freed"],
    )
    presences = (agent["presence"] for agent in status["agents"].values())
    made.gauges(
        "controller_agents",
        "Hosts and switches of the cluster file, by whether they report.",
        "presence",
        count_by(presences, (presence.value for presence in Presence)),
    )


def _of_history(made: Families, history: Mapping[str, Any]) -> None:
    made.counter("controller_turns", "Turns at pools that were decided.", history["turns"])
    made.gauge("controller_turns_standing", "Turns that stand.", history["turns_standing"])
    made.counters("controller_rounds", "Rounds of two-phase commit.", "outcome", history["rounds"])
    made.counters("controller_aborts", "Rounds that were aborted, by why.", "reason", history["aborts"])
    made.counter("controller_migrations", "Running jobs that got another tree.", history["migrations"])
    made.counter(
        "controller_fallbacks", "Times that a job's hosts had to sum themselves.", history["fallbacks"]
    )
