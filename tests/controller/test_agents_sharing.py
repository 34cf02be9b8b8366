"""What hosts say of sharing to a controller that has sockets: nobody's words harm another's turns, or it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from inaproto.core.sharing.events import SharingConfig
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.unix_sockets import UNIX, listen_unix
from inaproto.ports import ByteStream
from inaproto.units import JobId, OpIndex
from inaproto.wire.control import encode_control
from inaproto.wire.control_messages import Error, Message
from inaproto.wire.messages.controller import (
    AgentHello,
    AgentPlacement,
    AgentReport,
    AgentRole,
    AgentWelcome,
    AgentWhere,
    HoldRecord,
)
from inaproto.wire.messages.sharing import (
    Abort,
    Ask,
    Commit,
    Done,
    Prepare,
    Seat,
    SeatHold,
    SharingSeats,
    Version,
    Vote,
)
from inaproto_controller.cluster.desired import Desired, Job, JobSpec, JobState
from inaproto_controller.service.agents import Agents
from inaproto_controller.service.observed import Presence
from inaproto_controller.service.turns.service import SharingService

DEADLINE_S: Final = 600
HOSTS: Final = ("h0", "h1", "h2")
POOL: Final = "shared"


class Host:
    """The controller's session of a host, spoken by hand."""

    def __init__(self, name: str, connection: ByteStream) -> None:
        self.name = name
        self.connection = connection
        self.stream = ControlStream(connection)

    def seat(self, job: str, life: int = 1) -> Seat:
        return Seat(JobId(job), self.name, life)

    async def has(self, *jobs: str, ring_id: int = 5, hosts: int = 2, pool: str = POOL) -> None:
        await self.stream.send(
            SharingSeats(
                seats=tuple(
                    SeatHold(pool=pool, job=job, life=1, ring_id=ring_id, hosts=hosts) for job in jobs
                )
            )
        )

    async def hears(self, kind: type[Message]) -> Any:
        while not isinstance(message := await self.stream.receive(), kind):
            assert not isinstance(message, Error), message
        return message

    async def ends(self) -> None:
        with suppress(EndOfChannel):
            while True:
                await self.stream.receive()

    async def votes(self, index: int) -> Prepare:
        asked: Prepare = await self.hears(Prepare)
        await self.stream.send(Vote(asked.seat, asked.version, OpIndex(index), in_ina=False))
        return asked

    async def commits(self) -> Commit:
        """The next round, at operation 0."""
        while True:
            asked = await self.votes(0)
            message = None
            while not isinstance(message, Abort | Commit):
                message = await self.stream.receive()
            if isinstance(message, Commit):
                await self.stream.send(Done(seat=asked.seat, version=asked.version))
                return message


class Controlled:
    """A controller's sessions of agents, with a store that is a dictionary."""

    def __init__(self, directory: Path, agents: Agents) -> None:
        self.agents = agents
        self.records: dict[str, bytes] = {}
        self.hosts: list[Host] = []
        self._path = directory / "agents.sock"

    async def put(self, owner: str, body: bytes | None) -> None:
        if body is None:
            self.records.pop(owner, None)
        else:
            self.records[owner] = body

    async def host(self, name: str) -> Host:
        host = Host(name, UNIX.dial(self._path))
        self.hosts.append(host)
        await host.stream.send(AgentHello(role="host", agent=name, boot_id=name))
        await host.hears(AgentWelcome)
        return host

    async def until(self, what: Any) -> None:
        while not what():
            await trio.lowlevel.checkpoint()

    def group(self, pool: str = POOL) -> Mapping[str, Any]:
        return next((one for one in self.agents.sharing.status() if one["pool"] == pool), {"jobs": {}})


@asynccontextmanager
async def controlled(
    directory: Path,
    desired: Desired | None = None,
    roles: Mapping[str, AgentRole] | None = None,
    **options: Any,
) -> AsyncIterator[Controlled]:
    roles = {**dict.fromkeys(HOSTS, "host"), **(roles or {})}
    given = {"lease_s": 30.0, "report_s": 2.0} | options
    agents = Agents(roles, sessions_max=8, changed=lambda: None, **given)
    its = Controlled(directory, agents)
    agents.lead(1, desired or Desired())
    agents.sharing.lead(its.records, its.put)
    with trio.fail_after(DEADLINE_S):
        listener = await listen_unix(directory / "agents.sock", "agents' socket")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agents.accept_sessions, listener)
                nursery.start_soon(agents.sharing.run)
                yield its
                nursery.cancel_scope.cancel()
        finally:
            for host in its.hosts:
                host.stream.close()
            listener.close()


