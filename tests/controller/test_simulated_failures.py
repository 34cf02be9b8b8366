"""Hosts and switches that fail under simulated jobs: what is lost, what goes on, and that all ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster.model import SHARING, measured
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.trees.builder import Changes, TreeJob
from inaproto_controller.planning.turns.policy import Policy
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.failures import FailureEvent, Part, Reliability, draw_failures
from inaproto_controller.simulate.outages import Outages, rows_of
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.results import Operation, Result
from inaproto_controller.simulate.setting import Migration

TREE = FatTree((4, 4, 2), (1, 2, 2))
"""32 hosts; switches: 0 to 7 in racks, 8 to 11 in pods, 12 to 15 above."""
MODEL = "vit-large-4"
TIMES = StepTimes(measured(MODEL), SHARING, hosts=2)


def run(
    requests: Sequence[Request],
    *failures: FailureEvent,
    checkpoint_steps: int = 1,
    trees: str = "exclusive",
    row_racks: int | None = None,
    operations: list[Operation] | None = None,
) -> Result:
    setting = make_setting(
        TREE, placement="first", trees=trees, policy=Policy.GREEDY, speeds=SHARING, migration=Migration()
    )
    return simulate(
        setting,
        requests,
        failures=failures,
        checkpoint_steps=checkpoint_steps,
        row_racks=row_racks,
        on_operation=None if operations is None else operations.append,
    )


def down(seconds: float, part: Part, number: int) -> FailureEvent:
    return FailureEvent(seconds, part, number, up=False)


def up(seconds: float, part: Part, number: int) -> FailureEvent:
    return FailureEvent(seconds, part, number, up=True)


@pytest.mark.parametrize(("checkpoint_steps", "lost"), [(1, 0), (2, 1), (5, 3), (100, 3)])
def test_a_job_that_loses_a_host_begins_anew_elsewhere_from_its_last_checkpoint(
    checkpoint_steps: int, lost: int
) -> None:
    fails_at = 3.5 * TIMES.step_ina
    result = run([Request(MODEL, 8, 10)], down(fails_at, Part.HOST, 5), checkpoint_steps=checkpoint_steps)
    (job,) = result.jobs
    assert (job.restarts, job.steps_lost, job.steps, job.is_finished) == (1, lost, 10, True)
    assert job.placed_on == (0, 1, 2, 3, 4, 6, 7, 8)
    left = 10 - 3 + lost
    assert job.finish == pytest.approx(fails_at + left * TIMES.step_ina, rel=1e-12)
    assert job.plain_seconds == pytest.approx(10 * TIMES.step_plain, rel=1e-12)
    assert job.start == 0


def test_a_job_waits_for_a_repair_where_hosts_are_missing() -> None:
    result = run(
        [Request(MODEL, 32, 2), Request(MODEL, 1, 1)],
        down(0.5 * TIMES.step_ina, Part.HOST, 31),
        up(9.0, Part.HOST, 31),
    )
    big, small = result.jobs
    assert big.finish == pytest.approx(9.0 + 2 * TIMES.step_ina, rel=1e-12)
    assert small.start == big.finish  # it waits behind
    never = run([Request(MODEL, 32, 2), Request(MODEL, 1, 1)], down(0.01, Part.HOST, 31))
    assert [job.is_finished for job in never.jobs] == [False]
    assert never.unplaced == 1


def test_a_rack_whose_switch_fails_is_cut_off() -> None:
    result = run([Request(MODEL, 4, 3)], down(0.01, Part.SWITCH, 0))
    (job,) = result.jobs
    assert (job.placed_on, job.restarts) == ((4, 5, 6, 7), 1)
    assert [moment.hosts_down for moment in result.moments][-1] == 4


def test_a_tree_that_loses_a_switch_is_lost_and_its_operation_begins_anew() -> None:
    """Two racks of a pod: the tree's root is switch 8; it fails within the first operation."""
    operations: list[Operation] = []
    fails_at = TIMES.ready[0] + TIMES.ina[0] / 2
    result = run([Request(MODEL, 8, 3)], down(fails_at, Part.SWITCH, 8), operations=operations)
    first = operations[0]
    assert not first.uses_ina
    assert (first.begin, first.end) == (TIMES.ready[0], fails_at + TIMES.plain[0])
    assert not any(operation.uses_ina for operation in operations)  # one tree for life
    (job,) = result.jobs
    assert (job.restarts, job.migrations, job.ina_seconds) == (0, 0, 0)
    assert job.finish > 2 * TIMES.step_plain


