"""Agents beside the daemons of the campaign, and clients whose jobs run on them.

To a controller they are hosts as all others: what it promises them is checked where all that it says passes
by (:mod:`inaproto_hil.crashes.witness`). Their ranks join by the token that the submission was answered with.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import trio

from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable
from inaproto_hil.crashes.clients import RETRY_S, Clients
from inaproto_hil.crashes.cluster import CrashCluster
from inaproto_hil.crashes.promises import OVER, Promises
from inaproto_hil.rigs.swarm import Swarm

HOSTS_MAX: Final = 8
"""Of a job."""


class Crowd:
    def __init__(self, cluster: CrashCluster, clients: Clients, promises: Promises, seed: str) -> None:
        self._cluster, self._clients, self._promises, self._seed = cluster, clients, promises, seed
        doors = [UnixDoor(cluster.relay_path(name), UNIX) for name in cluster.controllers]
        self._swarm = Swarm(cluster.crowd, cluster.crowd_switches, doors)

    async def run(self) -> None:
        """Until cancelled."""
        await self._swarm.run()

    async def client(self, number: int) -> None:
        """Submits one job after the other, at hosts that it draws, which others may want, too."""
        random = Random(f"{self._seed}/crowd/{number}")
        serial = 0
        while not self._clients.stop:
            name = f"c{number}-{serial}"
            serial += 1
            count = random.randint(1, min(HOSTS_MAX, len(self._cluster.crowd)))
            try:
                await self._run_job(name, random.sample(self._cluster.crowd, count), random)
            except ControllerRefused as error:
                self._promises.faults.append(f"job {name}: refused: {error}")

    async def _run_job(self, name: str, hosts: list[str], random: Random) -> None:
        self._swarm.expect(name, len(hosts))
        answer: dict[str, Any] | None = None
        while answer is None:
            try:
                answer = await self._clients.submit(name, len(hosts), on=hosts)
            except ControllerUnreachable:
                await trio.sleep(RETRY_S)
        if random.random() < 0.25:
            await trio.sleep(random.uniform(0, 0.3))
            await self._clients.cancel_at_last(name)
            self._swarm.forget(name)
            return
        job = await self._clients.until(name, lambda state: state in OVER or state == "placed")
        if job is None or job["state"] != "placed":
            self._swarm.forget(name)
            return
        await self._swarm.placed(name)
        self._swarm.start_ranks(name, answer["token"])
        await trio.sleep(random.uniform(0, 1))
        self._swarm.end_ranks(name)
        job = await self._clients.until(name, lambda state: state in OVER)
        if job is not None and job["state"] != "ended":
            self._promises.faults.append(f"job {name}: its ranks have ended, and it is {job['state']}")
        self._promises.counts["jobs run on agents"] += 1
