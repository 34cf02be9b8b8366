"""How processes of models that are trained by push, pull and clock find each other.

training process -> host daemon: ModelJoin, Buffer (one memfd beside it), ModelClock, ModelPull, ModelSave,
ModelLeave.
host daemon -> training process: ModelJoined, ModelDone, ModelPulled, Error.

Between hosts and parameter servers there is a connection for each model and shard. Who dials says
OverlayHello first, and is answered OverlayWelcome or Error, or OverlayState, if that is all that it asks for.
OverlayQueuePair and what belongs to it may follow, then what :mod:`inaproto.wire.messages.models` has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from inaproto.wire.messages.clocks import CLOCK_MAX, NO_CLOCKS, NODES_MAX, ClocksField
from inaproto.wire.messages.fields import Integer, Many
from inaproto.wire.messages.models import DtypeName
from inaproto.wire.messages.types import (
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
    Positive32,
    Secret,
)

_Clock = Annotated[int, Integer(0, CLOCK_MAX)]

# --- a training process and its host daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJoin(Message, type="model_join"):
    """This process is the worker of its host."""

    model: Name
    key: Secret = field(default="", repr=False)
    pid: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJoined(Message, type="model_joined"):
    """All servers have said how far the worker is: it goes on after ``clock``."""

    worker: U16
    workers: U16
    elements: U64
    dtype: DtypeName
    staleness: U32
    clock: _Clock
    segments_max: Positive32 = 256
    """Segments of shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClock(Message, type="model_clock"):
    """The worker has finished its update number ``clock``; the update lies in the segment."""

    clock: _Clock
    segment: U32 | None = None
    """None: nothing was pushed."""
    offset: U64 = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPull(Message, type="model_pull"):
    """Weights are to be put there that contain all that ``staleness`` demands."""

    staleness: U32 | None = None
    """None: as the host daemon thinks best."""
    segment: U32
    offset: U64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLeave(Message, type="model_leave"):
    """For good: nobody waits for this worker any more. Done once its updates are durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSave(Message, type="model_save"):
    """Done once all updates that are finished are durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDone(Message, type="model_done"):
    """Answers ``ModelClock``, ``ModelSave`` and ``ModelLeave``; the first when the daemon has read the
    update."""

    clock: _Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPulled(Message, type="model_pulled"):
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
class OverlayHello(Message, type="overlay_hello"):
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
class OverlayState(Message, type="overlay_state"):
    """State of a shard at who was asked: a parameter server says ``clocks``, ``absent`` and ``fault``, a host
    what its own worker does."""

    clocks: ClocksField = NO_CLOCKS
    """Durable; of a host, what its own worker has finished."""
    absent: Annotated[tuple[tuple[int, ...], ...], Many(Many(Integer(0, CLOCK_MAX), 2), NODES_MAX)] = ()
    """Workers whose hosts are not connected, below whatever host: since how many milliseconds."""
    fault: Explanation = ""
    """Why nothing becomes durable."""
    has_process: Flag = False
    since_ms: U64 = 0
    """For so long it has had one, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayWelcome(Message, type="overlay_welcome"):
    process: Name
    life: U64
    nic: Flag = False
    """Both try queue pairs next."""
    no_nic: Explanation = ""
    """Why not, of one who should have a NIC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayQueuePair(Message, type="overlay_queue_pair"):
    """Both sides name theirs, and the memory that is written to; messages of these kinds go in step, one of
    each side, until the second ``OverlayQueuePairReady`` of both."""

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
class OverlayQueuePairReady(Message, type="overlay_queue_pair_ready"):
    """First: the sender's queue pair is connected, it may be written to. Then: what the other wrote has come,
    and what the sender wrote is acknowledged; what follows goes there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayNoQueuePair(Message, type="overlay_no_queue_pair"):
    """In place of the next of these messages: there is none, and what follows goes on where this went."""

    why: Explanation
