"""The RTL as the accelerator of a switch: ``inaproto switch --accelerator rtl``.

It takes the orders and frames that the software core takes (:mod:`inaproto.core.switch.accelerator`), so
hosts, NICs and control planes use it without knowing. Rings that it does not sum for (of several switches,
too large for it) are refused with a reason, and their hosts sum without the switch.

A frame is sent through the simulation as soon as it comes, with all that leaves because of it. So a switch
is as fast as the simulation, some thousand frames a second.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, assert_never

from inaproto.core.switch.bridge import is_of_a_link
from inaproto.core.switch.events import (
    AcceleratorConfig,
    AcceleratorView,
    Action,
    EmitFrames,
    Event,
    ForLink,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingState,
    RoundArrived,
)
from inaproto.core.switch.ingest import peer_of
from inaproto.errors import Blame
from inaproto.ports import Adapter
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.packet import decode_packet
from inaproto.wire.path_probe import answers_to
from inaproto_adapters.fpga.at_once import AtOnceBus, at_once
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_adapters.fpga.rings import FpgaRings
from inaproto_hil.rtl.frames import RtlPorts
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


class RtlAccelerator:
    """``step`` is as that of the software core. ``model`` is its own: nothing else may run it."""

    def __init__(self, model: Model, parameters: Parameters, config: AcceleratorConfig) -> None:
        self._frames = RtlPorts(model, parameters)
        self._parameters = parameters
        device = at_once(FpgaDevice.identify(AtOnceBus(model, "the simulated accelerator")))
        self._rings = FpgaRings(device, retired_ns=config.retired_ns)
        self._index: dict[PortId, int] = {}
        self._ports: dict[int, PortId] = {}
        self._path_probes = 0
        self._without: dict[PortId, None] = {}
        """Ports that are up and have no place, in the order in which they came."""

    @property
    def rings(self) -> Mapping[int, RingState]:
        """None that can be looked into: they are in the hardware."""
        return {}

    @property
    def addresses(self) -> Mapping[bytes, int]:
        """None that can be looked into."""
        return {}

    @property
    def mtu_max(self) -> int:
        return self._parameters.mtu

    def view(self) -> AcceleratorView:
        """Counters and rings, read from the registers; what is answered before frames come to it, too."""
        view = at_once(self._rings.view())
        view.counters.path_probes = self._path_probes
        for reason, count in self._frames.refused.items():
            view.counters.drop(reason, count)
        return view

    def step(self, event: Event, now: Instant) -> list[Action]:
        actions: list[Action] = []
        at_once(self._rings.expire(now))
        match event:
            case FramesArrived(port, blocks):
                self._take_in(port, blocks, actions)
            case RoundArrived(arrivals):
                for port, blocks in arrivals:
                    self._take_in(port, blocks, actions)
            case PortUp(port):
                self._port_up(port)
            case PortDown(port):
                self._port_down(port)
            case InstallRing(spec):
                refused = at_once(self._rings.install(spec, now))
                if refused is not None:
                    actions.append(refused)
            case RemoveRing(ring_id):
                at_once(self._rings.remove(ring_id, now))
            case _:
                assert_never(event)
        return actions

    # -- ports and rings -------------------------------------------------------------------------

    def _port_up(self, port: PortId) -> None:
        free = [index for index in range(self._parameters.ports) if index not in self._ports]
        if not free:
            log.warning("port %d has no place: this accelerator has %d ports", port, self._parameters.ports)
            self._without[port] = None
            return
        self._index[port], self._ports[free[0]] = free[0], port
        self._tell_ports()

    def _port_down(self, port: PortId) -> None:
        self._without.pop(port, None)
        index = self._index.pop(port, None)
        if index is None:
            return
        del self._ports[index]
        self._tell_ports()
        if self._without:
            first = next(iter(self._without))
            del self._without[first]
            self._port_up(first)

    def _tell_ports(self) -> None:
        at_once(self._rings.device.set_ports_up(self._ports))

    # -- frames --------------------------------------------------------------------------------

    def _take_in(self, port: PortId, blocks: Sequence[Frames], actions: list[Action]) -> None:
        index = self._index.get(port)
        for block in blocks:
            for at in range(len(block)):
                frame = block[at : at + 1]
                if index is not None and (answer := self._answer(frame)) is not None:
                    actions.append(EmitFrames(port, answer))
                    continue
                if is_of_a_link(frame[0, :6].tobytes()):
                    actions.append(ForLink(port, frame))  # this process is the MAC: it heeds pauses
                for left_by, frames in self._frames.through(index, [frame]):
                    out = self._ports.get(left_by)
                    if out is not None:
                        actions.append(EmitFrames(out, frames))
                actions += self._said_of(frame.tobytes())

    def _answer(self, frame: Frames) -> Frames | None:
        """To a path probe of a length that the hardware takes, which has none itself."""
        if frame.shape[1] > self._parameters.foreign_bytes - SHIFT_BYTES:
            return None
        answer = answers_to(frame)
        self._path_probes += answer is not None
        return answer

    def _said_of(self, frame: bytes) -> Iterator[Action]:
        """Whose fault the frame is that came."""
        for said in at_once(self._rings.faults()):
            if not isinstance(said, Blame):
                yield said
            elif (packet := decode_packet(frame)) is not None:
                yield Blame(peer_of(packet), said.rule, f"{said.peer}, {said.evidence}")


def open_rtl(text: str, config: AcceleratorConfig) -> RtlAccelerator:
    """What ``--accelerator rtl:TEXT`` names. Raises ``LocalMisuse``, which says what is missing to build
    it."""
    parameters = parameters_of(text, DEFAULTS)
    return RtlAccelerator(Model(build_accelerator(parameters), parameters), parameters, config)


ADAPTER: Final = Adapter(name="rtl", kinds=frozenset({"accelerator"}), open=open_rtl)
