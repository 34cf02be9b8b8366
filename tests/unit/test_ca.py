"""``inaproto ca``: what it makes, what it refuses, and what an outside judge says of its certificates."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inaproto.ca.authority import create
from inaproto.ca.command import ca
from inaproto.ca.development import credentials
from inaproto.ca.identity import Role
from inaproto.daemon.net.control_address import Endpoint, parse_control, parse_listen
from inaproto.doctor.certificates import credentials_in, look_at_credentials
from inaproto.doctor.findings import Outcome


def run(*arguments: object) -> Result:
    return CliRunner().invoke(ca, [str(one) for one in arguments])


def issue(directory: Path, role: str, name: str, *more: object) -> Result:
    return run(
        "issue", "--dir", directory / "ca", "--role", role, "--name", name, "--out", directory / name, *more
    )


def test_credentials_are_private_and_renewed_in_place(tmp_path: Path) -> None:
    assert run("init", "--dir", tmp_path / "ca").exit_code == 0
    told = issue(tmp_path, "host", "h0", "--address", "10.0.0.1")
    assert told.exit_code == 0
    assert told.output.startswith(f"{tmp_path / 'h0'}: host h0, until ")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "h0").iterdir()}
    assert modes == {"ca.pem": 0o644, "cert.pem": 0o644, "crl.pem": 0o644, "key.pem": 0o600}
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o777 == 0o600
    key = (tmp_path / "h0" / "key.pem").read_bytes()
    assert issue(tmp_path, "host", "h0").exit_code == 0
    assert (tmp_path / "h0" / "key.pem").read_bytes() != key
    assert len(list((tmp_path / "ca" / "issued").glob("host-h0-*.pem"))) == 2
    assert run("revoke", "--dir", tmp_path / "ca", "--role", "host", "--name", "h0").output.startswith(
        "2 revoked"
    )


def test_who_has_no_certificate_cannot_be_revoked_and_who_has_is_named(tmp_path: Path) -> None:
    """A mistyped name would leave the wrong host admitted, in silence."""
    run("init", "--dir", tmp_path / "ca")
    crl = (tmp_path / "ca" / "crl.pem").read_bytes()
    revoke = ("revoke", "--dir", tmp_path / "ca", "--role")
    none = run(*revoke, "host", "--name", "h9")
    assert (none.exit_code, "of a host there is none" in none.output) == (2, True)
    issue(tmp_path, "host", "h0")
    issue(tmp_path, "switch", "h9")
    wrong = run(*revoke, "host", "--name", "h9")
    assert wrong.exit_code == 2
    assert "host 'h9'" in wrong.output
    assert "of a host there are h0" in wrong.output
    assert (tmp_path / "ca" / "crl.pem").read_bytes() == crl
    assert run(*revoke, "host", "--name", "h0").exit_code == 0
    again = run(*revoke, "host", "--name", "h0")
    assert (again.exit_code, "0 revoked" in again.output) == (0, True)


def test_nothing_is_overwritten_and_mistakes_are_named(tmp_path: Path) -> None:
    missing = issue(tmp_path, "host", "h0")
    assert (missing.exit_code, "no authority in" in missing.output) == (2, True)
    assert run("init", "--dir", tmp_path / "ca").exit_code == 0
    again = run("init", "--dir", tmp_path / "ca")
    assert (again.exit_code, "is not overwritten" in again.output) == (2, True)
    for name in ("h/0", "", "h0\n", "-h0", 64 * "h"):
        assert (
            run(
                "issue", "--dir", tmp_path / "ca", "--role", "host", f"--name={name}", "--out", tmp_path / "x"
            ).exit_code
            == 2
        )
    assert issue(tmp_path, "king", "h0").exit_code == 2
    assert not (tmp_path / "x").exists()
    (tmp_path / "ca" / "ca.key").write_text("no key")
    assert "holds no authority" in issue(tmp_path, "host", "h0").output


def test_show_warns_of_what_runs_out(tmp_path: Path) -> None:
    run("init", "--dir", tmp_path / "ca")
    issue(tmp_path, "host", "h0", "--days", "2")
    shown = run("show", "--json", tmp_path / "h0")
    assert shown.exit_code == 1
    assert "runs out in 2.0 days" in shown.stderr
    [record] = json.loads(shown.stdout)
    assert (record["role"], record["name"]) == ("host", "h0")
    authority = run("show", tmp_path / "ca")
    assert authority.exit_code == 0
    assert "authority" in authority.output


def test_openssl_agrees(tmp_path: Path, program: Callable[[str], Path]) -> None:
    """An outside judge: chain, strictness, purposes, revocation."""
    openssl = program("openssl")
    authority = create(tmp_path / "ca")
    for role, name in ((Role.SWITCH, "spine"), (Role.HOST, "h0")):
        authority.issue(role, name, directory=tmp_path / name)

    def verifies(name: str, purpose: str) -> bool:
        root, crl = tmp_path / "ca" / "ca.pem", tmp_path / "ca" / "crl.pem"
        how: list[str | Path] = [
            "-x509_strict",
            "-purpose",
            purpose,
            "-CAfile",
            root,
            "-crl_check",
            "-CRLfile",
            crl,
        ]
        done = subprocess.run(
            [str(one) for one in (openssl, "verify", *how, tmp_path / name / "cert.pem")],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    assert verifies("spine", "sslserver")
    assert verifies("spine", "sslclient")
    assert verifies("h0", "sslclient")
    assert not verifies("h0", "sslserver")
    authority.revoke(Role.HOST, "h0")
    assert not verifies("h0", "sslclient")


def test_development_credentials_are_made_once(tmp_path: Path) -> None:
    first = credentials(tmp_path, Role.HOST, "h0")
    key = (first / "key.pem").read_bytes()
    assert credentials(tmp_path, Role.HOST, "h0") == first
    assert (first / "key.pem").read_bytes() == key
    assert (credentials(tmp_path, Role.SWITCH, "spine") / "ca.pem").read_bytes() == (
        first / "ca.pem"
    ).read_bytes()


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("tls://spine@10.0.0.100:7420", Endpoint("10.0.0.100", 7420, "spine")),
        ("tls://root.example:1", Endpoint("root.example", 1)),
        ("tls://leaf-0@[2001:db8::1]:7420", Endpoint("2001:db8::1", 7420, "leaf-0")),
    ],
)
def test_where_a_control_plane_is(text: str, endpoint: Endpoint) -> None:
    assert parse_control(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1:7420",
        "tls://10.0.0.1",
        "tls://a/b@10.0.0.1:7420",
        "tls://@x:1",
        "tls://x:0",
        "tls://x:65536",
        "tcp://x:1",
    ],
)
def test_what_names_no_control_plane(text: str) -> None:
    with pytest.raises(ValueError):
        parse_control(text)


def test_where_a_switch_listens() -> None:
    assert parse_listen("[::]:0") == Endpoint("::", 0)
    for text in ("7420", ":7420", "10.0.0.1:", "10.0.0.1:x", "a b:1", "::1:7420"):
        with pytest.raises(ValueError):
            parse_listen(text)


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({}, Outcome.OK),
        ({"days_left": 3.0}, Outcome.WARNING),
        ({"days_left": -1.0}, Outcome.FAILED),
        ({"error": "half a file"}, Outcome.FAILED),
        ({"days_left": None}, Outcome.FAILED),
    ],
)
def test_the_doctor_looks_at_certificates(changed: dict[str, object], outcome: Outcome) -> None:
    told = {
        "dir": "/etc/inaproto/tls",
        "role": "host",
        "name": "h0",
        "days_left": 80.0,
        "error": "",
    } | changed
    found = look_at_credentials(told)
    assert found.outcome is outcome
    assert "h0" in found.found


def test_the_doctor_finds_them_in_every_status() -> None:
    mine = {"role": "host"}
    for status in (
        {"credentials": mine},
        {"control_listen": {"credentials": mine}},
        {"control": {"credentials": mine}},
    ):
        assert credentials_in(status) == mine
    assert credentials_in({"control": {"path": "x"}}) == {}
