"""Hot loops of planning, compiled where Numba is installed (the extra ``planning``).

A function under ``jit`` takes scalars and arrays and is ordinary Python: without Numba, or with
``NUMBA_DISABLE_JIT=1``, it runs as it is written, with the same results and some fifty times as slowly.
Compiled code is kept beside the source, or in the user's cache where that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")

IS_COMPILED: Final = find_spec("numba") is not None


def jit(function: Callable[_P, _R]) -> Callable[_P, _R]:
    return _compiled(function)


def jit_in_place(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """For functions that make no arrays: arrays handed from one to the next are not counted.

    Counting references is three quarters of the time of a loop that hands twenty arrays to small functions.
    """
    return _compiled(function, _nrt=False)


def jit_within(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """As ``jit_in_place``, for those that only compiled functions call.

    Without an entry for the interpreter, which has to unpack each array, they are compiled in half the time.
    """
    return _compiled(function, _nrt=False, no_cpython_wrapper=True)


def _compiled(function: Callable[_P, _R], **options: Any) -> Callable[_P, _R]:
    if not IS_COMPILED:
        return function
    import numba

    njit: Any = numba.njit  # its types lack some options
    return cast("Callable[_P, _R]", njit(cache=True, no_cfunc_wrapper=True, **options)(function))
