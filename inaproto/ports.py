"""What the protocol needs from the world: the interfaces that adapters implement.

``FramePort`` moves Ethernet frames, ``Link`` is an interface to attach one to, ``Nic`` is a RoCE NIC seen
through verbs, ``Collective`` is a library that does whole all-reduces, ``ByteStream`` is a control
connection, ``RandomBits`` is where daemons draw what nobody may guess. Adapters announce themselves under
the entry point group ``inaproto.adapters``; a missing capability is :class:`~inaproto.errors.Unsupported`
when the adapter is opened, never in mid-run. One contract suite (``tests/contract``) runs against every
adapter of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from inaproto.core.rdma.verbs import Completion as Completion  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.core.rdma.verbs import CompletionKind as CompletionKind  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.core.rdma.verbs import MemoryRegion as MemoryRegion  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.core.rdma.verbs import QpAddress as QpAddress  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.core.rdma.verbs import QpAttributes as QpAttributes  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.core.rdma.verbs import Segment as Segment  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.core.rdma.verbs import Status as Status  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.core.rdma.verbs import Verbs as Verbs  # noqa: PLC0414  whoever has a NIC finds it here
from inaproto.errors import Unsupported
from inaproto.units import Frames
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.infiniband import InfinibandPort


class PortClosed(Exception):
    """The far side of a frame port is gone, or sent what no frame can be; ``reason`` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class FramePortCapabilities:
    name: str
    frame_bytes_max: int
    lossless: bool
    """Frames that ``send_nowait`` accepted arrive, in order, unless the port closes."""
    way: str = ""
    """How frames pass where there are several ways, with the reason if it is not the quickest; see ``status``
    of the daemons."""
    links: int = 1
    """Interfaces among which it chooses for each flow; a path probe goes by the one that it names."""


