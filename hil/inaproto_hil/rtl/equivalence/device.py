"""An accelerator as its judge sees it: rings come and go, frames go in one by one, and frames come out.

:class:`SoftwareDevice` is the software core (NetReduce sections 3.1, 3.2 and 4), one frame a step. Whatever
answers the same can stand in its place: RTL in simulation, a board.

Invariant: all that leaves because of a frame is returned with it; nothing is left to come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Protocol, TypeVar

import numpy as np

from inaproto.core import kernels
from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.events import (
    AcceleratorConfig,
    Action,
    Counters,
    EmitFrames,
    Event,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import Instant, PortId
from inaproto_hil.rtl.parameters import Parameters

T = TypeVar("T")
Output = list[tuple[int, bytes]]
"""Ports and the frames that left there, in order."""
Fault = tuple[int, int, str]
"""Ring, rank, rule."""

REPLAY_FILL_PACKETS_MAX = 32


class Device(Protocol):
    def install(self, spec: RingSpec) -> str | None:
        """Sum for a ring from now on; or why not."""
        ...

    def remove(self, ring_id: int) -> None:
        """Sum no more for a ring, and drop its packets; nothing if it is not there."""
        ...

    def forget(self) -> None:
        """Packets of the rings that were removed pass from now on, as all of no ring does."""
        ...

    def set_ports_up(self, up: frozenset[int]) -> None:
        """All others are down; all are up at the start. No frames come at ports that are down."""
        ...

    def frame(self, port: int, data: bytes) -> Output:
        """All that leaves because of this frame, in order."""
        ...

    def counters(self) -> dict[str, int]:
        """Those of :class:`~inaproto.core.switch.events.Counters` and dropped packets by rule, less zeros."""
        ...

    def faults(self) -> list[Fault]:
        """Rings that failed, in any order."""
        ...

    def close(self) -> None: ...


Maker = Callable[[], Device]


class SoftwareDevice:
    """The software core; ``choice`` of kernels is ``numpy`` or ``compiled`` (:mod:`inaproto.core.kernels`).

    Raises ``ValueError`` for kernels that are not there. The choice of kernels is one of the process. It is
    set while this device works and put back afterwards, so devices of both kinds can stand side by side.
    """

    def __init__(self, parameters: Parameters | None = None, choice: str = kernels.NUMPY) -> None:
        parameters = parameters or Parameters()
        self._choice = choice
        self._faults: list[Fault] = []
        self._config = config = AcceleratorConfig(
            early_packets_max=0,
            addresses_max=parameters.addresses,
            replay_fill_packets_max=REPLAY_FILL_PACKETS_MAX,
        )
        self._accelerator = self._with_kernels(lambda: Accelerator(config))
        self._now = Instant(0)
        """Time passes for connections of removed rings alone: packets that came too early are not kept."""
        self._up: frozenset[int] = frozenset()
        self.set_ports_up(frozenset(range(parameters.ports)))

    def install(self, spec: RingSpec) -> str | None:
        actions = self._step(InstallRing(spec))
        return next((action.reason for action in actions if isinstance(action, RingRefused)), None)

    def remove(self, ring_id: int) -> None:
        self._step(RemoveRing(ring_id))

    def forget(self) -> None:
        self._now = Instant(self._now + self._config.retired_ns)

    def set_ports_up(self, up: frozenset[int]) -> None:
        for port in sorted(self._up - up):
            self._step(PortDown(PortId(port)))
        for port in sorted(up - self._up):
            self._step(PortUp(PortId(port)))
        self._up = up

    def frame(self, port: int, data: bytes) -> Output:
        block = np.frombuffer(data, np.uint8).reshape(1, -1)
        out: Output = []
        for action in self._step(FramesArrived(PortId(port), [block])):
            if isinstance(action, EmitFrames):
                out += [(int(action.port), row.tobytes()) for row in action.frames]
            elif isinstance(action, RingFault):
                self._faults.append((action.ring_id, action.rank, action.rule))
        return out

    def counters(self) -> dict[str, int]:
        counters = self._accelerator.counters
        names = [each.name for each in fields(Counters) if each.name != "dropped"]
        found = {**{name: getattr(counters, name) for name in names}, **counters.dropped}
        return {name: count for name, count in found.items() if count}

    def faults(self) -> list[Fault]:
        return list(self._faults)

    def close(self) -> None:
        """There is nothing to give back."""

    def _step(self, event: Event) -> list[Action]:
        return self._with_kernels(lambda: self._accelerator.step(event, self._now))

    def _with_kernels(self, work: Callable[[], T]) -> T:
        had = kernels.active()
        kernels.choose(self._choice)
        try:
            return work()
        finally:
            kernels.choose(kernels.NUMPY if had is None else kernels.COMPILED)
