"""The three callbacks by which libsharp_coll has the ranks talk to each other while it blocks.

An exception that leaves a ctypes callback is printed, and C gets a number that nobody chose, which may look
like success. So each callback returns one of two numbers from one place, and everything else, a cancellation
included, is caught, kept for whoever made the call, and answered with -1. A callback runs in the thread that
called the library, or in one of the library's own: the loop that serves it is named by its token.

Invariant: 0 is returned only after the exchange, and after what it brought is in the caller's memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Protocol

from inaproto.errors import LocalMisuse
from inaproto_adapters.sharp.layout import BARRIER_TYPE, BCAST_TYPE, CLASSES, GATHER_TYPE
from inaproto_adapters.sharp.words import WORDS_BYTES_MAX, About

_FAILED: Final = -1


class Answers(Protocol):
    """Who serves the callbacks of one context; called in threads."""

    @property
    def rank(self) -> int:
        """Of this process."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def exchange(self, about: About, root: int, data: bytes) -> list[bytes]:
        """What each rank has said in this round, by rank; blocks. Raises whatever went wrong."""
        ...

    def failed(self, error: BaseException) -> None:
        """Keep why a callback was answered with a failure."""
        ...


_contexts: dict[int, Answers] = {}
_keys: Final = count(1)


def announce(context: Answers) -> int:
    """From now on callbacks with that key, which is never 0, are for ``context``."""
    key = next(_keys)
    _contexts[key] = context
    return key


def withdraw(key: int) -> None:
    """From now on callbacks with that key are answered with a failure."""
    _contexts.pop(key, None)


def announced() -> int:
    """How many contexts are announced."""
    return len(_contexts)


def _answer(key: int | None, serve: Callable[[Answers], None]) -> int:
    context: Answers | None = None
    answer = _FAILED
    try:
        context = _contexts.get(key or 0)
        if context is not None:
            serve(context)
            answer = 0
    except BaseException as error:  # noqa: BLE001  whatever leaves a callback may look like success to C
        answer = _FAILED
        with suppress(BaseException):
            if context is not None:
                context.failed(error)
    return answer


def _part(nbytes: int) -> int:
    if not 0 <= nbytes <= WORDS_BYTES_MAX:
        raise LocalMisuse(f"SHARP wants {nbytes} bytes of a rank exchanged; {WORDS_BYTES_MAX} are the most")
    return nbytes


def _all_said(context: Answers, told: list[bytes]) -> list[bytes]:
    if len(told) != context.size:
        raise LocalMisuse(f"{len(told)} ranks spoke, of {context.size}")
    return told


def _bcast(key: int | None, buffer: int | None, nbytes: int, root: int) -> int:
    def serve(context: Answers) -> None:
        is_root = context.rank == root
        own = ctypes.string_at(buffer or 0, _part(nbytes)) if is_root and nbytes else b""
        told = _all_said(context, context.exchange(About.BCAST, root, own))[root]
        if len(told) != nbytes:
            raise LocalMisuse(f"the root of a broadcast has {len(told)} bytes, this rank wants {nbytes}")
        if not is_root and nbytes:
            ctypes.memmove(buffer or 0, told, nbytes)

    return _answer(key, serve)


def _barrier(key: int | None) -> int:
    def serve(context: Answers) -> None:
        _all_said(context, context.exchange(About.BARRIER, 0, b""))

    return _answer(key, serve)


def _gather(key: int | None, root: int, own: int | None, into: int | None, nbytes: int) -> int:
    def serve(context: Answers) -> None:
        part = ctypes.string_at(own or 0, _part(nbytes)) if nbytes else b""
        told = _all_said(context, context.exchange(About.GATHER, root, part))
        if any(len(its) != nbytes for its in told):
            raise LocalMisuse(f"ranks gather parts of {[len(its) for its in told]} bytes")
        if context.rank == root and nbytes:
            ctypes.memmove(into or 0, b"".join(told), nbytes * len(told))

    return _answer(key, serve)


BCAST: Final = BCAST_TYPE(_bcast)
"""Kept as long as the process: the library may hold its address."""
BARRIER: Final = BARRIER_TYPE(_barrier)
GATHER: Final = GATHER_TYPE(_gather)


def table() -> object:
    """The struct of the three, for ``init``."""
    return CLASSES["sharp_coll_out_of_band_colls"](BCAST, BARRIER, GATHER)
