"""A collector of OpenTelemetry traces: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it came."""

    service: str
    name: str
    kind: int
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    said: dict[str, Any]
    events: list[tuple[str, int, dict[str, Any]]]
    links: list[tuple[str, str]]
    is_error: bool


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def _said(pairs: Any) -> dict[str, Any]:
    found: list[KeyValue] = list(pairs)
    return {pair.key: _value(pair.value) for pair in found}


@dataclass(eq=False)
class Collector:
    """What it was sent, at ``http://127.0.0.1:PORT``; ``answers``: with what status."""

    answers: int = 200
    hangs: bool = False
    requests: int = 0
    spans: list[Received] = field(default_factory=list)
    port: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def environment(self) -> dict[str, str]:
        """For processes that are to send it spans."""
        return {
            "INAPROTO_TRACING": "on",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def take(self, data: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(data)
        for of in request.resource_spans:
            service = _said(of.resource.attributes)["service.name"]
            for each in (span for scope in of.scope_spans for span in scope.spans):
                self.spans.append(
                    Received(
                        service,
                        each.name,
                        each.kind,
                        each.trace_id.hex(),
                        each.span_id.hex(),
                        each.parent_span_id.hex(),
                        each.start_time_unix_nano,
                        each.end_time_unix_nano,
                        _said(of.resource.attributes) | _said(each.attributes),
                        [(it.name, it.time_unix_nano, _said(it.attributes)) for it in each.events],
                        [(link.trace_id.hex(), link.span_id.hex()) for link in each.links],
                        each.status.code == 2,
                    )
                )

    def wait(self, ready: Callable[[], bool], deadline_s: float = 120.0) -> None:
        """Until that is so."""
        until = time.monotonic() + deadline_s
        while not ready():
            assert time.monotonic() < until, f"{self.requests} requests, {self.spans}"
            time.sleep(0.02)


@contextmanager
def collecting(*, answers: int = 200, hangs: bool = False) -> Iterator[Collector]:
    """One that answers with that status, or takes requests and never answers."""
    found = Collector(answers=answers, hangs=hangs)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.requests += 1
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if found.hangs:
                found.released.wait()
            if found.answers == 200 and self.path == "/v1/traces":
                found.take(data)
            self.send_response(found.answers)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