@dataclass(slots=True)
class PortCounters:
    """Monotonic counters of one frame port; ``drops`` is keyed by the name of the rule that dropped."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    drops: dict[str, int] = field(default_factory=dict)

    def drop(self, rule: str, frames: int = 1) -> None:
        self.drops[rule] = self.drops.get(rule, 0) + frames


class FramePort(Protocol):
    """Batches of Ethernet frames in and out."""

    @property
    def capabilities(self) -> FramePortCapabilities: ...
    @property
    def counters(self) -> PortCounters: ...

    async def receive(self) -> Sequence[Frames]:
        """Wait for frames; returns at least one block, in arrival order.

        The blocks are valid until the next call. Raises :class:`PortClosed`.
        """
        ...

    def send_nowait(self, frames: Frames) -> int:
        """Queue frames, copying them; returns how many were accepted.

        The rest did not fit the bounded output queue and are counted as drops under
        ``"output queue full"``. Raises :class:`PortClosed`.
        """
        ...

    async def run(self) -> None:
        """Move queued output until the port closes; run it in a nursery as long as the port is used.

        Returns (does not raise) when the port closes: ``receive`` tells the owner why.
        """
        ...

    async def aclose(self) -> None: ...


class PortListener(Protocol):
    """Where hosts plug in. ``accept`` raises ``PortClosed`` at its end, ``FabricError`` for another try."""

    async def accept(self) -> FramePort: ...
    async def aclose(self) -> None: ...


class FramePorts(Protocol):
    """What an adapter of the kind ``frame port`` opens: a switch listens at a path, its hosts connect."""

    async def listen(self, path: str | Path) -> PortListener:
        """Raises ``ConfigError`` with the remedy when it cannot be listened there."""
        ...

    async def connect(self, path: str | Path, *, wait_ns: int = ...) -> FramePort:
        """``wait_ns``: for how long nobody may listen there yet. Raises ``FabricError``, ``PortClosed`` or
        ``OSError``."""
        ...


@runtime_checkable
class SendsBlocks(Protocol):
    """A frame port that sends several blocks at once, for less than they cost one by one."""

    def send_blocks_nowait(self, blocks: Sequence[Frames]) -> int:
        """As ``FramePort.send_nowait`` with each, in order; returns how many frames were not accepted."""
        ...


@runtime_checkable
class RingsLater(SendsBlocks, Protocol):
    """A frame port that wakes a far side that sleeps, and can do so later.

    Whoever sends on several such ports sends on all of them first. A far side that runs at once, on the
    same processor, is in the way of the rest.
    """

    def send_blocks_quietly(self, blocks: Sequence[Frames]) -> int:
        """As ``send_blocks_nowait``, but the far side may sleep on until ``ring``, which must follow."""
        ...

    def ring(self) -> None:
        """Wake the far side if it sleeps over what was sent; never raises."""
        ...


@runtime_checkable
class TakesNow(Protocol):
    """A frame port that holds what comes until it is asked: whoever has several may look at all in turn."""

    def take_nowait(self) -> Sequence[Frames]:
        """What is there, as ``FramePort.receive`` gives it; maybe nothing.

        The blocks are valid until the next call of either. Nobody may wait in ``receive`` meanwhile. Raises
        :class:`PortClosed`.
        """
        ...


@runtime_checkable
class LendsMemory(FramePort, Protocol):
    """A frame port with memory in which frames can be built: what it sends from there is not copied."""

    def lent_memory(self) -> Frames:
        """uint8, one dimension; to be asked for once some of it was lent."""
        ...

    def lend(self, nbytes: int) -> int:
        """Where there is memory for frames that this port sends before ``settle``; -1: nowhere."""
        ...

    def settle(self) -> None:
        """What was lent and is to be sent has been."""
        ...


@dataclass(frozen=True, slots=True)
class Steering:
    """Which frames a port takes, where several processes have one on the same interface: of RoCE packets
    with a UDP source port from ``first`` to ``last`` all, or all other frames."""

    first: int
    last: int
    takes: bool


class Link(Protocol):
    """Where a frame port can be attached: a network interface of this machine, up or down, there or not."""

    @property
    def name(self) -> str:
        """The adapter and the interface, as in ``packet:eth1``."""
        ...

    def require(self) -> None:
        """At start-up. Raises ``ConfigError`` or ``Unsupported`` with the remedy when it cannot be used at
        all.

        An interface that is down is no reason: it may come up.
        """
        ...

    def require_stranger(self, mac: bytes, ip: bytes) -> None:
        """Raises ``ConfigError`` if the machine's own network stack has one of these addresses: it would
        answer for a NIC that uses them on this link."""
        ...

    async def attach(self) -> FramePort:
        """A port, one at a time. Raises a retryable ``FabricError`` while there can be none."""
        ...

    async def wait_usable(self) -> None:
        """Wait until ``attach`` is worth trying, as long as that takes."""
        ...


@dataclass(frozen=True, slots=True)
class NicCapabilities:
    name: str
    mac: bytes
    ip: bytes
    mtu_max: int
    qps_max: int
    retry_forever: bool
    """``retry_count=7`` means for ever (Soft-RoCE, softnic) rather than seven times."""
    cpus: str = ""
    """Those near it, as the kernel writes them; empty: not known, or all."""
    way: str = ""
    """That of its port; see ``FramePortCapabilities``."""
    infiniband: InfinibandPort | None = None
    """Where its port is on InfiniBand; ``mac`` and ``ip`` are zeros then."""


class Nic(Verbs, Protocol):
    """A RoCEv2 or InfiniBand NIC: reliable-connection queue pairs and RDMA WRITE WITH IMMEDIATE.

    Calls are synchronous and never block: outcomes come as completions.
    """

    @property
    def capabilities(self) -> NicCapabilities: ...
    def post_write_imm(
        self,
        qpn: int,
        wr_id: int,
        segments: Sequence[Segment],
        *,
        remote_va: int,
        rkey: int,
        imm: int,
    ) -> None: ...
    def poll(self) -> list[Completion]:
        """Take all completions that are there now; never waits."""
        ...

    async def wait_connected(self, qpn: int) -> None:
        """Wait until what the peer sends to the queue pair is taken, after ``connect_qp``: tell it then.

        Bounded while the NIC runs: raises a ``FabricError`` that names the peer where it cannot be
        connected, or was destroyed meanwhile, and :class:`PortClosed` when the NIC lost its link.
        """
        ...

    async def wait_completions(self) -> list[Completion]:
        """Wait for at least one completion. Raises :class:`PortClosed` when the NIC lost its link."""
        ...

    async def run(self) -> None:
        """Serve the NIC until it closes; run it in a nursery as long as the NIC is used."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class TellsCompletions(Protocol):
    """A NIC that can tell of completions where it found them, with no task between."""

    def tell_completions(self, to: Callable[[Sequence[Completion]], None]) -> None:
        """From now on ``to`` is called with what a receive has completed; it may post, and does not wait.

        What is completed otherwise is there for ``wait_completions`` and ``poll``, as before.
        """
        ...


