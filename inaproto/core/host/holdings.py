"""How what a host in a job orders is done with memory and NIC: links, results that are kept, sums.

Daemons and simulated hosts share this module; each hands in its NIC, its memory and where tensors are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, assert_never

from inaproto.core.host.apart import Apart, WithVotes
from inaproto.core.host.engines.host_tree import Fold, OverlayEngine, PostDown
from inaproto.core.host.engines.hosts import Combine, PostSlot
from inaproto.core.host.engines.in_network import Result
from inaproto.core.host.engines.two_paths import OnPath
from inaproto.core.host.events import (
    CloseIna,
    CloseLinks,
    CompletionEvent,
    CompletionEvents,
    ConnectionFailed,
    ConnectLink,
    ConnectTree,
    Exchanged,
    KeepResults,
    LinkAddresses,
    LinkShape,
    LinksOpened,
    MessageAcknowledged,
    MessageArrived,
    OpenLinks,
    PostReceive,
    PostReceives,
    SumLocally,
)
from inaproto.core.host.job import HostJob
from inaproto.core.host.journal import Journal, Past
from inaproto.core.host.link import Allocate, Link, LinkNic, RingLink, TreeLink
from inaproto.core.host.local_reduction import SLICE_BYTES, Slice, SlicedReduction
from inaproto.core.host.operations import BASE, INA, BoundPath, Operation, PostMessage, TakeResult
from inaproto.core.host.performer import KeptResults, RingOrders, Tensors
from inaproto.core.host.tree_performer import OverlayOrders
from inaproto.core.rdma.verbs import Completion, CompletionKind, QpAttributes, Segment, Status
from inaproto.errors import InvariantBroken, JobError, LocalMisuse

LinkOrder = ConnectLink | ConnectTree | CloseLinks | CloseIna | KeepResults
_SUCCESS: Final = Status.SUCCESS  # a member of an enumeration takes longer to look up than a constant
_SEND: Final = CompletionKind.SEND
MemoryOrder = (
    OnPath | PostMessage | PostSlot | PostDown | Fold | Combine | TakeResult | PostReceive | PostReceives
)


@dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    """To a neighbour, or to both in a ring."""

    path: BoundPath
    link: Link
    edge: int

    def failed(self, completion: Completion) -> ConnectionFailed:
        """A work request of it did not succeed."""
        return ConnectionFailed(self.path, self.edge, completion.qpn == self.link.qpns[0], completion)


class Holdings:
    """What a ``job`` holds of memory and NIC; ``tensors`` are to be set before the first order that is about
    them."""

    def __init__(
        self,
        job: HostJob,
        *,
        allocate: Allocate,
        first_psn: Callable[[], int],
        attributes: QpAttributes,
        slice_bytes: int = SLICE_BYTES,
        journal: Journal | None = None,
    ) -> None:
        """``journal``: what a successor of this daemon is to know is written there."""
        self._job = job
        self.journal = journal
        self._allocate = allocate
        self._first_psn = first_psn
        self._attributes = attributes
        self._slice_bytes = slice_bytes
        self._kept = KeptResults(journal)
        self._orders: dict[BoundPath, RingOrders[Segment]] = {}
        self._acting: RingOrders[Segment] | None = None
        self.links: dict[BoundPath, Link] = {}
        """Those that it holds: the base ring's first."""
        self._by_qpn: dict[int, _Connection] = {}
        self.tensors: Tensors[Segment] | None = None
        self.apart = Apart()
        """What a collective library has of it."""
        self._votes: WithVotes[Segment] | None = None
        self.sums: deque[SlicedReduction] = deque()
        """All-reduces of which only the ranks here are, in order."""

    def event_of(self, completion: Completion) -> CompletionEvent | None:
        """What has happened when a work request has ended; None: to a link that was given back."""
        qpn, kind, wr_id, status, imm, nbytes = completion
        connection = self._by_qpn.get(qpn)
        if connection is None:
            return None
        path, edge = connection.path, connection.edge
        if status is not _SUCCESS:
            return connection.failed(completion)
        if kind is _SEND:
            return MessageAcknowledged(path, edge, wr_id)
        return MessageArrived(path, edge, wr_id, imm, nbytes, connection.link.header(edge, imm, nbytes))

    def events_of(self, completions: Iterable[Completion]) -> list[CompletionEvents]:
        """The same of several: one for all of a connection, then what failed.

        That order they may have: requests of different queues complete in any, and behind one that fails all
        of its queue fail.
        """
        found: dict[_Connection, tuple[list[int], list[int], list[Result]]] = {}
        failed: list[CompletionEvents] = []
        acknowledged: list[int] = []
        receives: list[int] = []
        results: list[Result] = []
        held, last = self._by_qpn, None
        for completion in completions:
            qpn, kind, wr_id, status, imm, nbytes = completion
            if qpn not in held:
                continue
            connection = held[qpn]
            if status is not _SUCCESS:
                failed.append(connection.failed(completion))
                continue
            if connection is not last:
                last = connection
                acknowledged, receives, results = found.setdefault(connection, ([], [], []))
            if kind is _SEND:
                acknowledged.append(wr_id)
            else:
                receives.append(wr_id)
                results.append((imm, nbytes, connection.link.header(connection.edge, imm, nbytes)))
        events: list[CompletionEvents] = [
            Exchanged(of.path, of.edge, tuple(acknowledged), tuple(receives), tuple(results))
            for of, (acknowledged, receives, results) in found.items()
        ]
        return events + failed

    def closed_by(self, order: CloseLinks | CloseIna | KeepResults) -> list[Link]:
        """The links that end with ``order``: the base ring's first."""
        if isinstance(order, KeepResults):
            return []
        return [link for path, link in self.links.items() if path == INA or isinstance(order, CloseLinks)]

    # --- links

    def open(self, order: OpenLinks, nic: LinkNic) -> LinksOpened:
        """Raises ``LocalMisuse`` if the NIC is full, ``FabricError``, ``OSError`` if memory is short."""
        self.close_all()
        base = self._make(order.base, nic)
        self._hold(BASE, base)
        if order.ina is None:
            return LinksOpened(_addresses(base))
        try:
            ina = self._make(order.ina, nic)
        except BaseException:
            self.close_all()
            raise
        self._hold(INA, ina)
        return LinksOpened(_addresses(base), _addresses(ina))

    def _hold(self, path: BoundPath, link: Link) -> None:
        self.links[path] = link
        connections: dict[int, _Connection] = {}
        for qpn in link.qpns:
            edge = link.edge_of(qpn)
            self._by_qpn[qpn] = connections.setdefault(edge, _Connection(path, link, edge))

    def _let_go(self, path: BoundPath) -> None:
        link = self.links.pop(path)
        for qpn in link.qpns:
            del self._by_qpn[qpn]
        self._orders.pop(path, None)
        link.close()

    def _make(self, shape: LinkShape, nic: LinkNic) -> Link:
        arena = None if self.journal is None else self.journal.arena
        if shape.children is None:
            return RingLink(
                nic,
                slots=shape.slots,
                slot_bytes=shape.slot_bytes,
                allocate=self._allocate,
                first_psn=self._first_psn,
                arena=arena,
            )
        return TreeLink(
            nic,
            window=shape.slots,
            slot_bytes=shape.slot_bytes,
            children=shape.children,
            allocate=self._allocate,
            first_psn=self._first_psn,
            arena=arena,
        )

    def close_all(self) -> None:
        """Give all links back, also those after one whose closing raises."""
        self._acting = None
        with ExitStack() as closing:
            for path in reversed(self.links):
                closing.callback(self._let_go, path)

    def on_links(self, order: LinkOrder) -> None:
        """Raises ``LocalMisuse`` for addresses that cannot be used, ``FabricError``."""
        match order:
            case ConnectLink(path, successor, predecessor, port):
                link = self.links[path]
                if not isinstance(link, RingLink):
                    raise LocalMisuse("a ring for queue pairs of a tree")
                link.connect(successor, predecessor, replace(self._of_ring(), udp_source_port=port))
            case ConnectTree(parent, children):
                link = self.links[BASE]
                if not isinstance(link, TreeLink):
                    raise LocalMisuse("a tree for queue pairs of a ring")
                link.connect(parent, children, self._of_ring())
            case CloseLinks():
                self.close_all()
            case CloseIna():
                self._let_go(INA)
            case KeepResults(results, since, ina_ring_id):
                beside = {} if ina_ring_id is None else {ina_ring_id: self.links[INA]}
                self._kept.keep(results, self.links[BASE], since, beside)
            case _:
                assert_never(order)

    def _of_ring(self) -> QpAttributes:
        """Attributes of queue pairs of the present ring."""
        ring = self._job.ring
        if ring is None:
            return self._attributes
        # One of a switch that names no MTU has that of the path as it is now.
        return replace(self._attributes, mtu=self._job.config.mtu_of(ring))

    # --- orders of engines

    def begin(self) -> None:
        """The next orders are for the base ring's link."""
        self._acting = self._orders.get(BASE)

    def perform(self, order: MemoryOrder) -> None:
        """Raises ``FabricError`` where the NIC does not take an order; all others are to be performed.

        What is ordered after the links were given back has nobody to go to.
        """
        orders = self._acting
        if orders is None:
            if not self.links:
                return
            orders = self._act_on(BASE)
        match order:
            case PostMessage():
                orders.post(order)
            case TakeResult():
                orders.take(order)
            case PostReceives():
                path, edge, wr_ids = order
                if path in self.links:
                    self.links[path].post_receives(wr_ids, edge)
            case PostReceive(path, edge, wr_id):
                if path in self.links:
                    self.links[path].post_receives((wr_id,), edge)
            case PostSlot():
                orders.post_slot(order)
            case Combine():
                accumulators, ring = self._job.accumulators, self._job.ring
                if accumulators is None or ring is None:
                    raise InvariantBroken("a host that does not sum has nothing to combine")
                orders.combine(order, accumulators, ring.position)
            case OnPath(path):
                self._act_on(path)
            case Fold():
                engine = self._job.engine
                if not (isinstance(orders, OverlayOrders) and isinstance(engine, OverlayEngine)):
                    raise InvariantBroken("a host that is in no tree has nothing to fold")
                orders.fold(order, engine.tree, engine.config.rank)
            case PostDown():
                if not isinstance(orders, OverlayOrders):
                    raise InvariantBroken("a host that is in no tree has nobody below it")
                orders.post_down(order)
            case _:
                assert_never(order)

    def _act_on(self, path: BoundPath) -> RingOrders[Segment]:
        orders = self._orders.get(path)
        if orders is None:
            link, tensors = self.links.get(path), self._votes or self.tensors
            if link is None or tensors is None:
                raise InvariantBroken(f"an order for a ring on {path}, and there is no link, or no tensor")
            if isinstance(link, TreeLink):
                orders = OverlayOrders(link, self._kept, tensors, self.journal)
            else:
                by = INA if path == INA else self._job.done_path
                orders = RingOrders(link, self._kept, tensors, self.journal, by)
            self._orders[path] = orders
        self._acting = orders
        return orders

    # --- the journal

    def write_facts(self, *, begins: bool = False) -> None:
        """Who is here and at which switch, once the job has begun."""
        if self.journal is not None and (begins or self.journal.has_begun):
            self.journal.say(*self._job.facts)

    def let_go(self) -> None:
        """The job is over here: of the journal's memory nothing is held any more."""
        self.journal = None
        self._kept = KeptResults()
        self._orders.clear()
        self._acting = None

    def write_end(self, error: JobError | None = None) -> None:
        """The job is over, for its ranks here too: well, or with that error."""
        if self.journal is not None:
            self.journal.failed("" if error is None else error.code, "" if error is None else str(error))

    def restore(self, past: Past) -> None:
        """What a daemon before this one has kept; before any link is opened.

        ``tensors`` are set: a result that it was copying is copied again, before the journal counts it.
        """
        if past.torn is not None:
            if self.tensors is None:
                raise InvariantBroken("a result is to be copied again, and there is no tensor")
            for view in self.tensors.views(past.torn.op_index, past.torn.offset, len(past.torn.data)):
                view[:] = past.torn.data
        if self.journal is not None:
            self.journal.mended()
        self._kept.restore(past)

    # --- the collective beside the rings

    def of_votes(self) -> WithVotes[Segment]:
        """Tensors, and votes."""
        if self._votes is None:
            if self.tensors is None:
                raise InvariantBroken("a host votes that has no tensors")
            self._votes = WithVotes(self.tensors)
            self._orders.clear()  # those that were made before know of none
            self._acting = None
        return self._votes

    # --- sums of one host

    def sum(self, order: SumLocally) -> None:
        ranks = len(self._job.ranks)
        self.sums.append(SlicedReduction(order.operation, ranks, slice_bytes=self._slice_bytes))

    def take_slice(self) -> Slice | None:
        """A part of the first of the sums, if there is one that nobody has."""
        if not self.sums or self.tensors is None:
            return None
        return self.sums[0].take(self.tensors)

    def added(self, part: Slice) -> None:
        """Somebody has added it, if to a sum that is no more."""
        part.of.added(part)

    def take_sum(self) -> Operation | None:
        """The first of the sums, if all ranks have it; it is no longer here."""
        if not self.sums or not self.sums[0].is_done:
            return None
        return self.sums.popleft().operation


def _addresses(link: Link) -> LinkAddresses:
    return LinkAddresses(link.out, link.into, link.below)
