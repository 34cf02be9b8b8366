"""What docs/runbook.md tells operators, tried: a full disk, a lost store, a wrong clock, certificates that
have run out."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from inaproto.ca.identity import Role
from inaproto.core.rendezvous.tokens import Grant, Refusal, TokenIssuer
from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto.errors import Unsupported
from inaproto.wire.control_messages import Welcome
from inaproto_controller.cluster.desired import JobSpec, JobState
from inaproto_controller.service.controller import Controller, NoSuchJob, NotLeading
from inaproto_controller.service.store import transfer
from inaproto_controller.service.store.exported import CHANGES_AHEAD
from inaproto_controller.service.store.records import StoreLost
from inaproto_controller.service.store.sqlite import SqliteStore
from tests.clusters.secure import secure_switch
from tests.conftest import end_without
from tests.controller.live_controllers import Holder, LiveController, WallClock, live_controller
from tests.controller.test_agents_by_tls import CLUSTER, issue, until
from tests.controller.test_controller import leading, led
from tests.daemon.test_cli_daemons import daemon, run
from tests.unit.rendezvous_members import hello
from tests.wrong_clock import wrong_by

SUBMISSION = "t" * 40
SPEC = JobSpec(name="one", hosts=1)
DEADLINE_S = 600
YEAR_S = 365 * 86400


async def until_said(told: Callable[[], str], words: str) -> None:
    with trio.fail_after(DEADLINE_S):
        while words not in told():
            await trio.lowlevel.checkpoint()


# --- a full disk


@dataclass
class Disk:
    directory: Path
    fill: Callable[[Controller], None]
    free: Callable[[], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """One of 1 MiB, mounted."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        end_without("mount", Unsupported("a disk of one's own", mounted.stderr.strip()))
    ballast = directory / "ballast"

    def fill(_: Controller) -> None:
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    try:
        yield Disk(directory, fill, ballast.unlink)
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


class Limited(SqliteStore):
    """Its database says itself that it is full: this needs no disk of its own."""

    is_full = False

    def commit(self, *of: Any) -> None:
        pages = 1 if self.is_full else 1 << 30  # SQLite takes what it has by now, if that is more
        self._own().run(f"PRAGMA max_page_count = {pages}")
        super().commit(*of)


async def refused_once_full(controller: Controller, jobs: int = 10_000) -> JobSpec:
    """Jobs are submitted until one is refused, because the disk is full; that one."""
    for number in range(jobs):
        spec = JobSpec(name=f"more{number}", hosts=1, model="m" * 1000)
        while True:
            try:
                await controller.submit(spec, SUBMISSION)
                break
            except NotLeading as error:
                if "disk is full" in str(error):
                    return spec
                await trio.lowlevel.checkpoint()
    raise AssertionError("it never is full")


async def test_a_full_disk_promises_nothing_and_loses_nothing(small_disk: Disk) -> None:
    async with leading(small_disk.directory / "store", jobs_max=20_000) as controller:
        await controller.submit(SPEC, SUBMISSION)
        small_disk.fill(controller)
        spec = await refused_once_full(controller)
        promised = 1 + int(spec.name.removeprefix("more"))
        small_disk.fill(controller)  # a store that is closed gives some back
        with pytest.raises(
            (transfer.FileLost, StoreLost), match=r"No space left|disk is full|disk I/O|unable to open"
        ):
            transfer.export(str(small_disk.directory / "store"), str(small_disk.directory / "backup"))
        assert not list(small_disk.directory.glob("*backup*"))
        small_disk.free()
        await led(controller, 1)
        again = await controller.submit(spec, SUBMISSION)
        assert again.is_new, "what was refused is not half there"
        assert len(controller.jobs(live=True)) == promised + 1


async def test_a_store_that_says_it_is_full_is_tried_again(tmp_path: Path) -> None:
    store = Limited(tmp_path / "store")
    async with leading(tmp_path / "store", store=store, jobs_max=20_000) as controller:
        await controller.submit(SPEC, SUBMISSION)
        store.is_full = True
        spec = await refused_once_full(controller)
        store.is_full = False
        await led(controller, 1)
        assert (await controller.submit(spec, SUBMISSION)).is_new
        assert controller.job("one").state.is_live


# --- a lost store


def take_away(store: Path) -> None:
    for path in store.parent.glob(f"{store.name}*"):
        path.unlink()


