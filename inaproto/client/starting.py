"""How the all-reduces of a collective begin, and how their results get to where they belong.

Invariant: all operations of a call begin, or none: whatever can be refused is refused before the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from inaproto.client.channel import Channel
from inaproto.client.collectives import Collective, Reduction, Title
from inaproto.client.in_place import InPlace, InPlaceOperation
from inaproto.client.memory import Region, SharedMemory
from inaproto.client.parallel_rings import RankChannel, SlicedOperation
from inaproto.client.passage import Passage, passes_in_parts
from inaproto.client.pieces import as_bytes
from inaproto.client.protocol import PendingOperation, Waited
from inaproto.client.together import One, Together
from inaproto.wire.ina_header import Op

Operation = PendingOperation | SlicedOperation | InPlaceOperation | Together
_UINT8 = np.dtype(np.uint8)


class _Part:
    """One of the all-reduces: where its vector is, and what is left to be done when it has ended."""

    def __init__(self, reduction: Reduction) -> None:
        self.reduction = reduction
        self.region: Region | None = None
        self.passage: Passage | None = None
        """How the vector gets into ``region``, and its result out of it; None: it lies there."""
        self.is_filled = False
        """It is in ``region``, all of it."""
        self.take: Callable[[], object] | None = None

    def place(self, memory: SharedMemory, call: Collective, *, is_filled: bool) -> None:
        reduction = self.reduction
        if call.in_place and reduction.alone is not None:
            self.region = memory.find(reduction.alone)
        if self.region is None:
            self.region = memory.allocate(reduction.nbytes)
            shared = self.region.array((reduction.nbytes,), _UINT8)
            passage = Passage(reduction.sources, shared, reduction.results, is_early=call.is_early)
            self.passage, self.take = passage, passage.end
            if is_filled:
                passage.fill()
                self.is_filled = True

    def begin(self, channel: RankChannel, waited: Waited | None) -> One:
        made, region, passage = self.reduction, self.region, self.passage
        assert region is not None
        if passage is None and made.clears and made.alone is not None:
            made.alone.fill(0)
        if passage is not None and not self.is_filled:
            if isinstance(channel, Channel) and passes_in_parts(channel, made.nbytes):
                return passage.call(channel, region, made.dtype, made.op, made.shape, waited, made.call)
            passage.fill()
        return channel.all_reduce(
            region, made.nbytes, made.dtype, made.op, made.shape, waited=waited, call=made.call
        )

    def add(self, in_place: InPlace) -> One:
        """The ranks of this host add: the vector is one array, if need be a new one."""
        made = self.reduction
        op, vector = Op(made.op).name.lower(), made.alone
        if vector is not None:
            if made.clears:
                vector.fill(0)
            return in_place.call(vector, op, made.call)
        vector = np.empty(made.nbytes // made.kind.itemsize, made.kind)
        data = as_bytes(vector)
        made.sources.read(0, data.nbytes, data)
        self.take = lambda: made.results.write(0, data.nbytes, data)
        return in_place.call(vector, op, made.call)


class Call:
    """What was called, checked: all that its operations need to begin, and its result to be delivered."""

    def __init__(self, collective: Collective, timeout: float | None, *, adds_in_place: bool) -> None:
        """``timeout``: in seconds, from the call on. ``adds_in_place``: the ranks of the host add."""
        self.timeout = timeout
        self.adds_in_place = adds_in_place
        self.nbytes = collective.nbytes
        self._collective = collective
        self._parts = [_Part(reduction) for reduction in collective.reductions]

    @property
    def title(self) -> Title:
        """What it is, for people."""
        return self._collective.title

    @property
    def operations(self) -> int:
        """How many the host daemon hears of."""
        return 0 if self.adds_in_place else len(self._parts)

    def place(self, memory: SharedMemory, *, is_filled: bool = False) -> None:
        """Find, or make, the shared memory that it goes through; ``is_filled``: and copy it there, unless it
        was called in place and is left alone.

        Raises ``LocalMisuse``, ``MemoryError``.
        """
        if not self.adds_in_place:
            for part in self._parts:
                part.place(memory, self._collective, is_filled=is_filled and not self._collective.in_place)

    def begin(
        self, channel: RankChannel, in_place: Callable[[], InPlace], waited: Callable[[], Waited | None]
    ) -> Operation:
        """Start it. Raises ``JobError``; ``LocalMisuse`` where the daemon has no room."""
        if self.adds_in_place:
            begun = [part.add(in_place()) for part in self._parts]
        else:
            channel.require_room(self.operations)
            channel.announce()
            begun = [part.begin(channel, waited()) for part in self._parts]
        return begun[0] if len(begun) == 1 else Together(begun)

    def end(self) -> Any:
        """Its value, when it has ended. The shared memory is free then."""
        for part in self._parts:
            if part.take is not None:
                part.take()
        self._parts.clear()
        return self._collective.end()
