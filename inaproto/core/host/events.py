"""What happens to a host in a job, and what the host orders (:mod:`inaproto.core.host.job`).

Events are facts, of training processes, of the NIC, of the switch and of the clock; actions are orders to
whoever has processes, memory, NIC and switch. Orders of engines (:mod:`inaproto.core.host.operations`) are
passed on as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inaproto.core.host import collective
from inaproto.core.host.engines.host_tree import Fold, PostDown
from inaproto.core.host.engines.hosts import Combine, PostSlot
from inaproto.core.host.engines.in_network import Result
from inaproto.core.host.engines.two_paths import AskBinding, Binding, Bound, Drained, OnPath, Wait
from inaproto.core.host.operation_queue import KeptResult
from inaproto.core.host.operations import (
    BoundPath,
    Filled,
    Operation,
    OperationFailed,
    Overdue,
    PostMessage,
    RingBroken,
    Stalled,
    TakeResult,
    Woke,
)
from inaproto.core.rdma.verbs import Completion
from inaproto.errors import Blame, JobError
from inaproto.units import OpIndex
from inaproto.wire.control_messages import (
    AskCalls,
    Closed,
    Halt,
    IntoAddress,
    JobStatus,
    Message,
    OutAddress,
    Ring,
    Start,
)
from inaproto.wire.messages.client import DonePath, Join
from inaproto.wire.messages.ina import InaPark, InaStands


@dataclass(frozen=True, slots=True)
class LinkShape:
    """What a link is to have; ``children`` of one in a tree: from how many hosts it gathers."""

    slots: int
    slot_bytes: int
    children: int | None = None


@dataclass(frozen=True, slots=True)
class LinkAddresses:
    """Where peers reach a link."""

    out: OutAddress
    into: IntoAddress
    below: tuple[IntoAddress, ...] = ()


# --- what processes do


@dataclass(frozen=True, slots=True)
class RankJoined:
    """A process asks to join; ``id`` is that of the request by which the switch is asked."""

    join: Join
    id: int


class RankCalled(NamedTuple):
    """A rank calls its next all-reduce."""

    number: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class RankLeft:
    """A process says that it is finished."""

    number: int


@dataclass(frozen=True, slots=True)
class RankGone:
    """A process is lost."""

    number: int
    reason: str


class SummedLocally(NamedTuple):
    """All ranks here have the sum that ``SumLocally`` ordered."""

    op_index: OpIndex


# --- what becomes of links


@dataclass(frozen=True, slots=True)
class LinksOpened:
    base: LinkAddresses
    ina: LinkAddresses | None = None


@dataclass(frozen=True, slots=True)
class LinksRefused:
    """There is no room for the links that were ordered."""

    why: str


@dataclass(frozen=True, slots=True)
class LinkUnusable:
    """A link cannot be connected to those addresses at all, or its path does not carry the packets."""

    why: str


@dataclass(frozen=True, slots=True)
class LinkReady:
    """What neighbours send on that link from now on arrives."""

    path: BoundPath


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The neighbours on that link could not be reached."""

    path: BoundPath
    why: str


class MessageArrived(NamedTuple):
    """A message is here whole, in the slot of ``imm``, by the receive ``wr_id``; ``edge``: in a tree, from
    there."""

    path: BoundPath
    edge: int
    wr_id: int
    imm: int
    nbytes: int
    header: bytes
    """Its first 40 bytes, fewer if it has fewer."""


class MessageAcknowledged(NamedTuple):
    """The neighbour has a message, and its slots are free."""

    path: BoundPath
    edge: int
    msg_id: int


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """A work request of a present link did not succeed; ``at_out``: towards the successor."""

    path: BoundPath
    edge: int
    at_out: bool
    completion: Completion


@dataclass(frozen=True, slots=True)
class NicRefused:
    """The NIC did not do what was ordered, for a fault of the fabric."""

    why: str


@dataclass(frozen=True, slots=True)
class Faulted:
    """Orders could not be performed, for a fault of this program: this job must not go on, others may."""

    why: str


# --- what the switch says, or is


@dataclass(frozen=True, slots=True)
class SwitchLost:
    """The switch, the NIC or the way there is lost. With ``error`` jobs fail that cannot wait."""

    error: JobError


