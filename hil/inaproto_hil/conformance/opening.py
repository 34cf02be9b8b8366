"""Opens what ``inaproto hil accelerator --target`` names, as ``inaproto switch --accelerator`` names it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio

from inaproto.core.switch.events import AcceleratorConfig
from inaproto.errors import FabricError, LocalMisuse
from inaproto.parts import link_of
from inaproto.ports import FramePort, load_adapter
from inaproto_adapters.fpga.buses import bus_opener
from inaproto_adapters.fpga.claim import claimed, new_owner, own_name
from inaproto_adapters.fpga.device import FpgaDevice
from inaproto_adapters.fpga.rings import FpgaRings
from inaproto_hil.conformance.suite import golden
from inaproto_hil.conformance.target import InProcess, OverPorts, Target
from inaproto_hil.rtl.parameters import Parameters, parameters_of

DEFAULTS: Final = {"ports": 4, "rings": 2, "children": 4, "window": 4, "slots": 256, "mtu": 256}
LINGER_S: Final = 0.1
ETHERNET_HEADER_BYTES: Final = 14
ETHERNET_BYTES_MIN: Final = 60
_SOCKET: Final = "socket:"


@asynccontextmanager
async def opened(text: str, ports: Sequence[str]) -> AsyncIterator[Target]:
    """``software``, ``rtl[:SIZES]``, or ``fpga:BUS`` with its ``ports``.

    Raises ``LocalMisuse`` for other text, ``Unsupported`` where it cannot be, ``FabricError`` where it is
    not.
    """
    kind, _, rest = text.partition(":")
    if ports and kind != "fpga":
        raise LocalMisuse(f"ports are for a board, and {text} is none")
    if kind == "software" and not rest:
        await trio.lowlevel.checkpoint()
        yield golden(parameters_of("", DEFAULTS))
    elif kind == "rtl":
        yield _simulated(parameters_of(rest, DEFAULTS))
    elif kind == "fpga":
        async with _board(rest, ports) as board:
            yield board
    else:
        raise LocalMisuse(f"{text!r} is no target: software, rtl[:SIZES] or fpga:BUS")


def _simulated(parameters: Parameters) -> InProcess:
    from inaproto_hil.rtl.in_switch import RtlAccelerator
    from inaproto_hil.rtl.verilated.build import build_accelerator
    from inaproto_hil.rtl.verilated.model import Model

    model = Model(build_accelerator(parameters), parameters)
    config = AcceleratorConfig()
    return InProcess("the RTL in simulation", RtlAccelerator(model, parameters, config), parameters)


@asynccontextmanager
async def _board(text: str, links: Sequence[str]) -> AsyncIterator[OverPorts]:
    opener = bus_opener(text)
    at_sockets = text.startswith(_SOCKET) and not links
    if not links and not at_sockets:
        raise LocalMisuse("a board needs --port for each of its ports, in their order: packet:eth1 and so on")
    bus = await opener()
    ports: list[FramePort] = []
    try:
        device = await FpgaDevice.identify(bus)
        if at_sockets:
            directory = Path(text.removeprefix(_SOCKET)).parent
            connect = load_adapter("frames").open().connect
            openers = [
                partial(connect, directory / f"port{at}", wait_ns=0) for at in range(device.identity.ports)
            ]
        else:
            if len(links) != device.identity.ports:
                raise LocalMisuse(f"{len(links)} ports; this board has {device.identity.ports}")
            openers = [partial(_attached, link) for link in links]
        for opener_of_port in openers:
            port = await opener_of_port()
            ports.append(port)
        async with claimed(bus, owner=new_owner(), name=own_name()):
            await device.empty(linger=LINGER_S)
            await device.set_ports_up(range(device.identity.ports))
            rings = FpgaRings(device, retired_ns=0)
            await rings.faults()
            least = ETHERNET_HEADER_BYTES if at_sockets else ETHERNET_BYTES_MIN
            async with OverPorts(bus.peer, rings, ports, frame_bytes_min=least) as board:
                yield board
                await device.empty()
    finally:
        with trio.CancelScope(shield=True):
            for port in ports:
                await port.aclose()
            await bus.aclose()


async def _attached(text: str) -> FramePort:
    link = link_of(text)
    link.require()
    try:
        return await link.attach()
    except OSError as error:
        raise FabricError("attach", text, "opening a port", f"{error.strerror}", retryable=False) from None
