"""Wires between frame ports that count system calls and lie in memory: nothing on them depends on a machine.

The ports are the real ones; the sockets behind them are these. A wire takes all that is sent to it, and gives
all that is there at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import trio

from inaproto.core import kernels
from inaproto_adapters.frames import compiled_ports, packet, packet_ring
from inaproto_adapters.frames.compiled_ports import PortCalls
from inaproto_adapters.frames.interfaces import Interface
from inaproto_adapters.frames.packet import PacketConfig, PacketPort
from inaproto_adapters.frames.port import StreamFramePort

_MAC_OFFSET: Final = 92
_MESSAGES_AT_ONCE: Final = 64
_library, _ = compiled_ports.load()
_SLOT: Final = struct.Struct("=IIIHHIIHH4x")


class _Bell:
    """A descriptor that is readable while something waits."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._rings = False

    def ring(self, rings: bool) -> None:
        if rings != self._rings:
            self._rings = rings
            (os.eventfd_write(self.fd, 1) if rings else os.eventfd_read(self.fd))

    def close(self) -> None:
        if self.fd != -1:
            os.close(self.fd)
            self.fd = -1


class StreamWire:
    """One end of a stream, as :class:`socket.socket` is used by a port."""

    type = socket.SOCK_STREAM

    def __init__(self) -> None:
        self.peer = self
        self.syscalls = self.kernel_bytes = 0
        self._waiting = bytearray()
        self._bell = _Bell()

    def setblocking(self, flag: bool) -> None:
        pass

    def setsockopt(self, *args: Any) -> None:
        pass

    def fileno(self) -> int:
        return self._bell.fd

    def put(self, data: bytes) -> None:
        """As if the peer had sent it."""
        self._waiting += data
        self._bell.ring(True)

    def send(self, data: memoryview) -> int:
        self.syscalls += 1
        self.kernel_bytes += len(data)
        self.peer.put(bytes(data))
        return len(data)

    def recv_into(self, into: memoryview) -> int:
        self.syscalls += 1
        if not self._waiting:
            raise BlockingIOError
        n = min(len(into), len(self._waiting))
        into[:n] = self._waiting[:n]
        del self._waiting[:n]
        self.kernel_bytes += n
        self._bell.ring(bool(self._waiting))
        return n

    def close(self) -> None:
        self._bell.close()


def stream_port(name: str = "wire") -> tuple[StreamFramePort, StreamWire]:
    """A port, and its own end of the wire: what it sends comes to ``peer``, at first itself."""
    wire = StreamWire()
    return StreamFramePort(wire, name=name), wire  # type: ignore[arg-type]


class PacketWire:
    """A packet socket with a receive ring, as ``PacketPort`` uses two: one receives, one sends."""

    def __init__(self, *args: Any) -> None:
        self.peer: PacketWire | None = None
        self.syscalls = self.kernel_bytes = 0
        self._bell = _Bell()
        self._ring_fd = -1
        self._slots: Any = None
        self._at = 0

    def __enter__(self) -> PacketWire:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if (level, option) == (packet_ring.SOL_PACKET, packet_ring._RX_RING):
            _, _, slot, slots = struct.unpack("=IIII", value)
            self._ring_fd = os.memfd_create("ring")
            os.ftruncate(self._ring_fd, slot * slots)
            self._slots = np.frombuffer(mmap.mmap(self._ring_fd, slot * slots), np.uint8).reshape(slots, slot)

    def getsockopt(self, level: int, option: int, nbytes: int = 0) -> Any:
        self.syscalls += 1
        return bytes(nbytes) if nbytes else 0

    def bind(self, address: Any) -> None:
        if self._ring_fd != -1:  # it has been mapped
            os.close(self._ring_fd)
            self._ring_fd = -1

    def fileno(self) -> int:
        if self._slots is not None and self._bell.fd != -1:
            # Asked for before each wait: the bell rings on if the newest slot is unread.
            self._bell.ring(bool(self._slots[(self._at - 1) % len(self._slots)][0]))
        return self._bell.fd if self._ring_fd == -1 else self._ring_fd

    def put(self, frame: Any) -> None:
        """As if it had come by the cable."""
        slot = self._slots[self._at % len(self._slots)]
        assert not slot[0], "the ring is full"
        slot[_MAC_OFFSET - 10 : _MAC_OFFSET] = 0
        slot[_MAC_OFFSET : _MAC_OFFSET + len(frame)] = frame
        header = _SLOT.pack(1, len(frame), len(frame), _MAC_OFFSET, _MAC_OFFSET + 14, 0, 0, 0, 0)
        slot[: len(header)] = np.frombuffer(header, np.uint8)
        self._at += 1
        self._bell.ring(True)

    def send(self, frame: memoryview) -> int:
        self.syscalls += 1
        self.kernel_bytes += len(frame)
        assert self.peer is not None
        self.peer.put(np.frombuffer(frame, np.uint8))
        return len(frame)

    def close(self) -> None:
        self._bell.close()


class _WireCalls:
    """The compiled part of ports (``ports.c``), between wires instead of descriptors.

    Rings are memory here as there.
    """

    def __init__(self, wires: list[PacketWire], calls: PortCalls) -> None:
        self._wires = wires
        self.take = calls.take

    def send_arrays(
        self, told_output: ctypes.c_void_p, told: ctypes.c_void_p, room: ctypes.c_void_p, *lengths: int
    ) -> int:
        compiled = kernels.active()
        assert compiled is not None
        assert told_output.value
        assert told.value
        assert room.value
        compiled.read(told, room, lengths[0])
        n = ctypes.c_int64.from_address(told.value).value
        output = (ctypes.c_int64 * 11).from_address(told_output.value)
        blocks = (ctypes.c_int64 * (4 * n)).from_address(room.value)
        wire = next(wire for wire in self._wires if wire.fileno() == output[0])
        assert wire.peer is not None
        output[4:] = [n, *[0] * 6]
        for at, rows, stride, length in zip(*[iter(blocks)] * 4, strict=True):
            for row in range(rows):
                wire.peer.put(np.frombuffer(ctypes.string_at(at + row * stride, length), np.uint8))
            output[6] += rows
            output[7] += rows * length
        wire.syscalls += -(-output[6] // _MESSAGES_AT_ONCE)
        wire.kernel_bytes += output[7]
        return 0


class _NoWatch:
    async def wait(self) -> None:
        await trio.sleep_forever()

    def close(self) -> None:
        pass


def packet_port(patch: pytest.MonkeyPatch, name: str) -> tuple[PacketPort, PacketWire, PacketWire]:
    """A port on a scripted interface; its sockets that receive and that send."""
    made: list[PacketWire] = []

    def open_socket(*args: Any) -> PacketWire:
        made.append(PacketWire())
        return made[-1]

    interface = Interface(name, 1, bytes(6), 1500, True, True, True)
    patch.setattr(packet, "socket", SimpleNamespace(**(vars(socket) | {"socket": open_socket})))
    patch.setattr(packet, "LinkWatch", _NoWatch)
    calls = _library if kernels.active() is not None else None
    patch.setattr(compiled_ports, "active", lambda: calls and _WireCalls(made, calls))
    patch.setattr(packet, "look_at_index", lambda *_: interface)
    patch.setattr(packet, "name_of", lambda *_: None)
    port = PacketPort(interface, PacketConfig())
    return port, made[0], made[1]