@pytest.mark.parametrize("trees", ["exclusive", "random", "first", "rebuild-all"])
def test_builders_go_round_switches_that_are_down(trees: str) -> None:
    """All but one of the switches above the pods are down: one candidate is left for a job of both pods."""
    failures = [down(0.0, Part.SWITCH, switch) for switch in (12, 13, 15)]
    operations: list[Operation] = []
    result = run([Request(MODEL, 4, 1), Request(MODEL, 28, 2)], *failures, trees=trees, operations=operations)
    big = result.jobs[1]
    assert big.ina_seconds > 0
    every = run([Request(MODEL, 32, 1)], *failures, down(0.0, Part.SWITCH, 14), trees=trees)
    assert every.jobs[0].ina_seconds == 0
    assert every.jobs[0].is_finished


@pytest.mark.parametrize("trees", ["none", "first", "exclusive", "rebuild-all"])
def test_whatever_fails_all_jobs_end_and_the_same_seed_gives_the_same(trees: str) -> None:
    restarts = 0
    for seed in range(12):
        draw = random.Random(f"{seed} {trees}")
        requests = [
            Request(draw.choice(["opt-125m-4", MODEL, "bert-base-4"]), draw.choice([1, 2, 4, 8, 20]), 4)
            for _ in range(25)
        ]
        failures = draw_failures(
            {Part.HOST: 32, Part.SWITCH: 16},
            {Part.HOST: Reliability(20.0, 0.3), Part.SWITCH: Reliability(10.0, 0.5)},
            until=60.0,
            seed=seed,
        )
        result, again = (run(requests, *failures, trees=trees, checkpoint_steps=2) for _ in range(2))
        assert result == again
        assert [job.steps for job in result.jobs] == [4] * 25
        assert all(job.is_finished for job in result.jobs)
        restarts += sum(job.restarts for job in result.jobs)
        for job in result.jobs:
            assert job.seconds >= job.possible_seconds * (1 - 1e-12)
    assert restarts > 20


def test_a_row_takes_its_racks_and_gives_them_back() -> None:
    """Four rows of two racks: with the first one down, the job of eight hosts goes on in the second one."""
    fails_at = 3.5 * TIMES.step_ina
    result = run(
        [Request(MODEL, 8, 10), Request(MODEL, 32, 1)],
        down(fails_at, Part.ROW, 0),
        up(20.0, Part.ROW, 0),
        row_racks=2,
    )
    small, whole = result.jobs
    assert (small.restarts, small.placed_on) == (1, tuple(range(8, 16)))
    assert whole.start == 20.0
    assert {moment.hosts_down for moment in result.moments} == {0, 8}


@pytest.mark.parametrize("trees", ["exclusive", "sticky", "rebuild-all"])
@pytest.mark.parametrize("row_racks", [1, 3])
def test_a_row_fails_as_its_hosts_and_switches_do_at_once(trees: str, row_racks: int) -> None:
    """Rows of racks and, between them, switches above: the same without rows, part by part."""
    rows = rows_of(make_setting(TREE).network, row_racks)
    assert sorted(host for row in rows for host in row.hosts) == list(range(32))
    assert [switch for row in rows for switch in row.switches] == list(range(8))
    draw = random.Random(f"{trees} {row_racks} rows")
    requests = [Request(MODEL, draw.choice([1, 2, 4, 8, 20]), 4) for _ in range(25)]
    drawn = draw_failures(
        {Part.ROW: len(rows), Part.SWITCH: 16},
        {Part.ROW: Reliability(1.0, 0.2), Part.SWITCH: Reliability(5.0, 0.5)},
        until=30.0,
        seed=row_racks,
    )
    failures = [one for one in drawn if one.part is Part.ROW or one.number >= 8]
    apart = [
        part
        for one in failures
        for part in (
            [
                *(FailureEvent(one.seconds, Part.HOST, int(host), one.up) for host in rows[one.number].hosts),
                *(FailureEvent(one.seconds, Part.SWITCH, at, one.up) for at in rows[one.number].switches),
            ]
            if one.part is Part.ROW
            else [one]
        )
    ]
    found = run(requests, *failures, trees=trees, row_racks=row_racks)
    assert found == run(requests, *apart, trees=trees)
    assert sum(job.restarts for job in found.jobs) > 3


