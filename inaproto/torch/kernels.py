"""The all-reduces of torch's process groups, taken over: kernels for ``c10d::allreduce_`` and its coalesced
form.

Groups, their names and their devices stay torch's; what inaproto does not do, and what is of another group,
goes to the group's own backend. That is called by its bindings, which release the interpreter's lock: gloo's
worker takes that lock while it holds its queue's, so who called gloo with the lock held would stop for ever.

A kernel has to return what C++ keeps alive, which hides from Python whether it has ended. So callers from
Python are met earlier, at ``ProcessGroup.allreduce``, and get the work itself.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _get_current_dispatch_mode

from inaproto.errors import Unsupported
from inaproto.torch.elements import DEVICES, PLAIN, Vector, op_name, why_elsewhere
from inaproto.torch.groups import ServedGroup, served, shut_down
from inaproto.torch.record import went_elsewhere
from inaproto.torch.works import CollectiveWork, boxed

OLDEST: Final = (2, 11)
NEWEST: Final = (2, 15)
"""Of the versions with which the tests were run."""
EVENT: Final = "inaproto:all_reduce"
"""As gloo's works are gloo:all_reduce to a profiler."""
_WITH_FACTOR: Final = int(dist.ReduceOp.PREMUL_SUM)
"""A sum of multiples: the one reduction that is more than its number."""

_lock = threading.Lock()
_library: Any = None
_allreduce: Any = None
_allreduce_coalesced: Any = None
_shutdown: Any = None
_abort: Any = None


def install() -> None:
    """Take the all-reduces over, once. Raises ``Unsupported`` for a version of torch that is too old."""
    global _library, _allreduce, _allreduce_coalesced, _shutdown, _abort  # noqa: PLW0603  a process has one torch
    with _lock:
        if _library is not None:
            return
        _check_version()
        library = torch.library.Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for key in ("CPU", "CUDA"):
                library.impl("allreduce_", _allreduce_kernel, key)
                library.impl("allreduce_coalesced_", _coalesced_kernel, key)
        _library = library
        _allreduce = dist.ProcessGroup.allreduce
        _allreduce_coalesced = dist.ProcessGroup.allreduce_coalesced
        _shutdown = dist.ProcessGroup.shutdown
        _abort = dist.ProcessGroup.abort
        dist.ProcessGroup.allreduce = _allreduce_method
        dist.ProcessGroup.allreduce_coalesced = _coalesced_method
        dist.ProcessGroup.shutdown = _shutdown_method
        dist.ProcessGroup.abort = _abort_method


def _check_version() -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise Unsupported(
            "inaproto as a backend of torch",
            f"this is torch {torch.__version__}; it needs torch {_words(OLDEST)} or later",
        )
    if version > NEWEST:
        warnings.warn(
            f"inaproto: torch {torch.__version__} is newer than {_words(NEWEST)}, the newest that was tested",
            stacklevel=2,
        )


