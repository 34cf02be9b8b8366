"""Controllers as processes that are killed, agents that watch what they are given, clients that keep asking.

What is checked at every instant is checked by the agents: a slot is never wanted for two jobs, nor for one
while another still has it; and a grant is of the same job for ever.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import trio

from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.names import AGENTS_SOCKET, JOBS_SOCKET
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto.wire.messages.controller import AgentRole, GrantRecord, HoldPhase, HoldRecord
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient
from inaproto_hil.rigs.cluster import Child, inaproto_command

T = TypeVar("T")

DEADLINE_S = 600.0
POLL_S = 0.01
HOSTS = ("h0", "h1", "h2", "h3")
SWITCHES = ("leaf0", "leaf1", "spine")
CLUSTER = {
    "hosts": HOSTS,
    "switches": [{"name": name, "jobs": 1} for name in SWITCHES],
    "links": [
        *({"between": [host, f"leaf{number // 2}"]} for number, host in enumerate(HOSTS)),
        *({"between": [leaf, "spine"]} for leaf in SWITCHES[:2]),
    ],
}


async def until(what: str, condition: Callable[[], object]) -> None:
    """Polled: what is waited for happens in other processes."""
    with trio.move_on_after(DEADLINE_S) as scope:
        while not condition():  # noqa: ASYNC110
            await trio.sleep(POLL_S)
    assert not scope.cancelled_caught, f"{what}: not within {DEADLINE_S:g} s"


class Controllers:
    """By name; each has its own directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._children: dict[str, Child] = {}
        self.options: tuple[str, ...] = ()
        """Further words for each that is started."""
        (root / "cluster.json").write_text(json.dumps(CLUSTER))

    def jobs_path(self, name: str) -> str:
        return str(self._root / name / JOBS_SOCKET)

    def agents_path(self, name: str) -> Path:
        return self._root / name / AGENTS_SOCKET

    def start(self, name: str, store: str) -> None:
        where = ["--dir", str(self._root / name), "--cluster", str(self._root / "cluster.json")]
        argv = [inaproto_command(), "controller", *where, "--store", store, "--report-ms", "50"]
        argv += self.options
        log = self._root / f"{name}.log"
        self._children[name] = Child(name, argv, log_path=log, sink=lambda child, line: None)

    def is_running(self, name: str) -> bool:
        return self._children[name].exit_status is None

    async def kill(self, name: str, promises: Promises | None = None) -> None:
        """``promises``: at the very instant of the next answer."""
        assert self.is_running(name), f"it had ended by itself: {self.log(name)}"
        child = self._children[name]
        if promises is not None:
            promises.victim = child
        else:
            child.process.kill()
        await until(f"{name} is dead", lambda: not self.is_running(name))
        child.release()

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        process = self._children[name].process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        return self._children[name].tail(60)

    def close(self) -> None:
        for child in self._children.values():
            child.process.kill()
            child.process.wait()
            child.release()


@dataclass(slots=True)
class _Held:
    record: GrantRecord
    phase: HoldPhase = "held"
    reports_left: int = -1
    """Of one that is given up: so many more until it is gone."""


class WatchfulAgent:
    """Gives slots up only after a while; its ranks join, and some of them end by themselves."""

    def __init__(
        self, role: AgentRole, name: str, controllers: Sequence[Path], seen: dict[int, int], seed: int
    ):
        self.name = name
        self.held: dict[int, _Held] = {}
        self.faults: list[str] = []
        self.wanted = 0
        self._seen = seen
        self._random = Random(f"{seed}/{name}")
        self.link = ControllerLink(
            role, name, self, [UnixDoor(path, UNIX) for path in controllers], retry_s=POLL_S
        )

    def want(self, grants: Sequence[GrantRecord]) -> None:
        self.wanted += 1
        wanted = {grant.grant: grant for grant in grants}
        for number, held in self.held.items():
            if number not in wanted and held.reports_left < 0:
                held.reports_left = self._random.randrange(3)
        for number, grant in wanted.items():
            if self._seen.setdefault(number, grant.job) != grant.job:
                self.faults.append(f"{self.name}: grant {number} is of job {grant.job} now")
            if number in self.held and self.held[number].reports_left >= 0:
                self.faults.append(f"{self.name}: grant {number} was to be given up, and is wanted again")
            self.held.setdefault(number, _Held(grant))
        self._check()

    def _check(self) -> None:
        owner: dict[tuple[str, int], int] = {}
        for held in self.held.values():
            for slot in held.record.slots:
                other = owner.setdefault((slot.port, slot.number), held.record.job)
                if other != held.record.job:
                    self.faults.append(f"{self.name}: slot {slot} is of jobs {other} and {held.record.job}")

    def holds(self) -> list[HoldRecord]:
        for number, held in list(self.held.items()):
            if held.reports_left == 0:
                del self.held[number]
                continue
            held.reports_left -= held.reports_left > 0
            if held.record.kind == "seats" and held.phase == "held":
                held.phase = "running"
            elif held.record.kind == "seats" and self._random.random() < 0.1:
                held.phase = "ended"
        return [HoldRecord(grant=number, phase=held.phase) for number, held in self.held.items()]


