"""A host in a job whose all-reduces are traced: a span for each, below those of the processes that called it.

A daemon that traces nothing has none of this: :class:`TracedRing` is made in place of a ``HostRing``, so that
an all-reduce costs nothing more where tracing is off. Spans are made when their operation has ended, of what
was written down until then; a daemon that is killed takes those of the operations under way with it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from inaproto.client.ring_names import parse_ring_job
from inaproto.core.host import events
from inaproto.core.host.collective import FellBack
from inaproto.core.host.journal import Past
from inaproto.daemon.host.local_rank import LocalRank
from inaproto.daemon.host.ring import HostRing
from inaproto.errors import JobError
from inaproto.tracing.opening import OF_RING, trace_id
from inaproto.units import OpIndex
from inaproto.wire.control_messages import Start
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce, DonePath

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

BY_SWITCHES: Final = ("switch", "sharp", "local")
"""Paths that are no way round: nobody asks why."""
EVENTS_MAX: Final = 64
"""Of one operation: a ring that ends again and again is in the log."""


@dataclass(slots=True)
class _Called:
    """An operation from its first call here to its end; times are those of the wall clock, ns."""

    asked: AllReduce
    began: int
    sent_again: int | None
    """Packets, by the NIC, up to then."""
    callers: dict[int, str] = field(default_factory=dict)
    """Ranks here that have called it, each with its traceparent, if it has one."""
    events: list[tuple[str, int, dict[str, str]]] = field(default_factory=list)
    why: str = ""

    def note(self, name: str, **told: str) -> None:
        if len(self.events) < EVENTS_MAX:
            self.events.append((name, time.time_ns(), told))


class TracedRing(HostRing):
    """As :class:`~inaproto.daemon.host.ring.HostRing`."""

    def __init__(self, tracing: Tracing, job: str, **parts: Any) -> None:
        self._tracing = tracing
        self._called: dict[int, _Called] = {}
        """By number."""
        self._connects: tuple[int, str] | None = (time.time_ns(), "")
        """Since when there is no ring that runs, and why the last one ended."""
        name = parse_ring_job(job)
        self._named = name.job
        self._said: dict[str, Any] = {"inaproto.job": name.job}
        if name.rings > 1:
            self._said |= {"inaproto.ring": name.ring, "inaproto.rings": name.rings}
        super().__init__(job, **parts)

    # --- rings

    def _step(self, event: events.HostEvent) -> None:
        super()._step(event)
        if isinstance(event, events.Said) and isinstance(event.message, Start) and self._connects is not None:
            (began, reason), self._connects = self._connects, None
            ring_id = self.core.ring_id or 0
            told = {"inaproto.path": self.core.view().path, "inaproto.ring_id": ring_id}
            said = self._of_host | told | ({"inaproto.reason": reason} if reason else {})
            name = "host recovers" if reason else "host joins"
            trace = trace_id(self._named, ring_id, OF_RING)
            self._tracing.start(name, self._tracing.WORKS, said, trace_id=trace, start_ns=began).end()
            self._note_all("ring begins", ring_id=str(ring_id))

    def _closing(self, order: events.CloseLinks | events.CloseIna | events.KeepResults) -> None:
        super()._closing(order)
        if isinstance(order, events.CloseLinks) and order.recovers:
            self._ring_ended(next(reversed(self.core.view().halts), "the ring ended"))

    def resume(self, returned: Mapping[int, Sequence[AllReduce]], past: Past) -> None:
        super().resume(returned, past)
        self._connects = None
        self._ring_ended("the host daemon before this one has gone")

    def _ring_ended(self, reason: str) -> None:
        if self._connects is None:  # else it never ran
            self._connects = (time.time_ns(), reason)
        self._note_all("ring ended", reason=reason)

    def _note_all(self, name: str, **told: str) -> None:
        for operation in self._called.values():
            operation.note(name, **told)

    # --- operations

    def submit(self, rank: LocalRank, request: AllReduce) -> None:
        index = request.op_index
        operation = self._called.get(index)
        if operation is None:
            operation = self._called[index] = _Called(request, time.time_ns(), self._sent_again)
        operation.callers[rank.number] = request.trace or ""
        if len(operation.callers) == len(self.ranks):
            operation.note("all ranks here have called it")
        super().submit(rank, request)

    def _perform(self, action: events.ShellAction) -> None:
        if isinstance(action, FellBack) and action.operation.index in self._called:
            self._called[action.operation.index].why = f"{action.code.name.lower()}: {action.reason}"
        super()._perform(action)
        if isinstance(action, events.RankFailed):
            self._end_all(action.error)
        elif isinstance(action, events.Ended):
            self._end_all(JobError(f"{self} has ended"))

    def _done(self, op_index: OpIndex, path: DonePath) -> None:
        operation = self._called.pop(op_index, None)
        super()._done(op_index, path)
        if operation is not None:
            self._finish(op_index, operation, path)

    def _why(self, path: DonePath) -> str:
        """Why it went round the switches; empty if it did not, or was to go so."""
        wished = next((rank.join.path for rank in self.ranks.values()), "auto")
        if path in BY_SWITCHES or wished not in ("auto", "shared"):
            return ""
        if self.core.view().path == "shared":
            return "its job had no turn in the switches"
        return next(reversed(self.core.view().halts), "the switch does not sum its job, and says why")

    def _end_all(self, error: JobError) -> None:
        found, self._called = self._called, {}
        for op_index, operation in found.items():
            self._finish(op_index, operation, error=error)

    @property
    def _sent_again(self) -> int | None:
        """None: not every NIC counts it."""
        return self.nic.statistics().get("retransmits")

    @property
    def _of_host(self) -> dict[str, Any]:
        return self._said | {
            "inaproto.host": self.core.config.host,
            "inaproto.ranks": list(self.ranks),
            "inaproto.size": self.core.ranks.size,
        }

    def _finish(
        self, op_index: int, operation: _Called, path: DonePath | None = None, error: JobError | None = None
    ) -> None:
        tracing, asked = self._tracing, operation.asked
        parents = [told for _, told in sorted(operation.callers.items()) if told]
        said = self._of_host | {
            "inaproto.ring_id": self.core.ring_id or 0,
            "inaproto.operation": op_index,
            "inaproto.bytes": asked.nbytes,
            "inaproto.dtype": Dtype(asked.dtype).name.lower(),
            "inaproto.op": Op(asked.op).name.lower(),
        }
        before, after = operation.sent_again, self._sent_again
        if before is not None and after is not None:  # the NIC after a switch that was lost counts from 0
            said["inaproto.packets_sent_again"] = after - before if after >= before else after
        if path is not None:
            why = operation.why or self._why(path)
            said |= {"inaproto.path": path} | ({"inaproto.fallback": why} if why else {})
        span = tracing.start(
            f"host {asked.call.partition(' ')[0] or 'all_reduce'}",
            tracing.SERVES,
            said,
            trace_id=trace_id(self._named, self.core.run[0], op_index),
            parent=parents[0] if parents else "",
            links=tracing.links(parents[1:]),
            start_ns=operation.began,
        )
        for name, at, told in operation.events:
            span.add_event(name, told, at)
        if error is not None:
            tracing.failed(span, error)
        span.end()
