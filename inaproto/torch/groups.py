"""Which process groups inaproto serves, and their engines."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from inaproto.torch.elements import Vector
from inaproto.torch.engine import GroupEngine, close_all
from inaproto.torch.record import GroupRecord, record_of
from inaproto.torch.wishes import TorchWishes, torch_wishes

CPU: Final = torch.device("cpu")
TIMEOUT_S: Final = 1800.0
"""Of a group that does not tell its own: torch's default."""
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


_groups: weakref.WeakKeyDictionary[Any, ServedGroup | None] = weakref.WeakKeyDictionary()
_hooked: weakref.WeakKeyDictionary[Any, ServedGroup] = weakref.WeakKeyDictionary()


def served(group: Any) -> ServedGroup | None:
    """None: the group is torch's alone."""
    try:
        return _groups[group]
    except KeyError:
        found = _groups[group] = _look(group)
        return found


def hooked(group: Any) -> ServedGroup:
    """Of a group that calls inaproto by a hook, and is torch's alone otherwise."""
    found = served(group) or _hooked.get(group)
    if found is None:
        found = _hooked[group] = _made(group, torch_wishes(os.environ), backend_name(group))
    return found


def _look(group: Any) -> ServedGroup | None:
    wishes = torch_wishes(os.environ)
    name = backend_name(group)
    return _made(group, wishes, name) if wishes.serves(name) else None


def _made(group: Any, wishes: TorchWishes, name: str) -> ServedGroup:
    backend = group._get_backend(CPU)
    backend = getattr(backend, "wrapped_pg", backend)
    record = record_of(_title(group), group.rank(), group.size(), name)
    store = _store_of(group)
    instead = None
    if wishes.goes_on_without(name):
        instead = _gloo_of(store, group.rank(), group.size(), backend)
    return ServedGroup(record, GroupEngine(record, store, instead), backend)


def backend_name(group: Any) -> str:
    """The name of the group's backend for CPU tensors, as the script gave it; empty: it has none."""
    config = c10d._world.pg_backend_config.get(group)
    if config is not None:
        return str(c10d.BackendConfig(config).get_device_backend_map().get("cpu", ""))
    try:
        return str(group._get_backend(CPU).name()).lower()
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


def _gloo_of(
    store: Any, rank: int, size: int, backend: Any
) -> Callable[[str], Callable[[Vector, str], None]]:
    """Reduces by gloo, by connections of its own: what the script does by gloo itself keeps its order."""

    def made(job: str) -> Callable[[Vector, str], None]:
        timeout = getattr(getattr(backend, "options", None), "_timeout", timedelta(seconds=TIMEOUT_S))
        gloo = dist.ProcessGroupGloo(dist.PrefixStore(f"inaproto/{job}/", store), rank, size, timeout=timeout)

        def reduce(vector: Vector, op: str) -> None:
            options = dist.AllreduceOptions()
            options.reduceOp = _OPS[op]
            gloo.allreduce([vector.elements], options).wait()

        return reduce

    return made


def shut_down(group: Any) -> None:
    """The group ends: its rank leaves the job."""
    for found in (_groups.pop(group, None), _hooked.pop(group, None)):
        if found is not None:
            found.engine.close()


def _at_exit() -> None:
    # A process that ends by an exception is lost, and the others hear of it at once; one that is through
    # leaves.
    close_all(leaves=getattr(sys, "last_value", None) is None)


atexit.register(_at_exit)
