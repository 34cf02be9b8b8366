"""Faults of the rendezvous: who is told what, and when."""

from __future__ import annotations

from typing import Final

from inaproto.core.rendezvous.endings import Endings
from inaproto.core.rendezvous.jobs import Job
from inaproto.core.rendezvous.life import Running
from inaproto.core.rendezvous.rendezvous import Rendezvous
from tests.planted.planting import fault
from tests.planted.shapes import calm

CALLS: Final = "docs/protocol.md 12.6, different calls"
REFUSALS: Final = "docs/protocol.md 12.4, refusals"
RINGS: Final = "NetReduce 3.1, rings; inaproto.core.rendezvous.rendezvous"

CONTROL_FAULTS: Final = (
    fault(
        "start_before_all_are_ready",
        RINGS,
        "starts the job when the first rank is ready",
        Running.ready,
        "if not all(seat.ready for seat in job.seats.values()):",
        "if not any(seat.ready for seat in job.seats.values()):",
    ),
    fault(
        "failure_told_to_one",
        RINGS,
        "tells the first host that a rank is lost, not all of them",
        Endings.fail,
        "told = self._state.tell_all(job, failed, without=without)",
        "told = self._state.tell_all(job, failed, without=without)[:1]",
    ),
    fault(
        "ring_not_removed",
        RINGS,
        "forgets a job and leaves its ring in the accelerator",
        Endings._forget,
        "return self.remove_ring(job)",
        "return []",
        shape=calm,
    ),
    fault(
        "lost_host_unnoticed",
        RINGS,
        "takes note that a host is gone, and leaves its ranks in their jobs",
        Rendezvous._session_ended,
        "actions += self._endings.lose(job, seats,",
        "actions += () and self._endings.lose(job, seats,",
    ),
    fault(
        "closed_when_first_leaves",
        RINGS,
        "closes the job when one rank has left in good order",
        Running.leave,
        "any(other.left_after is None for other in job.seats.values()):",
        "all(other.left_after is None for other in job.seats.values()):",
    ),
    fault(
        "dispute_without_end",
        CALLS,
        "waits for what every host says of its calls, however long that takes, older hosts included",
        Endings.woke,
        "if job.dispute is not None and job.dispute.until <= self._state.now:",
        "if False:",
        test="tests/unit/test_rendezvous_disputes.py::test_who_has_left_or_is_of_an_older_release_is_not_waited_for_in_a_mismatch",
    ),
    fault(
        "dispute_settled_by_the_first",
        CALLS,
        "fails the job when the first rank has said what it calls, with nothing to compare that with",
        Endings.called,
        "if any(rank not in job.dispute.told",
        "if all(rank not in job.dispute.told",
        test="tests/unit/test_rendezvous_disputes.py::test_a_mismatch_is_told_in_the_words_of_all_ranks",
        arguments=("accelerator",),
    ),
    fault(
        "refusals_without_limit",
        REFUSALS,
        "tells those who wait of every refusal, as often as somebody without the key likes",
        Job.note_refusal,
        "known in self.refused or len(self.refused) >= REFUSALS_TOLD_MAX",
        "known in self.refused",
        test="tests/unit/test_rendezvous.py::test_few_refusals_are_told_however_many_there_are",
    ),
    fault(
        "refusal_of_a_process",
        REFUSALS,
        "takes each process for news, and tells of one that is started again and again each time",
        Job.note_refusal,
        "known = rank, host, cause",
        "known = rank, host, f'{cause}{pid}'",
        test="tests/unit/test_rendezvous.py::test_who_waits_for_a_rank_hears_that_it_was_refused",
    ),
    fault(
        "refusal_remembered",
        REFUSALS,
        "goes on telling of refusals of a rank that has come",
        Job.forget_refusals,
        "if known[0] != rank",
        "if known",
        test="tests/unit/test_rendezvous.py::test_a_refusal_is_forgotten_when_its_rank_comes",
    ),
)
