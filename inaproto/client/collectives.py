"""How each collective becomes all-reduces, and their sums its result. No I/O.

Data that is only moved (broadcast, all-gather) is a vector of bytes, to which every rank contributes what it
has, at its place, and zeros elsewhere; the vector is summed as int32. In each byte at most one rank has
another value than zero, so no addition carries, and the sum has the bits that were contributed: of -0.0, of
NaNs with a payload, of any element type, by every path. A vector is padded to a multiple of four bytes.

Reduce and reduce-scatter are all-reduces of which a rank keeps its part; an average is a sum, divided by the
number of ranks when it is here. Arrays of a list are one vector for each element type, in the order in which
the types first occur.

Invariants: ``call`` is a function of what all ranks must say alike, and tells any two collectives apart: it
is in the digest of the operation (docs/protocol.md 3.5, 11). It is empty for an all-reduce of one array by an
operation of the wire, so that one is on the wire what it always was.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.client.arrays import (
    AVERAGE,
    DTYPES,
    as_array,
    check_average,
    check_result,
    check_writable,
    divide,
    wire_dtype,
    wire_op,
)
from inaproto.client.pieces import Pieces, as_bytes
from inaproto.errors import LocalMisuse
from inaproto.wire.ina_header import Dtype, Op

Array = NDArray[Any]
CALL_CHARACTERS_MAX: Final = 240
_WORD: Final = 4
_NUMPY: Final = {code: kind for kind, code in DTYPES}


@dataclass(frozen=True, slots=True)
class Reduction:
    """One all-reduce of the vector ``sources``, whose result is the vector ``results``, of as many bytes."""

    dtype: Dtype
    op: Op
    shape: tuple[int, ...]
    call: str
    sources: Pieces
    results: Pieces
    alone: Array | None = None
    """The array that is the whole vector, and gets the result in its place. Of the type of ``dtype``."""
    clears: bool = False
    """``alone`` has to be zeros before: what this rank has in it counts for nothing."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> np.dtype[Any]:
        return _NUMPY[self.dtype]


class Title(NamedTuple):
    """What was called, for people, who seldom ask."""

    call: str
    op: Op
    dtype: Dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return self.call or f"{self.op.name.lower()} of {_NUMPY[self.dtype]} {self.shape}"


