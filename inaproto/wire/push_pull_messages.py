"""Control messages of models that are trained by push, pull and clock (:mod:`inaproto.core.models`).

training process -> host daemon: ModelJoin, Buffer (one memfd beside it), ModelClock, ModelPull, ModelSave,
ModelLeave.
host daemon -> training process: ModelJoined, ModelDone, ModelPulled, Error.

Between hosts and parameter servers, with arrays behind them (:mod:`inaproto.wire.array_frames`), of one model
and shard on each connection; who dials says OverlayHello first, and is answered OverlayWelcome or Error, or
OverlayState, if that is all that it asks for:
child -> parent: PushPullAttach, PushPullPush, PushPullRequest, PushPullFlush, PushPullHeartbeat,
PushPullDetach; parent -> child: PushPullAttached, PushPullDetached, PushPullWeights, PushPullMerged,
PushPullMode, PushPullReshaped, PushPullAlive. Arrays are of the shard's elements, in its dtype,
little-endian; whether a message has one, its ``arrays`` says.

Of a parameter server's log on disk: ShardState, ShardChange.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal

from inaproto.wire.control_fields import Integer, Many, OneOf
from inaproto.wire.control_types import (
    U16,
    U24,
    U32,
    U64,
    Explanation,
    Flag,
    Ip,
    Mac,
    Message,
    Mtu,
    Name,
    Names,
    Positive32,
    Secret,
)

NODES_MAX: Final = 1 << 15
"""Most nodes of a tree; half as many numbers as a message may have in one array."""
CLOCK_MAX: Final = (1 << 63) - 1
"""Largest clock; that of a worker that has left is below it."""

_Clock = Annotated[int, Integer(0, CLOCK_MAX)]
_Clocks = Annotated[tuple[tuple[int, ...], ...], Many(Many(Integer(0, CLOCK_MAX), 2), NODES_MAX)]
"""Pairs of a worker and its clock."""
_Nodes = Annotated[tuple[int, ...], Many(Integer(0, 0xFFFF_FFFF), NODES_MAX)]
_Dtype = Annotated[
    Literal["int32", "int64", "float32", "float64"], OneOf(("int32", "int64", "float32", "float64"))
]
_Session = Annotated[int, Integer(0, CLOCK_MAX)]
_Arrays = Annotated[int, Integer(0, 1)]
_Epoch = Annotated[tuple[int, ...], Many(Integer(0, CLOCK_MAX), 4)]
"""Number, tree before it, tree, first clock; empty: the first, which begins with the training."""

# --- a training process and its host daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJoin(Message):
    """This process is the worker of its host."""

    TYPE: ClassVar[str] = "model_join"
    model: Name
    key: Secret = field(default="", repr=False)
    pid: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJoined(Message):
    """All servers have said how far the worker is: it goes on after ``clock``."""

    TYPE: ClassVar[str] = "model_joined"
    worker: U16
    workers: U16
    elements: U64
    dtype: _Dtype
    staleness: U32
    clock: _Clock
    segments_max: Positive32 = 256
    """Segments of shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClock(Message):
    """The worker has finished its update number ``clock``; the update lies in the segment."""

    TYPE: ClassVar[str] = "model_clock"
    clock: _Clock
    segment: U32 | None = None
    """None: nothing was pushed."""
    offset: U64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPull(Message):
    """Weights are to be put there that contain all that ``staleness`` demands."""

    TYPE: ClassVar[str] = "model_pull"
    staleness: U32 | None = None
    """None: as the host daemon thinks best."""
    segment: U32
    offset: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLeave(Message):
    """For good: nobody waits for this worker any more. Done once its updates are durable."""

    TYPE: ClassVar[str] = "model_leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSave(Message):
    """Done once all updates that are finished are durable."""

    TYPE: ClassVar[str] = "model_save"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDone(Message):
    """Answers ``ModelClock``, ``ModelSave`` and ``ModelLeave``; the first when the daemon has read the
    update."""

    TYPE: ClassVar[str] = "model_done"
    clock: _Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPulled(Message):
    TYPE: ClassVar[str] = "model_pulled"
    clock: _Clock
    """Clock of the worker when it pulled."""
    model_clock: _Clock
    """What the servers had of everybody."""
    oldest: _Clock
    """All updates of all workers up to this one are in the weights."""
    newest: _Clock
    """None after this one is, of a worker that has not left."""
    staleness: U32
    """Staleness that was asked for, or chosen."""


