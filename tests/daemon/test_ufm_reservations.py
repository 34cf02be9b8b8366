"""Reservations of SHARP resources in a UFM: the controller daemon asks a stand-in over real HTTP."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from inaproto.errors import ConfigError
from inaproto_controller.cluster.desired import Desired, Grant, GrantKind
from inaproto_controller.cluster.reserved import UFM, Pool
from inaproto_controller.service.metrics import controller_metrics
from inaproto_controller.service.sharp.http_client import HttpClient, NoAnswer
from inaproto_controller.service.sharp.opening import read_guids
from inaproto_controller.service.sharp.service import STATES, Reservations
from inaproto_controller.service.sharp.ufm import AppCalls, PkeyCalls, UfmAddress, UfmCalls
from tests.controller.ufm_double import STRANGER, USER, Fault, Loss, UfmDouble, running_ufm
from tests.daemon.test_controller_daemon import DEADLINE_S, Daemon, running

GUIDS = {"h0": ["0x00000000000000A0"], "h1": ["0xb0", "0xb1"]}
OF_BOTH = {"00000000000000a0", "00000000000000b0", "00000000000000b1"}
FORMS = pytest.mark.parametrize("form", ["pkeys", "apps"])


class Reserving:
    """A controller with two hosts and a switch, and its UFM."""

    def __init__(self, daemon: Daemon, ufm: UfmDouble, *, has_switch: bool) -> None:
        self.daemon, self.ufm = daemon, ufm
        self.hosts = [daemon.agent("host", name) for name in ("h0", "h1")]
        if has_switch:
            daemon.agent("switch", "leaf")

    async def status(self) -> dict[str, Any]:
        """Status of the reservations."""
        found: dict[str, Any] = (await self.daemon.ask(self.daemon.client.status))["reservations"]
        return found

    async def until_status(self, **fields: object) -> dict[str, Any]:
        """Status once the only reservation, or the whole, has these fields."""
        while True:
            found = await self.status()
            for one in (*found["reservations"], found):
                if all(one.get(name) == value for name, value in fields.items()):
                    return found

    async def submit(self, name: str = "train") -> None:
        """A job on both hosts, once it has them."""
        await self.daemon.command("submit", name, "--hosts", "2")
        await self.daemon.until(name, "placed")

    async def end(self, name: str = "train") -> None:
        """The job is cancelled."""
        await self.daemon.ask(self.daemon.client.cancel, name)


@asynccontextmanager
async def reserving(
    folder: Path,
    ufm: UfmDouble,
    form: str = "pkeys",
    *,
    tls: ssl.SSLContext | None = None,
    has_switch: bool = True,
    **options: object,
) -> AsyncIterator[Reserving]:
    ufm.by_pkeys = form == "pkeys"
    (folder / "guids.json").write_text(json.dumps(GUIDS))
    secret = folder / "secret"
    secret.write_text(USER + "\n")
    secret.chmod(0o600)
    given = {
        "ufm_by": form,
        "ufm_pkeys": "0x0010-0x0011",
        "ufm_guids": folder / "guids.json",
        "ufm_credentials": secret,
        **options,
    }
    with trio.fail_after(DEADLINE_S):
        async with running_ufm(ufm, tls):
            url = ufm.url if tls is None else f"https://localhost:{ufm.port}"
            async with running(folder, ufm=url, **given) as daemon:
                yield Reserving(daemon, ufm, has_switch=has_switch)


def first(faults: Sequence[Fault], method: str = "", path: str = "") -> Any:
    """These become of the first questions of that kind."""
    left = list(faults)

    def fault(its: str, asked: str) -> Fault:
        if method in ("", its) and path in asked and left:
            return left.pop(0)
        return None

    return fault


@FORMS
async def test_a_job_with_a_tree_has_its_hosts_reserved_until_it_ends(runtime_dir: Path, form: str) -> None:
    ufm = UfmDouble()
    async with reserving(runtime_dir, ufm, form) as world:
        await world.submit()
        await ufm.until(lambda: ufm.members() == {"0x0010": OF_BOTH})
        (one,) = (await world.until_status(state="stands"))["reservations"]
        told = {
            family.name: family
            for family in controller_metrics(await world.daemon.ask(world.daemon.client.status))
        }
        samples = {
            sample.labels["state"]: sample.value
            for sample in told["inaproto_controller_reservations"].samples
        }
        assert samples == dict.fromkeys(STATES, 0) | {"stands": 1}
        assert (one["job"], one["pkey"], len(one["guids"])) == ("train", "0x0010", 3)
        await world.end()
        await ufm.until(lambda: ufm.members() == {})
        assert (await world.until_status(reservations=[]))["pkeys_left_alone"] == []
        changes = [(method, path) for method, path, _ in ufm.asked if method != "GET"]
        assert len(changes) == 2, "nothing is asked twice"
        assert ufm.faults == []


async def test_what_is_asked_is_as_the_guides_have_it(runtime_dir: Path) -> None:
    ufm = UfmDouble()
    async with reserving(runtime_dir, ufm) as world:
        await world.submit()
        await ufm.until(ufm.members)
        ((path, body),) = [(path, body) for method, path, body in ufm.asked if method == "POST"]
        assert path == "/ufmRest/actions/set_guids_for_pkey"
        assert body == {
            "pkey": "0x0010",
            "index0": False,
            "ip_over_ib": True,
            "guids": sorted(OF_BOTH),
        }


async def test_a_job_without_a_tree_is_not_admitted(runtime_dir: Path) -> None:
    """The switch does not report, so nobody is summed for there; once it does, the job has both."""
    ufm = UfmDouble()
    async with reserving(runtime_dir, ufm, has_switch=False) as world:
        await world.until_status(answers=True)
        await world.submit()
        assert (await world.status())["reservations"] == []
        assert ufm.members() == {}
        world.daemon.agent("switch", "leaf")
        await ufm.until(lambda: ufm.members() == {"0x0010": OF_BOTH})


@FORMS
@pytest.mark.parametrize("fault", [500, 503, 302, *Loss], ids=str)
async def test_trouble_passes_and_nothing_is_given_twice(runtime_dir: Path, form: str, fault: Fault) -> None:
    """Both the reservation and its end meet the trouble, twice each."""
    ufm = UfmDouble()
    answer_ms = 400 if fault in (Loss.SILENT, Loss.SILENT_AFTER) else 10_000
    async with reserving(runtime_dir, ufm, form, ufm_answer_ms=answer_ms) as world:
        await world.until_status(answers=True)
        ufm.fault = first([fault, fault], "POST")
        await world.submit()
        await ufm.until(lambda: ufm.members() == {"0x0010": OF_BOTH})
        await world.until_status(state="stands")
        ufm.fault = first([fault, fault], "POST" if form == "pkeys" else "DELETE")
        await world.end()
        await world.until_status(reservations=[])
        assert ufm.members() == {}
        assert ufm.faults == []


@FORMS
async def test_a_refusal_is_told_and_asked_again(runtime_dir: Path, form: str) -> None:
    ufm = UfmDouble(apps_max=0)
    async with reserving(runtime_dir, ufm, form) as world:
        await world.submit()
        (one,) = (await world.until_status(state="refused"))["reservations"]
        assert "400" in one["why"]
        assert "app_resources limit reached" in one["why"]
        assert "reservation_max_jobs_per_hca" in one["why"]
        ufm.apps_max = 1
        await world.until_status(state="stands")


POOL = Pool(("0x0010",), {"h0": ("0x00000000000000a0",), "h1": ("0x00000000000000b0",)})


def one_grant() -> Grant:
    """Reservation of the pool's two hosts."""
    slots = POOL.slots(["h0", "h1"], (), ())
    assert not isinstance(slots, str)
    return Grant(number=1, job=1, kind=GrantKind.RESERVATION, agent=UFM, slots=slots)


