"""The control messages, typed: what client, host daemon and switch daemon say to each other.

Each message is a frozen record whose fields carry their limits in their annotations; one generic
pair, ``encode_message`` and ``decode_message``, goes between records and bytes. Validation is of
form alone: types, ranges, lengths. Whether rank 5 may join a job of 4 is for the rendezvous to say,
with an answer that helps, not for a decoder.

Rules (docs/protocol.md 10.2): unknown fields are ignored; an unknown type becomes
``UnknownMessage``, to be answered with an error; a missing field is a ``DecodeError`` that names it
unless it has a default. ``id`` is a serial number of the sender; a reply carries the id of its request.

Between client and host daemon: :mod:`inaproto.wire.messages.client`, and Regroup, Regrouped, Status,
StatusReply and Error.
Of rings that leave their switches for others: :mod:`inaproto.wire.messages.ina`. Between hosts that attach to
a collective library: :mod:`inaproto.wire.messages.collective`.
host daemon -> switch: Hello, Member, RankRefused, Ready, OpStarted, Calls, Broken, Halted, Left, Gone,
Regroup, Status, Ping, Pong.
switch -> host daemon: Welcome, Ring, Start, Halt, JobStatus, AskCalls, Closed, Failed, Regrouped,
StatusReply, Error, Ping, Pong.
Between switches: :mod:`inaproto.wire.messages.switch`. Of captures: :mod:`inaproto.wire.messages.capture`.
Between the controller and both daemons: :mod:`inaproto.wire.messages.controller`; about slots of switches
and trees of jobs: :mod:`inaproto.wire.messages.slots`, :mod:`inaproto.wire.messages.trees`. Of models that
are trained by push and pull: :mod:`inaproto.wire.messages.models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from inaproto.errors import JOB_ERRORS, DecodeError, JobError, LocalMisuse
from inaproto.wire import control
from inaproto.wire.control import ControlDecoder, ControlRecord, encode_bounded, encode_control
from inaproto.wire.messages import (
    capture,
    client,
    collective,
    controller,
    ina,
    model_connections,
    models,
    probe,
    sharing,
    slots,
    switch,
    trees,
)
from inaproto.wire.messages.array_frames import Frame, encode_frame
from inaproto.wire.messages.fields import (
    NO_PAYLOAD,
    FreeMap,
    Many,
    OneOf,
    Record,
    Refused,
    Words,
    arrays_behind,
    give_fields,
    is_bounded,
    take_fields,
)
from inaproto.wire.messages.ina import POOL_DEFAULT
from inaproto.wire.messages.infiniband import Gid, InfinibandField
from inaproto.wire.messages.record_code import giver_of, taker_of
from inaproto.wire.messages.types import (
    U16,
    U24,
    U32,
    U64,
    AskedField,
    Explanation,
    Flag,
    Ip,
    LongText,
    Mac,
    Mtu,
    Name,
    Names,
    Path,
    Positive16,
    RankGroups,
    Ranks,
    Secret,
    messages_of,
)
from inaproto.wire.messages.types import Message as Message  # noqa: PLC0414  who sends one finds it here
from inaproto.wire.messages.types import PathAsked as PathAsked  # noqa: PLC0414  beside RingPath

RingPath = Literal["switch", "chain", "overlay", "ring", "shared"]
"""How a ring's operations are summed: in the switches, along the chain of its hosts, up a tree of them
(:mod:`inaproto.core.host.engines.host_tree`), or by an ordinary ring all-reduce, which follows no plan.
``shared``: along the chain, or by an INA ring that stands beside it, in the switches; each operation by one
of them (:mod:`inaproto.core.host.engines.two_paths`)."""
PathField = Annotated[RingPath, OneOf(("switch", "chain", "overlay", "ring", "shared"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutAddress:
    """The queue pair that a host uses towards its successor in a ring."""

    mac: Mac
    ip: Ip
    qpn: U24
    psn: U24
    selective: Flag = False
    """Packets behind a gap may be told to it, and it tells of them, if the other end can do so, too."""
    repaired: Flag = False
    """A switch may say to it what has come there."""
    infiniband: InfinibandField | None = None
    """Where it is on InfiniBand; ``mac`` and ``ip`` are zeros then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntoAddress:
    """The queue pair that receives from a host's predecessor, and the receive buffer for results."""

    mac: Mac
    ip: Ip
    qpn: U24
    psn: U24
    va: U64
    rkey: U32
    slots: U32
    slot_bytes: U32
    selective: Flag = False
    """As in ``OutAddress``."""
    infiniband: InfinibandField | None = None
    """As in ``OutAddress``."""


