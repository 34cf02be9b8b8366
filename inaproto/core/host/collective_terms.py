"""Which all-reduces a collective library takes, and how hosts vote on what it did (docs/protocol.md 9.8).

The terms have to be equal on all hosts of a job: from them alone, and from what was voted before, each host
decides by itself whether an operation is tried. A vote is an all-reduce of three integers by the job's own
path, which has one result on all hosts, whatever fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self
from zlib import crc32

from inaproto.core.host.operations import VOTE, Operation
from inaproto.errors import LocalMisuse
from inaproto.units import OpIndex
from inaproto.wire.ina_header import Dtype, Op

VOTE_BYTES: Final = 12
_TEXT: Final = re.compile(
    r"([a-z0-9_.-]{1,32}) ([0-9,]{1,32}) ([0-9,]{1,32}) ([0-9]{1,18}) ([0-9]{1,18})", re.ASCII
)


class Code(IntEnum):
    """Why an operation was not done by the collective; of several hosts' the highest counts."""

    FAILED = 1
    """This operation alone."""
    ABSENT = 2
    """A host is not attached, or to another attempt."""
    LOST = 3
    """The attachment is."""
    TIMED_OUT = 4
    """It did not end in time, which is the end of the attachment."""
    DIFFERS = 5
    """The hosts have different bytes of it. Nobody votes so; it is what the votes show."""


@dataclass(frozen=True, slots=True)
class CollectiveTerms:
    """What is tried: all-reduces of these types and operations, of ``bytes_min`` to ``bytes_max`` bytes."""

    name: str
    dtypes: frozenset[Dtype]
    ops: frozenset[Op]
    bytes_min: int
    bytes_max: int

    def __post_init__(self) -> None:
        if not _TEXT.fullmatch(str(self)):
            raise LocalMisuse(f"{self!r} are no terms that a message can hold")

    def __str__(self) -> str:
        """As hosts tell them; two are equal if their texts are."""
        dtypes, ops = (",".join(str(int(one)) for one in sorted(each)) for each in (self.dtypes, self.ops))
        return f"{self.name} {dtypes} {ops} {self.bytes_min} {self.bytes_max}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises ``LocalMisuse`` for what is none."""
        found = _TEXT.fullmatch(text)
        try:
            name, dtypes, ops, least, most = found.groups() if found else ()
            kinds = frozenset(Dtype(int(one)) for one in dtypes.split(","))
            return cls(name, kinds, frozenset(Op(int(one)) for one in ops.split(",")), int(least), int(most))
        except ValueError:
            raise LocalMisuse(f"{text!r} are no terms of a collective") from None

    def take(self, operation: Operation) -> bool:
        """Whether it is to be tried; alike on all hosts that have called the same."""
        fits = self.bytes_min <= operation.nbytes <= self.bytes_max and operation.nbytes > 0
        return fits and operation.dtype in self.dtypes and operation.op in self.ops


def vote_on(operation: Operation) -> Operation:
    """The all-reduce by which hosts vote on ``operation``. Its digest is the same: hosts that have called
    different ones find that out."""
    index = OpIndex(VOTE | operation.index)
    return Operation(index, Dtype.I32, Op.MIN, VOTE_BYTES, operation.signature)


def words_of(said: int, *, stays: bool) -> bytes:
    """The tensor of a vote: what this host says, its negative, whose least shows the most, and 0 if it
    leaves."""
    return b"".join(word.to_bytes(4, "little", signed=True) for word in (said, -said, int(stays)))


def digest_of(result: bytes | memoryview) -> int:
    """What a host says that has ``result``: 31 bits."""
    return crc32(result) >> 1


def counted(words: bytes | bytearray) -> tuple[int, int, bool]:
    """The least and the most that hosts have said, and whether all stay. Raises ``LocalMisuse`` for what is
    no vote."""
    if len(words) != VOTE_BYTES:
        raise LocalMisuse(f"a vote of {len(words)} bytes")
    least, most, stay = (int.from_bytes(words[at : at + 4], "little", signed=True) for at in (0, 4, 8))
    return least, -most, bool(stay)
