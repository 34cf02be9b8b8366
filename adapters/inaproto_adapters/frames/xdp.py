"""A frame port on a network interface whose RoCE packets come and go through memory shared with the kernel:
AF_XDP.

It is a packet port (``packet``) with a faster way beside the slow one. A program at the interface
(``xdp_program``) gives RoCE packets to the port's own sockets (``xdp_socket``), where they are rows of an
array and cost no copy and no system call each; all other frames pass to the kernel, and from there to the
packet socket, as ever. So this port does with other traffic (offloads, VLAN tags) what a packet port does.

How packets get into the memory depends on the driver: *zero-copy* (the card writes them there), *driver* (its
receive loop copies them), or *generic* (the kernel's receive loop copies them, at any interface). Interfaces
without hardware are generic from the start: their drivers would turn offloads of the far side off.

Invariants:

* Of one flow all packets go the same way, so their order stays: the program decides by headers in which they
  do not differ, and all of them fit.
* An interface whose frames do not fit a chunk is refused.
* What is sent leaves past the interface's queueing discipline.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from dataclasses import dataclass
from typing import Final

import trio

from inaproto.errors import ConfigError, Unsupported
from inaproto.ports import PortClosed, PortCounters
from inaproto.units import Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames.interfaces import (
    Interface,
    has_device,
    lacks_capability,
    look_at,
    receive_queues,
    require_name,
)
from inaproto_adapters.frames.link_output import LINK_DOWN, LinkOutput
from inaproto_adapters.frames.packet import PacketConfig, PacketLink, PacketPort
from inaproto_adapters.frames.xdp_program import MODE_DRIVER, MODE_GENERIC, Program, require_programs
from inaproto_adapters.frames.xdp_socket import (
    CHUNK_BYTES,
    COPY,
    ZERO_COPY,
    XdpSocket,
    longest_frame,
    require_sockets,
)

QUEUES_MAX: Final = 8
"""Each has memory and a socket of its own."""
DROPPED: Final = "dropped by the link"
"""The kernel says so of each frame, as it sends it, and keeps none: there is nothing to wait for."""
_TAG_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class XdpConfig(PacketConfig):
    """Bounds of one port. The packet socket beside it needs a small ring: no gradients go through it."""

    chunks: int = 2048
    """Frames that each queue's memory holds, for each direction; a power of two."""

    def __post_init__(self) -> None:
        PacketConfig.__post_init__(self)
        if not 64 <= self.chunks <= 1 << 16 or self.chunks & (self.chunks - 1):
            raise ConfigError(f"xdp: chunks={self.chunks}: it is a power of two between 64 and 65536")


def chunk_for(mtu: int) -> int | None:
    """Bytes of the chunks that hold frames of an interface of this MTU; None if there are none so long."""
    longest = mtu + ETHERNET_HEADER_BYTES + _TAG_BYTES
    return next((size for size in CHUNK_BYTES if longest <= longest_frame(size)), None)


def mtu_max() -> int:
    return longest_frame(CHUNK_BYTES[-1]) - ETHERNET_HEADER_BYTES - _TAG_BYTES


