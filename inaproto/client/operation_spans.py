"""Spans of what a rank calls: one for each all-reduce, from its call to its result in shared memory.

All are roots of their trace, as no rank is above another; what the host daemon does for one is below it. A
span that the script itself has under way is linked: its trace is that of one process, this one that of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from inaproto.client.protocol import PendingOperation
from inaproto.client.ring_names import parse_ring_job
from inaproto.errors import JobError
from inaproto.tracing.opening import OF_RING, trace_id
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import AllReduce

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from inaproto.tracing.spans import Tracing


@dataclass(slots=True, kw_only=True)
class TracedOperation(PendingOperation):
    """Its span ends with it."""

    span: Span = field(repr=False)
    tracing: Tracing = field(repr=False)

    def end(self, error: JobError | None = None) -> None:
        if not self.ended:
            if self.path:
                self.span.set_attribute("inaproto.path", self.path)
            if error is not None:
                self.tracing.failed(self.span, error)
            self.span.end()
        PendingOperation.end(self, error)


class OperationSpans:
    """As :class:`~inaproto.client.protocol.Spans`; ``life`` as ``trace_id`` has it."""

    def __init__(self, tracing: Tracing, job: str, rank: int, size: int, life: int) -> None:
        name = parse_ring_job(job)
        self._tracing, self._job, self._life = tracing, name.job, life
        self._said = {"inaproto.job": name.job, "inaproto.rank": rank, "inaproto.size": size}
        if name.rings > 1:
            self._said |= {"inaproto.ring": name.ring, "inaproto.rings": name.rings}

    def joined(self, began: int, ring_id: int) -> None:
        """The rank asked for its place at ``began``, and is in that ring now."""
        trace = trace_id(self._job, ring_id, OF_RING)
        said = self._said | {"inaproto.ring_id": ring_id}
        self._start("join", said, trace, start_ns=began).end()

    def begin(
        self, op_index: int, memory: object, asked: AllReduce, filled: int | None, call: str
    ) -> PendingOperation:
        """As a ``PendingOperation``; what it asks for names its span to the daemon."""
        said = self._said | {
            "inaproto.operation": op_index,
            "inaproto.bytes": asked.nbytes,
            "inaproto.dtype": Dtype(asked.dtype).name.lower(),
            "inaproto.op": Op(asked.op).name.lower(),
            "inaproto.call": call,
        }
        trace = trace_id(self._job, self._life, op_index)
        span = self._start(asked.call.partition(" ")[0] or "all_reduce", said, trace)
        asked = replace(asked, trace=self._tracing.traceparent(span))
        return TracedOperation(op_index, memory, asked, filled, call, span=span, tracing=self._tracing)

    def returned(self, operations: Iterable[PendingOperation]) -> None:
        """A successor of the host daemon has taken these on."""
        for operation in operations:
            if isinstance(operation, TracedOperation):
                operation.span.add_event("taken on by the next host daemon")

    def _start(self, name: str, said: dict[str, Any], trace: int, start_ns: int | None = None) -> Span:
        tracing = self._tracing
        links = tracing.links_to_current()
        return tracing.start(name, tracing.CALLS, said, trace_id=trace, links=links, start_ns=start_ns)
