"""Controllers that are killed at any moment forget nothing that they promised, and give no slot to two jobs.

More kills than here: ``make crashes``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient
from tests.controller.crash_cluster import Controllers, CrashCluster, until

CRASHES = int(os.environ.get("INAPROTO_CRASHES", "50"))
"""Of the controller with a file; of a pair a fifth as many."""
SEED = int(os.environ.get("INAPROTO_CRASH_SEED", "1"))

pytestmark = pytest.mark.timeout(120 + 12 * CRASHES)


@pytest.fixture
def controllers(runtime_dir: Path) -> Iterator[Controllers]:
    started = Controllers(runtime_dir)
    yield started
    started.close()


async def test_a_controller_killed_again_and_again(controllers: Controllers, runtime_dir: Path) -> None:
    store = str(runtime_dir / "store")
    controllers.start("a", store)
    cluster = CrashCluster(controllers, ["a"], SEED)

    async def kill() -> None:
        is_sharp = cluster.random.random() < 0.6
        await controllers.kill("a", cluster.promises if is_sharp else None)
        controllers.start("a", store)

    await cluster.run(kill, times=CRASHES)
    assert len(cluster.promises.submitted) > CRASHES / 2
    assert len(cluster.promises.cancelled) > CRASHES / 8


def term_of(controllers: Controllers, name: str) -> int:
    """0 if it does not lead."""
    try:
        return int(JobClient([controllers.jobs_path(name)]).ask("GET", "/v1/status")["term"])
    except (ControllerUnreachable, ControllerRefused):
        return 0


def leads(controllers: Controllers, name: str) -> bool:
    return term_of(controllers, name) > 0


async def test_a_pair_whose_leader_is_killed(
    controllers: Controllers, runtime_dir: Path, postgresql: str
) -> None:
    for name in ("a", "b"):
        controllers.start(name, postgresql)
    cluster = CrashCluster(controllers, ["a", "b"], SEED)
    killed: list[str] = []

    async def kill() -> None:
        await until("one leads", lambda: any(leads(controllers, name) for name in ("a", "b")))
        name = next((name for name in ("a", "b") if leads(controllers, name)), "a")
        await controllers.kill(name)
        other = "b" if name == "a" else "a"
        await until(f"{other} leads", lambda: leads(controllers, other))
        controllers.start(name, postgresql)
        killed.append(name)

    await cluster.run(kill, times=max(10, CRASHES // 5))
    assert {"a", "b"} == set(killed)
    assert len(cluster.promises.submitted) > len(killed)


async def test_a_pair_whose_leader_hangs(
    controllers: Controllers, runtime_dir: Path, postgresql: str
) -> None:
    """Its sessions with the database stand, and so does its socket. Then it goes on, and does not lead."""
    for name in ("a", "b"):
        controllers.start(name, postgresql)
    cluster = CrashCluster(controllers, ["a", "b"], SEED)

    async def hang() -> None:
        await until("one leads", lambda: any(leads(controllers, name) for name in ("a", "b")))
        name = next((name for name in ("a", "b") if leads(controllers, name)), "a")
        other = "b" if name == "a" else "a"
        with controllers.stopped(name):
            await until(f"{other} leads", lambda: leads(controllers, other))
            made = len(cluster.promises.submitted)
            await until("it takes promises", lambda: len(cluster.promises.submitted) > made)
        await until(f"{name} follows", lambda: controllers.is_running(name) and not leads(controllers, name))

    await cluster.run(hang, times=1)
    for names in (("a", "b"), ("b", "a")):
        client = JobClient([controllers.jobs_path(name) for name in names])
        assert client.status()["leads"]


async def test_a_pair_whose_leader_is_deposed(
    controllers: Controllers, runtime_dir: Path, postgresql: str
) -> None:
    """The database ends the session that has its lock; it goes on, and believes for a while that it leads."""
    import psycopg

    for name in ("a", "b"):
        controllers.start(name, postgresql)
    cluster = CrashCluster(controllers, ["a", "b"], SEED)
    terms: list[int] = []

    def depose() -> bool:
        with psycopg.connect(postgresql, autocommit=True) as connection:
            found = connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            )
            return bool(found.fetchall())

    async def kill() -> None:
        before = max(term_of(controllers, name) for name in ("a", "b"))
        await until("one has the lock", depose)
        await until("a new term", lambda: any(term_of(controllers, name) > before for name in ("a", "b")))
        terms.append(before)

    await cluster.run(kill, times=max(10, CRASHES // 5))
    assert all(controllers.is_running(name) for name in ("a", "b"))
    await until("one leads", lambda: sum(leads(controllers, name) for name in ("a", "b")) == 1)
    assert len(set(terms)) > len(terms) / 2