@dataclass(frozen=True, slots=True)
class Collective:
    """What a caller asked for."""

    reductions: tuple[Reduction, ...]
    value: Any
    """What the caller gets when all of them have ended."""
    in_place: bool = False
    is_early: bool = True
    """Results may be stored before they are whole: nobody else has the array, or it was called in place."""
    averages: tuple[Array, ...] = ()
    """Sums that are to be divided by the number of ranks."""
    divisor: int = 1

    @property
    def title(self) -> Title:
        """What was called; it keeps no array."""
        first = self.reductions[0]
        return Title(first.call, first.op, first.dtype, first.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that are summed."""
        return sum(reduction.nbytes for reduction in self.reductions)

    def end(self) -> Any:
        """The value, once all results are where they belong."""
        for array in self.averages:
            divide(array, self.divisor)
        return self.value


# --- sums


def all_reduce(given: Any, op: str, out: Any, in_place: bool, size: int) -> Collective:
    """``given``: an array, or a list of arrays; ``out`` likewise."""
    call = "all_reduce"
    operator = _operator(op, call)
    if not isinstance(given, list | tuple):
        source = as_array(given, "array", call, shared=in_place)
        dtype = _summed(source, op, call)
        result, value = _result(given, source, out, in_place, "array", call)
        reduction = Reduction(
            dtype,
            operator,
            source.shape,
            _words(f"avg of {_named(source)}") if op == AVERAGE else "",
            Pieces([source]),
            Pieces([result]),
            source if in_place else None,
        )
        average = (result,) if op == AVERAGE else ()
        return Collective((reduction,), value, in_place, in_place or out is None, average, size)
    listed = _list_of(given, out, in_place, call)
    reductions = []
    for dtype in dict.fromkeys([_summed(source, op, call) for source, _, _ in listed]):
        mine = [(source, result) for source, result, _ in listed if wire_dtype(source.dtype) == dtype]
        elements = sum(source.size for source, _ in mine)
        shapes = ", ".join(str(source.shape) for source, _ in mine)
        words = _words(f"{op} of a list of {len(mine)} {mine[0][0].dtype}: {shapes}")
        sources, results = Pieces([one for one, _ in mine]), Pieces([one for _, one in mine])
        reductions.append(Reduction(dtype, operator, (elements,), words, sources, results))
    averages = tuple(result for _, result, _ in listed) if op == AVERAGE else ()
    value = [value for _, _, value in listed]
    return Collective(tuple(reductions), value, in_place, in_place or out is None, averages, size)


def summed_for(array: Any, what: str, size: int) -> Collective:
    """An all-reduce in place of one array whose sum is ``what`` the caller makes of it: ranks that make
    something else of theirs are told.
    """
    collective = all_reduce(array, "sum", None, True, size)
    words = _words(what)
    return replace(collective, reductions=tuple(replace(it, call=words) for it in collective.reductions))


def reduce(given: Any, op: str, root: Any, out: Any, rank: int, size: int) -> Collective:
    """The value is None on all ranks but ``root``."""
    call = "reduce"
    operator, root = _operator(op, call), _check_root(root, size, call)
    source = as_array(given, "array", call)
    dtype = _summed(source, op, call)
    words = _words(f"reduce ({op}) of {_named(source)} to rank {root}")
    if rank != root:
        if out is not None:
            raise LocalMisuse(f"reduce: out is for rank {root}, which gets the result; this is rank {rank}")
        nowhere = Pieces([source.nbytes])
        return Collective((Reduction(dtype, operator, source.shape, words, Pieces([source]), nowhere),), None)
    result, value = _result(given, source, out, False, "array", call)
    reduction = Reduction(dtype, operator, source.shape, words, Pieces([source]), Pieces([result]))
    averages = (result,) if op == AVERAGE else ()
    return Collective((reduction,), value, False, out is None, averages, size)


def reduce_scatter(given: Any, op: str, out: Any, rank: int, size: int) -> Collective:
    """This rank gets the reduction of row ``rank`` of an array ``(size, *shape)``: ``shape``."""
    call = "reduce_scatter"
    operator = _operator(op, call)
    source = as_array(given, "array", call)
    dtype = _summed(source, op, call)
    if not source.ndim or source.shape[0] != size:
        raise LocalMisuse(
            f"reduce_scatter: array has the shape {source.shape}; the first dimension must be {size}, a row "
            "for each rank"
        )
    row = source[rank]
    result, value = _new_or_out(out, row.shape, source.dtype, call)
    before, behind = rank * row.nbytes, (size - rank - 1) * row.nbytes
    words = _words(f"reduce_scatter ({op}) of {_named(source)}")
    results = Pieces([before, result, behind])
    reduction = Reduction(dtype, operator, source.shape, words, Pieces([source]), results)
    averages = (result,) if op == AVERAGE else ()
    return Collective((reduction,), value, False, out is None, averages, size)


# --- what is only moved


def broadcast(given: Any, root: Any, out: Any, in_place: bool, rank: int, size: int) -> Collective:
    """``given``: an array or a list of arrays; all ranks get those of ``root``."""
    call = "broadcast"
    root = _check_root(root, size, call)
    is_list = isinstance(given, list | tuple)
    if is_list:
        listed = _list_of(given, out, in_place, call)
    else:
        source = as_array(given, "array", call, shared=in_place)
        listed = [(source, *_result(given, source, out, in_place, "array", call))]
    names = ", ".join(_named(source) for source, _, _ in listed)
    words = _words(f"broadcast of {f'a list of {len(listed)}: ' if is_list else ''}{names} from rank {root}")
    nbytes = sum(source.nbytes for source, _, _ in listed)
    sources: list[Array | int] = [source if rank == root else source.nbytes for source, _, _ in listed]
    keeps = in_place and rank == root
    results: list[Array | int] = [nbytes] if keeps else [result for _, result, _ in listed]
    alone = listed[0][0] if in_place and len(listed) == 1 else None
    reduction = _moved(words, nbytes, sources, results, alone, clears=rank != root)
    value = [value for _, _, value in listed] if is_list else listed[0][2]
    return Collective((reduction,), value, in_place, in_place or out is None)


def all_gather(given: Any, out: Any, rank: int, size: int, call: str = "all_gather") -> Collective:
    """Every rank gets ``(size, *shape)``: row i is the array of rank i. ``call``: what it is done for."""
    source = as_array(given, "array", call)
    result, value = _new_or_out(out, (size, *source.shape), source.dtype, call)
    sources: list[Array | int] = [rank * source.nbytes, source, (size - rank - 1) * source.nbytes]
    words = _words(f"{call} of {_named(source)}")
    reduction = _moved(words, size * source.nbytes, sources, [result])
    return Collective((reduction,), value, is_early=out is None)


def barrier() -> Collective:
    """One word of zeros, which nobody has before all ranks have contributed to it."""
    return Collective((_moved("barrier", _WORD, [_WORD], [_WORD]),), None)


def _moved(
    words: str,
    nbytes: int,
    sources: Sequence[Array | int],
    results: Sequence[Array | int],
    alone: Array | None = None,
    *,
    clears: bool = False,
) -> Reduction:
    pad = -nbytes % _WORD
    shape = ((nbytes + pad) // _WORD,)
    vector: Array | None = None
    if alone is not None and nbytes and not pad and not _address(alone) % _WORD:
        vector = as_bytes(alone).view(np.int32)
    return Reduction(
        Dtype.I32, Op.SUM, shape, words, Pieces([*sources, pad]), Pieces([*results, pad]), vector, clears
    )


# --- what callers give


def _operator(op: str, call: str) -> Op:
    return Op.SUM if op == AVERAGE else wire_op(op, call)


def _summed(array: Array, op: str, call: str) -> Dtype:
    dtype = wire_dtype(array.dtype, call)
    if op == AVERAGE:
        check_average(dtype, array.dtype.name, call)
    return dtype


def _check_root(root: Any, size: int, call: str) -> int:
    if not isinstance(root, int | np.integer) or isinstance(root, bool) or not 0 <= root < size:
        raise LocalMisuse(f"{call}: root is {root!r:.40}; ranks of a job of {size} are 0 to {size - 1}")
    return int(root)


def _result(given: Any, source: Array, out: Any, in_place: bool, what: str, call: str) -> tuple[Array, Any]:
    """(where the result goes, what the caller gets): two names of one array, but for one of another kind."""
    if in_place:
        if out is not None and out is not given:
            raise LocalMisuse(f"{call}: in_place, and out is another array; give one of the two")
        check_writable(source, what, f"{call}: in_place")
        return source, given
    return _new_or_out(out, source.shape, source.dtype, call)


def _new_or_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], call: str) -> tuple[Array, Any]:
    if out is None:
        result: Array = np.empty(shape, dtype)
        return result, result
    return check_result(as_array(out, "out", call, shared=True), shape, dtype, "out", call), out


def _list_of(given: Sequence[Any], out: Any, in_place: bool, call: str) -> list[tuple[Array, Array, Any]]:
    """(array, where its result goes, what the caller gets) for each."""
    if not given or any(isinstance(one, bool | int | float | complex | list | tuple) for one in given):
        raise LocalMisuse(
            f"{call}: a list is one of arrays, at least one, which go as one; of numbers make an array: "
            "numpy.array(numbers, dtype=...)"
        )
    if out is not None and (not isinstance(out, list | tuple) or len(out) != len(given)):
        raise LocalMisuse(f"{call}: for a list of {len(given)} arrays, out is a list of as many")
    listed = []
    for number, one in enumerate(given):
        what = f"array {number} of the list"
        source = as_array(one, what, call, shared=in_place)
        listed.append(
            (source, *_result(one, source, None if out is None else out[number], in_place, what, call))
        )
    return listed


def _named(array: Array) -> str:
    return f"{array.dtype} {array.shape}"


def _words(text: str) -> str:
    """ASCII, and short: a digest tells long ones apart."""
    text = ascii(text)[1:-1] if not text.isascii() else text
    if len(text) <= CALL_CHARACTERS_MAX:
        return text
    return f"{text[: CALL_CHARACTERS_MAX - 20]}... {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
