"""Faults of a host in a job: which ring a word is of, what is said of progress, who is told of an end."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.carrier import Carrier
from inaproto.core.host.hearing import Hearing, _is_of
from inaproto.core.host.job import HostJob
from tests.planted.planting import Change, PlantedFault, fault
from tests.planted.shapes import elastic, going_on

RACES: Final = "docs/protocol.md 13; inaproto.core.host.hearing"
TESTS: Final = "tests/unit/test_host_job.py"
JOB: Final = "docs/protocol.md 13; inaproto.core.host.job"

JOB_FAULTS: Final = (
    fault(
        "halt_of_the_ring_before",
        RACES,
        "halts ranks that gather when the ring before them ends",
        Hearing.heard,
        "if not in_it and not self.has_heard_of(message.job, ring_id):",
        "if not in_it:",
        test=f"{TESTS}::test_ranks_that_gather_are_not_halted_with_the_ring_before_them",
    ),
    PlantedFault(
        "back_in_the_ring_of_old",
        RACES,
        "takes ranks that came back for those of the ring that they were in",
        (Change(_is_of, " or job.has_come_back", ""),),
        test=f"{TESTS}::test_ranks_that_came_back_fail_with_the_present_ring_of_their_job",
    ),
    PlantedFault(
        "comes_back_without_progress",
        JOB,
        "says, when a host comes back, that it has no results",
        (Change(HostJob._announce, "self.progress if", "0 if"),),
        shape=going_on,
    ),
    PlantedFault(
        "comes_back_as_a_stranger",
        JOB,
        "announces ranks that come back as if they had just started",
        (Change(HostJob._announce, "self.progress if self.has_started else None", "None"),),
        shape=going_on,
    ),
    fault(
        "others_named_as_lost",
        JOB,
        "names all ranks of a host as lost where one of an elastic job is",
        HostJob._tell_gone,
        "if first is None or not self.ranks.are_elastic:",
        "if first or not first:",
        shape=elastic,
    ),
    PlantedFault(
        "last_words_lost",
        JOB,
        "forgets to tell the next switch of ranks that were lost while there was none",
        (Change(HostJob._tell_gone, "self.last_words = words", "self.last_words = []"),),
        test=f"{TESTS}::test_the_next_switch_hears_of_a_rank_that_was_lost_while_there_was_none",
    ),
    fault(
        "left_hosts_close_at_once",
        JOB,
        "gives queue pairs back when its own ranks have left",
        HostJob._leave,
        "self.phase = Phase.LEFT",
        "self._close()",
        shape=going_on,
    ),
    PlantedFault(
        "kept_since_the_start",
        JOB,
        "takes all results that others may lack from the slots of the ring that ends",
        (Change(HostJob._stop_ring, "tuple(operations.kept), self._began_at", "tuple(operations.kept), 0"),),
        shape=going_on,
    ),
    PlantedFault(
        "second_halt_forgets",
        JOB,
        "counts results as kept from the ring before the one that ends",
        (Change(HostJob._stop_ring, "self._began_at = operations.progress", "pass"),),
        shape=going_on,
    ),
    PlantedFault(
        "overdue_never_given_up",
        JOB,
        "asks the switch for whom an overdue all-reduce waits, and does not mind the answer",
        (Change(Carrier._give_up_if_overdue, "if why and self.verdict is None:", "if not why and why:"),),
        test=f"{TESTS}::test_an_overdue_all_reduce_is_given_up_when_the_switch_says_for_whom_it_waits",
    ),
    PlantedFault(
        "failed_of_another_ring",
        RACES,
        "ends the ranks of a job whichever of its rings has failed",
        (Change(Hearing._failed, "concerned = _is_of(job, ring_id) if ring_id else", "concerned = True or"),),
        test=f"{TESTS}::test_a_failure_of_another_ring_is_not_that_of_this_one",
    ),
)
