"""Places in SHARP over the sockets of a controller: hosts are told, and report until they have given back."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from click.testing import CliRunner, Result

from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto.wire.control_messages import Error
from inaproto.wire.messages.controller import (
    AgentHello,
    AgentReport,
    AgentRole,
    AgentWelcome,
    AgentWishes,
    GrantRecord,
    HoldRecord,
)
from inaproto_controller.cluster.desired import Job, JobSpec, JobState
from inaproto_controller.service.controller import JobRefused, NoSuchJob
from inaproto_controller.service.job_command import job as job_command
from inaproto_controller.service.tree_requests import Moved, move_job
from tests.controller.live_controllers import TOKEN, LiveController, live_controller

HOSTS: Final = ("h0", "h1")
SPINES: Final = {"spine0": "spine1", "spine1": "spine0"}
CLUSTER: Final[dict[str, Any]] = {
    "hosts": list(HOSTS),
    "switches": [{"name": name, "generation": "quantum"} for name in ("leaf0", "leaf1", *SPINES)],
    "links": [
        {"between": ["h0", "leaf0"]},
        {"between": ["h1", "leaf1"]},
        *({"between": [leaf, spine]} for leaf in ("leaf0", "leaf1") for spine in SPINES),
    ],
}


@dataclass
class Host:
    """A host that is attached at once, and gives a place back when it may."""

    stream: ControlStream
    has_collective: bool
    welcome: AgentWelcome | None = None
    holds: dict[int, GrantRecord] = field(default_factory=dict)
    wanted: frozenset[int] = frozenset()
    revision: int = 0
    may_give_back: bool = True

    async def run(self, name: str) -> None:
        async with aclosing(self.stream), trio.open_nursery() as nursery:
            nursery.start_soon(self.stream.run)
            hello = AgentHello(
                role="host", agent=name, boot_id=f"boot-{name}", collective=self.has_collective
            )
            self.stream.send_nowait(hello)
            while True:
                message = await self.stream.receive()
                if isinstance(message, AgentWelcome):
                    self.welcome = message
                    self.report()
                elif isinstance(message, AgentWishes):
                    self.revision = message.revision
                    self.wanted = frozenset(one.grant for one in message.grants)
                    self.holds |= {one.grant: one for one in message.grants}
                    self.report()

    def report(self) -> None:
        """Say what is held, and what is not given back yet."""
        left = [one for one in self.holds if one not in self.wanted]
        for one in left:
            if self.may_give_back or self.holds[one].kind != "place":
                del self.holds[one]
        holds = tuple(HoldRecord(grant=number, phase="running") for number in self.holds)
        self.stream.send_nowait(AgentReport(revision=self.revision, holds=holds))

    def place(self) -> GrantRecord | None:
        """The place that is wanted here."""
        places = [one for one in self.holds.values() if one.kind == "place" and one.grant in self.wanted]
        return places[0] if places else None


async def connected(directory: Path) -> ControlStream:
    return ControlStream(await UnixDoor(directory / "agents.sock", UNIX).connect())


async def start(
    nursery: trio.Nursery, directory: Path, *, without: str = "", names: tuple[str, ...] = HOSTS
) -> dict[str, Host]:
    hosts = {name: Host(await connected(directory), name != without) for name in names}
    for name, host in hosts.items():
        nursery.start_soon(host.run, name)
    return hosts


async def attached(live: LiveController, root: str = "") -> Job:
    """The job once it is attached everywhere, there if it is said."""
    job = await live.until("train", lambda job: job.tree is not None and root in ("", job.tree.root))
    assert job.tree is not None
    assert await live.controller.until_placed_at("train", job.tree.root, 60)
    return job


async def command(live: LiveController, *words: str) -> Result:
    given = [words[0], "--controller", live.url, *words[1:]]
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(job_command, given))


async def test_a_job_has_its_places_moves_and_gives_them_back(tmp_path: Path) -> None:
    async with live_controller(tmp_path, CLUSTER) as live, trio.open_nursery() as nursery:
        hosts = await start(nursery, tmp_path)
        await live.submit("train", 2)
        job = await attached(live)
        assert job.tree is not None
        old, new = job.tree.root, SPINES[job.tree.root]
        for host in hosts.values():
            assert host.welcome is not None
            assert host.welcome.gives_places
            place = host.place()
            assert place is not None
            assert (place.name, place.job, place.size, place.switches[0]) == ("train", job.number, 2, old)
            assert (place.slots, place.ranks, place.token_hash) == ((), 0, "")
        shown = await command(live, "show", "train")
        assert "places: in SHARP, 2 of 2 hosts hold one, 2 are attached\n" in shown.output

        hosts["h1"].may_give_back = False
        moved: list[Moved] = []

        async def move() -> None:
            moved.append(await move_job(live.controller, "train", new, 60))

        nursery.start_soon(move)
        await live.until("train", lambda job: job.tree is None and job.root == new)
        while hosts["h0"].holds.keys() - hosts["h0"].wanted or hosts["h0"].place() is not None:
            await trio.lowlevel.checkpoint()
        while hosts["h1"].place() is not None:
            await trio.lowlevel.checkpoint()
        for _ in range(3):  # looks at what both have reported
            hosts["h1"].report()
            assert live.controller.job("train").tree is None, "the old tree is released first"
            await trio.sleep(0.02)
        assert not moved
        status = live.controller.status()["places"]
        assert status["under_way"] == ["train"]
        assert status["jobs"]["train"]["wished"] == new
        hosts["h1"].may_give_back = True
        hosts["h1"].report()
        await attached(live, new)
        while not moved:
            await trio.lowlevel.checkpoint()
        (one,) = live.controller.status()["places"]["moves"]
        assert moved == [Moved("train", new, True, one)]
        assert (one["job"], one["old"], one["new"]) == ("train", old, new)
        assert 0 <= one["release_s"] + one["acquire_s"] <= one["total_s"] + 1e-3
        shown = await command(live, "show", "train", "--json")
        assert json.loads(shown.output)["places"] == {
            "hosts": 2,
            "held": 2,
            "attached": 2,
            "root": new,
            "wished": new,
        }

        await live.controller.cancel("train")
        while live.controller.status()["grants"]:
            await trio.lowlevel.checkpoint()
        assert [host.holds for host in hosts.values()] == [{}, {}]
        nursery.cancel_scope.cancel()


async def test_a_move_is_asked_for_by_the_command(tmp_path: Path) -> None:
    async with live_controller(tmp_path, CLUSTER) as live, trio.open_nursery() as nursery:
        await start(nursery, tmp_path)
        await live.submit("train", 2)
        job = await attached(live)
        assert job.tree is not None
        new = SPINES[job.tree.root]
        done = await command(live, "move", "train", "--root", new)
        assert done.output.startswith(f"job train is summed at {new}: "), done.output
        assert "(release " in done.output
        refused = await command(live, "move", "train", "--root", "h0")
        assert (refused.exit_code, "but at " in refused.output) == (1, True)
        assert new in refused.output
        done = await command(live, "move", "train", "--anywhere")
        assert done.exit_code == 0
        assert live.controller.job("train").root == ""
        nursery.cancel_scope.cancel()


async def test_a_wish_outlives_the_controller(tmp_path: Path) -> None:
    async with live_controller(tmp_path, CLUSTER) as live, trio.open_nursery() as nursery:
        await start(nursery, tmp_path)
        await live.submit("train", 2)
        job = await attached(live)
        nursery.cancel_scope.cancel()
    assert job.tree is not None
    new = SPINES[job.tree.root]
    async with live_controller(tmp_path, CLUSTER) as live, trio.open_nursery() as nursery:
        while not live.controller.place_roots("train"):
            await trio.lowlevel.checkpoint()
        found = await move_job(live.controller, "train", new, 0)  # no host is there
        assert not found.stands
        nursery.cancel_scope.cancel()
    async with live_controller(tmp_path, CLUSTER) as live:
        assert live.controller.job("train").root == new


async def test_who_keeps_to_no_places_is_told_of_none(tmp_path: Path) -> None:
    """An older host daemon does not know what a place is."""
    async with live_controller(tmp_path, CLUSTER) as live, trio.open_nursery() as nursery:
        hosts = await start(nursery, tmp_path, without="h1")
        await live.submit("train", 2)
        job = await live.until("train", lambda job: job.state is JobState.RUNNING)
        assert job.tree is None
        assert all(one.kind == "seats" for host in hosts.values() for one in host.holds.values())
        with pytest.raises(JobRefused, match="cannot have its tree at 'h0', but at "):
            await move_job(live.controller, "train", "h0", 0)
        with pytest.raises(NoSuchJob):
            await live.controller.wish_root("nobody", "spine0")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("role", "name", "said"),
    [
        ("switch", "spine0", "sums by SHARP, where no switch daemon is asked"),
        ("switch", "spine9", "the cluster file has none of that name"),
        ("switch", "h0", "the cluster file says that it is a host"),
    ],
)
async def test_a_switch_daemon_at_a_switch_of_sharp_is_refused(
    tmp_path: Path, role: AgentRole, name: str, said: str
) -> None:
    async with live_controller(tmp_path, CLUSTER):
        async with aclosing(await connected(tmp_path)) as stream:
            await stream.send(AgentHello(role=role, agent=name, boot_id="b"))
            answer = await stream.receive()
        assert isinstance(answer, Error)
        assert answer.code == "agent_refused"
        assert said in answer.message


async def test_a_controller_without_sharp_gives_no_places(tmp_path: Path) -> None:
    plain = CLUSTER | {"switches": [{"name": one["name"], "jobs": 1} for one in CLUSTER["switches"]]}
    async with live_controller(tmp_path, plain) as live, trio.open_nursery() as nursery:
        hosts = await start(nursery, tmp_path)
        await live.controller.submit(JobSpec(name="train", hosts=2), TOKEN)
        await live.until("train", lambda job: job.state is JobState.RUNNING)
        assert [host.welcome is not None and host.welcome.gives_places for host in hosts.values()] == [
            False
        ] * 2
        assert live.controller.status()["places"] is None
        nursery.cancel_scope.cancel()
