"""Where the tensors of a rank's operations are: in the shared memory of its training process.

:class:`~inaproto.core.ring_orders.RingOrders` carries out the orders of the rank's engine on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inaproto.core.operations import Operation
from inaproto.daemon.shared_buffers import SharedBuffer
from inaproto.ports import Segment
from inaproto.units import Instant


@dataclass(slots=True)
class Tensor:
    """Of an operation that has not ended: ``offset`` into the client's memory."""

    operation: Operation
    buffer: SharedBuffer
    offset: int
    since: Instant


class ClientTensors:
    """By index of the operation."""

    def __init__(self, tensors: Mapping[int, Tensor]) -> None:
        self._tensors = tensors

    def view(self, op_index: int, offset: int, nbytes: int) -> memoryview:
        tensor = self._tensors[op_index]
        at = tensor.offset + offset
        return tensor.buffer.view[at : at + nbytes]

    def payload(self, op_index: int, offset: int, nbytes: int) -> Segment:
        tensor = self._tensors[op_index]
        region = tensor.buffer.region
        return Segment(region.key, region.va + tensor.offset + offset, nbytes)
