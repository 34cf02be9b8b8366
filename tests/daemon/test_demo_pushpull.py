"""``inaproto demo pushpull`` as users run it, and that its last line is measured, not assumed."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from inaproto.daemon.settings.models_file import models_of
from inaproto_hil.demo.push_pull import Clocks, Config, Reference, Tally, interior_host, last_line, report
from inaproto_hil.rigs.cluster import inaproto_command
from tests.clusters.models import models_document

RUN_TIMEOUT_S = 400


@pytest.mark.timeout(RUN_TIMEOUT_S + 20)
def test_a_host_and_a_server_are_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    argv = [inaproto_command(), "demo", "pushpull", "--workers", "3", "--steps", "9", "--out", str(tmp_path)]
    run = subprocess.run(
        [*argv, "--json"], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
    )
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert last_line(told) == "exact=yes staleness_violations=0 lost_updates=0"
    assert told["durable_updates"] == {"ps0": [9] * 3, "ps1": [9] * 3}
    assert told["pulls"] >= 3 * 9
    assert told["reconnections"] >= 1
    logs = {path.stem: path.read_text() for path in tmp_path.glob("*.log")}
    assert (
        sum(len(re.findall("^ready ", log, re.MULTILINE)) == 2 for log in logs.values()) == 2
    )  # both killed
    assert "changes after snapshot" in logs["ps1"]


CONFIG = Config(workers=3, servers=2, elements=20, steps=4)


def counted(**changes: object) -> dict[str, object]:
    """A report of a run that went well, but for ``changes``."""
    tally = replace(Tally(pulls=15, counts={"ps0": [4] * 3, "ps1": [4] * 3}, durable_is_sum=True), **changes)  # type: ignore[arg-type]
    return report(CONFIG, tally, Counter(), 1.0)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "exact=yes staleness_violations=0 lost_updates=0"),
        ({"durable_is_sum": False}, "exact=no staleness_violations=0 lost_updates=0"),
        ({"inexact_pulls": 1}, "exact=no staleness_violations=0 lost_updates=0"),
        ({"staleness_violations": 2}, "exact=yes staleness_violations=2 lost_updates=0"),
        ({"counts": {"ps0": [4, 4, 1], "ps1": [4, 2, 4]}}, "exact=no staleness_violations=0 lost_updates=5"),
        ({"counts": {"ps0": [4, 4, 5], "ps1": [4] * 3}}, "exact=no staleness_violations=0 lost_updates=0"),
    ],
    ids=["well", "wrong sum on disk", "wrong sum pulled", "stale", "lost", "twice"],
)
def test_the_last_line_says_what_was_counted(changes: dict[str, object], line: str) -> None:
    assert last_line(counted(**changes)) == line


def test_weights_say_what_is_in_them() -> None:
    (model,) = models_of(models_document(3, 2, dtype="int64", elements=CONFIG.elements), Path("/run")).models
    reference = Reference(model, CONFIG)
    weights = reference.update(0, 1) + reference.update(2, 1) + reference.update(2, 2)
    for shard in model.shards:
        counts = reference.counts(shard, weights)
        assert counts == [1, 0, 2]
        assert reference.is_sum(shard, weights, counts)
        assert not reference.is_sum(shard, weights, [1, 1, 2])
        assert not reference.is_sum(shard, weights + 1, counts)
        assert not reference.is_sum(shard, weights, [1, 0, 99])
    twice = weights + reference.update(0, 1)
    assert not reference.is_sum(model.shards[0], twice, reference.counts(model.shards[0], twice))


def test_the_host_that_is_killed_has_children() -> None:
    for hosts in range(3, 20):
        (model,) = models_of(models_document(hosts, 2, elements=20), Path("/run")).models
        victim = model.node_of(interior_host(model))
        assert any(shard.tree.children(victim) for shard in model.shards)


async def test_what_happens_at_a_step_happens_there_however_fast_the_workers_are() -> None:
    clocks, at = Clocks(3), 0

    async def work(worker: int) -> None:
        for clock in range(1, 10):
            clocks.advance(worker, clock)
            await trio.lowlevel.checkpoint()

    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            for worker in range(3):
                nursery.start_soon(work, worker)
            await clocks.past(3)
            at = max(clocks.of_workers)
        await clocks.past(9)
    assert 3 <= at <= 5
