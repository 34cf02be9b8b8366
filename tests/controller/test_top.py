"""``inaproto top``: rates between two looks, and what is seen of daemons that run."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from click.testing import CliRunner, Result
from rich.console import Console

from inaproto.daemon.observe.status import Report
from inaproto_controller.service.top.command import top
from inaproto_controller.service.top.snapshot import Snapshot, rates
from inaproto_controller.service.top.view import JOBS_SHOWN, Further, scaled, show
from tests.clusters.loopback import open_cluster, together
from tests.daemon.test_cli_daemons import COMMAND, DEADLINE_S, daemon, environment
from tests.daemon.test_controller_daemon import running

COUNT = 1000


def host(operations: int, pid: int = 1) -> dict[str, Any]:
    totals = {"operations_by_path": {"chain": operations}, "bytes_by_path": {"chain": 1000 * operations}}
    return {
        "name": "h0",
        "pid": pid,
        "totals": totals | {"recoveries": 0},
        "switch": {"connected": True},
        "rings": [],
    }


def snapshot(at: float, *hosts: dict[str, Any], **rest: Any) -> Snapshot:
    return Snapshot(at, Report(hosts=list(hosts)), **rest)


def test_rates_are_differences_over_the_time_between() -> None:
    found = rates(snapshot(10.0, host(5)), snapshot(12.0, host(9)))
    assert found["seconds"] == 2.0
    assert found["hosts"] == {"h0": {"operations_per_s": {"chain": 2.0}, "bytes_per_s": {"chain": 2000.0}}}


def test_what_cannot_be_said_is_left_out() -> None:
    assert rates(snapshot(1.0, host(5)), snapshot(2.0, host(1, pid=2)))["hosts"] == {}, "started anew"
    assert rates(snapshot(1.0), snapshot(2.0, host(1)))["hosts"] == {}, "new"
    one = snapshot(1.0, host(1))
    assert rates(one, one)["hosts"]["h0"]["operations_per_s"] == {}


def text(found: Snapshot, before: Snapshot) -> str:
    console = Console(width=120, force_terminal=False)
    with console.capture() as capture:
        console.print(show(found, rates(before, found), Further("inaproto job list --dir /x", "")))
    return capture.get()


def test_long_lists_are_cut_and_say_so() -> None:
    job = {"number": 1, "name": "a [red]", "state": "queued", "hosts": [], "hosts_wanted": 2, "tree": None}
    jobs = [job | {"why": "waits for 2 hosts"}] * (JOBS_SHOWN + 3)
    history = {"rounds": {"committed": 4}, "aborts": {"late": 2, "unequal": 0}, "turns": 4}
    history |= {"migrations": 1, "fallbacks": 0}
    status: dict[str, Any] = {
        "leads": True,
        "term": 3,
        "agents": {"h0": {"presence": "up"}},
        "history": history,
    }
    status["agents"] |= {"s": {"presence": "gone"}}
    group: dict[str, Any] = {
        "pool": "shared",
        "turns": [{"job": "a", "epoch": 7, "first": 120}],
        "wanted": "b",
    }
    group |= {"phase": "preparing", "missing": ["b@h0"], "jobs": {"a": {"turns": 4}, "b": {"turns": 3}}}
    status["sharing"] = [group]
    shown = text(snapshot(1.0, controller=status, jobs=jobs), snapshot(1.0))
    assert "controller leads, term 3; 1 of 2 hosts and switches report" in shown
    assert "not heard of: s" in shown
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert "pool its turn epoch from next round turns of jobs" in rows
    assert "shared a 7 120 b preparing, 1 missing a 4, b 3" in rows
    assert "rounds 4 committed, aborted: 2 late; turns 4, migrations 1, fallbacks 0" in shown
    assert shown.count("a [red]") == JOBS_SHOWN
    assert "and 3 more: inaproto job list --dir /x" in shown
    assert [scaled(value) for value in (0, 12.345, 4096, 2.5e6, 1e10)] == ["0", "12.3", "4.1k", "2.5M", "10G"]


async def invoke(*words: str) -> Result:
    result: Result = await trio.to_thread.run_sync(lambda: CliRunner().invoke(top, list(words)))
    return result


async def test_running_daemons_are_seen_with_rates(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 2) as cluster:
        comms = await cluster.job("train", 2)
        ended = trio.Event()

        async def train() -> None:
            while not ended.is_set():
                for work in [comm.all_reduce(np.ones(COUNT, np.float32)) for comm in comms]:
                    await work

        async with trio.open_nursery() as nursery:
            nursery.start_soon(train)
            told = await invoke("--dir", str(runtime_dir), "--once", "--json", "--interval", "0.3")
            shown = await invoke("--dir", str(runtime_dir), "--once", "--interval", "0.3")
            ended.set()
        assert told.exit_code == shown.exit_code == 0, told.output + shown.output
        found = json.loads(told.output)
        rate = found["rates"]["hosts"]["h0"]
        assert rate["operations_per_s"]["switch"] > 0
        assert rate["bytes_per_s"]["switch"] == pytest.approx(rate["operations_per_s"]["switch"] * COUNT * 4)
        (switch,) = found["rates"]["switches"].values()
        assert switch["summed_per_s"] > 0
        assert found["controller"] is None
        for word in ("h0", "h1", "ops/s", "switch ", "summed/s"):
            assert word in shown.output
        await together([comm.aclose for comm in comms])


async def test_a_controller_and_its_jobs_are_seen_and_status_passes_it_over(runtime_dir: Path) -> None:
    async with running(runtime_dir) as live:
        await live.command("submit", "train", "--hosts", "2")
        (live.settings.dir / "x.metrics").touch()
        found = json.loads((await invoke("--dir", str(live.settings.dir), "--once", "--json")).output)
        assert found["controller"]["leads"]
        assert [job["name"] for job in found["jobs"]] == ["train"]
        assert not [one for one in found["report"]["problems"] if "controller" in one], "it speaks HTTP"
        alone = await invoke("--controller", str(live.settings.jobs_path), "--once", "--interval", "0.1")
        assert alone.exit_code == 0
        assert "controller leads, term 1" in alone.output
        assert "train" in alone.output


async def test_who_does_not_answer_is_told(runtime_dir: Path) -> None:
    told = await invoke("--dir", str(runtime_dir), "--once", "--interval", "0.1")
    assert told.exit_code == 1
    assert "no inaproto daemon has its socket here" in " ".join(told.output.split())


def test_on_a_terminal_it_goes_on_until_it_is_interrupted(runtime_dir: Path) -> None:
    with daemon("switch", "--dir", str(runtime_dir)):
        ours, theirs = pty.openpty()
        words = [COMMAND, "top", "--dir", str(runtime_dir), "--interval", "0.1"]
        with subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment()
        ) as process:
            os.close(theirs)
            seen = b""
            try:
                while seen.count(b"summed/s") < 3:  # it has been drawn anew
                    seen += os.read(ours, 1 << 16)
                process.send_signal(signal.SIGINT)
                with suppress(OSError):  # what a terminal says whose other side is closed
                    while data := os.read(ours, 1 << 16):
                        seen += data
                assert process.wait(DEADLINE_S) == 0
            finally:
                process.kill()
                os.close(ours)
    assert b"Traceback" not in seen
    assert b"\x1b[?1049h" in seen, "on a screen of its own"
    assert b"\x1b[?1049l" in seen, "which is given back"
