"""Ports of the switch daemon: one task each, frames in, accelerator, frames out.

Ports of trunks to other switches and those on interfaces have fixed numbers, those of hosts get the next
after all others. A switch of a fabric opens its ports when it is admitted, and closes all of them when it is
admitted no more. A port that lends memory tells the accelerator when it comes up: what is built there must be
sent before the next step.

Invariants: what arrived is stepped and the results are queued on their ports before anything else is
received or stepped, because emitted frames may be views of what arrived or of memory used again; a
port that fails, or whose peer sends what no frame can be, ends alone. No task, channel or await per
frame (docs/writing-a-core.md, "Vectors").
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import trio

from inaproto.core.switch.accelerator import (
    Action,
    EmitFrames,
    Event,
    ForLink,
    FramesArrived,
    PortDown,
    PortUp,
    RoundArrived,
)
from inaproto.core.switch.moderation import Moderation
from inaproto.core.switch.port_pauses import PausedPorts, Silences, silences_asked
from inaproto.daemon.capture.recording import Recording
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.daemon.switch.narrow_ports import PortSize
from inaproto.daemon.switch.rounds import Rounds
from inaproto.errors import FabricError
from inaproto.ports import (
    FramePort,
    LendsMemory,
    PortClosed,
    PortCounters,
    PortListener,
    RingsLater,
    SendsBlocks,
    TakesNow,
)
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.pause import pauses_of

log = logging.getLogger("inaproto.switch")

ACCEPT_RETRY_S = 0.5
"""Pause when the process has no descriptor left for another port."""
CLOSED_HERE = "closed on this side"


class OpenPortListener(Protocol):
    """Raises ``ConfigError`` with the remedy when ``path`` cannot be listened at."""

    async def __call__(self, path: Path) -> PortListener: ...


ConnectPort = Callable[[Path], Awaitable[FramePort]]
"""Attaches to whoever listens at a path. Raises ``FabricError``, ``PortClosed`` or ``OSError``."""
Greet = Callable[[FramePort], Awaitable[Sequence[Frames]]]
"""Agrees with the far side to use a port; returns what arrived after that. Raises ``PortClosed``."""
WrapPort = Callable[[FramePort, str], FramePort]
"""Puts something (weather) around a port, whose name it is given."""
TellSilence = Callable[[int, Silences, int], None]
"""Tells others with a port on that interface, by its index, what its far end asks for with so many frames."""


class PortBoard:
    """All ports of the switch. ``step`` is the accelerator's, ``perform`` takes what is not for a port."""

    def __init__(
        self,
        step: Callable[[Event, Instant], Iterable[Action]],
        perform: Callable[[Action], None],
        *,
        wrap_port: WrapPort | None,
        ports_max: int,
        trunks: int = 0,
        links: int = 0,
        moderation: Moderation | None = None,
        tell_silence: TellSilence | None = None,
    ) -> None:
        """``trunks``: how many numbers, from 1 on, are those of trunks; ``links``: how many after them are
        those of interfaces; ``moderation``: how long ports may be left alone that can."""
        self._step = step
        self._perform = perform
        self._wrap_port = wrap_port
        self._ports_max = ports_max
        self._ports: dict[PortId, FramePort] = {}
        self._send_blocks: dict[PortId, Callable[[Sequence[Frames]], int]] = {}
        """Of the ports that have it."""
        self._rings: dict[PortId, Callable[[], None]] = {}
        """Of the ports whose far side sleeps until then."""
        self._scopes: dict[PortId, trio.CancelScope] = {}
        self._names: dict[PortId, str] = {}
        self.recordings: tuple[Recording, ...] = ()
        self.first_link = PortId(1 + trunks if trunks else 0)
        self._first = self._serial = self.first_link + links
        self._seen = 0
        self.is_open = trunks == 0
        """Whether ports may come up."""
        self._ended = _Totals()
        self._sent_to_closed = 0
        self._pauses = PausedPorts()
        self._paused = self._pauses.silent
        self._tell_silence = tell_silence
        self._alarm = Alarm(lambda: self._pauses.until, self._release)
        self._rounds = None if moderation is None else Rounds(moderation, self._arrived)

    async def accept_ports(self, listener: PortListener) -> None:
        """Serve every port that comes, until the listener is closed."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    port = await listener.accept()
                except PortClosed:
                    return
                except FabricError as error:
                    log.warning("no new port: %s", error)
                    await trio.sleep(ACCEPT_RETRY_S)
                    continue
                if not self.is_open:
                    await port.aclose()
                    continue
                if self._hosts >= self._ports_max:
                    all_used = f"all {self._ports_max} are in use (--ports-max)"
                    why = all_used if self._ports_max else "no host can be at this switch, a further root"
                    log.warning("port refused: %s", why)
                    await port.aclose()
                    continue
                port_id = PortId(self._serial)
                self._serial += 1
                nursery.start_soon(self.serve, port_id, port, f"port-{port_id}")

    async def serve(self, port_id: PortId, port: FramePort, name: str, greet: Greet | None = None) -> str:
        """Until the port closes, here or there; returns why. It is up once ``greet`` has returned."""
        if self._wrap_port is not None:
            port = self._wrap_port(port, name)
        reason = CLOSED_HERE
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.run)
                arrived = await greet(port) if greet is not None else ()
                self._take_up(port_id, port, name, nursery.cancel_scope)
                log.info("%s up", name)
                if arrived:
                    for recording in self.recordings:
                        recording.saw(port_id, arrived, is_outbound=False)
                    self._do(FramesArrived(port_id, arrived))
                reason = await self._receive(port_id, port)
                nursery.cancel_scope.cancel()
        except* PortClosed as closed:  # of greet; those of a port in use are caught where it is read
            reason = "; ".join(str(error) for error in closed.exceptions)
        finally:
            if self._take_down(port_id, port):
                log.info("%s down: %s", name, reason)
            with trio.CancelScope(shield=True):
                await port.aclose()
        return reason

    @property
    def _hosts(self) -> int:
        """Ports that are up and neither trunks nor interfaces."""
        return sum(port_id >= self._first for port_id in self._ports)

    def close(self) -> None:
        """All ports go down at once, and none comes up until ``is_open`` is set."""
        self.is_open = False
        if self._ports:
            log.info("all %d ports down", len(self._ports))
        for port_id in list(self._ports):
            self.drop(port_id)

    def drop(self, port_id: PortId) -> None:
        """A port goes down at once: nothing more is taken from it, nothing more is sent."""
        port = self._ports.get(port_id)
        if port is not None:
            self._scopes[port_id].cancel()
            self._take_down(port_id, port)

    def is_up(self, port_id: PortId) -> bool:
        return port_id in self._ports

    def frames_in(self, port_id: PortId) -> int | None:
        """How many have come on a port; None if it is down."""
        port = self._ports.get(port_id)
        return None if port is None else port.counters.frames_in

    def send(self, port_id: PortId, frames: Frames) -> None:
        """Past the accelerator; nowhere if the port is down."""
        port = self._ports.get(port_id)
        if port is not None:
            with suppress(PortClosed):  # its own task hears of it, too
                taken = port.send_nowait(frames)
                for recording in self.recordings:
                    recording.saw(port_id, (frames[:taken],), is_outbound=True)

    def sizes(self) -> dict[int, PortSize]:
        """Of the ports that are up, for what they are too small."""
        return {
            int(port_id): PortSize(self._names[port_id], port.capabilities.frame_bytes_max)
            for port_id, port in self._ports.items()
        }

    # --- captures

    def port_names(self) -> list[str]:
        """Names of the ports that are up."""
        return list(self._names.values())

    def record(self, recording: Recording) -> None:
        """It sees all frames from now on."""
        for port_id, name in self._names.items():
            recording.watch(port_id, name)
        self.recordings += (recording,)

    def forget(self, recording: Recording) -> None:
        self.recordings = tuple(one for one in self.recordings if one is not recording)

    def _take_up(self, port_id: PortId, port: FramePort, name: str, scope: trio.CancelScope) -> None:
        if not self.is_open:
            raise PortClosed("this switch has its ports closed")
        self.drop(port_id)  # a trunk that was dialled again, before its end was heard
        self._ports[port_id] = port
        if isinstance(port, RingsLater):
            self._rings[port_id] = port.ring
        self._send_as_before(port_id, port)
        self._scopes[port_id] = scope
        self._names[port_id] = name
        for recording in self.recordings:
            recording.watch(port_id, name)
        self._seen += 1
        self._do(PortUp(port_id, port if isinstance(port, LendsMemory) else None))

    def _take_down(self, port_id: PortId, port: FramePort) -> bool:
        """Whether it was up."""
        if self._ports.get(port_id) is not port:
            return False
        del self._ports[port_id], self._scopes[port_id], self._names[port_id]
        self._send_blocks.pop(port_id, None)
        self._rings.pop(port_id, None)
        self._pauses.forget(port_id)
        self._ended.add(port)
        self._do(PortDown(port_id))
        return True

    async def _receive(self, port_id: PortId, port: FramePort) -> str:
        """Until the port closes; returns why it did."""
        asked = port if isinstance(port, TakesNow) else None
        while self._ports.get(port_id) is port:
            try:
                if self._rounds is not None and asked is not None:
                    await self._rounds.join(port_id, asked)
                blocks = await port.receive()
            except PortClosed as closed:
                return closed.reason
            if self._ports.get(port_id) is port:
                if self._rounds is not None:
                    self._rounds.came(port_id, blocks)
                for recording in self.recordings:  # before the accelerator, which may write over them
                    recording.saw(port_id, blocks, is_outbound=False)
                self._do(FramesArrived(port_id, blocks))
        return "it was closed"

    def _arrived(self, arrivals: Sequence[FramesArrived]) -> None:
        """In a round."""
        for recording in self.recordings:
            for port_id, blocks in arrivals:
                recording.saw(port_id, blocks, is_outbound=False)
        self._do(RoundArrived(arrivals))

    def _do(self, event: Event) -> None:
        ports = self._ports
        others: list[Action] = []
        together: dict[PortId, list[Frames]] = {}
        for action in self._step(event, current_instant()):
            if type(action) is EmitFrames:
                if action.port in self._send_blocks and not self.recordings:
                    together.setdefault(action.port, []).append(action.frames)
                    continue
                port = ports.get(action.port)
                try:
                    if port is not None:
                        if self._paused and action.port in self._paused:  # and recorded
                            taken = len(action.frames) - self._paused[action.port].push((action.frames,))
                        else:
                            taken = port.send_nowait(action.frames)
                        for recording in self.recordings:
                            recording.saw(action.port, (action.frames[:taken],), is_outbound=True)
                        continue
                except PortClosed:
                    pass  # its own task hears of it, too
                self._sent_to_closed += len(action.frames)
            elif type(action) is ForLink:
                self._heard_of_link(*action)
            else:
                others.append(action)
        if together:
            self._send_together(together)
        # Later, because these may step the accelerator, which then uses its memory again.
        for action in others:
            self._perform(action)

    # --- pauses

    async def keep_pauses(self) -> None:
        """Let ports go on that were silent for as long as their far end asked; until cancelled."""
        await self._alarm.run()

    def _heard_of_link(self, port_id: PortId, frames: Frames) -> None:
        silences = silences_asked(frames)
        if not silences:
            return
        count = len(pauses_of(frames))
        if self._tell_silence is not None and self.first_link <= port_id < self._first:
            self._tell_silence(port_id - self.first_link, silences, count)
        self.be_silent(port_id, silences, count)

    def be_silent(self, port_id: PortId, silences: Silences, frames: int) -> None:
        """The far end of that port asks for this, with so many frames."""
        port = self._ports.get(port_id)
        if port is None:
            return
        now = current_instant()
        self._pauses.ask(port_id, silences, frames, now, self._sending_quietly(port), port.counters.drop)
        self._look_at_pause(port_id, port)
        self._alarm.look()

    def _look_at_pause(self, port_id: PortId, port: FramePort) -> None:
        """Have what is for the port pass by its pauses, while there are any."""
        pauses = self._paused.get(port_id)
        if pauses is not None:
            self._send_blocks[port_id] = pauses.push
        else:
            self._send_blocks.pop(port_id, None)
            self._send_as_before(port_id, port)

    def _release(self) -> None:
        for port_id in self._pauses.release(current_instant()):
            self._look_at_pause(port_id, self._ports[port_id])

    def _send_as_before(self, port_id: PortId, port: FramePort) -> None:
        if isinstance(port, RingsLater):
            self._send_blocks[port_id] = port.send_blocks_quietly
        elif isinstance(port, SendsBlocks):
            self._send_blocks[port_id] = port.send_blocks_nowait

    def _sending_of(self, port: FramePort) -> Callable[[Sequence[Frames]], int]:
        if isinstance(port, SendsBlocks):
            return port.send_blocks_nowait
        return lambda blocks: sum(len(frames) - port.send_nowait(frames) for frames in blocks)

    def _sending_quietly(self, port: FramePort) -> Callable[[Sequence[Frames]], int]:
        """As ``_sending_of``; what finds the port closed is counted."""
        send = self._sending_of(port)

        def quietly(blocks: Sequence[Frames]) -> int:
            try:
                return send(blocks)
            except PortClosed:  # its own task hears of it, too
                lost = sum(map(len, blocks))
                self._sent_to_closed += lost
                return lost

        return quietly

    def _send_together(self, blocks_of: dict[PortId, list[Frames]]) -> None:
        for port_id, blocks in blocks_of.items():
            try:
                send = self._send_blocks[port_id]
            except KeyError:  # a pause that ended in this step has put things back as they were
                send = self._sending_of(self._ports[port_id])
            try:
                send(blocks)
            except PortClosed:  # its own task hears of it, too
                self._sent_to_closed += sum(map(len, blocks))
        if self._rings:
            for port_id in blocks_of:
                ring = self._rings.get(port_id)
                if ring is not None:
                    ring()

    def status(self) -> list[dict[str, Any]]:
        """One record per port that is up."""
        now = current_instant()
        return [
            {
                "port": int(port_id),
                "name": self._names[port_id],
                "kind": port.capabilities.name,
                "way": port.capabilities.way,
                **_counters(port.counters),
                **self._pauses.status(port_id, now),
                "weather": _weather(port),
            }
            for port_id, port in sorted(self._ports.items())
        ]

    def totals(self) -> dict[str, int]:
        """Over all ports, those that are down included; monotonic."""
        totals = self._ended.copy()
        for port in self._ports.values():
            totals.add(port)
        return {**totals.counts, "frames_to_closed_ports": self._sent_to_closed, "ports_seen": self._seen}


class _Totals:
    """Sums of port and weather counters."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(
            (
                "frames_in",
                "frames_out",
                "bytes_in",
                "bytes_out",
                "frames_lost",
                "frames_duplicated",
                "frames_reordered",
                "frames_corrupted",
                "frames_truncated",
            ),
            0,
        )

    def copy(self) -> _Totals:
        other = _Totals()
        other.counts = dict(self.counts)
        return other

    def add(self, port: FramePort) -> None:
        counters, weather, counts = port.counters, _weather(port), self.counts
        counts["frames_in"] += counters.frames_in
        counts["frames_out"] += counters.frames_out
        counts["bytes_in"] += counters.bytes_in
        counts["bytes_out"] += counters.bytes_out
        counts["frames_lost"] += sum(counters.drops.values()) + weather.get("dropped", 0)
        for kind in ("duplicated", "reordered", "corrupted", "truncated"):
            counts[f"frames_{kind}"] += weather.get(kind, 0)


def _counters(counters: PortCounters) -> dict[str, Any]:
    return {
        "frames_in": counters.frames_in,
        "frames_out": counters.frames_out,
        "bytes_in": counters.bytes_in,
        "bytes_out": counters.bytes_out,
        "drops": dict(counters.drops),
    }


def _weather(port: FramePort) -> dict[str, int]:
    """What a port's weather did; empty for a port without weather."""
    tell = getattr(port, "weather_counters", None)
    return dict(tell()) if tell is not None else {}
