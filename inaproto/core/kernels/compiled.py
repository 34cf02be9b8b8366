"""The compiled kernels (``kernels.c`` and what it includes), as a shared object that ctypes loads.

No header of Python is needed to build it, and one file serves every Python. Addresses are numbers here:
whoever passes one keeps its array alive.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.library import open_library
from inaproto.units import Frames
from inaproto.wire.crc import shift
from inaproto.wire.vector import HEADER_COLUMNS

_SOURCE: Final = Path(__file__).parent / "kernels.c"
LIBRARY: Final = Path(__file__).parent / "kernels.so"
CLASSES_MAX: Final = 64
HEAD_BYTES: Final = 128
_FAST_CRC: Final = 1
_FAST_SUM: Final = 2
_HALVES: Final = 4
_WIDE: Final = 8
_JOIN: Final = struct.Struct("6q")
_PART: Final = struct.Struct("9q")
_PARTS_MAX: Final = 16
Parts = Iterable[tuple[int, ...]]
SEAL: Final = struct.Struct("6q")


def load() -> tuple[Compiled | None, str]:
    """The kernels, or None and why there are none."""
    library, why = open_library(_SOURCE, LIBRARY, "kernels_source")
    if library is None:
        return None, why
    try:
        return Compiled(library), ""
    except AttributeError as error:
        return None, f"{LIBRARY.name} cannot be loaded: {error}"


class Compiled:
    """The functions of the library; what they do is said in ``kernels.c``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.start = library.kernels_start
        """``start(without)``: with all instructions but those; bits are those of what it returns."""
        found = self.start(0)
        vector = {"x86_64": "pclmul", "aarch64": "crc32"}.get(platform.machine(), "fast crc")
        names = [vector if found & _FAST_CRC else "crc by tables", *(["avx2"] if found & _FAST_SUM else [])]
        names += ["avx512"] if found & _WIDE else []
        self.instructions = ", ".join(names)
        number, address = ctypes.c_int64, ctypes.c_void_p
        self.crc = library.kernels_crc
        self.crc.argtypes, self.crc.restype = (address, number, ctypes.c_uint32), ctypes.c_uint32
        self.rows = library.kernels_rows
        self.rows.argtypes = (address, number, address, *[number] * 3, address)
        self.rows.restype = None
        self.intact = library.kernels_intact
        self.intact.argtypes, self.intact.restype = (address, number, address), ctypes.c_int
        self.scan = library.kernels_scan
        self.scan.restype = number
        self.join = library.kernels_join
        self.join.restype = None
        self.receive = library.kernels_receive
        self.receive.restype = number
        self.sum = library.kernels_sum
        self.sum.argtypes, self.sum.restype = (address, *[number] * 6), None
        self.sums_halves = bool(found & _HALVES)
        """Whether ``reduce`` can do float16."""
        self.reduce = library.kernels_reduce
        self.reduce.argtypes, self.reduce.restype = (address, number) * 2 + (number, number), None
        self.gather = library.kernels_gather
        self.gather.argtypes, self.gather.restype = (address, number, number, address), number
        self.fence = library.kernels_fence
        self.fence.restype = None
        self.copy = library.kernels_copy
        self.copy.argtypes, self.copy.restype = (address, address, number), None
        self.build = library.kernels_build
        self.build.argtypes, self.build.restype = (address, address), None
        self.acknowledge = library.kernels_acknowledge
        self.acknowledge.argtypes = (address, number, number, ctypes.c_uint32, address)
        self.acknowledge.restype = None
        self.ack = library.kernels_ack
        self.ack.argtypes, self.ack.restype = (address, number, number, number, address), number
        self.take = library.kernels_take
        self.take.argtypes, self.take.restype = (address, number, address), None
        self.seal = library.kernels_seal
        self.seal.restype = None
        self.read = library.kernels_read
        self.read.restype = None


_first_byte = ctypes.c_char.from_buffer


