"""Agents of other machines at the controller: who is not whom its certificate names is refused."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from inaproto.ca.identity import CERTIFIED, Role
from inaproto.daemon.net.control_address import Endpoint, TlsDoor
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.tls import Credentials
from inaproto.daemon.net.tls_listener import listen_tls
from inaproto.daemon.switch.tree_grants import TreeGrants
from inaproto.wire.control_messages import Error, Message, StatusReply
from inaproto.wire.messages.controller import AgentHello, AgentReport, AgentRole, AgentWelcome
from inaproto.wire.messages.trees import TreeReport, TreeState
from inaproto_controller.cluster.desired import Desired
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.service.agents import LIMITS, Agents
from inaproto_controller.service.trees.service import TreeService
from inaproto_controller.service.turns.service import SharingService
from tests.clusters.secure import LOOPBACK, Deployment
from tests.controller.planned_cluster import racks
from tests.daemon.test_security_limits import flood

ROLES: dict[str, AgentRole] = {"h0": "host", "spine": "switch"}


@asynccontextmanager
async def agents_of(directory: Path, **options: Any) -> AsyncIterator[tuple[Deployment, int]]:
    deployment = Deployment(directory)
    listener = await listen_tls(LOOPBACK, 0, Credentials(deployment.issue(Role.CONTROLLER, "controller")))
    agents = Agents(ROLES, lease_s=30, report_s=2, sessions_max=8, changed=lambda: None, **options)
    agents.lead(1, Desired())
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run)
            nursery.start_soon(agents.accept_sessions, listener)
            yield deployment, listener.port
            listener.close()
            nursery.cancel_scope.cancel()


async def answer_to(message: Message, credentials: Path, port: int) -> Message:
    door = TlsDoor(Endpoint(LOOPBACK, port, "controller"), Credentials(credentials))
    stream = ControlStream(await door.connect())
    try:
        await stream.send(message)
        return await stream.receive()
    finally:
        stream.close()


@pytest.mark.parametrize(("role", "name"), [(Role.HOST, "h0"), (Role.SWITCH, "spine")])
async def test_an_agent_is_welcome_by_its_certificate(tmp_path: Path, role: Role, name: str) -> None:
    async with agents_of(tmp_path) as (deployment, port):
        hello = AgentHello(agent=name, role=ROLES[name], boot_id="b")
        assert isinstance(await answer_to(hello, deployment.issue(role, name), port), AgentWelcome)


@pytest.mark.parametrize(
    ("role", "name"),
    [(Role.HOST, "h1"), *((role, "h0") for role in CERTIFIED if role is not Role.HOST)],
)
async def test_an_agent_that_claims_to_be_another(tmp_path: Path, role: Role, name: str) -> None:
    """Else it would be told another's grants, and report that they have ended."""
    async with agents_of(tmp_path) as (deployment, port):
        hello = AgentHello(agent="h0", role="host", boot_id="b")
        answer = await answer_to(hello, deployment.issue(role, name), port)
        assert isinstance(answer, Error)
        assert answer.code == "agent_refused"
        assert "says hello as host 'h0'" in answer.message


async def test_a_hello_is_short(tmp_path: Path) -> None:
    async with agents_of(tmp_path) as (deployment, port):
        answer = await answer_to(StatusReply(body={"x": 8000 * "y"}), deployment.host(), port)
        assert isinstance(answer, Error)
        assert "more bytes than anybody needs" in answer.message


@pytest.mark.parametrize(
    ("role", "name", "said"),
    [
        (Role.SWITCH, "controller", "switch controller at 127.0.0.1 answers, not a controller"),
        (Role.CONTROLLER, "other", "controller other at 127.0.0.1 answers, not 'controller'"),
    ],
)
async def test_whoever_answers_must_be_the_controller(
    tmp_path: Path, role: Role, name: str, said: str
) -> None:
    """Else a switch, or whoever has stolen its certificate, could give jobs' seats."""
    deployment = Deployment(tmp_path)
    listener = await listen_tls(LOOPBACK, 0, Credentials(deployment.issue(role, name)))
    at = Endpoint(LOOPBACK, listener.port, "controller")
    door = TlsDoor(at, Credentials(deployment.host()), Role.CONTROLLER)
    link = ControllerLink("host", "h0", TreeGrants(), [door])
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run)
            nursery.start_soon(link.run)
            while said not in link.status()["error"]:
                await trio.lowlevel.checkpoint()
            assert not link.status()["connected"]
            assert link.status()["error"].startswith(f"{at}: TLS: ")
            listener.close()
            nursery.cancel_scope.cancel()