def test_a_host_that_failed_in_a_row_stays_down_until_both_are_up() -> None:
    network = make_setting(TREE).network
    events = [
        down(1.0, Part.HOST, 2),
        down(2.0, Part.ROW, 0),
        down(3.0, Part.SWITCH, 1),
        up(4.0, Part.ROW, 0),
        up(5.0, Part.HOST, 2),
        up(6.0, Part.SWITCH, 1),
    ]
    outages = Outages(network, events, rows_of(network, 2))
    assert [outages.take() for _ in events] == [
        ([2], [], []),
        ([0, 1, 3, 4, 5, 6, 7], [], [0, 1]),
        ([], [], []),
        ([], [0, 1, 3], [0]),
        ([], [2], []),
        ([], [4, 5, 6, 7], [1]),
    ]
    assert outages.hosts_down == 0


def test_failures_that_cannot_happen_are_named() -> None:
    with pytest.raises(ConfigError, match="no host 32"):
        run([Request(MODEL, 1, 1)], down(0.0, Part.HOST, 32))


class EverOther:
    """Everybody gets the next of its roots that are not barred, each time."""

    wants_completions = True

    def __init__(self) -> None:
        self._builds = 0

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        self._builds += 1
        found: Changes = {}
        for job in jobs:
            roots = [root for root in range(job.roots) if root not in job.barred]
            found[job.slot] = roots[self._builds % len(roots)]
        return found


def run_while_a_tree_waits(
    hosts: int, lost: FailureEvent, operations: list[Operation], *, migration: Migration
) -> Result:
    """A switch that is in nobody's way fails within the first operation, so trees are exchanged."""
    setting = make_setting(TREE, placement="first", policy=Policy.GREEDY, speeds=SHARING, migration=migration)
    first = down(TIMES.ready[0] + TIMES.ina[0] / 3, Part.SWITCH, 7)
    assert first.seconds < lost.seconds < TIMES.ready[0] + TIMES.ina[0]
    return simulate(
        replace(setting, trees=EverOther()),
        [Request(MODEL, hosts, 3)],
        failures=[first, lost],
        on_operation=operations.append,
    )


def test_a_job_may_lose_a_host_while_its_tree_waits() -> None:
    lost = down(TIMES.ready[0] + TIMES.ina[0] / 2, Part.HOST, 3)
    result = run_while_a_tree_waits(28, lost, [], migration=Migration())
    assert [(job.is_finished, job.restarts) for job in result.jobs] == [(False, 1)]


def test_a_tree_that_waits_and_replaces_a_lost_one_costs_its_downtime() -> None:
    lost = down(TIMES.ready[0] + TIMES.ina[0] / 2, Part.SWITCH, 9)
    operations: list[Operation] = []
    migration = Migration(0.01, 0.05)
    result = run_while_a_tree_waits(8, lost, operations, migration=migration)
    (job,) = result.jobs
    assert job.downtime >= migration.total
    with_ina = [one.begin for one in operations if one.uses_ina]
    assert with_ina
    assert min(with_ina) >= lost.seconds + migration.total


def test_who_asked_first_is_first_again() -> None:
    """Racks 0 and 1 fail together: there are hosts for one of the two jobs at a time."""
    failures = [down(0.3, Part.SWITCH, switch) for switch in (0, 1)]
    result = run([Request(MODEL, 4, 9), Request(MODEL, 4, 9), Request(MODEL, 20, 40)], *failures)
    first, second, _ = result.jobs
    assert (first.restarts, second.restarts) == (1, 1)
    assert first.placed_on == (28, 29, 30, 31)
    assert first.finish < second.finish


def test_steps_of_a_job_count_on_after_it_was_interrupted() -> None:
    operations: list[Operation] = []
    lost = down(3.5 * TIMES.step_ina, Part.HOST, 5)
    run([Request(MODEL, 8, 10)], lost, checkpoint_steps=2, operations=operations)
    last = [one.step for one in operations if one.index == TIMES.count - 1]
    assert last == [0, 1, 2, *range(2, 10)]
