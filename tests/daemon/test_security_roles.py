"""Holders of a certificate who claim to be somebody else, or ask for what is not theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inaproto.ca.identity import CERTIFIED, Identity, Role, holder_of, uri_of
from inaproto.daemon.net.session_rules import refusal_of
from inaproto.daemon.observe.status import StatusRefused, ask_door
from inaproto.errors import DecodeError, JoinRefused
from inaproto.wire.control_messages import (
    Broken,
    Error,
    Gone,
    Halted,
    Left,
    Message,
    Ping,
    Pong,
    Ready,
    Ring,
    Start,
    Status,
    Welcome,
)
from inaproto.wire.messages.capture import Capture
from inaproto.wire.messages.switch import RingInstalled, SwitchHello
from tests.clusters.secure import SecureSwitch, secure_switch
from tests.clusters.switch import ControlHost
from tests.unit.rendezvous_members import hello, member

SAID: dict[str, Message] = {
    "hello": hello(0),
    "hello of another": hello(1),
    "switch hello": SwitchHello(switch="leaf0", boot_id="b"),
    "switch hello of another": SwitchHello(switch="leaf1", boot_id="b"),
    "status": Status(id=1),
    "capture": Capture(id=1),
    "member": member(0),
    "ring installed": RingInstalled(ring_id=1),
    "ping": Ping(),
}
LIES = (
    Broken(job="train", rank=0, ring_id=1, progress=0, reason="x"),
    Halted(job="train", rank=0, ring_id=1, progress=0, out=member(2).out, into=member(2).into),
    Left(job="train", rank=0, operations=0),
    Gone(job="train", rank=1, reason="x"),
    Ready(job="train", rank=0),
)
"""What a host says of the ranks of others."""
NAMES = {Role.HOST: "h0", Role.SWITCH: "leaf0"}
MAY = {
    Role.HOST: {"hello", "member", "ring installed", "ping"},  # which of its state its session judges
    Role.SWITCH: {"switch hello", "member", "ring installed", "ping"},
    Role.OPERATOR: {"status", "ping"},
    Role.CONTROLLER: {"status", "ping"},
    Role.JOB: {"ping"},
    Role.MODEL: {"ping"},
    Role.LOCAL: set(SAID),
}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("what", SAID)
def test_what_each_role_may_say(role: Role, what: str) -> None:
    identity = Identity(role, NAMES.get(role, "alice"), "192.0.2.1")
    assert (refusal_of(identity, SAID[what]) == "") == (what in MAY[role])


@pytest.mark.parametrize("role", CERTIFIED)
def test_names_of_certificates_come_back(role: Role) -> None:
    assert holder_of(["https://x", uri_of(role, "h-0.a")]) == (role, "h-0.a")
    with pytest.raises(ValueError):
        uri_of(role, "h0/../h1")
    with pytest.raises(DecodeError):
        holder_of([f"inaproto://{role.value}/" + 64 * "x"])


async def refused(switch: SecureSwitch, host: ControlHost, words: str) -> None:
    answer = await host.expect(Error)
    assert isinstance(answer, Error)
    assert answer.code == "not_authorised"
    assert words in answer.message
    await host.expect_end()
    assert await switch.cut() == {"not_authorised": 1}


async def test_a_host_that_claims_another_s_name(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        host = ControlHost(await switch.connect(switch.deployment.host("h0")))
        await host.stream.send(hello(1))
        await refused(switch, host, "host h0 at 127.0.0.1 says hello as host 'h1'")


async def test_a_host_that_claims_another_s_address(runtime_dir: Path) -> None:
    """Else the lookup table would be pinned to it, and another's packets be taken for its own."""
    async with secure_switch(runtime_dir) as switch:
        tls = switch.deployment.issue(Role.HOST, "h0", addresses=["10.0.0.1"])
        host = ControlHost(await switch.connect(tls))
        await host.stream.send(replace(hello(0), ip=bytes([10, 0, 0, 7])))
        await refused(switch, host, "its NIC is 10.0.0.7; its certificate has 10.0.0.1")


