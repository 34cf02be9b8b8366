"""Trees that PARING plans for jobs of a running cluster: real daemons on real sockets, an uneven network.

Jobs arrive, the controller plans, switches get their slots and their rings; every result is numpy's by the
plan of that tree, bit by bit, and each link carries what was planned.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.fabric.shapes import tree_of
from inaproto.core.switch.aggregator import DATA_OPCODES
from inaproto.daemon.host.daemon import HostDaemon, run_host
from inaproto.daemon.settings.config import HostSettings
from inaproto.daemon.settings.fabric_file import Fabric, fabric_of
from inaproto.ports import FramePort, FramePortCapabilities, Nic, PortCounters, load_adapter
from inaproto.units import Frames
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op
from inaproto.wire.messages.trees import FabricTree
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import RoceRun, decode_runs
from inaproto_controller.planning.paring.live_tree import LiveTree
from inaproto_controller.planning.paring.live_trees import LiveTrees
from inaproto_controller.planning.paring.network_file import read_network
from inaproto_controller.service.daemon import run_controller
from inaproto_controller.service.job_client import JobClient
from inaproto_controller.service.settings import ControllerSettings
from tests.clusters.fabric import RunningFabric

pytestmark = pytest.mark.timeout(600)
DEADLINE_S = 500
ABOVE = {
    "core-0": [],
    "server": [],
    "core-2": ["core-0"],
    "core-1": ["core-0", "core-2"],
    "mid": ["core-1"],
    "leaf-a": ["core-0"],
    "leaf-b": ["core-0", "core-1", "server"],
    "leaf-c": ["mid"],
    "leaf-d": ["mid"],
}
"""Trunks as the fabric file has them. ``server`` is a switch at a server, with one link."""
CAPACITIES = {"leaf-a": 6, "leaf-c": "10/3", "leaf-d": 4, "core-0": 10, "core-2": 5, "server": 8}
SEATS = (
    *("leaf-a", "leaf-a", "leaf-b", "leaf-c", "leaf-c"),
    *("leaf-d", "leaf-d", "core-2"),
    *("leaf-a", "leaf-a", "leaf-b"),
)
RATE_CAP = Fraction(2)
JOBS = {"a": (0, 1, 2, 3, 4), "b": (5, 6, 7), "c": (8, 9, 10)}
"""Numbers of their hosts. leaf-c is too slow for two at 2 Gbit/s, and leaf-a has no room for c beside a."""
ELEMENTS = 1000
COUNTED = 6
"""All-reduces of which the bytes are compared."""
_OPENING = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)


def cluster() -> dict[str, Any]:
    switches = [
        {"name": name, **({"jobs": 1, "capacity": CAPACITIES[name]} if name in CAPACITIES else {})}
        for name in ABOVE
    ]
    links = [[f"h{number}", seat] for number, seat in enumerate(SEATS)]
    links += [[name, above] for name, ups in ABOVE.items() for above in ups]
    return {
        "hosts": [f"h{number}" for number in range(len(SEATS))],
        "switches": switches,
        "links": [{"between": one} for one in links],
    }


def fabric(directory: Path) -> Fabric:
    tables: list[dict[str, Any]] = []
    for number, (name, ups) in enumerate(ABOVE.items()):
        table = {"name": name, "dir": str(directory / f"s{number}" if number else directory)}
        tables.append(table | {"aggregates": name in CAPACITIES} | ({"above": ups} if ups else {}))
    return fabric_of({"switches": tables}, directory)


@dataclass
class Seen:
    """Tensor bytes that came to a switch, from the neighbour: what is sent again is counted once."""

    nbytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    known: set[tuple[Any, ...]] = field(default_factory=set)

    def forget(self) -> None:
        """Not what is known: what went before may be sent again."""
        self.nbytes.clear()

    def see(self, switch: str, port: str, frames: Frames) -> None:
        for run in decode_runs(frames):
            if not isinstance(run, RoceRun) or run.opcode not in DATA_OPCODES:
                continue
            trunk = port.removeprefix("trunk-").rpartition(".")[0]
            at = switch, trunk or f"h{run.src_ip[3] - 1}"
            header = INA_HEADER_BYTES if run.opcode in _OPENING else 0
            for psn in run.psn.tolist():
                key = (*at, run.src_ip, run.dst_ip, run.dest_qp, psn)
                if key not in self.known:
                    self.known.add(key)
                    self.nbytes[at] += run.payload_bytes - header


class TappedPort:
    def __init__(self, port: FramePort, switch: str, name: str, seen: Seen) -> None:
        self._port, self._at, self._seen = port, (switch, name), seen

    @property
    def capabilities(self) -> FramePortCapabilities:
        return self._port.capabilities

    @property
    def counters(self) -> PortCounters:
        return self._port.counters

    async def receive(self) -> Sequence[Frames]:
        blocks = await self._port.receive()
        for block in blocks:
            self._seen.see(*self._at, block)
        return blocks

    def send_nowait(self, frames: Frames) -> int:
        return self._port.send_nowait(frames)

    async def run(self) -> None:
        await self._port.run()

    async def aclose(self) -> None:
        await self._port.aclose()


class Cluster:
    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.directory, self._nursery = directory, nursery
        self.seen = Seen()
        self.switches = RunningFabric(fabric(directory), nursery)
        self.switches.tap = lambda switch, port, name: TappedPort(port, switch, name, self.seen)
        (directory / "cluster.json").write_text(json.dumps(cluster()))
        self.settings = ControllerSettings.model_validate(
            {
                "dir": directory / "run",
                "cluster": directory / "cluster.json",
                "report_ms": 50,
                "fabric_root": "core-0",
                "trees": "paring",
                "host_gbit_s": str(RATE_CAP),
            }
        )
        self.stop = trio.Event()

    async def start(self) -> None:
        ready = trio.Event()
        self._nursery.start_soon(
            partial(run_controller, self.settings, stop=self.stop, announce=lambda line: ready.set())
        )
        await ready.wait()
        agents = [self.settings.agents_path]
        for name, ups in ABOVE.items():
            await self.switches.start(name, controller=agents if name in CAPACITIES else [])
            await self.switches.trunks_up(name, up=len(ups))
        for number, seat in enumerate(SEATS):
            await self._start_host(number, seat, agents)

    async def _start_host(self, number: int, seat: str, agents: list[Path]) -> None:
        settings = HostSettings.model_validate(
            {
                "name": f"h{number}",
                "ip": f"10.0.0.{number + 1}",
                "dir": self.directory,
                "switch": seat,
                "mtu": 1024,
                "stall_ms": 60_000,
                "controller": agents,
            }
        )

        async def open_nic(port_path: str) -> Nic:
            port = await load_adapter("frames").open().connect(Path(port_path))
            nic: Nic = load_adapter("softnic").open(port, mac=settings.mac_bytes, ip=settings.ip_bytes)
            return nic

        async def serve(task_status: trio.TaskStatus[HostDaemon]) -> None:
            await run_host(settings, open_nic=open_nic, task_status=task_status)

        await self._nursery.start(serve)

    async def told(self, job: str) -> dict[str, Any]:
        """What the controller says of its tree."""
        client = JobClient([str(self.settings.jobs_path)])
        status = await trio.to_thread.run_sync(client.ask, "GET", "/v1/status")
        return dict(status["trees"]["jobs"].get(job, {}))


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Cluster]:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            found = Cluster(directory, nursery)
            try:
                await found.start()
                yield found
            finally:
                with trio.CancelScope(shield=True):
                    await found.switches.close()
            nursery.cancel_scope.cancel()


class Job:
    def __init__(self, name: str, comms: list[inaproto.Communicator], plan: ReductionPlan) -> None:
        self.name, self.comms, self.plan = name, comms, plan
        self._draws = np.random.default_rng(len(name))

    @classmethod
    async def connected(cls, on: Cluster, name: str, plan: ReductionPlan) -> Job:
        hosts = JOBS[name]
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int) -> None:
            socket = on.directory / f"h{hosts[rank]}.sock"
            found[rank] = await inaproto.connect(name, rank, size=len(hosts), socket=socket, path="shared")

        async with trio.open_nursery() as nursery:
            for rank in range(len(hosts)):
                nursery.start_soon(one, rank)
        return cls(name, [found[rank] for rank in range(len(hosts))], plan)

    async def step(self, *, is_planned: bool) -> str:
        """One all-reduce: the path that it took. Its bytes are those of the planned tree, if it is there."""
        arrays = [self._draws.standard_normal(ELEMENTS).astype(np.float32) for _ in self.comms]
        results: dict[int, bytes] = {}

        async def one(rank: int) -> None:
            results[rank] = (await self.comms[rank].all_reduce(arrays[rank])).tobytes()

        async with trio.open_nursery() as nursery:
            for rank in range(len(self.comms)):
                nursery.start_soon(one, rank)
        assert len(set(results.values())) == 1
        if is_planned:
            inputs = [array.view(np.uint8) for array in arrays]
            assert results[0] == self.plan.reduce(inputs, Dtype.F32, Op.SUM).tobytes()
        return self.comms[0].statistics().recent[-1].path

    async def close(self) -> None:
        for comm in self.comms:
            await comm.aclose()


def expected(directory: Path) -> dict[str, LiveTree]:
    """What is planned for the jobs, one after the other."""
    network = read_network(directory / "cluster.json", server=Fraction(0))
    names = map(network.topology.name, range(network.topology.nodes))
    live = LiveTrees(network.topology, dict(zip(names, network.capacities, strict=True)), RATE_CAP)
    found: dict[str, LiveTree] = {}
    for job, hosts in JOBS.items():
        one = live.planned([f"h{number}" for number in hosts], live.free(found.values()))
        assert isinstance(one, LiveTree), one
        found[job] = one
    return found


def plan_of(on: Fabric, tree: FabricTree, hosts: Sequence[int]) -> ReductionPlan:
    return ReductionPlan.from_tree(tree_of(on.tree_config().switches, [SEATS[one] for one in hosts], tree))


def assert_as_planned(nbytes: Counter[tuple[str, str]], planned: LiveTree) -> None:
    """Towards the root each link carried what was planned, and nothing but results went elsewhere."""
    upwards = {(upper, lower): count for (lower, upper), count in planned.gradients.items()}
    carried = {at: found for at, found in nbytes.items() if at in upwards}
    each = COUNTED * ELEMENTS * Dtype.F32.itemsize
    assert carried == {at: count * each for at, count in upwards.items()}
    assert sum(carried.values()) == planned.links * each
    assert {(lower, upper) for upper, lower in nbytes.keys() - carried.keys()} <= upwards.keys()


async def test_jobs_of_an_uneven_network_go_along_the_trees_that_are_planned_for_them(
    runtime_dir: Path,
) -> None:
    async with running(runtime_dir) as on:
        planned = expected(runtime_dir)
        shape = on.switches.fabric
        jobs = []
        for name, hosts in JOBS.items():
            job = await Job.connected(on, name, plan_of(shape, planned[name].tree, hosts))
            jobs.append(job)
            told: dict[str, Any] = {}
            while told.get("ring") != "standing" or told.get("epoch", 0) == 0:
                await job.step(is_planned=False)
                told = await on.told(name)
            assert told["planned"] == {"by": "paring", "reason": "", **planned[name].document()}
            paths: list[str] = []
            while paths != ["switch"] * COUNTED:
                on.seen.forget()
                paths = [await job.step(is_planned=True) for _ in range(COUNTED)]
            assert_as_planned(on.seen.nbytes, planned[name])
        assert planned["c"].tree.passing == ("leaf-a", "leaf-b"), "leaf-a adds up for a, and has no room"
        for job in jobs:
            await job.step(is_planned=True)
            await job.close()
        on.stop.set()