async def test_a_store_whose_file_goes_is_not_written_on_nor_made_anew(tmp_path: Path) -> None:
    where, backup = tmp_path / "store", tmp_path / "backup"
    async with leading(where) as controller:
        await controller.submit(SPEC, SUBMISSION)
        await trio.to_thread.run_sync(transfer.export, str(where), str(backup))
        take_away(where)
        with suppress(NotLeading):  # unless it has noticed by itself
            await controller.submit(JobSpec(name="two", hosts=1), SUBMISSION)
            raise AssertionError("that is promised to nobody")
        await until_said(lambda: controller.problem, "its file was taken away; bring it back")
        assert not where.exists(), "an empty one would say that nothing was ever promised"
        said = await trio.to_thread.run_sync(
            partial(transfer.import_, str(where), str(backup), replace=False)
        )
        assert "1 job" in said
        await led(controller, 1)
        assert [job.spec.name for job in controller.jobs(live=True)] == ["one"]


async def test_a_lock_that_goes_ends_the_term(tmp_path: Path) -> None:
    async with leading(tmp_path / "store") as controller:
        (tmp_path / "store.lock").unlink()
        await led(controller, 1)


async def test_an_older_store_under_agents_that_know_more(tmp_path: Path) -> None:
    """Jobs of the export go on, those of after it are given up, and no number means two things."""
    store, backup = tmp_path / "store.db", tmp_path / "backup"
    held: dict[str, Holder] = {}
    links: list[ControllerLink] = []

    async def start(live: LiveController, outer: trio.Nursery) -> None:
        await live.start_agents(without="h0")
        held["h0"] = Holder()
        door = UnixDoor(tmp_path / "agents.sock", UNIX)
        links.append(ControllerLink("host", "h0", held["h0"], [door], retry_s=0.01))
        outer.start_soon(links[0].run)

    async with trio.open_nursery() as outer:
        async with live_controller(tmp_path, outer=outer) as live:
            await start(live, outer)
            await live.agents_up(13)
            await live.submit("before", 7)
            await live.runs("before", tree=False)
            await trio.to_thread.run_sync(transfer.export, str(store), str(backup))
            await live.submit("behind", 1)
            behind = await live.runs("behind", tree=False)
            numbers = {grant.grant for grant in held["h0"].grants.values()}
        take_away(store)
        await trio.to_thread.run_sync(partial(transfer.import_, str(store), str(backup), replace=False))
        async with live_controller(tmp_path, outer=outer) as live:
            await live.agents_up(13)
            await live.runs("before", tree=False)
            with pytest.raises(NoSuchJob):
                live.controller.job("behind")
            await live.submit("new", 1)
            new = await live.runs("new", tree=False)
            assert new.hosts == behind.hosts, "the host has given up what the store does not know"
            grants = live.controller.status()["grants_to_be_freed"]
            assert grants == 0
            given = {grant.grant for grant in held["h0"].grants.values()}
            assert all(number in numbers or number > CHANGES_AHEAD for number in given)
        outer.cancel_scope.cancel()


async def test_an_empty_store_is_not_obeyed_by_those_who_know_of_a_later_term(tmp_path: Path) -> None:
    """So jobs go on that run there, until somebody has brought the store back."""
    holder = Holder()
    link = ControllerLink("host", "h0", holder, [UnixDoor(tmp_path / "agents.sock", UNIX)], retry_s=0.01)
    async with trio.open_nursery() as outer:
        outer.start_soon(link.run)
        async with live_controller(tmp_path, outer=outer) as live:
            await live.agents_up(1)
        async with live_controller(tmp_path, outer=outer) as live:
            await live.agents_up(1)
            await live.submit("one", 1)
            await live.runs("one", tree=False)
            grants = dict(holder.grants)
        take_away(tmp_path / "store.db")
        async with live_controller(tmp_path, outer=outer):
            await until_said(lambda: link.problem, "its term 1 is over, it was 2")
            assert holder.grants == grants
        outer.cancel_scope.cancel()


# --- a wrong clock


@pytest.mark.parametrize("jump_s", [10 * YEAR_S, -10 * YEAR_S], ids=["ahead", "behind"])
async def test_no_lease_and_no_turn_goes_by_a_wall_clock(jump_s: int, tmp_path: Path) -> None:
    clock = WallClock()
    async with live_controller(tmp_path, clock=clock) as live:
        await live.start_agents()
        await live.agents_up(13)
        await live.submit("one", 4)
        await live.runs("one", tree=False)
        clock.now += jump_s
        await live.submit("two", 4)
        await live.runs("two", tree=False)
        await live.agents_up(13)
        assert [job.state for job in live.controller.jobs(live=True)] == [JobState.RUNNING] * 2
        assert live.controller.status()["term"] == 1