# --- nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayHello(Message):
    TYPE: ClassVar[str] = "overlay_hello"
    process: Name
    """Who dials; where TLS is used, its certificate says so, too."""
    model: Name
    shard: U16
    digest: Secret
    """Digest of the models file."""
    life: U64
    """Grows with each start of the process."""
    nic: Flag = False
    """What follows may go over queue pairs (``OverlayQueuePair``)."""
    no_nic: Explanation = ""
    """Why not, of one who should have a NIC."""
    asks: Flag = False
    """Not to stay, but to be answered ``OverlayState``: what may the sender's worker be waiting for?"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayState(Message):
    """State of a shard at who was asked: a parameter server says ``clocks``, ``absent`` and ``fault``, a host
    what its own worker does."""

    TYPE: ClassVar[str] = "overlay_state"
    clocks: _Clocks = ()
    """Durable."""
    absent: _Clocks = ()
    """Workers whose hosts are not connected, below whatever host: since how many milliseconds."""
    fault: Explanation = ""
    """Why nothing becomes durable."""
    has_process: Flag = False
    since_ms: U64 = 0
    """For so long it has had one, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayWelcome(Message):
    TYPE: ClassVar[str] = "overlay_welcome"
    process: Name
    life: U64
    nic: Flag = False
    """Both try queue pairs next."""
    no_nic: Explanation = ""
    """Why not, of one who should have a NIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayQueuePair(Message):
    """Both sides name theirs, and the memory that is written to; messages of these kinds go in step, one of
    each side, until the second ``OverlayQueuePairReady`` of both."""

    TYPE: ClassVar[str] = "overlay_queue_pair"
    mac: Mac
    ip: Ip
    qpn: U24
    psn: U24
    va: U64
    rkey: U32
    nbytes: U64
    mtu: Mtu = 1024
    """The largest that the sender's NIC takes; the smaller of both is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayQueuePairReady(Message):
    """First: the sender's queue pair is connected, it may be written to. Then: what the other wrote has come,
    and what the sender wrote is acknowledged; what follows goes there."""

    TYPE: ClassVar[str] = "overlay_queue_pair_ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayNoQueuePair(Message):
    """In place of the next of these messages: there is none, and what follows goes on where this went."""

    TYPE: ClassVar[str] = "overlay_no_queue_pair"
    why: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullAttach(Message):
    TYPE: ClassVar[str] = "push_pull_attach"
    session: _Session
    workers: _Nodes
    floor: _Clocks = ()
    epoch: _Clock = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullPush(Message):
    TYPE: ClassVar[str] = "push_pull_push"
    session: _Session
    clock: _Clock
    before: _Clocks
    after: _Clocks
    arrays: _Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullRequest(Message):
    TYPE: ClassVar[str] = "push_pull_request"
    needed: _Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullFlush(Message):
    TYPE: ClassVar[str] = "push_pull_flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullHeartbeat(Message):
    TYPE: ClassVar[str] = "push_pull_heartbeat"
    dead: _Nodes = ()
    lost: _Nodes = ()
    load: U16 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullDetach(Message):
    TYPE: ClassVar[str] = "push_pull_detach"
    session: _Session


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullAttached(Message):
    TYPE: ClassVar[str] = "push_pull_attached"
    session: _Session
    base: _Clocks
    root: _Clocks
    direct: Flag = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullDetached(Message):
    TYPE: ClassVar[str] = "push_pull_detached"
    session: _Session
    reason: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullWeights(Message):
    TYPE: ClassVar[str] = "push_pull_weights"
    included: _Clocks
    root: _Clocks
    arrays: _Arrays = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullMerged(Message):
    TYPE: ClassVar[str] = "push_pull_merged"
    root: _Clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullMode(Message):
    TYPE: ClassVar[str] = "push_pull_mode"
    direct: Flag


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullReshaped(Message):
    TYPE: ClassVar[str] = "push_pull_reshaped"
    epoch: _Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPullAlive(Message):
    """Answer to a heartbeat."""

    TYPE: ClassVar[str] = "push_pull_alive"
    is_attached: Flag


# --- a parameter server's disk


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState(Message):
    """A snapshot: the weights behind it contain the updates up to ``clocks``, each once."""

    TYPE: ClassVar[str] = "shard_state"
    model: Name
    shard: U16
    first: U64
    """Index of its first element in the model."""
    elements: U64
    dtype: _Dtype
    clocks: _Clocks
    epoch: _Epoch = ()
    arrays: _Arrays = 1
    workers: Names = ()
    """Workers by their numbers in ``clocks``; none: written before names were."""
    model_elements: U64 = 0
    shards: U16 = 0
    fraction_bits: U16 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardChange(Message):
    """What is added to the weights, if anything, and the clocks that change with it."""

    TYPE: ClassVar[str] = "shard_change"
    clocks: _Clocks
    epoch: _Epoch = ()
    arrays: _Arrays


PUSH_PULL_MESSAGES: Final[tuple[type[Message], ...]] = (
    ModelJoin,
    ModelJoined,
    ModelClock,
    ModelPull,
    ModelLeave,
    ModelSave,
    ModelDone,
    ModelPulled,
    OverlayHello,
    OverlayState,
    OverlayWelcome,
    OverlayQueuePair,
    OverlayQueuePairReady,
    OverlayNoQueuePair,
    PushPullAttach,
    PushPullPush,
    PushPullRequest,
    PushPullFlush,
    PushPullHeartbeat,
    PushPullDetach,
    PushPullAttached,
    PushPullDetached,
    PushPullWeights,
    PushPullMerged,
    PushPullMode,
    PushPullReshaped,
    PushPullAlive,
    ShardState,
    ShardChange,
)
