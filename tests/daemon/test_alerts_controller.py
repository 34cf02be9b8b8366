"""Alerts of controllers: each fires on its fault, planted in a real controller or what it speaks with."""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.names import AGENTS_SOCKET
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto.ports import ByteStream
from inaproto.wire.messages.controller import AgentHello, AgentWelcome
from inaproto.wire.messages.slots import Lease, Order, SlotRequest, SlotsChanged
from tests.clusters.switch import running_switch
from tests.controller.tree_agents import CLUSTER as TWO_SPINES
from tests.controller.tree_agents import HOSTS, ROOT, Fabric, fabric
from tests.controller.ufm_double import Loss, UfmDouble
from tests.daemon.alerting import Scraped, Told, assert_fires, says, until_scraped
from tests.daemon.scraping import Samples, value
from tests.daemon.test_controller_daemon import Daemon, running
from tests.daemon.test_ufm_reservations import reserving

FOUR_HOSTS: dict[str, Any] = {
    "hosts": ["h0", "h1", "h2", "h3"],
    "switches": [{"name": "leaf", "jobs": 1}],
    "links": [{"between": [f"h{number}", "leaf"]} for number in range(4)],
}
Found = dict[str, Samples | None]


@asynccontextmanager
async def scraped_controller(directory: Path, scraped: Scraped, **options: Any) -> AsyncIterator[Daemon]:
    async with running(directory, metrics=scraped.add("controller", directory), **options) as daemon:
        yield daemon


def cluster_of(directory: Path, document: dict[str, Any]) -> Path:
    path = directory / "its-cluster.json"
    path.write_text(json.dumps(document))
    return path


def is_at(name: str, wanted: float, **labels: str) -> Callable[[Found], bool]:
    def condition(found: Found) -> bool:
        samples = found["controller"]
        return samples is not None and value(samples, name, **labels) == wanted

    return condition


async def test_a_controller_whose_agents_report_is_silent_and_one_that_they_leave_is_not(
    promtool: Path, runtime_dir: Path
) -> None:
    scraped = Scraped()
    async with scraped_controller(runtime_dir, scraped) as daemon:
        daemon.agent("host", "h0")
        daemon.agent("host", "h1")
        async with trio.open_nursery() as nursery:
            leaving = Daemon(daemon.settings, nursery)
            leaving.agent("switch", "leaf")
            before = await until_scraped(scraped, is_at("controller_agents", 3, presence="up"))
            await daemon.command("submit", "train", "--hosts", "2")
            await daemon.until("train", "placed")
            assert_fires(promtool, runtime_dir, Told.of(before, await scraped.look()), [])
            nursery.cancel_scope.cancel()
        during = await until_scraped(scraped, is_at("controller_agents", 2, presence="up"))
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoAgentsAway"])