def calls(folder: Path, ufm: UfmDouble, form: str) -> UfmCalls:
    """Calls of this UFM, without a controller."""
    secret = folder / "secret"
    secret.write_text(USER)
    secret.chmod(0o600)
    client = UfmAddress(ufm.url, secret, None, 10).client()
    return PkeyCalls(client) if form == "pkeys" else AppCalls(client)


@FORMS
async def test_who_is_not_sure_to_lead_changes_nothing(runtime_dir: Path, form: str) -> None:
    """One that hung, and that another one leads instead of, must not put back what that one has taken."""
    ufm = UfmDouble(by_pkeys=form == "pkeys")
    async with running_ufm(ufm), trio.open_nursery() as nursery:
        service = Reservations(calls(runtime_dir, ufm, form), POOL, where="here", look_s=0.01)
        waits = trio.Event()

        async def never() -> None:
            waits.set()
            await trio.sleep_forever()

        service.lead(Desired(grants={1: one_grant()}, revision=1), never)
        nursery.start_soon(service.run)
        with trio.fail_after(DEADLINE_S):
            await waits.wait()
        assert [method for method, _, _ in ufm.asked] == ["GET"]
        nursery.cancel_scope.cancel()


@FORMS
@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "is no HTTP, or was cut off"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{"0x10"', "is no HTTP, or was cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", "no JSON in UFM's answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "not an object"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\n{"0x10":{"guids":["x"]}}', "hexadecimal digits"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{"0x10":{}}', "no list of GUIDs"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_judged_by_nobody(
    runtime_dir: Path, form: str, raw: bytes, said: str
) -> None:
    ufm = UfmDouble(fault=lambda method, path: raw)
    async with running_ufm(ufm):
        with trio.fail_after(DEADLINE_S), pytest.raises(NoAnswer, match=said):
            await calls(runtime_dir, ufm, form).read(["0x0010"])


async def test_that_nobody_listens_is_said(runtime_dir: Path) -> None:
    ufm = UfmDouble()
    async with running_ufm(ufm):
        pass
    with trio.fail_after(DEADLINE_S), pytest.raises(NoAnswer, match=r"Connection refused.*is it started"):
        await calls(runtime_dir, ufm, "pkeys").read(["0x0010"])


@FORMS
async def test_a_guid_that_somebody_took_out_is_put_in_again(runtime_dir: Path, form: str) -> None:
    """At the next look, without any news; and nothing is made twice for that."""
    ufm = UfmDouble(by_pkeys=form == "pkeys")
    grant = one_grant()
    async with running_ufm(ufm), trio.open_nursery() as nursery:
        service = Reservations(calls(runtime_dir, ufm, form), POOL, where="here", look_s=0.01)
        service.lead(Desired(grants={1: grant}, revision=1), trio.lowlevel.checkpoint)
        nursery.start_soon(service.run)
        both = {"00000000000000a0", "00000000000000b0"}
        with trio.fail_after(DEADLINE_S):
            await ufm.until(lambda: ufm.members() == {"0x0010": both})
            members = ufm.pkeys["0x0010"] if form == "pkeys" else ufm.apps["inaproto-1"][1]
            members.discard("00000000000000b0")
            await ufm.until(lambda: ufm.members() == {"0x0010": both})
        assert ufm.faults == []
        nursery.cancel_scope.cancel()


async def test_why_a_job_has_none_is_said(runtime_dir: Path) -> None:
    (runtime_dir / "some.json").write_text('{"h0": ["0xa0"]}')
    ufm = UfmDouble(fault=lambda method, path: 500)
    async with reserving(runtime_dir, ufm, ufm_guids=runtime_dir / "some.json") as world:
        await world.submit()
        await world.until_status(without={"train": "UFM does not answer"})
        ufm.fault = lambda method, path: None
        await world.until_status(without={"train": "no GUIDs of h1 are known: name them in ufm_guids"})


@pytest.mark.parametrize(("status", "said"), [(404, "compare ufm_guids"), (401, "look at ufm_credentials")])
async def test_what_to_do_is_said(runtime_dir: Path, status: int, said: str) -> None:
    ufm = UfmDouble()
    ufm.fault = lambda method, path: status if method == "POST" else None
    async with reserving(runtime_dir, ufm) as world:
        await world.submit()
        while True:
            found = await world.status()
            text = found["problem"] + "".join(one["why"] for one in found["reservations"])
            if said in text:
                break


async def test_a_ufm_that_reserves_nothing_is_told_so(runtime_dir: Path) -> None:
    ufm = UfmDouble(sharp=False)
    async with reserving(runtime_dir, ufm) as world:
        await world.until_status(answers=True)
        assert "enable_sharp_allocation" in (await world.status())["advice"]
    async with reserving(runtime_dir, ufm, "apps") as world:
        while "enable_sharp_allocation" not in (await world.status())["problem"]:
            pass


async def test_what_somebody_else_has_is_left_alone(runtime_dir: Path) -> None:
    ufm = UfmDouble(pkeys={"0x10": {STRANGER}, "0x300": {"00000000000000a0"}})
    async with reserving(runtime_dir, ufm) as world:
        await world.submit()
        await ufm.until(lambda: ufm.pkeys.get("0x0011") == OF_BOTH)
        assert (await world.until_status(state="stands"))["pkeys_left_alone"] == ["0x0010"]
        ufm.pkeys["0x0011"].add(STRANGER)
        await world.end()
        await ufm.until(lambda: ufm.pkeys["0x0011"] == {STRANGER})
        assert ufm.pkeys["0x10"] == {STRANGER}


async def test_a_reservation_of_somebody_else_for_the_same_hosts_is_waited_for(runtime_dir: Path) -> None:
    ufm = UfmDouble(apps={"slurm_1": ("0x0200", {"00000000000000a0"})})
    async with reserving(runtime_dir, ufm, "apps") as world:
        await world.submit()
        (one,) = (await world.until_status(state="refused"))["reservations"]
        assert one["why"] == "0x00000000000000a0: still in slurm_1 of UFM, and is to be in one only"
        assert [method for method, _, _ in ufm.asked if method != "GET"] == []


@FORMS
async def test_what_a_controller_has_left_that_lost_its_store_is_taken_out(
    runtime_dir: Path, form: str
) -> None:
    ufm = UfmDouble(
        pkeys={"0x0010": {"00000000000000a0"}},
        apps={"inaproto-77": ("0x0010", {"00000000000000a0"}), "inaproto-1": ("0x0200", {STRANGER})},
    )
    async with reserving(runtime_dir, ufm, form):
        await ufm.until(lambda: "0x0010" not in ufm.members())
        assert (form == "pkeys") or ufm.apps == {"inaproto-1": ("0x0200", {STRANGER})}


async def test_the_credentials_are_in_no_log_and_in_no_status(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ufm = UfmDouble(credentials="somebody:else")
    async with reserving(runtime_dir, ufm) as world:
        while "look at ufm_credentials" not in (await world.status())["problem"]:
            pass
        said = caplog.text + json.dumps(await world.status())
    assert "s3cret-word" not in said
    assert "czNjcmV0" not in said


async def test_a_file_of_credentials_is_for_nobody_else(runtime_dir: Path) -> None:
    secret = runtime_dir / "open"
    secret.write_text(USER)
    secret.chmod(0o644)
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="chmod 600"), flatten_subgroups=True):
        async with reserving(runtime_dir, UfmDouble(), ufm_credentials=secret):
            pass


