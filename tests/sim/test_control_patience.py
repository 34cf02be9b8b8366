"""Hosts that are heard of and do not answer, or do not go on, in the deterministic control world."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from inaproto.core.sharing.events import Path
from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.checkers.checkers import all_checkers
from inaproto.sim.control.config import RULES, ControlConfig, ControlFault, FaultKind, Rule
from inaproto.sim.control.seat import SimSeat
from inaproto.sim.control.world import ControlResult, ControlWorld
from inaproto.units import MS, US
from inaproto.wire.messages.slots import Lease
from tests.sim.test_control_world import job, world

LASTS = 120 * MS
WEATHER = 200 * MS
BOTH = pytest.mark.parametrize("rule", RULES)
WAYS = pytest.mark.parametrize(
    "kind", [FaultKind.MUTE_SEATS, FaultKind.DEAF_SEATS, FaultKind.PROCESS_STOPS, FaultKind.PARTITION]
)


class Uses(ControlChecker):
    """When the job that nothing befalls began operations by the switches."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def began(self, seat: SimSeat, index: int, path: Path, epoch: int | None, lease: Lease | None) -> None:
        if path is Path.INA and seat.job.name == "job1":
            self.at.append(seat.world.agenda.now)


def config(rule: Rule, kind: FaultKind, **changes: object) -> ControlConfig:
    """A host of the first job is struck; the other job has other hosts, and wants the pool all the time."""
    jobs = (job(0, hosts=(0, 1), operations=200), job(1, hosts=(2, 3), operations=1000))
    struck = ControlFault(300 * US, kind, 0, LASTS, moment="a turn stands", occurrence=5)
    plain = world(
        rule,
        hosts=4,
        jobs=jobs,
        faults=(struck,),
        weather_until_ns=WEATHER,
        silent_ns=1000 * MS,
        host_lease_ns=1000 * MS,
        slot_lease_ns=1000 * MS,
        lease_ns=4 * MS,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def run(given: ControlConfig) -> tuple[int, ControlResult]:
    """How long the other job went without the pool, at most."""
    uses = Uses()
    result = ControlWorld(given, checkers=[*all_checkers(), uses]).run()
    assert result.violation is None
    times = [*(at for at in uses.at if at < WEATHER), WEATHER]
    return max(after - before for before, after in pairwise(times)), result


@BOTH
@WAYS
def test_a_host_that_does_not_answer_keeps_the_pool_from_others_for_a_while_only(
    rule: Rule, kind: FaultKind
) -> None:
    without, _ = run(config(rule, kind, heartbeat_ns=2 * MS))
    patience = {"mute_ns": 12 * MS, "failed_max": 3, "stuck_ns": 6 * MS, "host_lease_ns": 12 * MS}
    patient, result = run(config(rule, kind, heartbeat_ns=2 * MS, **patience))
    assert without > 60 * MS
    assert patient < 40 * MS
    assert result.marks["a job ended"] == 2


@BOTH
def test_a_seat_that_goes_on_in_a_turn_that_was_taken_from_it_disturbs_nobody(rule: Rule) -> None:
    """It hears nothing, and its turn was without end: what it sends is stale at the switch."""
    given = config(
        rule, FaultKind.DEAF_SEATS, mute_ns=5 * MS, failed_max=3, stuck_ns=2 * MS, turn_operations=0
    )
    _, result = run(given)
    assert result.marks["a seat that was given up used the pool"]
    assert result.marks["a stale epoch was refused at the switch"]
