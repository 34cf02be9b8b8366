"""Sharing at the controller, without daemons: what hosts may say there, and what must not be lost."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from inaproto.core.sharing.events import SharingConfig, SharingRecord
from inaproto.core.switch.ring_spec import SHARED_POOL
from inaproto.daemon.shell import current_instant
from inaproto.errors import LocalMisuse
from inaproto.units import MS, Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.control_messages import Message, encode_message
from inaproto.wire.messages.sharing import (
    Abort,
    Ask,
    Commit,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Seat,
    SeatHold,
    SharingProgress,
    SharingSeats,
    Version,
    Vote,
)
from inaproto_controller.service.turns import service as sharing_service
from inaproto_controller.service.turns.group import OWNER
from inaproto_controller.service.turns.service import FLOOR, NO_POOLS_MAX, SharingService
from inaproto_controller.service.turns.store import encode_record

ROOTS = [f"spine{number}" for number in range(100)]


class Service:
    """A leader's, with a store in memory; ``said`` has what it says, by host."""

    def __init__(
        self,
        records: dict[str, bytes] | None = None,
        *,
        vote_ns: int = 60 * S,
    ) -> None:
        self.said: list[tuple[str, Message]] = []
        self.records = records or {}
        self.news = trio.Event()
        self.disk = trio.Event()
        self.disk.set()
        """Unset: the disk is slow."""
        self.service = SharingService(
            self._send,
            lease_s=30.0,
            roots=ROOTS,
            config=SharingConfig("", margin=0, vote_ns=vote_ns),
        )

    def _send(self, host: str, message: Message) -> None:
        encode_message(message)  # what cannot be said is a fault of the controller
        self.said.append((host, message))
        self.news.set()

    async def put_record(self, owner: str, body: bytes | None) -> None:
        await self.disk.wait()
        if body is None:
            self.records.pop(owner, None)
        else:
            self.records[owner] = body

    def of(self, host: str, kind: type[Message]) -> list[Any]:
        return [message for at, message in self.said if at == host and isinstance(message, kind)]

    async def hears(self, host: str, kind: type[Message]) -> None:
        with trio.fail_after(600):
            while not self.of(host, kind):
                self.news = trio.Event()
                await self.news.wait()

    def report(self, host: str, *jobs: str, pool: str = SHARED_POOL, hosts: int = 1, life: int = 1) -> None:
        holds = tuple(
            SeatHold(pool=pool, job=job, life=life, ring_id=10 * life + number, hosts=hosts)
            for number, job in enumerate(jobs)
        )
        self.service.heard(host, SharingSeats(seats=holds))

    def vote(self, host: str, prepare: Prepare, index: int = 0) -> None:
        self.service.heard(host, Vote(prepare.seat, prepare.version, OpIndex(index), in_ina=False))


@asynccontextmanager
async def leading(service: Service | None = None) -> AsyncIterator[Service]:
    here = service or Service()
    here.service.lead(here.records, here.put_record)
    for host in ("h0", "h1", "h2"):
        here.service.arrived(host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.service.run)
        await trio.testing.wait_all_tasks_blocked()
        yield here
        nursery.cancel_scope.cancel()


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)


async def test_another_pool_s_group_says_nothing_of_a_round_that_is_not_its_own() -> None:
    """Its answer would have been that the round was aborted."""
    async with leading() as here:
        here.report("h1", "other", pool="shared@spine1")
        here.report("h0", "train")
        await settled()
        (prepare,) = here.of("h0", Prepare)
        here.disk = trio.Event()  # the decision is on its way to the disk: nobody knows of it
        here.vote("h0", prepare)
        here.service.heard("h0", Ask(seat=prepare.seat, version=prepare.version))
        await settled()
        assert not here.of("h0", Abort)
        here.disk.set()
        await settled()
        assert {commit.version for commit in here.of("h0", Commit)} == {prepare.version}


@pytest.mark.parametrize(
    "pool", ["a\0", "shared\0", "shared@", "shared@spine100", "shared@spine1@", "spine1"]
)
async def test_a_pool_that_no_switch_has_is_none(pool: str, caplog: pytest.LogCaptureFixture) -> None:
    """A host that names it would make a group of it, and a record in the store: as many as it likes, with
    names that not every database takes."""
    async with leading() as here:
        for _ in range(3):
            here.report("h0", "train", pool=pool)
        await settled()
        assert not here.records
        assert not here.said
        assert here.service.status() == []
        assert caplog.text.count(f"host h0 has seats at {pool!r}") == 1
        here.report("h0", "train")
        await here.hears("h0", Prepare)


