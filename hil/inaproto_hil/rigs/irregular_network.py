"""A network of any shape: switch and host daemons in this Trio program, and a controller that plans.

All are real, and speak over sockets of one directory; every port of a switch counts what comes in at it. The
controller is a process of its own: while it plans, daemons go on.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import trio

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.fabric.shapes import tree_of
from inaproto.daemon.host.daemon import HostDaemon, run_host
from inaproto.daemon.settings.config import HostSettings
from inaproto.daemon.settings.fabric_file import Fabric, fabric_of
from inaproto.ports import Nic, load_adapter
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.planning.paring.live_trees import LiveTrees
from inaproto_controller.planning.paring.network_file import read_network
from inaproto_controller.planning.paring.planner import Mode
from inaproto_controller.service.job_client import JobClient
from inaproto_controller.service.settings import ControllerSettings
from inaproto_hil.rigs.cluster import ClusterError, inaproto_command
from inaproto_hil.rigs.running_fabric import RunningFabric
from inaproto_hil.rigs.tapped_ports import Seen, TappedPort

CLUSTER_FILE = "cluster.json"
FABRIC_FILE = "fabric.toml"


@dataclass(frozen=True)
class Network:
    """The first switch is the fabric's root; hosts are h0 and so on."""

    above: Mapping[str, Sequence[str]]
    """The switches, each with those to which it has trunks, as the fabric file has them."""
    capacities: Mapping[str, int | str]
    """Gbit/s; other switches pass on."""
    seats: Sequence[str]
    """The switch of each host."""
    rate_cap: Fraction
    """Gbit/s that a host sends at most."""
    jobs: int = 1
    """Jobs that each switch with a capacity adds up for at a time, but for turns."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(f"h{number}" for number in range(len(self.seats)))

    def cluster(self) -> dict[str, Any]:
        """What the cluster file has."""
        switches: list[dict[str, int | str]] = []
        for name in self.above:
            adds = name in self.capacities
            quota = {"jobs": self.jobs, "capacity": self.capacities[name]} if adds else {}
            switches.append({"name": name, **quota})
        links = [*zip(self.hosts, self.seats, strict=True)]
        links += [(name, up) for name, ups in self.above.items() for up in ups]
        return {
            "hosts": list(self.hosts),
            "switches": switches,
            "links": [{"between": list(pair)} for pair in links],
        }

    def fabric_toml(self, directory: Path) -> str:
        """What the fabric file has."""
        lines = []
        for number, (name, ups) in enumerate(self.above.items()):
            own = directory / f"s{number}" if number else directory
            lines += ["[[switches]]", f"name = {json.dumps(name)}", f"dir = {json.dumps(str(own))}"]
            lines.append(f"aggregates = {json.dumps(name in self.capacities)}")
            lines += [f"above = {json.dumps(list(ups))}"] if ups else []
        return "\n".join([*lines, ""])

    def fabric(self, directory: Path) -> Fabric:
        return fabric_of(tomllib.loads(self.fabric_toml(directory)), directory)

    def live_trees(self, directory: Path, *, mode: Mode = Mode.FAST, seconds: float = 60.0) -> LiveTrees:
        """The planner that a controller of this network has, once its file is in the directory."""
        network = read_network(directory / CLUSTER_FILE, server=Fraction(0))
        names = map(network.topology.name, range(network.topology.nodes))
        capacities = dict(zip(names, network.capacities, strict=True))
        slots = FabricTrees(network.topology, share_max=ControllerSettings.model_fields["share_max"].default)
        return LiveTrees(
            network.topology,
            capacities,
            self.rate_cap,
            slots=slots.slots,
            own_above={name: ups[0] for name, ups in self.above.items() if ups},
            mode=mode,
            seconds=seconds,
        )


class RunningNetwork:
    """Made by :func:`running_network`. ``options``: of the controller."""

    def __init__(self, network: Network, directory: Path, nursery: trio.Nursery, options: Any) -> None:
        self.network, self.directory, self._nursery = network, directory, nursery
        self.seen = Seen()
        self.switches = RunningFabric(network.fabric(directory), nursery)
        self.switches.tap = lambda switch, port, name: TappedPort(port, switch, name, self.seen)
        (directory / CLUSTER_FILE).write_text(json.dumps(network.cluster()))
        (directory / FABRIC_FILE).write_text(network.fabric_toml(directory))
        given = {
            "dir": directory / "run",
            "cluster": directory / CLUSTER_FILE,
            "report_ms": 50,
            "fabric": directory / FABRIC_FILE,
            "fabric_root": next(iter(network.above)),
            "trees": "paring",
            "host_gbit_s": str(network.rate_cap),
            **options,
        }
        self.settings = ControllerSettings.model_validate(given)
        lines = (
            f"{name} = {json.dumps(value if isinstance(value, int) else str(value))}"
            for name, value in given.items()
        )
        self._config = directory / "controller.toml"
        self._config.write_text("\n".join(["[controller]", *lines, ""]))
        self._controller: trio.Process | None = None
        self.client = JobClient([str(self.settings.jobs_path)])

    async def start(self) -> None:
        command = [inaproto_command(), "controller", "--config", str(self._config)]
        with (self.directory / "controller.log").open("wb") as log:
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=log)
        self._controller = process
        assert process.stdout is not None
        if not (await process.stdout.receive_some()).startswith(b"ready"):
            raise ClusterError(f"the controller has ended: {log.name} says why")
        agents = [self.settings.agents_path]
        for name, ups in self.network.above.items():
            await self.switches.start(name, controller=agents if name in self.network.capacities else [])
            await self.switches.trunks_up(name, up=len(ups))
        for number, seat in enumerate(self.network.seats):
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

    async def close(self) -> None:
        await self.switches.close()
        if self._controller is not None:
            self._controller.terminate()
            await self._controller.wait()

    def socket(self, host: str) -> Path:
        return self.directory / f"{host}.sock"

    async def status(self) -> dict[str, Any]:
        """What the controller says of itself."""
        found: dict[str, Any] = await trio.to_thread.run_sync(self.client.ask, "GET", "/v1/status")
        return found

    async def told(self, job: str) -> dict[str, Any]:
        """What the controller says of the tree of a ring."""
        return dict((await self.status())["trees"]["jobs"].get(job, {}))

    def plan_of(self, tree: FabricTree, hosts: Sequence[str]) -> ReductionPlan:
        """In which order a ring on that tree adds."""
        seats = [self.network.seats[int(host[1:])] for host in hosts]
        return ReductionPlan.from_tree(tree_of(self.switches.fabric.tree_config().switches, seats, tree))


@asynccontextmanager
async def running_network(
    network: Network, directory: Path, *, deadline_s: float, **options: Any
) -> AsyncIterator[RunningNetwork]:
    with trio.fail_after(deadline_s):
        async with trio.open_nursery() as nursery:
            found = RunningNetwork(network, directory, nursery, options)
            try:
                await found.start()
                yield found
            finally:
                with trio.CancelScope(shield=True):
                    await found.close()
            nursery.cancel_scope.cancel()
