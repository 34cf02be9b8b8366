"""The shards of a switch, as the process with the control plane has them: started, told what they have,
asked how they are, and started again when they die.

Each shard (:mod:`inaproto.daemon.switch.shard`) is a process with a socket to this one. A shard counts as
there from its first word on until the socket ends; the control plane hears of both, and of nothing else that
becomes of the process. One that says nothing for ``SILENT_S`` stands, and is ended: it is asked all the time.

Invariants: orders for a shard go to the process that said it is there, in order, or to nobody; one that
dies again and again is started at most every ``RETRY_LAST_S``; no process of a shard outlives ``run``.
"""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Protocol

import trio

from inaproto.core.rendezvous.fabric.events import Installed
from inaproto.core.rendezvous.fabric.shards import shard_name
from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.core.switch.port_pauses import Silences
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.switch.ring_orders import said_by
from inaproto.errors import DecodeError
from inaproto.wire.control_messages import Message, Status, StatusReply
from inaproto.wire.messages.switch import (
    FRAMES_TOLD_MAX,
    InstallRefused,
    LinkPaused,
    RingFaulted,
    RingInstalled,
    SwitchHello,
    SwitchOpened,
)
from inaproto.wire.udp import shard_port

log = logging.getLogger("inaproto.switch")

RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 10.0
"""Pauses between a death and the next start: doubled each time, until one has lived for ``CALM_S``."""
CALM_S: Final = 60.0
STATUS_S: Final = 0.5
START_S: Final = 300.0
"""Within which a process says that it is there, on a machine that has much else to do, too."""
SILENT_S: Final = 60.0
EXIT_S: Final = 5.0
"""A process that has closed its socket is killed after this time."""
OUTPUT_BYTES_MAX: Final = 64 << 20
"""Orders that a shard has not read: more than all rings take."""

ShardCommand = Callable[[int, int], Sequence[str]]
"""The command line of the shard of that number, with its socket as that descriptor."""


class Plane(Protocol):
    """The control plane, as shards speak with it."""

    def shard_arrived(self, shard: str) -> None: ...
    def shard_lost(self, shard: str, reason: str) -> None: ...
    def switch_said(self, switch: str, said: RingFault | RingRefused | Installed) -> None: ...


@dataclass(slots=True)
class _State:
    number: int
    stream: ControlStream | None = None
    """While it is there."""
    pid: int = 0
    starts: int = 0
    since_s: float = 0.0
    error: str = "not started yet"
    told: dict[str, Any] = field(default_factory=dict)
    """What it said last of itself."""
    was_tried: trio.Event = field(default_factory=trio.Event)
    ended: dict[str, Any] = field(default_factory=dict)
    """Counters of those before it, added up."""