async def test_jobs_that_lack_a_tree_or_hosts(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    path = cluster_of(runtime_dir, FOUR_HOSTS)
    async with scraped_controller(runtime_dir, scraped, cluster=path) as daemon:
        for host in FOUR_HOSTS["hosts"]:
            daemon.agent("host", host)
        daemon.agent("switch", "leaf")
        await until_scraped(scraped, is_at("controller_agents", 5, presence="up"))
        await daemon.command("submit", "first", "--hosts", "2")
        await daemon.until("first", "placed")
        before = await scraped.look()
        await daemon.command("submit", "second", "--hosts", "2")
        await daemon.until("second", "placed")
        during = await until_scraped(scraped, is_at("controller_jobs_without_tree", 1))
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoJobWithoutTree"])
        await daemon.command("cancel", "second")
        await daemon.command("submit", "third", "--hosts", "3")
        during = await until_scraped(scraped, is_at("controller_jobs", 1, state="queued"))
        without = await until_scraped(scraped, is_at("controller_jobs_without_tree", 0))
        assert_fires(promtool, runtime_dir, Told.of(before, during | without), ["InaprotoJobsQueued"])


async def test_a_store_that_somebody_has_locked(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with scraped_controller(runtime_dir, scraped) as daemon:
        for role, name in (("host", "h0"), ("host", "h1"), ("switch", "leaf")):
            daemon.agent(role, name)  # type: ignore[arg-type]
        before = await until_scraped(scraped, is_at("controller_agents", 3, presence="up"))
        (path,) = daemon.settings.dir.glob("*.db")
        person = sqlite3.connect(path, isolation_level=None)
        try:
            person.execute("BEGIN IMMEDIATE")
            await daemon.command("submit", "train", "--hosts", "2")
            during = await until_scraped(scraped, is_at("controller_store_works", 0))
            alerts = ["InaprotoControllerStoreLost", "InaprotoNoLeader"]
            assert_fires(promtool, runtime_dir, Told.of(before, during), alerts)
        finally:
            person.close()
        await until_scraped(scraped, is_at("controller_leads", 1))


async def test_a_lock_that_nobody_leads_with(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with scraped_controller(runtime_dir, scraped) as daemon:
        for role, name in (("host", "h0"), ("host", "h1"), ("switch", "leaf")):
            daemon.agent(role, name)  # type: ignore[arg-type]
        before = await until_scraped(scraped, is_at("controller_agents", 3, presence="up"))
        (path,) = daemon.settings.dir.glob("*.db")
        with open(f"{path}.lock", "rb") as lock:  # noqa: ASYNC230
            person = sqlite3.connect(path, isolation_level=None)
            person.execute("UPDATE control SET term = term + 1")  # so it lets the lock go
            person.close()
            await trio.to_thread.run_sync(fcntl.flock, lock, fcntl.LOCK_EX)
            during = await until_scraped(scraped, is_at("controller_leads", 0))
            assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoNoLeader"])
        await until_scraped(scraped, is_at("controller_leads", 1))


@asynccontextmanager
async def trees(directory: Path, scraped: Scraped) -> AsyncIterator[tuple[Daemon, Fabric]]:
    """A job whose tree is at a spine, and another spine beside it."""
    path = cluster_of(directory, TWO_SPINES)
    async with scraped_controller(directory, scraped, cluster=path, fabric_root=ROOT) as daemon:
        for host in HOSTS:
            daemon.agent("host", host)
        async with fabric(daemon.settings.dir) as its:
            await until_scraped(scraped, is_at("controller_agents", 8, presence="up"))
            its.rings.begins("train")
            while not (await daemon.ask(daemon.client.trees))["jobs"].get("train", {}).get("root"):  # noqa: ASYNC110
                await trio.sleep(0.01)
            await until_scraped(scraped, is_at("controller_moves_under_way", 0))
            yield daemon, its


async def test_a_tree_that_moves_each_minute(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with trees(runtime_dir, scraped) as (daemon, _):
        root = (await daemon.ask(daemon.client.trees))["jobs"]["train"]["root"]
        before = await scraped.look()
        other = "spine1" if root == "spine0" else "spine0"
        moved = await daemon.ask(daemon.client.move, "train", other, wait_s=30.0)
        assert moved["stands"]
        during = await until_scraped(scraped, is_at("controller_moves_under_way", 0))
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoTreesMoveOften"])


async def test_a_tree_that_does_not_arrive(promtool: Path, runtime_dir: Path) -> None:
    scraped = Scraped()
    async with trees(runtime_dir, scraped) as (daemon, its):
        root = (await daemon.ask(daemon.client.trees))["jobs"]["train"]["root"]
        before = await scraped.look()
        its.rings.holds.add("train")
        await daemon.ask(daemon.client.move, "train", "spine1" if root == "spine0" else "spine0")
        began = await until_scraped(scraped, is_at("controller_moves_under_way", 1))
        told = Told.of(before, await scraped.look(), began)
        assert_fires(promtool, runtime_dir, told, ["InaprotoTreeMoveHangs"])
        its.rings.let_go("train")


async def test_a_switch_whose_slots_are_all_lent(promtool: Path, runtime_dir: Path) -> None:
    """A controller that gives its only slot away, message by message."""
    scraped = Scraped()
    path = runtime_dir / AGENTS_SOCKET
    lend = trio.Event()
    listening = await UNIX.listen(path, "agents' socket")

    async def controller(connection: ByteStream) -> None:
        stream = ControlStream(connection)
        try:
            assert isinstance(await stream.receive(), AgentHello)
            await stream.send(AgentWelcome(term=1, report_ms=60_000, slots=1))
            while not isinstance(told := await stream.receive(), SlotsChanged):
                pass
            await lend.wait()
            await stream.send(SlotRequest(1, 1, told.boot, Order.ACQUIRE, Lease("train", 1, 1)))
            await trio.sleep_forever()
        finally:
            stream.close()

    async with trio.open_nursery() as nursery:
        options: dict[str, Any] = {
            "controller": [path],
            "name": "leaf",
            "metrics": scraped.add("switch", runtime_dir),
        }
        async with running_switch(runtime_dir / "run", **options):
            nursery.start_soon(controller, await listening.accept())
            before = await until_scraped(scraped, says("switch", "switch_slots", 1))
            lend.set()
            during = await until_scraped(scraped, says("switch", "switch_slots_lent", 1))
            assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoSlotsExhausted"])
        nursery.cancel_scope.cancel()
    listening.close()


async def test_a_ufm_that_is_silent(promtool: Path, runtime_dir: Path) -> None:
    scraped, ufm = Scraped(), UfmDouble()
    async with reserving(runtime_dir, ufm, metrics=scraped.add("controller", runtime_dir)):
        await until_scraped(scraped, is_at("controller_agents", 3, presence="up"))
        before = await until_scraped(scraped, is_at("controller_ufm_answers", 1))
        ufm.fault = lambda method, path: Loss.BEFORE
        during = await until_scraped(scraped, is_at("controller_ufm_answers", 0))
        assert_fires(promtool, runtime_dir, Told.of(before, during), ["InaprotoUfmSilent"])
