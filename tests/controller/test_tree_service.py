"""Jobs' trees at a controller: planned, drained, moved switch by switch, and found again after any restart.

The controller is the daemon, in this program; so are the links and ledgers of the switches.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from inaproto_controller.daemon import run_controller
from inaproto_controller.job_client import ControllerRefused, JobClient
from inaproto_controller.job_command import job as job_command
from inaproto_controller.settings import ControllerSettings
from tests.controller.tree_agents import CLUSTER, Fabric, fabric, until

DEADLINE_S = 120


class Controlled:
    """A controller that can be ended and started again on its store."""

    def __init__(self, directory: Path, nursery: trio.Nursery, options: dict[str, Any]) -> None:
        (directory / "cluster.json").write_text(json.dumps(CLUSTER))
        (directory / "run").mkdir(exist_ok=True)
        self._settings = ControllerSettings.model_validate(
            {
                "dir": directory,
                "cluster": directory / "cluster.json",
                "report_ms": 50,
                "store": str(directory / "run" / "store.db"),
                **options,
            }
        )
        self._nursery = nursery
        self._stop, self._ended = trio.Event(), trio.Event()
        self.client = JobClient([str(self._settings.jobs_path)])

    async def start(self) -> None:
        ready = trio.Event()
        self._stop, self._ended = trio.Event(), trio.Event()

        async def serve() -> None:
            await run_controller(self._settings, stop=self._stop, announce=lambda line: ready.set())
            self._ended.set()

        self._nursery.start_soon(serve)
        await ready.wait()

    async def stop(self) -> None:
        self._stop.set()
        await self._ended.wait()

    async def ask(self, call: Any, *given: Any, **named: Any) -> Any:
        return await trio.to_thread.run_sync(lambda: call(*given, **named))

    async def status(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.ask(self.client.trees)
        return found

    async def command(self, *words: str) -> Result:
        where = ["--dir", str(self._settings.dir)]
        found: Result = await self.ask(CliRunner().invoke, job_command, [words[0], *where, *words[1:]])
        return found


@asynccontextmanager
async def controlled(directory: Path, **options: Any) -> AsyncIterator[tuple[Controlled, Fabric]]:
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery, fabric_beside(directory) as its:
            controller = Controlled(directory, nursery, options)
            await controller.start()
            yield controller, its
            await controller.stop()
            nursery.cancel_scope.cancel()


def fabric_beside(directory: Path) -> Any:
    return fabric(directory)


def stands_with_slots(its: Fabric, job: str, pool: str) -> bool:
    """Its ring and its leases agree on one epoch."""
    state = its.rings.states[job]
    root = pool.partition("@")[2] or "spine0"
    held = its.held(job)
    return (
        state.phase == "standing"
        and state.pool == pool
        and set(held) == {"leaf0", "leaf1", root}
        and set(held.values()) == {state.epoch}
    )


async def test_a_job_that_comes_gets_slots_where_it_is_and_a_second_one_goes_elsewhere(
    runtime_dir: Path,
) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        assert its.rings.moves == [], "it has the tree that it is on"
        its.rings.begins("b")
        await until(lambda: stands_with_slots(its, "b", "shared@spine1"))
        status = await controller.status()
        assert status["jobs"]["b"]["root"] == "spine1"
        [move] = status["moves"]["done"]
        assert (move["job"], move["old"], move["new"]) == ("b", "spine0", "spine1")


async def test_a_job_that_ends_gives_its_slots_back(runtime_dir: Path) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        its.rings.ends("a")
        await until(lambda: its.held("a") == {})
        assert (await controller.status())["jobs"] == {}


async def test_a_person_moves_a_job_there_and_back(runtime_dir: Path) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        for number in range(4):
            root = f"spine{1 - number % 2}"
            found = await controller.command("move", "a", "--root", root)
            assert found.exit_code == 0, found.output
            assert f"job a is summed at {root}: " in found.output
            assert stands_with_slots(its, "a", "shared" if root == "spine0" else f"shared@{root}")
        assert [pool for _, pool in its.rings.moves] == ["shared@spine1", "shared"] * 2
        history = (await controller.ask(controller.client.ask, "GET", "/v1/status"))["history"]
        assert history["migrations"] == 4
        assert "wished: spine0" in (await controller.command("trees")).output
        assert (await controller.command("move", "a", "--anywhere")).exit_code == 0
        assert "wished" not in (await controller.command("trees")).output


async def test_what_cannot_be_wished_is_refused_with_what_can(runtime_dir: Path) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        for words, said in (
            (("a", "--root", "leaf7"), "cannot be summed at 'leaf7', but at spine0, spine1"),
            (("z", "--root", "spine0"), "no job 'z' on the path shared runs on several hosts; there are: a"),
            (("a",), "say --root SWITCH, or --anywhere"),
        ):
            found = await controller.command("move", *words)
            assert found.exit_code != 0
            assert said in found.output
        with pytest.raises(ControllerRefused):
            await controller.ask(controller.client.move, "a", "leaf7")


async def test_while_a_ring_parks_nothing_is_released_and_then_all_of_it(runtime_dir: Path) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        held = its.held("a")
        its.rings.holds.add("a")
        await controller.ask(controller.client.move, "a", "spine1")
        await until(lambda: its.rings.states["a"].phase == "parking" or its.rings.wishes["a"].tree is None)
        assert its.held("a") == held
        its.rings.let_go("a")
        await until(lambda: stands_with_slots(its, "a", "shared@spine1"))
        assert min(its.held("a").values()) > max(held.values())


async def test_a_tree_that_the_fabric_refuses_is_left_for_another(runtime_dir: Path) -> None:
    async with controlled(runtime_dir) as (_, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        its.rings.refuses.add("spine1")
        its.rings.begins("b")
        await until(lambda: its.rings.states["b"].phase == "refused")
        await until(lambda: stands_with_slots(its, "b", "shared"))


async def test_a_switch_that_restarts_costs_its_jobs_their_trees_until_they_have_slots_again(
    runtime_dir: Path,
) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        epoch = its.rings.states["a"].epoch
        its.agents["leaf0"].kill()
        its.start("leaf0")
        await until(lambda: its.rings.states["a"].epoch > epoch and stands_with_slots(its, "a", "shared"))
        assert (await controller.status())["counters"]["trees_lost"] == 1


async def test_a_root_that_restarts_finds_its_jobs_and_they_have_slots_again(runtime_dir: Path) -> None:
    async with controlled(runtime_dir) as (_, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        its.rings.begins("b")
        await until(lambda: stands_with_slots(its, "b", "shared@spine1"))
        its.agents["spine0"].kill()
        its.rings.states.clear()
        its.rings.wishes.clear()
        its.start("spine0")
        await until(lambda: its.held("a") == its.held("b") == {})
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        its.rings.begins("b")
        await until(lambda: stands_with_slots(its, "b", "shared@spine1"))


async def test_a_controller_that_comes_back_changes_nothing_that_is_right(runtime_dir: Path) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        its.rings.begins("b")
        await until(lambda: stands_with_slots(its, "b", "shared@spine1"))
        held, moves = {job: its.held(job) for job in "ab"}, list(its.rings.moves)
        await controller.stop()
        await controller.start()
        await until(lambda: its.agents["leaf1"].slots.status()["term"] > 1)
        its.rings.begins("c")
        await until(lambda: len(its.held("c")) == 3)
        assert {job: its.held(job) for job in "ab"} == held
        assert its.rings.moves[: len(moves)] == moves
        assert all(job == "c" for job, _ in its.rings.moves[len(moves) :])


@pytest.mark.parametrize("when", range(6))
async def test_a_controller_that_ends_in_the_middle_of_a_move_is_followed_by_one_that_ends_it(
    runtime_dir: Path, when: int
) -> None:
    async with controlled(runtime_dir) as (controller, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        if when % 2:
            its.rings.holds.add("a")
        await controller.ask(controller.client.move, "a", "spine1")
        for _ in range(when * 3):
            await trio.lowlevel.checkpoint()
        await controller.stop()
        its.rings.let_go("a")
        await controller.start()
        await until(lambda: stands_with_slots(its, "a", "shared@spine1"))


async def test_with_too_few_slots_a_job_goes_by_its_hosts_until_another_one_ends(runtime_dir: Path) -> None:
    async with controlled(runtime_dir, share_max=1) as (_, its):
        its.rings.begins("a")
        await until(lambda: stands_with_slots(its, "a", "shared"))
        its.rings.begins("b")
        await until(lambda: its.rings.states["b"].phase == "parked")
        assert its.held("b") == {}
        its.rings.ends("a")
        await until(lambda: its.rings.states["b"].phase == "standing" and len(its.held("b")) == 3)