@dataclass(frozen=True, slots=True)
class SwitchBack:
    """The host has a switch again; ``ids`` are for the requests that announce its ranks to it, in order."""

    ids: tuple[int, ...]
    mtu: int = 0
    """Largest of its path to this switch, where it may be another; 0: as before."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A rank is taken into a ring, by the switch of that boot."""

    ring: Ring
    boot_id: str


@dataclass(frozen=True, slots=True)
class JoinDenied:
    """The switch does not take the rank of request ``id``."""

    id: int
    error: JobError


@dataclass(frozen=True, slots=True)
class Said:
    """The switch says that, of the present ring or of the job."""

    message: Start | Halt | InaPark | InaStands | JobStatus | AskCalls | Closed


@dataclass(frozen=True, slots=True)
class JobFailed:
    """The job has failed, as the switch says."""

    error: JobError


@dataclass(frozen=True, slots=True)
class JobUnknown:
    """The switch says that the job failed before these ranks were announced to it: it may hold them for
    members."""

    error: JobError


@dataclass(frozen=True, slots=True)
class JoiningFailed:
    """A ring failed that some ranks here were to be in."""

    ring_id: int
    error: JobError


# --- what turns in the switches do


@dataclass(frozen=True, slots=True)
class TurnsParked:
    """The ring through the switches may leave them, as ``ParkTurns`` asked."""

    message: InaPark


class BindingSaid(NamedTuple):
    """Answers ``AskBinding``."""

    op_index: OpIndex
    binding: Binding | Wait


class BindingChanged(NamedTuple):
    """Who was told to wait for a binding may ask again."""


@dataclass(frozen=True, slots=True)
class BindingDiffers:
    """The operation goes by the base ring at ``host``, and through the switches here: all stalls."""

    op_index: OpIndex
    host: str


class OfCollective(NamedTuple):
    """Something has happened with the collective of the job."""

    event: collective.FromShell


@dataclass(frozen=True, slots=True)
class Stopped:
    """The host daemon ends: the switch is to know; processes are told by others."""

    reason: str


CompletionEvent = MessageArrived | MessageAcknowledged | ConnectionFailed
"""What the end of a work request is to a host."""


class Exchanged(NamedTuple):
    """Several of one connection: messages are acknowledged, and others are here, each in their order."""

    path: BoundPath
    edge: int
    acknowledged: tuple[int, ...]
    receives: tuple[int, ...]
    """``wr_id`` of those by which messages came."""
    results: tuple[Result, ...]
    """``imm``, ``nbytes`` and ``header`` of each, as ``MessageArrived`` has them."""


CompletionEvents = CompletionEvent | Exchanged
"""What the end of one work request, or of several, is to a host."""


class Completed(NamedTuple):
    """Several work requests have ended: the same as each for itself, one after the other, in fewer steps."""

    events: tuple[CompletionEvents, ...]


HostEvent = (
    CompletionEvents
    | Completed
    | RankCalled
    | Filled
    | SummedLocally
    | Woke
    | BindingSaid
    | BindingChanged
    | Said
    | Answered
    | RankJoined
    | RankLeft
    | RankGone
    | LinksOpened
    | LinksRefused
    | LinkUnusable
    | LinkReady
    | LinkLost
    | NicRefused
    | Faulted
    | SwitchLost
    | SwitchBack
    | JoinDenied
    | JobFailed
    | JobUnknown
    | JoiningFailed
    | TurnsParked
    | BindingDiffers
    | OfCollective
    | Stopped
)

# --- what the host orders


class Tell(NamedTuple):
    """Say that to the switch."""

    message: Message


@dataclass(frozen=True, slots=True)
class OpenLinks:
    """Make links, in place of those that are closed; answered by ``LinksOpened`` or ``LinksRefused``."""

    base: LinkShape
    ina: LinkShape | None = None
    registers: bool = False
    """The NIC is another one, and has to know the memory of the ranks, too."""


@dataclass(frozen=True, slots=True)
class ConnectLink:
    """Connect a link of a ring; answered by ``LinkReady``, or by what kept it from that."""

    path: BoundPath
    successor: IntoAddress
    predecessor: OutAddress
    udp_source_port: int = 0
    """From which its queue pairs send; 0: whichever the NIC likes."""


@dataclass(frozen=True, slots=True)
class ConnectTree:
    """Connect the link, which is of a tree; ``parent`` is None at the root."""

    parent: IntoAddress | None
    children: tuple[IntoAddress, ...]


@dataclass(frozen=True, slots=True)
class CloseLinks:
    """Give all links back."""

    recovers: bool = False
    """Its ring has ended in the middle of the job, which goes on by another."""


