"""Two spines over two leaves on real sockets; the further root is a process, which is killed.

The other daemons are in this program, as the command line wires them: so a wish for a tree can be made at the
root without a controller.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

import inaproto
from inaproto.daemon.host.daemon import HostDaemon, run_host
from inaproto.daemon.settings.config import HostSettings
from inaproto.daemon.settings.fabric_file import Fabric, load_fabric
from inaproto.daemon.switch.control_plane import ControlPlane
from inaproto.ports import Nic, load_adapter
from inaproto.wire.messages.trees import TreeWished
from inaproto_hil.rigs.fork_server import ForkedProcess, fork_server
from inaproto_hil.rigs.running_fabric import RunningFabric
from tests.child_processes import end_forked
from tests.clusters.fabrics import tree_of_root
from tests.daemon.test_cli_daemons import environment
from tests.daemon.test_two_paths import Given, alternate

DEADLINE_S = 600
LENGTH = 3000
LEAVES = ("leaf0", "leaf1")


def write_fabric(directory: Path) -> Fabric:
    tables = [("spine", None), ("spine1", None), *((leaf, ["spine", "spine1"]) for leaf in LEAVES)]
    lines = []
    for name, above in tables:
        lines += ["[[switches]]", f'name = "{name}"', f'dir = "{directory / name}"']
        lines += [] if above is None else [f"above = {json.dumps(above)}"]
    (directory / "fabric.toml").write_text("\n".join(lines))
    return load_fabric(directory / "fabric.toml")


class TwoSpines(RunningFabric):
    """``h0`` is at leaf0, ``h1`` at leaf1."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        super().__init__(write_fabric(directory), nursery)
        self.directory = directory
        self.process: ForkedProcess | None = None
        self._hosts: list[trio.CancelScope] = []

    @property
    def plane(self) -> ControlPlane:
        found = self.switches["spine"].plane
        assert found is not None
        return found

    async def start_further_root(self) -> None:
        """As a process."""
        self.process = self._spawn(
            "switch", "--fabric", str(self.directory / "fabric.toml"), "--name", "spine1"
        )
        assert self.process.stdout is not None
        line = await trio.to_thread.run_sync(self.process.stdout.readline)
        assert line.startswith("ready "), (self.directory / "spine1.log").read_text()

    def _spawn(self, *arguments: str) -> ForkedProcess:
        with (self.directory / "spine1.log").open("ab") as log:
            return fork_server(environment()).fork("spine1", arguments, stderr=log, environment=environment())

    def kill_further_root(self) -> None:
        assert self.process is not None
        end_forked(self.process, signal.SIGKILL)
        self.process = None

    async def start_host(self, number: int) -> None:
        settings = HostSettings.model_validate(
            {
                "name": f"h{number}",
                "ip": f"10.0.0.{number + 1}",
                "dir": self.fabric.root.dir,
                "switch": LEAVES[number],
            }
        )
        scope = trio.CancelScope()
        self._hosts.append(scope)

        async def open_nic(port_path: str) -> Nic:
            port = await load_adapter("frames").open().connect(port_path)
            nic: Nic = load_adapter("softnic").open(port, mac=settings.mac_bytes, ip=settings.ip_bytes)
            return nic

        async def serve(task_status: trio.TaskStatus[HostDaemon]) -> None:
            with scope:
                turns_of = Given(alternate)(number)
                await run_host(settings, open_nic=open_nic, turns_of=turns_of, task_status=task_status)

        await self._nursery.start(serve)

    async def close(self) -> None:
        for scope in self._hosts:
            scope.cancel()
        if self.process is not None:
            self.kill_further_root()
        await super().close()

    # --- what can be seen

    def told(self, job: str) -> dict[str, Any]:
        (found,) = [one for one in self.plane.status()["jobs"] if one["name"] == job]
        return dict(found)

    def state(self, job: str) -> tuple[str, str]:
        """Phase and pool of its tree."""
        (found,) = [one for one in self.plane.tree_states() if one.job == job]
        return found.phase, found.pool

    async def summed(self, name: str) -> int:
        """Packets that a switch has added up."""
        status = await self.status(name)
        return int(status["accelerator"]["counters"]["aggregated_in"])


@asynccontextmanager
async def two_spines(directory: Path) -> AsyncIterator[TwoSpines]:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            running = TwoSpines(directory, nursery)
            try:
                await running.start("spine")
                await running.start_further_root()
                for number, leaf in enumerate(LEAVES):
                    await running.start(leaf)
                    await running.start_host(number)
                yield running
            finally:
                with trio.CancelScope(shield=True):
                    await running.close()
            nursery.cancel_scope.cancel()


class Job:
    """Two ranks on the path ``shared``, whose all-reduces are checked one by one."""

    def __init__(self, name: str, comms: list[inaproto.Communicator]) -> None:
        self.name, self.comms = name, comms
        self.done = 0
        self._draws = np.random.default_rng(len(name))

    @classmethod
    async def connected(cls, running: TwoSpines, name: str) -> Job:
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            socket = running.fabric.root.dir / f"h{rank}.sock"
            found[rank] = await inaproto.connect(name, rank, size=2, socket=socket, path="shared")

        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(one, rank)
        return cls(name, [found[0], found[1]])

    async def step(self) -> None:
        arrays = [self._draws.standard_normal(LENGTH).astype(np.float32) for _ in self.comms]
        expected = (arrays[0] + arrays[1]).tobytes()

        async def one(rank: int) -> None:
            result = await self.comms[rank].all_reduce(arrays[rank])
            assert result.tobytes() == expected, (self.name, self.done, rank)

        async with trio.open_nursery() as nursery:
            for rank in range(2):
                nursery.start_soon(one, rank)
        self.done += 1

    async def until(self, condition: Callable[[], bool]) -> None:
        """Go on until it holds, and a few more."""
        while not condition():
            await self.step()
        for _ in range(4):
            await self.step()

    async def summed_by(self, running: TwoSpines, name: str, more_than: int = 0) -> None:
        """Go on until that switch has added up so many packets: hosts hear of a ring when they hear of it."""
        while await running.summed(name) <= more_than:
            await self.step()

    async def close(self) -> None:
        for comm in self.comms:
            await comm.aclose()


async def test_a_further_root_that_is_killed_costs_its_job_the_switches_and_others_nothing(
    runtime_dir: Path,
) -> None:
    async with two_spines(runtime_dir) as running:
        running.plane.wish_trees((TreeWished("hurt", 1, tree_of_root("spine1")),))
        hurt = await Job.connected(running, "hurt")
        other = await Job.connected(running, "other")
        await hurt.until(lambda: running.state("hurt") == ("standing", "shared@spine1"))
        await other.until(lambda: running.state("other") == ("standing", "shared"))
        await hurt.summed_by(running, "spine1")
        await other.summed_by(running, "spine")
        ring = running.told("other")["ring_id"]

        running.kill_further_root()
        await hurt.until(lambda: "spine1" in running.told("hurt")["fallback"])
        assert running.state("hurt")[0] == "refused"
        before = await running.summed("spine")
        await other.summed_by(running, "spine", before)

        await running.start_further_root()
        await hurt.until(lambda: running.state("hurt")[0] == "standing")
        await hurt.summed_by(running, "spine1")
        assert (running.told("other")["ring_id"], running.told("other")["recoveries"]) == (ring, 0)
        for job in (hurt, other):
            await job.close()
