"""The receive ring of a packet socket: TPACKET_V2, read as one numpy array.

Each slot holds one frame at a fixed place behind its header, so a run of frames of one length is a strided
view of the ring: no frame is copied and none costs a system call. TPACKET_V3 packs frames tighter, but holds
them back until a block is full or a timer of at least a millisecond ends, which a window of messages in
flight would pay on every round trip. What is longer than a slot (segments up to 64 KiB, see ``offloads``)
comes whole through the socket's own queue, in the order of the slots.

Invariants: slots of blocks that were handed out go back to the kernel at the next ``release``, not before;
every frame that the kernel gave is handed out or counted under a rule.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np

from inaproto.errors import InvariantBroken
from inaproto.ports import PortCounters
from inaproto.units import FRAME_BYTES_MAX, Frames
from inaproto_adapters.frames import compiled_ports
from inaproto_adapters.frames.compiled_ports import Taker
from inaproto_adapters.frames.offloads import (
    GSO_NONE,
    NEEDS_CHECKSUM,
    VNET_BYTES,
    CannotCut,
    VnetHeader,
    cut,
    fill_checksums,
    with_tag,
)
from inaproto_adapters.frames.roce_segments import HEADERS_BYTES, PACKETS_MAX, RoceSegments, is_long_roce

SOL_PACKET: Final = 263
_T = TypeVar("_T")
_RX_RING: Final = 5
_STATISTICS: Final = 6
_COPY_THRESH: Final = 7
_VERSION: Final = 10
_VNET_HDR: Final = 15
_TPACKET_V2: Final = 1

_USER: Final = 1
_COPY: Final = 2
_VLAN: Final = 0x10
_TPID: Final = 0x40
_HEADER: Final = np.dtype(
    [
        ("status", "=u4"),
        ("length", "=u4"),
        ("kept", "=u4"),
        ("mac", "=u2"),
        ("net", "=u2"),
        ("sec", "=u4"),
        ("nsec", "=u4"),
        ("tci", "=u2"),
        ("tpid", "=u2"),
        ("pad", "=u4"),
    ]
)
_KEY: Final = struct.Struct("=IIIHHHH10s2x")
_OVERHEAD_BYTES: Final = 96
"""Header, address and virtio_net_hdr before a frame."""
_SLOT_UNIT: Final = 1024
_SLOTS_PER_BLOCK: Final = 4
"""So that blocks are whole pages and no slot lies across two."""
_STEP_FIRST: Final = 16
_STEP_GROWTH: Final = 4
TAKE_MAX: Final = 1024
"""Slots that one ``take`` reads; the other ports have their turn after it."""
TAKE_BYTES_MAX: Final = 1 << 20
_LOOKED_AT: Final = 64
_ERRORS_MAX: Final = 16
"""Times that an interface may go down between two looks, one after the other: its link flaps."""
_SEGMENT_BYTES_MAX: Final = (64 << 10) + 1024
_ETHERTYPE_VLAN: Final = 0x8100


class ReceiveRing:
    """The ring of ``sock``, a packet socket that is not bound yet."""

    def __init__(self, sock: socket.socket, *, frame_bytes_max: int, ring_bytes: int) -> None:
        """Raises ``OSError``, for one when the kernel has no memory for it."""
        self._sock = sock
        slot = -(-(_OVERHEAD_BYTES + frame_bytes_max) // _SLOT_UNIT) * _SLOT_UNIT
        blocks = max(1, ring_bytes // (slot * _SLOTS_PER_BLOCK))
        self.slots = blocks * _SLOTS_PER_BLOCK
        sock.setsockopt(SOL_PACKET, _VERSION, _TPACKET_V2)
        sock.setsockopt(SOL_PACKET, _VNET_HDR, 1)
        sock.setsockopt(SOL_PACKET, _COPY_THRESH, 1)
        ring = struct.pack("=IIII", slot * _SLOTS_PER_BLOCK, blocks, slot, self.slots)
        sock.setsockopt(SOL_PACKET, _RX_RING, ring)
        # Unmapped when the last view of it goes: a consumer may hold one when the port closes.
        mapped = mmap.mmap(sock.fileno(), self.slots * slot)
        self._data: Frames = np.frombuffer(mapped, np.uint8).reshape(self.slots, slot)
        self._headers = self._data[:, : _HEADER.itemsize].view(_HEADER)[:, 0]
        self._status = self._headers["status"]
        self._at = 0
        self._taken = 0
        self.heard_error = False
        """The interface went down; the socket does not say so again."""
        self._long = bytearray(VNET_BYTES + _SEGMENT_BYTES_MAX)
        self._segments = RoceSegments()
        calls = compiled_ports.active()
        self._taker: Taker | None = None
        if calls is not None:
            self._taker = Taker(
                calls,
                sock.fileno(),
                self._data,
                self._segments.memory,
                slots_max=TAKE_MAX,
                bytes_max=TAKE_BYTES_MAX,
                packets_max=PACKETS_MAX,
            )

    def release(self) -> None:
        """The frames of the last ``take`` are not looked at any more."""
        if self._segments.used:
            self._segments.reset()
        if self._taken:
            self._status[self._at : self._at + self._taken] = 0
            self._at = (self._at + self._taken) % self.slots
            self._taken = 0

    @property
    def waiting(self) -> bool:
        """Whether ``take`` would find something."""
        return bool(self._status[self._at] & _USER)

    def take(self, counters: PortCounters) -> list[Frames]:
        """The frames that are there, equal neighbours together, in order."""
        if self._taken:
            raise InvariantBroken("the frames of the last take were not released")
        if self._taker is not None:
            return self._take_compiled(self._taker, counters)
        n = self._ready()
        if not n:
            return []
        if n > 1:
            upto = self._headers["length"][self._at : self._at + n].cumsum()
            n = max(1, int(upto.searchsorted(TAKE_BYTES_MAX, "right")))
        macs = self._headers["mac"][self._at : self._at + n]
        mac = int(macs[0])
        if (macs != mac).any():  # not of Ethernet frames, for all that is known
            n = int((macs != mac).argmax())
        self._taken = n
        blocks: list[Frames] = []
        slots = self._data[self._at : self._at + n]
        keys = _keys(slots, mac)
        words = keys.view(np.uint64)
        differs = (words[1:] != words[:-1]).any(axis=1)
        bounds = [0, *(np.flatnonzero(differs) + 1).tolist(), n] if n > 1 else [0, 1]
        for i in range(len(bounds) - 1):
            self._run(slots[bounds[i] : bounds[i + 1]], keys[bounds[i]].tobytes(), blocks, counters)
        for block in blocks:
            counters.frames_in += len(block)
            counters.bytes_in += block.size
        return blocks

    def _take_compiled(self, taker: Taker, counters: PortCounters) -> list[Frames]:
        """``take`` by ``ports_take``, whose twin is above; what is unusual is done here for both."""
        found: list[Frames] = []
        ready = following = 0
        while True:
            taken, blocks = taker.take(self._segments.used, self._at, ready, following)
            self._taken = ready = taken.ready
            self._segments.used = taken.used
            self.heard_error |= bool(taken.heard)
            if taken.error < 0:
                raise InvariantBroken("a slot told of another segment than the socket's queue gave")
            if taken.error:
                raise OSError(taken.error, os.strerror(taken.error))
            counters.frames_in += taken.frames
            counters.bytes_in += taken.bytes
            if not taken.unusual:
                return found + blocks if found else blocks
            begin, following = self._at + taken.next, taken.next + taken.unusual
            slots = self._data[begin : begin + taken.unusual]
            key = _keys(slots[:1], int(self._headers["mac"][begin])).tobytes()
            others: list[Frames] = []
            self._run(slots, key, others, counters)
            for block in others:
                counters.frames_in += len(block)
                counters.bytes_in += block.size
            found += blocks + others

    def count_drops(self, counters: PortCounters) -> None:
        """What the kernel had no slot for since this was asked last. Raises ``OSError``."""
        dropped = struct.unpack("=II", self._sock.getsockopt(SOL_PACKET, _STATISTICS, 8))[1]
        if dropped:
            counters.drop("receive ring full", dropped)

    def _ready(self) -> int:
        """How many slots from the next one on hold frames, in growing steps: each look misses the cache."""
        limit = min(TAKE_MAX, self.slots - self._at)
        n, step = 0, 1
        while n < limit:
            looked = self._status[self._at + n : self._at + min(limit, n + step)] & _USER
            first_empty = int(looked.argmin())
            if not looked[first_empty]:
                return n + first_empty
            n += len(looked)
            step = step * _STEP_GROWTH if n > 1 else _STEP_FIRST
        return n

    def _run(self, slots: Frames, key: bytes, blocks: list[Frames], counters: PortCounters) -> None:
        """Slots that agree in everything but their frames' bytes."""
        status, length, kept, mac, _net, tci, tpid, vnet = _KEY.unpack(key)
        header = VnetHeader.decode(vnet)
        tag = ((tpid if status & _TPID else _ETHERTYPE_VLAN), tci) if status & _VLAN else None
        if status & _COPY:
            for slot in slots:
                begin = slot[mac : mac + _LOOKED_AT].tobytes()
                if (
                    tag is None
                    and is_long_roce(begin, header, length)
                    and self._packets(header, length, blocks)
                ):
                    continue
                frame = self._receive_long(length)
                if length > _SEGMENT_BYTES_MAX:
                    counters.drop("long segment of more than 64 KiB")
                else:
                    self._finish(frame, header, tag, blocks, counters)
        elif kept < length:
            counters.drop("no room for a long segment", len(slots))
        elif header.gso_type != GSO_NONE:
            for slot in slots:
                self._finish(slot[None, mac : mac + length], header, tag, blocks, counters)
        else:
            self._finish(slots[:, mac : mac + length], header, tag, blocks, counters)

    def _packets(self, header: VnetHeader, length: int, blocks: list[Frames]) -> bool:
        """Receive a long segment of RoCE packets as these; False if it is to be received otherwise."""
        step, payload_bytes = header.gso_bytes, length - HEADERS_BYTES
        return self._despite_error(lambda: self._segments.receive(self._sock, step, payload_bytes, blocks))

    def _despite_error(self, receive: Callable[[], _T]) -> _T:
        for _ in range(_ERRORS_MAX):
            try:
                return receive()
            except OSError as error:
                if error.errno not in (errno.ENETDOWN, errno.ENODEV):
                    raise
                self.heard_error = True  # which the socket tells once each, before it gives what it holds
        return receive()

    def _receive_long(self, length: int) -> Frames:
        nbytes = self._despite_error(lambda: self._sock.recv_into(self._long)) - VNET_BYTES
        if nbytes != min(length, len(self._long) - VNET_BYTES):
            raise InvariantBroken(f"a slot told of {length} bytes in the socket's queue, {nbytes} came")
        return np.frombuffer(bytes(memoryview(self._long)[VNET_BYTES:][:nbytes]), np.uint8)[None]

    @staticmethod
    def _finish(
        frames: Frames,
        header: VnetHeader,
        tag: tuple[int, int] | None,
        blocks: list[Frames],
        counters: PortCounters,
    ) -> None:
        """Frames as they are on a wire."""
        found = [frames]
        if header.gso_type != GSO_NONE:
            try:
                found = cut(frames[0], header)
            except CannotCut as why:
                counters.drop(str(why), len(frames))
                return
        elif header.flags & NEEDS_CHECKSUM:
            if not frames.flags.writeable:
                found = [frames.copy()]
            if not fill_checksums(found[0], header.checksum_start, header.checksum_offset):
                counters.drop("checksum outside the frame", len(frames))
                return
        for block in found:
            whole = block if tag is None else with_tag(block, *tag)
            if whole.shape[1] > FRAME_BYTES_MAX:
                counters.drop("frame too long", len(whole))
            else:
                blocks.append(whole)


def _keys(slots: Frames, mac: int) -> Frames:
    """Everything that says how the frames of slots are to be treated, side by side, so that one comparison
    finds runs."""
    keys = np.zeros((len(slots), _KEY.size), dtype=np.uint8)
    keys[:, :16] = slots[:, :16]
    keys[:, 16:20] = slots[:, 24:28]
    keys[:, 20 : 20 + VNET_BYTES] = slots[:, mac - VNET_BYTES : mac]
    keys.view(np.uint64)[:, 0] &= np.uint64(0xFFFFFFFF_00000000 | _USER | _COPY | _VLAN | _TPID)
    return keys