@pytest.mark.parametrize("index", [1 << 63, (1 << 64) - 1])
async def test_an_operation_that_cannot_be_is_no_vote(runtime_dir: Path, index: int) -> None:
    """The turn would be of operations that no message can name; it would be on disk, and told for ever."""
    async with controlled(runtime_dir) as its:
        bad, good = await its.host("h0"), await its.host("h1")
        await bad.has("bad", "other", hosts=1)
        asked = await bad.hears(Prepare)
        version = {"term": asked.version.term, "number": asked.version.number}
        seat = {"job": asked.seat.job, "host": "h0", "life": 1}
        vote = encode_control("sharing_vote", 0, seat=seat, version=version, index=index, in_ina=False)
        bad.connection.send_nowait(memoryview(vote))
        await bad.ends()
        await good.has("good", hosts=1)
        granted = (await good.commits()).decision.granted
        assert granted is not None
        assert granted.job == "good"


async def test_a_seat_is_heard_by_its_group_alone(runtime_dir: Path) -> None:
    """Another group knows nothing of its rounds, and would answer that they were aborted."""

    def make(send: Any) -> SharingService:
        return SharingService(send, lease_s=30, roots=["spine1"])

    async with controlled(runtime_dir, sharing=make) as its:
        one, other = await its.host("h0"), await its.host("h1")
        await other.has("b", hosts=1, pool="shared@spine1")
        await other.commits()
        await one.has("a", hosts=1)
        await one.commits()
        for number in (50, 51):
            asked = Version(term=1, number=number)
            await one.stream.send(Ask(seat=one.seat("a"), version=asked))
            assert (await one.hears(Abort)).version == asked


async def test_a_ring_of_another_job_that_ends_is_not_this_one(runtime_dir: Path) -> None:
    """Rings have numbers in their fabric: a pool's name may be that of a pool of another fabric, too."""
    async with controlled(runtime_dir) as its:
        one, *others = [await its.host(name) for name in HOSTS]
        for other in others:
            await other.has("b", hosts=2)
        await others[0].has()
        await one.has("a", hosts=1)
        await one.commits()
        assert list(its.group()["jobs"]) == ["a"]


def placed(name: str, *hosts: str) -> Desired:
    job = Job(number=1, spec=JobSpec(name=name, hosts=len(hosts)), state=JobState.RUNNING, hosts=hosts)
    return Desired({1: job}, next_job=2)


async def test_a_host_has_no_seats_of_a_job_that_is_placed_on_others(runtime_dir: Path) -> None:
    """docs/protocol.md 15.2. A host speaks only for jobs placed on it, or its seat keeps them from turns."""
    async with controlled(runtime_dir, placed("train", "h0", "h1")) as its:
        first, second, stranger = [await its.host(name) for name in HOSTS]
        await stranger.has("train", "train~1", "own", hosts=2)
        await first.has("train")
        await second.has("train")
        await its.until(lambda: "train" in its.group()["jobs"])
        assert its.group()["jobs"]["train"]["hosts"] == ["h0", "h1"]
        await its.until(lambda: its.group()["missing"])
        assert {one.partition("@")[2] for one in its.group()["missing"]} <= {"h0", "h1"}


async def test_a_host_hears_where_a_job_is_placed(runtime_dir: Path) -> None:
    """docs/protocol.md 17. One that is over, or that nobody has submitted, is nowhere."""
    desired = placed("train", "h1", "h0")
    over = Job(number=2, spec=JobSpec(name="old", hosts=1), state=JobState.FAILED, hosts=("h2",))
    queued = Job(number=3, spec=JobSpec(name="next", hosts=1), state=JobState.QUEUED)
    desired = replace(desired, jobs={**desired.jobs, 2: over, 3: queued}, next_job=4)
    async with controlled(runtime_dir, desired) as its:
        stranger = await its.host("h2")
        for job, hosts, each in (
            ("train", ("h1", "h0"), 1),
            ("old", (), 0),
            ("next", (), 0),
            ("none", (), 0),
        ):
            await stranger.stream.send(AgentWhere(job=job))
            answer = AgentPlacement(job=job, hosts=hosts, ranks_per_host=each)
            assert replace(await stranger.hears(AgentPlacement), id=0) == answer
        its.agents.wish(Desired(), ())
        await stranger.stream.send(AgentWhere(job="train"))
        assert (await stranger.hears(AgentPlacement)).hosts == ()


async def test_a_switch_is_told_of_no_hosts(runtime_dir: Path) -> None:
    async with controlled(runtime_dir, roles={"leaf": "switch"}) as its:
        switch = ControlStream(UNIX.dial(runtime_dir / "agents.sock"))
        await switch.send(AgentHello(role="switch", agent="leaf", boot_id="b"))
        welcome = await switch.receive()
        assert isinstance(welcome, AgentWelcome)
        assert not welcome.places
        await switch.send(AgentWhere(job="train"))
        answer = await switch.receive()
        assert isinstance(answer, Error)
        assert "'agent_where' is not for a controller" in answer.message
        switch.close()
        assert (await its.host("h0")).name == "h0"


