"""What is tested: an accelerator with numbered ports, into which rings can be put.

:class:`InProcess` is one that is stepped (the software core, RTL in simulation); :class:`OverPorts` is a
board, or RTL that another process simulates: frames go to its ports, and come when they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final, Protocol

import numpy as np
import trio

from inaproto.core.switch.events import (
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortUp,
    RemoveRing,
    RingFault,
    RingRefused,
    SwitchAccelerator,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import Blame, FabricError
from inaproto.ports import FramePort, PortClosed
from inaproto.units import Instant, PortId
from inaproto_adapters.fpga.rings import FpgaRings
from inaproto_hil.rtl.parameters import Parameters

NOW = Instant(0)
LOOK_S: Final = 0.001
"""How soon the counters of a board are looked at again."""
Left = list[tuple[int, bytes]]
"""(port, frame), in the order of leaving."""


class Target(Protocol):
    @property
    def limits(self) -> Parameters:
        """How large a ring of the bench may be, and how many there can be."""
        ...

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def frame_bytes_min(self) -> int:
        """Frames that are shorter cannot be sent there, as links make them longer."""
        ...

    async def install(self, spec: RingSpec) -> str:
        """Why not; empty: it is in."""
        ...

    async def remove(self, ring_id: int) -> None:
        """Its packets are dropped from now on."""
        ...

    async def send(self, port: int, frame: bytes) -> None: ...

    async def take(self, frames: int) -> Left:
        """What left since the last call: so many frames, fewer if no more come in time, more if there are."""
        ...

    async def rest(self) -> Left:
        """Whatever still comes."""
        ...

    async def faults(self) -> list[tuple[int, int, str]]:
        """(ring, rank, rule) of rings that have stopped since the last call."""
        ...


class InProcess:
    """``accelerator`` is new, and has the ports 0 to ``limits.ports`` - 1 from now on."""

    def __init__(self, name: str, accelerator: SwitchAccelerator, limits: Parameters) -> None:
        self.name = name
        self.limits = limits
        self.frame_bytes_min = 1
        self._accelerator = accelerator
        self._left: Left = []
        self._faults: list[tuple[int, int, str]] = []
        for port in range(limits.ports):
            accelerator.step(PortUp(PortId(port)), NOW)

    async def install(self, spec: RingSpec) -> str:
        for said in self._accelerator.step(InstallRing(spec), NOW):
            if isinstance(said, RingRefused):
                return said.reason
        return ""

    async def remove(self, ring_id: int) -> None:
        self._accelerator.step(RemoveRing(ring_id), NOW)

    async def send(self, port: int, frame: bytes) -> None:
        block = np.frombuffer(frame, np.uint8).reshape(1, -1)
        for action in self._accelerator.step(FramesArrived(PortId(port), [block]), NOW):
            if isinstance(action, EmitFrames):
                self._left += [(int(action.port), row.tobytes()) for row in action.frames]
            elif isinstance(action, RingFault):
                self._faults.append((action.ring_id, action.rank, action.rule))

    async def take(self, frames: int) -> Left:
        left, self._left = self._left, []
        return left

    async def rest(self) -> Left:
        return await self.take(0)

    async def faults(self) -> list[tuple[int, int, str]]:
        faults, self._faults = self._faults, []
        return faults


class OverPorts:
    """A board behind ``rings`` and ``ports``; use it as a context manager.

    ``patience_s``: how long a frame may take that must come; ``quiet_s``: after how long without one none
    comes any more. A board whose counter of frames that left was right before is believed: they are waited
    for until it is not busy and as many came as it has counted. Raises ``FabricError`` for a port that is
    gone.
    """

    def __init__(
        self,
        name: str,
        rings: FpgaRings,
        ports: Sequence[FramePort],
        *,
        frame_bytes_min: int,
        patience_s: float = 20.0,
        quiet_s: float = 0.05,
    ) -> None:
        identity = rings.device.identity
        self.name = name
        self.frame_bytes_min = frame_bytes_min
        self.limits = Parameters(
            ports=len(ports),
            words=identity.words,
            rings=identity.rings,
            children=identity.children,
            window=identity.window,
            slots=identity.slots,
            mtu=identity.mtu,
            addresses=identity.addresses,
        )
        self._rings = rings
        self._ports = list(ports)
        self._patience_s = patience_s
        self._quiet_s = quiet_s
        self._received = 0
        """Frames that it has counted."""
        self._left_before = 0
        """Frames that it had sent when this began."""
        self._came_count = 0
        self._is_believed = False
        """What it counted as sent was once just what came."""
        self._left: Left = []
        self._came = trio.Event()
        self._gone = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> OverPorts:
        self._received, self._left_before = await self._rings.device.frames()
        nursery = await self._stack.enter_async_context(trio.open_nursery())
        self._stack.callback(nursery.cancel_scope.cancel)
        for number, port in enumerate(self._ports):
            nursery.start_soon(self._run, port)
            nursery.start_soon(self._receive, number, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _run(self, port: FramePort) -> None:
        try:
            await port.run()
        except PortClosed as closed:
            self._is_gone(closed.reason)

    async def _receive(self, number: int, port: FramePort) -> None:
        try:
            while True:
                for block in await port.receive():
                    self._left += [(number, row.tobytes()) for row in block]
                    self._came_count += len(block)
                self._came.set()
        except PortClosed as closed:
            self._is_gone(f"port {number}: {closed.reason}")

    def _is_gone(self, reason: str) -> None:
        self._gone = self._gone or reason
        self._came.set()

    async def install(self, spec: RingSpec) -> str:
        refused = await self._rings.install(spec, NOW)
        return "" if refused is None else refused.reason

    async def remove(self, ring_id: int) -> None:
        await self._rings.remove(ring_id, NOW)

    async def send(self, port: int, frame: bytes) -> None:
        self._require()
        self._ports[port].send_nowait(np.frombuffer(frame, np.uint8).reshape(1, -1))
        with trio.move_on_after(self._patience_s):
            while (counted := await self._count()) <= self._received:
                self._require()
            self._received = counted
            return
        cause = f"it did not count a frame of {len(frame)} bytes that was sent to its port {port}"
        raise FabricError("test", self.name, "sending a frame", cause, retryable=False)

    async def _count(self) -> int:
        received, _ = await self._rings.device.frames()
        return received

    async def take(self, frames: int) -> Left:
        with trio.move_on_after(self._patience_s) as patience:
            while len(self._left) < frames and not (self._is_believed and await self._has_all_come()):
                await self._next(LOOK_S)
        if frames and not (patience.cancelled_caught or self._is_believed):
            self._is_believed = await self._has_all_come()
        return self._taken(waited_in_vain=patience.cancelled_caught)

    async def rest(self) -> Left:
        limit_s = self._patience_s if self._is_believed else self._quiet_s
        had, since = self._came_count, trio.current_time()
        while not (self._is_believed and await self._has_all_come()):
            if trio.current_time() - since >= limit_s:
                return self._taken(waited_in_vain=True)
            await self._next(LOOK_S)
            if had != self._came_count:
                had, since = self._came_count, trio.current_time()
        return self._taken()

    def _taken(self, *, waited_in_vain: bool = False) -> Left:
        self._is_believed = self._is_believed and not waited_in_vain
        left, self._left = self._left, []
        return left

    async def _has_all_come(self) -> bool:
        """Whether nothing is on its way, by what the board says."""
        if await self._rings.device.is_busy():
            return False
        _, sent = await self._rings.device.frames()
        return sent - self._left_before == self._came_count

    async def _next(self, at_most_s: float) -> None:
        """Wait for what comes next, if it comes soon."""
        self._require()
        self._came = trio.Event()
        with trio.move_on_after(at_most_s):
            await self._came.wait()

    def _require(self) -> None:
        if self._gone:
            raise FabricError("test", self.name, "exchanging frames", self._gone, retryable=False)

    async def faults(self) -> list[tuple[int, int, str]]:
        said = await self._rings.faults()
        return [(one.ring_id, one.rank, one.rule) for one in said if not isinstance(one, Blame)]