# --- TLS


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context for localhost, and the file of its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / f"{name}.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = folder / f"{name}.key"
    form, no = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, no))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem, private)
    return context, pem


async def test_ufm_is_known_by_its_authority_and_nobody_else_is_told_the_credentials(
    runtime_dir: Path,
) -> None:
    context, own = certificate(runtime_dir, "own")
    _, other = certificate(runtime_dir, "other")
    ufm = UfmDouble()
    async with reserving(runtime_dir, ufm, tls=context, ufm_ca=other) as world:
        while "is ufm_ca that of its authority?" not in (await world.status())["problem"]:
            pass
        assert ufm.asked == []
    async with reserving(runtime_dir, ufm, tls=context, ufm_ca=own) as world:
        await world.submit()
        await ufm.until(lambda: ufm.members() == {"0x0010": OF_BOTH})


# --- settings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ufm": "http://ufm.example"}, "must be https://NAME"),
        ({"ufm": "https://me:pw@ufm.example"}, "must be https://NAME"),
        ({"ufm_pkeys": "0x7fff"}, "0x0001 to 0x7ffe"),
        ({"ufm_pkeys": "0x20-0x10"}, "the first is above the last"),
        ({"ufm_pkeys": ""}, "needs ufm_pkeys"),
        ({"ufm_guids": None}, "needs ufm_pkeys"),
    ],
)
async def test_settings_that_cannot_be_are_refused(
    runtime_dir: Path, options: dict[str, object], said: str
) -> None:
    given: dict[str, object] = {"ufm": "https://ufm.example", "ufm_pkeys": "0x10", **options}
    with pytest.RaisesGroup(
        pytest.RaisesExc((ConfigError, ValueError), match=said), flatten_subgroups=True, allow_unwrapped=True
    ):
        async with running(runtime_dir, **given):
            pass


@pytest.mark.parametrize("url", ["http://ufm..example", "http://.", "http://[::1", "http://\ud800"])
def test_an_address_that_nobody_could_resolve_is_refused_before_it_is_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="without a user"):
        HttpClient(url, headers={}, tls=None, answer_s=1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"h9": ["1"]}', "h9: the cluster file has no host of that name"),
        ('{"h0": []}', "h0: a list of GUIDs, at least one"),
        ('{"h0": ["0"]}', "h0: GUID '0': 64 bits, not 0"),
        ('{"h0": [7]}', "h0: GUID 7: hexadecimal digits"),
        ('{"h0": ["1"], "h1": ["0x1"]}', "h1: 0x0000000000000001 is named twice, here and at h0"),
        ("[]", "an object of lists, by host"),
        ("{", "not JSON"),
    ],
)
def test_a_file_of_guids_is_refused_by_its_host(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "guids.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_guids(path, ("h0", "h1"))
