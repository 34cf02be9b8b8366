"""Real processes that reach each other by TLS alone."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import trio

import inaproto
from inaproto.ca.authority import create
from inaproto.ca.identity import Role
from tests.daemon.test_cli_daemons import daemon, run

DEADLINE_S = 600
LENGTH = 5000


def make_certificates(directory: Path) -> None:
    holders: list[tuple[Role, str, list[str]]] = [
        (Role.SWITCH, "spine", ["127.0.0.1"]),
        (Role.SWITCH, "leaf0", []),
        (Role.HOST, "h0", ["10.0.0.1"]),
        (Role.HOST, "h1", []),
        (Role.OPERATOR, "alice", []),
    ]
    authority = create(directory / "ca")
    for role, name, addresses in holders:
        authority.issue(role, name, directory=directory / name, addresses=addresses)


def write_fabric(directory: Path) -> str:
    lines = ["[[switches]]", 'name = "spine"', 'dir = "run-spine"']
    lines += ["[[switches]]", 'name = "leaf0"', 'dir = "run-leaf0"', 'above = "spine"']
    file = directory / "fabric.toml"
    file.write_text("\n".join(lines))
    return str(file)


def test_a_fabric_whose_daemons_speak_by_tls_alone(runtime_dir: Path) -> None:
    make_certificates(runtime_dir)
    fabric = ("switch", "--fabric", write_fabric(runtime_dir), "--name")
    own = str(runtime_dir / "hosts")
    with ExitStack() as stack:

        def start(*arguments: str, tls: str) -> str:
            started = stack.enter_context(daemon(*arguments, "--tls", str(runtime_dir / tls)))
            assert started.ready_line.startswith("ready ")
            return started.ready_line

        ready = start(*fabric, "spine", "--control-listen", "127.0.0.1:0", tls="spine")
        control = ("--control", "tls://spine@" + ready.partition("control=")[2])
        start(*fabric, "leaf0", *control, tls="leaf0")
        # Their directory is not the root's: its sockets are not where they look.
        start(
            "host", "--dir", own, *control, "--name", "h0", "--ip", "10.0.0.1", "--switch", "leaf0", tls="h0"
        )
        start("host", "--dir", own, *control, "--name", "h1", "--ip", "10.0.0.2", tls="h1")
        trio.run(sum_over, Path(own))
        done = run("status", "--json", *control, "--tls", str(runtime_dir / "alice"))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["switch"]
        assert found["hosts"] == ["h0", "h1"]
        assert found["control_listen"]["refused"] == {}
        refused = run("status", *control, "--tls", str(runtime_dir / "h0"))
        assert refused.returncode == 1
        assert "takes the certificate of an operator" in refused.stderr
        wrong = run(
            "host",
            "--dir",
            own,
            *control,
            "--name",
            "h9",
            "--ip",
            "10.0.0.9",
            "--tls",
            str(runtime_dir / "h0"),
        )
        assert wrong.returncode == 2
        assert "is of host h0, this is host h9" in wrong.stderr


async def sum_over(directory: Path) -> None:
    parts = [np.arange(LENGTH, dtype=np.int32) * (rank + 1) for rank in range(2)]
    totals: list[object] = [None, None]

    async def work(rank: int) -> None:
        socket = directory / f"h{rank}.sock"
        async with await inaproto.connect("train", rank, size=2, key="k", socket=socket) as comm:
            totals[rank] = await comm.all_reduce(parts[rank])

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(work, rank)
    for total in totals:
        np.testing.assert_array_equal(np.asarray(total), parts[0] + parts[1])