SECRET = bytes(range(32))


@pytest.mark.parametrize(
    ("wrong_s", "code"), [(-400 * 86400, "token_expired"), (-YEAR_S + 3600, ""), (10 * YEAR_S, "")]
)
async def test_a_controller_whose_clock_is_late_gives_tokens_that_have_run_out(
    wrong_s: int, code: str, tmp_path: Path
) -> None:
    """The root of the switches looks at a right one."""
    issuer, now = TokenIssuer([SECRET]), 1_800_000_000
    async with leading(tmp_path / "store", job_secret=issuer) as controller:
        controller._wall_clock = lambda: float(now + wrong_s)
        token = (await controller.submit(SPEC, SUBMISSION)).token
    found = issuer.check(token, job="one", rank=0, size=1, host="h0", now_s=now)
    assert isinstance(found, Refusal if code else Grant)
    assert (found.code if isinstance(found, Refusal) else "") == code


def test_a_host_whose_clock_is_wrong_is_told_so_and_comes_when_it_is_right(
    runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real daemons: the clock of one is off, as that of a machine whose battery is empty."""
    try:
        clocks = [
            (wrong_by(YEAR_S, tmp_path), ("its certificate has run out", "clock of this machine is wrong")),
            (wrong_by(-YEAR_S, tmp_path), ("is not valid yet; are the clocks right?",)),
            (wrong_by(20 * YEAR_S, tmp_path), ("authority of its certificate has run out",)),
        ]
    except Unsupported as why:
        end_without("cc", why)
    assert run("ca", "init", "--dir", str(runtime_dir / "ca")).returncode == 0
    (runtime_dir / "cluster.json").write_text(json.dumps(CLUSTER))
    controller, hosts = str(runtime_dir / "c"), str(runtime_dir / "h")
    with ExitStack() as stack:

        def start(*arguments: str) -> str:
            return stack.enter_context(daemon(*arguments)).ready_line

        ready = start(
            *("controller", "--dir", controller, "--cluster", str(runtime_dir / "cluster.json")),
            *("--agents-listen", "127.0.0.1:0", "--name", "ctl"),
            *("--tls", issue(runtime_dir, "controller", "ctl", "127.0.0.1")),
        )
        where = f"tls://ctl@{ready.partition('control=')[2]}"
        start("switch", "--dir", hosts)
        of = ["host", "--dir", hosts, "--name", "h0", "--ip", "10.0.0.1", "--controller", where]
        own = issue(runtime_dir, "host", "h0")
        for wrong, words in clocks:
            with monkeypatch.context() as patched, ExitStack() as wrongly:
                for name, text in wrong.items():
                    patched.setenv(name, text)
                host = wrongly.enter_context(daemon(*of, "--tls", own))
                assert host.ready_line.startswith("ready ")
                for name in wrong:
                    patched.delenv(name)
                until(Path(hosts), "h0", "no controller", *words)
                assert host.end(signal.SIGTERM)[0] == 0
        start(*of, "--tls", own)
        until(Path(hosts), "h0", f"controller at {where} for", "term 1")


# --- certificates that have run out


async def test_one_that_ran_out_is_renewed_in_place_and_nobody_is_started_anew(runtime_dir: Path) -> None:
    async with secure_switch(runtime_dir) as switch:
        now = datetime.now(UTC)
        own = switch.deployment.issue(Role.HOST, "h0", now=now - timedelta(days=2), days=1)
        door = switch.door(own)
        stream = ControlStream(await door.connect())
        with pytest.raises(EndOfChannel, match="our certificate has run out"):
            await stream.receive()
        stream.close()
        switch.deployment.issue(Role.HOST, "h0", now=now, days=1)
        stream = ControlStream(await door.connect())
        await stream.send(hello(0))
        assert isinstance(await stream.receive(), Welcome)
        stream.close()


async def test_a_switch_whose_certificate_ran_out_is_named_by_its_hosts(runtime_dir: Path) -> None:
    now = datetime.now(UTC)
    async with secure_switch(runtime_dir) as switch:
        late = switch.deployment.issue(
            Role.SWITCH, "spine", now=now - timedelta(days=2), days=1, addresses=["127.0.0.1"]
        )
        assert late == switch.deployment.root / "switch-spine", "where it reads them, as it runs"
        with pytest.raises(OSError, match="its certificate has run out: inaproto ca issue renews it"):
            await switch.connect(switch.deployment.host())
        switch.deployment.issue(Role.SWITCH, "spine", addresses=["127.0.0.1"])
        await (await switch.host(1)).expect(Welcome)
