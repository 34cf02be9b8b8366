"""How a rank finds its host daemon and joins its job."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from inaproto.client.channel import Channel, Clock, JobRank, Steps, Wait
from inaproto.client.meeting_places import meeting_places
from inaproto.client.operation_spans import OperationSpans
from inaproto.client.protocol import ClientProtocol
from inaproto.client.run_directory import DIRECTORY_VARIABLE, SERVER_SOCKETS, run_directory
from inaproto.client.waits import explain_join, until_joined
from inaproto.errors import DaemonUnreachable
from inaproto.ports import Dial
from inaproto.tracing.opening import tracing_of_process

SOCKET_VARIABLE = "INAPROTO_HOST_SOCKET"
"""Variable with the socket of one host daemon, or of several, one for each parallel ring, with a colon
between them."""
CONNECT_RETRY_S = 0.05
REPORT_AFTER_S = 1.0
"""A daemon that is missing for this long is worth a line in the log."""
FRAMES_SOCKET = "ports.sock"
"""Name of the socket at which a switch takes frames. It answers nobody who asks in words."""
_SWITCH_SOCKETS = ("control.sock", FRAMES_SOCKET)

log = logging.getLogger("inaproto.client")


def find_socket(environment: dict[str, str]) -> tuple[Path | None, str]:
    """Where the host daemon of this machine listens, or None and why it is not known.

    A directory of another user is not searched, unless it was named: under ``/tmp`` anybody could have
    made it, to be handed the job's key and tensors.
    """
    if environment.get(SOCKET_VARIABLE):
        return named_socket(Path(environment[SOCKET_VARIABLE]))
    directory = run_directory(environment)
    owner = _stranger(directory)
    if owner is not None and not environment.get(DIRECTORY_VARIABLE):
        return None, f"{directory} belongs to user {owner}, not to {os.geteuid()}, and is not trusted"
    return _only_socket(directory)


def named_socket(path: Path) -> tuple[Path | None, str]:
    """The socket that ``path`` names, or None and why it is not known: of a run directory, which daemons and
    commands take by ``--dir``, the only host daemon's in it."""
    return _only_socket(path) if path.is_dir() else (path, "")


def _only_socket(directory: Path) -> tuple[Path | None, str]:
    found = sorted(
        path
        for path in directory.glob("*.sock")
        if path.name not in _SWITCH_SOCKETS and not path.name.startswith(SERVER_SOCKETS)
    )
    if len(found) == 1:
        return found[0], ""
    if not found:
        return None, f"there is no host daemon's socket in {directory}"
    return None, f"there are several in {directory} ({', '.join(path.name for path in found)}), choose one"


def trusted_run_directory(environment: Mapping[str, str]) -> Path | None:
    """The run directory, unless it is another user's and nobody named it: see :func:`find_socket`."""
    directory = run_directory(environment)
    return directory if environment.get(DIRECTORY_VARIABLE) or _stranger(directory) is None else None


def _stranger(directory: Path) -> int | None:
    """The user whose directory (or link to one) it is, if that is neither this one nor root."""
    try:
        owners = (os.lstat(directory).st_uid, os.stat(directory).st_uid)
    except OSError:
        return None  # there is none, or nothing can be found in it
    return next((owner for owner in owners if owner not in (0, os.geteuid())), None)


def reach_daemon(
    path: Path | None,
    who: JobRank,
    until: float | None,
    timeout: float | None,
    clock: Clock,
    dial: Dial,
    protocol: ClientProtocol | None = None,
) -> Steps[Channel]:
    report_at: float | None = clock() + REPORT_AFTER_S
    while True:
        target, why = find_socket(dict(os.environ)) if path is None else named_socket(path)
        if target is not None and target.name == FRAMES_SOCKET and target.is_socket():
            raise _unreachable(who, f"{target} takes the frames of hosts, and is a switch's")
        if target is not None:
            try:
                return Channel(dial(target), target, who, protocol, dial)
            except OSError as error:
                why = f"{target}: {error.strerror or error}"
                if target.exists() and not target.is_socket():
                    why += ", as it is no socket"
                if error.errno not in (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN):
                    raise _unreachable(who, why) from None
        if until is not None and clock() >= until:
            raise _unreachable(who, f"{why}; waited {timeout:g} s")
        if report_at is not None and clock() >= report_at:
            log.warning("%s", _unreachable(who, f"{why}; still trying"))
            report_at = None
        soon = clock() + CONNECT_RETRY_S
        yield Wait((), soon if until is None else min(soon, until))


def _unreachable(who: JobRank, why: str) -> DaemonUnreachable:
    return DaemonUnreachable(
        f"{who}: no host daemon answers: {why}. Start one (`inaproto host --help`), and give its socket by "
        f"socket= or {SOCKET_VARIABLE}"
    )


def connecting(
    path: Path | None, who: JobRank, *, timeout: float | None, clock: Clock, dial: Dial
) -> Steps[Channel]:
    """Find the host daemon, join the job, wait until all ranks have. Raises ``JobError``."""
    until = None if timeout is None else clock() + timeout
    channel = yield from reach_daemon(path, who, until, timeout, clock, dial)
    try:
        yield from joining(channel, until, timeout, clock)
    except BaseException:
        channel.close()
        raise
    return channel


def ask_to_join(channel: Channel) -> None:
    who = channel.who
    channel.meeting_places = meeting_places(channel.path)
    channel.send(
        channel.protocol.join(
            job=who.job,
            rank=who.rank,
            size=who.size,
            key=who.key,
            pid=os.getpid(),
            path=who.wishes.path,
            exact_plan=who.wishes.exact_plan,
            elastic=who.wishes.elastic,
            life=who.life,
            meets=tuple(channel.meeting_places),
        )
    )


def joining(channel: Channel, until: float | None, timeout: float | None, clock: Clock) -> Steps[None]:
    """Join the job by a channel that is connected, and wait until all ranks have. Raises ``JobError``."""
    protocol = channel.protocol
    began = time.time_ns()
    ask_to_join(channel)
    there = yield from until_joined(
        channel, lambda: protocol.joined is not None or protocol.failure is not None, until, clock
    )
    if protocol.failure is not None:
        raise protocol.failure
    if not there:
        late = yield from explain_join(channel, timeout, clock)
        if late is not None:
            raise late
    if protocol.joined is not None:
        channel.memory.segments_max = protocol.joined.segments_max
        trace_operations(channel, protocol.joined.ring_id, began)


def trace_operations(channel: Channel, life: int, began: int) -> None:
    """Trace those of a rank that asked to join at ``began`` (wall clock, ns), if its environment says so.

    ``life``: id of the first ring of its job, the same on all ranks.
    """
    tracing = tracing_of_process(os.environ)
    if tracing is not None:
        who, joined = channel.who, channel.protocol.joined
        spans = channel.protocol.spans = OperationSpans(tracing, who.job, who.rank, who.size, life)
        spans.joined(began, life if joined is None else joined.ring_id)
