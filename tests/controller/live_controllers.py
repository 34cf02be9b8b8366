"""A controller with agents, jobs and a history, whose page can be looked at over HTTP."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import trio

from inaproto.core.sharing.events import Mark, Noted, PoolFree, TurnStands
from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.http_server import HttpConfig, serve
from inaproto.daemon.net.unix_sockets import UNIX, listen_unix
from inaproto.units import Epoch, JobId, OpIndex
from inaproto.wire.messages.controller import AgentRole, GrantRecord, HoldRecord
from inaproto_controller.cluster import graph_file
from inaproto_controller.cluster.desired import Job, JobSpec, JobState
from inaproto_controller.planning.cluster_planner import ClusterPlanner
from inaproto_controller.service.agents import Agents
from inaproto_controller.service.api import application
from inaproto_controller.service.controller import Controller
from inaproto_controller.service.live_history import LiveHistory
from inaproto_controller.service.store.opening import open_store

DEADLINE_S: Final = 300
HOSTS: Final = tuple(f"h{number}" for number in range(8))
SUMMING: Final = ("leaf0", "leaf1", "leaf2", "leaf3", "spine0")
CLUSTER: Final[dict[str, Any]] = {
    "hosts": list(HOSTS),
    "switches": [*({"name": name, "jobs": 1} for name in SUMMING), {"name": "spine1"}],
    "links": [
        *({"between": [host, f"leaf{number // 2}"]} for number, host in enumerate(HOSTS)),
        *({"between": [f"leaf{rack}", f"spine{spine}"]} for rack in range(4) for spine in range(2)),
    ],
}
TOKEN: Final = "t" * 40


class Holder:
    """Of an agent that does what it is told."""

    def __init__(self) -> None:
        self.grants: dict[int, GrantRecord] = {}

    def want(self, grants: Any) -> None:
        self.grants = {grant.grant: grant for grant in grants}

    def holds(self) -> list[HoldRecord]:
        return [HoldRecord(grant=number, phase="running") for number in self.grants]


class WallClock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class LiveController:
    def __init__(
        self, controller: Controller, clock: WallClock, url: str, directory: Path, nursery: trio.Nursery
    ) -> None:
        self.controller = controller
        self.clock = clock
        self.history: LiveHistory = controller.history
        self.url = url
        self._directory = directory
        self._nursery = nursery

    def agent(self, role: AgentRole, name: str) -> None:
        door = UnixDoor(self._directory / "agents.sock", UNIX)
        link = ControllerLink(role, name, Holder(), [door], retry_s=0.01)
        self._nursery.start_soon(link.run)

    async def submit(self, name: str, hosts: int) -> None:
        await self.controller.submit(JobSpec(name=name, hosts=hosts), TOKEN)

    async def until(self, name: str, ready: Callable[[Job], bool]) -> Job:
        while not ready(job := self.controller.job(name)):
            await self.controller.job_after(name, job.revision, 1.0)
        return job

    async def start_agents(self, without: str = "") -> None:
        for host in HOSTS:
            if host != without:
                self.agent("host", host)
        for switch in SUMMING:
            self.agent("switch", switch)

    async def agents_up(self, count: int) -> None:
        """So many report."""
        while sum(a["presence"] == "up" for a in self.controller.status()["agents"].values()) < count:
            await trio.lowlevel.checkpoint()

    async def runs(self, name: str, *, tree: bool = True) -> Job:
        return await self.until(
            name, lambda job: job.state is JobState.RUNNING and (job.tree is not None or not tree)
        )


@asynccontextmanager
async def live_controller(
    directory: Path,
    cluster: dict[str, Any] = CLUSTER,
    *,
    clock: WallClock | None = None,
    port: int = 0,
    outer: trio.Nursery | None = None,
) -> AsyncIterator[LiveController]:
    """``outer``: where agents run that outlive it."""
    file = directory / "cluster.json"
    file.write_text(json.dumps(cluster))
    planner = ClusterPlanner(graph_file.read(file))
    roles: dict[str, AgentRole] = dict.fromkeys(sorted(planner.hosts), "host")
    roles |= dict.fromkeys(sorted(planner.summing - planner.sharp), "switch")

    def agents(changed: Callable[[], None]) -> Agents:
        return Agents(
            roles, lease_s=30, report_s=0.02, sessions_max=512, changed=changed, sharp=planner.sharp
        )

    clock = clock or WallClock()
    controller = Controller(open_store(str(directory / "store.db")), planner, agents, wall_clock=clock)
    with trio.fail_after(DEADLINE_S), socket.create_server(("127.0.0.1", port)) as sock, ExitStack() as stack:
        listener = await listen_unix(directory / "agents.sock", "agents")
        stack.callback(listener.close)
        config = HttpConfig()
        config.bind = [f"fd://{os.dup(sock.fileno())}"]
        config.errorlog = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controller.run)
            nursery.start_soon(controller.agents.accept_sessions, listener)
            app = cast("Any", application(controller))
            await nursery.start(partial(serve, app, config, shutdown_trigger=trio.sleep_forever))
            while not controller.term:
                await trio.lowlevel.checkpoint()
            port = sock.getsockname()[1]
            url = f"http://127.0.0.1:{port}/"
            yield LiveController(controller, clock, url, directory, outer or nursery)
            nursery.cancel_scope.cancel()


def turn(live: LiveController, pool: str, job: str, epoch: int, *, ends: bool = True) -> None:
    """One that was decided by a round, of ten operations and three seconds."""
    history = live.history
    history.acted(pool, Noted(Mark.ROUND_BEGUN))
    history.acted(pool, Noted(Mark.COMMITTED))
    history.acted(pool, TurnStands(JobId(job), Epoch(epoch), OpIndex(10 * epoch), OpIndex(10 * epoch + 10)))
    live.clock.now += 3.0
    if ends:
        history.acted(pool, PoolFree(Epoch(epoch)))
