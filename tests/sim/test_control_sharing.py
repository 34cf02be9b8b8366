"""Two jobs that call one all-reduce after the other share a pool, in the deterministic control world."""

from __future__ import annotations

from itertools import pairwise

import pytest

from inaproto.core.sharing.events import Path
from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.checkers.checkers import all_checkers
from inaproto.sim.control.config import ControlConfig, ControlJob, Rule
from inaproto.sim.control.seat import SimSeat
from inaproto.sim.control.world import ControlResult, ControlWorld
from inaproto.units import MS, US
from inaproto.wire.messages.slots import Lease

ABORTED = "sharing: round aborted: a seat is in an INA operation"


class Begun(ControlChecker):
    """Notes who began operations by the switches, in order."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def began(self, seat: SimSeat, index: int, path: Path, epoch: int | None, lease: Lease | None) -> None:
        if path is Path.INA:
            self.jobs.append(seat.job.name)


def job(name: str, operations: int) -> ControlJob:
    return ControlJob(
        name=name,
        hosts=(0, 1),
        tree=0,
        arrives_ns=1,
        operations=operations,
        ina_ns=1000 * US,
        chain_ns=2500 * US,
        think_ns=0,
        drain_ns=10 * US,
        stall_ns=20 * MS,
    )


def run(
    rule: Rule,
    *,
    operations: int = 100,
    objections_max: int | None = 3,
    margin: int = 0,
    end_margin: int = 2,
    slice_ns: int = 5 * MS,
) -> tuple[list[str], ControlResult]:
    """Who began each operation by the switches, and the result."""
    begun = Begun()
    config = ControlConfig(
        seed="back to back",
        rule=rule,
        hosts=2,
        switches=(2,),
        trees=((0,),),
        pools=(1,),
        jobs=(job("job0", operations), job("job1", operations)),
        turn_operations=0,
        slice_ns=slice_ns,
        weather_until_ns=MS,
        margin=margin,
        end_margin=end_margin,
        objections_max=objections_max,
    )
    result = ControlWorld(config, checkers=[*all_checkers(), begun]).run()
    assert result.violation is None
    return begun.jobs, result


def changes(jobs: list[str]) -> int:
    return sum(before != after for before, after in pairwise(jobs))


@pytest.mark.parametrize("operations", [50, 100, 200])
def test_as_printed_a_job_that_never_pauses_keeps_the_pool_to_its_end(operations: int) -> None:
    """Each round meets it in an operation, however long it goes on."""
    jobs, result = run("equal-index", operations=operations, objections_max=None)
    kept = 2 * operations - 4
    assert jobs[:kept] == ["job0"] * kept, "all but one that began too soon, and the last, begun in a round"
    assert changes(jobs) == 1
    assert result.measures.aborted >= result.marks[ABORTED] >= 5


def test_rounds_that_are_aborted_again_and_again_end_in_a_turn_that_ends_by_itself() -> None:
    for objections_max in (1, 3):
        jobs, result = run("equal-index", objections_max=objections_max)
        assert changes(jobs) >= 9
        assert result.marks["sharing: turn ended without a round"] >= changes(jobs), "each is made so"
        assert result.measures.rescued == 0


def test_by_index_nothing_is_aborted_and_no_operation_is_rescued() -> None:
    jobs, result = run("by-index")
    assert changes(jobs) == result.measures.turns - 1 >= 17, "each turn is used, and goes to the other job"
    assert result.measures.aborted == result.measures.rescued == 0


def test_by_index_a_margin_costs_turns_and_spares_waits_only_where_a_turn_ends() -> None:
    """Nothing is rescued: an operation that the decision may concern waits for it."""
    share = {margin: len(run("by-index", margin=margin)[0]) for margin in (0, 2)}
    assert share[0] > 1.5 * share[2]
    waits = {0: 0, 2: 0}
    for end_margin in waits:
        for slice_ns in range(3 * MS, 9 * MS, MS):
            _, result = run("by-index", end_margin=end_margin, slice_ns=slice_ns)
            assert result.measures.rescued == 0
            waits[end_margin] += result.marks["an operation waited for a decision"]
    assert waits[0] > 4 * waits[2]
