"""Operations that were called as one: a list of arrays of several types is an all-reduce for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inaproto.client.in_place import InPlaceOperation
from inaproto.client.parallel_rings import SlicedOperation
from inaproto.client.protocol import PendingOperation, tell_when_all
from inaproto.errors import JobError

One = PendingOperation | SlicedOperation | InPlaceOperation


class Together:
    """Operations of one call, in the order in which they were called; to a work it is as one of them."""

    def __init__(self, parts: Sequence[One]) -> None:
        self.parts = tuple(parts)

    @property
    def op_index(self) -> int:
        return self.parts[0].op_index

    @property
    def ended(self) -> bool:
        return all(part.ended for part in self.parts)

    @property
    def error(self) -> JobError | None:
        """Error of the first that failed."""
        return next((part.error for part in self.parts if part.error is not None), None)

    @property
    def path(self) -> str:
        """Paths by which they were summed, each once."""
        return "+".join(sorted({part.path for part in self.parts}))

    @property
    def daemon_ns(self) -> int:
        return max(part.daemon_ns for part in self.parts)

    def tell(self, told: Callable[[], None]) -> None:
        """As :meth:`inaproto.client.protocol.PendingOperation.tell`: when the last one ends."""
        tell_when_all(self.parts, told)
