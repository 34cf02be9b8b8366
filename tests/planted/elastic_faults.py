"""Faults of elastic jobs: who goes on without a lost rank, from where, and who is told of it."""

from __future__ import annotations

from typing import Final

from inaproto.core.rendezvous.regrouping import Regrouping
from inaproto.core.rendezvous.regroupings import Regroupings
from tests.planted.planting import fault
from tests.planted.shapes import elastic

REGROUPING: Final = "ours, after ULFM; inaproto.core.rendezvous.regrouping"
NEXT: Final = "ours, after ULFM; inaproto.core.rendezvous.regroupings"

ELASTIC_FAULTS: Final = (
    fault(
        "first_survivor_decides",
        REGROUPING,
        "decides who goes on as soon as one survivor has come",
        Regrouping._decide_if_complete,
        "if len(done) < len(self._came):",
        "if not done:",
        shape=elastic,
    ),
    fault(
        "agreed_on_the_most",
        REGROUPING,
        "goes on from the last result that any survivor has, not from one that all have",
        Regrouping._decide_if_complete,
        "min(done.values())",
        "max(done.values())",
        shape=elastic,
    ),
    fault(
        "second_loss_ends_the_regrouping",
        REGROUPING,
        "keeps the outcome when another of those that were to go on is lost",
        Regrouping._undo,
        "if event.rank in self._came:",
        "if event.rank not in self._came:",
        shape=elastic,
    ),
    fault(
        "survivors_with_the_lost",
        NEXT,
        "counts a rank that is lost among the survivors",
        Regroupings.job_failed,
        "if seat.left_after is None and seat.member.rank not in out",
        "if seat.left_after is None",
        shape=elastic,
    ),
    fault(
        "lost_survivor_waited_for",
        NEXT,
        "takes no note of a survivor that dies while the others are waited for",
        Regroupings.gone,
        "return self._step(ended, Lost(said.rank, said.reason), now)",
        "return []",
        shape=elastic,
    ),
    fault(
        "answer_to_the_last_that_came",
        NEXT,
        "tells the survivor that came last who goes on, and not those that came before",
        Regroupings._step,
        "for action in told:",
        "for action in told[-1:]:",
        shape=elastic,
    ),
    fault(
        "next_job_for_anybody",
        NEXT,
        "gives places in the next job to who asks first, whichever the survivors' places are",
        Regroupings._step,
        "ranks=outcome.ranks, agreed=outcome.agreed",
        "ranks=outcome.ranks[::-1], agreed=outcome.agreed",
        shape=elastic,
    ),
    fault(
        "next_job_ended_with_the_last",
        NEXT,
        "counts a host daemon that came anew for the job before, though the next one has started",
        Regroupings.host_arrived,
        "if ended.has_begun:",
        "if False:",
        test="tests/unit/test_rendezvous_regrouping.py"
        "::test_a_host_daemon_started_anew_after_the_next_job_has_started_is_its_loss",
    ),
    fault(
        "forgotten_before_they_begin",
        NEXT,
        "forgets survivors that have all joined the next job, if that is long in starting",
        Regroupings._is_beginning,
        "bool(job.ring_id) and not ended.has_begun",
        "False",
        test="tests/unit/test_rendezvous_regrouping.py::test_the_time_to_join_is_over_when_all_have_joined",
    ),
)
