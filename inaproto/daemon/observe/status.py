"""Asking running daemons for their status, over the sockets that they serve anyway."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from inaproto.daemon.net.control_address import Door
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.names import AGENTS_SOCKET, CONTROL_SOCKET, JOBS_SOCKET, gives_no_status
from inaproto.daemon.net.unix_sockets import connect_unix
from inaproto.daemon.observe.status_shapes import status_misfit
from inaproto.errors import ConfigError, DecodeError
from inaproto.pasted import pasted
from inaproto.wire.control import why_not
from inaproto.wire.control_messages import Error, Status, StatusReply

ANSWER_S = 5.0


@dataclass(slots=True)
class Report:
    """What the daemons said, and what went wrong in asking them."""

    switch: dict[str, Any] | None = None
    hosts: list[dict[str, Any]] = field(default_factory=list)
    other_switches: list[dict[str, Any]] = field(default_factory=list)
    """Those after the first."""
    servers: list[dict[str, Any]] = field(default_factory=list)
    """Parameter servers."""
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            "switch": self.switch,
            "other_switches": self.other_switches,
            "hosts": self.hosts,
            "servers": self.servers,
            "problems": self.problems,
            "missing": list(missing(self)),
        }


async def ask_daemons(directory: Path | None, sockets: Sequence[Path], doors: Sequence[Door] = ()) -> Report:
    """Ask all sockets of ``directory``, those in ``sockets``, and who is behind ``doors``, each once.

    With ``directory`` also the switches that those name and that have sockets on this machine: of hosts
    theirs, of a root those of its fabric.
    """
    report = Report()
    paths = list(dict.fromkeys([*(_sockets_in(directory, report) if directory else []), *sockets]))
    asked: list[Path | Door] = [*paths, *doors]
    answers: dict[Path | Door, dict[str, Any]] = {}

    async def ask_one(path: Path | Door) -> None:
        try:
            answer = await (ask(path) if isinstance(path, Path) else ask_door(path))
        except (ConfigError, StatusRefused) as error:
            report.problems.append(str(error))
            return
        wrong = status_misfit(answer)
        if wrong:
            report.problems.append(f"{path}: its status is that of another release: {wrong}")
        else:
            answers[path] = answer

    known = {path.resolve() for path in paths}
    news = list(asked)
    while news:
        async with trio.open_nursery() as nursery:
            for path in news:
                nursery.start_soon(ask_one, path)
        named = [path for one in news for path in _named_by(answers.get(one, {}))] if directory else []
        news = [path for path in dict.fromkeys(named) if path.resolve() not in known and _is_socket(path)]
        known |= {path.resolve() for path in news if isinstance(path, Path)}
        asked += news
    for path in asked:
        answer = answers.get(path, {})
        if answer.get("role") == "switch" and report.switch is None:
            report.switch = answer
        elif answer.get("role") == "switch":
            report.other_switches.append(answer)
        elif answer.get("role") == "server":
            report.servers.append(answer)
            report.problems += _faults_of(answer)
        elif answer:
            report.hosts.append(answer)
    report.problems.sort()
    return report


def _faults_of(server: Mapping[str, Any]) -> Iterator[str]:
    for shard in server["shards"]:
        if shard.get("fault"):
            yield f"server {server['name']}, {shard['model']}/{shard['shard']}: {shard['fault']}"


def missing(report: Report) -> Iterator[str]:
    """What daemons that answer lack for their jobs to go on."""
    yield from filter(None, map(lacking_switch, report.hosts))
    switches = [*([] if report.switch is None else [report.switch]), *report.other_switches]
    yield from filter(None, map(lacking_control, switches))


def needs_no_switch(host: Mapping[str, Any]) -> bool:
    """Whether all that it does is to push and pull."""
    return bool(host.get("models")) and not host.get("rings")


def lacking_switch(host: Mapping[str, Any]) -> str:
    """That a host has no switch, and why; empty if it has one, or needs none."""
    switch = host.get("switch", {})
    if switch.get("connected") or needs_no_switch(host):
        return ""
    return _lacking(f"host {host.get('name', '?')}", "switch", switch)


def lacking_control(switch: Mapping[str, Any]) -> str:
    """That a switch has no control plane, and why; empty if it has one, or is the root."""
    control = switch.get("control")
    if control is None or control.get("connected"):
        return ""
    return _lacking(switch_name(switch), "control plane", control)


def switch_name(switch: Mapping[str, Any]) -> str:
    return f"switch {switch.get('name') or ''}".strip()


def _lacking(who: str, what: str, told: Mapping[str, Any]) -> str:
    why = told.get("error")
    return f"{who} has no {what}" + (f": {why}" if why else "")


def _named_by(status: Mapping[str, Any]) -> Iterator[Path]:
    """Sockets of switches, which may be elsewhere or gone."""
    if status.get("role") == "host":
        yield Path(status.get("switch", {}).get("path") or CONTROL_SOCKET)
    for switch in status.get("fabric", {}).get("switches", ()):
        yield Path(switch["dir"]) / CONTROL_SOCKET


class StatusRefused(Exception):
    """A daemon gave no status; the text says which and why."""


def _is_socket(path: Path) -> bool:
    """Whether it is one that can be seen: the directory may be closed to this user."""
    try:
        return path.is_socket()
    except OSError:
        return False


def _who_else(path: Path) -> str:
    """What to do where there is no socket ``path``."""
    try:
        there = ", ".join(one.name for one in _daemons_in(path.parent))
    except OSError:
        there = ""
    if not there:
        return "is the daemon started, and there?"
    return f"in {path.parent} are {there}; --dir {path.parent} asks them all"


def _who_tells(path: Path) -> str:
    """Who tells what somebody wants to know who asks at ``path``, where no status is told; else empty."""
    if not gives_no_status(path.name) or not _is_socket(path):
        return ""
    if path.name in (JOBS_SOCKET, AGENTS_SOCKET):
        return f"it is a controller's; its jobs: {pasted('job list', dir=path.parent)}"
    return f"it takes the frames of a switch; ask that at {path.parent / CONTROL_SOCKET}"


def _why_nobody(path: Path) -> str:
    """Why a connection to ``path`` is refused, and what to do."""
    if not path.is_socket():
        return "it is no socket; give a daemon's, or its --dir"
    return "nobody listens there; the daemon was killed, start it again"


async def ask(path: Path) -> dict[str, Any]:
    """The status of the daemon that listens at ``path``. Raises ``ConfigError`` or ``StatusRefused``."""
    if told := _who_tells(path):
        raise StatusRefused(f"{path}: {told}")
    try:
        stream = ControlStream(await connect_unix(path, "status"))
    except FileNotFoundError:
        raise StatusRefused(f"{path}: there is no such socket; {_who_else(path)}") from None
    except ConnectionRefusedError:
        raise StatusRefused(f"{path}: {_why_nobody(path)}") from None
    except OSError as error:
        raise StatusRefused(f"{path}: cannot connect: {error.strerror}") from None
    return await _ask_over(stream, str(path))


async def ask_door(door: Door) -> dict[str, Any]:
    """The status of the daemon behind ``door``. Raises ``StatusRefused``."""
    try:
        stream = ControlStream(await door.connect())
    except OSError as error:
        raise StatusRefused(f"{door}: cannot connect: {error.strerror}") from None
    return await _ask_over(stream, str(door))


async def _ask_over(stream: ControlStream, path: str) -> dict[str, Any]:
    try:
        with trio.fail_after(ANSWER_S):
            with suppress(EndOfChannel):  # one that refuses may have closed, after it said why
                await stream.send(Status(id=1))
            answer = await stream.receive()
    except trio.TooSlowError:
        raise StatusRefused(
            f"{path}: gave no answer within {ANSWER_S:g} s; is it overloaded or stopped?"
        ) from None
    except EndOfChannel as end:
        raise StatusRefused(f"{path}: the connection was {end.reason}") from None
    except DecodeError as error:
        raise StatusRefused(f"{path}: {why_not(error, 'is no inaproto daemon')}") from None
    finally:
        stream.close()
    match answer:
        case StatusReply(body=body):
            return dict(body)
        case Error(message=message):
            raise StatusRefused(f"{path}: {message}")
        case _:
            raise StatusRefused(f"{path}: answered by {answer.TYPE!r}; is it an inaproto daemon?")


def _sockets_in(directory: Path, report: Report) -> list[Path]:
    """Sockets of daemons in ``directory``, the switch's first."""
    try:
        found = _daemons_in(directory)
    except NotADirectoryError as error:
        how = f"a socket is asked by --socket {directory}"
        report.problems.append(f"{directory}: {error.strerror}; {how}")
        return []
    except OSError as error:
        report.problems.append(f"{directory}: {error.strerror}")
        return []
    if not found:
        report.problems.append(
            f"{directory}: no inaproto daemon has its socket here; "
            f"start one (inaproto switch --dir {directory}) or give its --dir or --socket"
        )
    return found


def _daemons_in(directory: Path) -> list[Path]:
    """Sockets in ``directory`` at which a status is told, the switch's first; none where there is no such
    directory. Raises ``OSError`` where it cannot be read."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = [directory / name for name in names if name.endswith(".sock") and not gives_no_status(name)]
    found = [path for path in found if _is_socket(path) and not path.is_symlink()]  # one may have just gone
    return sorted(found, key=lambda path: (path.name != CONTROL_SOCKET, path.name))
