"""Buckets of ``DistributedDataParallel`` whose sums hide behind the backward pass.

DDP sums gradients in buckets, each as soon as the backward pass has filled it. By torch's default a bucket
has 25 MiB, which is all of many a model: the sum of that begins when the backward pass has ended, and nothing
hides it. Here a model has :data:`BUCKETS` of them, unless they would be larger than torch's, or the script
tells how large they are. Elements are summed one by one, so the bytes of a sum do not depend on buckets.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from inaproto.torch.groups import is_served
from inaproto.torch.record import say
from inaproto.torch.wishes import BUCKET_VARIABLE, torch_wishes

MIB: Final = 1 << 20
BUCKETS: Final = 16
"""What is left when the backward pass ends is the last one; more of them would gain little."""
LEAST_MIB: Final = 2
"""An operation of less would not fill the links for long enough."""
TORCH_MIB: Final = 25
"""Torch's default."""


def bucket_mib(nbytes: int) -> int | None:
    """The size of buckets, in MiB, for so many bytes of gradients; None: torch's default.

    It depends on nothing else, so all ranks come to the same.
    """
    mib = max(LEAST_MIB, -(-nbytes // (BUCKETS * MIB)))
    return mib if mib < TORCH_MIB and nbytes > LEAST_MIB * MIB else None


def install() -> None:
    """Choose the size of buckets, from now on, of models whose script does not."""
    made = DistributedDataParallel.__init__
    signature = inspect.signature(made)

    @functools.wraps(made)
    def made_with_buckets(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            bound = signature.bind(self, *arguments, **named)
        except TypeError:  # a call that torch refuses
            made(self, *arguments, **named)
            return
        mib = _chosen(bound.arguments)
        if mib is not None:
            bound.arguments["bucket_cap_mb"] = mib
        made(*bound.args, **bound.kwargs)

    DistributedDataParallel.__init__ = made_with_buckets


def _chosen(told: Mapping[str, Any]) -> float | None:
    """None: the script has told it, or torch's default is right, or torch will refuse the call."""
    if told.get("bucket_cap_mb") is not None or told.get("bucket_cap_mb_list"):
        return None
    gradients = _gradients(told["module"])
    if len({each.device.type for each in gradients}) != 1:
        return None
    group = _group(told)
    if (
        not isinstance(group, dist.ProcessGroup)
        or group.size() == 1
        or not is_served(group, gradients[0].device.type)
    ):
        return None
    mib: float | None = torch_wishes(os.environ).bucket_mib
    if mib is None:
        mib = bucket_mib(sum(each.numel() * each.element_size() for each in gradients))
        if mib is not None and group.rank() == 0:
            say(f"DDP sums in buckets of {mib} MiB; {BUCKET_VARIABLE}={TORCH_MIB} would be torch's default")
    return mib


def _gradients(module: Any) -> list[torch.Tensor]:
    """The parameters that have one; none where a parameter's shape is not known yet."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    found = [each for name, each in module.named_parameters() if name not in ignored]
    if any(isinstance(each, torch.nn.parameter.UninitializedParameter) for each in found):
        return []
    return [each for each in found if each.requires_grad]


def _group(told: Mapping[str, Any]) -> Any:
    mesh = told.get("device_mesh")
    if told.get("process_group") is not None:
        return told["process_group"]
    if mesh is not None:
        return mesh.get_group(mesh_dim=0) if mesh.ndim == 1 else None
    return dist.group.WORLD