async def test_warnings_of_names_that_are_no_pools_have_an_end(caplog: pytest.LogCaptureFixture) -> None:
    async with leading() as here:
        for number in range(2 * NO_POOLS_MAX):
            here.report("h0", "train", pool=f"shared@none{number}")
        assert len(caplog.records) == NO_POOLS_MAX


async def test_that_a_seat_is_gone_is_heard_however_much_its_host_has_said_before() -> None:
    """A seat that is waited for, and nobody says that it is gone, would keep the pool for ever."""
    async with leading() as here:
        here.report("h0", "train")
        await settled()
        (prepare,) = here.of("h0", Prepare)
        here.disk = trio.Event()
        here.vote("h0", prepare)
        await settled()
        for _ in range(5000):
            here.service.heard("h0", Done(seat=prepare.seat, version=Version(term=9, number=9)))
        here.report("h0")
        here.report("h1", "next")
        here.disk.set()
        await here.hears("h1", Prepare)


@pytest.mark.parametrize("index", [1 << 32, (1 << 64) - 1])
async def test_an_index_that_no_all_reduce_has_is_no_message(index: int) -> None:
    """A turn that begins behind it could be written down, and not be said: the controller would fail on it,
    and again whenever it starts."""
    seat = Seat(JobId("train"), "h0", 1)
    vote = Vote(seat=seat, version=Version(term=1, number=1), index=OpIndex(index), in_ina=False)
    place = SharingProgress(
        seat=seat, operation=index, is_running=False, uses_ina=False, age_ns=0, step_first=0
    )
    for message in (vote, place):
        with pytest.raises(LocalMisuse, match="not an integer"):
            encode_message(message)


async def test_a_turn_from_the_last_index_on_is_told() -> None:
    async with leading() as here:
        here.report("h0", "train")
        await settled()
        (prepare,) = here.of("h0", Prepare)
        here.vote("h0", prepare, index=(1 << 32) - 1)
        await settled()
        assert {one.decision.granted.first for one in here.of("h0", Commit)} == {(1 << 32) - 1}


def place(here: Service, host: str, job: str, operation: int, *, is_running: bool = False) -> None:
    seat = Seat(JobId(job), host, 1)
    here.service.heard(
        host,
        SharingProgress(seat=seat, operation=operation, is_running=is_running, uses_ina=True, age_ns=0),
    )


async def granted(here: Service, host: str) -> int:
    """The host's job gets the turn that it is asked about; its epoch."""
    await here.hears(host, Prepare)
    here.vote(host, here.of(host, Prepare)[-1])
    await here.hears(host, Commit)
    commit = here.of(host, Commit)[-1]
    here.service.heard(host, Done(seat=commit.seat, version=commit.version))
    assert commit.decision.granted is not None
    return int(commit.decision.granted.epoch)


async def test_a_job_that_pauses_in_its_turn_does_not_keep_the_pool(autojump_clock: object) -> None:
    """It saves a checkpoint, or somebody looks at it in a debugger: its turn never comes to its end."""
    async with leading() as here:
        here.report("h0", "train")
        epoch = await granted(here, "h0")
        here.report("h1", "next")
        place(here, "h0", "train", 3)
        await here.hears("h0", EndTurn)
        end = here.of("h0", EndTurn)[-1]
        assert (end.epoch, end.until) == (epoch, 0)
        here.service.heard("h0", Drained(seat=end.seat, epoch=Epoch(epoch)))
        assert await granted(here, "h1") == epoch + 1


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_turn_goes_on_while_its_job_does(autojump_clock: object, is_running: bool) -> None:
    """An operation that takes long is no pause, nor is one after the other with some time between them."""
    async with leading() as here:
        here.report("h0", "train")
        epoch = await granted(here, "h0")
        here.report("h1", "next")
        for operation in range(1, 20):
            place(here, "h0", "train", operation, is_running=is_running)
            await trio.sleep(1.0)
        ends = [one for one in here.of("h0", EndTurn) if one.epoch == epoch]
        assert not any(one.until == 0 for one in ends)


async def leaves(here: Service, host: str) -> None:
    """Of its job's turn, nothing is left."""
    here.report(host)
    await settled()


