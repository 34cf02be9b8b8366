"""``inaproto demo sharp``: what becomes of jobs that SHARP sums for, when it does not.

The library is the double of the source tree: nothing here says anything of SHARP hardware. Four host daemons,
a controller and our own switch are processes; the ranks of two jobs are tasks, each at its host's daemon. A
switch of a tree is lost, a lock is denied, the jobs swap their trees, and a host daemon is ended by SIGKILL,
so that it leaves without a word to the Aggregation Manager. Each time the all-reduces go on by our switch,
and come back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from inaproto_hil.demo.sharp_plot import draw
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.sharp_cluster import SPINES, WAIT_S, SharpCluster
from inaproto_hil.rigs.sharp_jobs import PATH, SharpJob, Told

CLEANUP_MS: Final = 2000
"""The double's manager frees what a dead process has left after so long."""
LOOK_S: Final = 0.05
MOVE_S: Final = 60.0
"""The controller lets nobody wait longer for a move."""


@dataclass(frozen=True, slots=True)
class Config:
    steps: int = 40
    """All-reduces by SHARP of each job between two events."""
    scale: float = 0.0
    """Of the times that a release and an acquisition took in the paper; the double waits so long."""


@dataclass
class Story:
    """What has happened. ``events``: when, on Trio's clock, and in words."""

    began: float
    say: Callable[[str], None]
    events: list[tuple[float, str]] = field(default_factory=list)
    told: dict[str, Told] = field(default_factory=dict)

    def tell(self, text: str) -> None:
        now = trio.current_time()
        self.events.append((now, text))
        self.say(f"[{now - self.began:5.1f} s] {text}")


class Play:
    def __init__(self, cluster: SharpCluster, config: Config, say: Callable[[str], None]) -> None:
        self.cluster, self.config = cluster, config
        self.story = Story(trio.current_time(), say)
        self.jobs: list[SharpJob] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            await self._hosts_here()
            first = await self.begin(nursery, "red")
            second = await self.begin(nursery, "blue")
            await self._both_sum(first, second)
            await self._lose_a_tree(first)
            await self._deny_a_lock(second)
            await self._swap(first, second)
            third = await self._crash(nursery, second)
            for job in (first, third):
                await self.note(job)
                job.finish()

    # --- what happens

    async def begin(self, nursery: trio.Nursery, name: str) -> SharpJob:
        """Submit a job of two hosts, and let it run once the controller has a tree for it."""
        token = (await self._ask(partial(self.cluster.submit, name, 2)))["token"]
        placed = await self._job(name, lambda job: job["tree"] is not None)
        self.cluster.route(placed)
        job = SharpJob(self.cluster, name, [int(host[1:]) for host in placed["hosts"]], token)
        self.jobs.append(job)
        await nursery.start(job.run)
        where = ", ".join(placed["hosts"])
        self.story.tell(f"job {name} runs at {where}; its tree: {placed['tree']['root']}")
        return job

    async def _both_sum(self, *jobs: SharpJob) -> None:
        for job in jobs:
            await job.until_by(PATH, steps=self.config.steps)
        self.story.tell("both are summed by SHARP")

    async def _lose_a_tree(self, job: SharpJob) -> None:
        root = await self._root(job)
        self.cluster.lose(root)
        self.story.tell(f"switch {root} is lost, in the middle of job {job.name}'s tree")
        await self._by_and_by(job, lambda: self.cluster.lose(""), f"{root} is back")

    async def _deny_a_lock(self, job: SharpJob) -> None:
        root = await self._root(job)
        self.cluster.lock(root)
        self.story.tell(f"somebody else has the lock of {root}")
        await self._by_and_by(job, lambda: self.cluster.lock(""), "the lock is free")

    async def _by_and_by(self, job: SharpJob, mend: Callable[[], None], mended: str) -> None:
        """A job goes on without SHARP, and returns once that is mended."""
        await job.until_not_by(PATH, steps=self.config.steps)
        self.story.tell(f"job {job.name} goes on by {job.seen[-1].path}: {await self._why(job)}")
        mend()
        await job.until_by(PATH, steps=self.config.steps)
        self.story.tell(f"{mended}, and job {job.name} by SHARP")

    async def _swap(self, *jobs: SharpJob) -> None:
        await swap(self.cluster, jobs)
        for job in jobs:
            await job.until_by(PATH, steps=self.config.steps)
        moves = (await self.status())["places"]["moves"][-len(jobs) :]
        for move in moves:
            times = f"released in {move['release_s']:.2f} s, acquired in {move['acquire_s']:.2f} s"
            self.story.tell(f"job {move['job']} moved from {move['old']} to {move['new']}: {times}")

    async def _crash(self, nursery: trio.Nursery, job: SharpJob) -> SharpJob:
        """A host daemon is gone without ``finalize``; its job fails, and a new one takes its hosts."""
        self.cluster.double.set(cleanup_ms=CLEANUP_MS)
        await job.hold()
        await self.note(job)
        host = job.hosts[-1]
        self.cluster.restart_host(host)
        self.story.tell(f"host daemon h{host} is killed (SIGKILL), and started again")
        job.go_on()
        with trio.fail_after(WAIT_S):
            await job.ended.wait()
        self.story.tell(f"job {job.name} has failed on all ranks: {job.failure}")
        await self._hosts_here()
        await self._job(job.name, lambda its: its["state"] in ("failed", "ended"))
        third = await self.begin(nursery, "green")
        await third.until_not_by(PATH, steps=1)
        refused = ""
        with trio.move_on_after(CLEANUP_MS / 1000):
            while not refused:
                refused = await self._why(third)
        if refused:
            self.story.tell(f"job {third.name} begins without SHARP: {refused}")
        await third.until_by(PATH, steps=self.config.steps)
        self.story.tell(f"the manager has found out, and job {third.name} is summed by SHARP")
        return third

    # --- what is asked

    async def _ask(self, ask: Callable[[], Any]) -> Any:
        return await trio.to_thread.run_sync(ask)

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = await self._ask(self.cluster.client.status)
        return found

    async def _job(
        self, name: str, fits: Callable[[dict[str, Any]], bool] = lambda job: True
    ) -> dict[str, Any]:
        """The job as the controller has it, once it fits."""
        with trio.fail_after(WAIT_S):
            while True:
                found: dict[str, Any] = await self._ask(partial(self.cluster.client.job, name))
                if fits(found):
                    return found
                await trio.sleep(LOOK_S)

    async def _hosts_here(self) -> None:
        """All of them report to the controller."""
        with trio.fail_after(WAIT_S):
            while True:
                agents = (await self.status())["agents"]
                if all(agents[f"h{host}"]["presence"] == "up" for host in range(len(self.cluster.hosts))):
                    return
                await trio.sleep(LOOK_S)

    async def _root(self, job: SharpJob) -> str:
        return str((await self._job(job.name))["tree"]["root"])

    async def _why(self, job: SharpJob) -> str:
        status = await self._ask(partial(self.cluster.host_status, job.hosts[0]))
        rings = [ring for ring in status["rings"] if ring["job"] == job.name and ring["collective"]]
        return str(rings[0]["collective"]["reason"]) if rings else ""

    async def note(self, job: SharpJob) -> None:
        """What the daemons have told of a job, while nothing of it is under way."""
        await job.hold()
        self.story.told[job.name] = await job.told()

    async def result(self) -> dict[str, Any]:
        """For people and their programs."""
        story, seen = self.story, [one for job in self.jobs for one in job.seen]
        moves = (await self.status())["places"]["moves"]
        by_sharp = sum(one.path == PATH for one in seen)
        silent = 0
        for job in self.jobs:
            beside = sum(one.path != PATH for one in job.seen)
            silent += abs(beside - story.told[job.name].fallbacks)
        return {
            "config": asdict(self.config),
            "equal_on_all_ranks": not any(job.differs for job in self.jobs),
            "all_reduces": len(seen),
            "sharp_share": by_sharp / len(seen) if seen else 0.0,
            "fallbacks": len(seen) - by_sharp,
            "redone_by_code": {name: dict(told.redone) for name, told in story.told.items() if told.redone},
            "migrations": len(moves),
            "moves": moves,
            "hangs": sum(job.hangs for job in self.jobs),
            "silent": silent,
            "failures": {job.name: str(job.failure) for job in self.jobs if job.failure is not None},
            "events": [{"at_s": at - story.began, "text": text} for at, text in story.events],
            "seen": {
                job.name: [[one.at - story.began, one.seconds, one.path] for one in job.seen]
                for job in self.jobs
            },
        }


