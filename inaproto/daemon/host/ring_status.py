"""What ``inaproto status`` shows of a job on a host."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from inaproto.core.host.collective import CollectiveView
from inaproto.core.host.view import HostView
from inaproto.daemon.host.local_rank import LocalRank
from inaproto.units import MS, Instant, S


def _is_exact(view: HostView) -> bool:
    """Whether all that the job has had here is of its reduction plan, to the last bit."""
    return view.path != "sharp" and not {"ring", "sharp"}.intersection(view.operations_by_path)


def _collective(view: CollectiveView) -> dict[str, Any]:
    return {
        "stands": view.stands,
        "session": view.session.value,
        "attempt": view.attempt,
        "tried": view.tried,
        "taken": view.taken,
        "redone_by_code": {code.name.lower(): count for code, count in view.redone.items()},
        "without": view.without,
        "reason": view.reason,
        "may_attach": view.is_allowed,
        "attach_s": None if view.attach_ns is None else view.attach_ns / S,
        "release_s": None if view.release_ns is None else view.release_ns / S,
    }


def ring_status(
    job: str, size: int, view: HostView, ranks: Collection[LocalRank], now: Instant, no_successor: str
) -> dict[str, Any]:
    """``size``: of the job; ``ranks``: those of this host, ascending.

    ``no_successor``: why they would end with this daemon, if they would.
    """
    ring, operations, wait = view.ring, view.operations, view.wait
    record: dict[str, Any] = {
        "job": job,
        "ranks": [rank.status() for rank in ranks],
        "size": size,
        "phase": view.phase.value,
        "path": view.path,
        "exact_plan": _is_exact(view),
        "collective": None if view.collective is None else _collective(view.collective),
        "recoveries": view.recoveries,
        "halted_because": list(view.halts),
        "ring_id": ring.ring_id if ring else None,
        "position": ring.position if ring else None,
        "peers": list(ring.peers) if ring else [],
        "ina_ring_id": ring.ina_ring_id if ring and view.ina_ring_id is not None else None,
        "is_parked": view.is_parked,
        "operations_by_path": dict(view.operations_by_path),
        "waiting_for": list(view.waiting_for),
        "refused": view.refused,
        "no_successor": no_successor,
        "stall": view.stall,
    }
    if operations is not None:
        record |= {
            "operations_done": operations.operations_done,
            "operations_queued": max((len(rank.tensors) for rank in ranks), default=0),
            "bytes_reduced": operations.bytes_reduced,
            "messages_sent": operations.messages_sent,
            "messages_received": operations.messages_received,
            "unacknowledged": operations.unacknowledged,
            "stalls": operations.stalls,
            "operation": None
            if wait is None
            else {
                "op_index": wait.operation.index,
                "nbytes": wait.operation.nbytes,
                "messages": wait.messages,
                "results": wait.results,
                "idle_ms": (now - wait.since) // MS,
            },
        }
    return record
