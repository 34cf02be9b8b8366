"""The RTL as the accelerator of a switch: ``inaproto switch --accelerator rtl``.

It takes the orders and frames that the software core takes (:mod:`inaproto.core.switch.accelerator`), so
hosts, NICs and control planes use it without knowing. Rings that it does not sum for (of several switches,
of a pool, too large for it) are refused with a reason, and their hosts sum without the switch.

A frame is sent through the simulation as soon as it comes, with all that leaves because of it. So a switch
is as fast as the simulation, some thousand frames a second.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Final, assert_never

import numpy as np

from inaproto.core.switch.events import (
    AcceleratorConfig,
    AcceleratorView,
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
    RingState,
    RoundArrived,
)
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import Blame
from inaproto.ports import Adapter
from inaproto.units import Frames, Instant, PortId
from inaproto_adapters.fpga.at_once import AtOnceBus, at_once
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_hil.rtl.parameters import SHIFT_BYTES, Parameters, parameters_of
from inaproto_hil.rtl.verilated.build import build_accelerator
from inaproto_hil.rtl.verilated.model import Model

log = logging.getLogger("inaproto.rtl")

DEFAULTS: Final = {
    "ports": 4,
    "words": 4,
    "rings": 2,
    "children": 4,
    "window": 8,
    "slots": 5440,
    "mtu": 1024,
}
"""Sizes of ``rtl`` without any: four hosts, and two rings of the window and messages that hosts ask for."""
_COUNTERS: Final = frozenset(field.name for field in fields(Counters)) - {"dropped"}
_NOT_DROPS: Final = frozenset({"rx", "tx", "egress_stalls", "first_packets"})


class RtlAccelerator:
    """``step`` is as that of the software core. ``model`` is its own: nothing else may run it."""

    def __init__(self, model: Model, parameters: Parameters, config: AcceleratorConfig) -> None:
        self._model = model
        self._parameters = parameters
        self._config = config
        self._device = at_once(FpgaDevice.identify(AtOnceBus(model, "the simulated accelerator")))
        self._index: dict[PortId, int] = {}
        self._ports: dict[int, PortId] = {}
        self._specs: dict[int, RingSpec] = {}
        self._faulted: set[int] = set()
        self._leaving: dict[int, Instant] = {}
        """Rings that were removed, and until when their packets are dropped."""
        self._faults = 0
        self._refused_frames: dict[str, int] = {}

    @property
    def rings(self) -> Mapping[int, RingState]:
        """None that can be looked into: they are in the hardware."""
        return {}

    @property
    def addresses(self) -> Mapping[bytes, int]:
        """None that can be looked into."""
        return {}

    def view(self) -> AcceleratorView:
        """Counters and rings, read from the registers."""
        named = at_once(self._device.counters())
        dropped = {
            name: count
            for name, count in named.items()
            if count and name not in _COUNTERS and name not in _NOT_DROPS
        }
        for reason, count in self._refused_frames.items():
            dropped[reason] = dropped.get(reason, 0) + count
        counters = Counters(dropped=dropped)
        for name in _COUNTERS & named.keys():
            setattr(counters, name, named[name])
        rings: dict[int, dict[str, int | bool]] = {}
        for ring_id, spec in self._specs.items():
            state = at_once(self._device.state(ring_id))
            rings[ring_id] = {
                "ranks": spec.size,
                "next_message": state.next_serial,
                "next_packet": state.next_offset,
                "failed": state.fault is not None,
            }
        connections = sum(spec.size for spec in self._specs.values())
        return AcceleratorView(rings, counters, 0, connections)

    def step(self, event: Event, now: Instant) -> list[Action]:
        actions: list[Action] = []
        match event:
            case FramesArrived(port, blocks):
                self._frames(port, blocks, actions)
            case RoundArrived(arrivals):
                for port, blocks in arrivals:
                    self._frames(port, blocks, actions)
            case PortUp(port):
                self._port_up(port)
            case PortDown(port):
                index = self._index.pop(port, None)
                if index is not None:
                    del self._ports[index]
                    self._tell_ports()
            case InstallRing(spec):
                self._install(spec, now, actions)
            case RemoveRing(ring_id):
                if self._specs.pop(ring_id, None) is not None:
                    at_once(self._device.stop(ring_id))
                    self._leaving[ring_id] = Instant(now + self._config.retired_ns)
            case _:
                assert_never(event)
        return actions

    # -- ports and rings -------------------------------------------------------------------------

    def _port_up(self, port: PortId) -> None:
        free = [index for index in range(self._parameters.ports) if index not in self._ports]
        if not free:
            log.warning("port %d has no place: this accelerator has %d ports", port, self._parameters.ports)
            return
        self._index[port], self._ports[free[0]] = free[0], port
        self._tell_ports()

    def _tell_ports(self) -> None:
        at_once(self._device.set_ports_up(self._ports))

    def _install(self, spec: RingSpec, now: Instant, actions: list[Action]) -> None:
        wanted = {flow.connection for flow in spec.flows}
        placed = self._device.rings
        for ring_id, until in list(self._leaving.items()):
            again = any(flow.connection in wanted for flow in self._device.spec_of(ring_id).flows)
            if until <= now or again or len(placed) >= self._parameters.rings or ring_id == spec.ring_id:
                at_once(self._device.remove(ring_id))
                del self._leaving[ring_id]
                placed = self._device.rings
        answer = at_once(self._device.install(spec))
        if isinstance(answer, RingRefused):
            actions.append(answer)
        else:
            self._specs[spec.ring_id] = spec
            self._faulted.discard(spec.ring_id)

    # -- frames --------------------------------------------------------------------------------

    def _frames(self, port: PortId, blocks: Sequence[Frames], actions: list[Action]) -> None:
        index = self._index.get(port)
        most = self._parameters.foreign_bytes - SHIFT_BYTES
        for block in blocks:
            for row in block:
                if index is None or not 0 < len(row) <= most:
                    why = "no place for its port" if index is None else "longer than the accelerator takes"
                    self._refused_frames[why] = self._refused_frames.get(why, 0) + 1
                    continue
                self._model.send(index, row.tobytes())
                for at, frame in self._model.run():
                    out = self._ports.get(at)
                    if out is not None:
                        actions.append(EmitFrames(out, np.frombuffer(frame, np.uint8).reshape(1, -1)))
        self._look_for_faults(actions)

    def _look_for_faults(self, actions: list[Action]) -> None:
        last = at_once(self._device.last_fault())
        if last is None or last.count == self._faults:
            return
        self._faults = last.count
        failed = False
        for ring_id in self._specs.keys() - self._faulted:
            state = at_once(self._device.state(ring_id))
            if state.fault is not None:
                rule, rank = state.fault
                self._faulted.add(ring_id)
                failed = True
                actions.append(RingFault(ring_id, rank, rule, "as the accelerator says"))
        if not failed:
            ring = "no ring" if last.ring_id is None else f"ring {last.ring_id}, rank {last.rank}"
            actions.append(Blame(ring, last.rule, "as the accelerator says"))


def open_rtl(text: str, config: AcceleratorConfig) -> RtlAccelerator:
    """What ``--accelerator rtl:TEXT`` names. Raises ``LocalMisuse``, which says what is missing to build
    it."""
    parameters = parameters_of(text, DEFAULTS)
    return RtlAccelerator(Model(build_accelerator(parameters), parameters), parameters, config)


ADAPTER: Final = Adapter(name="rtl", kinds=frozenset({"accelerator"}), open=open_rtl)
