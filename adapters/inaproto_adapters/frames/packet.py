"""A frame port on a network interface: AF_PACKET.

The interface belongs to the port: it is set to promiscuous mode (unless the port takes frames of one type
alone), receives what was sent by others only, and frames leave as they are given; runs of RoCE packets as
long segments where the interface is the end of a cable inside the machine (``long_segments``). What the
kernel does to frames for its own stack is undone (VLAN tags that were taken off, checksums that were left to
hardware, segments merged or not yet cut: see ``packet_ring`` and ``offloads``), so that a port gives what is
on the wire.

Invariants:

* Not lossless, as a wire is not: frames for which the ring has no slot are counted as the kernel counts them.
* The port ends with ``PortClosed`` when its interface goes down, loses its carrier or is removed; who wants
  it back attaches again (:class:`PacketLink`). A rename ends nothing.
* Large receive offload would give segments that nobody can take apart: an interface that has it on is
  refused.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from inaproto.errors import ConfigError, FabricError, Unsupported
from inaproto.ports import FramePortCapabilities, PortClosed, PortCounters, Steering
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames import compiled_ports
from inaproto_adapters.frames.compiled_ports import Sender
from inaproto_adapters.frames.interfaces import (
    Interface,
    LinkWatch,
    lacks_capability,
    look_at,
    look_at_index,
    merges_in_hardware,
    name_of,
    no_such_interface,
    require_name,
    require_stranger,
)
from inaproto_adapters.frames.link_output import LinkOutput
from inaproto_adapters.frames.long_segments import open_long_output, why_single
from inaproto_adapters.frames.packet_ring import SOL_PACKET, ReceiveRing
from inaproto_adapters.frames.steering import steer

_ADD_MEMBERSHIP: Final = 1
_DROP_MEMBERSHIP: Final = 2
_IGNORE_OUTGOING: Final = 23
_MR_PROMISC: Final = 1
_ETH_P_ALL: Final = 3
_NO_PROTOCOL: Final = 0xFFFF
"""Reserved; 0 would leave a socket bound to what it was."""
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_SOCKET_BYTES: Final = 8 << 20
"""For frames on their way through the interface's queue, and for long segments on their way in."""
_TAG_BYTES: Final = 4
_CLOSED_HERE: Final = "the port was closed on this side"


@dataclass(frozen=True, slots=True)
class PacketConfig:
    """Bounds of one port, in bytes."""

    queue_bytes_max: int = 16 << 20
    """Output that waits because the interface's own queue is full."""
    ring_bytes: int = 16 << 20
    """Memory of the receive ring; a slot takes 2 KiB at an MTU of 1500."""
    steering: Steering | None = None
    """Which frames it takes; None: all."""
    ethertype: int = 0
    """Of the frames that it takes, such as are not merged in hardware and are for addresses of the interface;
    0: all frames."""

    def __post_init__(self) -> None:
        if self.queue_bytes_max < FRAME_BYTES_MAX:
            raise ConfigError(
                f"packet: queue_bytes_max={self.queue_bytes_max}: it must hold one frame, {FRAME_BYTES_MAX}"
            )
        if not 1 << 16 <= self.ring_bytes <= 1 << 30:
            raise ConfigError(f"packet: ring_bytes={self.ring_bytes}: it lies between 64 KiB and 1 GiB")