@runtime_checkable
class BatchesRequests(Protocol):
    """A NIC to which several work requests at once are cheaper than each for itself."""

    def begin_batch(self) -> None:
        """What is posted from now on may wait for the end of the batch; batches may lie in each other."""
        ...

    def end_batch(self) -> None:
        """Post it. What the device refuses now ends as a request that it has taken and could not do."""
        ...


@runtime_checkable
class ProbesPath(Protocol):
    """A NIC that finds out which packets come through to its switch, and back."""

    async def probe_path(self, mtus: Sequence[int]) -> int:
        """The largest of these path MTUs whose packets came back; 0: none did.

        Bounded in time. The NIC is to run meanwhile. Raises ``Unsupported`` where this NIC can ask nothing as
        long as it is open, and a retryable ``FabricError`` where it cannot now.
        """
        ...


@runtime_checkable
class RegistersInParts(Protocol):
    """A NIC for which it takes long to register much memory."""

    async def register_memory_in_parts(self, buffer: memoryview) -> MemoryRegion:
        """As ``register_memory`` does, but others have their turns meanwhile.

        Nothing is registered where it is cancelled, or raises: :class:`PortClosed` when the NIC is closed.
        """
        ...


@dataclass(frozen=True, slots=True)
class CollectiveCapabilities:
    """What a library of whole all-reduces does, and where: equal on all hosts that can use it together."""

    name: str
    dtypes: frozenset[Dtype]
    ops: frozenset[Op]
    operation_bytes_max: int
    """Most bytes of one all-reduce."""
    exact_plan: bool = False
    """Its sums are those of the job's reduction plan, bit for bit; else they are equal on all hosts, in an
    order of its own."""


class OutOfBand(Protocol):
    """The hosts of a job to each other, beside the fabric, with small messages: for one attachment.

    All hosts call it equally often and in the same order. Gather, broadcast and barrier are this too.
    """

    @property
    def position(self) -> int:
        """Of this host, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many hosts there are, one process of each."""
        ...

    async def all_gather(self, data: bytes) -> Sequence[bytes]:
        """What each host has said in this round, by position. Raises a ``FabricError`` when the attachment
        is given up: by another host, or because one did not come in time."""
        ...


class Attachment(Protocol):
    """A host's place in one attachment; the memory that it is told of is the caller's."""

    async def register(self, buffer: memoryview) -> int:
        """A key for memory to be read and written, until ``release``. Raises ``FabricError``."""
        ...

    async def all_reduce(self, source: int, into: int, nbytes: int, dtype: Dtype, op: Op) -> None:
        """The first ``nbytes`` at ``source`` of all hosts, reduced, are at ``into`` when this returns.

        All hosts call the same in the same order. Raises ``FabricError``: retryable where this operation
        alone failed, and the next may do; else the attachment is lost. A host does not know whether the
        others have the result. Where it is cancelled, or the attachment is lost, ``into`` may be written
        until ``release`` has returned, and ``source`` is only read.
        """
        ...

    async def release(self) -> None:
        """Leave: nothing touches the memory any more when this returns. All hosts do it, in any state; it
        never raises and is bounded."""
        ...


class Collective(Protocol):
    """A library that does a whole all-reduce among the hosts of a job (SHARP): joined, and left, by all."""

    @property
    def capabilities(self) -> CollectiveCapabilities: ...

    async def attach(self, job: str, attempt: int, others: OutOfBand) -> Attachment:
        """Join the other hosts of ``job``; ``attempt`` is the same at all hosts, and was never used before.

        Raises a ``FabricError``, retryable where a later attempt may do (busy, no resources). Some hosts may
        get an attachment where others get an error: the caller asks them, and releases it.
        """
        ...

    async def aclose(self) -> None: ...


