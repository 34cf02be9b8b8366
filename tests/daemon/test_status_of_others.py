"""Who answers for its status with something that is none: it is a problem by name, and no traceback."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner, Result

from inaproto.cli import cli
from inaproto.daemon.net.accepting import take_each
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.unix_sockets import listen_unix
from inaproto.daemon.observe.status import ask, ask_daemons
from inaproto.daemon.observe.status_shapes import status_misfit
from inaproto.ports import ByteStream
from inaproto.wire.control_messages import Status, StatusReply
from inaproto_controller.report.command import report
from tests.clusters.loopback import open_cluster

log = logging.getLogger("tests")

HOST: dict[str, Any] = {"role": "host", "name": "h0", "switch": {}, "rings": []}


@asynccontextmanager
async def answering(path: Path, body: dict[str, Any]) -> AsyncIterator[None]:
    """A process at that socket that says this when it is asked."""

    async def answer(connection: ByteStream) -> None:
        control = ControlStream(connection)
        with suppress(EndOfChannel):
            while isinstance(asked := await control.receive(), Status):
                await control.send(StatusReply(id=asked.id, body=body))
        control.close()

    listening = await listen_unix(path, "socket")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            take_each, listening, lambda connection: nursery.start_soon(answer, connection), log, "question"
        )
        yield
        nursery.cancel_scope.cancel()
    listening.close()


async def invoke(command: Any, *arguments: str) -> Result:
    return await trio.to_thread.run_sync(lambda: CliRunner().invoke(command, list(arguments)))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "it.role is not there"),
        ({"x": 1}, "it.role is not there"),
        ({"role": "host"}, "it.name is not there"),
        ({"role": "switch"}, "it.pid is not there"),
        ({"role": "server"}, "it.name is not there"),
        ({"role": "moon"}, "there is no role 'moon'"),
        (HOST | {"switch": {"path": 5}}, "it.switch.path is not a text"),
        (HOST | {"rings": [{"job": "train"}]}, "it.rings[0].size is not there"),
        (HOST | {"path": {"problem": ""}}, "it.path.unknown is not there"),
    ],
)
async def test_an_answer_that_is_no_status_is_a_problem(
    body: dict[str, Any], why: str, runtime_dir: Path
) -> None:
    path = runtime_dir / "h0.sock"
    said = f"{path}: its status is that of another release: {why}"
    async with answering(path, body):
        assert (await ask_daemons(runtime_dir, [])).problems == [said]
        for command, first in ((cli, ["status"]), (report, [])):
            shown = await invoke(command, *first, "--dir", str(runtime_dir))
            assert isinstance(shown.exception, SystemExit | None), shown.exception
            assert said in shown.stderr
        judged = await invoke(cli, "doctor", "--dir", str(runtime_dir), "--json")
        assert isinstance(judged.exception, SystemExit | None), judged.exception
        assert said in [one["found"] for one in json.loads(judged.stdout)]


async def test_what_is_asked_for_least_is_a_status(runtime_dir: Path) -> None:
    async with answering(runtime_dir / "h0.sock", HOST):
        found = await ask_daemons(runtime_dir, [])
    assert (found.problems, found.hosts) == ([], [HOST])


async def test_daemons_of_this_release_have_statuses(runtime_dir: Path) -> None:
    async with open_cluster(runtime_dir, 1) as cluster:
        sockets = sorted(cluster.directory.glob("*.sock"))
        answers = [await ask(path) for path in sockets if "port" not in path.name]
    assert {one["role"] for one in answers} == {"host", "switch"}
    assert [status_misfit(one) for one in answers] == [""] * len(answers)


async def test_a_socket_that_goes_while_its_directory_is_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon ends just then; the others answer."""
    there = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: [*there(path), "h9.sock"])
    async with answering(tmp_path / "h0.sock", HOST):
        told = await ask_daemons(tmp_path, ())
    assert not [problem for problem in told.problems if "h9" in problem or "No such file" in problem]
