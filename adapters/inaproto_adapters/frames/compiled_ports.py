"""The compiled part of ports on packet sockets (``ports.c``), as a shared object that ctypes loads.

It is used where the compiled kernels are (``inaproto.core.kernels``): who chooses ``numpy`` has neither.
Addresses and descriptors are numbers here: whoever passes one keeps its array or socket alive.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from inaproto.core import kernels
from inaproto.core.kernels.compiled import Told, address_of, pointer_to
from inaproto.core.kernels.library import open_library
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto.wire.ethernet import ETHERNET_HEADER_BYTES

log = logging.getLogger("inaproto.frames")

_SOURCE: Final = Path(__file__).parent / "ports.c"
LIBRARY: Final = Path(__file__).parent / "ports.so"
_BLOCK: Final = struct.Struct("4q")
_OUTPUT: Final = struct.Struct("11q")
_WHERE: Final = struct.Struct("2q")
_WHERE_AT: Final = 4 * 8
_OUTCOME: Final = struct.Struct("7q")
_INPUT_WORDS: Final = 20
_USED: Final = 10
"""Place of the first word that changes."""


class PortCalls:
    """The functions of the library; what they do is said in ``ports.c``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        number, address = ctypes.c_int64, ctypes.c_void_p
        self.send = library.ports_send
        self.send.argtypes, self.send.restype = (address, address, number), None
        self.send_arrays = library.ports_send_arrays
        self.send_arrays.restype = ctypes.c_int
        self.take = library.ports_take
        self.take.argtypes, self.take.restype = (address, address), None
        self.push_ring = library.rings_push
        self.push_ring.argtypes, self.push_ring.restype = (address, address, number), None
        self.lend_ring = library.rings_lend
        self.lend_ring.argtypes, self.lend_ring.restype = (address, number), number
        self.settle_ring = library.rings_settle
        self.settle_ring.argtypes, self.settle_ring.restype = (address,), None
        self.take_ring = library.rings_take
        self.take_ring.argtypes, self.take_ring.restype = (address, address), None


def load() -> tuple[PortCalls | None, str]:
    """The functions, or None and why there are none."""
    library, why = open_library(_SOURCE, LIBRARY, "ports_source")
    if library is None:
        return None, why
    try:
        return PortCalls(library), ""
    except AttributeError as error:
        return None, f"{LIBRARY.name} cannot be loaded: {error}"


_library, _why = load()


def active() -> PortCalls | None:
    """The functions, for ports that are made from now on; None: the Python code does what they do."""
    if kernels.active() is None:
        return None
    if _library is None:
        _warn(_why)
    return _library


@cache
def _warn(why: str) -> None:
    """Once: all else that is compiled is there."""
    log.warning("ports on packet sockets run without their compiled part (ports.c), slowly: %s", why)


class Sender:
    """Sends blocks by the socket ``fd``, as few calls of the kernel as it can; see ``ports_send``."""

    def __init__(
        self, calls: PortCalls, fd: int, *, has_vnet: bool, long_bytes_max: int, packets_max: int
    ) -> None:
        """``has_vnet``: a ``virtio_net_hdr`` stands before all that is sent. Runs of frames of up to
        ``long_bytes_max`` bytes leave as long segments of up to ``packets_max`` of them."""
        self._send = calls.send_arrays
        self._output = bytearray(_OUTPUT.pack(fd, has_vnet, long_bytes_max, packets_max, *[0] * 7))
        self._output_at = pointer_to(self._output)
        self._told = Told()
        self._room(16)

    def _room(self, blocks: int) -> None:
        self._most = blocks
        self._blocks = bytearray(blocks * _BLOCK.size)
        self._blocks_at = pointer_to(self._blocks)

    def send(self, blocks: Sequence[Frames]) -> tuple[int, ...] | None:
        """Send frames from the first one on: (block, row, frames, bytes, error, refused, calls).

        Block and row of the first frame that is still to be sent; frames and bytes that have left; if not all
        have, the error number, and how many frames were refused together; calls of the kernel. None: a frame
        is too short or too long for a port, or its bytes do not lie together, and nothing was sent.
        """
        n = len(blocks)
        if n > self._most:
            self._room(2 * n)
        _WHERE.pack_into(self._output, _WHERE_AT, 0, 0)
        told = self._told.of(blocks)
        if self._send(self._output_at, told, self._blocks_at, ETHERNET_HEADER_BYTES, FRAME_BYTES_MAX):
            return None
        return _OUTCOME.unpack_from(self._output, _WHERE_AT)


class Taken(NamedTuple):
    """What ``ports_take`` says of one call; see ``Input`` in ``ports.c``."""

    used: int
    at: int
    ready: int
    next: int
    blocks: int
    unusual: int
    frames: int
    bytes: int
    heard: int
    error: int


class Taker:
    """Takes frames out of a ring, uint8 (slots, bytes of a slot), and packets of long segments from ``fd``
    into ``memory``; see ``ports_take``."""

    def __init__(
        self,
        calls: PortCalls,
        fd: int,
        ring: Frames,
        memory: Frames,
        *,
        slots_max: int,
        bytes_max: int,
        packets_max: int,
    ) -> None:
        self._take = calls.take
        self._ring, self._memory = ring, memory
        self._ring_at, self._memory_at = address_of(ring), address_of(memory)
        words = np.zeros(_INPUT_WORDS, np.int64)
        slots, slot_bytes = ring.shape
        words[:_USED] = (
            *(self._ring_at, slots, slot_bytes, slots_max, bytes_max, FRAME_BYTES_MAX, packets_max, fd),
            *(self._memory_at, memory.nbytes),
        )
        self._words = words.data
        self._words_at = words.ctypes.data
        table = np.zeros(4 * slots_max, np.int64)
        self._table = table.data
        self._table_at = table.ctypes.data

    def take(self, used: int, at: int, ready: int, following: int) -> tuple[Taken, list[Frames]]:
        """Bytes of the memory that are in use, the first slot, how many hold frames (0: not known), and which
        of these is the next one; what was found, and its blocks."""
        words = self._words
        words[10], words[11], words[12], words[13] = used, at, ready, following
        self._take(self._words_at, self._table_at)
        taken = Taken(*words[_USED:].tolist())
        blocks: list[Frames] = []
        rest = iter(self._table[: 4 * taken.blocks].tolist())
        for address, rows, stride, length in zip(rest, rest, rest, rest, strict=True):
            where, begin = self._ring, address - self._ring_at
            if not 0 <= begin < where.nbytes:
                where, begin = self._memory, address - self._memory_at
            blocks.append(np.ndarray((rows, length), np.uint8, where, begin, (stride, 1)))
        return taken, blocks