def _words(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# --- what C++ calls


def _allreduce_kernel(
    tensors: list[torch.Tensor],
    process_group: Any,
    reduce_op: Any,
    sparse_indices: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> tuple[list[torch.Tensor], Any]:
    return tensors, _from_kernel("allreduce", tensors, process_group, reduce_op, async_op, timeout)


def _coalesced_kernel(
    tensors: list[torch.Tensor], process_group: Any, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    return _from_kernel("allreduce_coalesced", tensors, process_group, reduce_op, async_op, timeout)


def _from_kernel(
    name: str, tensors: list[torch.Tensor], process_group: Any, reduce_op: Any, async_op: bool, timeout: int
) -> Any:
    group = dist.ProcessGroup.unbox(process_group)
    op = _op_of(reduce_op)
    asked = timedelta(milliseconds=timeout)
    found = served(group, tensors[0].device.type)
    if found is not None:
        work = _started(found, name, tensors, op, asked, is_async=async_op)
        if work is not None:
            return boxed(work, _allreduce)
    backend = group._get_backend(tensors[0].device)
    if name == "allreduce":
        options = dist.AllreduceOptions()
    else:
        options = dist.AllreduceCoalescedOptions()
    options.reduceOp = _reduction(reduce_op, op)
    options.timeout = asked
    if hasattr(options, "asyncOp"):
        options.asyncOp = async_op  # NCCL keeps to the caller's stream where nobody goes on meanwhile
    return getattr(backend, name)(tensors, options).boxed()


def _op_of(reduce_op: Any) -> int:
    """The number of a reduction, of the script object that a kernel is given."""
    if hasattr(dist.ReduceOp, "unbox"):
        return int(dist.ReduceOp.unbox(reduce_op).op)
    return int(reduce_op.op())


def _reduction(reduce_op: Any, op: int) -> Any:
    """The whole reduction, for torch's own backend. Raises ``RuntimeError`` where its factor is not to be
    seen.
    """
    if hasattr(dist.ReduceOp, "unbox"):
        return dist.ReduceOp.unbox(reduce_op)
    if op == _WITH_FACTOR:
        raise RuntimeError(
            f"PREMUL_SUM: torch {torch.__version__} does not tell its factor to a kernel of Python, which "
            "inaproto has; call it by torch.distributed.all_reduce, outside of dispatch modes"
        )
    return dist.ReduceOp(dist.ReduceOp.RedOpType(op))


# --- what Python calls


def _allreduce_method(self: Any, tensors: Any, *arguments: Any, **named: Any) -> Any:
    found = _of_python(self, tensors, arguments, named)
    if found is None:
        found = _by_factor(self, "allreduce", tensors, arguments)
    return _allreduce(self, tensors, *arguments, **named) if found is None else found


def _coalesced_method(self: Any, tensors: Any, *arguments: Any, **named: Any) -> Any:
    found = _by_factor(self, "allreduce_coalesced", tensors, arguments)
    return _allreduce_coalesced(self, tensors, *arguments, **named) if found is None else found


def _by_factor(group: Any, name: str, tensors: Any, arguments: tuple[Any, ...]) -> Any:
    """The work of a sum of multiples, started by the group's own backend: before torch 2.15 our kernel is not
    told the factor. None: it is no such call.
    """
    options = arguments[0] if arguments else None
    kinds = (dist.AllreduceOptions, dist.AllreduceCoalescedOptions)
    if not isinstance(options, kinds) or int(options.reduceOp.op) != _WITH_FACTOR:
        return None
    if not (isinstance(tensors, list | tuple) and tensors) or type(tensors[0]) not in PLAIN:
        return None
    if tensors[0].layout != torch.strided or tensors[0].device.type not in DEVICES:
        return None  # its kernel is not ours
    if hasattr(dist.ReduceOp, "unbox") or _get_current_dispatch_mode() is not None:
        return None
    found = served(group, tensors[0].device.type)
    if found is not None:
        went_elsewhere(found.record, why_elsewhere(tensors, _WITH_FACTOR))
    return getattr(group._get_backend(tensors[0].device), name)(list(tensors), options)


def _of_python(
    group: Any, tensors: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> CollectiveWork | None:
    """A call whose work is given to Python as it is; None: torch goes on, if to the kernel."""
    if not (isinstance(tensors, list | tuple) and tensors and len(arguments) == 1 and not named):
        return None
    options = arguments[0]
    if not isinstance(options, dist.AllreduceOptions) or type(tensors[0]) not in PLAIN:
        return None
    if tensors[0].device.type not in DEVICES or _get_current_dispatch_mode() is not None:
        return None
    found = served(group, tensors[0].device.type)
    if found is None:
        return None
    op = int(options.reduceOp.op)
    if len(tensors) != 1 or why_elsewhere(tensors, op):
        return None
    if found.record.size > 1 and not found.engine.carries(found.timeout_s(options.timeout)):
        return None  # the kernel counts it
    return _started(found, "allreduce", list(tensors), op, options.timeout, is_async=options.asyncOp)


def _shutdown_method(self: Any) -> None:
    shut_down(self)
    _shutdown(self)


def _abort_method(self: Any) -> None:
    shut_down(self, aborts=True)
    _abort(self)


# --- both


def _started(
    found: ServedGroup,
    name: str,
    tensors: Sequence[torch.Tensor],
    op: int,
    asked: timedelta | None,
    *,
    is_async: bool,
) -> CollectiveWork | None:
    """None: torch's own backend is to do it."""
    record = found.record
    why = why_elsewhere(tensors, op)
    if not why and name == "allreduce" and len(tensors) != 1:
        why = "several tensors that are one rank's"
    if why:
        went_elsewhere(record, why)
        return None
    if record.size > 1 and not found.engine.carries(found.timeout_s(asked)):
        record.all_reduces += 1
        record.nbytes += sum(tensor.nbytes for tensor in tensors)
        return None
    return start_vector(found, tensors, op_name(op), asked, is_async=is_async)


def start_vector(
    found: ServedGroup,
    tensors: Sequence[torch.Tensor],
    word: str,
    asked: timedelta | None,
    *,
    is_async: bool = True,
) -> CollectiveWork:
    """Start an all-reduce of tensors that inaproto can reduce; all of a call are one vector."""
    record = found.record
    vector = Vector(tensors)
    record.all_reduces += 1
    record.nbytes += vector.elements.nbytes
    work = CollectiveWork(tensors, f"{record.name}: all-reduce {record.all_reduces - 1} ({word})")
    if torch.autograd._profiler_enabled():
        work.record(EVENT)
    if record.size == 1:
        work.end()
    else:
        found.engine.submit(vector, word, work, found.timeout_s(asked), is_async=is_async)
    return work
