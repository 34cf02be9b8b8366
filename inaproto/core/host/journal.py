"""What of a host in a job outlives its daemon: which results it has, and the bytes of the last of them.

A daemon may be killed at any moment, or be replaced by another release. The tensors are in the memory of the
training processes and stay; queue pairs, sums on their way and everything else is made again, as after the
loss of a switch (:mod:`inaproto.core.host.recovery`). For that the successor has to know how many results the
host has taken, and have the last N of them, which others may lack. Both are in the *journal*: memory that the
processes hold, too, and bring to the successor.

A result comes in a receive slot and is copied from there into tensors, over the input. A daemon that is
killed in between leaves neither input nor result there, so the receive slots are in the journal's memory as
well (:class:`Arena`), and of each result it is written down where it lies, before it is copied, and that it
was, after. Nothing is copied for the journal while a ring lasts; what a ring leaves is copied once
(:meth:`Journal.keep`).

Invariants: whenever the daemon stops, what is written is one state, before or after: fields that belong
together are written beside the valid ones and become valid by one store. That holds for a successor that is
killed as well, before it is as far as its predecessor was. A successor believes nothing of it: the memory is
the processes', who can write to it, and a wrong journal ends their own job alone.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self, get_args

import msgpack  # type: ignore[import-untyped]

from inaproto.core.host.operation_queue import KeptResult
from inaproto.core.host.operations import VOTE, Operation
from inaproto.errors import DecodeError, InvariantBroken
from inaproto.units import OpIndex, RingId
from inaproto.wire import control
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import decode_message, encode_message
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import DonePath, Join
from inaproto.wire.messages.fields import Words
from inaproto.wire.messages.types import Explanation

MAGIC: Final = b"inajrnl1"
PATHS: Final[tuple[DonePath, ...]] = get_args(DonePath)
PAGE_BYTES: Final = 4096
RANKS_MAX: Final = 1024
"""Ranks of one host in one job."""
FACTS_BYTES_MAX: Final = 1 << 20
"""Room for ranks and switch, packed: 1,024 ranks of one host, with the longest names and keys."""
WORDS: Final[Words] = get_args(Explanation)[1]
"""What an error says, as messages have it."""
PROGRESS_MAX: Final = 1 << 60
NAME_MAX: Final = 128
BOOT_ID_MAX: Final = 256
SIGNATURE_MAX: Final = 0xFFFF

_HEAD: Final = struct.Struct("@8sQQQ")
"""Magic, window, tensor bytes of a message, bytes of the part that does not grow."""
_WORD: Final = struct.Struct("@Q")
_TAKEN_AT: Final = 64
_TAKEN_WORD: Final = _TAKEN_AT // _WORD.size
_FACTS_AT: Final = 72
"""Where the valid facts are, 0 and 1 in turn, plus one; 0: the job has not begun."""
_OPERATION: Final = struct.Struct("@QQQQQQ")
"""Index, element type, operator, path, bytes, signature."""
_RECORD: Final = struct.Struct("@QQQQQ")
"""Operation, offset in it, bytes, where they lie, serial plus one: the last field makes the record valid.

