"""A fabric of real processes: a spine, two leaves, four hosts; killed switches, and a trunk that is cut.

Ranks run in this program; everything else as on real machines. Every sum is compared with a numpy reference
of the nested plan, by equality.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import inaproto
from inaproto.errors import JobError
from inaproto_hil.rigs.fork_server import ForkedProcess, fork_server
from tests.child_processes import end_forked
from tests.clusters.fabrics import NESTED, SEATS, nested_reference
from tests.daemon.test_allreduce_end_to_end import draw, numpy_dtype
from tests.daemon.test_cli_daemons import environment, run
from tests.daemon.trunk_relay import TrunkRelay

DEADLINE_S = 600.0
LENGTH = 20_000


class Processes:
    """Daemons by name, in ``directory``; ended with :func:`fabric`."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.directory = directory
        self.nursery = nursery
        self.running: dict[str, ForkedProcess] = {}
        self.logs = directory / "logs"
        self.logs.mkdir()

    @property
    def root(self) -> Path:
        return self.directory / "spine"

    def write_fabric(self, *, trunk: Path | None = None) -> None:
        """``trunk``: where leaf1 dials."""
        lines = ["[[switches]]", 'name = "spine"', 'dir = "spine"']
        for leaf in ("leaf0", "leaf1"):
            lines += ["[[switches]]", f'name = "{leaf}"', f'dir = "{leaf}"', 'above = "spine"']
        if trunk is not None:
            lines.append(f'trunk = "{trunk}"')
        (self.directory / "fabric.toml").write_text("\n".join(lines))

    async def start(self, name: str, *arguments: str) -> None:
        """Until it says that it is ready."""
        process = self.running[name] = self._spawn(name, *arguments)
        assert process.stdout is not None
        line = await trio.to_thread.run_sync(process.stdout.readline)
        assert line.startswith("ready "), (name, self.log(name))

    def _spawn(self, name: str, *arguments: str) -> ForkedProcess:
        with (self.logs / f"{name}.log").open("ab") as log:
            return fork_server(environment()).fork(name, arguments, stderr=log, environment=environment())

    async def switch(self, name: str, *arguments: str) -> None:
        await self.start(
            name, "switch", "--fabric", str(self.directory / "fabric.toml"), "--name", name, *arguments
        )

    async def host(self, number: int, switch: str) -> None:
        where = ("--dir", str(self.root), "--switch", switch)
        name, ip = f"h{number}", f"10.0.0.{number + 1}"
        await self.start(name, "host", *where, "--name", name, "--ip", ip, "--transport-timeout", "12")

    async def start_all(self, *arguments: str) -> None:
        (self.root).mkdir(mode=0o700, exist_ok=True)
        async with trio.open_nursery() as nursery:
            for name in ("leaf1", "leaf0", "spine"):
                nursery.start_soon(self.switch, name, *arguments)
            for number, seat in enumerate(SEATS):
                nursery.start_soon(self.host, number, seat)

    def kill(self, name: str) -> None:
        end_forked(self.running.pop(name), signal.SIGKILL)

    def log(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text()

    async def status(self, name: str) -> dict[str, Any]:
        """Of a switch."""
        socket = str(self.directory / name / "control.sock")
        done = await trio.to_thread.run_sync(partial(run, "status", "--json", "--socket", socket))
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["switch"]
        return found

    async def connect(self, rank: int) -> inaproto.Communicator:
        return await inaproto.connect("train", rank, size=4, socket=self.root / f"h{rank}.sock")

    def stop(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for name, process in self.running.items():
            assert process.wait(DEADLINE_S) == 0, (name, self.log(name))
            assert "Traceback" not in self.log(name), self.log(name)


@asynccontextmanager
async def fabric() -> AsyncIterator[Processes]:
    with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as path, trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            processes = Processes(Path(path), nursery)
            processes.write_fabric()
            try:
                yield processes
                processes.stop()
            finally:
                for process in processes.running.values():
                    end_forked(process, signal.SIGKILL)
            nursery.cancel_scope.cancel()


async def train(
    processes: Processes, operations: int, strikes: dict[int, Callable[[], Awaitable[None]]] | None = None
) -> set[str]:
    """All ranks call ``operations`` all-reduces; before some of them something happens, while others run.

    Returns by which paths they were summed.
    """
    paths: set[str] = set()

    async def one(rank: int) -> None:
        async with await processes.connect(rank) as comm:
            for index in range(operations):
                arrays = [draw(numpy_dtype("float32"), (LENGTH,), (index, other)) for other in range(4)]
                work = comm.all_reduce(arrays[rank])
                if rank == 0 and strikes and index in strikes:
                    processes.nursery.start_soon(strikes[index])
                result = await work
                assert result.tobytes() == nested_reference(NESTED, arrays, "sum").tobytes(), (rank, index)
            paths.update(record.path for record in comm.statistics().recent)

    async with trio.open_nursery() as nursery:
        for rank in range(4):
            nursery.start_soon(one, rank)
    return paths


async def test_the_sum_of_two_racks_and_what_status_shows() -> None:
    async with fabric() as processes:
        await processes.start_all()
        assert await train(processes, 5) == {"switch"}
        root, leaf = await processes.status("spine"), await processes.status("leaf1")
        assert [(one["name"], one["is_open"]) for one in root["fabric"]["switches"]] == [
            ("spine", True),
            ("leaf0", True),
            ("leaf1", True),
        ]
        counters = root["fabric"]["counters"]
        assert {name: counters[name] for name in ("trees_made", "trees_refused", "switches_lost")} == {
            "trees_made": 1,
            "trees_refused": 0,
            "switches_lost": 0,
        }
        assert [one["trunk"] and one["trunk"]["is_up"] for one in root["fabric"]["switches"]] == [
            None,
            True,
            True,
        ]
        assert [(trunk["switch"], trunk["way"], trunk["is_up"]) for trunk in root["trunks"]] == [
            ("leaf0", "down", True),
            ("leaf1", "down", True),
        ]
        assert [(trunk["switch"], trunk["way"], trunk["is_up"]) for trunk in leaf["trunks"]] == [
            ("spine", "up", True)
        ]
        assert leaf["control"]["is_admitted"]
        assert leaf["accelerator"]["counters"]["sums_up"] > 0
        shown = await trio.to_thread.run_sync(partial(run, "status", "--dir", str(processes.root)))
        assert "leaf1" in shown.stdout
        shown = await trio.to_thread.run_sync(
            partial(run, "status", "--dir", str(processes.directory / "leaf1"))
        )
        assert "admitted by control plane" in shown.stdout
        alone = processes.directory / "host"
        alone.mkdir(mode=0o700)
        os.link(processes.root / "h0.sock", alone / "h0.sock")
        done = await trio.to_thread.run_sync(partial(run, "status", "--json", "--dir", str(alone)))
        found = json.loads(done.stdout)
        switches = [found["switch"], *found["other_switches"]]
        assert [one["name"] for one in switches] == ["spine", "leaf0", "leaf1"], (
            "that it names, one by another"
        )
        assert [one["name"] for one in found["hosts"]] == ["h0"]


@pytest.mark.parametrize("name", ["leaf1", "spine"])
async def test_a_killed_switch_comes_back_and_the_job_goes_on(name: str) -> None:
    async with fabric() as processes:
        await processes.start_all()
        restarted = trio.Event()

        async def strike() -> None:
            processes.kill(name)
            await processes.switch(name)
            restarted.set()

        await train(processes, 12, {4: strike})
        assert restarted.is_set()
        root = await processes.status("spine")
        assert all(switch["is_open"] for switch in root["fabric"]["switches"])
        if name == "leaf1":
            assert root["fabric"]["counters"]["switches_lost"] == 1
            assert root["rendezvous"]["recoveries"] >= 1


async def test_a_trunk_that_is_cut_for_a_second_loses_frames_only() -> None:
    async with fabric() as processes:
        relay = TrunkRelay(processes.directory / "relay.sock", processes.root / "trunk-leaf1.sock")
        await processes.nursery.start(relay.run)
        processes.write_fabric(trunk=relay.path)
        await processes.start_all()
        healed = trio.Event()

        async def strike() -> None:
            relay.cut()
            await trio.sleep(1)  # how long the trunk is down is what is tested
            relay.heal()
            healed.set()

        assert await train(processes, 12, {4: strike}) == {"switch"}
        await healed.wait()
        assert relay.joined >= 2
        root = await processes.status("spine")
        assert root["rendezvous"]["recoveries"] == 0
        assert root["fabric"]["counters"]["switches_lost"] == 0


async def test_a_wrong_trunk_address_is_named_to_every_rank_and_at_the_root() -> None:
    async with fabric() as processes:
        relay = TrunkRelay(processes.directory / "relay.sock", processes.root / "trunk-leaf1.sock")
        processes.write_fabric(trunk=relay.path)  # nobody listens there
        await processes.start_all("--recover-ms", "1500")
        words = f"the trunk between leaf1 and spine is down: cannot connect to {relay.path}: "
        errors: list[JobError] = []

        async def one(rank: int) -> None:
            with pytest.raises(JobError) as caught:
                await processes.connect(rank)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            for rank in range(4):
                nursery.start_soon(one, rank)
        assert len(errors) == 4
        assert all(words in str(error) for error in errors), errors
        assert processes.log("spine").count(f"WARNING inaproto.switch: {words}") == 1, processes.log("spine")
        show = partial(run, "status", "--dir", str(processes.root))
        shown = " ".join((await trio.to_thread.run_sync(show)).stdout.split())
        assert "leaf1 sums for no other switch, its trunk to spine is down: cannot connect to" in shown
        leaf = await processes.status("leaf1")
        assert str(relay.path) in leaf["trunks"][0]["error"]
        await processes.nursery.start(relay.run)
        while not (await processes.status("spine"))["fabric"]["switches"][2]["trunk"]["is_up"]:
            pass  # who comes before it is up waits for recover_ms only
        assert await train(processes, 4) == {"switch"}


async def test_a_leaf_that_does_not_come_back_is_named() -> None:
    async with fabric() as processes:
        await processes.start_all("--recover-ms", "1500")
        errors: list[JobError] = []

        async def one(rank: int) -> None:
            comm = await processes.connect(rank)
            array = draw(numpy_dtype("float32"), (LENGTH,), rank)
            try:
                await comm.all_reduce(array)
                if rank == 0:  # others may still wait for their first result
                    processes.kill("leaf1")
                while True:
                    await comm.all_reduce(array)
            except JobError as error:
                errors.append(error)
            finally:
                await comm.aclose()

        async with trio.open_nursery() as nursery:
            for rank in range(4):
                nursery.start_soon(one, rank)
        assert len(errors) == 4
        assert all("leaf1" in str(error) for error in errors), errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--name", "leaf7"), "has no switch 'leaf7'; --name must be one of spine, leaf0, leaf1"),
        ((), "is given, but not which of its switches this one is"),
        (("--name", "leaf0", "--dir", "/tmp/elsewhere"), "leave it out"),
    ],
)
async def test_a_wrong_place_is_refused_at_once(arguments: tuple[str, ...], words: str) -> None:
    async with fabric() as processes:
        file = str(processes.directory / "fabric.toml")
        refused = await trio.to_thread.run_sync(partial(run, "switch", "--fabric", file, *arguments))
        assert refused.returncode == 2
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
