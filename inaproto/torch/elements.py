"""Tensors as vectors that inaproto sums, and which tensors those are.

The choice between inaproto and torch's own backend depends on type, operation, layout and device alone, so
all ranks make it alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

_NUMPY: Final = {
    torch.float32: "=f4",
    torch.float64: "=f8",
    torch.float16: "=f2",
    torch.bfloat16: "=i2",  # numpy has no such type: by its bits
    torch.int32: "=i4",
    torch.int64: "=i8",
}
TYPES: Final = frozenset(_NUMPY)
COMPLEX: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_OPS: Final = {
    int(dist.ReduceOp.SUM): "sum",
    int(dist.ReduceOp.MAX): "max",
    int(dist.ReduceOp.MIN): "min",
    int(dist.ReduceOp.AVG): "avg",
}
_NAMES: Final = {int(kind): name for name, kind in dist.ReduceOp.RedOpType.__members__.items()}
DEVICES: Final = frozenset(("cpu", "cuda"))
PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def op_name(op: int) -> str:
    """``sum``, ``max``, ``min`` or ``avg``; empty for one that inaproto does not do."""
    return _OPS.get(op, "")


def why_elsewhere(tensors: Sequence[Any], op: int) -> str:
    """Why torch's own backend is to reduce these tensors of one call; empty: inaproto does."""
    if not op_name(op):
        return f"{_NAMES.get(op, op)} is none of sum, max, min and avg"
    first = tensors[0].dtype
    for tensor in tensors:
        if type(tensor) not in PLAIN:
            return f"{type(tensor).__name__} is no plain tensor"
        if tensor.layout != torch.strided:
            return f"layout {str(tensor.layout).removeprefix('torch.')}"
        if tensor.device.type not in DEVICES:
            return f"device {tensor.device.type}"
        if tensor.device != tensors[0].device:
            return "tensors on several devices in one call"
        if tensor.dtype != first:
            return "tensors of several types in one call"
    if first in COMPLEX:
        return "" if op_name(op) in ("sum", "avg") else f"{op_name(op)} of complex numbers"
    if first not in TYPES:
        return f"elements of type {str(first).removeprefix('torch.')}"
    if tensors[0].device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return ""


class Vector:
    """The elements of one call as a contiguous vector, and the way back."""

    ready: Any = None
    """On a device: the mark after which the elements are there (:mod:`inaproto.torch.staging`)."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        parts = [_real(tensor.detach()) for tensor in tensors]
        self._parts: list[torch.Tensor] | None = None
        # The memory of a view that is negated lazily holds other numbers than the view.
        if len(parts) == 1 and parts[0].is_contiguous() and not parts[0].is_neg():
            self.elements = parts[0].view(-1)
        else:
            self._parts = parts
            self.elements = torch.cat([part.reshape(-1) for part in parts])

    def array(self) -> NDArray[Any]:
        """The same memory, as numpy has it."""
        return as_numpy(self.elements)

    def finish(self, op: str, size: int) -> None:
        """The result is in :attr:`elements`: make the average of a sum, and put it where it belongs."""
        if op == "avg":
            if self.elements.is_floating_point():
                _divide(self.elements, size)
            else:
                self.elements.div_(size, rounding_mode="trunc")
        if self._parts is not None:
            at = 0
            for part in self._parts:
                part.copy_(self.elements[at : at + part.numel()].view(part.shape))
                at += part.numel()


def _divide(elements: torch.Tensor, size: int) -> None:
    """In place; the same bytes on every device."""
    if elements.device.type == "cpu":
        elements.div_(size)
        return
    # By a number of the processor's a GPU would multiply by its inverse: another last bit.
    wide = elements.dtype if elements.dtype == torch.float64 else torch.float32
    by = torch.full((), size, dtype=wide, device=elements.device)
    elements.copy_(elements.to(wide) / by)


class _Memory:
    """A contiguous vector as numpy asks for one.

    After a tensor's own ``numpy()`` torch would refuse for ever to resize it.
    """

    __slots__ = ("__array_interface__", "_elements")

    def __init__(self, elements: torch.Tensor) -> None:
        self._elements = elements  # whose memory it is
        self.__array_interface__ = {
            "version": 3,
            "shape": (elements.numel(),),
            "typestr": _NUMPY[elements.dtype],
            "data": (elements.data_ptr(), False),
        }


def as_numpy(elements: torch.Tensor) -> NDArray[Any]:
    """The same memory of the processor, as numpy has it."""
    found: NDArray[Any] = np.asarray(_Memory(elements))
    return found.view(ml_dtypes.bfloat16) if elements.dtype == torch.bfloat16 else found


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.dtype in COMPLEX else tensor