async def swap(cluster: SharpCluster, jobs: tuple[SharpJob, ...]) -> None:
    """Each gets the tree that the other has; returns when both are attached there."""

    async def root_of(job: SharpJob) -> str:
        found = await trio.to_thread.run_sync(partial(cluster.client.job, job.name))
        return str(found["tree"]["root"])

    async def move(job: SharpJob, root: str) -> None:
        found = await trio.to_thread.run_sync(partial(cluster.client.move, job.name, root, wait_s=MOVE_S))
        if not found["stands"]:
            raise ClusterError(f"job {job.name} is not at {root} within {MOVE_S:g} s: {found}")

    roots = {job: SPINES[1 - SPINES.index(await root_of(job))] for job in jobs}
    for job, root in roots.items():
        cluster.route_by([f"h{host}" for host in job.hosts], root)
    async with trio.open_nursery() as nursery:
        for job, root in roots.items():
            nursery.start_soon(move, job, root)


def last_line(found: dict[str, Any]) -> str:
    """Of the act."""
    equal = "yes" if found["equal_on_all_ranks"] else "no"
    return (
        f"equal_on_all_ranks={equal} sharp_share={found['sharp_share']:.2f} fallbacks={found['fallbacks']} "
        f"migrations={found['migrations']} hangs={found['hangs']} silent={found['silent']}"
    )


async def _play(cluster: SharpCluster, config: Config, say: Callable[[str], None]) -> dict[str, Any]:
    play = Play(cluster, config, say)
    cluster.double.set(delay_permille=round(1000 * config.scale))
    await play.run()
    return await play.result()


def main(config: Config, out: Path, say: Callable[[str], None] = print) -> int:
    """Returns the exit status. Raises ``Unsupported`` without a C compiler, or outside of a checkout."""
    with SharpCluster(log_dir=out) as cluster:
        found = trio.run(_play, cluster, config, say)
    (out / "sharp.json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, out / "sharp.png")
    say(f"{out / 'sharp.json'}  {out / 'sharp.png'}")
    say(last_line(found))
    is_good = found["equal_on_all_ranks"] and not found["hangs"] and not found["silent"]
    return 0 if is_good and found["migrations"] >= 2 else 1