class PacketPort:
    """:class:`inaproto.ports.FramePort` on the interface that ``interface`` describes; made by a link."""

    adapter = "packet"

    def __init__(self, interface: Interface, config: PacketConfig) -> None:
        """Raises ``OSError``."""
        self.name = f"{self.adapter}:{interface.name}"
        self._index = interface.index
        self._mtu = interface.mtu
        self._mac = interface.mac
        self._config = config
        self._closed: str | None = None
        self._counters = PortCounters()
        self._long: socket.socket | None = None
        why = self._why_single(interface)
        self.way = f"packets one by one: {why}" if why else "long segments"
        """How runs of RoCE packets leave."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with contextlib.ExitStack() as undo:
            # Two sockets: frames that are sent have no virtio_net_hdr before them, those in the ring do.
            self._receiving = undo.enter_context(socket.socket(socket.AF_PACKET, kind, 0))
            self._sending = undo.enter_context(open_sending(interface.name))
            self._watch = LinkWatch()
            undo.callback(self._watch.close)
            _enlarge(self._receiving, _SO_RCVBUFFORCE, socket.SO_RCVBUF)
            self._ring = ReceiveRing(
                self._receiving,
                frame_bytes_max=interface.mtu + ETHERNET_HEADER_BYTES + _TAG_BYTES,
                ring_bytes=config.ring_bytes,
            )
            if config.steering is not None:
                steer(self._receiving, config.steering)
            self._receiving.setsockopt(SOL_PACKET, _IGNORE_OUTGOING, 1)
            if not config.ethertype:
                self._receiving.setsockopt(SOL_PACKET, _ADD_MEMBERSHIP, self._promiscuous())
            self._output = self._open_output(interface, undo, long=not why)
            self._receiving.bind(
                (interface.name, config.ethertype or _ETH_P_ALL)
            )  # last: from here on frames come
            undo.pop_all()

    def _why_single(self, interface: Interface) -> str:
        """Why packets leave one by one; empty: runs of them leave as long segments."""
        return why_single(interface.name)

    def _open_output(self, interface: Interface, undo: contextlib.ExitStack, *, long: bool) -> LinkOutput:
        """``undo``: what to do if the port cannot be made. Raises ``OSError``."""
        queue_bytes_max = self._config.queue_bytes_max
        if long:
            self._long = undo.enter_context(open_sending(interface.name))
            return open_long_output(
                self.name,
                self._sending,
                self._long,
                self._counters,
                queue_bytes_max=queue_bytes_max,
                frame_bytes_max=interface.mtu + ETHERNET_HEADER_BYTES,
            )
        calls = compiled_ports.active()
        sender = None
        if calls is not None:
            fd = self._sending.fileno()
            sender = Sender(calls, fd, has_vnet=False, long_bytes_max=0, packets_max=1)
        write = self._sending.send
        return LinkOutput(self.name, write, self._counters, queue_bytes_max=queue_bytes_max, sender=sender)

    def __repr__(self) -> str:
        state = f"closed: {self._closed}" if self._closed else f"{self._output.bytes} bytes queued"
        return f"<{type(self).__name__} {self.name}, {state}>"

    def _promiscuous(self) -> bytes:
        return struct.pack("=iHH8s", self._index, _MR_PROMISC, 0, b"")

    @property
    def capabilities(self) -> FramePortCapabilities:
        longest = min(FRAME_BYTES_MAX, self._mtu + ETHERNET_HEADER_BYTES)
        return FramePortCapabilities(self.adapter, longest, lossless=False, way=self.way)

    @property
    def counters(self) -> PortCounters:
        if self._closed is None:
            with contextlib.suppress(OSError):  # of an interface that went just now
                self._ring.count_drops(self._counters)
        return self._counters

    async def receive(self) -> list[Frames]:
        """The frames that are there, most of them as views of the ring; see ``FramePort.receive``."""
        had_turn = waited = False
        while True:
            if self._closed is not None:
                raise PortClosed(self._closed)
            self._ring.release()
            if self._ring.waiting:
                if had_turn and (blocks := self._ring.take(self._counters)):
                    return blocks
                await trio.lowlevel.checkpoint()  # the others have their turn, also if all of it was dropped
                had_turn = True
                continue
            # An error wakes who waits: who has not waited yet need not ask for it.
            if (waited or self._ring.heard_error) and self._has_error():
                self._look()
                continue
            try:  # noqa: SIM105  the hot loop
                await trio.lowlevel.wait_readable(self._receiving)
            except trio.ClosedResourceError:
                pass
            had_turn = waited = True

    def take_nowait(self) -> list[Frames]:
        """See ``inaproto.ports.TakesNow``. An interface that went down is heard of by ``run``."""
        if self._closed is not None:
            raise PortClosed(self._closed)
        self._ring.release()
        return self._ring.take(self._counters) if self._ring.waiting else []

    def _has_error(self) -> bool:
        """Whether the interface went down, since this was asked last."""
        heard, self._ring.heard_error = self._ring.heard_error, False
        return heard or self._receiving.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``.

        Frames that are longer than the interface's MTU are dropped and counted, as by any switch whose ports
        differ. Raises ``LocalMisuse`` for what no port takes.
        """
        return len(frames) - self.send_blocks_nowait((frames,))

    def send_blocks_nowait(self, blocks: Sequence[Frames]) -> int:
        """See ``inaproto.ports.SendsBlocks``."""
        if self._closed is not None:
            raise PortClosed(self._closed)
        return self._output.push(blocks)

    async def run(self) -> None:
        """Send what waits and watch the interface, until the port closes; see ``FramePort.run``."""
        await trio.lowlevel.checkpoint()
        if self._closed is None:
            with contextlib.suppress(trio.ClosedResourceError):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._serve_output, nursery.cancel_scope)
                    await self._serve_watch()
                    nursery.cancel_scope.cancel()

    async def _serve_output(self, scope: trio.CancelScope) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            await self._output.run(self._sending)
        scope.cancel()

    async def _serve_watch(self) -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            self._look()
            while self._closed is None:
                await self._watch.wait()
                self._look()

    def _look(self) -> None:
        """Close the port if its interface carries nothing any more."""
        found = look_at_index(self._receiving, self._index)
        if found is None:
            self._close(f"the interface of {self.name} was removed")
        elif found.trouble is not None:
            self._close(found.trouble)
        else:
            self._mtu, self._mac = found.mtu, found.mac

    def _close(self, reason: str) -> None:
        if self._closed is not None:
            return
        with contextlib.suppress(OSError):
            self._ring.count_drops(self._counters)
        self._closed = reason
        self._output.close()
        self._watch.close()
        # The mapping of the ring may outlive the socket's closing: nothing is to come in meanwhile.
        with contextlib.suppress(OSError):  # of an interface that is gone
            self._receiving.setsockopt(SOL_PACKET, _DROP_MEMBERSHIP, self._promiscuous())
            name = name_of(self._receiving, self._index)
            if name is not None:
                self._receiving.bind((name, _NO_PROTOCOL))
        for sock in (self._receiving, self._sending, *((self._long,) if self._long is not None else ())):
            trio.lowlevel.notify_closing(sock)
            sock.close()

    async def aclose(self) -> None:
        """Close both directions. Output that the interface takes at once still leaves, the rest is lost."""
        if self._closed is None:
            self._output.flush()
        self._close(_CLOSED_HERE)
        await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True)
