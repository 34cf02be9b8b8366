"""A frame port on several interfaces to one neighbour: link aggregation (IEEE 802.1AX) without its protocol.

The far end is another such port, a bond of a kernel, or routers that choose among paths of equal cost (ECMP).
A flow is what has the same IP addresses and UDP or TCP ports; a queue pair has its own UDP source port. It
leaves by one of the interfaces, so its frames do not overtake each other. What comes by any of them comes by
this port: to a switch a rank is where it was, whichever link its packets take from now on. An interface that
goes down takes nothing with it: its flows leave by the next one, and return when it is back. The port ends
with the last.

Invariants: a frame leaves once; what a member has received is handed on before more is taken from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import trio

from inaproto.errors import ConfigError, FabricError
from inaproto.ports import FramePort, FramePortCapabilities, Link, PortClosed, PortCounters, SendsBlocks
from inaproto.units import Frames
from inaproto.wire.crc import crc32
from inaproto.wire.path_probe import ETHERTYPE, way_at
from inaproto.wire.vlan import TAG_BEGIN, TAG_BYTES

RETRY_S: Final = 0.5
"""Pause between attempts: an interface that seems usable and is not must not keep the process busy."""
JOINT: Final = "+"
"""Between the interfaces in a port's name."""
ALL_AWAY: Final = "link down"
_TAG: Final = b"\x81\x00"
_IPV4: Final = b"\x08\x00"
_IPV6: Final = b"\x86\xdd"
_PROBE: Final = ETHERTYPE.to_bytes(2, "big")
_WITH_PORTS: Final = (6, 17)
"""TCP and UDP."""
_HEAD_BYTES: Final = 14 + TAG_BYTES + 40 + 4
_NO_OPTIONS: Final = 0x45
_FRAGMENT: Final = 0x3FFF
"""More fragments, or an offset."""