OutField = Annotated[OutAddress, Record(OutAddress)]
IntoField = Annotated[IntoAddress, Record(IntoAddress)]
CALLS_MAX: Final = 16
"""All-reduces of a rank that are told of: more than are on their way at once."""
CallsField = Annotated[tuple[str, ...], Many(Words(8192), CALLS_MAX)]
IntoFields = Annotated[tuple[IntoAddress, ...], Many(Record(IntoAddress), 1 << 16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownMessage(Message):
    """A well-formed message of a type that this side does not know; only for receiving."""

    type: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Status(Message, type="status"):
    """Asks for a ``StatusReply``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReply(Message, type="status_reply"):
    body: Annotated[Mapping[str, Any], FreeMap()] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Error(Message, type="error"):
    """A request failed: ``of`` is its id; ``op_index`` names the operation where there is one."""

    code: Name
    message: Explanation
    of: U64 = 0
    op_index: U32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message, type="hello"):
    host: Name
    mac: Mac
    ip: Ip
    instance: Secret = ""
    """Drawn when the host daemon started: the ranks of another instance do not come back."""
    switch: Secret = ""
    """At which its NIC is; empty: at the one with which it speaks."""
    parks: Flag = False
    """It knows :mod:`inaproto.wire.messages.ina`: a ring of its ranks may move from tree to tree."""
    overlays: Flag = False
    """It knows the path ``overlay``."""
    probes: Flag = False
    """It knows :mod:`inaproto.wire.messages.probe`: it measures links where it is told to."""
    chooses_port: Flag = False
    """Its NIC sends from the UDP source port that a ring has (``Ring.udp_source_port``), and reaches the
    switch by an interface of that."""
    gid: Gid | None = None
    """GID of its port, where that is on InfiniBand; ``mac`` and ``ip`` are zeros then."""
    succeeds: Flag = False
    """Ranks of an instance before this one, which was the same host's, may come back through it."""


SWITCH_AWAY: Final = "switch_away"
"""Code of the answer to a hello: the host's switch is not there now; to be tried again."""
SWITCH_UNKNOWN: Final = "switch_unknown"
"""Code of the answer to a hello that can never be welcome: no such switch, or not this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Message, type="welcome"):
    boot_id: Name
    """Drawn when the switch started: a host sees by it that the switch has forgotten its rings."""
    port_path: Path
    mtu_max: Mtu
    infiniband: Flag = False
    """Hosts on InfiniBand may have jobs here, which their hosts sum."""
    path_probes: Flag = False
    """The switches answer path probes (:mod:`inaproto.wire.path_probe`), and the hosts of a job may have
    different MTUs (``Member.mtu_fits``)."""
    succeeds: Flag = False
    """Ranks may come back through another instance of their host daemon (``Hello.succeeds``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Message, type="member"):
    """A rank of a job is on this host, with these addresses and parameters.

    ``out`` and ``into`` are those of the host's link for the job: the same for all its ranks of the job.

    With ``progress`` it is no new process but one whose ring has ended, by no fault of its own: it goes on
    with its job where it was. ``progress`` counts the result messages that it has, since the job began.
    """

    job: Name
    rank: U16
    size: Positive16
    key: Secret = field(repr=False)
    pid: U32
    host: Name
    mtu: Mtu
    window_messages: Positive16
    message_packets: Positive16
    out: OutField
    into: IntoField
    progress: U64 | None = None
    left_after: U32 | None = None
    """All-reduces after which it left, if it has."""
    boot_id: Secret = ""
    """Boot of the switch of its last ring: the same switch knows the job, or that it has ended."""
    path: AskedField = "auto"
    """The same for all ranks, as ``exact_plan``."""
    exact_plan: Flag = True
    """Whether all paths follow the reduction plan, hence give the same bytes, on the path ``auto``. Without
    it the hosts sum as an ordinary ring where no chain of them can follow the plan."""
    elastic: Flag = False
    """Whether the others may go on without a rank that is lost (``Regroup``); the same for all ranks."""
    ina_out: OutField | None = None
    """Second link of the host, with ``ina_into``, for the INA ring of the path ``shared``."""
    ina_into: IntoField | None = None
    collective: Secret = ""
    """Which all-reduces a collective library of the host takes, for a job that would have its results
    (:mod:`inaproto.core.host.collective_terms`); empty: none."""
    mtu_fits: Flag = False
    """``mtu`` is the largest that its host can: a ring may have a smaller one (``Ring.mtu``), and then
    messages of as many bytes."""
    life: Secret = ""
    """Drawn by its process; empty: by one of an older release. The same rank, though its daemon may be
    another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRefused(Message, type="rank_refused"):
    """This host has not taken a process as that rank, and has asked for no seat for it."""

    job: Name
    rank: U16
    pid: U32
    reason: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring(Message, type="ring"):
    """All ranks are there: how this host connects. Sent once for each of its ranks, with the ``id`` of its
    ``Member`` and otherwise the same; it connects once.

    The members of a ring are hosts, ordered by the lowest of their ranks; a *position* is a host's index in
    that order (NetReduce section 3.4: the ranks of a host are summed there).

    Where the job goes on after a ring that ended, ``progress`` is that of the host which is ahead, the
    ``donor``: results before it are passed along the ring to who lacks them, from there on all sum anew.
    """

    job: Name
    ring_id: U32
    epoch: U32
    ring_key: U64 = field(repr=False)
    position: U16
    """Position of this host."""
    successor: IntoField
    predecessor: OutField
    peers: Names
    """Host names, by position."""
    ranks: RankGroups
    """The job's ranks at each position, ascending."""
    path: PathField = "switch"
    progress: U64 = 0
    donor: U16 = 0
    """A position."""
    plan: LongText = ""
    """Nested lists of positions, as JSON; empty: all positions in order, or the path ``ring``, which follows
    no plan."""
    ina_ring_id: U32 = 0
    """On the path ``shared``: the INA ring beside this one, of the same hosts, epoch and key; else 0."""
    ina_successor: IntoField | None = None
    ina_predecessor: OutField | None = None
    in_degree: U16 = 0
    """On the path ``overlay``: the bound of its tree (:mod:`inaproto.core.plan.host_tree`); else 0. There the
    successor, and the predecessor, is the parent's link to this host; that of the root is its own."""
    below: IntoFields = ()
    """On the path ``overlay``: the links of the hosts from which this one gathers, in that order."""
    udp_source_port: U16 = 0
    """From which the queue pairs of this ring send, acknowledgements included: by it the ring's packets come
    to the shard of the switch that has the ring. 0: whichever the NIC likes."""
    mtu: U16 = 0
    """Its MTU, where some host can do with another than it has said; 0: what all have said."""
    collective: Flag = False
    """All hosts have the same collective library, beside this ring; it counts in the first of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Message, type="ready"):
    """This host's queue pairs are connected and its receives posted; ``rank`` is any of its ranks."""

    job: Name
    rank: U16


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(Message, type="start"):
    """All hosts are ready."""

    job: Name
    ring_id: U32
    ina_ring_id: U32 = 0
    """The INA ring that stands beside it; 0: none does, though one may have been told of."""
    ina_parked: Flag = False
    """Whether the INA ring does not stand yet, but will."""
    ina_pool: Name = POOL_DEFAULT
    """Where the hosts have turns on it."""
    ina_epoch: U32 = 0
    """Epoch of the wish that it follows; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStarted(Message, type="op_started"):
    """This rank's operation makes no progress; who is not in it?"""

    job: Name
    rank: U16
    op_index: U32
    signature: U16
    nbytes: U64
    path: PathField | None = None
    """Path to which its host has bound the operation, where there are two; None: to none yet."""
    unlike: Name | None = None
    """A host that has bound it to the other one, as that has said itself: it can end on neither."""
    call: Explanation = ""
    """What the rank has called, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCalls(Message, type="ask_calls"):
    """The ranks of the job call different all-reduces, and it fails: what does each of yours call?"""

    job: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls(Message, type="calls"):
    """Answer to ``AskCalls``, for each rank of the host: its all-reduces that have not ended, in words."""

    job: Name
    rank: U16
    first: U32
    """Index of the first of them."""
    calls: CallsField


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus(Message, type="job_status"):
    """Answer to ``OpStarted``: ranks not seen in that operation, and what differs between ranks.

    Without ``op_index`` it is about ranks that have yet to join.
    """

    job: Name
    op_index: U32 | None = None
    waiting_for: Ranks
    mismatch: Explanation = ""
    refused: Explanation = ""
    """While ranks join: which were refused, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Message, type="broken"):
    """The ring cannot go on at this host, which is well, as its processes are: another ring may.

    ``rank`` is any of its ranks.
    """

    job: Name
    rank: U16
    ring_id: U32
    progress: U64
    """As in ``Member``."""
    reason: Explanation
    differs: Flag = False
    """Its ranks call another all-reduce than those of another host: no ring can go on with that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt(Message, type="halt"):
    """The ring has ended: take nothing more of it, make queue pairs for the next, and say where you are."""

    job: Name
    ring_id: U32
    path: PathField
    """Path of the next ring."""
    reason: Explanation
    plan: LongText = ""
    """As in ``Ring``, of the next one."""
    children: U16 = 0
    """On the path ``overlay``: from how many hosts this one gathers, a link for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted(Message, type="halted"):
    """Answer to ``Halt``: the host's progress (as in ``Member``), and its queue pairs for the next ring.

    ``rank`` is any of its ranks.
    """

    job: Name
    rank: U16
    ring_id: U32
    """Id of the ring that has ended."""
    progress: U64
    out: OutField
    into: IntoField
    ina_out: OutField | None = None
    """As in ``Member``, if the next ring is one of two."""
    ina_into: IntoField | None = None
    below: IntoFields = ()
    """On the path ``overlay``: links to the hosts from which this one gathers, each one queue pair for both
    ways; ``out`` and ``into`` are that to its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone(Message, type="gone"):
    job: Name
    rank: U16
    reason: Explanation
    ring_id: U32 = 0
    """Id of the last ring of a job that has failed, where the rank is one that could have regrouped; else
    0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup(Message, type="regroup"):
    """This rank goes on without those that are lost. The client does not know ``ring_id``, and says 0."""

    job: Name
    """Job that has failed because a rank was lost."""
    ring_id: U32
    """Its last ring, as this host knows it."""
    rank: U16
    operations_done: U32
    """All-reduces that it has the results of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped(Message, type="regrouped"):
    """Answer to ``Regroup``, the same for all that get one; who is not to go on gets an ``Error``."""

    job: Name
    """Job to join next, each with the index of its old rank in ``ranks``."""
    ranks: Ranks
    """Old numbers of those that go on, ascending."""
    agreed: U32
    """All-reduces whose results all of them have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(Message, type="left"):
    """This rank has all its results and left in good order.

    Its queue pairs stay until ``Closed``: the other ranks may still have to repeat what it must acknowledge.
    """

    job: Name
    rank: U16
    operations: U32
    """All-reduces that it took part in; a rank that waits for a later one waits in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed(Message, type="closed"):
    """All ranks have left: the ring is gone, its queue pairs can go."""

    job: Name
    ring_id: U32


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(Message, type="failed"):
    """The job cannot go on; ``code`` is that of a ``JobError``.

    ``ring_id`` is that of its ring; 0 where the switch knows of none. A rank that joins the job anew is not
    concerned by it: it has no ring yet, and its join is refused by an ``Error``.
    """

    job: Name
    ring_id: U32 = 0
    code: Name
    message: Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Message, type="ping"):
    """Asks for a ``Pong``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong(Message, type="pong"):
    """Answers a ``Ping``."""


_ROOMS: Final = (
    vars(client),
    globals(),
    vars(ina),
    vars(collective),
    vars(switch),
    vars(capture),
    vars(controller),
    vars(slots),
    vars(trees),
    vars(sharing),
    vars(model_connections),
    vars(models),
    vars(probe),
)
MESSAGES: Final[Mapping[str, type[Message]]] = {cls.TYPE: cls for cls in messages_of(*_ROOMS)}


def encode_message(message: Message, *, version: int = 0, newest: int = 0) -> bytes:
    """The framed bytes. Raises ``LocalMisuse`` for a field that no peer would take.

    ``version`` and ``newest`` as :func:`inaproto.wire.control.encode_control` has them.
    """
    if type(message) is not MESSAGES.get(message.TYPE):
        raise LocalMisuse(f"{type(message).__name__} is not a message to be sent")
    try:
        given = giver_of(type(message))(message)
    except Refused:
        given = _given_by_name(message)
    if is_bounded(type(message)):
        return encode_bounded(message.TYPE, version, newest, given)
    return encode_control(message.TYPE, given.pop("id"), version, newest, **given)


def _given_by_name(message: Message) -> dict[str, Any]:
    """Raises ``LocalMisuse``, which says what is wrong with which field."""
    try:
        return give_fields(message)
    except Refused as refused:
        raise LocalMisuse(f"control {message.TYPE}{refused}") from None


class Dialogue:
    """The messages of one connection, as bytes (docs/protocol.md 1.3).

    Each side says once which version it speaks at most, and both speak the newest that they have in common.
    """

    def __init__(self) -> None:
        self._decoder = ControlDecoder()
        self._has_said = False

    @property
    def version(self) -> int:
        """What this side speaks now."""
        return self._decoder.version

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a message that is not complete yet."""
        return self._decoder.buffered_bytes

    def encode(self, message: Message) -> bytes:
        """The framed bytes. Raises ``LocalMisuse`` for a field that no peer would take."""
        newest = 0 if self._has_said else control.NEWEST
        data = encode_message(message, version=self._decoder.version, newest=newest)
        self._has_said = True
        return data

    def decode(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now, as they are asked for. Raises ``DecodeError``."""
        return map(decode_message, self._decoder.feed(data))

    def finish(self) -> None:
        """The stream has ended. Raises ``DecodeError`` if it ended inside a message."""
        self._decoder.finish()


def decode_message(record: ControlRecord, payload: memoryview = NO_PAYLOAD) -> Message:
    """The typed message in a record that ``ControlDecoder`` or ``decode_control`` gave.

    ``payload`` is what came behind it, which it then owns.
    """
    kind = record["type"]
    cls = MESSAGES.get(kind)
    if cls is None:
        return UnknownMessage(id=record["id"], type=kind)
    try:
        taken: Message = taker_of(cls)(record, payload)
    except Refused:
        return _taken_by_name(cls, record, payload)
    return taken


def _taken_by_name(cls: type[Message], record: ControlRecord, payload: memoryview) -> Message:
    """Raises ``DecodeError``, which says what is wrong with which field."""
    try:
        return cls(**take_fields(cls, record, payload))
    except Refused as refused:
        raise DecodeError(f"control {record['type']}", str(refused).lstrip(".")) from None


def encode_with_arrays(message: Message) -> list[memoryview]:
    """The parts of a frame. Its arrays are not copied: they must not change before it is sent."""
    return encode_frame(encode_message(message), arrays_behind(message))


def decode_with_arrays(frame: Frame) -> Message:
    """The message with its arrays, of bytes. Raises ``DecodeError``, also for what belongs to no array."""
    message = decode_message(frame.record, frame.payload)
    if frame.payload.nbytes and not arrays_behind(message):
        raise DecodeError("frame", f"{frame.payload.nbytes} bytes behind {message.TYPE!r}, and no array")
    return message


def error_message(error: JobError, *, of: int = 0, op_index: int | None = None) -> Error:
    """The reply that carries ``error`` to the request ``of``."""
    return Error(id=of, code=error.code, message=str(error), of=of, op_index=op_index)


def failed_message(job: str, error: JobError, *, ring_id: int = 0, id: int = 0) -> Failed:
    return Failed(id=id, job=job, ring_id=ring_id, code=error.code, message=str(error))


def job_error(message: Error | Failed) -> JobError:
    """The exception that the peer meant; a code unknown to this side becomes a plain ``JobError``."""
    kind = JOB_ERRORS.get(message.code)
    if kind is None:
        return JobError(f"{message.code}: {message.message}")
    return kind(message.message)
