"""Clients of the job API beside the demo's jobs: some submit and cancel, some run what they have submitted.

Whoever gets no answer asks again, with the same words, or goes on. The ranks of a job that runs show the
token that its submission was answered with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import numpy as np
import trio

import inaproto
from inaproto.errors import InaprotoError
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable
from inaproto_hil.crashes.cluster import CrashCluster
from inaproto_hil.crashes.promises import OVER, Promises

T = TypeVar("T")
RETRY_S: Final = 0.05
AUDIT_S: Final = 2.0
LIVE_MAX: Final = 2
"""Jobs of a client that only submits and cancels."""
WATCH_S: Final = 1.0
"""Time that news of a job are waited for."""
OPERATIONS: Final = 8
ELEMENTS: Final = 3000


class Clients:
    """``answered`` is called, in any thread, as soon as there is an answer."""

    def __init__(
        self, cluster: CrashCluster, promises: Promises, seed: str, answered: Callable[[], None]
    ) -> None:
        self._cluster, self._promises, self._seed, self._answered = cluster, promises, seed, answered
        self._threads = trio.CapacityLimiter(16)
        self.stop = False
        self.waiting: dict[str, str] = {}
        """Jobs that are run, by name, and the state in which they were seen last."""

    async def _ask(self, call: Callable[[], T]) -> tuple[T, float]:
        """The answer, and when it was asked for. Raises ``ControllerUnreachable``, ``ControllerRefused``."""
        asked_at = trio.current_time()

        def asked() -> T:
            answer = call()
            self._answered()
            return answer

        return await trio.to_thread.run_sync(asked, limiter=self._threads), asked_at

    async def until_answered(self, call: Callable[[], T]) -> tuple[T, float]:
        """Asked again and again; forgets no call that may have been done."""
        while True:
            try:
                return await self._ask(call)
            except ControllerUnreachable:
                await trio.sleep(RETRY_S)

    # --- who submits and cancels

    async def storm(self, number: int) -> None:
        random = Random(f"{self._seed}/client/{number}")
        live: list[str] = []
        serial = 0
        while not self.stop:
            name = f"s{number}-{serial}"
            try:
                if live and (len(live) >= LIVE_MAX or random.random() < 0.5):
                    await self._cancel(live[0])
                    live.pop(0)
                elif live and random.random() < 0.2:
                    await self.submit(live[-1], len(live[-1]) % 2 + 1)  # the same again
                else:
                    await self.submit(name, len(name) % 2 + 1)
                    live.append(name)
                    serial += 1
            except ControllerUnreachable:
                await trio.sleep(RETRY_S)
            except ControllerRefused as error:
                self._promises.faults.append(f"client {number}, job {name}: refused: {error}")
                serial += 1
            await trio.sleep(random.uniform(0.02, 0.5))
        for name in live:
            try:
                await self.cancel_at_last(name)
            except ControllerRefused as error:
                self._promises.faults.append(f"client {number}, job {name}: refused: {error}")

    async def submit(self, name: str, hosts: int, *, on: Sequence[str] = ()) -> dict[str, Any]:
        """Raises ``ControllerUnreachable``; then it may have been done."""
        submission = f"{name:a>40}"
        answer, asked_at = await self._ask(
            partial(self._cluster.client.submit, name, hosts, on=on, submission=submission)
        )
        self._promises.submitted(name, answer, asked_at, trio.current_time())
        return answer

    async def _cancel(self, name: str) -> None:
        job, asked_at = await self._ask(partial(self._cluster.client.cancel, name))
        self._promises.cancelled(name, job, asked_at, trio.current_time())

    async def cancel_at_last(self, name: str) -> None:
        job, asked_at = await self.until_answered(partial(self._cluster.client.cancel, name))
        self._promises.cancelled(name, job, asked_at, trio.current_time())

    # --- who checks

    async def audit(self) -> None:
        """All that is there against all that was promised, once. Raises ``ControllerUnreachable``."""
        jobs, asked_at = await self._ask(partial(self._cluster.client.jobs, live=False))
        self._promises.listed(jobs, asked_at, trio.current_time())

    async def keep_auditing(self) -> None:
        while not self.stop:
            try:
                await self.audit()
            except ControllerUnreachable:
                await trio.sleep(RETRY_S)
            await trio.sleep(AUDIT_S)

    # --- who runs jobs

    async def tenant(self, number: int) -> None:
        """Runs one job after the other, each by its token, to its end."""
        serial = 0
        while not self.stop:
            name = f"t{number}-{serial}"
            serial += 1
            try:
                await self._run_job(name)
            except InaprotoError as error:
                self._promises.faults.append(f"job {name}: {type(error).__name__}: {error}")
            except BaseExceptionGroup as group:
                _, others = group.split(InaprotoError)
                if others is not None:
                    raise
                self._promises.faults.append(f"job {name}: {group.exceptions}")

    async def _run_job(self, name: str) -> None:
        # Beside agents that stand in for hosts, ranks that are real have real hosts.
        real = [f"h{number}" for number in range(self._cluster.config.hosts)]
        on = Random(name).sample(real, 2) if self._cluster.crowd else []
        answer = None
        while answer is None:
            try:
                answer = await self.submit(name, 2, on=on)
            except ControllerUnreachable:
                await trio.sleep(RETRY_S)
        job = await self.until(name, lambda state: state in OVER or state == "placed")
        if job is None or job["state"] != "placed":
            return  # it is cancelled at the end
        async with trio.open_nursery() as nursery:
            for rank, host in enumerate(job["hosts"]):
                nursery.start_soon(self._rank, name, rank, int(host.removeprefix("h")), answer["token"])
        job = await self.until(name, lambda state: state in OVER)
        if job is not None and job["state"] != "ended":
            self._promises.faults.append(f"job {name}: its ranks have ended, and it is {job['state']}")
        self._promises.counts["jobs run"] += 1

    async def until(self, name: str, is_so: Callable[[str], bool]) -> dict[str, Any] | None:
        """None: the end of all has come before, and it was cancelled."""
        after = -1
        while True:
            ask = partial(self._cluster.client.job, name, after=after, wait_s=WATCH_S)
            job, asked_at = await self.until_answered(ask)
            after = job["revision"]
            self._promises.looked(job, asked_at, trio.current_time())
            self.waiting[name] = job["state"]
            if is_so(job["state"]):
                del self.waiting[name]
                return job
            if self.stop and job["state"] in ("submitted", "queued"):
                await self.cancel_at_last(name)
                del self.waiting[name]
                return None

    async def _rank(self, name: str, rank: int, host: int, token: str) -> None:
        async with await inaproto.connect(
            name, rank, size=2, key=token, socket=self._cluster.host_socket(host), timeout=120.0
        ) as comm:
            for index in range(OPERATIONS):
                result = await comm.all_reduce(_part(name, index, rank)).wait(120.0)
                expected = _part(name, index, 0) + _part(name, index, 1)
                if result.tobytes() != expected.tobytes():
                    self._promises.faults.append(f"job {name}, rank {rank}, all-reduce {index}: not numpy's")


def _part(name: str, index: int, rank: int) -> Any:
    seed = [index, rank, *name.encode()]
    return np.random.default_rng(seed).standard_normal(ELEMENTS, dtype=np.float32)