class LagPort:
    """:class:`inaproto.ports.FramePort` on several links; made by :class:`LagLink`."""

    def __init__(self, links: Sequence[Link], ports: Sequence[FramePort | None], why: Sequence[str]) -> None:
        """``ports``: those that are attached, by link; one at least. ``why``: of each other one, why not."""
        self._links = links
        self._ports = list(ports)
        self._why = list(why)
        self._ready: deque[tuple[Sequence[Frames], trio.Event]] = deque()
        self._handed: trio.Event | None = None
        """Set when what was received last is done with."""
        self._news = trio.lowlevel.ParkingLot()
        self._promised = min(port.capabilities.frame_bytes_max for port in ports if port is not None)
        """Length of the frames that its user may send; a link that takes shorter ones alone is none of it."""
        self._ended = PortCounters()
        """Of members that were attached before."""
        self._closed: str | None = None

    @property
    def capabilities(self) -> FramePortCapabilities:
        found = [port.capabilities for port in self._ports if port is not None]
        told = [
            f"{link.name} {port.capabilities.way if port is not None else f'is away: {why}'}".strip()
            for link, port, why in zip(self._links, self._ports, self._why, strict=True)
        ]
        way = f"{len(found)} of {len(self._links)} links: {', '.join(told)}"
        longest = min((its.frame_bytes_max for its in found), default=self._promised)
        name, count = self._links[0].name.partition(":")[0], len(self._links)
        return FramePortCapabilities(name, longest, lossless=False, way=way, links=count)

    @property
    def counters(self) -> PortCounters:
        """A copy, over all members; what others drop there is counted for good."""
        total = _Total(self._ended)
        for counters in (self._ended, *(port.counters for port in self._ports if port is not None)):
            _add(total, counters)
        return total

    async def receive(self) -> Sequence[Frames]:
        """See ``FramePort.receive``."""
        if self._handed is not None:
            self._handed.set()
            self._handed = None
        await trio.lowlevel.checkpoint()
        while not self._ready:
            if self._closed is not None:
                raise PortClosed(self._closed)
            await self._news.park()
        blocks, self._handed = self._ready.popleft()
        return blocks

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``."""
        return len(frames) - self.send_blocks_nowait((frames,))

    def send_blocks_nowait(self, blocks: Sequence[Frames]) -> int:
        """See ``inaproto.ports.SendsBlocks``."""
        if self._closed is not None:
            raise PortClosed(self._closed)
        for_member: dict[int, list[Frames]] = {}
        for frames in blocks:
            for flow, rows in by_flow(frames):
                for_member.setdefault(self._member_of(flow), []).append(rows)
        return sum(self._send_by(at, its) for at, its in for_member.items())

    def _member_of(self, flow: int) -> int:
        """The link of a flow; the next one that is there, if it is away."""
        count = len(self._ports)
        first = flow % count
        return next((at % count for at in range(first, first + count) if self._ports[at % count]), first)

    def _send_by(self, first: int, blocks: Sequence[Frames]) -> int:
        """By that link, or the next one that takes them; returns how many are lost."""
        for at in range(first, first + len(self._ports)):
            port = self._ports[at % len(self._ports)]
            if port is not None:
                with suppress(PortClosed):  # its own task hears of it, too
                    return _send(port, blocks)
        lost = sum(map(len, blocks))
        self._ended.drop(ALL_AWAY, lost)
        return lost

    async def run(self) -> None:
        """See ``FramePort.run``."""
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            for at in range(len(self._links)):
                nursery.start_soon(self._keep, at)
            while self._closed is None:
                await self._news.park()
            nursery.cancel_scope.cancel()

    async def aclose(self) -> None:
        self._close("closed on this side")
        for port in self._ports:
            if port is not None:
                await port.aclose()
        await trio.lowlevel.checkpoint()

    def _close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
        self._news.unpark_all()

    async def _keep(self, at: int) -> None:
        """Serve the port of a link, and attach it again when it is back."""
        link = self._links[at]
        while True:
            port = self._ports[at]
            try:
                if port is None:
                    port = self._ports[at] = await self._attached(link)
            except FabricError as error:
                self._why[at] = error.cause
            else:
                self._why[at] = await self._serve(at, port)
            if not any(self._ports):
                self._close(f"all its links are away: {self._why[at]}")
            await link.wait_usable()
            await trio.sleep(RETRY_S)

    async def _attached(self, link: Link) -> FramePort:
        port = await link.attach()
        takes = port.capabilities.frame_bytes_max
        if takes >= self._promised:
            return port
        await port.aclose()
        cause = f"it takes frames of {takes} bytes, and this port of {self._promised} since it came up"
        raise FabricError("attach", link.name, "opening its port", cause, retryable=True)

    async def _serve(self, at: int, port: FramePort) -> str:
        """Until it closes; returns why."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.run)
                reason = await self._pump(port)
                nursery.cancel_scope.cancel()
        finally:
            self._ports[at] = None
            _add(self._ended, port.counters)
            with trio.CancelScope(shield=True):
                await port.aclose()
        return reason

    async def _pump(self, port: FramePort) -> str:
        while True:
            try:
                blocks = await port.receive()
            except PortClosed as closed:
                return closed.reason
            done = trio.Event()
            self._ready.append((blocks, done))
            self._news.unpark_all()
            await done.wait()


@dataclass(frozen=True, slots=True)
class LagLink:
    """Several interfaces as one place to attach a port; see ``inaproto.ports.Link``."""

    links: tuple[Link, ...]

    @property
    def name(self) -> str:
        adapter, _, first = self.links[0].name.partition(":")
        others = (link.name.partition(":")[2] for link in self.links[1:])
        return f"{adapter}:{JOINT.join((first, *others))}"

    def require(self) -> None:
        """See ``Link.require``."""
        for link in self.links:
            link.require()

    def require_stranger(self, mac: bytes, ip: bytes) -> None:
        """See ``Link.require_stranger``."""
        for link in self.links:
            link.require_stranger(mac, ip)

    async def attach(self) -> LagPort:
        """See ``Link.attach``."""
        ports: list[FramePort | None] = []
        why = [""] * len(self.links)
        try:
            for at, link in enumerate(self.links):
                try:
                    ports.append(await link.attach())
                except FabricError as error:
                    ports.append(None)
                    why[at] = error.cause
        except BaseException:
            with trio.CancelScope(shield=True):
                for port in ports:
                    if port is not None:
                        await port.aclose()
            raise
        if not any(ports):
            raise FabricError("attach", self.name, "opening its ports", why[-1], retryable=True)
        return LagPort(self.links, ports, why)

    async def wait_usable(self) -> None:
        """See ``Link.wait_usable``."""
        async with trio.open_nursery() as nursery:

            async def wait(link: Link) -> None:
                await link.wait_usable()
                nursery.cancel_scope.cancel()

            for link in self.links:
                nursery.start_soon(wait, link)


