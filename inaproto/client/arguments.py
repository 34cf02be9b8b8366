"""What ``connect`` is called with, checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import trio

from inaproto.client.channel import JobRank
from inaproto.client.joining import SOCKET_VARIABLE
from inaproto.client.ring_names import parse_ring_job, ring_job
from inaproto.client.wishes import JobWishes
from inaproto.errors import LocalMisuse, Unsupported
from inaproto.units import UNIX_PATH_BYTES_MAX

JOB_BYTES_MAX = 128
KEY_BYTES_MAX = 256


def check_arguments(
    job: object, rank: Any, size: Any, key: object, timeout: object, wishes: JobWishes
) -> JobRank:
    """Raises ``LocalMisuse``."""
    if not isinstance(job, str) or not 0 < len(job.encode()) <= JOB_BYTES_MAX:
        raise LocalMisuse(f"connect: job is {job!r:.200}; it must be a name of 1 to {JOB_BYTES_MAX} bytes")
    if parse_ring_job(job).rings > 1:
        raise LocalMisuse(
            f"connect: job is {job!r}; names that end like #0/2 are those of parallel rings, choose another"
        )
    if not is_integer(size) or not 0 < size < 1 << 16:
        raise LocalMisuse(f"connect: size is {size!r:.200}; it must be the number of ranks, 1 to 65535")
    if not is_integer(rank) or not 0 <= rank < size:
        raise LocalMisuse(f"connect: rank is {rank!r:.200}; ranks of a job of {size} are 0 to {size - 1}")
    if not isinstance(key, str) or len(key.encode()) > KEY_BYTES_MAX:
        raise LocalMisuse(f"connect: key must be text of at most {KEY_BYTES_MAX} bytes")
    check_timeout("connect", timeout)
    return JobRank(job, int(rank), int(size), key, wishes)


def check_sockets(socket: object, who: JobRank, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Sockets of the host daemons, one for each parallel ring of the job; none: the only daemon is to be
    looked for.

    Raises ``LocalMisuse``; ``Unsupported`` for what parallel rings cannot do.
    """
    where = "socket"
    if socket is None:
        named = [part for part in environment.get(SOCKET_VARIABLE, "").split(os.pathsep) if part]
        if len(named) < 2:
            return ()
        where, socket = f"${SOCKET_VARIABLE}", named
    listed = list(socket) if isinstance(socket, list | tuple) else [socket]
    paths = tuple(Path(each) for each in listed if isinstance(each, str | os.PathLike))
    if not paths or len(paths) < len(listed):
        raise LocalMisuse(
            f"connect: {where} is {socket!r:.200}; it must be the path of the host daemon's socket, or a "
            "list of them, one for each NIC"
        )
    for path in paths:
        if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
            raise LocalMisuse(
                f"connect: the socket path {path} is longer than {UNIX_PATH_BYTES_MAX} bytes; use a "
                "shorter one"
            )
        if paths.count(path) > 1:
            raise LocalMisuse(f"connect: {where} has {path} twice; each ring needs a host daemon of its own")
    if len(paths) > 1:
        _check_rings(who, len(paths))
    return paths


def _check_rings(who: JobRank, rings: int) -> None:
    if who.wishes.elastic:
        raise Unsupported(
            "elastic", f"a job of {rings} parallel rings cannot go on without a rank; give one socket"
        )
    room = JOB_BYTES_MAX - len(ring_job("", rings - 1, rings).encode())
    if len(who.job.encode()) > room:
        raise LocalMisuse(f"connect: job is {who.job!r}; with {rings} sockets it may have {room} bytes")


def check_timeout(call: str, timeout: Any) -> None:
    """Raises ``LocalMisuse`` unless it is seconds, or None."""
    if timeout is not None and not (isinstance(timeout, int | float | np.floating) and timeout >= 0):
        raise LocalMisuse(f"{call}: timeout is {timeout!r:.200}; it must be seconds, or None for no limit")


def require_trio(call: str, blocking: str) -> None:
    """Raises ``LocalMisuse`` where a coroutine of ours runs in another event loop, which cannot drive it."""
    if not trio.lowlevel.in_trio_run():
        raise LocalMisuse(
            f"`await inaproto.{call}(...)` needs Trio, and this is no Trio program; use "
            f"inaproto.{blocking}(...), which needs no event loop (under asyncio: "
            f"`await asyncio.to_thread(inaproto.{blocking}, ...)`)"
        )


def is_integer(value: object) -> bool:
    """Whether it is an integer: numpy's are, booleans are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)
