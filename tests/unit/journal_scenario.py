"""A host that takes results, loses rings, says who leaves and is stopped after any of its stores."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from inaproto.core.host import events
from inaproto.core.host.events import LinkShape, OpenLinks
from inaproto.core.host.holdings import Holdings
from inaproto.core.host.journal import _RECORD, Arena, Journal, JournalRefused, Past, read_journal
from inaproto.core.host.operation_queue import KeptResult
from inaproto.core.host.operations import BASE, Operation, TakeResult
from inaproto.core.rdma.verbs import QpAttributes, Segment
from inaproto.errors import JobError
from inaproto.units import OpIndex, RingId
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from inaproto.wire.messages.client import Join
from tests.unit.listing_nic import ListingNic

TENSOR_BYTES = 8
SIZES = (4, 0, 40, 8, 20, 12)
"""Of the operations: of one message, none, several."""
RANKS = (1, 3)


class Stopped(Exception):
    """As by SIGKILL: nothing more is written."""


class Stores:
    """Counts what is written, and stops the writer before the store of that number."""

    def __init__(self, stops_at: int | None = None) -> None:
        self.done = 0
        self.stops_at = stops_at

    def one(self) -> None:
        if self.done == self.stops_at:
            raise Stopped
        self.done += 1


class StoppingJournal(Journal):
    """One that may be stopped before any store: before any byte of data."""

    stores: Stores

    def _store(self, at: int, word: int) -> None:
        self.stores.one()
        super()._store(at, word)

    def _pack(self, fields: Any, at: int, *words: int) -> None:
        self.stores.one()
        super()._pack(fields, at, *[0] * len(words))
        for count in range(1, len(words) + 1):
            self.stores.one()
            super()._pack(fields, at, *words[:count], *[0] * (len(words) - count))

    def _put_record(self, memory: memoryview, at: int, *words: int) -> None:  # type: ignore[override]
        self._pack(_RECORD, at, *words)

    def taken(self) -> None:
        self.stores.one()
        super().taken()

    def _copy(self, at: int, data: bytes | memoryview) -> memoryview:
        half = len(data) // 2
        self.stores.one()
        super()._copy(at, data[:half])
        self.stores.one()
        return super()._copy(at, data)


class _Copied:
    """A part of a tensor; a copy over it may stop in the middle."""

    def __init__(self, view: memoryview, stores: Stores) -> None:
        self.view = view
        self.stores = stores

    def __setitem__(self, key: slice, data: bytes | memoryview) -> None:
        half = len(self.view) // 2
        self.stores.one()
        self.view[:half] = data[:half]
        self.stores.one()
        self.view[half:] = data[half:]


class Processes:
    """What outlives the daemon: the tensors of all ranks, and the journal's memory. And what is true."""

    def __init__(self, sizes: Sequence[int] = SIZES, ranks: Sequence[int] = RANKS) -> None:
        draws = random.Random(0)
        self.operations = [
            Operation(OpIndex(index), Dtype.I32, Op.SUM, nbytes, 7 * index)
            for index, nbytes in enumerate(sizes)
        ]
        self.inputs = [[draws.randbytes(each.nbytes) for _ in ranks] for each in self.operations]
        self.tensors = [[bytearray(its) for its in each] for each in self.inputs]
        self.results = [draws.randbytes(each.nbytes) for each in self.operations]
        self.cuts = [
            (each, offset, min(TENSOR_BYTES, each.nbytes - offset))
            for each in self.operations
            for offset in range(0, max(1, each.nbytes), TENSOR_BYTES)
        ]
        """By serial: operation, offset, bytes."""
        self.joins = [join(rank) for rank in ranks]

    def result(self, serial: int) -> bytes:
        operation, offset, nbytes = self.cuts[serial]
        return self.results[operation.index][offset : offset + nbytes]

    def is_intact(self, serial: int) -> bool:
        """The tensors have their inputs there."""
        operation, offset, nbytes = self.cuts[serial]
        index, here = operation.index, slice(offset, offset + nbytes)
        pairs = zip(self.tensors[index], self.inputs[index], strict=True)
        return all(tensor[here] == its[here] for tensor, its in pairs)

    def has_result(self, serial: int) -> bool:
        operation, offset, nbytes = self.cuts[serial]
        here = slice(offset, offset + nbytes)
        return all(tensor[here] == self.result(serial) for tensor in self.tensors[operation.index])


