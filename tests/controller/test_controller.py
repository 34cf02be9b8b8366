"""The controller without its sockets: leading, records of cores, stores that fail."""

from __future__ import annotations

import os
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from inaproto.core.migration.moves import STABLE
from inaproto.core.rendezvous.tokens import Grant, Refusal, TokenIssuer
from inaproto.errors import InvariantBroken
from inaproto_controller.cluster.desired import Change, Desired, JobSpec, JobState
from inaproto_controller.planning.cluster_planner import ClusterPlanner
from inaproto_controller.service.agents import Agents
from inaproto_controller.service.controller import HISTORY_ROWS, Controller, JobRefused, NameTaken, NotLeading
from inaproto_controller.service.metrics import controller_metrics
from inaproto_controller.service.store.records import StoreLost
from inaproto_controller.service.store.sqlite import SqliteStore
from tests.controller.planned_cluster import racks

DEADLINE_S = 600
SUBMISSION = "t" * 40


@asynccontextmanager
async def leading(path: Path, **options: Any) -> AsyncIterator[Controller]:
    planner = ClusterPlanner(racks())
    controller = Controller(
        options.pop("store", None) or SqliteStore(path),
        planner,
        lambda changed: Agents({}, lease_s=1, report_s=1, sessions_max=1, changed=changed),
        wall_clock=lambda: 0.0,
        **options,
    )
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controller.run)
            await led(controller)
            yield controller
            nursery.cancel_scope.cancel()


async def led(controller: Controller, more_than: int = 0) -> None:
    while controller.term <= more_than:
        await trio.lowlevel.checkpoint()


async def test_records_of_cores_are_there_for_the_next_leader(tmp_path: Path) -> None:
    async with leading(tmp_path / "store") as first:
        await first.put_record("core/1", b"one")
        await first.put_record("core/2", b"two")
        await first.put_record("core/1", None)
        assert first.records == {"core/2": b"two"}
    with pytest.raises(NotLeading):
        await first.put_record("core/1", b"late")
    async with leading(tmp_path / "store") as second:
        assert second.records == {"core/2": b"two"}


class SlowStore(SqliteStore):
    """Events take as long to keep as the test likes; ``calls`` has who wrote what."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.calls: list[str] = []
        self.is_keeping, self.may_keep = threading.Event(), threading.Event()

    def keep_events(self, rows: Sequence[tuple[int, str]], gone: Sequence[int]) -> None:
        self.calls.append("events")
        self.is_keeping.set()
        assert self.may_keep.wait(DEADLINE_S)
        super().keep_events(rows, gone)

    def put_record(self, owner: str, body: bytes | None) -> None:
        self.calls.append(owner)
        super().put_record(owner, body)


async def test_a_promise_waits_for_a_few_events_not_for_all(tmp_path: Path) -> None:
    store = SlowStore(tmp_path / "store")
    async with leading(tmp_path / "store", store=store) as controller:
        for number in range(10 * HISTORY_ROWS):
            controller.history.migrates(f"job{number}", "spine", "spine1", STABLE)
        while not store.is_keeping.is_set():  # noqa: ASYNC110  of another thread
            await trio.sleep(0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(controller.put_record, "sharing/shared", b"promise")
            await trio.testing.wait_all_tasks_blocked()
            store.may_keep.set()
        assert store.calls[1:3] == ["events", "sharing/shared"], "behind the secret of tokens"
        while len(store.calls) < 12:  # noqa: ASYNC110  of another thread
            await trio.sleep(0.01)


class HeldStore(SqliteStore):
    """A commit takes as long as the test likes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits = 0
        self.is_committing, self.may_commit = threading.Event(), threading.Event()

    def commit(self, changes: Sequence[Change], after: Desired) -> None:
        self.commits += 1
        self.is_committing.set()
        assert self.may_commit.wait(DEADLINE_S)
        super().commit(changes, after)


