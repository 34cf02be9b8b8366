"""The way of private arrays through shared memory, a part at a time, while their all-reduce is under way.

A rank that copied the whole array before its host sends any of it, and its result when that is whole, would
leave the links idle meanwhile. So the all-reduce is called when the *first* bytes are copied, and results are
copied as they come. Copying is much faster than a link is; so each part of the array is several times as long
as all before it, and results are copied when half of those that were missing are there: both sides say
something a few times, however large the array is.

Exactness, whatever fails: shared memory holds the input from where the results end, and it is filled from the
private array once. No path reads the private array again, so results may be stored there early; an
all-reduce that goes on by another path reads what was copied.

What is called in place may be a mix after a failure, and a new array is nobody's before the result is
returned: these get results early. ``out`` changes only with the whole result.
"""

from __future__ import annotations

from typing import Final

from inaproto.client.channel import Channel
from inaproto.client.memory import Region
from inaproto.client.pieces import Bytes, Pieces
from inaproto.client.protocol import PendingOperation, Waited
from inaproto.wire.ina_header import Dtype, Op

BYTES_MIN: Final = 1 << 20
"""Smaller arrays are copied sooner than anything is said of them."""
FIRST_BYTES: Final = 512 << 10
"""Some messages: they take longer on most links than the bytes that follow take to copy."""
GROWTH: Final = 4


def passes_in_parts(channel: Channel, nbytes: int) -> bool:
    """Whether the host daemon takes an all-reduce of a private array before all its bytes are there."""
    joined = channel.protocol.joined
    return joined is not None and joined.fills and nbytes >= BYTES_MIN


class Passage:
    """One vector of private arrays, and that of their results.

    ``shared`` is the shared memory between them; ``is_early``: results may be stored before they are whole.
    """

    def __init__(self, source: Pieces, shared: Bytes, result: Pieces, *, is_early: bool) -> None:
        self._source, self._shared, self._result = source, shared, result
        self._is_early = is_early
        self._copied = 0

    def call(
        self,
        channel: Channel,
        region: Region,
        dtype: Dtype,
        op: Op,
        shape: tuple[int, ...],
        waited: Waited | None,
        words: str = "",
    ) -> PendingOperation:
        """Call the all-reduce and copy the arrays, which are the caller's again when this returns.

        Whoever is interrupted here has called an all-reduce that cannot end: the communicator fails.
        """
        nbytes, at = region.nbytes, FIRST_BYTES
        self._source.read(0, at, self._shared)
        operation = channel.all_reduce(region, nbytes, dtype, op, shape, waited=waited, filled=at, call=words)
        if self._is_early:
            operation.takes = self.take
        try:
            while at < nbytes:
                end = min(at * GROWTH, nbytes)
                self._source.read(at, end, self._shared[at:end])
                at = end
                channel.filled(operation, at)
        except BaseException as fault:
            channel.give_up(f"interrupted while all-reduce {operation.op_index} was called: {fault!r}")
            raise
        return operation

    def fill(self) -> None:
        """Copy all of it, before its all-reduce is called."""
        self._source.read(0, self._source.nbytes, self._shared)

    def take(self, nbytes: int) -> None:
        """The first ``nbytes`` are the result."""
        if self._copied < nbytes:
            self._result.write(self._copied, nbytes, self._shared[self._copied : nbytes])
            self._copied = nbytes

    def end(self) -> None:
        """All of it is."""
        self.take(self._result.nbytes)