class _Tensors:
    def __init__(self, processes: Processes, stores: Stores) -> None:
        self._processes, self._stores = processes, stores
        self.ranks = len(processes.joins)

    def views(self, op_index: int, offset: int, nbytes: int) -> Sequence[memoryview]:
        views = [memoryview(its)[offset : offset + nbytes] for its in self._processes.tensors[op_index]]
        return [_Copied(view, self._stores) for view in views]  # type: ignore[misc]

    def payload(self, op_index: int, offset: int, nbytes: int) -> Segment:
        raise AssertionError

    def operation(self, op_index: int) -> Operation:
        return self._processes.operations[op_index]


class Daemon:
    """One host daemon, by real holdings."""

    def __init__(
        self, processes: Processes, arena: Arena, stores: Stores, window: int, past: Past | None = None
    ) -> None:
        self.processes, self.window, self.past = processes, window, past
        self._nic = ListingNic()
        self.left: dict[int, int] = {}
        self.boot_id = "boot 0"
        journal: Journal
        if past is None:
            self.progress = 0
            self.kept: list[KeptResult] = []
            StoppingJournal.stores = Stores()
            journal = StoppingJournal(arena, window_messages=window, tensor_bytes=TENSOR_BYTES)
        else:
            self.progress, self.left, self.boot_id = past.progress, dict(past.left), past.boot_id
            self.kept = [result for result, _ in past.kept]
            journal = StoppingJournal.of_successor(arena, past)
        StoppingJournal.stores = stores
        self.since, self.rings = self.progress, 0
        self._job = SimpleNamespace(done_path="switch")
        self.of = Holdings(
            self._job,  # type: ignore[arg-type]
            allocate=lambda nbytes: memoryview(bytearray(nbytes)),
            first_psn=lambda: 1,
            attributes=QpAttributes(mtu=256),
            journal=journal,
        )
        self.of.tensors = _Tensors(processes, stores)

    def restores(self) -> None:
        if self.past is not None:
            self.of.restore(self.past)

    def opens(self) -> None:
        """A ring; the job has begun by the first."""
        self.rings += 1
        shape = LinkShape(2 * self.window, INA_HEADER_BYTES + TENSOR_BYTES)
        self.of.open(OpenLinks(shape, None), self._nic)
        self.boot_id = f"boot {self.rings}"
        self._say(begins=True)

    def _say(self, *, begins: bool = False) -> None:
        self._job.facts = self.processes.joins, self.left, self.boot_id
        self.of.write_facts(begins=begins)

    def takes(self) -> None:
        """The next result."""
        serial = self.progress
        operation, offset, nbytes = self.processes.cuts[serial]
        slot = serial % (2 * self.window)
        self.of.links[BASE].result(slot, nbytes)[:] = self.processes.result(serial)
        is_last = offset + nbytes == operation.nbytes
        self.kept.append(KeptResult(serial, operation, is_last, offset, nbytes, RingId(self.rings), slot))
        self.kept = self.kept[-self.window :]
        self.progress += 1
        self.of.begin()
        self.of.perform(TakeResult(slot, operation.index, offset, nbytes))

    def loses_ring(self) -> None:
        self.of.on_links(events.KeepResults(tuple(self.kept), self.since, None))
        self.since = self.progress
        self.of.on_links(events.CloseLinks(recovers=True))

    def rank_leaves(self, rank: int) -> None:
        self.left = self.left | {rank: self.processes.cuts[self.progress - 1][0].index}
        self._say()

    def ends(self, error: JobError | None = None) -> None:
        self.of.write_end(error)

    def script(self, every: int = 4) -> Iterator[str]:
        """All that is left to do; a ring is lost now and then, one that has hardly begun, too."""
        self.restores()
        yield "restored"
        self.opens()
        yield "opened"
        cuts = self.processes.cuts
        while self.progress < len(cuts):
            self.takes()
            yield "taken"
            if self.progress == len(cuts) - 2 and not self.left:
                self.rank_leaves(self.processes.joins[-1].rank)
                yield "left"
            if self.progress % every == every - 1:
                for _ in range(2):
                    self.loses_ring()
                    yield "lost"
                    self.opens()
                    yield "opened"
        self.ends()
        yield "ended"


def read(arena: Arena, window: int) -> Past | None:
    """None: the job had not begun."""
    try:
        return read_journal(arena, window_messages=window, tensor_bytes=TENSOR_BYTES)
    except JournalRefused as why:
        if "had not begun" in str(why):
            return None
        raise


def join(rank: int, *, job: str = "train", size: int = 4) -> Join:
    return Join(id=rank, job=job, rank=rank, size=size, key="k", pid=100 + rank, life=f"{rank}")


def begun(arena: Arena, window: int = 2) -> Journal:
    """The journal of two ranks that have no result yet."""
    journal = Journal(arena, window_messages=window, tensor_bytes=TENSOR_BYTES)
    journal.say([join(0), join(2)], {}, "boot")
    return journal
