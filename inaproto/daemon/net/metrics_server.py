"""Metrics over HTTP, as Prometheus asks for them: GET /metrics at an address or a UNIX socket.

What is told is made when it is asked for, from the daemon's status; nothing is kept. Whoever reaches the
address may read: there are no names of users or jobs in it, but it is for a network that is trusted.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from inaproto.daemon.net.http_server import HttpConfig, serve
from inaproto.daemon.net.metrics_address import TcpAddress, parse_metrics
from inaproto.daemon.net.unix_sockets import listen_unix
from inaproto.errors import ConfigError

MakeMetrics = Callable[[Mapping[str, Any]], Iterable[Metric]]
REQUEST_BYTES_MAX: Final = 1 << 14
KEEP_ALIVE_S: Final = 75
CONNECTIONS_MAX: Final = 64
"""At a time; who asks for metrics keeps one."""
_BACKLOG: Final = 16

log = logging.getLogger("inaproto.metrics")


async def serve_metrics(
    where: str,
    make: MakeMetrics,
    status: Callable[[], Mapping[str, Any]],
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled. Started with the URL, or the socket's path. Raises ``ConfigError``."""
    address = parse_metrics(where)
    if isinstance(address, Path):
        bound = await listen_unix(address, "metrics: their socket")
        with closing(bound):
            await _serve(bound.sock, str(address), make, status, task_status)
    else:
        with closing(_listen_tcp(address)) as sock:
            url = f"http://{TcpAddress(*sock.getsockname()[:2])}/metrics"
            await _serve(sock, url, make, status, task_status)


def _listen_tcp(address: TcpAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(f"metrics: cannot listen at {address}: {error.strerror or error}") from None


async def _serve(
    sock: socket.socket,
    told: str,
    make: MakeMetrics,
    status: Callable[[], Mapping[str, Any]],
    task_status: trio.TaskStatus[str],
) -> None:
    config = HttpConfig()
    config.connections_max = CONNECTIONS_MAX
    config.bind = [f"fd://{os.dup(sock.fileno())}"]
    config.errorlog = logging.getLogger("inaproto.metrics.http")
    config.errorlog.setLevel(logging.WARNING)
    config.h11_max_incomplete_size = REQUEST_BYTES_MAX
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.include_server_header = False
    async with trio.open_nursery() as nursery:
        app = cast("Any", application(make, status))  # Starlette's own type says less of a scope
        await nursery.start(partial(serve, app, config, shutdown_trigger=trio.sleep_forever))
        log.info("metrics at %s", told)
        task_status.started(told)


def application(make: MakeMetrics, status: Callable[[], Mapping[str, Any]]) -> Starlette:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(lambda: make(status())))

    async def metrics(request: Request) -> Response:
        try:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # it asks for what there is not
            encode, kind = choose_encoder("")
        return Response(encode(registry), headers={"content-type": kind})

    return Starlette(routes=[Route("/metrics", metrics, methods=["GET"])])


class _Now(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()