class ByteStream(Protocol):
    """A control connection: bytes in both directions, in order, with file descriptors beside them.

    It behaves as a connected UNIX stream socket that does not block: ``send_nowait`` and
    ``receive_nowait`` raise ``BlockingIOError`` when nothing can be moved now, and another ``OSError``
    when the connection has failed. Both kinds of wait raise ``trio.ClosedResourceError`` when the stream
    is closed on this side.
    """

    def receive_nowait(self) -> tuple[bytes, Sequence[int]]:
        """Some bytes and the descriptors that came with them, which the caller closes.

        No bytes: the far side has closed, and all that it sent has been received. Raises ``DecodeError``
        when more descriptors came at once than the stream takes.
        """
        ...

    def send_nowait(self, data: memoryview, descriptors: Sequence[int] = ()) -> int:
        """How many bytes were taken, at least one; the descriptors, still the caller's, go with the first."""
        ...

    async def wait_receivable(self) -> None: ...
    async def wait_sendable(self) -> None: ...

    def fileno(self) -> int:
        """For ``poll``, outside an event loop. Raises ``OSError`` where no kernel object is behind it."""
        ...

    def peer_pid(self) -> int:
        """The process on the far side, as the kernel vouches for it; 0 if it cannot."""
        ...

    def peer_is_gone(self) -> bool:
        """Whether the far side has closed, even if bytes of it are still to be received."""
        ...

    def close(self) -> None:
        """Close at once; whoever waits is woken."""
        ...


@runtime_checkable
class BoundsBuffers(Protocol):
    """A stream whose transport keeps bytes of its own, and can be told to keep few."""

    def bound_buffers(self, nbytes: int) -> None:
        """From now on about so many at most are on their way to this side, or unsent on it."""
        ...


class StreamListener(Protocol):
    """Where control connections come in."""

    async def accept(self) -> ByteStream:
        """Raises ``PortClosed`` when the listener was closed, a retryable ``FabricError`` when there is no
        room for another connection now."""
        ...

    def close(self) -> None:
        """Stop listening and free the path; connections that were accepted go on."""
        ...


class StreamNetwork(Protocol):
    """Where daemons and processes meet, by path. The production one is UNIX sockets."""

    async def listen(self, path: Path, what: str) -> StreamListener:
        """``what`` names the socket in messages. Raises ``ConfigError`` when it cannot be made."""
        ...

    async def prepare(self, directory: Path, what: str) -> None:
        """Make the directory of a daemon's sockets where it is missing. Raises ``ConfigError``."""
        ...

    def dial(self, path: Path) -> ByteStream:
        """Raises the ``OSError`` of the attempt: the caller knows whether to try again and what to say."""
        ...


Dial = Callable[[Path], ByteStream]
"""``StreamNetwork.dial``: all that a training process needs of the network."""

RandomBits = Callable[[int], int]
"""``RandomBits(n)`` draws an integer of ``n`` bits; ``secrets.randbits`` but in deterministic runs."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What an entry point of the group ``inaproto.adapters`` names."""

    name: str
    kinds: frozenset[str]
    open: Callable[..., Any]


ADAPTER_GROUP = "inaproto.adapters"


def load_adapter(name: str, *kinds: str) -> Adapter:
    """The adapter registered as ``name``. Raises ``Unsupported`` with the names that exist, of any of
    ``kinds`` if some are given."""
    found = {entry.name: entry for entry in entry_points(group=ADAPTER_GROUP)}
    if name not in found:
        fit = [other for other in sorted(found) if not kinds or _is_of(found[other], kinds)]
        raise Unsupported(f"adapter {name!r}", f"installed adapters are {', '.join(fit)}")
    adapter = found[name].load()
    if not isinstance(adapter, Adapter):
        raise Unsupported(f"adapter {name!r}", f"its entry point gives a {type(adapter).__name__}")
    return adapter


def _is_of(entry: EntryPoint, kinds: Collection[str]) -> bool:
    """What cannot be loaded is left out: somebody else's package, or one without its libraries."""
    try:
        adapter = entry.load()
    except Exception:  # noqa: BLE001  it is not the one that was asked for
        return False
    return isinstance(adapter, Adapter) and not adapter.kinds.isdisjoint(kinds)