class XdpPort(PacketPort):
    """:class:`inaproto.ports.FramePort` on the interface that ``interface`` describes; made by a link."""

    adapter = "xdp"
    _output: _XdpOutput

    def __init__(self, interface: Interface, config: XdpConfig) -> None:
        """Raises ``OSError``."""
        super().__init__(interface, config)
        self._own_mac = interface.mac
        """Packets for it are the kernel's, as long as the program is at the interface."""
        self._chunk_bytes = chunk_for(interface.mtu) or CHUNK_BYTES[-1]
        self._sockets: list[XdpSocket] = []
        self._stack = contextlib.ExitStack()
        try:
            self.way = self._open(interface, config)
            self._ready = select.epoll()
            self._stack.callback(self._ready.close)
            for sock in (self._receiving, *(each.sock for each in self._sockets)):
                self._ready.register(sock, select.EPOLLIN)
        except BaseException:
            self._stack.close()
            self._sockets.clear()
            self._close("it could not be opened")
            raise
        self._output = _XdpOutput(
            self.name,
            self._sending,
            self._sockets[0],
            self._counters,
            queue_bytes_max=config.queue_bytes_max,
            frame_bytes_max=interface.mtu + ETHERNET_HEADER_BYTES,
        )

    def _open(self, interface: Interface, config: XdpConfig) -> str:
        """The quickest way that the driver has; returns its name."""
        ways = (
            [("zero-copy", MODE_DRIVER, ZERO_COPY), ("driver", MODE_DRIVER, COPY)]
            if has_device(interface.name)
            else []
        )
        for name, mode, flags in [*ways, ("generic", MODE_GENERIC, COPY)]:
            try:
                self._try(interface, config, mode, flags)
            except OSError as error:
                self._stack.close()
                self._sockets.clear()
                if mode == MODE_GENERIC or error.errno in (
                    errno.EBUSY,
                    errno.EEXIST,
                    errno.EPERM,
                    errno.ENOBUFS,
                ):
                    raise
            else:
                return name
        raise AssertionError("the last way returns or raises")

    def _try(self, interface: Interface, config: XdpConfig, mode: int, flags: int) -> None:
        queues = receive_queues(interface.name)
        program = Program(
            interface.index,
            interface.mac,
            queues=queues,
            frame_bytes_max=longest_frame(self._chunk_bytes),
            mode=mode,
        )
        self._stack.callback(program.close)
        for queue in range(queues):
            sock = XdpSocket(
                interface.index, queue, chunk_bytes=self._chunk_bytes, chunks=config.chunks, flags=flags
            )
            self._stack.callback(sock.close)
            self._sockets.append(sock)
            program.set_socket(queue, sock.sock.fileno())

    def _why_single(self, interface: Interface) -> str:
        return "they leave by memory shared with the kernel"

    @property
    def counters(self) -> PortCounters:
        if self._closed is None:
            with contextlib.suppress(OSError):  # of an interface that went just now
                for sock in self._sockets:
                    sock.count_drops(self._counters)
        return super().counters

    async def receive(self) -> list[Frames]:
        """The frames that are there, most of them as views of the memory; see ``FramePort.receive``."""
        await trio.lowlevel.checkpoint()
        while True:
            blocks, others = self._take()
            if blocks:
                return blocks
            if others:
                await trio.lowlevel.checkpoint()  # all of it was dropped: the other ports have their turn
                continue
            if self._ring.heard_error or self._receiving.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._ring.heard_error = False
                self._look()
                continue
            for sock in self._sockets:
                sock.ask_for_more()
            with contextlib.suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_readable(self._ready.fileno())

    def take_nowait(self) -> list[Frames]:
        """See ``inaproto.ports.TakesNow``."""
        blocks, _ = self._take()
        for sock in self._sockets:
            sock.ask_for_more()
        return blocks

    def _take(self) -> tuple[list[Frames], bool]:
        """What is there, and whether some of it came by the packet socket. Raises ``PortClosed``."""
        if self._closed is not None:
            raise PortClosed(self._closed)
        blocks: list[Frames] = []
        for sock in self._sockets:
            sock.release()
            blocks += sock.take(self._counters)
        self._ring.release()
        others = self._ring.waiting
        if others:
            blocks += self._ring.take(self._counters)
        return blocks, others

    def _look(self) -> None:
        super()._look()
        self._output.frame_bytes_max = self._mtu + ETHERNET_HEADER_BYTES
        if chunk_for(self._mtu) != self._chunk_bytes:
            self._close(f"the MTU of the interface of {self.name} is {self._mtu} now")
        if self._mac != self._own_mac:
            self._close(f"the address of the interface of {self.name} is {self._mac.hex(':')} now")

    def _close(self, reason: str) -> None:
        if self._closed is not None:
            return
        with contextlib.suppress(OSError):
            for sock in self._sockets:
                sock.count_drops(self._counters)
        super()._close(reason)
        if self._sockets:
            trio.lowlevel.notify_closing(self._ready.fileno())
            self._stack.close()


