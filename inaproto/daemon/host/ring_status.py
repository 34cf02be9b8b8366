"""What a host says of its ring of a job, for ``inaproto status``."""

from __future__ import annotations

from typing import Any

from inaproto.core.host.engines.two_paths import TwoPaths
from inaproto.daemon.host.operations import HostOperations
from inaproto.units import MS


class HostRingStatus(HostOperations):
    """Nothing here changes anything."""

    def status(self) -> dict[str, Any]:
        """For ``inaproto status``."""
        record: dict[str, Any] = {
            "job": self.job,
            "ranks": [rank.status() for rank in self.ranks.values()],
            "size": self._size,
            "phase": self.phase.value,
            "path": self.path,
            "recoveries": self.recoveries,
            "halted_because": list(self._halts),
            "ring_id": self._ring.ring_id if self._ring else None,
            "position": self._ring.position if self._ring else None,
            "peers": list(self._ring.peers) if self._ring else [],
            "ina_ring_id": self._ring.ina_ring_id if self._ring and self._ina_stands else None,
            "is_parked": isinstance(self._engine, TwoPaths) and self._engine.is_parked,
            "operations_by_path": dict(self._done_by),
            "waiting_for": list(self._watch.waiting_for),
            "stall": self._watch.stall,
        }
        if self._engine is not None:
            view = self._engine.view()
            record |= {
                "operations_done": view.operations_done,
                "operations_queued": max((len(rank.tensors) for rank in self.ranks.values()), default=0),
                "bytes_reduced": view.bytes_reduced,
                "messages_sent": view.messages_sent,
                "messages_received": view.messages_received,
                "unacknowledged": view.unacknowledged,
                "stalls": view.stalls,
                "operation": self._operation_status(),
            }
        return record

    def _operation_status(self) -> dict[str, Any] | None:
        """Of the operation that has to make progress, if any."""
        awaited = self._awaited
        if not awaited or self._engine is None:
            return None
        operation, view = next(iter(awaited.values())), self._engine.view()
        runs = view.running is not None
        return {
            "op_index": operation.index,
            "nbytes": operation.nbytes,
            "messages": view.messages if runs else 1,
            "results": view.results if runs else 0,
            "idle_ms": (self._clock() - view.since) // MS
            if runs
            else self._gathering.waited(self._clock()) // MS,
        }
