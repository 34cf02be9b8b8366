"""What the data path costs, in numbers that are the same on every machine: calls, system calls, bytes copied.

* :func:`calls` counts by the interpreter's profile hook: calls of functions of this project, and calls that
  these make to anything else that the hook sees (functions in C and of other packages; not operators,
  indexing or ufuncs). What others do inside is theirs.
* :class:`Copied` counts the bytes that numpy writes into arrays made while :func:`counted_arrays` is on.
* System calls are counted by scripted sockets (:mod:`tests.unit.scripted_wires`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import inaproto
import inaproto_adapters
from inaproto_hil.rigs.deterministic_trio import deterministic_schedule

_OURS: Final = tuple(f"{Path(package.__path__[0]).resolve()}/" for package in (inaproto, inaproto_adapters))
_FEW_BYTES: Final = 256
"""Arrays of fewer bytes are numbers, not packets."""


@dataclass(slots=True)
class Calls:
    """How often what was called: ``file:function`` in ``functions``, names in ``others``."""

    functions: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def of(self, *rooms: str) -> int:
        """Calls of functions whose file begins with any of ``rooms``; of all, if none is named."""
        return sum(n for name, n in self.functions.items() if name.startswith(rooms or ("",)))

    @property
    def outside(self) -> int:
        return sum(self.others.values())

    def largest(self, n: int = 12) -> str:
        """For the message of a failure: what to look at first."""
        return "\n".join(f"{count:8} {name}" for name, count in (self.functions + self.others).most_common(n))


@cache
def _our_name(path: str) -> str | None:
    return next(
        (path[len(root) - len(Path(root).name) - 1 :] for root in _OURS if path.startswith(root)), None
    )


@contextmanager
def calls() -> Iterator[Calls]:
    """Count until the end of the block."""
    counts = Calls()

    def saw(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            name = _our_name(frame.f_code.co_filename)
            if name is not None:
                counts.functions[f"{name}:{frame.f_code.co_qualname}"] += 1
            elif frame.f_back is not None and _our_name(frame.f_back.f_code.co_filename) is not None:
                counts.others[frame.f_code.co_qualname] += 1
        elif event == "c_call" and _our_name(frame.f_code.co_filename) is not None:
            counts.others[getattr(called, "__qualname__", repr(called))] += 1

    sys.setprofile(saw)
    try:
        yield counts
    finally:
        sys.setprofile(None)


def run_counted(main: Callable[[], Awaitable[None]]) -> None:
    """``trio.run`` with one schedule, and a clock that stands: no timer passes on a busy machine."""
    with deterministic_schedule("counts"):
        trio.run(main, clock=MockClock())


# ---- bytes that are copied


class Copied:
    """Bytes that numpy wrote into counted arrays."""

    nbytes = 0


class _Counted(np.ndarray):
    """An array that counts what is written: by assignment, by ufuncs, and into copies of it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        target = np.ndarray.__getitem__(self, key)
        _count(getattr(target, "nbytes", 0))
        np.ndarray.__setitem__(self, key, value)

    def __getitem__(self, key: Any) -> Any:
        found = np.ndarray.__getitem__(self, key)
        if isinstance(found, np.ndarray) and found.base is None:  # no view
            _count(found.nbytes)
        return found

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        if out is not None:
            kwargs["out"] = tuple(_plain(array) for array in out)
        result = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        for array in result if isinstance(result, tuple) else (result,):
            _count(getattr(array, "nbytes", 0))
        return result if out is None else out[0]

    def copy(self, *args: Any) -> Any:
        _count(self.nbytes)
        return np.ndarray.copy(self, *args)

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        found = np.ndarray.astype(self, *args, **kwargs)
        _count(found.nbytes)
        return found

    def tobytes(self, *args: Any) -> bytes:
        _count(self.nbytes)
        return np.ndarray.tobytes(self, *args)


def _count(nbytes: int) -> None:
    if nbytes >= _FEW_BYTES:
        Copied.nbytes += nbytes


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Counted) else value


class _CountingNumpy:
    """``np`` of a module: arrays that it makes are counted."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def empty(*args: Any, **kwargs: Any) -> Any:
        return np.empty(*args, **kwargs).view(_Counted)

    @staticmethod
    def zeros(*args: Any, **kwargs: Any) -> Any:
        return np.zeros(*args, **kwargs).view(_Counted)

    @staticmethod
    def frombuffer(*args: Any, **kwargs: Any) -> Any:
        return np.frombuffer(*args, **kwargs).view(_Counted)

    @staticmethod
    def copyto(dst: Any, src: Any, **kwargs: Any) -> None:
        _count(dst.nbytes)
        np.copyto(dst, src, **kwargs)


def count_arrays(patch: pytest.MonkeyPatch) -> None:
    """From now on arrays that modules of this project make count what is written into them."""
    counting = _CountingNumpy()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("inaproto", "inaproto_adapters") and getattr(module, "np", None) is np:
            patch.setattr(module, "np", counting)