@dataclass(slots=True)
class Promises:
    """What clients have been answered."""

    submitted: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: the answer."""
    cancelled: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)
    victim: Child | None = None
    """To be killed by the thread that has the next answer."""
    news: trio.Event = field(default_factory=trio.Event)

    def asked(self, question: Callable[[], T]) -> T:
        """In a thread."""
        answer = question()
        victim, self.victim = self.victim, None
        if victim is not None:
            victim.process.kill()
        return answer

    def answered(self) -> None:
        self.news.set()
        self.news = trio.Event()


async def storm(client: JobClient, number: int, seed: int, promises: Promises, stop: trio.Event) -> None:
    """Submit and cancel; what is not answered is asked again, or not."""
    random = Random(f"{seed}/client/{number}")
    serial = 0
    while not stop.is_set():
        own = [name for name in promises.submitted if name.startswith(f"c{number}-")]
        try:
            if own and random.random() < 0.4:
                name = random.choice(own)
                await trio.to_thread.run_sync(promises.asked, partial(client.cancel, name))
                promises.cancelled.add(name)
            else:
                name = f"c{number}-{serial}"
                hosts = random.choice((1, 1, 2, 2, 3, 4))
                submit = partial(client.submit, name, hosts, submission=f"{name:a>40}")
                promises.submitted[name] = await trio.to_thread.run_sync(promises.asked, submit)
                serial += 1
            promises.answered()
        except ControllerUnreachable:
            serial += random.random() < 0.3  # that one may be there or not
            await trio.sleep(POLL_S)
        except ControllerRefused as error:
            if error.code == "name_taken":  # it was asked again with another number of hosts
                serial += 1
            else:
                promises.refusals.append(str(error))
                promises.answered()
                return


class CrashCluster:
    """Agents and clients of some controllers, all started by name."""

    def __init__(self, controllers: Controllers, names: Sequence[str], seed: int) -> None:
        self.controllers = controllers
        self.random = Random(f"{seed}/crashes")
        self._jobs_paths = [controllers.jobs_path(name) for name in names]
        self.client = JobClient(self._jobs_paths)
        self.promises = Promises()
        paths = [controllers.agents_path(name) for name in names]
        seen: dict[int, int] = {}
        roles: list[tuple[AgentRole, str]] = [("host", name) for name in HOSTS]
        roles += [("switch", name) for name in SWITCHES]
        self.agents = [WatchfulAgent(role, name, paths, seen, seed) for role, name in roles]
        self._seed = seed
        self._stop = trio.Event()

    async def run(self, kill: Callable[[], Any], *, times: int, clients: int = 6) -> None:
        """``kill`` one and start it anew, so often, in the storm; then check what was promised."""
        async with trio.open_nursery() as nursery:
            for agent in self.agents:
                nursery.start_soon(agent.link.run)
            async with trio.open_nursery() as storms:
                for number in range(clients):
                    storms.start_soon(storm, self.client, number, self._seed, self.promises, self._stop)
                for _ in range(times):
                    await self._some_time()
                    await kill()
                    self.check()
                await self._answers(20)
                self._stop.set()
            await self._check_promises()
            nursery.cancel_scope.cancel()

    async def _some_time(self) -> None:
        """While it starts, or after some answers, and then at any moment."""
        if self.random.random() < 0.7:
            await self._answers(self.random.choice((1, 2, 5, 15)))
        if self.random.random() < 0.6:
            await trio.sleep(self.random.uniform(0, 0.03 if self.random.random() < 0.7 else 0.2))

    async def _answers(self, count: int) -> None:
        """So many more; the last one has come at this very instant."""
        with trio.fail_after(DEADLINE_S):
            for _ in range(count):
                await self.promises.news.wait()
                self.check()

    def check(self) -> None:
        assert [fault for agent in self.agents for fault in agent.faults] == []
        assert self.promises.refusals == [], self.promises.refusals  # of what had been promised

    async def _check_promises(self) -> None:
        jobs = {
            job["name"]: job for job in await trio.to_thread.run_sync(lambda: self.client.jobs(live=False))
        }
        for name, answer in self.promises.submitted.items():
            assert jobs[name]["number"] == answer["job"]["number"], name
        for name in self.promises.cancelled:
            assert jobs[name]["state"] in ("cancelled", "ended"), jobs[name]
        for name, job in jobs.items():
            if job["state"] not in ("cancelled", "ended"):
                assert job["state"] != "failed", job
                await trio.to_thread.run_sync(self.client.cancel, name)
        await until("all is given back", self._is_empty)
        self.check()

    def _is_empty(self) -> bool:
        """In the eyes of who leads: the other one says what it saw when it led last."""
        grants = []
        for path in self._jobs_paths:
            try:
                status = JobClient([path]).ask("GET", "/v1/status")
            except (ControllerUnreachable, ControllerRefused):
                continue
            if status["leads"]:
                grants.append(status["grants"])
        return grants == [0] and not any(agent.held for agent in self.agents)
