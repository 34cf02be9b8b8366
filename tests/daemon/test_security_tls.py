"""Strangers at the control port, and who poses as the control plane: each attack of docs/security.md."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from trio.testing import MockClock

from inaproto.ca.authority import CRL_FILE, create, write_new
from inaproto.ca.identity import Role
from inaproto.daemon.net.control_address import Endpoint, TlsDoor
from inaproto.daemon.net.tcp_stream import TcpStream
from inaproto.daemon.net.tls import Credentials, TlsRefused
from inaproto.daemon.net.tls_listener import listen_tls
from inaproto.daemon.observe.status import StatusRefused, ask_door
from inaproto.errors import ConfigError
from inaproto.wire.control_messages import Ping, Pong, Ready, Ring, Start, Welcome
from tests.clusters.secure import (
    LOOPBACK,
    SPINE,
    Deployment,
    SecureSwitch,
    client_context,
    long_ago,
    secure_switch,
)
from tests.clusters.switch import running_switch
from tests.unit.rendezvous_members import member


async def test_hosts_of_other_machines_run_a_job(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        hosts = [await switch.host(number) for number in range(2)]
        for rank, host in enumerate(hosts):
            await host.expect(Welcome)
            await host.stream.send(member(rank, size=2))
        for rank, host in enumerate(hosts):
            await host.expect(Ring)
            await host.stream.send(Ready(job="train", rank=rank))
        for host in hosts:
            await host.expect(Start)
        told = await switch.listener()
        assert (told["accepted"], told["sessions"], told["refused"]) == (2, 2, {})


async def test_an_operator_sees_the_status_from_afar(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        status = await ask_door(switch.door(switch.deployment.issue(Role.OPERATOR, "alice")))
        assert status["role"] == "switch"
        assert status["control_listen"]["credentials"]["name"] == SPINE


async def refused_as(switch: SecureSwitch, context: ssl.SSLContext, code: str) -> str:
    reason = await switch.refusal(context)
    assert await switch.refused() == {code: 1}
    return reason


async def test_no_certificate(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        context = client_context(None, authority=switch.deployment.root / "ca")
        assert "wants a certificate" in await refused_as(switch, context, "no_certificate")


async def test_a_certificate_of_another_authority(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        other = create(runtime_dir / "other")
        own = switch.deployment.issue(Role.HOST, "h0", by=other)
        context = client_context(own, authority=switch.deployment.root / "ca")
        reason = await refused_as(switch, context, "unknown_authority")
        assert "does not know the authority" in reason


async def test_an_authority_that_a_holder_made_with_its_own_key(runtime_dir: Path) -> None:
    """A certificate signed by a host's certificate, which is none of an authority."""
    async with secure_switch(runtime_dir) as switch:
        directory = switch.deployment.host("h0")
        key = serialization.load_pem_private_key((directory / "key.pem").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((directory / "cert.pem").read_bytes())
        forger = type(switch.deployment.authority)(switch.deployment.root / "ca", certificate, key)  # type: ignore[arg-type]
        forged = switch.deployment.issue(Role.OPERATOR, "mallory", by=forger)
        chain = (forged / "cert.pem").read_bytes() + (directory / "cert.pem").read_bytes()
        (forged / "cert.pem").write_bytes(chain)
        await switch.refusal(client_context(forged, authority=switch.deployment.root / "ca"))
        [code] = await switch.refused()
        assert code in {"unknown_authority", "bad_certificate"}


@pytest.mark.parametrize(
    ("begins", "code"),
    [(long_ago(), "expired"), (datetime.now(UTC) + timedelta(hours=12), "not_yet_valid")],
    ids=["expired", "not-yet"],
)
async def test_a_certificate_out_of_its_time(runtime_dir: Path, begins: datetime, code: str) -> None:
    async with secure_switch(runtime_dir) as switch:
        own = switch.deployment.issue(Role.HOST, "h0", now=begins)
        await refused_as(switch, client_context(own, authority=switch.deployment.root / "ca"), code)


async def test_a_revoked_certificate_without_a_restart(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        stolen = switch.deployment.host("h0")
        context = client_context(stolen, authority=switch.deployment.root / "ca")
        authority = switch.deployment.authority
        assert len(authority.revoke(Role.HOST, "h0")) == 1
        assert authority.revoke(Role.HOST, "h0") == []
        (switch.deployment.root / "switch-spine" / CRL_FILE).write_bytes(
            (authority.directory / CRL_FILE).read_bytes()
        )
        assert "revoked" in await refused_as(switch, context, "revoked")
        await (await switch.host(1)).expect(Welcome)
        assert (await switch.listener())["credentials"]["reloads"] == 1


async def test_a_session_ends_when_its_certificate_is_revoked(
    runtime_dir: Path, mock_clock: MockClock
) -> None:
    """Who has stolen it is connected already."""
    async with secure_switch(runtime_dir) as switch:
        thief, honest = [await switch.host(number) for number in range(2)]
        for host in (thief, honest):
            await host.expect(Welcome)
        authority = switch.deployment.authority
        authority.revoke(Role.HOST, "h0")
        listed = switch.deployment.root / "switch-spine" / CRL_FILE
        listed.write_bytes(b"half a list")
        mock_clock.jump(6)
        await honest.stream.send(Ping(id=1))
        assert await honest.expect(Pong) == Pong(id=1)  # by what was good before
        listed.write_bytes((authority.directory / CRL_FILE).read_bytes())
        mock_clock.jump(6)
        await thief.expect_end()
        await honest.stream.send(Ping(id=2))
        assert await honest.expect(Pong) == Pong(id=2)
        assert await switch.refused() == {"revoked": 1}


async def test_old_tls(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        context = client_context(switch.deployment.host(), authority=switch.deployment.root / "ca")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(TlsRefused, match=r"TLS 1\.3"):
            await switch.refusal(context)
        assert await switch.refused() == {"old_protocol": 1}


@pytest.mark.parametrize("protocols", [[], ["h2"]])
async def test_another_protocol_over_tls(runtime_dir: Path, protocols: list[str]) -> None:
    """What was meant for another server is not taken for a control message (cross-protocol attacks)."""
    async with secure_switch(runtime_dir) as switch:
        own = switch.deployment.host()
        context = client_context(own, authority=switch.deployment.root / "ca")
        if protocols:
            context.set_alpn_protocols(protocols)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(switch.deployment.root / "ca" / "ca.pem")
            context.load_cert_chain(own / "cert.pem", own / "key.pem")
        with pytest.raises(TlsRefused, match="does not speak inaproto-control"):
            await switch.refusal(context)
        assert await switch.refused() == {"wrong_protocol": 1}


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x00\x00\x10" + bytes(64)])
async def test_no_tls_at_all(runtime_dir: Path, data: bytes) -> None:
    async with secure_switch(runtime_dir) as switch:
        raw = await switch.below_tls()
        raw.send_nowait(memoryview(data))
        await end_of(raw)
        [code] = await switch.refused()
        assert code in {"not_tls", "bad_tls"}


async def end_of(stream: TcpStream) -> bytes:
    """All that comes until the far side has closed."""
    found = b""
    with trio.fail_after(600):
        while True:
            try:
                data, _ = stream.receive_nowait()
            except BlockingIOError:
                await stream.wait_receivable()
                continue
            except ConnectionResetError:
                data = b""
            if not data:
                stream.close()
                return found
            found += data


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["inaproto://host/h0", "inaproto://operator/mallory"],
        ["inaproto://local/root"],
        ["inaproto://host/"],
        ["inaproto://host/h0/../h1"],
        ["https://host/h0"],
    ],
)
async def test_a_certificate_that_names_nobody_or_two(runtime_dir: Path, uris: list[str]) -> None:
    """Signed by the right authority, but not by our command."""
    async with secure_switch(runtime_dir) as switch:
        directory = switch.deployment.host()
        old = x509.load_pem_x509_certificate((directory / "cert.pem").read_bytes())
        builder = (
            x509.CertificateBuilder()
            .subject_name(old.subject)
            .issuer_name(old.issuer)
            .public_key(old.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(old.not_valid_before_utc)
            .not_valid_after(old.not_valid_after_utc)
        )
        for extension in old.extensions:
            value: x509.ExtensionType = extension.value
            if isinstance(value, x509.SubjectAlternativeName):
                value = x509.SubjectAlternativeName(
                    [x509.DNSName("h0"), *map(x509.UniformResourceIdentifier, uris)]
                )
            builder = builder.add_extension(value, critical=extension.critical)
        strange = builder.sign(switch.deployment.authority.key, hashes.SHA256())
        (directory / "cert.pem").write_bytes(strange.public_bytes(serialization.Encoding.PEM))
        context = client_context(directory, authority=switch.deployment.root / "ca")
        await refused_as(switch, context, "bad_identity")


# --- who poses as the control plane


@pytest.mark.parametrize(
    ("role", "name", "words"),
    [
        (Role.SWITCH, "leaf0", "switch leaf0 at 127.0.0.1 answers, not 'spine'"),
        (Role.HOST, "h1", "not for this side"),
        (Role.OPERATOR, SPINE, "not for this side"),
    ],
)
async def test_a_stolen_certificate_does_not_make_a_control_plane(
    tmp_path: Path, role: Role, name: str, words: str
) -> None:
    deployment = Deployment(tmp_path)
    await dial_impostor(deployment, deployment.issue(role, name, addresses=[LOOPBACK]), words)


async def test_a_control_plane_of_another_authority(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    other = create(tmp_path / "other")
    await dial_impostor(
        deployment, deployment.issue(Role.SWITCH, SPINE, by=other), "another authority has signed"
    )


async def test_without_a_name_the_address_must_be_in_the_certificate(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    elsewhere = deployment.issue(Role.SWITCH, SPINE, addresses=["192.0.2.1"])
    await dial_impostor(deployment, elsewhere, "IP address mismatch", name="")


async def dial_impostor(deployment: Deployment, theirs: Path, words: str, name: str = SPINE) -> None:
    listener = await listen_tls(LOOPBACK, 0, Credentials(theirs))
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.run)
            door = TlsDoor(Endpoint(LOOPBACK, listener.port, name), Credentials(deployment.host("h0")))
            with pytest.raises(StatusRefused, match=words):
                await ask_door(door)
            listener.close()


# --- what is refused at the start


async def test_a_key_that_others_can_read_is_not_used(runtime_dir: Path) -> None:
    tls = Deployment(runtime_dir).issue(Role.SWITCH, SPINE)
    (tls / "key.pem").chmod(0o644)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running_switch(runtime_dir / "run", control_listen=f"{LOOPBACK}:0", tls=tls):
            raise AssertionError("it started")
    assert "mode 0644; chmod 0600" in str(caught.value.exceptions[0])


async def test_off_loopback_certificates_are_needed(runtime_dir: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running_switch(runtime_dir / "run", control_listen="0.0.0.0:0"):
            raise AssertionError("it started")
    assert "tls: is needed" in str(caught.value.exceptions[0])


async def test_on_loopback_they_are_made(runtime_dir: Path) -> None:
    async with running_switch(runtime_dir / "run", control_listen=f"{LOOPBACK}:0") as running:
        made = runtime_dir / "run" / "development-ca"
        assert (made / "ca.key").stat().st_mode & 0o777 == 0o600
        switch = SecureSwitch(running, Deployment(runtime_dir))
        with pytest.raises(StatusRefused, match="another authority has signed"):
            await ask_door(switch.door(switch.deployment.host(), "switch"))


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    authority = create(tmp_path / "ca")
    before = (authority.directory / "ca.key").read_bytes()
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        create(tmp_path / "ca")
    with pytest.raises(ConfigError, match="exists and is not overwritten"):
        write_new(authority.directory / "ca.key", b"")
    assert (authority.directory / "ca.key").read_bytes() == before
