"""Real processes: a controller whose hosts and switch reach it by TLS, by certificates of ``inaproto ca``."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import trio

import inaproto
from tests.daemon.test_cli_daemons import daemon, run

DEADLINE_S = 600
LENGTH = 5000
CLUSTER = {
    "hosts": ["h0", "h1"],
    "switches": [{"name": "leaf", "jobs": 1}],
    "links": [{"between": ["h0", "leaf"]}, {"between": ["h1", "leaf"]}],
}


def issue(directory: Path, role: str, name: str, *addresses: str) -> str:
    """Its directory of certificates."""
    out = str(directory / f"{role}-{name}")
    own = [word for address in addresses for word in ("--address", address)]
    done = run(
        *("ca", "issue", "--dir", str(directory / "ca"), "--role", role, "--name", name, "--out", out, *own)
    )
    assert done.returncode == 0, done.stderr
    return out


def until(directory: Path, daemon_of: str, *words: str) -> None:
    """The status of a daemon of this machine says all these words."""
    told, deadline = "", time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        told = run("status", "--dir", str(directory)).stdout
        if all(" ".join(word.split()) in " ".join(told.split()) for word in words):
            return
    raise AssertionError(f"{daemon_of} never says {words}: {told}")


def asked(directory: Path, *words: str) -> dict[str, Any]:
    done = run("job", words[0], "--dir", str(directory), "--json", *words[1:])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_job_by_way_of_tls_and_who_is_somebody_else(runtime_dir: Path) -> None:
    made = run("ca", "init", "--dir", str(runtime_dir / "ca"))
    assert made.returncode == 0, made.stderr
    (runtime_dir / "cluster.json").write_text(json.dumps(CLUSTER))
    controller, hosts, wrong = (str(runtime_dir / name) for name in ("c", "h", "w"))
    with ExitStack() as stack:

        def start(*arguments: str) -> str:
            started = stack.enter_context(daemon(*arguments))
            assert started.ready_line.startswith("ready "), arguments
            return started.ready_line

        ready = start(
            *("controller", "--dir", controller, "--cluster", str(runtime_dir / "cluster.json")),
            *("--agents-listen", "127.0.0.1:0", "--name", "ctl", "--report-ms", "50"),
            *("--tls", issue(runtime_dir, "controller", "ctl", "127.0.0.1")),
        )
        address = ready.partition("control=")[2]
        where = f"tls://ctl@{address}"
        own = issue(runtime_dir, "switch", "leaf")
        start("switch", "--dir", hosts, "--name", "leaf", "--controller", where, "--tls", own)
        for number in range(2):
            of_host = ("host", "--dir", hosts, "--name", f"h{number}", "--ip", f"10.0.0.{number + 1}")
            start(*of_host, "--controller", where, "--tls", issue(runtime_dir, "host", f"h{number}"))
        until(Path(hosts), "leaf", f"controller at {where} for", "term 1")

        token = asked(Path(controller), "submit", "train", "--hosts", "2")["token"]
        trio.run(run_job, Path(hosts), Path(controller), token)

        # A controller of another name, and a switch where a controller should be.
        start(
            "switch", "--dir", wrong, "--name", "leaf", "--controller", f"tls://other@{address}", "--tls", own
        )
        until(Path(wrong), "leaf", "no controller", "controller ctl at 127.0.0.1 answers, not 'other'")


async def run_job(hosts: Path, controller: Path, token: str) -> None:
    async def seen(state: str, *, has_tree: bool = False) -> None:
        while True:
            found = await trio.to_thread.run_sync(asked, controller, "show", "train")
            if found["state"] == state and (found["tree"] or not has_tree):
                return

    async def work(rank: int) -> None:
        socket = hosts / f"h{rank}.sock"
        async with await inaproto.connect("train", rank, size=2, key=token, socket=socket) as comm:
            total = await comm.all_reduce(np.full(LENGTH, rank + 1, np.int32))
            np.testing.assert_array_equal(total, np.full(LENGTH, 3, np.int32))
            await seen("running", has_tree=True)
            seen_by[rank].set()
            await seen_by[1 - rank].wait()

    seen_by = [trio.Event(), trio.Event()]
    with trio.fail_after(DEADLINE_S):
        await seen("placed")
        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(work, rank)
        await seen("ended")