class ShardKeeper:
    """``shards`` processes, numbered from 1 on."""

    def __init__(self, shards: int, command: ShardCommand | None) -> None:
        self._command = command
        self._states = {
            shard_name(number): _State(number, since_s=trio.current_time()) for number in range(1, shards + 1)
        }
        self._ids = count(1)
        self.plane: Plane | None = None

    def has(self, name: str) -> bool:
        """Whether a shard is called so, there or not."""
        return name in self._states

    def tell(self, name: str, message: Message) -> None:
        """To the shard, if it is there."""
        stream = self._states[name].stream
        if stream is not None:
            with suppress(EndOfChannel):  # the task that receives sees it, too
                stream.send_nowait(message)

    def silence(self, link: int, silences: Silences, frames: int) -> None:
        """The far end of an interface asks for this; its ports at shards do not see such frames."""
        for name in self._states:
            self.tell(
                name,
                LinkPaused(
                    link=link,
                    priorities=tuple(silences),
                    silences_ns=tuple(silences.values()),
                    frames=min(frames, FRAMES_TOLD_MAX),
                ),
            )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, which ends the processes. It has started when each is there, or has died once:
        rings that are made before would all be the switch's own."""
        async with trio.open_nursery() as nursery:
            for name, state in self._states.items():
                nursery.start_soon(self._keep, name, state)
            for state in self._states.values():
                await state.was_tried.wait()
            task_status.started()

    async def _keep(self, name: str, state: _State) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            began = trio.current_time()
            state.error = await self._live(name, state)
            state.since_s = trio.current_time()
            state.was_tried.set()
            if state.since_s - began >= CALM_S:
                pause_s = RETRY_FIRST_S
            log.warning("%s died: %s; it is started again in %g s", name, state.error, pause_s)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LAST_S)

    async def _live(self, name: str, state: _State) -> str:
        """One process, from its start to its end; returns why it ended."""
        if self._command is None:
            await trio.sleep_forever()
        assert self._command is not None
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        stream = ControlStream(ours, output_bytes_max=OUTPUT_BYTES_MAX)
        try:
            with theirs:
                command = list(self._command(state.number, theirs.fileno()))
                process = await trio.lowlevel.open_process(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                )
        except OSError as error:
            stream.close("no process")
            return f"cannot be started: {error.strerror}"
        state.pid, state.starts = process.pid, state.starts + 1
        state.error = "it is starting"
        reason = ""
        try:
            reason = await self._converse(name, state, stream)
            with trio.move_on_after(EXIT_S):
                await process.wait()
        finally:
            was_killed = process.returncode is None
            with trio.CancelScope(shield=True):
                if was_killed:
                    process.kill()
                await process.wait()
            stream.close(reason or "the switch ends")
        if was_killed and reason:
            reason = f"{reason}; it did not end by itself"
        else:
            reason = _ending(process.returncode) or reason
        self._gone(name, state, reason)  # where the switch ends, its rings do, for that reason
        return reason

    async def _converse(self, name: str, state: _State, stream: ControlStream) -> str:
        reason = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.run)
            nursery.start_soon(self._ask, stream)
            try:
                while True:
                    limit_s = START_S if state.stream is None else SILENT_S
                    message: Message | None = None
                    with trio.move_on_after(limit_s):
                        message = await stream.receive()
                    if message is None:
                        reason = f"it has said nothing for {limit_s:g} s"
                        break
                    self._heard(name, state, stream, message)
            except (EndOfChannel, DecodeError) as ended:
                reason = str(ended)
            nursery.cancel_scope.cancel()
        return reason

    async def _ask(self, stream: ControlStream) -> None:
        with suppress(EndOfChannel):
            while True:
                await trio.sleep(STATUS_S)
                await stream.send(Status(id=next(self._ids)))

    def _heard(self, name: str, state: _State, stream: ControlStream, message: Message) -> None:
        match message:
            case SwitchHello():
                state.stream, state.since_s, state.error = stream, trio.current_time(), ""
                state.was_tried.set()
                log.info("%s is there: process %d, UDP source port %d", name, state.pid, _port(state))
                if self.plane is not None:
                    self.plane.shard_arrived(name)
            case RingInstalled() | InstallRefused() | RingFaulted():
                if self.plane is not None:
                    self.plane.switch_said(name, said_by(name, message))
            case StatusReply(body=body):
                state.told = dict(body)
            case SwitchOpened():
                log.info("%s takes packets", name)
            case _:
                log.warning("%s sends a message %r that is not for its switch", name, message.TYPE)

    def _gone(self, name: str, state: _State, reason: str) -> None:
        was_there, state.stream = state.stream is not None, None
        told, state.told, state.pid = state.told, {}, 0
        if told:
            counters = {"counters": told["accelerator"]["counters"]}
            counted = {"totals": told["totals"], "blames": told["blames"], "accelerator": counters}
            state.ended = added(state.ended, counted)
        if was_there and self.plane is not None:
            self.plane.shard_lost(name, reason)

    # --- status

    def status(self) -> list[dict[str, Any]]:
        """One record for each, there or not."""
        return [
            {
                "shard": state.number,
                "udp_source_port": _port(state),
                "pid": state.pid,
                "is_up": state.stream is not None,
                "since_s": round(trio.current_time() - state.since_s, 3),
                "starts": state.starts,
                "error": state.error,
                "ports": state.told.get("ports", []),
                "links": state.told.get("links", []),
                "accelerator": state.told.get("accelerator", {}),
            }
            for state in self._states.values()
        ]

    def merged(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The status ``found`` of this process with counters, rings and blames of all shards in it.

        Counters of processes that have died stay in it, as they were half a second before or later.
        """
        whole = {part: found[part] for part in ("totals", "accelerator", "blames")}
        for state in self._states.values():
            whole = added(added(whole, state.ended), {key: state.told.get(key, {}) for key in whole})
        return dict(found) | whole


def _port(state: _State) -> int:
    return shard_port(state.number)


def _ending(status: int | None) -> str:
    if status is None:
        return ""
    if status < 0:
        return f"killed by signal {-status} ({signal.Signals(-status).name})"
    return f"it ended with exit status {status}"


def added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers of both added up, map by map; of everything else the first one's."""
    found = dict(one)
    for key, value in other.items():
        mine = found.get(key)
        if isinstance(value, Mapping):
            found[key] = added(mine if isinstance(mine, Mapping) else {}, value)
        elif isinstance(mine, int | float) and not isinstance(mine, bool):
            found[key] = mine + value
        else:
            found.setdefault(key, value)
    return found
