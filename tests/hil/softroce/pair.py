"""Two RoCE hosts in a guest and a faulty wire between them: transfers, and what the wire saw of each."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from inaproto_hil.softroce.guest import Guest, GuestFailed, boot
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.transfer import TransferPlan
from tests.hil.softroce.recording import Recording
from tests.hil.softroce.wire import Count, Fault, Wire, unharmed


@dataclass(frozen=True, slots=True)
class Transferred:
    """A transfer as its ends and as the wire saw it."""

    ends: dict[str, Any]
    wire: Count


class Pair:
    def __init__(self, guest: Guest, wire: Wire, stream: trio.SocketStream) -> None:
        self._guest = guest
        self._wire = wire
        self._stream = stream
        self._rest = b""

    async def transfer(self, plan: TransferPlan, fault: Fault = unharmed) -> Transferred:
        self._wire.begin(fault)
        await self._stream.send_all(plan.encode().encode() + b"\n")
        return Transferred(json.loads(await self.line()), self._wire.count)

    async def forget_peer(self, place: int) -> None:
        """The first (0) or second (1) host no longer knows the MAC address of the other."""
        other = self._guest.hosts[1 - place]
        ended = await self._guest.run(["ip", "neigh", "flush", "to", other.ip])
        if ended.rc:
            raise GuestFailed(f"{other.ip} was not forgotten: {ended.err}")

    async def line(self) -> bytes:
        while b"\n" not in self._rest:
            data = await self._stream.receive_some()
            if not data:
                raise GuestFailed("the transfer program in the guest has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


@asynccontextmanager
async def open_pair(
    image: Image, *, mtu: int = 1024, recording: Recording | None = None
) -> AsyncIterator[Pair]:
    """A guest of two hosts, ready for transfers. ``recording`` gets all that crosses the wire."""
    with tempfile.TemporaryDirectory(prefix="ina-") as folder:
        wire = Wire(Path(folder, "wire.sock"), recording)
        async with trio.open_nursery() as nursery:
            await nursery.start(wire.run)
            async with boot(image, [wire.path] * 2, mtu=mtu) as guest:
                (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
                async with listener:
                    nursery.start_soon(_serve, guest, listener.socket.getsockname()[1])
                    stream = await listener.accept()
                async with stream:
                    pair = Pair(guest, wire, stream)
                    await pair.line()
                    yield pair
                nursery.cancel_scope.cancel()


async def _serve(guest: Guest, port: int) -> None:
    ips = [host.ip for host in guest.hosts]
    module = "inaproto_hil.softroce.transfer"
    ended = await guest.run([sys.executable, "-P", "-m", module, str(port), *ips])
    raise GuestFailed(f"the transfer program ended with {ended.rc}: {ended.err[-2000:]}")