async def test_a_daemon_says_where_its_controller_is(tmp_path: Path) -> None:
    async with agents_of(tmp_path) as (deployment, port):
        at = Endpoint(LOOPBACK, port, "controller")
        door = TlsDoor(at, Credentials(deployment.host()), Role.CONTROLLER)
        link = ControllerLink("host", "h0", TreeGrants(), [door])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            while not link.status()["connected"]:
                await trio.lowlevel.checkpoint()
            told = link.status()
            nursery.cancel_scope.cancel()
    assert (told["at"], told["term"], told["error"]) == (str(at), 1, "")
    assert told["credentials"]["name"] == "h0"


async def test_a_flood_of_messages_ends_the_session_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with agents_of(tmp_path) as (deployment, port):
        streams = []
        for role, name in ((Role.HOST, "h0"), (Role.SWITCH, "spine")):
            door = TlsDoor(Endpoint(LOOPBACK, port, "controller"), Credentials(deployment.issue(role, name)))
            streams.append(ControlStream(await door.connect()))
            await streams[-1].send(AgentHello(agent=name, role=ROLES[name], boot_id="b"))
        bad, honest = streams
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood, bad, LIMITS.messages_burst + 100_000)
            with suppress(EndOfChannel):  # why may be lost: what it has sent meanwhile resets the connection
                while True:
                    await bad.receive()
            nursery.cancel_scope.cancel()
        assert "host h0: it sends more messages than anybody needs" in caplog.text
        await honest.send(AgentReport(revision=0, holds=()))
        assert isinstance(await honest.receive(), AgentWelcome)
        await honest.receive()  # what it is to hold
        for stream in streams:
            stream.close()


async def test_a_session_ends_with_its_certificate(tmp_path: Path) -> None:
    async with agents_of(tmp_path, wall_clock=lambda: time.time() + 86400) as (deployment, port):
        door = TlsDoor(Endpoint(LOOPBACK, port, "controller"), Credentials(deployment.host()))
        stream = ControlStream(await door.connect())
        try:
            await stream.send(AgentHello(agent="h0", role="host", boot_id="b"))
            said: list[Message] = []
            while not (said and isinstance(said[-1], Error)):
                said.append(await stream.receive())
            assert "its certificate has run out" in said[-1].message
        finally:
            stream.close()


async def test_a_session_that_takes_the_place_of_another_begins_its_report_anew(tmp_path: Path) -> None:
    """A root that was quicker than its controller: what it had begun to say is not what it says now."""
    services: list[TreeService] = []

    def trees(send: Any, sharing: SharingService) -> TreeService:
        services.append(TreeService(send, sharing, FabricTrees(racks(), share_max=2)))
        return services[0]

    def report(job: str, *, more: bool) -> TreeReport:
        record = TreeState(job=job, hosts=("h0", "h2"), epoch=0, phase="standing")
        return TreeReport(term=0, revision=0, trees=(record,), more=more)

    async with agents_of(tmp_path, trees=trees) as (deployment, port):
        door = TlsDoor(
            Endpoint(LOOPBACK, port, "controller"), Credentials(deployment.issue(Role.SWITCH, "spine"))
        )
        streams = []
        for said in (report("gone", more=True), report("a", more=False)):
            stream = ControlStream(await door.connect())
            streams.append(stream)
            await stream.send(AgentHello(agent="spine", role="switch", boot_id="b"))
            assert isinstance(await stream.receive(), AgentWelcome)
            await stream.send(said)
            await stream.send(AgentReport(revision=0, holds=()))
            await stream.receive()
        while not services[0].jobs:
            await trio.lowlevel.checkpoint()
        assert services[0].jobs == ["a"]
        for stream in streams:
            stream.close()
