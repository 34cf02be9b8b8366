"""The controller daemon in this Trio program: its job API, its command and its agents, over real sockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from inaproto.core.rendezvous.tokens import hash_of
from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.unix_sockets import UNIX, connect_unix
from inaproto.errors import ConfigError
from inaproto.units import OpIndex
from inaproto.wire.control_messages import Error, Message, Status
from inaproto.wire.messages.controller import AgentHello, AgentRole, GrantRecord, HoldPhase, HoldRecord
from inaproto.wire.messages.sharing import (
    Commit,
    Done,
    Prepare,
    SeatHold,
    SharingSeats,
    Vote,
)
from inaproto_controller.service.daemon import run_controller
from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient
from inaproto_controller.service.job_command import job as job_command
from inaproto_controller.service.settings import ControllerSettings

DEADLINE_S = 60
"""For one answer."""
ALL_S = 600
CLUSTER = {
    "hosts": ["h0", "h1"],
    "switches": [{"name": "leaf", "jobs": 1}],
    "links": [{"between": ["h0", "leaf"]}, {"between": ["h1", "leaf"]}],
}
SUBMISSION = "t" * 40


class Daemon:
    def __init__(self, settings: ControllerSettings, nursery: trio.Nursery) -> None:
        self.settings = settings
        self.nursery = nursery
        self.client = JobClient([str(settings.jobs_path)])

    async def ask(self, call: Any, *given: Any, **named: Any) -> Any:
        return await trio.to_thread.run_sync(lambda: call(*given, **named))

    async def command(self, *words: str) -> Result:
        where = ["--dir", str(self.settings.dir)]
        found: Result = await self.ask(CliRunner().invoke, job_command, [words[0], *where, *words[1:]])
        return found

    async def stranger(self) -> ControlStream:
        return ControlStream(await connect_unix(self.settings.agents_path, "test"))

    def door(self) -> UnixDoor:
        return UnixDoor(self.settings.agents_path, UNIX)

    def agent(self, role: AgentRole, name: str) -> Holder:
        holder = Holder()
        link = holder.link = ControllerLink(role, name, holder, [self.door()], retry_s=0.01)
        self.nursery.start_soon(link.run)
        return holder

    async def until(self, name: str, state: str) -> dict[str, Any]:
        job: dict[str, Any] = await self.ask(self.client.job, name)
        while job["state"] != state:
            job = await self.ask(self.client.job, name, after=job["revision"], wait_s=DEADLINE_S)
        return job


class Holder:
    link: ControllerLink

    def __init__(self) -> None:
        self.grants: dict[int, GrantRecord] = {}
        self.phase: HoldPhase = "held"

    def want(self, grants: Sequence[GrantRecord]) -> None:
        self.grants = {grant.grant: grant for grant in grants}

    def holds(self) -> list[HoldRecord]:
        return [
            HoldRecord(grant=number, phase=self.phase if grant.kind == "seats" else "held")
            for number, grant in self.grants.items()
        ]

    def say(self, phase: HoldPhase) -> None:
        self.phase = phase
        self.link.changed()


@asynccontextmanager
async def running(directory: Path, **options: object) -> AsyncIterator[Daemon]:
    (directory / "cluster.json").write_text(json.dumps(CLUSTER))
    settings = ControllerSettings.model_validate(
        {"dir": directory / "run", "cluster": directory / "cluster.json", "report_ms": 20, **options}
    )
    stop, ready = trio.Event(), trio.Event()
    with trio.fail_after(ALL_S):
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                await run_controller(settings, stop=stop, announce=lambda line: ready.set())
                nursery.cancel_scope.cancel()

            nursery.start_soon(serve)
            await ready.wait()
            daemon = Daemon(settings, nursery)
            while not (await daemon.ask(daemon.client.ask, "GET", "/v1/status"))["leads"]:
                await trio.lowlevel.checkpoint()
            yield daemon
            stop.set()


@pytest.mark.parametrize(("model", "said"), [("file", "switch"), ("switch", "switch"), ("port", "port")])
async def test_status_says_which_capacity_model_is_in_force(runtime_dir: Path, model: str, said: str) -> None:
    async with running(runtime_dir, capacity_model=model) as daemon:
        status = await daemon.ask(daemon.client.status)
        assert status["capacity"] == {"model": said, said: 1}


async def test_a_job_from_its_submission_to_its_end(runtime_dir: Path) -> None:
    async with running(runtime_dir) as daemon:
        hosts = [daemon.agent("host", name) for name in ("h0", "h1")]
        switch = daemon.agent("switch", "leaf")
        said = await daemon.command(
            "submit", "train", "--hosts", "2", "--ranks-per-host", "4", "--submission", SUBMISSION
        )
        assert said.exit_code == 0
        (token,) = [line.partition(" ")[2] for line in said.output.splitlines() if line.startswith("token ")]
        (following,) = [line for line in said.output.splitlines() if line.startswith("next: ")]
        assert following == f"next: inaproto job watch --dir {daemon.settings.dir} train", "to be pasted"
        placed = await daemon.until("train", "placed")
        assert placed["hosts"] == ["h0", "h1"]
        while not (hosts[1].grants and switch.grants and hosts[1].grants[2].switches):
            await trio.lowlevel.checkpoint()
        (seats,) = hosts[1].grants.values()
        assert (seats.first_rank, seats.ranks, seats.size, seats.switches) == (4, 4, 8, ("leaf",))
        assert seats.token_hash == hash_of(token)
        assert seats.token_hash not in repr(seats)
        for host in hosts:
            host.say("running")
        await daemon.until("train", "running")
        shown = (await daemon.command("show", "train")).output
        assert "root leaf" in shown
        assert "h0 (ranks 0 to 3), h1 (ranks 4 to 7)" in shown
        listed = await daemon.command("list")
        assert "train" in listed.stdout
        assert listed.stderr == "", "none is over"
        for host in hosts:
            host.say("ended")
        lines = (await daemon.command("watch", "train")).output.splitlines()
        assert lines[-1] == "train: ended"
        none = await daemon.command("list")
        assert none.stdout == "no jobs\n"
        assert none.stderr == f"1 job is over: inaproto job list --dir {daemon.settings.dir} --all\n"
        assert (await daemon.command("list", "--all")).stderr == ""
        assert (await daemon.command("list", "--json")).stderr == ""
        assert [
            one["state"]
            for one in json.loads((await daemon.command("list", "--all", "--json")).output)["jobs"]
        ] == ["ended"]
        while (await daemon.ask(daemon.client.ask, "GET", "/v1/status"))["grants"]:
            await trio.lowlevel.checkpoint()


async def test_the_same_submission_is_the_same_job(runtime_dir: Path) -> None:
    async with running(runtime_dir) as daemon:
        first = await daemon.ask(daemon.client.submit, "train", 1, submission=SUBMISSION)
        again = await daemon.ask(daemon.client.submit, "train", 1, submission=SUBMISSION)
        assert first["job"]["number"] == again["job"]["number"] == 1
        assert first["token"] == again["token"]
        for hosts, submission in ((2, SUBMISSION), (1, "u" * 40)):
            with pytest.raises(ControllerRefused, match="choose another name"):
                await daemon.ask(daemon.client.submit, "train", hosts, submission=submission)
        assert (await daemon.ask(daemon.client.cancel, "train"))["state"] == "cancelled"
        assert (await daemon.ask(daemon.client.cancel, "train"))["state"] == "cancelled"
        assert (await daemon.ask(daemon.client.submit, "train", 1, submission=SUBMISSION))["job"][
            "number"
        ] == 1
        assert (await daemon.ask(daemon.client.submit, "train", 1, submission="u" * 40))["job"]["number"] == 2


async def test_what_a_job_waits_for_is_said(runtime_dir: Path) -> None:
    async with running(runtime_dir) as daemon:
        daemon.agent("host", "h0")
        await daemon.ask(daemon.client.submit, "one", 2, submission=SUBMISSION)
        await daemon.ask(daemon.client.submit, "two", 1, submission=SUBMISSION)
        await daemon.until("two", "queued")
        while "1 of 2 are free, 1 do not report" not in (await daemon.command("show", "one")).output:
            await trio.lowlevel.checkpoint()
        assert "behind jobs" in (await daemon.command("show", "two")).output


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "../x", "hosts": 1}, "name: must be 1 to 63 letters"),
        ({"name": "x", "hosts": 0}, "hosts: Input should be greater than or equal to 1"),
        ({"name": "x", "hosts": 3}, "wants 3 hosts, the cluster has 2"),
        ({"name": "x", "hosts": 1, "model": "gpt"}, "model: must be one of bert"),
        ({"name": "x", "hosts": 1, "submission": "short"}, "submission: String should have at least 32"),
        ({"name": "x", "hosts": 2, "ranks_per_host": 1023 * 33}, "ranks_per_host: Input should be less"),
        ({"name": "x", "hosts": True}, "hosts: Input should be a valid integer"),
        ({"name": "x", "hosts": 1, "colour": 1}, "colour: Extra inputs"),
        ([], "body: Input should be"),
    ],
)
async def test_submissions_that_are_refused(runtime_dir: Path, fields: Any, said: str) -> None:
    async with running(runtime_dir) as daemon:
        with pytest.raises(ControllerRefused, match=said):
            await daemon.ask(daemon.client.ask, "POST", "/v1/jobs", fields)


async def test_refusals_of_the_command(runtime_dir: Path) -> None:
    async with running(runtime_dir, jobs_max=1) as daemon:
        assert (await daemon.command("submit", "one", "--hosts", "1")).exit_code == 0
        full = await daemon.command("submit", "two", "--hosts", "1")
        assert (full.exit_code, "1 jobs" in full.output) == (1, True)
        none = await daemon.command("show", "three")
        assert (none.exit_code, none.output) == (1, "inaproto: no job 'three'; there are: one\n")
        wrong = await daemon.command("submit", "four", "--hosts", "1", "--model", "gpt")
        assert (wrong.exit_code, "must be one of" in wrong.output) == (2, True)


async def test_a_controller_that_is_not_there(runtime_dir: Path) -> None:
    client = JobClient([str(runtime_dir / "none.sock"), "http://127.0.0.1:9"])
    with pytest.raises(ControllerUnreachable, match=r"is the controller started(?s:.)*nobody listens there"):
        client.jobs(live=True)
    with pytest.raises(ConfigError, match="the path of a socket, or http"):
        JobClient(["ftp://x"]).jobs(live=True)


async def test_over_tcp(runtime_dir: Path) -> None:
    with trio.socket.socket() as probe:
        await probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    async with running(runtime_dir, tcp=address) as daemon:
        assert await daemon.ask(JobClient([f"http://{address}"]).jobs, live=True) == []


@pytest.mark.parametrize("value", ["0.0.0.0:80", "example.org:80", "127.0.0.1", "127.0.0.1:http"])
def test_tcp_is_of_this_machine_only(value: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an address of this machine"):
        ControllerSettings.model_validate({"cluster": tmp_path, "tcp": value})


async def answer_to(daemon: Daemon, message: Message) -> Message:
    stream = await daemon.stranger()
    await stream.send(message)
    answer = await stream.receive()
    with pytest.raises(EndOfChannel):
        await stream.receive()
    stream.close()
    return answer


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (AgentHello(role="host", agent="h9", boot_id="b"), "the cluster file has none of that name"),
        (AgentHello(role="switch", agent="h0", boot_id="b"), "the cluster file says that it is a host"),
        (Status(), "an agent says hello first"),
    ],
)
async def test_agents_that_are_refused(runtime_dir: Path, message: Message, said: str) -> None:
    async with running(runtime_dir) as daemon:
        answer = await answer_to(daemon, message)
        assert isinstance(answer, Error)
        assert said in answer.message


async def test_an_agent_that_is_refused_again_and_again_does_not_fill_the_log(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(runtime_dir) as daemon:
        for name in ("h8", "h9", "h9", "h8", "h9"):
            await answer_to(daemon, AgentHello(role="host", agent=name, boot_id="b"))
        told = [one.getMessage() for one in caplog.records if "none of that name" in one.getMessage()]
        assert told == [f"host {name!r}: the cluster file has none of that name" for name in ("h8", "h9")]


async def test_a_second_agent_of_a_name_is_refused_while_the_first_is_there(runtime_dir: Path) -> None:
    async with running(runtime_dir) as daemon:
        first = await daemon.stranger()
        await first.send(AgentHello(role="host", agent="h0", boot_id="one"))
        await first.receive()
        answer = await answer_to(daemon, AgentHello(role="host", agent="h0", boot_id="two"))
        assert isinstance(answer, Error)
        assert "is connected already" in answer.message
        first.close()
        second = await daemon.stranger()
        await second.send(AgentHello(role="host", agent="h0", boot_id="two"))
        assert not isinstance(await second.receive(), Error)
        second.close()


async def test_one_controller_of_a_store_leads(runtime_dir: Path) -> None:
    store = str(runtime_dir / "store")
    async with running(runtime_dir, store=store) as first:
        (runtime_dir / "other").mkdir()
        settings = first.settings.model_copy(update={"dir": runtime_dir / "other"})
        stop, ready = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:

            async def serve() -> None:
                await run_controller(settings, stop=stop, announce=lambda line: ready.set())

            nursery.start_soon(serve)
            await ready.wait()
            second = JobClient([str(settings.jobs_path)])
            with pytest.raises(ControllerUnreachable, match="does not lead"):
                await first.ask(second.submit, "x", 1, submission=SUBMISSION)
            both = JobClient([str(settings.jobs_path), str(first.settings.jobs_path)])
            await first.ask(both.submit, "x", 1, submission=SUBMISSION)
            hello = ControlStream(await connect_unix(settings.agents_path, "test"))
            await hello.send(AgentHello(role="host", agent="h0", boot_id="b"))
            answer = await hello.receive()
            assert isinstance(answer, Error)
            assert (answer.code, answer.message) == (
                "not_leader",
                "this controller does not lead: another controller leads",
            )
            hello.close()
            stop.set()


async def ask_raw(daemon: Daemon, *parts: bytes) -> bytes:
    """HTTP by hand: ``parts`` one after the other, each after the controller has had time for that before."""
    async with await trio.open_unix_socket(str(daemon.settings.jobs_path)) as stream:
        for part in parts:
            await stream.send_all(part)
            await daemon.ask(daemon.client.jobs, live=True)
        answer = bytearray()
        while b"}}" not in answer and (data := await stream.receive_some()):
            answer += data
        return bytes(answer)


async def test_a_cancellation_is_json_too_and_waits_for_all_of_it(runtime_dir: Path) -> None:
    """Else a page in a browser could cancel jobs, and who sends its body late finds the connection closed."""
    async with running(runtime_dir) as daemon:
        await daemon.ask(daemon.client.submit, "train", 1, submission=SUBMISSION)
        head = b"POST /v1/jobs/train/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        answer = await ask_raw(daemon, head + b"Content-Type: text/plain\r\n\r\n{}")
        assert answer.startswith(b"HTTP/1.1 415")
        assert (await daemon.ask(daemon.client.job, "train"))["state"] != "cancelled"
        answer = await ask_raw(daemon, head + b"Content-Type: application/json\r\n\r\n", b"{}")
        assert answer.startswith(b"HTTP/1.1 200")
        assert (await daemon.ask(daemon.client.job, "train"))["state"] == "cancelled"


async def test_whose_turn_it_is_can_be_asked(runtime_dir: Path) -> None:
    async with running(runtime_dir) as daemon:
        result = await daemon.command("turns")
        assert result.exit_code == 0
        assert "no jobs share switch memory" in result.output
        stream = await daemon.stranger()
        await stream.send(AgentHello(role="host", agent="h0", boot_id="b"))
        await stream.receive()
        hold = SeatHold(pool="shared", job="train", life=1, ring_id=5, hosts=1)
        await stream.send(SharingSeats(seats=(hold,)))
        prepare = await stream.receive()
        assert isinstance(prepare, Prepare)
        await stream.send(Vote(seat=prepare.seat, version=prepare.version, index=OpIndex(7), in_ina=False))
        commit = await stream.receive()
        assert isinstance(commit, Commit)
        assert commit.decision.granted is not None
        assert commit.decision.granted.first >= 7  # that is where it is
        await stream.send(Done(seat=commit.seat, version=commit.version))
        result = await daemon.command("turns")
        first = commit.decision.granted.first
        assert f"pool shared: turn 1 of train, all-reduces from {first}" in result.output
        assert "train: 1 turns, hosts h0, step not known yet" in result.output
        [group] = await daemon.ask(daemon.client.sharing)
        assert group["turns"][0]["undrained"] == ["h0"]
        stream.close()