``pack_into`` zeroes all of them first."""
_WHERE: Final = 3
_TABLES_AT: Final = 128


class JournalRefused(Exception):
    """A journal that no daemon has left so."""


class Area(Protocol):
    """Some memory of an arena."""

    at: int
    """Where it begins in the arena."""
    view: memoryview

    def free(self) -> None:
        """Give it back, once."""


class Arena(Protocol):
    """Memory that the training processes hold, too."""

    def allocate(self, nbytes: int) -> Area:
        """Zeroed memory; the first that is asked for begins at 0. Raises ``OSError`` if memory is short."""

    def look(self, at: int, nbytes: int) -> memoryview:
        """What is there. Raises ``JournalRefused`` where nothing is."""


class PrivateArea:
    def __init__(self, arena: PrivateArena, at: int, nbytes: int) -> None:
        self.at = at
        self.view = memoryview(bytearray(nbytes))
        self._arena = arena

    def free(self) -> None:
        """It ends with its last view."""
        self._arena.areas.remove(self)


class PrivateArena:
    """One that nobody else holds: for hosts that are not replaced, and simulated ones that are."""

    def __init__(self) -> None:
        self.areas: list[PrivateArea] = []
        self._end = 0

    def allocate(self, nbytes: int) -> PrivateArea:
        area = PrivateArea(self, self._end, nbytes)
        self._end += nbytes
        self.areas.append(area)
        return area

    def look(self, at: int, nbytes: int) -> memoryview:
        for area in self.areas:
            if area.at <= at and at + nbytes <= area.at + len(area.view):
                return area.view[at - area.at : at - area.at + nbytes]
        raise JournalRefused(f"bytes {at} to {at + nbytes} are in no area")


@dataclass(frozen=True, slots=True)
class Torn:
    """A result that was being copied into tensors: it is to be copied again, whole."""

    op_index: OpIndex
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What a journal says."""

    joins: tuple[Join, ...]
    """Those of the ranks that the host has, by number."""
    left: Mapping[int, int]
    """How many all-reduces each rank had called that has left."""
    boot_id: str
    """Boot of the switch of the last ring."""
    run: tuple[int, int]
    """Id of the job's first ring, and how many hosts it had."""
    window_messages: int
    tensor_bytes: int
    progress: int
    """Results taken, ``torn`` included."""
    next_index: OpIndex
    """The first all-reduce that lacks results."""
    results: int
    """Those that it has."""
    path: DonePath
    """The path by which the last results came."""
    kept: tuple[tuple[KeptResult, bytes], ...] = field(repr=False)
    """The last of them."""
    torn: Torn | None = field(repr=False)
    failure: tuple[str, str] | None
    """Code and words of the error that has ended the job; the words are empty if it ended well."""