def joined(open_one: Callable[..., Link]) -> Callable[..., Link]:
    """Opens a link by its name, as ``open_one`` does, or several as one (``eth1+eth2``)."""

    def open_links(interfaces: str, **limits: Any) -> Link:
        names = interfaces.split(JOINT)
        if len(set(names)) < len(names):
            raise ConfigError(f"port: {interfaces} names an interface twice")
        links = tuple(open_one(name, **limits) for name in names)
        return links[0] if len(links) == 1 else LagLink(links)

    return open_links


def by_flow(frames: Frames) -> Iterator[tuple[int, Frames]]:
    """Rows of each flow, with a number that it always has: those of one in order."""
    n = len(frames)
    if not n:
        return
    heads = frames[:, :_HEAD_BYTES]
    first = heads[0].tobytes()
    if n == 1 or not ((told := heads[:, _columns_of(first)]) != told[0]).any():
        yield _flow_of(first), frames
        return
    flows = np.array([_flow_of(head.tobytes()) for head in heads], np.uint32)
    for one in dict.fromkeys(flows.tolist()):
        yield one, frames[flows == one]


def _flow_of(head: bytes) -> int:
    way = way_at(head)
    if way is not None:
        return head[way]
    return crc32(head[slice(*_key_of(head)[1:])])


def _columns_of(head: bytes) -> list[int]:
    """Bytes in which all frames of its flow are as it is, and those of another are not."""
    kinds, begin, end = _key_of(head)
    return [*kinds, *range(begin, end)]


def _key_of(head: bytes) -> tuple[tuple[int, ...], int, int]:
    """Where a frame says what it is; and from where to where it has the addresses and ports of its flow."""
    ip = TAG_BEGIN + 2 + TAG_BYTES * (head[TAG_BEGIN : TAG_BEGIN + 2] == _TAG)
    kind = head[ip - 2 : ip]
    way = way_at(head) if kind == _PROBE else None
    if way is not None:
        return tuple(range(ip - 2, way)), way, way + 1
    kinds = TAG_BEGIN, TAG_BEGIN + 1, ip - 2, ip - 1, ip
    if kind == _IPV4 and len(head) >= ip + 24:
        is_whole = not int.from_bytes(head[ip + 6 : ip + 8], "big") & _FRAGMENT
        with_ports = head[ip] == _NO_OPTIONS and head[ip + 9] in _WITH_PORTS and is_whole
        return (*kinds, ip + 6, ip + 7, ip + 9), ip + 12, ip + 20 + 4 * with_ports
    if kind == _IPV6 and len(head) >= ip + 44:
        return (*kinds[:-1], ip + 6), ip + 8, ip + 40 + 4 * (head[ip + 6] in _WITH_PORTS)
    return tuple(at for at in kinds[:-1] if at < len(head)), 0, min(len(head), TAG_BEGIN)


def _send(port: FramePort, blocks: Sequence[Frames]) -> int:
    if isinstance(port, SendsBlocks):
        return port.send_blocks_nowait(blocks)
    return sum(len(frames) - port.send_nowait(frames) for frames in blocks)


class _Total(PortCounters):
    """What all members have counted; a rule that somebody applies to the port counts from then on."""

    def __init__(self, kept: PortCounters) -> None:
        super().__init__()
        self._kept = kept

    def drop(self, rule: str, frames: int = 1) -> None:
        super().drop(rule, frames)
        self._kept.drop(rule, frames)


def _add(total: PortCounters, counters: PortCounters) -> None:
    total.frames_in += counters.frames_in
    total.frames_out += counters.frames_out
    total.bytes_in += counters.bytes_in
    total.bytes_out += counters.bytes_out
    for rule, count in counters.drops.items():
        total.drops[rule] = total.drops.get(rule, 0) + count
