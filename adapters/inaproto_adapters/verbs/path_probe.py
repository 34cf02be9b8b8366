"""Which packets come through from a RoCE device to its switch and back (:mod:`inaproto.wire.path_probe`).

A device sends and takes RoCE packets alone; other frames of its port are those of its network interface.
There a softnic asks, which has the addresses of the device and no queue pairs: its questions are as long as
the packets of the device, and at an interface of a VLAN the kernel writes the tag, as the device does. Its
port takes path probes alone, so that all else comes and goes as before. It stays from the first question on,
as opening and closing it makes the process wait for the kernel, tens of milliseconds each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import trio

from inaproto.errors import ConfigError, FabricError, Unsupported
from inaproto.ports import Adapter, FramePort, Link, load_adapter
from inaproto.wire.path_probe import ETHERTYPE
from inaproto_adapters.verbs.devices import Device

RING_BYTES: Final = 1 << 18
"""Room for the answers to all questions at once, also of an interface with jumbo frames."""


@cache
def adapter_of(name: str) -> Adapter:
    """An adapter of the project, looked for once."""
    return load_adapter(name)


class PathAsker:
    """Asks for one device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        # Importing them may take seconds, which a host that has a switch does not have any more.
        self._adapters = [adapter_of(name) for name in ("packet", "softnic") if device.interface]
        self._asking: Any = None
        """The softnic, as long as its port is open."""
        self._opened = trio.Event()

    async def probe_path(self, mtus: Sequence[int]) -> int:
        """See ``inaproto.ports.ProbesPath``."""
        if self._asking is None:
            if not self._adapters:
                raise Unsupported(
                    f"path probes of {self._device.name}", "it has no Ethernet interface to ask by"
                )
            packet, softnic = self._adapters
            port = await _attached(packet, self._device.interface)
            try:
                self._asking = softnic.open(port, mac=self._device.mac, ip=self._device.ip)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await port.aclose()
                raise
            self._opened.set()
        found: int = await self._asking.probe_path(mtus)
        return found

    async def run(self) -> None:
        """Take in answers; an interface that went down is asked by again when it is up."""
        while True:
            await self._opened.wait()
            self._opened = trio.Event()
            asking = self._asking
            await asking.run()
            self._asking = None
            await asking.aclose()

    async def aclose(self) -> None:
        """Its port is closed at once."""
        if self._asking is not None:
            await self._asking.aclose()


async def _attached(packet: Adapter, interface: str) -> FramePort:
    """Raises ``Unsupported``, or a retryable ``FabricError``."""
    link: Link = packet.open(interface, ethertype=ETHERTYPE, ring_bytes=RING_BYTES)
    try:
        link.require()
        return await link.attach()
    except Unsupported as error:
        raise Unsupported(f"a packet socket for path probes at {interface}", error.why) from None
    except (ConfigError, OSError) as error:  # the interface went just now, or there is no descriptor left
        raise FabricError("attach", link.name, "opening its port", str(error), retryable=True) from None