def address_of(array: Frames) -> int:
    """Where it is in memory; by the quickest of two ways that there are."""
    try:
        return ctypes.addressof(_first_byte(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # with gaps, empty, or to be read only
        return int(array.ctypes.data)


def _view(array: Frames) -> NDArray[np.int64]:
    """What numpy keeps of an array of two dimensions, as it keeps it: address, dimensions, where shape and
    strides are; then these. int64 (8,)."""
    view = np.array([array.ctypes.data, array.ndim, 0, 0, *array.shape, *array.strides], np.int64)
    view[2:4] = view.ctypes.data + 4 * 8, view.ctypes.data + 6 * 8
    return view


def _fields_at() -> int | None:
    """How far behind its identity what numpy keeps of an array lies; None where that is not so.

    That is part of numpy's binary interface (``PyArrayObject_fields``): every extension module reads it so.
    To ask each array in Python would be a third of what a switch does for a message there.
    """
    if sys.implementation.name != "cpython":
        return None
    probe = np.zeros((5, 9), np.uint8)[1:4, 2:7]
    begin = object.__basicsize__
    word = ctypes.c_int64.from_address
    if word(id(probe) + begin).value != probe.ctypes.data or probe.__class__.__basicsize__ < begin + 32:
        return None
    if ctypes.c_int.from_address(id(probe) + begin + 8).value != probe.ndim:
        return None
    shape, strides = word(id(probe) + begin + 16).value, word(id(probe) + begin + 24).value
    found = [tuple((ctypes.c_int64 * 2).from_address(at)) for at in (shape, strides)]
    return begin if found == [probe.shape, probe.strides] else None


_FIELDS_AT: Final = _fields_at()


@lru_cache(maxsize=64)
def shift_table(nbytes: int) -> NDArray[np.uint32]:
    """``shift(crc, nbytes)`` as the XOR of four entries, one for each byte of ``crc``: uint32 (4, 256)."""
    table = np.zeros((4, 256), np.uint32)
    for place in range(4):
        for bit in range(8):
            size = 1 << bit
            moved = np.uint32(shift(size << 8 * place, nbytes))
            table[place, size : 2 * size] = table[place, :size] ^ moved
    table.flags.writeable = False
    return table


def pointer_to(memory: bytearray) -> ctypes.c_void_p:
    """Its address, as functions of the library that have no ``argtypes`` take it: quicker than a number."""
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))


class Layouts:
    """How the first, the middle and the last packet of a message look; the last one may not be known yet."""

    __slots__ = ("_known", "_tables", "_words", "address")

    def __init__(self) -> None:
        words = np.full(3 * 5, -1, np.int64)
        self._words = words.data
        self._tables: list[NDArray[np.uint32] | None] = [None] * 3
        self._known: list[tuple[int, int, int, int] | None] = [None] * 3
        self.address = words.ctypes.data

    def put(self, which: int, opcode: int, width: int, tail: int, pad: int) -> None:
        """``tail`` is payload and pad."""
        layout, words, at = (opcode, width, tail, pad), self._words, 5 * which
        words[at] = opcode
        if layout != self._known[which]:
            self._known[which] = layout
            table = self._tables[which] = shift_table(tail)
            words[at + 1], words[at + 2], words[at + 3], words[at + 4] = width, tail, pad, table.ctypes.data

    def clear(self, which: int) -> None:
        self._words[5 * which] = -1

    def frame_bytes(self, which: int) -> int:
        """Headers, payload, pad and ICRC."""
        return self._words[5 * which + 1] + self._words[5 * which + 2] + 4


@cache
def _addresses(count: int) -> struct.Struct:
    return struct.Struct(f"3q{count}Q")


@cache
def _identities(count: int) -> struct.Struct:
    return struct.Struct(f"2q{count}Q")


class Told:
    """Arrays of two dimensions, as functions of the libraries are told of them: who they are.

    Memory is kept for the next ones. What is told is valid as long as the arrays are, until the next call.
    """

    def __init__(self) -> None:
        self._room(16)

    def _room(self, arrays: int) -> None:
        self._most = arrays
        self._memory = bytearray(_identities(arrays).size)
        self._at = pointer_to(self._memory)
        self._views: list[NDArray[np.int64]] = []

    def of(self, arrays: Sequence[Frames]) -> ctypes.c_void_p:
        """Where it is said."""
        count = len(arrays)
        if count > self._most:
            self._room(2 * count)
        if _FIELDS_AT is None:
            self._views = [_view(array) for array in arrays]
            told = [view.ctypes.data for view in self._views]
            _identities(count).pack_into(self._memory, 0, count, 0, *told)
        else:
            _identities(count).pack_into(self._memory, 0, count, _FIELDS_AT, *map(id, arrays))
        return self._at


