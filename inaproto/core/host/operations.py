"""What the engines of a rank are told, what they order, and how a ring is configured.

An engine (:mod:`inaproto.core.host.engines.in_network`, :mod:`inaproto.core.host.engines.chain`,
:mod:`inaproto.core.host.engines.ring`) moves messages of all-reduces over one ring of queue pairs. Its
events are facts, its actions orders; neither holds tensor bytes, both name slots and offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from inaproto.errors import LocalMisuse
from inaproto.units import MS, Epoch, MsgId, OpIndex, Rank, RingId
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op, call_words


@dataclass(frozen=True, slots=True, kw_only=True)
class RingConfig:
    ring_id: RingId
    epoch: Epoch
    key: int
    """Secret of the ring, in every header."""
    rank: Rank
    ring_size: int
    mtu: int = 1024
    message_packets: int = 170
    window_messages: int = 2
    stall_ns: int = 1000 * MS
    """An operation without progress for this long is reported, and again after each such time."""
    timeout_ns: int = 0
    """An operation that has not ended this long after its start is overdue; 0: never."""
    operations_max: int = 4096
    """Operations submitted and not ended."""
    id_bits: int = 32
    unacknowledged_messages: int = 0
    """As :class:`~inaproto.core.host.message_window.WindowConfig` has it."""
    outlived: bool = False
    """Operations may go on by another ring: a ring that breaks halts and fails none of them."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ring_size < 1 << 16:
            raise LocalMisuse(f"rank {self.rank} in a ring of {self.ring_size}")
        if self.mtu not in (256, 512, 1024, 2048, 4096):
            raise LocalMisuse(f"mtu {self.mtu} is not a RoCE path MTU (256, 512, 1024, 2048 or 4096)")
        if not 0 < self.message_packets < 1 << 16:
            raise LocalMisuse(f"message_packets {self.message_packets} does not fit the header's 16 bits")

    @property
    def message_bytes(self) -> int:
        """A full message, its header included: the size of a slot."""
        return self.message_packets * self.mtu

    @property
    def tensor_bytes(self) -> int:
        """Tensor bytes of a full message; a multiple of 8, so no element is cut in two."""
        return self.message_bytes - INA_HEADER_BYTES

    @property
    def slots(self) -> int:
        return 2 * self.window_messages

    @property
    def predecessor(self) -> int:
        return (self.rank - 1) % self.ring_size


class Memory(NamedTuple):
    """Bytes ``start`` to ``end`` of memory that ``key`` names, of one rank."""

    rank: int
    key: int
    start: int
    end: int

    def overlaps(self, other: Memory) -> bool:
        """Whether a byte is in both."""
        return self[:2] == other[:2] and max(self.start, other.start) < min(self.end, other.end)


CALL_CHARACTERS_MAX: Final = 300
VOTE: Final = 1 << 31
"""Set in the index of an operation that is the hosts' vote on the one with the other bits
(:mod:`inaproto.core.host.collective`)."""


@dataclass(frozen=True, slots=True)
class Operation:
    index: OpIndex
    """Serial in the job, from 0; each rank numbers its own calls, so equal numbers belong together."""
    dtype: Dtype
    op: Op
    nbytes: int
    signature: int
    memory: tuple[Memory, ...] = field(default=(), compare=False)
    """Where its tensors are, if others may be there too. Each rank has its own, so it is not compared."""
    filled: int | None = field(default=None, compare=False)
    """Bytes of its tensor that are there when it is called, from the first on, while its process puts the
    others there (:class:`Filled`); None: all. Only of a rank that is alone on its host, on one path."""
    shape: tuple[int, ...] | None = field(default=None, compare=False)
    """Shape of the tensor of which it is all or a slice, if it is known; its digest is compared."""
    own_words: str = field(default="", compare=False)
    """What its process calls it, if it is another collective than an all-reduce."""

    @property
    def is_vote(self) -> bool:
        """No rank has called it."""
        return bool(self.index & VOTE)

    @property
    def call(self) -> str:
        """What was called, for people, in 300 characters at most; empty where nobody knows."""
        if self.shape is None:
            return ""
        return call_words(self.dtype, self.op, self.shape, self.own_words)[:CALL_CHARACTERS_MAX]

    def shares_memory_with(self, other: Operation) -> bool:
        """Whether a byte of its tensors is one of ``other``'s."""
        return any(mine.overlaps(its) for mine in self.memory for its in other.memory)


# --- what happens to an engine


class Submit(NamedTuple):
    operation: Operation


class Filled(NamedTuple):
    """The first ``nbytes`` of an operation's tensor are there by now; of one that has ended it is nothing."""

    op_index: OpIndex
    nbytes: int


BoundPath = Literal["switch", "chain"]
BASE: Final[BoundPath] = "chain"
INA: Final[BoundPath] = "switch"
UP: Final = -1
"""The connection to the parent in an overlay; those to children are 0, 1, ... in the order of
``OverlayTree.children``."""


class ResultArrived(NamedTuple):
    """A message arrived whole in the receive slot ``imm mod 2N``."""

    imm: int
    nbytes: int
    header: bytes
    """Its first 40 bytes, fewer if it has fewer."""
    path: BoundPath = BASE
    """The ring by which it came, where a host has two."""
    edge: int = UP
    """The connection by which it came, where a host has several (an overlay)."""


class SendCompleted(NamedTuple):
    """A message is acknowledged; ``path`` and ``edge`` as ``ResultArrived`` has them."""

    msg_id: int
    path: BoundPath = BASE
    edge: int = UP


@dataclass(frozen=True, slots=True)
class Fail:
    """End every operation, and every later one, with this error."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Woke:
    """The deadline may have passed."""


RingEvent = Submit | Filled | ResultArrived | SendCompleted | Fail | Woke

# --- what an engine orders


class PostMessage(NamedTuple):
    """Write ``header`` into header slot ``slot``, then post header and tensor bytes as one message."""

    msg_id: MsgId
    slot: int
    header: bytes
    op_index: OpIndex
    offset: int
    nbytes: int


class PostKept(PostMessage):
    """A ``PostMessage`` with other bytes: those of the kept result of this part of this operation."""

    __slots__ = ()


class PostNeutral(PostMessage):
    """A ``PostMessage`` with other bytes: neutral elements (:mod:`inaproto.core.plan.neutral`)."""

    __slots__ = ()


class TakeResult(NamedTuple):
    """Copy the ``nbytes`` behind the header in receive slot ``slot`` into the operation's buffer."""

    slot: int
    op_index: OpIndex
    offset: int
    nbytes: int


class OperationDone(NamedTuple):
    op_index: OpIndex


@dataclass(frozen=True, slots=True)
class OperationFailed:
    op_index: OpIndex
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Stalled:
    """The running operation made no progress for ``for_ns``: ask the switch whom it waits for."""

    operation: Operation
    for_ns: int
    messages: int
    results: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """The running operation started ``for_ns`` ago, longer than it may take. Said once."""

    operation: Operation
    for_ns: int
    messages: int
    results: int


@dataclass(frozen=True, slots=True)
class RingBroken:
    """This rank found its ring unusable; its operations have failed with the same words, or will go on by
    another ring if they may (``RingConfig.outlived``)."""

    code: str
    message: str