async def test_a_host_that_is_lost_while_nobody_leads_is_given_up(runtime_dir: Path) -> None:
    """Else the groups of its seats wait for it for ever."""
    async with controlled(runtime_dir, lease_s=0.3) as its:
        first = await its.host("h0")
        await first.has("a", hosts=1)
        await first.commits()
        sharing = its.agents.sharing
        await its.until(lambda: its.group()["turns"])
        its.agents.follow("its store is lost")
        await first.ends()
        its.agents.lead(2, Desired())
        sharing.lead(its.records, its.put)
        assert sharing.connected == []


async def test_what_a_host_says_of_its_ranks_commands_no_terminal(runtime_dir: Path) -> None:
    """It is shown to whoever asks for the job."""
    async with controlled(runtime_dir) as its:
        host = await its.host("h0")
        hold = HoldRecord(grant=1, phase="failed", reason="\x1b]0;mine\x07 it\nis gone")
        await host.stream.send(AgentReport(revision=0, holds=(hold,)))
        await its.until(lambda: its.agents.observed().agent("h0").holds)
        assert its.agents.observed().agent("h0").holds[1].reason == " ]0;mine  it is gone"


async def test_more_seats_than_a_group_takes(runtime_dir: Path) -> None:
    """The jobs that come first have their turns; the controller goes on."""

    def make(send: Any) -> SharingService:
        return SharingService(send, lease_s=30, config=replace(SharingConfig(""), seats_max=2))

    async with controlled(runtime_dir, sharing=make) as its:
        host = await its.host("h0")
        await host.has("a", "b", "c", hosts=1)
        await host.commits()
        assert list(its.group()["jobs"]) == ["a", "b"]


async def test_a_host_that_comes_again_before_it_was_missed_has_to_say_what_it_has(runtime_dir: Path) -> None:
    """Else its seats are kept for as long as its new session says nothing of them."""

    def make(send: Any) -> SharingService:
        return SharingService(send, lease_s=0.1)

    async with controlled(runtime_dir, sharing=make) as its:
        before = await its.host("h0")
        await before.has("a", hosts=1)
        await before.commits()
        await its.host("h0")
        await before.ends()
        await its.until(lambda: not its.group()["jobs"])


@pytest.mark.parametrize(
    ("hosts", "lease_s", "report_s", "every_s"),
    [
        (3, 30.0, 2.0, 2.0),
        (1024, 30.0, 2.0, 4.0),
        (1024, 12.0, 2.0, 3.0),
        (4096, 3600.0, 2.0, 5.0),
        (3, 3600.0, 600.0, 5.0),
    ],
    ids=["few", "many", "a short lease", "as often as links need", "never less often"],
)
async def test_many_agents_report_less_often(
    runtime_dir: Path, hosts: int, lease_s: float, report_s: float, every_s: float
) -> None:
    roles: dict[str, AgentRole] = {f"x{number}": "host" for number in range(hosts - len(HOSTS))}
    async with controlled(runtime_dir, roles=roles, lease_s=lease_s, report_s=report_s) as its:
        host = Host("h0", UNIX.dial(runtime_dir / "agents.sock"))
        its.hosts.append(host)
        await host.stream.send(AgentHello(role="host", agent="h0", boot_id="h0"))
        assert (await host.hears(AgentWelcome)).report_ms == 1000 * every_s


async def test_what_time_alone_changes_is_news(runtime_dir: Path, autojump_clock: object) -> None:
    """A host that nobody hears of is lost without another word of anybody."""
    agents = Agents({"h0": "host"}, lease_s=30.0, report_s=2.0, sessions_max=8, changed=lambda: None)
    agents.lead(1, Desired())
    agents.news()
    assert agents.observed().agent("h0").presence is Presence.UNKNOWN
    await trio.sleep(30)
    assert (agents.observed().agent("h0").presence, agents.news()) == (Presence.UNKNOWN, set())
    await trio.sleep(1)
    assert (agents.observed().agent("h0").presence, agents.news()) == (Presence.GONE, {"h0"})
    assert agents.news() == set()


async def test_before_it_leads_a_controller_names_all_agents(autojump_clock: object) -> None:
    """Its status is asked by people and programs as soon as it answers."""
    agents = Agents(
        {"h0": "host", "s0": "switch"}, lease_s=30.0, report_s=2.0, sessions_max=8, changed=lambda: None
    )
    assert {name: one.presence for name, one in agents.observed().agents.items()} == dict.fromkeys(
        ("h0", "s0"), Presence.UNKNOWN
    )
