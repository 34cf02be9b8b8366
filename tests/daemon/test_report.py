"""``inaproto report`` of running daemons: jobs that have ended, and why no switch summed them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import trio
from click.testing import CliRunner

from inaproto_controller.report.command import report
from tests.clusters.loopback import Cluster, open_cluster, together

SMALL: dict[str, Any] = {"mtu": 256, "message_packets": 4}
SIZES = (1, 53, 54, 700, 3000)
"""Elements: of less than a packet, of just one with its header, of one more, and of several messages."""


async def asked(*words: str) -> dict[str, Any]:
    def ask() -> dict[str, Any]:
        answer = CliRunner().invoke(report, [*words, "--json"])
        assert answer.exit_code == 0, answer.output
        found: dict[str, Any] = json.loads(answer.stdout)
        return found

    return await trio.to_thread.run_sync(ask)


async def train(cluster: Cluster, job: str, rounds: int, **options: Any) -> None:
    comms = await cluster.job(job, 2, **options)
    for _ in range(rounds):
        for count in SIZES:
            for work in [comm.all_reduce(np.ones(count, np.float32)) for comm in comms]:
                assert (await work)[0] == 2
    await together([comm.aclose for comm in comms])


def assert_adds_up(found: dict[str, Any]) -> None:
    for host, paths in found["agreement"]["hosts"].items():
        for path, one in paths.items():
            assert one["by_jobs"] == one["counted"], (host, path)
    assert found["agreement"]["switches"]["difference"] == 0


async def test_jobs_that_have_ended_are_told_one_by_one(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2, **SMALL) as cluster:
        await train(cluster, "first", 2)
        await train(cluster, "second", 3)
        await train(cluster, "first", 1)
        found = await asked("second", "--dir", str(runtime_dir))
        assert (found["hosts"], found["hosts_told"], found["ranks"]) == (2, ["h0", "h1"], 2)
        (only,) = found["paths"]
        assert (only["path"], only["operations"]) == ("switch", 3 * len(SIZES))
        assert only["bytes"] == 3 * 4 * sum(SIZES)
        assert found["has_ended"]
        assert not found["reasons"]
        assert_adds_up(found)
        found = await asked("first", "--dir", str(runtime_dir))
        assert (found["operations"], found["other_runs"]) == (len(SIZES), 1), "its last run"
        assert await asked("--dir", str(runtime_dir)) == {"jobs": ["first", "second"]}


async def test_why_the_hosts_summed_is_known_after_the_job(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 0, switch=False, **SMALL) as cluster:
        await cluster.start_switch(memory_kib=0)
        for _ in range(2):
            await cluster.start_host()
        await train(cluster, "train", 1)
        found = await asked("train", "--dir", str(runtime_dir))
        assert [one["path"] for one in found["paths"]] == ["chain"]
        (why, ended) = found["reasons"]
        assert "it has 0 in all" in why["reason"], why
        assert (why["path"], why["times"]) == ("chain", 1)
        assert why["lasted_s"] > 0
        assert "the switch cannot sum for it" in ended["reason"]
        assert_adds_up(found)
        page = runtime_dir / "train.html"
        await trio.to_thread.run_sync(
            lambda: CliRunner().invoke(report, ["train", "--dir", str(runtime_dir), "--html", str(page)])
        )
        assert "it has 0 in all" in page.read_text()
