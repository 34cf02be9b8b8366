"""What is measured of a controller at one size: promises, placements, turns, moves, and who comes back."""

from __future__ import annotations

import math
import secrets
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import trio

from inaproto.cli import collect_seldom
from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto_hil.bench.controller.cluster import SPINES, ControllerCluster, names
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.swarm import Swarm

LOOK_S: Final = 0.02
PHASE_S: Final = 300.0
"""Nothing that is measured may take longer."""
BIG: Final = "everywhere"
"""The job with a seat on each host."""
THREADS: Final = 128
SWITCH_S: Final = 0.0002
PHASES: Final = ("arrival", "jobs", "turns", "moves", "loop", "restarts")


@dataclass(frozen=True, slots=True)
class Load:
    """What is done to the controller."""

    hosts: int
    jobs: int
    per_second: float = 100.0
    """Submissions, at these times and whatever becomes of those before: nobody waits for another one."""
    rounds: int = 5
    moves: int = 5
    restarts: int = 3
    batches: int = 2
    """So often all jobs come, run and end."""

    @property
    def hosts_per_job(self) -> int:
        return max(1, self.hosts // self.jobs)


def measure(
    load: Load, *, database: str = "", tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """One row. ``database``: URL of an empty PostgreSQL database, for a pair; empty: one controller and a
    file. Raises ``ClusterError`` where a controller fails, or nothing goes on."""
    # Who submits does so in threads, beside the agents: what waits for them is to be the controller.
    sys.setswitchinterval(SWITCH_S)
    collect_seldom()  # as daemons do
    with ControllerCluster(load.hosts, load.jobs, database=database) as cluster:
        return trio.run(partial(_measure, cluster, load, tell))


async def _measure(cluster: ControllerCluster, load: Load, tell: Callable[[str], None]) -> dict[str, Any]:
    bench = _Bench(cluster, load)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.swarm.run)
        row: dict[str, Any] = {"hosts": load.hosts, "pair": len(cluster.names) > 1}
        name = ""
        try:
            for name in PHASES:
                phase: Callable[[], Awaitable[dict[str, Any]]] = getattr(bench, name)
                tell(name)
                before = cluster.cpu_s()
                began = time.monotonic()
                with trio.fail_after(PHASE_S):
                    row[name] = await phase()
                row[name]["wall_s"] = round(time.monotonic() - began, 3)
                if name != "restarts":  # in which those that have used it are gone
                    row[name]["controller_cpu_s"] = round(cluster.cpu_s() - before, 3)
                row["rss_bytes"] = max(row.get("rss_bytes", 0), cluster.rss_bytes())
        except trio.TooSlowError:
            raise cluster.failure(f"{name}: not over within {PHASE_S:g} s") from None
        nursery.cancel_scope.cancel()
    return row


class _Bench:
    def __init__(self, cluster: ControllerCluster, load: Load) -> None:
        self._cluster, self._load = cluster, load
        hosts, switches = names(load.hosts)
        doors = [UnixDoor(cluster.agents_path(name), UNIX) for name in cluster.names]
        self.swarm = Swarm(hosts, switches, doors, root=switches[0])
        self._threads = trio.CapacityLimiter(THREADS)

    async def _ask(self, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return await trio.to_thread.run_sync(partial(call, *given, **named), limiter=self._threads)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._cluster.check()
            await trio.sleep(LOOK_S)

    # --- all agents find the controller

    async def arrival(self) -> dict[str, Any]:
        began = time.monotonic()
        await self._until(lambda: self.swarm.connections() > 0)
        took = time.monotonic() - began
        await self._all_up()
        return {"all_connected_s": took}

    async def _all_up(self) -> None:
        while True:
            found = (await self._ask(self._cluster.client.status))["agents"]
            if all(one["presence"] == "up" for one in found.values()):
                return
            await trio.sleep(LOOK_S)

    # --- jobs come, run and end

    async def jobs(self) -> dict[str, Any]:
        durable: list[float] = []
        placed: list[float] = []
        for batch in range(self._load.batches):
            async with trio.open_nursery() as nursery:
                began = trio.current_time() + 0.1
                for number in range(self._load.jobs):
                    at = began + number / self._load.per_second
                    nursery.start_soon(self._one_job, f"job{batch}-{number}", at, durable, placed)
            for number in range(self._load.jobs):
                self.swarm.end_ranks(f"job{batch}-{number}")
            await self._none_live()
        return {
            "count": self._load.jobs,
            "hosts_per_job": self._load.hosts_per_job,
            "durable_ms": spread([1e3 * one for one in durable]),
            "placed_ms": spread([1e3 * one for one in placed]),
        }

    async def _one_job(self, name: str, at: float, durable: list[float], placed: list[float]) -> None:
        await trio.sleep_until(at)
        hosts = self._load.hosts_per_job
        self.swarm.expect(name, hosts)
        submit = self._cluster.client.submit
        found = await self._ask(submit, name, hosts, submission=secrets.token_hex(16))
        durable.append(trio.current_time() - at)
        placed.append(await self.swarm.placed(name) - at)
        self.swarm.start_ranks(name, found["token"])

    async def _none_live(self) -> None:
        while await self._ask(self._cluster.client.jobs, live=True):  # noqa: ASYNC110  another process
            await trio.sleep(LOOK_S)

    # --- a job with a seat on each host

    async def turns(self) -> dict[str, Any]:
        round_ms: list[float] = []
        stands_ms: list[float] = []
        for number in range(self._load.rounds):
            rounds = self.swarm.sit_all(BIG, number + 1)
            await rounds.done.wait()
            assert rounds.began_at is not None, "a turn begins with a round"
            round_ms.append(1e3 * (rounds.last_at - rounds.began_at))
            stands_ms.append(1e3 * (rounds.last_at - rounds.seated_at))
            self.swarm.stand_all_up(BIG)
            await self._until_no_turn()
        return {"seats": self._load.hosts, "round_ms": spread(round_ms), "stands_ms": spread(stands_ms)}

    async def _until_no_turn(self) -> None:
        while True:
            if not any(one["turns"] or one["jobs"] for one in await self._ask(self._cluster.client.sharing)):
                return
            await trio.sleep(LOOK_S)

    # --- its tree moves

    async def moves(self) -> dict[str, Any]:
        took: list[float] = []
        self.swarm.rings.begin(BIG, tuple(self.swarm.hosts))
        roots = [f"spine{number}" for number in range(SPINES)]
        while BIG not in (await self._ask(self._cluster.client.trees))["jobs"]:  # noqa: ASYNC110
            await trio.sleep(LOOK_S)
        for number in range(self._load.moves):
            began = trio.current_time()
            found = await self._ask(self._cluster.client.move, BIG, roots[(number + 1) % SPINES], wait_s=60.0)
            if not found["stands"]:
                raise ClusterError(f"a tree was not moved within a minute: {found}")
            took.append(1e3 * (trio.current_time() - began))
        self.swarm.rings.end(BIG)
        return {"hosts": self._load.hosts, "move_ms": spread(took)}

    # --- who comes back

    async def restarts(self) -> dict[str, Any]:
        back: list[float] = []
        for _ in range(self._load.restarts):
            leader = await self._ask(self._cluster.leader)
            before, began = self.swarm.connections(), trio.current_time()
            await trio.to_thread.run_sync(self._cluster.kill, leader)
            await self._until(lambda before=before: self.swarm.connections() > before)  # type: ignore[misc]
            back.append(trio.current_time() - began)
            await trio.to_thread.run_sync(self._cluster.wait_until_ready)
            await self._all_up()
        return {"all_back_s": spread(back)}

    # --- what the controller says of itself

    async def loop(self) -> dict[str, Any]:
        status = await self._ask(self._cluster.client.status)
        return dict(status["loop"])


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Percentiles by nearest rank, so that each is a value that was measured."""
    ordered = sorted(values)

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)

    return {
        "n": len(ordered),
        "p50": round(statistics.median(ordered), 3),
        "p95": rank(0.95),
        "p99": rank(0.99),
        "max": round(ordered[-1], 3),
    }
