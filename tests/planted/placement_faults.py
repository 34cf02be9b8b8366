"""Faults of who tells ranks on which hosts they belong."""

from __future__ import annotations

from typing import Final

from inaproto.daemon.host import job_hosts
from inaproto.daemon.host.job_hosts import JobHosts
from tests.planted.planting import PlantedFault, fault

PLACES: Final = "docs/protocol.md 17, agent_where"
TESTS: Final = "tests/daemon/test_job_hosts.py"

PLACEMENT_FAULTS: Final[tuple[PlantedFault, ...]] = (
    fault(
        "old_controller_asked",
        PLACES,
        "asks a controller that knows no such question, and loses its session by that",
        JobHosts.connected,
        "send if welcome.places else None",
        "send",
        test=f"{TESTS}::test_a_controller_that_does_not_say_that_it_answers_is_not_asked",
    ),
    fault(
        "ranks_dealt_in_turn",
        PLACES,
        "takes ranks for dealt to the hosts in turn, and sends one that is right to another host",
        job_hosts._why_not_at,
        "hosts[rank // each]",
        "hosts[rank % len(hosts)]",
        test=f"{TESTS}::test_a_rank_hears_on_which_host_it_belongs",
        arguments=(1, "", "train"),
    ),
    fault(
        "queued_job_refused",
        PLACES,
        "refuses ranks of jobs that the controller has not placed, or has never heard of",
        job_hosts._why_not_at,
        'or has not placed it yet\n        return ""',
        'or has not placed it yet\n        return "it is placed nowhere"',
        test=f"{TESTS}::test_a_job_that_is_nowhere_may_come_anywhere",
    ),
    fault(
        "questions_without_limit",
        PLACES,
        "asks as often as processes come, until the controller ends the host's session",
        JobHosts._may_ask,
        "self._allowance.take(trio.current_time())",
        "True",
        test=f"{TESTS}::test_processes_cannot_make_a_host_flood_its_controller",
    ),
)
