"""A board for a switch daemon: the software core with ports of its own, which does orders late, if at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.events import (
    AcceleratorConfig,
    AcceleratorLost,
    AcceleratorView,
    Action,
    Event,
    InstallRing,
    RemoveRing,
    RingFault,
    RingReady,
    RingRefused,
    RingState,
    SaidLater,
)
from inaproto.daemon.switch.ports import PortBoard
from inaproto.errors import Blame
from inaproto.ports import load_adapter
from inaproto.units import Instant


class SoftwareBoard:
    """``make`` is for a switch whose ``ports.sock`` is at ``path``. A test sets what becomes of the board."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._core = Accelerator(AcceleratorConfig())
        self._say: Callable[[SaidLater], None] = lambda said: None
        self._orders_in, self._orders_out = trio.open_memory_channel[
            tuple[InstallRing | RemoveRing, Instant]
        ](99)
        self.is_asked = trio.Event()
        self.may_answer = trio.Event()
        self.may_answer.set()
        self.refusal = ""
        """What it says of rings that it is told to install."""
        self.error = ""
        """Why it cannot be reached."""
        self.installed: list[int] = []

    def make(self, config: AcceleratorConfig) -> SoftwareBoard:
        return self

    @property
    def rings(self) -> Mapping[int, RingState]:
        return {}

    @property
    def addresses(self) -> Mapping[bytes, int]:
        return {}

    def view(self) -> AcceleratorView:
        return self._core.view()

    def status(self) -> dict[str, Any]:
        return {"is_there": not self.error, "error": self.error}

    def step(self, event: Event, now: Instant) -> list[Action]:
        assert isinstance(event, InstallRing | RemoveRing), "no frame and no port is the switch's"
        if self.error and isinstance(event, InstallRing):
            return [RingRefused(event.spec.ring_id, self.error)]
        self._orders_in.send_nowait((event, now))
        self.is_asked.set()
        return []

    async def run(self, say: Callable[[SaidLater], None]) -> None:
        self._say = say
        ports = PortBoard(self._core.step, self._heard, wrap_port=None, ports_max=16)
        listener = await load_adapter("frames").open().listen(self._path)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ports.accept_ports, listener)
                async for order, now in self._orders_out:
                    await self.may_answer.wait()
                    self._obey(order, now)
        finally:
            with trio.CancelScope(shield=True):
                await listener.aclose()
                await self._orders_out.aclose()
                await self._orders_in.aclose()

    def _obey(self, order: InstallRing | RemoveRing, now: Instant) -> None:
        if isinstance(order, InstallRing) and self.refusal:
            self._say(RingRefused(order.spec.ring_id, self.refusal))
            return
        assert not self._core.step(order, now)
        if isinstance(order, InstallRing):
            self.installed.append(order.spec.ring_id)
            self._say(RingReady(order.spec.ring_id))

    def _heard(self, action: Action) -> None:
        assert isinstance(action, RingFault | Blame)
        self._say(action)

    def lose(self, error: str) -> None:
        """From now on it does not answer, though frames still pass."""
        self.error = error
        self._say(AcceleratorLost(error))