async def test_those_who_wait_for_a_slow_disk_are_committed_together(tmp_path: Path) -> None:
    store = HeldStore(tmp_path / "store")
    found: dict[str, int] = {}

    async def submit(name: str) -> None:
        found[name] = (await controller.submit(JobSpec(name=name, hosts=1), SUBMISSION)).job.number

    async def is_refused(name: str) -> None:
        with pytest.raises(NameTaken):
            await controller.submit(JobSpec(name=name, hosts=2), SUBMISSION)

    async with leading(tmp_path / "store", store=store) as controller, trio.open_nursery() as nursery:
        nursery.start_soon(submit, "first")
        while not store.is_committing.is_set():  # noqa: ASYNC110  of another thread
            await trio.sleep(0.01)
        cancelled = trio.CancelScope()

        async def submit_and_leave() -> None:
            with cancelled:
                await submit("nobody waits for it")

        for number in range(20):
            nursery.start_soon(submit, f"job{number}")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(submit_and_leave)
        nursery.start_soon(is_refused, "job7")
        await trio.testing.wait_all_tasks_blocked()
        cancelled.cancel()
        await trio.testing.wait_all_tasks_blocked()
        store.may_commit.set()
        while len(found) < 21:  # noqa: ASYNC110  of other tasks
            await trio.sleep(0.01)
        assert sorted(found.values()) == list(range(1, 22))
        assert [job.spec.name for job in controller.jobs(live=False)] == sorted(found, key=found.__getitem__)
    assert store.commits <= 6, "the first one, all others, and what was planned in between"
    async with leading(tmp_path / "store") as second:
        assert {job.spec.name: job.number for job in second.jobs(live=False)} == found


async def test_who_is_cancelled_while_another_commits_for_it_harms_nobody(tmp_path: Path) -> None:
    store = HeldStore(tmp_path / "store")
    async with leading(tmp_path / "store", store=store) as controller, trio.open_nursery() as nursery:
        left = trio.CancelScope()

        async def submit_and_leave() -> None:
            with left:
                await controller.submit(JobSpec(name="left", hosts=1), SUBMISSION)

        async with controller._one_commit:
            nursery.start_soon(controller.submit, JobSpec(name="stays", hosts=1), SUBMISSION)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(submit_and_leave)
            await trio.testing.wait_all_tasks_blocked()
        while not store.is_committing.is_set():  # noqa: ASYNC110  of another thread
            await trio.sleep(0.01)
        left.cancel()
        await trio.testing.wait_all_tasks_blocked()
        store.may_commit.set()
        after = (await controller.submit(JobSpec(name="after", hosts=1), SUBMISSION)).job
        assert after.number == 3
        assert [job.spec.name for job in controller.jobs(live=False)] == ["stays", "left", "after"]


async def test_who_was_overtaken_reads_everything_anew(tmp_path: Path) -> None:
    """Somebody has written past the lock: the commit is refused, and nothing is lost."""
    async with leading(tmp_path / "store") as controller:
        await controller.submit(JobSpec(name="one", hosts=1), SUBMISSION)
        term = controller.term
        connection = sqlite3.connect(tmp_path / "store")
        with connection:
            connection.execute("UPDATE control SET term = term + 1")
        connection.close()
        with suppress(NotLeading):  # unless it has noticed by itself
            await controller.submit(JobSpec(name="two", hosts=1), SUBMISSION)
        await led(controller, term + 1)
        await controller.submit(JobSpec(name="two", hosts=1), SUBMISSION)
        assert [job.spec.name for job in controller.jobs(live=True)] == ["one", "two"]


async def test_a_store_with_a_slot_of_two_jobs_ends_the_controller(tmp_path: Path) -> None:
    with pytest.RaisesGroup(InvariantBroken, flatten_subgroups=True):
        async with leading(tmp_path / "store") as controller:
            job = (await controller.submit(JobSpec(name="one", hosts=1), SUBMISSION)).job
            connection = sqlite3.connect(tmp_path / "store")
            with connection:  # behind its back
                connection.execute("INSERT INTO jobs SELECT 77, 'two', 1, 0, '', body FROM jobs")
            connection.close()
            with pytest.raises(InvariantBroken):
                await controller.submit(JobSpec(name="two", hosts=1), SUBMISSION)
            assert job.state is JobState.SUBMITTED
            await trio.sleep_forever()


