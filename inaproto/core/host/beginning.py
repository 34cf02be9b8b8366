"""What a ring waits for at a host before it begins: answers to all ranks here, then links that connect.

The switch answers each rank by itself, and a rank of the host that was lost meanwhile, or one that came in
its place, is not answered: so answers may be of rings that will never be. A connection may fail before others
are there; what failed is told when its own link would be.

Invariant: answers count together only if they are of one ring.
"""

from __future__ import annotations

from collections.abc import Iterable

from inaproto.core.host.events import ConnectionFailed, ConnectLink, ConnectTree
from inaproto.core.host.operations import BASE, BoundPath
from inaproto.core.host.rings import why_connection_failed
from inaproto.wire.control_messages import Ring


class Beginning:
    """The ring that is to begin next; empty while one runs."""

    def __init__(self) -> None:
        self._answers: dict[int, Ring] = {}
        """Answers by rank, of a ring that does not have those to all its ranks here yet."""
        self._connecting: dict[BoundPath, str] = {}
        """Links that are not connected yet; what has failed there, in words."""

    def clear(self) -> None:
        """The ring has ended."""
        self._answers.clear()
        self._connecting.clear()

    # --- answers

    def answered(self, rank: int, ring: Ring, here: Iterable[int]) -> bool:
        """Whether all ranks ``here`` are answered now, of this ring."""
        self._answers[rank] = ring
        known = self._answers
        if not all(other in known and known[other].ring_id == ring.ring_id for other in here):
            return False
        known.clear()
        return True

    def withdraw(self, rank: int) -> None:
        """A rank joins no more."""
        self._answers.pop(rank, None)

    def answered_of(self, ring_id: int) -> list[int]:
        """Ranks that have their answers of that ring, while others lack theirs."""
        return [rank for rank, ring in self._answers.items() if ring.ring_id == ring_id]

    # --- links

    def connect(self, orders: Iterable[ConnectLink | ConnectTree]) -> None:
        """These links are to be connected."""
        self._connecting = {BASE if isinstance(order, ConnectTree) else order.path: "" for order in orders}

    @property
    def is_connected(self) -> bool:
        """No link is waited for any more."""
        return not self._connecting

    def awaits(self, path: BoundPath) -> bool:
        """The link of ``path`` is to be connected."""
        return path in self._connecting

    def connected(self, path: BoundPath, failure: str) -> str:
        """The wait for a link is over; why it failed, first of all what had failed there before."""
        early_failure = self._connecting.pop(path)
        return failure or early_failure

    def failed_early(self, job: str, ring: Ring, event: ConnectionFailed) -> str:
        """Why a connection of ``ring`` has failed; empty: its link is waited for, and will tell."""
        reason = why_connection_failed(job, ring, event)
        if not self.awaits(event.path):
            return reason
        self._connecting[event.path] = self._connecting[event.path] or reason
        return ""
