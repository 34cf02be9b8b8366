"""The program that an interface runs on each frame that comes in, for ``xdp:`` ports: RoCE packets go to the
port's socket, everything else to the kernel as before.

It takes what a NIC emits: IPv4 without options, UDP port 4791, UDP checksum 0, no VLAN tag. What is otherwise
(segments of a sender's offload, tags, a checksum that is still to be computed) needs work that
``packet_ring`` knows how to do, and passes. So do packets for the interface's own address: those are of the
machine's own RoCE stack.

The two dozen instructions are written down here, because a compiler for them is on few machines. They are
attached by a descriptor: however the process ends, the interface is as it was.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
from contextlib import ExitStack
from typing import Final

from inaproto.errors import Unsupported

MACHINES: Final = ("x86_64",)
"""Where the order in which memory is written is the order in which it is seen, which the rings rely on."""
_SYS_BPF: Final = 321
_MAP_CREATE: Final = 0
_MAP_UPDATE: Final = 2
_PROG_LOAD: Final = 5
_LINK_CREATE: Final = 28
_MAP_TYPE_XSKMAP: Final = 17
_PROG_TYPE_XDP: Final = 6
_ATTACH_XDP: Final = 37
_ATTR_BYTES: Final = 144
_ATTEMPTS: Final = 5
_LOG_BYTES: Final = 1 << 16
MODE_GENERIC: Final = 2
MODE_DRIVER: Final = 4
_XDP_PASS: Final = 2
_REDIRECT_MAP: Final = 51
"""Number of ``bpf_redirect_map``."""
_ROCE_PORT: Final = 4791
_HEADERS_BYTES: Final = 42
"""Ethernet, IPv4 and UDP."""

_LOAD8: Final = 0x71
_LOAD16: Final = 0x69
_LOAD32: Final = 0x61
_MOVE: Final = 0xB7
_COPY: Final = 0xBF
_ADD: Final = 0x07
_JUMP_IF_ABOVE: Final = 0x2D
_JUMP_IF_NOT_ABOVE: Final = 0xBD
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_OTHER: Final = 0x55
_JUMP_IF_OTHER_32: Final = 0x56
_LOAD_MAP: Final = 0x18
"""Takes two places."""
_CALL: Final = 0x85
_EXIT: Final = 0x95

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def instructions(map_fd: int, own_mac: bytes, frame_bytes_max: int) -> bytes:
    """The program: RoCE packets of at most ``frame_bytes_max`` bytes go to the socket of their queue."""
    own_low, own_high = struct.unpack("<iH", own_mac)
    # Operation, destination and source register, offset or the label to jump to, immediate value. Numbers of
    # the frame are big-endian, and compared as a little-endian machine loads them.
    rows: list[tuple[int, int, int, int | str, int]] = [
        (_COPY, 6, 1, 0, 0),
        (_LOAD32, 2, 6, 0, 0),  # where the frame begins
        (_LOAD32, 3, 6, 4, 0),  # and ends
        (_COPY, 4, 2, 0, 0),
        (_ADD, 4, 0, 0, _HEADERS_BYTES),
        (_JUMP_IF_ABOVE, 4, 3, "kernel", 0),
        (_ADD, 4, 0, 0, frame_bytes_max + 1 - _HEADERS_BYTES),
        (_JUMP_IF_NOT_ABOVE, 4, 3, "kernel", 0),
        (_LOAD16, 5, 2, 12, 0),
        (_JUMP_IF_OTHER, 5, 0, "kernel", 0x0008),  # IPv4
        (_LOAD8, 5, 2, 14, 0),
        (_JUMP_IF_OTHER, 5, 0, "kernel", 0x45),  # without options
        (_LOAD8, 5, 2, 23, 0),
        (_JUMP_IF_OTHER, 5, 0, "kernel", 17),  # UDP
        (_LOAD16, 5, 2, 36, 0),
        (_JUMP_IF_OTHER, 5, 0, "kernel", socket.htons(_ROCE_PORT)),
        (_LOAD16, 5, 2, 40, 0),
        (_JUMP_IF_OTHER, 5, 0, "kernel", 0),  # with a checksum
        (_LOAD32, 5, 2, 0, 0),
        (_JUMP_IF_OTHER_32, 5, 0, "port", own_low),
        (_LOAD16, 5, 2, 4, 0),
        (_JUMP_IF_EQUAL, 5, 0, "kernel", own_high),
    ]
    port: list[tuple[int, int, int, int | str, int]] = [
        (_LOAD32, 2, 6, 16, 0),  # the queue that it came by
        (_LOAD_MAP, 1, 1, 0, map_fd),
        (0, 0, 0, 0, 0),
        (_MOVE, 3, 0, 0, _XDP_PASS),  # where no socket is at the queue
        (_CALL, 0, 0, 0, _REDIRECT_MAP),
        (_EXIT, 0, 0, 0, 0),
    ]
    kernel: list[tuple[int, int, int, int | str, int]] = [(_MOVE, 0, 0, 0, _XDP_PASS), (_EXIT, 0, 0, 0, 0)]
    labels = {"port": len(rows), "kernel": len(rows) + len(port)}
    code = b""
    for at, (operation, to, source, offset, value) in enumerate([*rows, *port, *kernel]):
        jump = labels[offset] - at - 1 if isinstance(offset, str) else offset
        code += struct.pack("<BBhi", operation, to | source << 4, jump, value)
    return code


class Program:
    """The program at an interface, from its making until ``close``."""

    def __init__(self, index: int, own_mac: bytes, *, queues: int, frame_bytes_max: int, mode: int) -> None:
        """``index``: of the interface. Raises ``OSError``: ``EBUSY`` if it runs another program already."""
        with ExitStack() as undo:
            self._map = _owned(undo, _make_map(queues))
            program = _load(self._map, own_mac, frame_bytes_max)
            try:
                # The link holds the program, and its descriptor the link.
                self._link = _bpf(_LINK_CREATE, struct.pack("=IIII", program, index, _ATTACH_XDP, mode))
            finally:
                os.close(program)
            undo.pop_all()

    def set_socket(self, queue: int, socket_fd: int) -> None:
        """What comes by this queue goes to that socket. Raises ``OSError``."""
        key, value = ctypes.c_uint32(queue), ctypes.c_uint32(socket_fd)
        where = (ctypes.addressof(key), ctypes.addressof(value))
        _bpf(_MAP_UPDATE, struct.pack("=I4xQQQ", self._map, *where, 0))

    def close(self) -> None:
        """The interface is as it was before."""
        for fd in (self._link, self._map):
            if fd != -1:
                os.close(fd)
        self._link = self._map = -1


def _make_map(queues: int) -> int:
    return _bpf(_MAP_CREATE, struct.pack("=IIII", _MAP_TYPE_XSKMAP, 4, 4, queues))


def _load(map_fd: int, own_mac: bytes, frame_bytes_max: int) -> int:
    code = ctypes.create_string_buffer(instructions(map_fd, own_mac, frame_bytes_max))
    licence = ctypes.create_string_buffer(b"GPL")  # of these instructions: the kernel's helper asks for none
    count, where = (len(code) - 1) // 8, (ctypes.addressof(code), ctypes.addressof(licence))
    title = b"inaproto"
    attributes = (_PROG_TYPE_XDP, count, *where, 0, 0, 0, 0, 0, title, 0, _ATTACH_XDP)
    return _bpf(_PROG_LOAD, struct.pack("=IIQQIIQII16sII", *attributes))


def _owned(undo: ExitStack, fd: int) -> int:
    undo.callback(os.close, fd)
    return fd


def _bpf(command: int, attributes: bytes) -> int:
    """The system call ``bpf``. Raises ``OSError``."""
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTR_BYTES, b"\0"), _ATTR_BYTES)
    number = 0
    for _ in range(_ATTEMPTS):
        result: int = _LIBC.syscall(_SYS_BPF, command, buffer, _ATTR_BYTES)
        if result >= 0:
            return result
        number = ctypes.get_errno()
        if number != errno.EAGAIN:  # that is: a signal came while the kernel looked at the program
            break
    raise OSError(number, os.strerror(number))


def require_programs(what: str) -> None:
    """Raises ``Unsupported``, with the remedy, where there cannot be such programs at all, and
    ``PermissionError`` where this process may not make one."""
    if platform.machine() not in MACHINES:
        raise Unsupported(what, f"it is for {', '.join(MACHINES)}, not {platform.machine()}; use packet:")
    try:
        with ExitStack() as undo:
            os.close(_load(_owned(undo, _make_map(1)), bytes(6), _HEADERS_BYTES))
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
        raise Unsupported(
            what,
            f"the kernel takes no program for AF_XDP sockets ({error.strerror}); it needs Linux 5.9 with "
            "CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS; use packet:",
        ) from None
