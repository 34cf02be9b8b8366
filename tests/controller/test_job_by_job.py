"""The compiled loop against a plain one: small clusters with exchanged trees, waits, blocks and downtimes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inaproto.errors import Unsupported
from inaproto_controller.cluster.compiled import IS_COMPILED
from inaproto_controller.cluster.network import FatTreeNetwork
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.simulate.results import Operation
from tests.conftest import end_without
from tests.controller.job_by_job import Cluster, Job
from tests.controller.random_clusters import Drawn, Restless, draw_cluster, said

TREE = Path(__file__).resolve().parents[2]
SEEDS = 120
BY_WORD = (3, 11, 19)
"""Seeds of what is run without compiled code, which takes its time."""


def judged(drawn: Drawn) -> tuple[list[Job], Restless, int]:
    builder = drawn.builder()
    cluster = Cluster(
        FatTreeNetwork(drawn.tree, drawn.quota),
        Occupancy(drawn.tree),
        builder,
        drawn.policy,
        drawn.speeds,
        drawn.migration,
        is_weighted=drawn.is_weighted,
    )
    jobs = cluster.run(drawn.requests, range(64)[::-1])
    return jobs, builder, cluster.events


@pytest.mark.parametrize("seed", range(SEEDS))
def test_jobs_do_what_they_do_event_by_event(seed: int) -> None:
    """To the last bit: what builders are shown at each change, what each job did, each operation."""
    drawn = draw_cluster(seed)
    jobs, shown, events = judged(drawn)
    operations: list[Operation] = []
    for collect in (None, operations.append):
        found, builder = drawn.simulated(collect)
        assert builder.shown == shown.shown
        assert found.events == events
        for ours, expected in zip(found.jobs, jobs, strict=True):
            assert ours.placed_on == expected.hosts
            assert (ours.start, ours.finish) == (expected.run.started, expected.finish)
            assert ours.steps == expected.run.steps
            assert ours.ina_seconds == expected.run.ina_seconds
            assert ours.migrations == expected.migrations
            assert ours.migrations_counted == expected.counted
    by_job: dict[int, list[Operation]] = {job.number: [] for job in jobs}
    for one in operations:
        by_job[one.job].append(one)
    assert by_job == {job.number: job.operations for job in jobs}


def test_what_is_hard_happens() -> None:
    """Among what is drawn: groups, trees that wait for an operation's end, jobs denied for a downtime."""
    groups = counted = exchanged = downtime = 0
    for seed in range(SEEDS):
        found, _ = draw_cluster(seed).simulated()
        groups += any(one.largest_group > 2 for one in found.moments)
        counted += found.migrations_counted
        exchanged += found.migrations
        downtime += found.downtime > 0
    assert groups > 20
    assert counted > 20
    assert exchanged > 100
    assert downtime > 20


def test_interpreted_is_compiled() -> None:
    if not IS_COMPILED:
        end_without("numba", Unsupported("Numba", "not installed: all else here ran interpreted"))
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.controller.random_clusters", *map(str, BY_WORD)],
        env=environment,
        cwd=TREE,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    how, _, printed = done.stdout.partition("\n")
    assert how == "interpreted"
    assert printed.strip() == said(BY_WORD)
