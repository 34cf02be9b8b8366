"""Makes spans and has them sent: OpenTelemetry, with ids of our own and counts of what was lost.

Sampler, batches and export are OpenTelemetry's, set by its variables (``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_TRACES_SAMPLER``, ``OTEL_BSP_MAX_QUEUE_SIZE``, ...), in a provider of their own: the one of the
training script, if it has one, is left alone.

Invariants: nobody who makes a span waits for the collector; at most ``OTEL_BSP_MAX_QUEUE_SIZE`` spans wait
for it, and one that finds no room is counted as lost; :meth:`Tracing.close` takes at most ``CLOSE_S``.
Python's random numbers are the script's: nothing here draws any of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

CLOSE_S: Final = 2.0
"""What is left is sent within this time when a process ends, or is lost."""
QUEUE_MAX: Final = "2048"
"""OpenTelemetry's default."""
_LOGGERS: Final = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
)
_W3C: Final = TraceContextTextMapPropagator()
_NOTHING: Final = Context()

log = logging.getLogger("inaproto.tracing")

with contextlib.suppress(
    ImportError
):  # it draws how long to wait, and would draw that from the script's numbers
    from opentelemetry.exporter.otlp.common import http

    vars(http)["random"] = random.Random()


class _Ids(IdGenerator):
    """Trace ids as they were computed, span ids from the system."""

    def __init__(self) -> None:
        self.wish = threading.local()

    def generate_trace_id(self) -> int:
        computed: int = self.wish.trace_id
        return computed

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1


class _Exporter(OTLPSpanExporter):
    """Says once that the collector is gone, and once that it is back; the library would at every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = self.failed = 0
        self._thread = 0
        self._is_away = False
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(lambda record: record.thread != self._thread)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._thread = threading.get_ident()
        result = SpanExportResult.FAILURE
        try:
            result = super().export(spans)
        finally:
            self._thread = 0
            is_away = result is not SpanExportResult.SUCCESS
            self.failed += len(spans) if is_away else 0
            self.sent += 0 if is_away else len(spans)
        if is_away is not self._is_away:
            does = "does not take spans, which are lost" if is_away else "takes spans again"
            log.warning("the collector of traces at %s %s", self._endpoint, does)
        self._is_away = is_away
        return result


class _Queue(BatchSpanProcessor):
    """Keeps no more spans than it has room for, and counts the others."""

    def __init__(self, exporter: _Exporter, room: int) -> None:
        super().__init__(exporter, max_queue_size=room)
        self.kept = self.refused = 0
        self._to, self._room, self._lock = exporter, room, threading.Lock()

    @property
    def waiting(self) -> int:
        """Those that are being sent, too."""
        return self.kept - self._to.sent - self._to.failed

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self.waiting >= self._room:
                self.refused += 1
                return
            self.kept += 1
        super().on_end(span)


class Tracing:
    """That of a process. Raises ``ValueError`` for what OpenTelemetry's variables cannot be."""

    CALLS, SERVES, WORKS = SpanKind.CLIENT, SpanKind.SERVER, SpanKind.INTERNAL

    def __init__(self, service: str, attributes: Mapping[str, str], environment: Mapping[str, str]) -> None:
        """``service``: its name where the environment gives none; ``attributes``: of all its spans."""
        self._ids = _Ids()
        self._exporter = _Exporter()
        self._queue = _Queue(self._exporter, int(environment.get("OTEL_BSP_MAX_QUEUE_SIZE") or QUEUE_MAX))
        told = environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        is_named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in told
        named = {} if is_named else {"service.name": service}
        provider = TracerProvider(
            resource=Resource.create(named | dict(attributes)),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer("inaproto")
        self._pid = os.getpid()
        self._ends, self._has_ended = threading.Event(), threading.Event()
        # There now: at the end of a process no thread can be started, and closing may hang.
        closing = threading.Thread(
            target=self._closing, args=(provider.shutdown,), name="inaproto tracing", daemon=True
        )
        closing.start()

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        *,
        trace_id: int,
        parent: str = "",
        links: Sequence[Link] = (),
        start_ns: int | None = None,
    ) -> Span:
        """A span; of the trace and below the span of ``parent``, a W3C traceparent, if that is one."""
        self._ids.wish.trace_id = trace_id
        return self._tracer.start_span(
            name,
            context=_context(parent) if parent else _NOTHING,
            kind=kind,
            attributes=dict(attributes),
            links=links,
            start_time=start_ns,
        )

    def traceparent(self, span: Span) -> str:
        """By which another process puts its spans below this one."""
        told: dict[str, str] = {}
        _W3C.inject(told, trace.set_span_in_context(span, _NOTHING))
        return told.get("traceparent", "")

    def links(self, traceparents: Sequence[str]) -> list[Link]:
        """To the spans that these name."""
        found = [trace.get_current_span(_context(each)).get_span_context() for each in traceparents]
        return [Link(each) for each in found if each.is_valid]

    def links_to_current(self) -> list[Link]:
        """To the span that the script itself has under way, if it has one."""
        current = trace.get_current_span().get_span_context()
        return [Link(current)] if current.is_valid else []

    def failed(self, span: Span, error: BaseException) -> None:
        """It ends with that."""
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(trace.StatusCode.ERROR, str(error))

    def status(self) -> dict[str, int]:
        """Spans by what became of them."""
        exporter, queue = self._exporter, self._queue
        return {"sent": exporter.sent, "waiting": queue.waiting, "lost": queue.refused + exporter.failed}

    def close(self) -> None:
        """Send what is left, as far as ``CLOSE_S`` lets."""
        if os.getpid() != self._pid:  # a child of fork has no such thread, and no spans
            return
        self._ends.set()
        self._has_ended.wait(CLOSE_S)
        status = self.status()
        lost = status["waiting"] + status["lost"]
        if lost:
            log.warning("%d spans were lost, %d were sent", lost, status["sent"])

    def _closing(self, shut_down: Callable[[], None]) -> None:
        self._ends.wait()
        shut_down()
        self._has_ended.set()


def _context(parent: str) -> Context:
    return _W3C.extract({"traceparent": parent}, _NOTHING)
