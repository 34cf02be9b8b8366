"""Ranks whose job has failed go on without one that is lost: for each the switch is asked who is left.

Their ring has ended, so an answer is known by the number of its request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from inaproto.daemon.host.local_rank import LocalRank, Owner
from inaproto.wire.control_messages import Error, Message, Regroup, Regrouped, job_error


class Regrouping:
    """Who of this host waits for an answer; ``tell`` sends a message to the switch."""

    def __init__(self, requests: Iterator[int], tell: Callable[[Message], None]) -> None:
        self._requests, self._tell = requests, tell
        self._waiting: dict[int, Owner] = {}
        """By the number of the request."""

    def ask(self, rank: LocalRank, owner: Owner, operations_done: int) -> None:
        """A rank wants to go on, of which ``owner`` is told the answer."""
        request = next(self._requests)
        self._waiting[request] = owner
        self._tell(
            Regroup(
                id=request,
                job=rank.join.job,
                ring_id=_ring_id(rank),
                rank=rank.number,
                operations_done=operations_done,
            )
        )

    def answered(self, message: Regrouped | Error) -> bool:
        """Whether that is the answer to somebody who waits, and has been told now."""
        if isinstance(message, Regrouped):
            owner = self._waiting.pop(message.id, None)
            if owner is not None:
                owner.regrouped(message)
        else:
            owner = self._waiting.pop(message.of, None)
            if owner is not None:
                owner.regroup_refused(job_error(message))
        return owner is not None

    def gone(self, rank: LocalRank, owner: Owner, reason: str) -> None:
        """A process is lost that could have gone on."""
        self._waiting = {request: other for request, other in self._waiting.items() if other is not owner}
        if rank.join.elastic and not rank.has_left and rank.ring is not None and _ring_id(rank):
            self._tell(rank.ring.gone_after_end(rank, reason))


def _ring_id(rank: LocalRank) -> int:
    return 0 if rank.ring is None else rank.ring.ring_id or 0
