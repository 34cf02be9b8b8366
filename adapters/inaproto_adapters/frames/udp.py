"""A frame port whose frames travel in UDP datagrams between addresses of loopback: a network of softnics
without a switch, on one machine.

``udp:127.0.0.11`` is the port of the NIC with the IPv4 address 127.0.0.11. A frame goes, whole, to the
address that its own IPv4 header names as the destination, at :data:`UDP_PORT`, where another such port
listens or nobody does; what is not IPv4 has nowhere to go. Between machines: ``packet:INTERFACE``.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from inaproto.errors import ConfigError, FabricError, LocalMisuse
from inaproto.ports import FramePortCapabilities, PortClosed, PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES

UDP_PORT: Final = 7491
_ROWS: Final = 64
_ROW_BYTES: Final = FRAME_BYTES_MAX + 8
"""A longer datagram fills its row, and is seen by that."""
_SOCKET_BYTES: Final = 4 << 20
"""Asked of the kernel, which clips it at ``net.core.rmem_max``: what comes while nobody looks."""
_IPV4: Final = b"\x08\x00"
_DESTINATION: Final = slice(ETHERNET_HEADER_BYTES + 16, ETHERNET_HEADER_BYTES + 20)
_CLOSED_HERE: Final = "the port was closed on this side"


class UdpPort:
    """:class:`inaproto.ports.FramePort` over a bound socket, which it owns from now on."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self._sock = sock
        self._closed: str | None = None
        self._counters = PortCounters()
        self._data: Frames = np.empty((_ROWS, _ROW_BYTES), dtype=np.uint8)

    def __repr__(self) -> str:
        return f"<UdpPort {self.name}{f', closed: {self._closed}' if self._closed else ''}>"

    @property
    def capabilities(self) -> FramePortCapabilities:
        return FramePortCapabilities("udp", FRAME_BYTES_MAX, lossless=False)

    @property
    def counters(self) -> PortCounters:
        return self._counters

    async def receive(self) -> list[Frames]:
        """The frames that are there, as views of the receive buffer; see ``FramePort.receive``."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed is not None:
                raise PortClosed(self._closed)
            found = self._read()
            blocks = self._blocks(found)
            if blocks:
                return blocks
            if found:
                await trio.lowlevel.checkpoint()
                continue
            with contextlib.suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_readable(self._sock)

    def _read(self) -> list[tuple[int, int]]:
        """Rows that have a datagram now, and its length."""
        found: list[tuple[int, int]] = []
        with contextlib.suppress(BlockingIOError):
            for row, place in enumerate(self._data):
                try:
                    found.append((row, self._sock.recv_into(place)))
                except ConnectionRefusedError:  # of a frame that was sent: nobody is there
                    self._counters.drop("nobody listens there")
        return found

    def _blocks(self, found: list[tuple[int, int]]) -> list[Frames]:
        blocks = []
        for row, length in found:
            if length < ETHERNET_HEADER_BYTES:
                self._counters.drop("runt frame")
            elif length > FRAME_BYTES_MAX:
                self._counters.drop("frame too long")
            else:
                blocks.append(self._data[row : row + 1, :length])
                self._counters.frames_in += 1
                self._counters.bytes_in += length
        return blocks

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``; nothing is queued but by the kernel."""
        if self._closed is not None:
            raise PortClosed(self._closed)
        n, length = frames.shape
        if not ETHERNET_HEADER_BYTES <= length <= FRAME_BYTES_MAX:
            raise LocalMisuse(
                f"frames of {length} bytes do not go through {self.name}, which takes "
                f"{ETHERNET_HEADER_BYTES} to {FRAME_BYTES_MAX}"
            )
        for number, frame in enumerate(frames):
            data = frame.tobytes()
            there = data[_DESTINATION]
            if data[12:14] != _IPV4 or len(there) != 4 or there[0] != 127:
                self._counters.drop("for no address of loopback")
                continue
            try:
                self._sock.sendto(data, (socket.inet_ntoa(there), UDP_PORT))
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                    self._counters.drop("output queue full", n - number)
                    return number
                self._counters.drop(f"refused: {error.strerror}")
                continue
            self._counters.frames_out += 1
            self._counters.bytes_out += length
        return int(n)

    async def run(self) -> None:
        """See ``FramePort.run``: there is nothing to move."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if self._closed is None:
            self._closed = _CLOSED_HERE
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
        await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True)
class UdpLink:
    """An address of loopback as a place to attach a port; see ``inaproto.ports.Link``."""

    address: str

    @property
    def name(self) -> str:
        return f"udp:{self.address}"

    def require(self) -> None:
        """See ``Link.require``."""
        try:
            self._open().close()
        except OSError as error:
            raise ConfigError(f"{self.name}: {self._trouble(error)}") from None

    def require_stranger(self, mac: bytes, ip: bytes) -> None:
        """Raises ``ConfigError`` for a NIC of another address: frames for it would come elsewhere."""
        asked = str(ipaddress.ip_address(ip))
        if asked != self.address:
            raise ConfigError(f"ip: {asked} cannot be at {self.name}, whose NIC has its address")

    async def attach(self) -> UdpPort:
        """See ``Link.attach``."""
        await trio.lowlevel.checkpoint()
        try:
            return UdpPort(self._open(), self.name)
        except OSError as error:
            raise FabricError(
                "attach", self.name, "opening its socket", self._trouble(error), retryable=True
            ) from None

    async def wait_usable(self) -> None:
        """See ``Link.wait_usable``: loopback is always there."""
        await trio.lowlevel.checkpoint()

    def _trouble(self, error: OSError) -> str:
        if error.errno == errno.EADDRINUSE:
            return f"UDP port {UDP_PORT} of this address is in use; give each process an address of its own"
        return error.strerror or str(error)

    def _open(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
            sock.bind((self.address, UDP_PORT))
        except BaseException:
            sock.close()
            raise
        return sock


def open_udp_link(address: str) -> UdpLink:
    """The link of that address. Raises ``ConfigError`` for one that is not of loopback."""
    try:
        found = ipaddress.IPv4Address(address)
    except ValueError:
        raise ConfigError(f"udp:{address}: must be an address of loopback such as udp:127.0.0.11") from None
    if not found.is_loopback:
        raise ConfigError(
            f"udp:{address}: is for loopback alone; between machines a softnic has packet:INTERFACE"
        )
    return UdpLink(str(found))