class Journal:
    """Written by a host while it is in a job: see the module."""

    def __init__(self, arena: Arena, *, window_messages: int, tensor_bytes: int) -> None:
        """Takes the arena's first area. Raises ``OSError`` if memory is short."""
        self.arena = arena
        self._slots = window_messages + 2
        self._window = window_messages
        self._tensor_bytes = tensor_bytes
        layout = _Layout(window_messages, tensor_bytes)
        self._layout = layout
        self._area = arena.allocate(layout.nbytes)
        self._memory = self._area.view
        self._words = _words_of(self._memory)
        self._places = layout.places
        self._taken = 0
        self._op_index = -1
        self._op_slot = 0
        self._ops = 0
        self._facts: dict[str, Any] = {}
        self._facts_turn = 0
        _HEAD.pack_into(self._memory, 0, MAGIC, window_messages, tensor_bytes, layout.nbytes)

    @property
    def nbytes(self) -> int:
        """Size of the part that has a fixed place; behind it are receive slots."""
        return self._layout.nbytes

    # --- results, one by one

    def taking(self, operation: Operation, offset: int, nbytes: int, at: int, path: DonePath) -> None:
        """The next result lies at ``at`` in the arena, and is about to be copied into tensors."""
        if operation.index != self._op_index:
            self._ops += 1
            self._op_index, self._op_slot = operation.index, self._ops % self._slots
            self._write_operation(self._op_slot, operation, path)
        taken = self._taken
        where = self._places[taken % self._slots]
        self._put_record(self._memory, where, self._op_slot, offset, nbytes, at, taken + 1)

    _put_record = staticmethod(_RECORD.pack_into)
    """As ``_pack``, with no step in between: each result brings one."""

    def taken(self) -> None:
        """It was."""
        self._taken = taken = self._taken + 1
        self._words[_TAKEN_WORD] = taken

    def _store(self, at: int, word: int) -> None:
        """One store: whoever is stopped leaves the word before, or this one."""
        self._words[at // _WORD.size] = word

    def _pack(self, fields: struct.Struct, at: int, *words: int) -> None:
        """Fields that are not valid yet, or become so by the last of them."""
        fields.pack_into(self._memory, at, *words)

    def _copy(self, at: int, data: bytes | memoryview) -> memoryview:
        """Data for where nothing valid is, or the same."""
        view = self._memory[at : at + len(data)]
        view[:] = data
        return view

    def _write_operation(self, slot: int, operation: Operation, path: DonePath) -> None:
        index, dtype, op, signature = operation.index, operation.dtype, operation.op, operation.signature
        where = self._layout.operations_at + slot * _OPERATION.size
        code = PATHS.index(path)
        self._pack(_OPERATION, where, index, dtype, op, code, operation.nbytes, signature)

    # --- rings come and go

    def keep(self, results: Iterable[KeptResult], data: Iterable[bytes | memoryview]) -> list[memoryview]:
        """The receive slots are about to be given up: the last N results, with their bytes, are to be kept.

        Returns where they lie from now on.
        """
        found: list[memoryview] = []
        moved: list[tuple[int, int]] = []
        for result, its in zip(results, data, strict=True):
            # Always there: of those that had the place before nobody lacks one. Whoever goes on when this is
            # stopped in between writes the same bytes over themselves.
            at = self._layout.kept_at + result.serial % self._window * self._tensor_bytes
            found.append(self._copy(at, its))
            moved.append((result.serial, at))
        # Until here the records name the slots, which nobody has touched; from here on either is right.
        for serial, new in moved:
            where = self._places[serial % self._slots]
            number = _RECORD.unpack_from(self._memory, where)[-1]
            if number != serial + 1:
                raise InvariantBroken(f"result {serial} is kept, and the journal has {number - 1} there")
            self._store(where + _WHERE * _WORD.size, new)
        return found

    # --- facts

    @property
    def has_begun(self) -> bool:
        return bool(self._facts)

    def say(
        self, joins: Sequence[Join], left: Mapping[int, int], boot_id: str, run: tuple[int, int] = (0, 0)
    ) -> None:
        """Who is here, and at which switch: from the first ring on that all hosts were ready for.

        ``run``: the id of that ring, and its hosts.
        """
        self._write_facts(_packed(joins, left, boot_id, run))

    def failed(self, code: str, message: str) -> None:
        """The job has ended, or ``message`` is empty and it ended well. What was said first stays."""
        if self._facts and not self._facts.get("failure", ("", ""))[1]:
            self._write_facts(self._facts | {"failure": [code, WORDS.give(message)]})

    def _write_facts(self, facts: dict[str, Any]) -> None:
        if "failure" in self._facts:
            facts = {"failure": self._facts["failure"]} | facts
        if facts == self._facts:
            return
        packed = msgpack.packb(facts)
        if len(packed) > FACTS_BYTES_MAX:
            raise InvariantBroken(f"{len(packed)} bytes of facts do not fit in the journal")
        turn = 1 - self._facts_turn
        at = self._layout.facts_at + turn * (FACTS_BYTES_MAX + _WORD.size)
        self._pack(_WORD, at, len(packed))
        self._copy(at + _WORD.size, packed)
        self._store(_FACTS_AT, turn + 1)
        self._facts, self._facts_turn = facts, turn

    # --- a successor goes on

    @classmethod
    def of_successor(cls, arena: Arena, past: Past) -> Self:
        """The journal of a host that has read ``past``, and goes on in its arena.

        Nothing is written until what was ``torn`` is :meth:`mended`. What was checked is not read again: the
        processes could change it in between.
        """
        journal = cls.__new__(cls)
        layout = _Layout(past.window_messages, past.tensor_bytes)
        journal.arena, journal._layout, journal._memory = arena, layout, arena.look(0, layout.nbytes)
        journal._words, journal._places = _words_of(journal._memory), layout.places
        journal._slots, journal._window = past.window_messages + 2, past.window_messages
        journal._tensor_bytes = past.tensor_bytes
        journal._taken, journal._op_index = past.progress, -1
        journal._ops = journal._op_slot = 0
        if past.progress:
            last = layout.records_at + (past.progress - 1) % journal._slots * _RECORD.size
            journal._ops = _RECORD.unpack_from(journal._memory, last)[0]
        journal._facts = _packed(past.joins, past.left, past.boot_id, past.run)
        journal._facts_turn = _word(journal._memory, _FACTS_AT) - 1
        return journal

    def mended(self) -> None:
        """What was torn is in the tensors, whole."""
        self._store(_TAKEN_AT, self._taken)


def read_journal(arena: Arena, *, window_messages: int, tensor_bytes: int) -> Past:
    """What the journal says of a job that had begun, to a host whose messages are such.

    Raises ``JournalRefused``, in words for people, for one that no daemon has left so, or one with other
    settings.
    """
    try:
        return _read(arena, window_messages, tensor_bytes)
    except (DecodeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise JournalRefused(f"it is none: {error}") from None


def _read(arena: Arena, window: int, tensor_bytes: int) -> Past:
    magic, its_window, its_bytes, nbytes = _HEAD.unpack_from(arena.look(0, _HEAD.size))
    if magic != MAGIC:
        raise JournalRefused("it is none, or that of another release")
    if (its_window, its_bytes) != (window, tensor_bytes):
        raise JournalRefused(
            f"its daemon had a window of {its_window} messages with {its_bytes} bytes each, this one has "
            f"{window} with {tensor_bytes}: start it with the same settings"
        )
    layout = _Layout(window, tensor_bytes)
    if nbytes != layout.nbytes:
        raise JournalRefused(f"it has {nbytes} bytes where {layout.nbytes} belong")
    memory = arena.look(0, nbytes)
    facts = _Facts.of(_read_facts(memory, layout))
    taken = _word(memory, _TAKEN_AT)
    is_torn = _number(memory, layout, taken) == taken + 1
    progress = taken + is_torn
    first = max(0, progress - window)
    if taken >= PROGRESS_MAX:
        raise JournalRefused(f"it counts {taken} results")
    if facts.failure is not None:  # links are gone when the job is over
        first = progress
    kept = [_result(arena, memory, layout, serial) for serial in range(first, progress)]
    for (before, _), (after, _) in itertools.pairwise(kept):
        if (after.operation, after.offset) != _behind(before, after.operation):
            raise JournalRefused(f"result {after.serial} does not follow the one before it")
    next_index, results, path = 0, 0, PATHS[0]
    torn = None
    if kept:
        last, data = kept[-1]
        torn = Torn(last.operation.index, last.offset, data) if is_torn else None
        path = _path_of(memory, layout, progress - 1)
        next_index, results = last.operation.index + 1, 0
        if not last.is_last:
            next_index, results = last.operation.index, last.offset // tensor_bytes + 1
    if facts.failure is None and any(after > next_index for after in facts.left.values()):
        raise JournalRefused(f"a rank has left that had the results of more than {next_index} all-reduces")
    return Past(
        joins=facts.joins,
        left=facts.left,
        boot_id=facts.boot_id,
        run=facts.run,
        window_messages=window,
        tensor_bytes=tensor_bytes,
        progress=progress,
        next_index=OpIndex(next_index),
        results=results,
        path=path,
        kept=tuple(kept),
        torn=torn,
        failure=facts.failure,
    )


def _read_facts(memory: memoryview, layout: _Layout) -> dict[str, Any]:
    turn = _word(memory, _FACTS_AT)
    if turn not in (1, 2):
        raise JournalRefused("the job had not begun")
    at = layout.facts_at + (turn - 1) * (FACTS_BYTES_MAX + _WORD.size)
    length = _word(memory, at)
    if length > FACTS_BYTES_MAX:
        raise JournalRefused(f"{length} bytes of facts")
    facts = msgpack.unpackb(bytes(memory[at + _WORD.size : at + _WORD.size + length]))
    if not isinstance(facts, dict):
        raise JournalRefused("its facts are none")
    return facts


@dataclass(frozen=True, slots=True)
class _Facts:
    joins: tuple[Join, ...]
    left: dict[int, int]
    boot_id: str
    run: tuple[int, int]
    failure: tuple[str, str] | None

    @staticmethod
    def of(packed: dict[str, Any]) -> _Facts:
        if len(packed["joins"]) > RANKS_MAX:
            raise JournalRefused(f"it has {len(packed['joins'])} ranks")
        joins = tuple(_join_of(join) for join in packed["joins"])
        numbers = [join.rank for join in joins]
        left = dict(packed["left"])
        boot_id, (code, words) = packed["boot_id"], packed.get("failure", ("", ""))
        run_id, hosts = packed["run"]
        texts = (code, NAME_MAX), (words, WORDS.bytes_max), (boot_id, BOOT_ID_MAX)
        if len({(join.job, join.size, join.key) for join in joins}) != 1:
            raise JournalRefused("its ranks are of no job, or of several")
        if numbers != sorted(set(numbers)) or numbers[-1] >= joins[0].size or not left.keys() <= set(numbers):
            raise JournalRefused("its ranks are in no order, or not of their job")
        if not all(type(number) is int and 0 <= number < VOTE for number in left.values()):
            raise JournalRefused("nobody leaves like that")
        if not all(type(number) is int and 0 <= number < 1 << 32 for number in (run_id, hosts)):
            raise JournalRefused("its first ring is none")
        if not all(type(text) is str and len(text.encode()) <= most for text, most in texts):
            raise JournalRefused("it says what is no text")
        failure = (code, words) if "failure" in packed else None
        return _Facts(joins, left, boot_id, (run_id, hosts), failure)


def _packed(
    joins: Sequence[Join], left: Mapping[int, int], boot_id: str, run: tuple[int, int]
) -> dict[str, Any]:
    """Facts as they are written. A successor may speak other versions of the protocol, if not all others."""
    return {
        "joins": [encode_message(join, newest=control.NEWEST) for join in joins],
        "left": [list(item) for item in sorted(left.items())],
        "boot_id": boot_id,
        "run": list(run),
    }


def _join_of(packed: Any) -> Join:
    if type(packed) is not bytes:
        raise JournalRefused("a rank has joined by no message")
    (record,) = ControlDecoder().feed(packed)
    join = decode_message(record)
    if not isinstance(join, Join):
        raise JournalRefused(f"a rank has joined by {join.TYPE!r}")
    return join


def _behind(before: KeptResult, now: Operation) -> tuple[Operation, int]:
    """Operation and offset of the result that follows that one; ``now`` is of the one that does."""
    if not before.is_last:
        return before.operation, before.offset + before.nbytes
    return replace(now, index=OpIndex(before.operation.index + 1)), 0


def _words_of(memory: memoryview) -> memoryview:
    return memory[: len(memory) - len(memory) % _WORD.size].cast("Q")


def _word(memory: memoryview, at: int) -> int:
    word: int = _WORD.unpack_from(memory, at)[0]
    return word


def _fields(memory: memoryview, layout: _Layout, serial: int) -> tuple[int, ...]:
    return _RECORD.unpack_from(memory, layout.records_at + serial % (layout.window + 2) * _RECORD.size)


def _number(memory: memoryview, layout: _Layout, serial: int) -> int:
    return _fields(memory, layout, serial)[4]


def _operation_at(memory: memoryview, layout: _Layout, slot: int) -> tuple[int, ...]:
    if slot >= layout.window + 2:
        raise JournalRefused(f"operation {slot} of its table")
    return _OPERATION.unpack_from(memory, layout.operations_at + slot * _OPERATION.size)


def _path_of(memory: memoryview, layout: _Layout, serial: int) -> DonePath:
    return PATHS[_operation_at(memory, layout, _fields(memory, layout, serial)[0])[3]]


def _result(arena: Arena, memory: memoryview, layout: _Layout, serial: int) -> tuple[KeptResult, bytes]:
    slot, offset, nbytes, at, number = _fields(memory, layout, serial)
    index, dtype, op, _, total, signature = _operation_at(memory, layout, slot)
    size = layout.tensor_bytes
    is_there = number == serial + 1 and not offset % size and nbytes == min(size, total - offset)
    is_whole = nbytes or not total
    is_late_enough = index + offset // size <= serial
    if not (is_there and is_whole and is_late_enough) or index >= VOTE or signature > SIGNATURE_MAX:
        raise JournalRefused(f"result {serial} is not there")
    operation = Operation(OpIndex(index), Dtype(dtype), Op(op), total, signature)
    if total % operation.dtype.itemsize:
        raise JournalRefused(f"all-reduce {index} has {total} bytes of {operation.dtype.name}")
    is_last = offset + nbytes == total
    kept = KeptResult(serial, operation, is_last, offset, nbytes, RingId(0), 0)
    return kept, bytes(arena.look(at, nbytes))


@dataclass(frozen=True)
class _Layout:
    window: int
    tensor_bytes: int

    @property
    def operations_at(self) -> int:
        return _TABLES_AT

    @property
    def records_at(self) -> int:
        return self.operations_at + (self.window + 2) * _OPERATION.size

    @property
    def places(self) -> list[int]:
        """Where the records are."""
        return [self.records_at + slot * _RECORD.size for slot in range(self.window + 2)]

    @property
    def facts_at(self) -> int:
        return self.records_at + (self.window + 2) * _RECORD.size

    @property
    def kept_at(self) -> int:
        end = self.facts_at + 2 * (FACTS_BYTES_MAX + _WORD.size)
        return end + -end % PAGE_BYTES

    @property
    def nbytes(self) -> int:
        return self.kept_at + self.window * self.tensor_bytes