SPEC = JobSpec(name="one", hosts=1)


async def test_the_secret_of_the_store_outlasts_its_controllers(tmp_path: Path) -> None:
    async with leading(tmp_path / "store") as first:
        before = await first.submit(SPEC, SUBMISSION)
        assert first.records == {}
    async with leading(tmp_path / "store") as second:
        again = await second.submit(SPEC, SUBMISSION)
        assert (again.is_new, again.token) == (False, before.token)
        other = await second.submit(replace(SPEC, name="two"), SUBMISSION)
        assert other.token != before.token
        assert before.token not in repr(before)


async def test_tokens_by_the_deployment_s_secret(tmp_path: Path) -> None:
    issuer = TokenIssuer([bytes(32)])
    async with leading(tmp_path / "store", job_secret=issuer, token_days=2) as controller:
        found = await controller.submit(replace(SPEC, hosts=2, ranks_per_host=2), SUBMISSION)
        asked: dict[str, Any] = {"job": "one", "rank": 3, "size": 4, "host": "h7"}
        granted = issuer.check(found.token, **asked, now_s=2 * 86400 - 1)
        assert isinstance(granted, Grant)
        assert isinstance(issuer.check(found.token, **asked, now_s=2 * 86400), Refusal)
        with pytest.raises(JobRefused, match="65540"):
            await controller.submit(JobSpec(name="large", hosts=2, ranks_per_host=32770), SUBMISSION)
    async with leading(tmp_path / "store", job_secret=TokenIssuer([bytes(range(32))])) as controller:
        with pytest.raises(JobRefused, match="made with another job_secret"):
            await controller.submit(found.job.spec, SUBMISSION)


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_late_repeat_is_the_old_job_though_another_one_had_its_name(
    tmp_path: Path, is_live: bool
) -> None:
    async with leading(tmp_path / "store") as controller:
        first = await controller.submit(SPEC, SUBMISSION)
        await controller.cancel(SPEC.name)
        second = await controller.submit(SPEC, "u" * 40)
        if not is_live:
            await controller.cancel(SPEC.name)
        again = await controller.submit(SPEC, SUBMISSION)
        assert (again.is_new, again.job.number, again.token) == (False, first.job.number, first.token)
        assert controller.job(SPEC.name).number == second.job.number


@contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        highest = max(int(each) for each in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, highest + 32), hard))
        with suppress(OSError):
            while True:
                held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        # The lowest numbers first: what is opened from here on has the highest, below the new limit.
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, highest + 32 + number), hard))
        yield


@pytest.mark.parametrize("left", range(4))
def test_who_has_no_descriptors_left_tries_to_lead_again(tmp_path: Path, left: int) -> None:
    """For the lock, the database, its log, and what the log's readers share: 4 are enough."""
    store = SqliteStore(tmp_path / "store")
    for _ in range(2):
        with descriptors_left(left), pytest.raises(StoreLost, match=r"Too many open files|unable to open"):
            store.lead()
        with descriptors_left(6):
            assert store.lead()
        store.resign()


async def test_who_does_not_lead_says_how_old_its_status_is(tmp_path: Path) -> None:
    async with leading(tmp_path / "store") as first:
        await first.submit(SPEC, SUBMISSION)
        assert first.status()["as_of_s"] == 0.0
        assert families(first)["inaproto_controller_jobs"]
    told = first.status()
    assert (told["leads"], told["jobs"]["submitted"] + told["jobs"]["queued"]) == (False, 1)
    assert told["as_of_s"] >= 0.0
    assert "inaproto_controller_jobs" not in families(first)
    planner = ClusterPlanner(racks())
    never = Controller(
        SqliteStore(tmp_path / "store"),
        planner,
        lambda changed: Agents({}, lease_s=1, report_s=1, sessions_max=1, changed=changed),
    )
    assert never.status()["as_of_s"] is None


def families(controller: Controller) -> dict[str, Any]:
    return {one.name: one.samples for one in controller_metrics(controller.status())}
