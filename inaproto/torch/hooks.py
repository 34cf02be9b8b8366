"""DDP communication hooks: gradients by inaproto in a script that keeps its backend, with one line more.

``model.register_comm_hook(None, inaproto.torch.hooks.allreduce)`` has each bucket of gradients averaged by
inaproto, whatever backend the group has; ``bf16`` sends half the bytes, and ``fixed_point`` sums integers,
whose sum is the same in any order and on any path.
"""

# Annotations are objects here, not text: DDP looks at those of a hook.

import math
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from inaproto.errors import Unsupported
from inaproto.torch.elements import DEVICES
from inaproto.torch.groups import hooked
from inaproto.torch.kernels import install, start_vector
from inaproto.torch.works import devices_of

_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
HEADROOM_BITS = 30
"""Of a sum of fixed-point numbers: the sign apart, one less than an int32 has."""


def allreduce(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The average of float32 or float64 gradients, summed in rank order; a future of the bucket's tensor.

    ``group``: the process group, or None for all ranks; give it as the hook's state.
    """
    tensor = bucket.buffer().div_(_size(group))
    future: torch.futures.Future[torch.Tensor] = _reduced(group, tensor, "sum").get_future().then(_first)
    return future


def bf16(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As :func:`allreduce`, sent as bfloat16: half the bytes of float32, rounded once here and once in the
    sum.
    """
    tensor = bucket.buffer()
    small = tensor.div(_size(group)).to(torch.bfloat16)

    def widened(future: Any) -> torch.Tensor:
        return tensor.copy_(_first(future))

    future: torch.futures.Future[torch.Tensor] = _reduced(group, small, "sum").get_future().then(widened)
    return future


def fixed_point(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As :func:`allreduce`, summed as integers: the same bytes on every path, by gloo's sums, too.

    All ranks agree on one scale for each bucket, by a maximum that is waited for here, and sum int32 numbers
    that cannot overflow. A bucket with an infinity or a NaN becomes NaN on all ranks.
    """
    tensor = bucket.buffer()
    size = _size(group)
    largest = (
        tensor.abs().max().reshape(1).to(torch.float64)
        if tensor.numel()
        else torch.zeros(1, dtype=torch.float64, device=tensor.device)
    )
    largest.nan_to_num_(nan=math.inf, posinf=math.inf)  # else an infinity becomes the largest number
    _reduced(group, largest, "max").wait()
    scale = _scale(float(largest), size)
    if scale is None:
        return _done(tensor.fill_(float("nan")))
    numbers = torch.round(tensor.to(torch.float64) * scale).to(torch.int32)

    def unscaled(future: Any) -> torch.Tensor:
        return tensor.copy_(_first(future).to(torch.float64).div_(scale * size))

    future: torch.futures.Future[torch.Tensor] = _reduced(group, numbers, "sum").get_future().then(unscaled)
    return future


def _scale(largest: float, size: int) -> float | None:
    """The largest power of two with which ``size`` numbers up to ``largest`` have a sum in int32; None:
    none.
    """
    if not math.isfinite(largest * size):
        return None
    if largest == 0:
        return 1.0
    exponent = torch.frexp(torch.tensor(largest * size, dtype=torch.float64)).exponent
    return float(2.0 ** min(1000, HEADROOM_BITS - int(exponent)))


def _size(group: Any) -> int:
    size: int = dist.get_world_size(group)
    return size


def _reduced(group: Any, tensor: torch.Tensor, op: str) -> Any:
    kind = tensor.device.type
    if kind not in DEVICES:
        raise Unsupported(
            "a hook of inaproto.torch", f"the gradients are on {tensor.device}, neither on CPU nor GPU"
        )
    install()
    whole = dist.group.WORLD if group is None else group
    found = hooked(whole, kind)
    if found.record.size > 1 and not found.engine.carries(found.timeout_s(None)):
        return dist.all_reduce(tensor, _OPS[op], group, async_op=True)
    return start_vector(found, [tensor], op, timedelta(0))


def _first(future: Any) -> torch.Tensor:
    tensor: torch.Tensor = future.value()[0]
    return tensor


def _done(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices_of([tensor]))
    future.set_result(tensor)
    return future