class PacketLink:
    """An interface as a place to attach a port; see ``inaproto.ports.Link``."""

    interface: str
    config: PacketConfig

    @property
    def name(self) -> str:
        return f"packet:{self.interface}"

    def require(self) -> None:
        """See ``Link.require``."""
        found = look_at(self.interface)
        if found is None:
            raise ConfigError(f"{self.name}: {no_such_interface(self.interface)}")
        if not found.is_ethernet:
            raise Unsupported(self.name, f"{self.interface} does not carry Ethernet frames; choose another")
        if not self.config.ethertype and merges_in_hardware(self.interface):
            raise Unsupported(
                self.name,
                f"large receive offload is on at {self.interface}, and what it merges cannot be taken apart; "
                f"ethtool -K {self.interface} lro off",
            )
        try:
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE).close()
        except PermissionError:
            raise lacks_capability(self.name, "CAP_NET_RAW") from None
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
            raise Unsupported(
                self.name,
                "the process may not open packet or netlink sockets (systemd: "
                "RestrictAddressFamilies=... AF_PACKET AF_NETLINK), or the kernel is built without "
                "CONFIG_PACKET",
            ) from None

    def require_stranger(self, mac: bytes, ip: bytes) -> None:
        """See ``Link.require_stranger``."""
        require_stranger(self.interface, mac, ip)

    async def attach(self) -> PacketPort:
        """See ``Link.attach``."""
        await trio.lowlevel.checkpoint()
        try:
            found = look_at(self.interface)
            trouble = no_such_interface(self.interface) if found is None else found.trouble
            if found is not None and trouble is None:
                return self.open_port(found)
        except OSError as error:
            trouble = f"{error.strerror}"
        raise FabricError("attach", self.name, "opening its port", trouble or "", retryable=True)

    def open_port(self, found: Interface) -> PacketPort:
        """Raises ``OSError``."""
        return PacketPort(found, self.config)

    async def wait_usable(self) -> None:
        """See ``Link.wait_usable``."""
        await trio.lowlevel.checkpoint()
        with contextlib.suppress(OSError), contextlib.ExitStack() as undo:  # of which ``attach`` tells
            watch = LinkWatch()  # before the first look, so that no change is missed
            undo.callback(watch.close)
            while (found := look_at(self.interface)) is None or found.trouble is not None:
                await watch.wait()


def open_packet_link(
    interface: str,
    *,
    queue_bytes_max: int = 16 << 20,
    ring_bytes: int = 16 << 20,
    steering: Steering | None = None,
    ethertype: int = 0,
) -> PacketLink:
    """The link of that name. Raises ``ConfigError`` for a name or bounds that cannot be."""
    require_name(interface)
    return PacketLink(interface, PacketConfig(queue_bytes_max, ring_bytes, steering, ethertype))


def open_sending(interface: str) -> socket.socket:
    """A packet socket that receives nothing. Raises ``OSError``."""
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(socket.AF_PACKET, kind, 0))
        _enlarge(sock, _SO_SNDBUFFORCE, socket.SO_SNDBUF)
        sock.bind((interface, 0))
        undo.pop_all()
    return sock


def _enlarge(sock: socket.socket, forced: int, plain: int) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, forced, _SOCKET_BYTES)
    except PermissionError:  # without CAP_NET_ADMIN the kernel clips it at net.core.[rw]mem_max
        sock.setsockopt(socket.SOL_SOCKET, plain, _SOCKET_BYTES)