async def test_a_rank_with_the_addresses_of_another_host(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        host = await switch.host(0)
        await host.expect(Welcome)
        await host.stream.send(replace(member(0, size=2), out=member(1).out))
        answer = await host.expect(Error)
        assert isinstance(answer, Error)
        assert answer.code == JoinRefused.code


async def test_a_host_that_poses_as_a_switch(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        host = ControlHost(await switch.connect(switch.deployment.host("leaf0")))
        await host.stream.send(SwitchHello(switch="leaf0", boot_id="b"))
        await refused(switch, host, "says hello as switch 'leaf0'")


@pytest.mark.parametrize("role", [Role.HOST, Role.SWITCH, Role.JOB])
async def test_a_status_is_for_operators(runtime_dir: Path, role: Role) -> None:
    async with secure_switch(runtime_dir) as switch:
        with pytest.raises(StatusRefused, match="takes the certificate of an operator"):
            await ask_door(switch.door(switch.deployment.issue(role, "x")))
        assert await switch.cut() == {"not_authorised": 1}


async def test_captures_do_not_leave_by_the_network(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        operator = ControlHost(await switch.connect(switch.deployment.issue(Role.OPERATOR, "alice")))
        await operator.stream.send(Capture(id=1))
        await refused(switch, operator, "at the UNIX socket of the switch alone")


async def test_a_stolen_certificate_does_not_push_out_its_owner(runtime_dir: Path) -> None:
    """The name is taken while its owner is here: the job goes on, and the thief is told."""
    async with secure_switch(runtime_dir) as switch:
        owner = await switch.host(0)
        await owner.expect(Welcome)
        thief = ControlHost(await switch.connect(switch.deployment.root / "host-h0"))
        await thief.stream.send(hello(0))
        answer = await thief.expect(Error)
        assert isinstance(answer, Error)
        assert "which is connected" in answer.message
        await owner.stream.send(Ping(id=5))
        await owner.stream.receive()


async def test_a_hello_that_is_replayed_on_one_session(runtime_dir: Path) -> None:
    """TLS lets nobody else repeat a message; a second hello of its own sender changes nothing."""
    async with secure_switch(runtime_dir) as switch:
        host = await switch.host(0)
        await host.expect(Welcome)
        await host.stream.send(hello(0))
        await host.stream.send(replace(hello(0), ip=bytes([10, 0, 0, 9])))
        await host.stream.send(Ping(id=9))
        await host.stream.receive()
        found = (await ask_door(switch.door(switch.deployment.issue(Role.OPERATOR, "alice"))))["hosts"]
        assert found == ["h0"]


async def test_a_tenant_with_another_job_s_name_needs_its_key(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        hosts = [await switch.host(number) for number in range(2)]
        for host in hosts:
            await host.expect(Welcome)
        await hosts[0].stream.send(member(0, size=2))
        await hosts[1].stream.send(replace(member(1, size=2), key="guess"))
        answer = await hosts[1].expect(Error)
        assert isinstance(answer, Error)
        assert "wrong key" in answer.message
        assert "secret" not in answer.message
        await hosts[1].stream.send(member(1, size=2))
        for rank, host in enumerate(hosts):
            await host.expect(Ring)
            await host.stream.send(Ready(job="train", rank=rank))
        for host in hosts:
            await host.expect(Start)


async def test_a_tenant_cannot_end_another_s_job(runtime_dir: Path) -> None:
    """What it says of a rank that is not its host's is not heard."""
    async with secure_switch(runtime_dir) as switch:
        hosts = [await switch.host(number) for number in range(3)]
        for host in hosts:
            await host.expect(Welcome)
        for rank in range(2):
            await hosts[rank].stream.send(member(rank, size=2))
        for rank in range(2):
            await hosts[rank].expect(Ring)
            await hosts[rank].stream.send(Ready(job="train", rank=rank))
        for rank in range(2):
            await hosts[rank].expect(Start)
        for ill in LIES:
            await hosts[2].stream.send(ill)
        await hosts[2].stream.send(Ping(id=8))
        while (await hosts[2].stream.receive()).id != 8:
            pass
        for rank in range(2):
            await hosts[rank].stream.send(Ping(id=9))
            assert await hosts[rank].stream.receive() == Pong(id=9)
