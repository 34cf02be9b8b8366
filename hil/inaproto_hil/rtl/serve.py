"""The simulated accelerator as a machine of its own: ``inaproto rtl serve``.

Its ports are sockets: ``port0``, ``port1`` and so on in its directory, and ``ports.sock``, where who comes
gets the first port that is free. Hosts, NICs and kernels behind them use it as their switch without knowing.
Its registers are at ``csr`` (:mod:`inaproto_adapters.fpga.simulated`), and whoever drives them is its
control plane: ``inaproto switch --accelerator fpga:socket:DIR/csr``.

Simulated time passes while something is under way, and stands still else. At the start all ports are up, as
those of a switch that nobody has configured. This process is the MAC of each port: it heeds pauses, and the
accelerator counts them.

Invariant: between two frames whoever asks for a register is answered, however many frames wait.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.core.switch.port_pauses import PausedPorts, silences_asked
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.daemon.switch.ports import OpenPortListener, WrapPort
from inaproto.errors import FabricError
from inaproto.ports import FramePort, PortClosed, PortListener
from inaproto.units import Frames, PortId
from inaproto.wire.pause import pauses_of
from inaproto_adapters.fpga.register_map import PORTS
from inaproto_adapters.fpga.simulated import serve_registers
from inaproto_hil.rtl.frames import RtlPorts
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.verilated.model import Model

ACCEPT_RETRY_S: Final = 0.5
WAITING_MAX: Final = 64
"""Frames that wait for the simulation; those behind them are left in the sockets."""


class Machine:
    """:func:`serve` runs it."""

    def __init__(self, model: Model, parameters: Parameters, wrap_port: WrapPort | None) -> None:
        self.parameters = parameters
        self._model = model
        self._wrap_port = wrap_port
        self._began = time.monotonic()
        self._busy_s = 0.0
        self._frames = RtlPorts(model, parameters)
        self._ports: dict[int, FramePort] = {}
        self._waiting, self._next = trio.open_memory_channel[tuple[int, Frames]](WAITING_MAX)
        self._to_nobody = 0
        self._held_too_long = 0
        self._paused_times = 0
        self._pauses = PausedPorts()
        self._alarm = Alarm(lambda: self._pauses.until, self._release)
        model.write32(PORTS, (1 << parameters.ports) - 1)

    def let_pass(self, cycles: int) -> None:
        """Time that somebody wants to pass; what leaves then is lost, as nothing was under way before."""
        self._model.clock(cycles)

    async def simulate(self) -> None:
        """Frame by frame, until cancelled."""
        async for number, frame in self._next:
            began = time.perf_counter()
            left = self._frames.through(number, [frame])
            self._busy_s += time.perf_counter() - began
            for at, out in left:
                silent = self._pauses.silent.get(PortId(at))
                if silent is None:
                    self._leaves(at, (out,))
                else:
                    silent.push((out,))

    def _leaves(self, at: int, blocks: Sequence[Frames]) -> int:
        """Returns how many are lost, as whoever pushes what is paused wants to know."""
        lost = 0
        port = self._ports.get(at)
        for frames in blocks:
            try:
                if port is not None:
                    port.send_nowait(frames)
                    continue
            except PortClosed:
                pass  # its own task hears of it, too
            lost += len(frames)
        self._to_nobody += lost
        return lost

    async def keep_pauses(self) -> None:
        """Let ports go on that were silent for as long as their far end asked; until cancelled."""
        await self._alarm.run()

    def _release(self) -> None:
        self._pauses.release(current_instant())

    def _heed(self, number: int, frames: Frames) -> None:
        silences = silences_asked(frames)
        if silences:
            pauses = len(pauses_of(frames))
            self._paused_times += pauses
            self._pauses.ask(
                PortId(number),
                silences,
                pauses,
                current_instant(),
                partial(self._leaves, number),
                self._drop_held,
            )
            self._alarm.look()

    def _drop_held(self, rule: str, frames: int) -> None:
        self._held_too_long += frames

    async def accept(self, listener: PortListener, number: int | None) -> None:
        """Serve who comes there at port ``number``, None: at the first that is free."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    port = await listener.accept()
                except PortClosed:
                    return
                except FabricError:
                    await trio.sleep(ACCEPT_RETRY_S)
                    continue
                free = [at for at in range(self.parameters.ports) if at not in self._ports]
                if not free or (number is not None and number not in free):
                    await port.aclose()
                    continue
                at = free[0] if number is None else number
                wrapped = port if self._wrap_port is None else self._wrap_port(port, f"port{at}")
                self._ports[at] = wrapped
                nursery.start_soon(self._serve, at, wrapped)

    async def _serve(self, number: int, port: FramePort) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.run)
                await self._receive(number, port)
                nursery.cancel_scope.cancel()
        except* PortClosed:
            pass
        finally:
            del self._ports[number]
            self._pauses.forget(PortId(number))
            with trio.CancelScope(shield=True):
                await port.aclose()

    async def _receive(self, number: int, port: FramePort) -> None:
        while True:
            try:
                blocks = await port.receive()
            except PortClosed:
                return
            for block in blocks:
                self._heed(number, block)
                for row in range(len(block)):
                    await self._waiting.send((number, block[row : row + 1].copy()))

    def report(self) -> dict[str, Any]:
        """Counts since the start, for people and programs."""
        cycles = self._model.cycles
        return {
            "frames_in": self._frames.frames_in,
            "frames_out": self._frames.frames_out,
            "frames_to_nobody": self._to_nobody,
            "frames_held_too_long": self._held_too_long,
            "pauses": self._paused_times,
            "refused": self._frames.refused,
            "cycles": cycles,
            "cycles_per_s": round(cycles / self._busy_s) if self._busy_s else 0,
            "busy_s": round(self._busy_s, 3),
            "wall_s": round(time.monotonic() - self._began, 3),
        }


async def serve(
    model: Model,
    parameters: Parameters,
    directory: Path,
    stop: trio.Event,
    *,
    open_port_listener: OpenPortListener,
    wrap_port: WrapPort | None = None,
    announce: Callable[[str], None],
) -> None:
    """Until ``stop``; ``announce`` gets a line when all sockets listen, and the report in the end.

    Raises ``ConfigError`` where a socket cannot be.
    """
    machine = Machine(model, parameters, wrap_port)
    listeners: list[PortListener] = []
    try:
        async with trio.open_nursery() as nursery:
            for number in (None, *range(parameters.ports)):
                listener = await open_port_listener(
                    directory / ("ports.sock" if number is None else f"port{number}")
                )
                listeners.append(listener)
                nursery.start_soon(machine.accept, listener, number)
            nursery.start_soon(machine.simulate)
            nursery.start_soon(machine.keep_pauses)
            await nursery.start(partial(serve_registers, directory / "csr", model, run=machine.let_pass))
            announce(f"ready rtl dir={directory} ports={parameters.ports}")
            await stop.wait()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            for listener in listeners:
                await listener.aclose()
    announce(json.dumps(machine.report()))
