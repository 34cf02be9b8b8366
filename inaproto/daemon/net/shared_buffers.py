"""Shared memory that a training process hands to its host daemon: memfd segments, checked and mapped.

The tensor never goes through the socket: the client puts it into a memfd, passes the descriptor
(SCM_RIGHTS), and both sides map it. The NIC reads messages straight from it, results are copied
straight into it.

Invariants: nothing that a client does to its descriptor can kill the daemon. Touching a page behind
the end of a file raises SIGBUS, so a segment must be sealed against shrinking, be long enough, and
consist of ordinary pages (huge pages are reserved at fault time, and a failed reservation is SIGBUS
too). All bounds are checked before a buffer is used.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
from dataclasses import dataclass

from inaproto.client.foreign_descriptors import discard
from inaproto.client.huge_pages import map_shared
from inaproto.core.host.operations import Memory, Operation
from inaproto.errors import JobError
from inaproto.ports import MemoryRegion, Nic, RegistersInParts
from inaproto.units import OpIndex
from inaproto.wire.ina_header import Dtype, Op, signature
from inaproto.wire.messages.client import AllReduce

SEGMENT_BYTES_MAX = 1 << 40
_NOWHERE = MemoryRegion(0, 0, 0)
F_SEAL_EXEC = 0x20
"""Not in Python's fcntl. Each memfd has it where ``vm.memfd_noexec`` is not 0, whoever makes it."""
_SEALS_ALLOWED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL | F_SEAL_EXEC


@dataclass(slots=True)
class SharedBuffer:
    """A mapped segment; ``region`` is how the NIC knows it."""

    segment: int
    nbytes: int
    memory: mmap.mmap
    view: memoryview
    nic: Nic | None = None
    """None while it is registered with none."""
    region: MemoryRegion = _NOWHERE
    is_closed: bool = False

    def register(self, nic: Nic) -> None:
        """Register it with the NIC of the host's next fabric. Raises ``LocalMisuse`` when that is full."""
        if self.nic is not nic:
            self.region = nic.register_memory(self.view.toreadonly())  # peers write to receive slots only
            self.nic = nic

    async def register_slowly(self, nic: Nic) -> None:
        """The same, with turns for others where that takes long; it may be closed meanwhile.

        Raises ``LocalMisuse``, ``FabricError``, ``PortClosed``.
        """
        if self.nic is nic:
            return
        if not isinstance(nic, RegistersInParts):
            self.register(nic)
            return
        region = await nic.register_memory_in_parts(self.view.toreadonly())
        if self.is_closed:
            nic.deregister_memory(region)
        else:
            self.region, self.nic = region, nic

    def deregister(self) -> None:
        if self.nic is not None:
            self.nic.deregister_memory(self.region)
            self.nic = None

    def close(self) -> None:
        """Forget the segment; its memory goes when nobody maps it any more."""
        self.is_closed = True
        self.deregister()
        # Where the NIC still holds a view (BufferError), the mapping ends with that view.
        with contextlib.suppress(BufferError):
            self.view.release()
            self.memory.close()


def map_buffer(descriptor: int, *, segment: int, nbytes: int) -> SharedBuffer:
    """Check and map ``nbytes`` of a client's memfd, to be registered; closes the descriptor.

    Raises ``JobError`` that says what is wrong with the descriptor.
    """
    memory = map_memory(descriptor, segment=segment, nbytes=nbytes)
    return SharedBuffer(segment, nbytes, memory, memoryview(memory))


def map_memory(descriptor: int, *, segment: int, nbytes: int) -> mmap.mmap:
    """Check and map a client's memfd, and close the descriptor. Raises ``JobError``."""
    try:
        _check(descriptor, segment, nbytes)
        try:
            return map_shared(descriptor, nbytes)
        except (OSError, ValueError) as error:
            raise JobError(f"segment {segment} of {nbytes} bytes cannot be mapped: {error}") from None
    finally:
        discard(descriptor)


def _check(descriptor: int, segment: int, nbytes: int) -> None:
    if not 0 < nbytes <= SEGMENT_BYTES_MAX:
        raise JobError(f"segment {segment} of {nbytes} bytes; 1 to {SEGMENT_BYTES_MAX} are allowed")
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise JobError(f"segment {segment}: its descriptor is not a memfd; make it by memfd_create") from None
    if not seals & fcntl.F_SEAL_SHRINK or seals & ~_SEALS_ALLOWED:
        raise JobError(
            f"segment {segment}: its memfd has the seals {seals:#x}; it must be sealed against shrinking "
            "(F_SEAL_SHRINK) and be writable"
        )
    size = os.fstat(descriptor).st_size
    if size < nbytes:
        raise JobError(f"segment {segment}: its memfd has {size} bytes, the message says {nbytes}")
    page = os.fstatvfs(descriptor).f_bsize
    if page != mmap.PAGESIZE:
        raise JobError(
            f"segment {segment}: its memfd has pages of {page} bytes; only {mmap.PAGESIZE} are taken"
        )


def check_request(rank: int, request: AllReduce, buffer: SharedBuffer | None) -> Operation:
    """What the client of ``rank`` asks for. Raises ``JobError`` for what no client library asks."""
    name = f"all_reduce {request.op_index}"
    if buffer is None:
        raise JobError(f"{name}: there is no segment {request.segment}")
    end = request.offset + request.nbytes
    if end > buffer.nbytes:
        raise JobError(
            f"{name}: bytes {request.offset} to {end} of segment {request.segment}, which has {buffer.nbytes}"
        )
    dtype, op = Dtype(request.dtype), Op(request.op)
    nbytes = math.prod(request.shape) * dtype.itemsize
    if nbytes != request.nbytes:
        raise JobError(
            f"{name}: shape {request.shape} of {dtype.name} has {nbytes} bytes, it says {request.nbytes}"
        )
    filled = request.filled
    if filled is not None and filled > nbytes:
        raise JobError(f"{name}: {filled} bytes are there of {nbytes}")
    shape = request.shape if request.whole is None else request.whole
    digest = signature(dtype, op, shape, request.call)
    memory = (Memory(rank, request.segment, request.offset, end),)
    index = OpIndex(request.op_index)
    return Operation(index, dtype, op, nbytes, digest, memory, filled, shape, request.call)
