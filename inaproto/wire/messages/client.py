"""Control messages between a training process and the daemon of its host.

client -> host daemon: Join, Rejoin and Buffer (one memfd beside each), AllReduce, Leave, Regroup, Status.
host daemon -> client: JoinWaits, Joined, Ok, Taken, Done, HasLeft, Regrouped, StatusReply, Error.

What is not here is in :mod:`inaproto.wire.control_messages`: it is said to switches too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from inaproto.wire.messages.fields import Many, OneOf, Text
from inaproto.wire.messages.types import (
    U16,
    U32,
    U64,
    AskedField,
    DtypeCode,
    Explanation,
    Flag,
    LongText,
    Message,
    Name,
    OpCode,
    Positive16,
    Positive32,
    Secret,
    Shape,
)

Traceparent = Annotated[str, Text(64)]
Places = Annotated[tuple[str, ...], Many(Text(512, bytes_min=1), 8)]
DonePath = Literal["switch", "chain", "overlay", "ring", "local", "sharp"]
"""Path by which an operation was summed; ``local``: all ranks of its job are on one host; ``sharp``: by a
collective library, in an order of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Message, type="join"):
    """A process becomes a rank of a job."""

    job: Name
    rank: U16
    size: Positive16
    key: Secret = field(repr=False)
    pid: U32
    path: AskedField = "auto"
    exact_plan: Flag = True
    elastic: Flag = False
    """As in ``Member``."""
    life: Secret = ""
    """Drawn by the process for this rank, to be known again by when it comes back through another daemon."""
    meets: Places = ()
    """Directories in which it could meet other ranks of its host, the best first: what is before the blank is
    compared, the rest is for people. Who names any is told of ranks of its host that leave (``HasLeft``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin(Message, type="rejoin"):
    """A rank goes on through the successor of its host daemon, which is gone. The journal that came with
    ``Joined`` is beside it.

    The rank's segments follow (``Buffer``), then the all-reduces ``done`` to ``called`` - 1 as they were
    called, then what is new. The answer is ``Ok`` when the daemon knows all of that, or ``Error``.
    """

    job: Name
    rank: U16
    size: Positive16
    key: Secret = field(repr=False)
    pid: U32
    path: AskedField = "auto"
    exact_plan: Flag = True
    elastic: Flag = False
    life: Secret = ""
    """As in ``Join``, as they were there."""
    done: U32
    """All-reduces whose ``Done`` the process has read."""
    called: U32
    """All-reduces that it has called."""

    @property
    def join(self) -> Join:
        """What it said when it joined."""
        return Join(
            id=self.id,
            job=self.job,
            rank=self.rank,
            size=self.size,
            key=self.key,
            pid=self.pid,
            path=self.path,
            exact_plan=self.exact_plan,
            elastic=self.elastic,
            life=self.life,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinWaits(Message, type="join_waits"):
    """The job of a process that joins waits for others, some of which were refused: which, and why."""

    refused: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Message, type="joined"):
    """All ranks are there. The limits are the daemon's, for the client to keep to."""

    ring_id: U32
    rank: U16
    size: Positive16
    operations_max: Positive32 = 4096
    """All-reduces that were submitted and have not ended."""
    segments_max: Positive32 = 256
    """Segments of shared memory."""
    local: Flag = False
    """All ranks of the job are on this host, and can meet."""
    fills: Flag = False
    """``all_reduce`` may come before the tensor is there as a whole (``filled``)."""
    named: Flag = False
    """``all_reduce`` may say that it is another collective (``call``)."""
    meets: Annotated[str, Text(512)] = ""
    """With ``local``: the one of the directories in which all ranks meet, as they named it."""
    meeting: Secret = ""
    """The name by which they meet there, which nobody had before."""
    apart: Explanation = ""
    """Why the ranks do not meet, though all are on this host."""
    successor_ms: U32 = 0
    """Not 0: the daemon may be replaced in the middle of the job. A memfd is beside the message, the journal,
    which the process keeps for the successor (``Rejoin``), and for which it waits so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer(Message, type="buffer"):
    """A segment of shared memory; its memfd comes beside the message (SCM_RIGHTS)."""

    segment: U32
    nbytes: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ok(Message, type="ok"):
    """A request is done that has nothing else to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce(Message, type="all_reduce"):
    """Reduce ``nbytes`` at ``offset`` of a segment with all ranks, in place."""

    op_index: U32
    segment: U32
    offset: U64
    nbytes: U64
    dtype: DtypeCode
    op: OpCode
    shape: Shape
    whole: Shape | None = None
    """Shape of the tensor that this is a slice of, which is reduced by parallel rings: ranks that call
    different all-reduces are told by its digest."""
    wait_ns: U64 | None = None
    """How long before this one the wait for results began, of a job on the path ``shared`` that has waited
    since its last all-reduce."""
    work_ns: U64 | None = None
    """How long before this one that wait ended."""
    filled: U64 | None = None
    """Bytes of it that are there, from the first on; the process puts the others there now, and says so
    (``filled``). None: all."""
    call: LongText = ""
    """What the process calls it, if it is another collective than an all-reduce of one tensor: in its digest,
    so that ranks that call different ones are told."""
    trace: Traceparent | None = None
    """Its span in the process, as a W3C traceparent, if that is traced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled(Message, type="filled"):
    """The first ``nbytes`` of an operation that was called before it was there as a whole are there."""

    op_index: U32
    nbytes: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken(Message, type="taken"):
    """The first ``nbytes`` of an operation that came so are its result by now."""

    op_index: U32
    nbytes: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(Message, type="done"):
    """The operation has its result; ``ns`` is how long it took in the host daemon."""

    op_index: U32
    path: Annotated[DonePath, OneOf(("switch", "chain", "overlay", "ring", "local", "sharp"))]
    ns: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class HasLeft(Message, type="has_left"):
    """Another rank of a job whose ranks are all on this host has left in good order: it calls no more."""

    rank: U16


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Message, type="leave"):
    reason: Explanation = ""
    """Not in good order: why this rank cannot go on. It is lost to its job, and the connection ends."""
