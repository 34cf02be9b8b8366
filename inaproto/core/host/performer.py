"""How the orders of an engine are carried out: what is sent, combined, copied and kept.

Tensor bytes of a rank that is alone on its host go out straight from its tensors. Those of several are added
when their message is posted (:mod:`inaproto.core.host.local_reduction`; NetReduce section 3.4), so one copy
leaves the host, and a result is copied into the tensors of all of them, at once: before it is here all inputs
are intact. What is no tensor goes by way of staging slots: those sums, sums that hosts have not completed,
results that another ring has kept, neutral elements (:mod:`inaproto.core.plan.neutral`). Whoever has the
slots and the tensors says what they are: daemons and the simulated world share this module.

Invariant: the last N results of the job, N being the window, are in the receive slots of its ring or, since
that ring has ended, in ``kept``; on a ring on which messages overtake each other, those that another rank may
lack (:mod:`inaproto.core.host.engines.ring`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar, assert_never

import numpy as np

from inaproto.core.host.engines.hosts import Combine, Place, PostSlot
from inaproto.core.host.journal import Journal, Past
from inaproto.core.host.local_reduction import reduce_parts
from inaproto.core.host.operation_queue import KeptResult, Source
from inaproto.core.host.operations import VOTE, Operation, PostKept, PostMessage, PostNeutral, TakeResult
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.neutral import neutral_bytes
from inaproto.errors import InvariantBroken
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.client import DonePath

PayloadT = TypeVar("PayloadT")
InT_contra = TypeVar("InT_contra", contravariant=True)
OutT_co = TypeVar("OutT_co", covariant=True)


class Slots(Protocol[InT_contra]):
    """A host's memory on one ring, and its way to the successor."""

    def result(self, slot: int, nbytes: int) -> memoryview:
        """The ``nbytes`` behind the header in receive slot ``slot``."""

    def result_at(self, slot: int) -> int:
        """Where these begin in the arena of a journal."""

    def staged(self, slot: int, nbytes: int) -> memoryview:
        """The memory of staging slot ``slot``, to be written."""

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: InT_contra) -> None:
        """Send ``header``, kept in header slot ``slot``, and ``payload``, which is not copied."""

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of staging slot ``at`` as a message."""

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        """Send ``nbytes`` of receive slot ``at`` on as a message."""


class Tensors(Protocol[OutT_co]):
    """Tensors of the operations that have not ended, of all ranks on the host."""

    @property
    def ranks(self) -> int:
        """How many."""

    def views(self, op_index: int, offset: int, nbytes: int) -> Sequence[memoryview]:
        """The same bytes of the tensor of each rank, in rank order; to be read and written."""

    def payload(self, op_index: int, offset: int, nbytes: int) -> OutT_co:
        """Those of a rank that is alone, for ``Slots.post_message``."""

    def operation(self, op_index: int) -> Operation:
        """Whose they are."""


class KeptResults:
    """Results whose receive slots are gone, by operation and offset."""

    def __init__(self, journal: Journal | None = None) -> None:
        """They are in the memory of ``journal``, if there is one."""
        self._journal = journal
        self._bytes: dict[tuple[int, int], bytes | memoryview] = {}

    def __len__(self) -> int:
        return len(self._bytes)

    def keep(
        self,
        results: Iterable[KeptResult],
        link: Slots[PayloadT],
        since: int,
        beside: Mapping[int, Slots[PayloadT]] | None = None,
    ) -> None:
        """A ring ends that began at progress ``since``: ``results`` are those to be kept.

        Those from ``since`` on are in the slots of its ``link``, or of that of another ring, which stood
        ``beside`` it and is there by its id. Ids do not tell other rings apart here: a switch that has
        restarted may use them again.
        """
        others, results = beside or {}, list(results)
        found: list[bytes | memoryview] = [
            others.get(kept.ring_id, link).result(kept.slot, kept.nbytes)
            if kept.serial >= since
            else self.get(kept.operation.index, kept.offset)
            for kept in results
        ]
        self._hold(results, found)

    def restore(self, past: Past) -> None:
        """Those of a host whose daemon was another one."""
        self._hold([result for result, _ in past.kept], [data for _, data in past.kept])

    def _hold(self, kept: Sequence[KeptResult], data: Sequence[bytes | memoryview]) -> None:
        copies: Sequence[bytes | memoryview] = (
            [bytes(its) for its in data] if self._journal is None else self._journal.keep(kept, data)
        )
        self._bytes = {
            (its.operation.index, its.offset): copy for its, copy in zip(kept, copies, strict=True)
        }

    def get(self, op_index: int, offset: int) -> bytes | memoryview:
        try:
            return self._bytes[op_index, offset]
        except KeyError:
            raise InvariantBroken(f"result at {offset} of all-reduce {op_index} was not kept") from None


class RingOrders(Generic[PayloadT]):
    """Performs the orders of one host on one ring."""

    def __init__(
        self,
        link: Slots[PayloadT],
        kept: KeptResults,
        tensors: Tensors[PayloadT],
        journal: Journal | None = None,
        path: DonePath = "switch",
    ) -> None:
        """``journal`` is told of each result that is taken, and that it came by ``path``."""
        self._link = link
        self._kept = kept
        self._tensors = tensors
        self._journal = journal
        self._path = path

    def post(self, action: PostMessage) -> None:
        """Send a message of an operation."""
        link, nbytes = self._link, action.nbytes
        if type(action) is PostMessage and self._tensors.ranks == 1 and action.op_index < VOTE:
            msg_id, slot, header, op_index, offset, _ = action
            link.post_message(msg_id, slot, header, self._tensors.payload(op_index, offset, nbytes))
            return
        match action:
            case PostKept():
                link.staged(action.slot, nbytes)[:] = self._kept.get(action.op_index, action.offset)
                link.post_staged(action.msg_id, action.slot, action.header, action.slot, nbytes)
            case PostNeutral():
                link.staged(action.slot, nbytes)[:] = neutral_bytes(*_called(action), nbytes)
                link.post_staged(action.msg_id, action.slot, action.header, action.slot, nbytes)
            case _:
                parts = self._tensors.views(action.op_index, action.offset, nbytes)
                reduce_parts(*_called(action), parts, link.staged(action.slot, nbytes))
                link.post_staged(action.msg_id, action.slot, action.header, action.slot, nbytes)

    def post_slot(self, action: PostSlot) -> None:
        """Send what a slot holds."""
        msg_id, slot, header, place, at, nbytes = action
        post = self._link.post_staged if place is Place.STAGED else self._link.post_received
        post(msg_id, slot, header, at, nbytes)

    def combine(self, action: Combine, accumulators: Accumulators, position: int) -> None:
        """Add the part of the host at ``position`` to what has come."""
        operation, link = action.operation, self._link
        own = self.contribution(action.source, operation, action.offset, action.nbytes)
        staged = action.place is Place.STAGED
        out = link.staged(action.out, action.goes) if staged else link.result(action.out, action.goes)
        accumulators.combine(
            position,
            operation.dtype,
            operation.op,
            np.frombuffer(link.result(action.slot, action.came), np.uint8),
            np.frombuffer(own, np.uint8),
            np.frombuffer(out, np.uint8),
        )

    def contribution(
        self, source: Source, operation: Operation, offset: int, nbytes: int
    ) -> bytes | memoryview:
        """What this host adds to a message: ``nbytes`` from ``offset`` on."""
        match source:
            case Source.OWN:
                return self._own(operation, offset, nbytes)
            case Source.KEPT:
                return self._kept.get(operation.index, offset)
            case Source.NEUTRAL:
                return neutral_bytes(operation.dtype, operation.op, nbytes)
            case _:
                assert_never(source)

    def _own(self, operation: Operation, offset: int, nbytes: int) -> memoryview:
        parts = self._tensors.views(operation.index, offset, nbytes)
        if len(parts) == 1:
            return parts[0]
        total = memoryview(bytearray(nbytes))
        reduce_parts(operation.dtype, operation.op, parts, total)
        return total

    def take(self, action: TakeResult) -> None:
        """Copy a result to where its operation's tensors are."""
        slot, op_index, offset, nbytes = action
        result, journal = self._link.result(slot, nbytes), self._journal
        if journal is not None:
            operation, at = self._tensors.operation(op_index), self._link.result_at(slot)
            journal.taking(operation, offset, nbytes, at, self._path)
        for view in self._tensors.views(op_index, offset, nbytes):
            view[:] = result
        if journal is not None:
            journal.taken()


def _called(action: PostMessage) -> tuple[Dtype, Op]:
    """As the header says, of either kind."""
    return Dtype(action.header[5]), Op(action.header[6])