class Scan:
    """The frames of one receive, by class: those that agree in all that tells flows apart.

    Memory is kept for the next receive. Addresses are valid as long as the blocks that were read.
    """

    def __init__(self, kernels: Compiled) -> None:
        self.kernels = kernels
        self._begin = np.zeros(CLASSES_MAX + 1, np.int64)
        self.edges = self._begin.data
        """Where each class begins in the order of classes, and where the last one ends."""
        self._keys = np.zeros((CLASSES_MAX, HEADER_COLUMNS), np.uint8)
        self._heads = np.zeros((CLASSES_MAX, HEAD_BYTES), np.uint8)
        self.keys = self._keys.reshape(-1).data
        """Masked headers of the classes, HEADER_COLUMNS bytes each."""
        self.heads = self._heads.reshape(-1).data
        """First bytes of the first frame of each, or all of them and zeros: HEAD_BYTES bytes each."""
        self._blocks_room(16)
        self._words = np.zeros(9, np.int64)
        self.address = int(self._words.ctypes.data)
        self._room(256)
        self._told = bytearray(_JOIN.size + _PARTS_MAX * _PART.size)
        self._told_at = pointer_to(self._told)
        self._join = memoryview(self._told).cast("q")
        self._join[0] = self.address

    def _blocks_room(self, blocks: int) -> None:
        self._blocks_max = blocks
        self._blocks = bytearray(_addresses(blocks).size)
        self._blocks_at = pointer_to(self._blocks)

    def _room(self, frames: int) -> None:
        self._frame, self._length, self._order = (np.zeros(frames, np.int64) for _ in range(3))
        self._of = np.zeros(frames, np.uint8)
        arrays = (self._frame, self._length, self._order, self._begin, self._keys, self._heads, self._of)
        self._words[:] = [*(array.ctypes.data for array in arrays), frames, 0]

    def read(self, blocks: Sequence[Frames], inlet: int = 0) -> int:
        """Number of classes; 0 if there are too many, or a block that the kernel cannot read.

        If there is one, and it is that of the flow whose ``Inlet`` is at that address, its packets are taken
        as by ``join``: ``taken`` says how many, ``parts`` what came of them.
        """
        count = len(blocks)
        if count > self._blocks_max:
            self._blocks_room(2 * count)
        pack = _addresses(count).pack_into
        if _FIELDS_AT is None:
            views = [_view(block) for block in blocks]
            pack(self._blocks, 0, self.address, count, 0, *[view.ctypes.data for view in views])
        else:
            pack(self._blocks, 0, self.address, count, _FIELDS_AT, *map(id, blocks))
        if inlet:
            self._join[1] = inlet
            found: int = self.kernels.receive(self._blocks_at, self._told_at)
        else:
            found = self.kernels.scan(self._blocks_at)
        if found < 0:
            self._room(2 * self._words[-1])
            return self.read(blocks, inlet)
        return found

    @property
    def taken(self) -> int:
        """How many frames ``read`` took."""
        return self._join[4]

    def parts(self) -> Parts:
        """What came of the frames that were taken.

        Of each part of a message: the number of its region, the offset and the PSN of its first packet, and
        whether that opened the message; how many were taken, and how many of these are right and are stored
        now; the offset behind the last one stored; how many slots were filled, added up and checksummed, and
        the offset behind the last one of them.
        """
        parts = self._join[5]
        return _PART.iter_unpack(self._told[_JOIN.size : _JOIN.size + parts * _PART.size]) if parts else ()

    def join(self, inlet: int, begin: int, end: int) -> tuple[int, Parts]:
        """Frames in places ``begin`` to ``end - 1``, of the flow whose ``Inlet`` is at that address, into
        messages of its ring; returns how many it took, and ``parts``."""
        join = self._join
        join[1], join[2], join[3] = inlet, begin, end
        self.kernels.join(self._told_at)
        parts = join[5]
        if not parts:
            return 0, ()
        return join[4], _PART.iter_unpack(self._told[_JOIN.size : _JOIN.size + parts * _PART.size])

    def key(self, which: int) -> bytes:
        """The masked header of a class."""
        at = which * HEADER_COLUMNS
        return bytes(self.keys[at : at + HEADER_COLUMNS])

    def bounds(self, which: int) -> tuple[int, int]:
        """Where a class is in the order of classes."""
        return self.edges[which], self.edges[which + 1]

    def frames(self, begin: int, end: int) -> NDArray[np.int64]:
        """Numbers of frames, by arrival, at places in the order of classes."""
        return self._order[begin:end]

    def frame(self, at: int) -> tuple[bytes, int]:
        """The first bytes of the frame at a place in the order of classes, and its length."""
        number = self._order[at]
        length = int(self._length[number])
        return ctypes.string_at(int(self._frame[number]), min(length, HEAD_BYTES)), length

    def intact(self, at: int, layouts: Layouts) -> bool:
        """Whether the frame there has the length of first packets and the right ICRC."""
        return bool(self.kernels.intact(self.address, at, layouts.address))