class _XdpOutput(LinkOutput):
    """Output by the memory; what does not fit the link by the packet socket, which says why it refuses it."""

    def __init__(
        self,
        name: str,
        packets: socket.socket,
        memory: XdpSocket,
        counters: PortCounters,
        *,
        queue_bytes_max: int,
        frame_bytes_max: int,
    ) -> None:
        super().__init__(name, packets.send, counters, queue_bytes_max=queue_bytes_max)
        self._memory = memory
        self.frame_bytes_max = frame_bytes_max
        """Of the interface."""

    def _has_work(self) -> bool:
        return super()._has_work() or self._memory.waiting > 0

    def flush(self) -> None:
        self._pump()
        super().flush()

    def close(self) -> None:
        if self._memory.waiting:
            self._counters.drop(LINK_DOWN, self._memory.waiting)
        super().close()

    def _send(self, frames: Frames) -> int:
        n, length = len(frames), frames.shape[1]
        if length > self.frame_bytes_max:
            return super()._send(frames)
        self._wait_writable = False  # the socket tells of its ring, not of chunks
        done = left = 0
        while done < n and (given := self._memory.send(frames[done:])):
            done += given
            if self._memory.has_room:  # for which ``run`` asks otherwise, at times
                given = max(0, given - self._pump())  # those that are dropped may have been given before
            left += given
        self._counters.frames_out += left
        self._counters.bytes_out += left * length
        return done

    def _pump(self) -> int:
        dropped = self._memory.pump()
        if dropped:
            self._counters.drop(DROPPED, dropped)
        if self._memory.waiting:
            self._work.unpark_all()
        return dropped


@dataclass(frozen=True, slots=True)
class XdpLink(PacketLink):
    """An interface as a place to attach a port; see ``inaproto.ports.Link``."""

    config: XdpConfig

    @property
    def name(self) -> str:
        return f"xdp:{self.interface}"

    def require(self) -> None:
        """See ``Link.require``."""
        PacketLink.require(self)
        try:
            require_programs(self.name)
            require_sockets(self.name, chunk_bytes=CHUNK_BYTES[-1], chunks=self.config.chunks)
        except PermissionError:
            raise lacks_capability(self.name, "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF") from None
        found = look_at(self.interface)
        if found is not None:
            trouble = trouble_of(found)
            if trouble is not None:
                raise Unsupported(self.name, trouble)

    def open_port(self, found: Interface) -> PacketPort:
        """Raises ``OSError``."""
        trouble = trouble_of(found)
        if trouble is not None:
            raise OSError(errno.EINVAL, trouble)
        try:
            return XdpPort(found, self.config)
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EEXIST):
                mend = f"end it, or: ip link set {found.name} xdp off"
                raise OSError(error.errno, f"{found.name} runs another XDP program; {mend}") from None
            raise


def trouble_of(found: Interface) -> str | None:
    """Why there can be no such port at an interface, and what helps; None if there can be one."""
    if chunk_for(found.mtu) is None:
        return (
            f"{found.name} has MTU {found.mtu}, and frames of at most {mtu_max()} bytes fit the memory; "
            f"ip link set {found.name} mtu {mtu_max()} (RoCE path MTU 2048), or use packet:{found.name}"
        )
    queues = receive_queues(found.name)
    if queues > QUEUES_MAX:
        return (
            f"{found.name} receives by {queues} queues, and {QUEUES_MAX} are served at most; "
            f"ethtool -L {found.name} combined {QUEUES_MAX}"
        )
    return None


def open_xdp_link(
    interface: str, *, queue_bytes_max: int = 16 << 20, ring_bytes: int = 4 << 20, chunks: int = 2048
) -> XdpLink:
    """The link of that name. Raises ``ConfigError`` for a name or bounds that cannot be."""
    require_name(interface)
    return XdpLink(interface, XdpConfig(queue_bytes_max, ring_bytes, chunks=chunks))
