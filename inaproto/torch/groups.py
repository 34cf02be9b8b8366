"""Which process groups inaproto serves, and their engines: one for each type of device with tensors."""

from __future__ import annotations

import atexit
import functools
import multiprocessing.process
import multiprocessing.util
import os
import sys
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from inaproto.torch.device_engine import DeviceEngine
from inaproto.torch.elements import Vector
from inaproto.torch.engine import GroupEngine, Reduce, close_all
from inaproto.torch.record import GroupRecord, record_of
from inaproto.torch.staging import CudaDevice, Device
from inaproto.torch.wishes import TorchWishes, torch_wishes

DEVICES: Final[dict[str, Callable[[torch.device], Device]]] = {"cuda": CudaDevice}
"""Types of devices whose memory the host daemon does not read."""
TIMEOUT_S: Final = 1800.0
"""Of a group that does not tell its own: torch's default."""
_FIRST_OF_A_CHILD: Final = multiprocessing.process.BaseProcess._bootstrap.__code__  # type: ignore[attr-defined]
_OPS: Final = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


@dataclass(slots=True)
class ServedGroup:
    record: GroupRecord
    engine: GroupEngine
    backend: Any
    """torch's own, for what inaproto does not do."""

    def timeout_s(self, asked: timedelta | None) -> float:
        """Of one call: what was asked for, else the group's."""
        if asked is not None and asked > timedelta(0):
            return asked.total_seconds()
        options = getattr(self.backend, "options", None)
        whole = getattr(options, "_timeout", None)
        return whole.total_seconds() if isinstance(whole, timedelta) else TIMEOUT_S


_groups: weakref.WeakKeyDictionary[Any, dict[str, ServedGroup | None]] = weakref.WeakKeyDictionary()
"""By the type of the device that the tensors are on."""
_hooked: weakref.WeakKeyDictionary[Any, dict[str, ServedGroup]] = weakref.WeakKeyDictionary()


def served(group: Any, kind: str) -> ServedGroup | None:
    """``kind``: the type of the device that the tensors are on. None: those are torch's alone."""
    try:
        return _groups[group][kind]
    except KeyError:
        found = _look(group, kind)
        _groups.setdefault(group, {})[kind] = found
        return found


def hooked(group: Any, kind: str) -> ServedGroup:
    """Of a group that calls inaproto by a hook, and is torch's alone otherwise."""
    found = served(group, kind) or _hooked.get(group, {}).get(kind)
    if found is None:
        found = _made(group, kind, torch_wishes(os.environ), backend_name(group, kind))
        _hooked.setdefault(group, {})[kind] = found
    return found


def _look(group: Any, kind: str) -> ServedGroup | None:
    wishes = torch_wishes(os.environ)
    name = backend_name(group, kind)
    return _made(group, kind, wishes, name) if wishes.serves(name) else None


def _made(group: Any, kind: str, wishes: TorchWishes, name: str) -> ServedGroup:
    _leave_as_a_child(os.getpid())
    backend = group._get_backend(torch.device(kind))
    backend = getattr(backend, "wrapped_pg", backend)
    title = _title(group) + ("" if kind == "cpu" else f", {kind}")
    record = record_of(title, group.rank(), group.size(), name)
    store = _store_of(group)
    goes_on = wishes.goes_on_without(name)
    device = DEVICES.get(kind)
    if device is not None:
        engine = DeviceEngine(record, dist.PrefixStore(f"{kind}/", store), device, goes_on=goes_on)
        return ServedGroup(record, engine, backend)
    instead = _gloo_of(store, group.rank(), group.size(), backend) if goes_on else None
    return ServedGroup(record, GroupEngine(record, store, instead), backend)


def backend_name(group: Any, kind: str) -> str:
    """The name of the group's backend for tensors of such a device, as the script gave it; empty: it has
    none.
    """
    config = c10d._world.pg_backend_config.get(group)
    if config is not None:
        return str(c10d.BackendConfig(config).get_device_backend_map().get(kind, ""))
    try:
        return str(group._get_backend(torch.device(kind)).name()).lower()
    except RuntimeError:
        return ""


def _title(group: Any) -> str:
    words = str(getattr(group, "group_desc", ""))
    name = str(getattr(group, "group_name", ""))
    return f"process group {name}" + (f" ({words})" if words and words != "undefined" else "")


def _store_of(group: Any) -> Any:
    if hasattr(group, "get_group_store"):
        return group.get_group_store()
    return c10d._world.pg_map[group][1]


def _gloo_of(store: Any, rank: int, size: int, backend: Any) -> Callable[[str], Reduce]:
    """Reduces by gloo, by connections of its own: what the script does by gloo itself keeps its order."""

    def made(job: str) -> Reduce:
        timeout = getattr(getattr(backend, "options", None), "_timeout", timedelta(seconds=TIMEOUT_S))
        gloo = dist.ProcessGroupGloo(dist.PrefixStore(f"inaproto/{job}/", store), rank, size, timeout=timeout)

        def reduce(vector: Vector, op: str, timeout: float) -> None:
            options = dist.AllreduceOptions()
            options.reduceOp = _OPS[op]
            options.timeout = timedelta(seconds=timeout)
            gloo.allreduce([vector.elements], options).wait()

        return reduce

    return made


def shut_down(group: Any, *, aborts: bool = False) -> None:
    """The group ends: its rank leaves the job, when what is under way has ended. ``aborts``: at once, with an
    error for all who wait, here and at other ranks.

    What is called afterwards is refused: it must not meet anew, alone.
    """
    for each in (_groups.get(group, {}), _hooked.get(group, {})):
        for found in each.values():
            if found is not None:
                found.engine.close(leaves=not aborts)


def _at_exit() -> None:
    # A process that ends by an exception is lost, and the others hear of it at once; one that is through
    # leaves.
    close_all(leaves=getattr(sys, "last_value", None) is None)


atexit.register(_at_exit)


@functools.cache
def _leave_as_a_child(pid: int) -> None:
    """Processes of multiprocessing end without what ``atexit`` holds."""
    multiprocessing.util.Finalize(None, _at_exit_of_a_child, exitpriority=0)


def _at_exit_of_a_child() -> None:
    # The exception that ends it is under way, and has come as far as the process's first function. One that
    # has not was handled where it was forked; the last value, too, is of who forked it, as a notebook has it
    # from any cell that failed.
    error = sys.exception()
    came_by = () if error is None else traceback.walk_tb(error.__traceback__)
    is_ended = any(frame.f_code is _FIRST_OF_A_CHILD for frame, _ in came_by)
    close_all(leaves=not is_ended or (isinstance(error, SystemExit) and not error.code))
