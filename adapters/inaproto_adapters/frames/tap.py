"""A frame port on a TAP interface: the kernel, or a virtual machine, is what is plugged in.

The interface is made when the port is attached, unless it is there already (``ip tuntap add``), and goes with
the port. No offload is asked for, so the kernel completes checksums and cuts long segments before it hands
frames over. While the interface is down, what is sent is counted as dropped; a port that ended with its
interface's removal comes back by making it again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import trio

from inaproto.errors import ConfigError, FabricError, Unsupported
from inaproto.ports import FramePortCapabilities, PortClosed, PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES
from inaproto_adapters.frames.interfaces import (
    lacks_capability,
    look_at,
    require_name,
    require_stranger,
    set_up,
)
from inaproto_adapters.frames.link_output import LinkOutput

_DEVICE: Final = "/dev/net/tun"
_TUNSETIFF: Final = 0x400454CA
_IFF_TAP: Final = 2
_IFF_NO_PI: Final = 0x1000
_ROWS: Final = 256
_ROW_BYTES: Final = FRAME_BYTES_MAX + 8
"""A longer frame fills its row, and is seen by that."""
_CLOSED_HERE: Final = "the port was closed on this side"


@dataclass(frozen=True, slots=True)
class TapConfig:
    queue_bytes_max: int = 16 << 20
    """Output that waits because the kernel's queue is full, in bytes."""

    def __post_init__(self) -> None:
        if self.queue_bytes_max < FRAME_BYTES_MAX:
            raise ConfigError(
                f"tap: queue_bytes_max={self.queue_bytes_max}: it must hold one frame, {FRAME_BYTES_MAX}"
            )


class TapPort:
    """:class:`inaproto.ports.FramePort` over ``fd``, an attached TAP device that it owns from now on."""

    def __init__(self, fd: int, interface: str, config: TapConfig) -> None:
        self.name = f"tap:{interface}"
        self._interface = interface
        self._fd = fd
        self._mtu = FRAME_BYTES_MAX
        self._closed: str | None = None
        self._counters = PortCounters()
        self._output = LinkOutput(
            self.name, self._write, self._counters, queue_bytes_max=config.queue_bytes_max
        )
        self._data: Frames = np.empty((_ROWS, _ROW_BYTES), dtype=np.uint8)
        self._rows = [[memoryview(row)] for row in self._data]

    def __repr__(self) -> str:
        state = f"closed: {self._closed}" if self._closed else f"{self._output.bytes} bytes queued"
        return f"<TapPort {self.name}, {state}>"

    @property
    def capabilities(self) -> FramePortCapabilities:
        with contextlib.suppress(OSError):  # no descriptor is left to look with
            found = look_at(self._interface)
            self._mtu = self._mtu if found is None else found.mtu
        longest = min(FRAME_BYTES_MAX, self._mtu + ETHERNET_HEADER_BYTES)
        return FramePortCapabilities("tap", longest, lossless=False)

    @property
    def counters(self) -> PortCounters:
        return self._counters

    async def receive(self) -> list[Frames]:
        """The frames that are there, as views of the receive buffer; see ``FramePort.receive``."""
        await trio.lowlevel.checkpoint()
        while True:
            if self._closed is not None:
                raise PortClosed(self._closed)
            lengths = self._read()
            blocks = self._blocks(lengths)
            if blocks:
                return blocks
            if lengths:
                await trio.lowlevel.checkpoint()
            elif self._closed is None:
                with contextlib.suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(self._fd)

    def _read(self) -> list[int]:
        """Fill rows of the buffer; returns the lengths of their frames."""
        lengths: list[int] = []
        try:
            for row in self._rows:
                lengths.append(os.readv(self._fd, row))  # noqa: PERF401  those before an error are kept
        except BlockingIOError:
            pass
        except OSError as error:
            if not lengths:
                self._close(f"the interface of {self.name} is gone: {error.strerror}")
        return lengths

    def _blocks(self, lengths: list[int]) -> list[Frames]:
        blocks = []
        first = 0
        while first < len(lengths):
            length, upto = lengths[first], first + 1
            while upto < len(lengths) and lengths[upto] == length:
                upto += 1
            if length < ETHERNET_HEADER_BYTES:
                self._counters.drop("runt frame", upto - first)
            elif length > FRAME_BYTES_MAX:
                self._counters.drop("frame too long", upto - first)
            else:
                blocks.append(self._data[first:upto, :length])
                self._counters.frames_in += upto - first
                self._counters.bytes_in += (upto - first) * length
            first = upto
        return blocks

    def _write(self, frame: memoryview) -> None:
        os.write(self._fd, frame)

    def send_nowait(self, frames: Frames) -> int:
        """See ``FramePort.send_nowait``. Raises ``LocalMisuse`` for frames too short or too long."""
        if self._closed is not None:
            raise PortClosed(self._closed)
        return len(frames) - self._output.push((frames,))

    async def run(self) -> None:
        """Send what waits until the port closes; see ``FramePort.run``."""
        await trio.lowlevel.checkpoint()
        with contextlib.suppress(trio.ClosedResourceError):
            await self._output.run(self._fd)

    def _close(self, reason: str) -> None:
        if self._closed is None:
            self._closed = reason
            self._output.close()
            trio.lowlevel.notify_closing(self._fd)
            os.close(self._fd)

    async def aclose(self) -> None:
        """Close both directions. Output that the kernel takes at once still leaves, the rest is lost."""
        if self._closed is None:
            self._output.flush()
        self._close(_CLOSED_HERE)
        await trio.lowlevel.checkpoint()


