"""Which words of the switch are for which job on a host: the rules of races between two lives of a job.

Of a job there may be two on a host at a time: one whose ring ends, and one that gathers the ranks of its next
life. A word of the switch names a ring; a host may know of that ring, or have lost what it knew with an
earlier connection.

Invariants: the end of a ring is never taken for the end of ranks that were never in it, as far as this
connection can know; ranks that came back by it are of the present ring of their job, though they may not have
heard of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from inaproto.core.host.events import (
    Answered,
    HostEvent,
    JobFailed,
    JobUnknown,
    JoinDenied,
    JoiningFailed,
    Said,
    SwitchLost,
)
from inaproto.core.host.job import HostJob
from inaproto.core.host.view import Phase
from inaproto.errors import SwitchUnreachable
from inaproto.wire.control_messages import (
    AskCalls,
    Closed,
    Error,
    Failed,
    Halt,
    JobStatus,
    Message,
    Ring,
    Start,
    job_error,
)
from inaproto.wire.messages.ina import InaPark, InaStands

HEARD_OF_MAX: Final = 4096
"""Jobs whose rings are remembered: more than can be under way."""

Routed = list[tuple[int, HostEvent]]
"""For which of the jobs, by index, what has happened."""


class Hearing:
    """What one connection to a switch, of boot ``boot_id``, has been told of jobs."""

    def __init__(self, boot_id: str) -> None:
        self._boot_id = boot_id
        self._rings: dict[str, int] = {}
        """The last ring of each job that was told of, until the job is said to be over.

        Not all ends are told: what is not heard of any more makes room for others.
        """

    def __len__(self) -> int:
        return len(self._rings)

    def has_heard_of(self, job: str, ring_id: int) -> bool:
        """Whether the switch has told of that ring by this connection: ranks that gather now are not of it.

        Else ranks came back to it by this connection, and do not know of it.
        """
        return self._rings.get(job) == ring_id

    def heard(self, message: Message, jobs: Sequence[HostJob]) -> Routed:
        """What a message of the switch is to those of ``jobs``, which are of its job and have not ended.

        An ``Error`` names no job: ``jobs`` are all of the host. What is for none of them is left out.
        """
        numbered = list(enumerate(jobs))
        match message:
            case Ring():
                self._remember(message)
                asked = [(number, job) for number, job in numbered if job.ranks.by_request(message.id)]
                return [(number, Answered(message, self._boot_id)) for number, _ in asked]
            case Start(ring_id=ring_id):
                return [(number, Said(message)) for number, job in numbered if job.ring_id == ring_id]
            case Halt(ring_id=ring_id):
                in_it = [number for number, job in numbered if job.ring_id == ring_id]
                if not in_it and not self.has_heard_of(message.job, ring_id):
                    older = [it for it in numbered if it[1].phase is Phase.HALTED or it[1].has_come_back]
                    in_it = [number for number, _ in older or numbered]
                return [(number, Said(message)) for number in in_it]
            case InaPark() | InaStands() | JobStatus() | AskCalls():
                return [(number, Said(message)) for number, _ in numbered]
            case Closed(ring_id=ring_id):
                self._is_over(message.job, ring_id)
                return [(number, Said(message)) for number, job in numbered if _is_of(job, ring_id)]
            case Failed():
                return self._failed(message, numbered)
            case Error(of=request):
                error = job_error(message)
                asked = [(number, job) for number, job in numbered if job.ranks.by_request(request)]
                joining = [number for number, job in asked if job.phase is Phase.JOINING]
                return [(number, JoinDenied(request, error)) for number in joining]
            case _:
                return []

    def _remember(self, ring: Ring) -> None:
        self._rings.pop(ring.job, None)
        self._rings[ring.job] = ring.ring_id
        while len(self._rings) > HEARD_OF_MAX:
            del self._rings[next(iter(self._rings))]

    def _is_over(self, job: str, ring_id: int) -> bool:
        """Whether the switch had told of that ring, whose end is that of its job."""
        is_known = self.has_heard_of(job, ring_id)
        if is_known:
            del self._rings[job]
        return is_known

    def _failed(self, failed: Failed, jobs: Sequence[tuple[int, HostJob]]) -> Routed:
        """The ranks of the ring that failed end; one that is joining belongs to the job's next life.

        A rank that is joining has no ring: its join is refused by an ``Error``, or the switch ends.
        """
        error, ring_id = job_error(failed), failed.ring_id
        ends = isinstance(error, SwitchUnreachable)  # in good order
        is_known = self._is_over(failed.job, ring_id) or any(job.ring_id == ring_id for _, job in jobs)
        routed: Routed = []
        for number, job in jobs:
            in_ring = job.phase is not Phase.JOINING or job.has_come_back
            concerned = _is_of(job, ring_id) if ring_id else in_ring or ends
            if concerned:
                routed.append((number, SwitchLost(error) if ends else JobFailed(error)))
            elif ring_id and not is_known and job.ring_id is None:
                routed.append((number, JobUnknown(error)))  # announced again, before they had started
            elif ring_id:
                routed.append((number, JoiningFailed(ring_id, error)))
        return routed


def _is_of(job: HostJob, ring_id: int) -> bool:
    """Whether the end of that ring's job is the end of these ranks.

    Those that came back are of their job's present ring, though they may not have heard of that.
    """
    return job.ring_id == ring_id or job.has_come_back