@dataclass(frozen=True, slots=True)
class CloseIna:
    """Give the link of the ring through the switches back."""


class PostReceive(NamedTuple):
    """Post that receive again: its message is dealt with."""

    path: BoundPath
    edge: int
    wr_id: int


class PostReceives(NamedTuple):
    """Post those receives of a connection again: their messages are dealt with."""

    path: BoundPath
    edge: int
    wr_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeepResults:
    """The ring ends, the links go: keep these results (``KeptResults.keep``)."""

    results: tuple[KeptResult, ...]
    since: int
    ina_ring_id: int | None
    """The ring whose results lie in the other link's slots."""


@dataclass(frozen=True, slots=True)
class ForgetNic:
    """The NIC is lost, and with it what it knows of the memory of the ranks."""


class SumLocally(NamedTuple):
    """Nobody else is in this all-reduce: add the tensors of the ranks here, slice by slice."""

    operation: Operation


class CountVotes(NamedTuple):
    """The vote on that operation has its result: read it, and say what it is (``collective.Counted``)."""

    op_index: OpIndex


# --- what processes are told


@dataclass(frozen=True, slots=True)
class RanksWait:
    """Ranks that all ranks here wait for were refused: which, and why."""

    refused: str


@dataclass(frozen=True, slots=True)
class RanksBegun:
    """The first ring runs: all ranks may call all-reduces."""

    ring_id: int


class AllReduceDone(NamedTuple):
    """The tensors of all ranks here hold the result."""

    op_index: OpIndex
    path: DonePath


@dataclass(frozen=True, slots=True)
class RankFailed:
    """The job of the rank has failed, or does not take it. To one that had left that is its end."""

    number: int
    error: JobError


@dataclass(frozen=True, slots=True)
class RankClosed:
    """The job of a rank that had left is over."""

    number: int


@dataclass(frozen=True, slots=True)
class RankHasLeft:
    """A rank of a job that has no other host has left: others here may wait to meet it."""

    number: int


@dataclass(frozen=True, slots=True)
class RankEnded:
    """Give the memory of a rank back whose process is lost."""

    number: int


@dataclass(frozen=True, slots=True)
class AnnounceAgain:
    """The rank is to join anew, by the next switch."""

    number: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """The ring was made without this rank: it is to join anew, beside those that are in it."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is left here: give the memory of all ranks back."""


# --- what turns in the switches are told


@dataclass(frozen=True, slots=True)
class BeginTurns:
    """The ring through the switches stands, as the switch says."""

    message: InaStands
    hosts: int
    next_operation: OpIndex


@dataclass(frozen=True, slots=True)
class EndTurns:
    """The ring through the switches has ended."""


@dataclass(frozen=True, slots=True)
class ParkTurns:
    """It is to leave the switches; to be answered, some time, by ``TurnsParked``."""

    message: InaPark


# --- what is worth knowing


class Log(NamedTuple):
    """A warning, for people."""

    text: str


class Noted(NamedTuple):
    """Something rare has happened, which tests want to see happen."""

    mark: str


ShellAction = (
    AllReduceDone
    | Tell
    | ForgetNic
    | RanksBegun
    | RanksWait
    | RankFailed
    | RankClosed
    | RankHasLeft
    | RankEnded
    | AnnounceAgain
    | LetGo
    | Ended
    | BeginTurns
    | EndTurns
    | ParkTurns
    | AskBinding
    | Bound
    | Drained
    | OperationFailed
    | Stalled
    | Overdue
    | Blame
    | RingBroken
    | collective.FellBack
    | collective.Stands
    | collective.Attach
    | collective.Release
    | Log
    | Noted
)
"""For whoever has processes, switch and turns."""

HostAction = (
    ShellAction
    | PostMessage
    | PostSlot
    | PostDown
    | Fold
    | Combine
    | TakeResult
    | OnPath
    | PostReceive
    | PostReceives
    | OpenLinks
    | ConnectLink
    | ConnectTree
    | CloseLinks
    | CloseIna
    | KeepResults
    | SumLocally
    | collective.Try
    | collective.Vote
    | collective.TakeTried
    | CountVotes
)
"""``OperationFailed``, ``Stalled``, ``Overdue`` and ``RingBroken`` are for information: what follows of them
is ordered beside them. Orders of engines are for the link of the last ``OnPath``, first the base ring's."""
