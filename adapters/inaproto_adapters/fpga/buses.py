"""Buses by their names: what ``inaproto switch --accelerator fpga:BUS`` and the bench for boards take.

``socket:PATH`` is RTL that another process simulates (``inaproto rtl serve``), ``xdma:PATH[@OFFSET]`` a PCIe
card, ``etherbone:HOST[:PORT]`` and ``uart:PATH[@BAUD]`` what their names say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from inaproto.errors import LocalMisuse
from inaproto_adapters.fpga.bus import RegisterBus

Opener = Callable[[], Awaitable[RegisterBus]]
FORMS: Final = "socket:PATH, xdma:PATH[@OFFSET], etherbone:HOST[:PORT] or uart:PATH[@BAUD]"
UDP_PORT_MAX: Final = 65_535
_NO_BUS: Final = f"names no bus to registers: {FORMS}"


def bus_opener(text: str) -> Opener:
    """What opens the bus that ``text`` names; it raises ``FabricError`` where nothing is at its end.

    Raises ``LocalMisuse`` for what is no name of one.
    """
    kind, _, where = text.partition(":")
    maker = _OPENERS.get(kind)
    if maker is None or not where or "\0" in where:
        raise LocalMisuse(f"{text!r} {_NO_BUS}")
    return maker(where)


def _socket(where: str) -> Opener:
    async def opened() -> RegisterBus:
        from inaproto_adapters.fpga.simulated import SocketBus

        return await SocketBus.open(Path(where))

    return opened


def _xdma(where: str) -> Opener:
    from inaproto_adapters.fpga.xdma import require_place

    path, offset = _with_number(where, "@")
    require_place(offset or 0)

    async def opened() -> RegisterBus:
        from inaproto_adapters.fpga.xdma import XdmaBus

        return await XdmaBus.open(Path(path), offset=offset or 0)

    return opened


def _etherbone(where: str) -> Opener:
    host, port = _with_number(where, ":")
    if port is not None and not 0 < port <= UDP_PORT_MAX:
        raise LocalMisuse(f"UDP port {port} in {where!r}: one of 1 to {UDP_PORT_MAX} is possible")

    async def opened() -> RegisterBus:
        from inaproto_adapters.fpga.etherbone import PORT, EtherboneBus

        return await EtherboneBus.open(host, PORT if port is None else port)

    return opened


def _uart(where: str) -> Opener:
    from inaproto_adapters.fpga.uart import BAUD, UartBus, speed_of

    path, baud = _with_number(where, "@")
    speed_of(BAUD if baud is None else baud)

    async def opened() -> RegisterBus:
        return await UartBus.open(Path(path), baud=BAUD if baud is None else baud)

    return opened


def _with_number(where: str, mark: str) -> tuple[str, int | None]:
    """What is before the last ``mark``, and the number after it, decimal or 0x...; None: there is none."""
    name, marked, number = where.rpartition(mark)
    if not marked:
        return where, None
    if not name:
        raise LocalMisuse(f"{where!r} {_NO_BUS}")
    try:
        return name, int(number, 0)
    except ValueError:
        raise LocalMisuse(f"{number!r} in {where!r} is no number") from None


_OPENERS: Final[Mapping[str, Callable[[str], Opener]]] = {
    "socket": _socket,
    "xdma": _xdma,
    "etherbone": _etherbone,
    "uart": _uart,
}
