"""Where the tensors of a host's operations are: in the shared memory of its training processes.

:class:`~inaproto.core.host.performer.RingOrders` carries out the orders of the host's engine on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from inaproto.core.host.operations import Operation
from inaproto.daemon.net.shared_buffers import SharedBuffer
from inaproto.ports import Segment
from inaproto.units import Instant

TOLD_BYTES_MIN: Final = 512 << 10
"""A process is told of results while more bytes are missing; the last ones it copies at the end."""


def next_to_tell(taken: int, nbytes: int) -> int:
    """When a process is told again that has heard of ``taken`` bytes of results, of ``nbytes``.

    When half of those that were missing are there: it hears of any tensor a few times, and has little to copy
    at its end.
    """
    missing = nbytes - taken
    return nbytes if missing <= TOLD_BYTES_MIN else taken + missing // 2


@dataclass(slots=True)
class Tensor:
    """A tensor of an operation that has not ended: ``offset`` into the client's memory."""

    operation: Operation
    buffer: SharedBuffer
    offset: int
    since: Instant
    filled: int
    """Bytes that are there, from the first on."""
    tell_at: int
    """Its process is told when so many bytes are the result."""

    def view(self, offset: int, nbytes: int) -> memoryview:
        """``nbytes`` from ``offset`` on."""
        at = self.offset + offset
        return self.buffer.view[at : at + nbytes]


class ClientTensors:
    """Tensors of each of a host's ranks in rank order, by index of the operation."""

    def __init__(self, tensors: Sequence[Mapping[int, Tensor]]) -> None:
        self._tensors = tensors
        self.ranks = len(tensors)

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        if self.ranks > 1:
            return [tensors[op_index].view(offset, nbytes) for tensors in self._tensors]
        tensor = self._tensors[0][op_index]
        at = tensor.offset + offset
        return [tensor.buffer.view[at : at + nbytes]]

    def operation(self, op_index: int) -> Operation:
        return self._tensors[0][op_index].operation

    def payload(self, op_index: int, offset: int, nbytes: int) -> Segment:
        (tensors,) = self._tensors
        tensor = tensors[op_index]
        region = tensor.buffer.region
        return Segment(region.key, region.va + tensor.offset + offset, nbytes)
