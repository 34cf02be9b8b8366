"""Whether a process traces, and the ids by which spans of several processes are one trace.

Trace ids are computed, not drawn: the same on all ranks and hosts, from the job, its life and the number of
the operation. All spans of an all-reduce so have one trace although nobody tells them its id, and as
OpenTelemetry's samplers decide by the id, all processes keep the same traces.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from inaproto.errors import ConfigError, LocalMisuse, Unsupported

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

VARIABLE: Final = "INAPROTO_TRACING"
OF_RING: Final = -1
"""In place of an operation's number: the trace of how a ring came about, which ``life`` then names."""

log = logging.getLogger("inaproto.tracing")


def trace_id(job: str, life: int, op_index: int) -> int:
    """Of all-reduce ``op_index``; ``life``: id of the first ring that the job had, no other life's."""
    told = f"{job}\0{life}\0{op_index}"
    return int.from_bytes(hashlib.sha256(told.encode()).digest()[:16], "big") or 1


def open_tracing(service: str, **attributes: str) -> Tracing:
    """For a process that wants it; ``attributes`` are of all its spans. Raises ``Unsupported``."""
    try:
        from inaproto.tracing.spans import Tracing
    except ImportError as error:
        why = f"OpenTelemetry's packages are missing ({error}): pip install 'inaproto[tracing]'"
        raise Unsupported("tracing", why) from None
    try:
        return Tracing(service, attributes, os.environ)
    except ValueError as error:  # variables that contradict each other
        raise Unsupported("tracing", f"OpenTelemetry refuses its OTEL_ variables: {error}") from None


def tracing_of_daemon(wanted: str, role: str, name: str) -> Tracing | None:
    """``wanted``: its setting. Raises ``ConfigError`` where it is wanted and cannot be."""
    if wanted == "off":
        return None
    try:
        return open_tracing(f"inaproto {role}", **{f"inaproto.{role}": name})
    except Unsupported as why:
        raise ConfigError(f"tracing: {why}") from None


_of_process: dict[int, Tracing | None] = {}
"""That of this training process, by its pid: a child of fork has none of its parent's threads."""
_opening = threading.Lock()


def tracing_of_process(environment: Mapping[str, str]) -> Tracing | None:
    """Of a training process, if it is to have any; opened once. It trains without where there is none.

    Raises ``LocalMisuse`` for what the variable cannot be.
    """
    value = environment.get(VARIABLE) or "off"
    if value not in ("on", "off"):
        raise LocalMisuse(f"{VARIABLE} is {value!r}: must be on or off")
    if value == "off":
        return None
    pid = os.getpid()
    with _opening:
        if pid not in _of_process:
            _of_process.clear()
            try:
                found = _of_process[pid] = open_tracing("inaproto rank")
            except Unsupported as why:
                _of_process[pid] = None
                log.warning("%s: %s", VARIABLE, why)
            else:
                atexit.register(found.close)
        return _of_process[pid]
