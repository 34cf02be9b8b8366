"""Ports of the switch daemon: one task each, frames in, accelerator, frames out.

Invariants: what arrived is stepped and the results are queued on their ports before anything else is
received or stepped, because emitted frames may be views of what arrived or of memory used again; a
port that fails, or whose peer sends what no frame can be, ends alone. No task, channel or await per
frame (data-path.md section 8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import trio

from inaproto.core.accelerator import Action, EmitFrames, Event, FramesArrived, PortDown, PortUp
from inaproto.errors import FabricError
from inaproto.ports import FramePort, PortClosed, PortCounters
from inaproto.units import Instant, PortId, S

log = logging.getLogger("inaproto.switch")

ACCEPT_RETRY_S = 0.5
"""Pause when the process has no descriptor left for another port."""


class PortListener(Protocol):
    """Where hosts plug in. ``accept`` raises ``PortClosed`` at its end, ``FabricError`` for another try."""

    async def accept(self) -> FramePort: ...
    async def aclose(self) -> None: ...


class OpenPortListener(Protocol):
    """Raises ``ConfigError`` with the remedy when ``path`` cannot be listened at."""

    async def __call__(self, path: Path) -> PortListener: ...


WrapPort = Callable[[FramePort, str], FramePort]
"""Puts something (weather) around a port, whose name it is given."""


def current_instant() -> Instant:
    return Instant(round(trio.current_time() * S))


class PortBoard:
    """All ports of the switch. ``step`` is the accelerator's, ``perform`` takes what is not for a port."""

    def __init__(
        self,
        step: Callable[[Event, Instant], Iterable[Action]],
        perform: Callable[[Action], None],
        *,
        wrap_port: WrapPort | None,
        ports_max: int,
    ) -> None:
        self._step = step
        self._perform = perform
        self._wrap_port = wrap_port
        self._ports_max = ports_max
        self._ports: dict[PortId, FramePort] = {}
        self._serial = 0
        self._ended = _Totals()
        self._sent_to_closed = 0

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
                if len(self._ports) >= self._ports_max:
                    log.warning("port refused: all %d are in use (--ports-max)", self._ports_max)
                    await port.aclose()
                    continue
                nursery.start_soon(self._serve, port)

    async def _serve(self, port: FramePort) -> None:
        port_id = PortId(self._serial)
        self._serial += 1
        name = f"port-{port_id}"
        if self._wrap_port is not None:
            port = self._wrap_port(port, name)
        self._ports[port_id] = port
        self._do(PortUp(port_id))
        log.info("%s up", name)
        reason = "the switch ended"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.run)
                reason = await self._receive(port_id, port)
                nursery.cancel_scope.cancel()
        finally:
            del self._ports[port_id]
            self._ended.add(port)
            self._do(PortDown(port_id))
            log.info("%s down: %s", name, reason)
            with trio.CancelScope(shield=True):
                await port.aclose()

    async def _receive(self, port_id: PortId, port: FramePort) -> str:
        """Until the port closes; returns why it did."""
        while True:
            try:
                blocks = await port.receive()
            except PortClosed as closed:
                return closed.reason
            self._do(FramesArrived(port_id, blocks))

    def _do(self, event: Event) -> None:
        ports = self._ports
        others: list[Action] = []
        for action in self._step(event, current_instant()):
            if type(action) is EmitFrames:
                port = ports.get(action.port)
                try:
                    if port is not None:
                        port.send_nowait(action.frames)
                        continue
                except PortClosed:
                    pass  # its own task hears of it, too
                self._sent_to_closed += len(action.frames)
            else:
                others.append(action)
        # Later, because these may step the accelerator, which then uses its memory again.
        for action in others:
            self._perform(action)

    def status(self) -> list[dict[str, Any]]:
        """One record per port that is up."""
        return [
            {
                "port": int(port_id),
                "kind": port.capabilities.name,
                **_counters(port.counters),
                "weather": _weather(port),
            }
            for port_id, port in self._ports.items()
        ]

    def totals(self) -> dict[str, int]:
        """Over all ports, those that are down included; monotonic."""
        totals = self._ended.copy()
        for port in self._ports.values():
            totals.add(port)
        return {**totals.counts, "frames_to_closed_ports": self._sent_to_closed, "ports_seen": self._serial}


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