async def test_pools_come_and_go_and_no_epoch_comes_again(autojump_clock: object) -> None:
    """A switch has heard of the epochs of a group that is gone, and takes what is older for stale."""
    async with leading() as here:
        epoch = 0
        for root in ROOTS[:80]:
            here.said.clear()
            here.report("h0", "train", pool=f"shared@{root}")
            epoch = max(epoch, await granted(here, "h0"))
            epoch = max(epoch, await granted_again(here, "h0", "h1", pool=f"shared@{root}"))
            await leaves(here, "h0")
            await leaves(here, "h1")
        assert len(here.service.status()) == 80
        await trio.sleep(31)
        assert here.service.status() == []
        assert list(here.records) == [FLOOR]
        here.said.clear()
        here.report("h0", "train", pool=f"shared@{ROOTS[0]}")
        epoch_after = await granted(here, "h0")
        assert epoch_after > epoch
        await leaves(here, "h0")
        await trio.sleep(31)
    async with leading(Service(here.records)) as later:
        later.report("h0", "train", pool=f"shared@{ROOTS[80]}")
        assert await granted(later, "h0") > epoch_after


async def granted_again(here: Service, host: str, other: str, *, pool: str) -> int:
    """The turn of the host's job goes to one at the other host."""
    here.report(other, "next", pool=pool)
    await here.hears(host, Prepare)
    here.report(host, pool=pool)
    return await granted(here, other)


async def test_a_group_that_comes_again_while_it_is_forgotten_keeps_what_it_decides(
    autojump_clock: object,
) -> None:
    """That the old record goes is written before the new one, however slow the disk is."""
    async with leading() as here:
        here.report("h0", "train")
        epoch = await granted(here, "h0")
        await leaves(here, "h0")
        here.disk = trio.Event()
        await trio.sleep(31)
        assert here.service.status() == []
        here.said.clear()
        here.report("h0", "train")
        await settled()
        assert not here.said, "its term is not durable yet"
        here.disk.set()
        assert await granted(here, "h0") == epoch + 1
        assert sorted(here.records) == [FLOOR, OWNER + SHARED_POOL]


async def test_what_is_decided_is_on_disk_before_anybody_hears_of_it() -> None:
    async with leading() as here:
        here.report("h0", "train")
        await settled()
        (prepare,) = here.of("h0", Prepare)
        before = dict(here.records)
        here.disk = trio.Event()
        here.vote("h0", prepare)
        await settled()
        assert here.records == before
        assert not here.of("h0", Commit)
        here.disk.set()
        await settled()
        assert here.records != before
        assert here.of("h0", Commit)


async def test_a_group_is_not_forgotten_while_something_is_left_of_it(autojump_clock: object) -> None:
    """A host that is away may come back with its seat; one that is lost had a turn which has yet to drain."""
    async with leading() as here:
        here.report("h0", "train")
        await granted(here, "h0")
        here.service.departed("h0")
        await trio.sleep(29)
        assert here.service.status()[0]["turns"]
        here.service.arrived("h0")
        here.report("h0", "train")
        await trio.sleep(100)
        assert here.service.status()[0]["turns"]


async def test_a_record_of_a_name_that_no_database_takes_is_passed_over() -> None:
    record = encode_record(SharingRecord(3, Epoch(4)))
    async with leading(Service({OWNER + "a\0": record})) as here:
        assert here.service.status() == []


async def test_of_a_job_that_is_over_no_turns_are_counted() -> None:
    async with leading() as here:
        for number in range(20):
            here.said.clear()
            here.report("h0", f"train~{number}")
            await granted(here, "h0")
            assert here.service.status()[0]["jobs"][f"train~{number}"]["turns"] == 1
        (group,) = here.service._groups.values()
        assert len(group._granted) == 1


async def test_a_group_has_seats_of_more_jobs_than_a_message_would_name() -> None:
    """Each is told of those of its job alone."""
    async with leading() as here:
        for host in ("h0", "h1"):
            here.report(host, *(f"{host}-{number:04}" for number in range(100)))
        await here.hears("h0", Prepare)
        assert len(here.service.status()[0]["jobs"]) == 200


async def test_a_job_that_is_alone_may_pause(autojump_clock: object) -> None:
    async with leading() as here:
        here.report("h0", "train")
        await granted(here, "h0")
        place(here, "h0", "train", 3)
        await trio.sleep(100)
        assert not here.of("h0", EndTurn)


@pytest.mark.parametrize("looks", range(1, 9))
async def test_a_deadline_that_comes_between_two_looks_at_the_clock_ends_no_controller(
    looks: int, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """On a busy machine a process may stand still anywhere, also between asking whether a deadline has come
    and waiting for it. Here the deadline comes after so many looks."""
    here = Service(vote_ns=100 * MS)
    between = itertools.count(step=round(100 * MS / (looks + 0.5)))
    monkeypatch.setattr(
        sharing_service, "current_instant", lambda: Instant(current_instant() + next(between))
    )
    async with leading(here):
        here.report("h0", "train")
        await here.hears("h0", Prepare)
        await here.hears("h0", Abort)
