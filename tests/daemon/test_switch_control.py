"""The switch's control socket: hosts, strangers, and hosts that die. Real sockets, real cores."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from inaproto.daemon.net.control_stream import ControlStream
from inaproto.daemon.observe.status import StatusRefused, ask, ask_daemons
from inaproto.daemon.switch.daemon import run_switch
from inaproto.errors import ConfigError
from inaproto.ports import load_adapter
from inaproto.wire.control_messages import Error, Failed, Gone, JobStatus, Ping, Pong, Ring, Welcome
from inaproto.wire.messages.client import Ok
from tests.clusters.switch import ControlHost, running_switch
from tests.unit.rendezvous_members import hello, member


async def test_ring_is_made_over_the_sockets_and_shown(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        assert switch.announced.startswith(f"ready switch dir={runtime_dir} ")
        await switch.job()
        status = await ask(switch.settings.control_path)
        [job] = status["jobs"]
        assert (job["name"], job["phase"], job["missing"]) == ("train", "running", [])
        assert [(rank["rank"], rank["host"], rank["pid"]) for rank in job["ranks"]] == [
            (0, "h0", 1000),
            (1, "h1", 1001),
        ]
        assert list(status["accelerator"]["rings"]) == [str(job["ring_id"])]
        assert status["hosts"] == ["h0", "h1"]


async def test_status_names_the_ranks_that_are_missing(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        host = await switch.host(1)
        await host.stream.send(member(1, size=4))
        status = await host.expect(JobStatus)
        assert status == JobStatus(job="train", waiting_for=(0, 2, 3))
        report = await ask_daemons(runtime_dir, [])
        assert report.problems == []
        assert report.switch is not None
        assert report.switch["jobs"][0]["missing"] == [0, 2, 3]


async def test_a_host_that_dies_fails_its_jobs_and_no_other(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir, recover_ms=0) as switch:
        [first, second] = await switch.job()
        second.stream.close()
        failed = await first.expect(Failed)
        assert isinstance(failed, Failed)
        assert failed.code == "rank_lost"
        assert failed.message.startswith(
            "rank 1 (h1, pid 1001) of job 'train' is lost: its host daemon is gone"
        )
        assert (await ask(switch.settings.control_path))["accelerator"]["rings"] == {}
        # The same job, name and host can come again at once.
        second = await switch.host(1)
        for rank, host in enumerate((first, second)):
            await host.stream.send(member(rank, size=2))
        await first.expect(Ring)
        await second.expect(Ring)


async def test_a_lost_process_fails_the_other_rank(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        [first, second] = await switch.job()
        await first.stream.send(Gone(job="train", rank=0, reason="process 1000 ended without leaving"))
        failed = await second.expect(Failed)
        assert isinstance(failed, Failed)
        assert "process 1000 ended without leaving" in failed.message


async def test_a_second_host_of_the_same_name_is_refused_while_the_first_lives(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        first = await switch.host(0)
        other = ControlHost(await switch.stranger())
        await other.stream.send(hello(0))
        error = await other.expect(Error)
        assert isinstance(error, Error)
        assert error.code == "hello_refused"
        assert "give each host daemon its own" in error.message
        await other.expect_end()
        first.stream.close()
        await switch.host(0)


async def test_a_host_that_restarts_is_not_taken_for_a_second_one(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        for _ in range(5):
            host = ControlHost(await switch.stranger())
            await host.stream.send(hello(0))
            await host.expect(Welcome)
            host.stream.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x00\x00\x05hello", "not msgpack"),
        (b"\xff\xff\xff\xff", "length prefix"),
        (b"\x00\x00", "after 2 of 4 bytes of a length prefix"),
        (b"\x00\x00\x00\x20\x81", "after 1 of 32 bytes of a message"),
    ],
)
async def test_garbage_ends_the_connection_it_came_on_only(
    runtime_dir: Path, data: bytes, words: str
) -> None:
    async with running_switch(runtime_dir) as switch:
        [first, second] = await switch.job()
        raw = await trio.open_unix_socket(str(switch.settings.control_path))
        await raw.send_all(data)
        await raw.send_eof()
        stream = ControlStream(_blocking(raw))
        switch.streams.append(stream)
        error = await ControlHost(stream).expect(Error)
        assert isinstance(error, Error)
        assert error.code == "bad_message"
        assert words in error.message
        await ControlHost(stream).expect_end()
        for host in (first, second):
            await host.stream.send(Ping(id=3))
            assert await host.expect(Pong) == Pong(id=3)


async def test_garbage_from_a_member_loses_its_rank(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir, recover_ms=0) as switch:
        [first, second] = await switch.job()
        second.stream._stream.send_nowait(memoryview(b"\x00\x00\x00\x01\xc1"))
        failed = await first.expect(Failed)
        assert isinstance(failed, Failed)
        assert "it sent what is no message" in failed.message


async def test_messages_that_a_switch_does_not_take_are_answered(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        host = await switch.host(0)
        await host.stream.send(Ok(id=4))
        error = await host.expect(Error)
        assert isinstance(error, Error)
        assert (error.code, error.of) == ("unexpected_message", 4)
        assert "this is the switch's control socket" in error.message
        body = bytes.fromhex("83a17601a474797065a36e6577a2696407")  # {v: 1, type: "new", id: 7}
        host.stream._stream.send_nowait(memoryview(len(body).to_bytes(4, "big") + body))
        error = await host.expect(Error)
        assert isinstance(error, Error)
        assert (error.code, error.of) == ("unknown_message", 7)


async def test_too_many_sessions_are_told_so(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir, ports_max=1) as switch:
        for _ in range(33):
            stream = await switch.stranger()
            await stream.send(Ping())
            await stream.receive()
        with pytest.raises(StatusRefused, match="its limit; end another one first"):
            await ask(switch.settings.control_path)


async def test_a_host_that_falls_silent_is_given_up(runtime_dir: Path, autojump_clock: MockClock) -> None:
    async with running_switch(runtime_dir) as switch:
        host = await switch.host(0)
        await host.expect_end()
        assert trio.current_time() >= 10


async def test_stopping_tells_the_hosts_and_removes_the_sockets(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        hosts = await switch.job()
        switch.stop.set()
        for host in hosts:
            failed = await host.expect(Failed)
            assert isinstance(failed, Failed)
            assert failed.code == "switch_unreachable"
            await host.expect_end()
        await switch.ended.wait()
        assert list(await trio.Path(runtime_dir).iterdir()) == []


async def test_a_second_switch_in_the_directory_is_refused_and_harms_nothing(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir) as switch:
        listen = load_adapter("frames").open().listen
        with pytest.raises(ConfigError, match="another daemon is already listening"):
            await run_switch(switch.settings, open_port_listener=listen, stop=trio.Event())
        await switch.job()


def _blocking(stream: trio.SocketStream) -> socket.socket:
    return socket.socket(fileno=stream.socket.detach())