@dataclass(frozen=True, slots=True)
class TapLink:
    """A TAP interface as a place to attach a port; see ``inaproto.ports.Link``."""

    interface: str
    config: TapConfig

    @property
    def name(self) -> str:
        return f"tap:{self.interface}"

    def require(self) -> None:
        """See ``Link.require``."""
        try:
            os.close(self._open())
        except PermissionError:
            raise lacks_capability(self.name, "CAP_NET_ADMIN") from None
        except FileNotFoundError:
            raise Unsupported(
                self.name, f"there is no {_DEVICE}; modprobe tun (systemd: DeviceAllow={_DEVICE} rw)"
            ) from None
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise ConfigError(
                    f"{self.name}: another process has {self.interface}; end it or choose another name"
                ) from None
            if error.errno == errno.EINVAL:
                raise ConfigError(
                    f"{self.name}: {self.interface} is there and no TAP interface; choose another name"
                ) from None
            raise Unsupported(self.name, f"{_DEVICE}: {error.strerror}") from None

    def require_stranger(self, mac: bytes, ip: bytes) -> None:
        """See ``Link.require_stranger``."""
        require_stranger(self.interface, mac, ip)

    async def attach(self) -> TapPort:
        """See ``Link.attach``."""
        await trio.lowlevel.checkpoint()
        try:
            fd = self._open()
            try:
                # Nobody else can, before it is there.
                set_up(self.interface)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise FabricError(
                "attach", self.name, "making its interface", f"{error.strerror}", retryable=True
            ) from None
        return TapPort(fd, self.interface, self.config)

    async def wait_usable(self) -> None:
        """See ``Link.wait_usable``: it can be made at any time."""
        await trio.lowlevel.checkpoint()

    def _open(self) -> int:
        fd = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            request = struct.pack("16sH22x", os.fsencode(self.interface), _IFF_TAP | _IFF_NO_PI)
            fcntl.ioctl(fd, _TUNSETIFF, request)
        except BaseException:
            os.close(fd)
            raise
        return fd


def open_tap_link(interface: str, *, queue_bytes_max: int = 16 << 20) -> TapLink:
    """The link of that name. Raises ``ConfigError`` for a name or bounds that cannot be."""
    require_name(interface)
    if "+" in interface:
        raise ConfigError(f"port: tap:{interface}: devices of this kind are not joined; give each a port")
    return TapLink(interface, TapConfig(queue_bytes_max))
