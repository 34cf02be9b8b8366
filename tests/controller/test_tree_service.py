"""What moves trees, without switches: what it hears of them, and what people ask of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import pytest
import trio
import trio.testing

from inaproto.errors import DecodeError
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.slots import Outcome, SlotAnswer, SlotsChanged
from inaproto.wire.messages.trees import TreeReport, TreeState, TreeWishes
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.service.controller import NotLeading
from inaproto_controller.service.store.records import PutRecord
from inaproto_controller.service.trees.service import OWNER, PINS, TreeService
from inaproto_controller.service.trees.store import decode_pins, decode_record
from inaproto_controller.service.turns.service import SharingService
from tests.controller.planned_cluster import racks

DEADLINE_S: Final = 600
MANY: Final = 64


def service(send: Callable[[str, Message], None] = lambda agent, message: None) -> TreeService:
    sharing = SharingService(lambda host, message: None, lease_s=30)
    return TreeService(send, sharing, FabricTrees(racks(), share_max=2))


async def test_a_root_that_is_not_on_disk_is_not_wished_for() -> None:
    """A leader that lost its place says so: whoever asked does not wait for ever."""
    its = service()
    disk: dict[str, bytes] = {}

    async def fails(owner: str, body: bytes | None) -> None:
        raise NotLeading("the store failed")

    async def keeps(owner: str, body: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        assert body is not None
        disk[owner] = body

    with trio.fail_after(DEADLINE_S):
        its.lead(1, {}, keeps)
        with pytest.raises(NotLeading):
            await its.pin("a", "spine", fails)
        async with trio.open_nursery() as nursery:
            for job in ("b", "c"):
                nursery.start_soon(its.pin, job, "spine", keeps)
    assert decode_pins(disk[PINS]) == {"b": "spine", "c": "spine"}


async def test_a_root_that_is_on_disk_stays_there_when_the_store_has_failed_before() -> None:
    its = service()
    disk: dict[str, bytes] = {}

    has_failed = trio.Event()

    async def fails(owner: str, body: bytes | None) -> None:
        await has_failed.wait()
        raise NotLeading("the store failed")

    async def keeps(owner: str, body: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        assert body is not None
        disk[owner] = body

    async def asks(job: str, put_record: PutRecord) -> None:
        with suppress(NotLeading):
            await its.pin(job, "spine", put_record)

    with trio.fail_after(DEADLINE_S):
        its.lead(1, {}, keeps)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asks, "a", fails)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(asks, "b", keeps)
            await trio.testing.wait_all_tasks_blocked()
            has_failed.set()
        await its.pin("c", "spine", keeps)
    assert decode_pins(disk[PINS]).keys() >= {"b", "c"}


async def test_a_store_that_takes_long_is_waited_for(autojump_clock: object) -> None:
    """However often all is looked at meanwhile: its queue holds what is to be written once."""
    its = service()
    is_back = trio.Event()
    disk: dict[str, bytes] = {}

    async def stands(owner: str, body: bytes | None) -> None:
        await is_back.wait()
        assert body is not None
        disk[owner] = body

    its.lead(1, {}, stands)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its.run)
        await trio.testing.wait_all_tasks_blocked()
        its.heard("spine0", TreeReport(term=0, revision=0, trees=()))
        async with trio.open_nursery() as people:
            for job in ("a", "b"):
                people.start_soon(its.pin, job, "spine", stands)
            await trio.sleep(MANY)
            is_back.set()
        assert decode_pins(disk[PINS]) == {"a": "spine", "b": "spine"}
        nursery.cancel_scope.cancel()


async def test_any_number_of_people_may_ask_for_roots_at_once(autojump_clock: object) -> None:
    """While the store is slow: they wait for it, and the controller does not end by that."""
    its = service()
    is_back = trio.Event()
    disk: dict[str, bytes] = {}

    async def stands(owner: str, body: bytes | None) -> None:
        await is_back.wait()
        assert body is not None
        disk[owner] = body

    its.lead(1, {}, stands)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its.run)
        await trio.testing.wait_all_tasks_blocked()
        its.heard("spine0", TreeReport(term=0, revision=0, trees=()))
        async with trio.open_nursery() as people:
            for number in range(2 * MANY):
                people.start_soon(its.pin, f"job{number % 3}", "spine", stands)
            await trio.sleep(10)
            is_back.set()
        assert decode_pins(disk[PINS]) == {f"job{number}": "spine" for number in range(3)}
        await its.pin("later", "spine", stands)
        assert decode_pins(disk[PINS])["later"] == "spine"
        nursery.cancel_scope.cancel()


async def test_a_switch_that_hears_of_ever_newer_terms_does_not_end_the_controller() -> None:
    """Each of them begins the coordinator anew, which writes its term down: the last one's is kept."""
    its = service()
    is_back = trio.Event()
    disk: dict[str, bytes] = {}

    async def stands(owner: str, body: bytes | None) -> None:
        await is_back.wait()
        assert body is not None
        disk[owner] = body

    def hears_of(term: int) -> None:
        its.heard("spine0", SlotAnswer("spine0", "b", 1, 1, Outcome.TOLD, (), term))
        its.heard("spine0", SlotsChanged("spine0", "b"))

    its.lead(1, {}, stands)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(its.run)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(1, 2 * MANY):
                hears_of(1000 * number)
            is_back.set()
            await trio.testing.wait_all_tasks_blocked()
            assert decode_record(disk[OWNER]).record.term == 1000 * (2 * MANY - 1) + 1
            hears_of(10**6)
            await trio.testing.wait_all_tasks_blocked()
            assert decode_record(disk[OWNER]).record.term == 10**6 + 1, "and it writes on"
            nursery.cancel_scope.cancel()


def leading(its: TreeService) -> None:
    async def keeps(owner: str, body: bytes | None) -> None:
        await trio.lowlevel.checkpoint()

    its.lead(1, {}, keeps)


async def wishes_told(report: TreeReport) -> TreeWishes:
    """What a controller of term 1 tells a root that reports that."""
    told: list[TreeWishes] = []
    heard = trio.Event()

    def send(agent: str, message: Message) -> None:
        if isinstance(message, TreeWishes) and agent == "spine0":
            told.append(message)
            heard.set()

    its = service(send)
    leading(its)
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(its.run)
            await trio.testing.wait_all_tasks_blocked()
            its.heard("spine0", report)
            await heard.wait()
            nursery.cancel_scope.cancel()
    return told[-1]


async def test_a_store_that_begins_anew_goes_on_where_the_root_has_heard_the_last() -> None:
    """Its leader has a term that the root knows: what it wishes is not older than what the root has taken."""
    found = await wishes_told(TreeReport(term=1, revision=40, trees=()))
    assert (found.term, found.revision) == (1, 41)
    found = await wishes_told(TreeReport(term=0, revision=40, trees=()))
    assert (found.term, found.revision) == (1, 1)


async def test_a_report_of_several_messages_counts_when_its_last_has_come() -> None:
    its = service()
    leading(its)
    pages = [
        tuple(TreeState(job=job, hosts=("h0", "h2"), epoch=0, phase="standing") for job in of)
        for of in ("ab", "c", "d")
    ]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its.run)
        await trio.testing.wait_all_tasks_blocked()
        for at, page in enumerate(pages):
            assert its.jobs == []
            its.heard("spine0", TreeReport(term=0, revision=0, trees=page, more=at < 2))
        assert its.jobs == ["a", "b", "c", "d"]
        its.heard("spine0", TreeReport(term=0, revision=0, trees=pages[0], more=True))
        its.departed("spine0")
        its.heard("spine0", TreeReport(term=0, revision=0, trees=pages[1]))
        assert its.jobs == ["c"], "what it had begun to say in an earlier session"
        many = TreeReport(term=0, revision=0, trees=pages[0] * 2000, more=True)
        for _ in range(4):
            its.heard("spine0", many)
        with pytest.raises(DecodeError, match="more than 16384 jobs"):
            its.heard("spine0", many)
        nursery.cancel_scope.cancel()


async def test_a_root_cannot_use_up_the_revisions() -> None:
    its = service()
    leading(its)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its.run)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(DecodeError, match="there is no revision"):
            its.heard("spine0", TreeReport(term=1, revision=(1 << 64) - 1, trees=()))
        nursery.cancel_scope.cancel()


async def test_a_switch_cannot_use_up_the_terms() -> None:
    """The coordinator begins after the newest term that any switch has heard of, and writes it down."""
    its = service()
    report = SlotAnswer(
        switch="leaf0",
        boot="b",
        term=1,
        number=1,
        outcome=Outcome.OLD_TERM,
        held=(),
        newest_term=(1 << 64) - 1,
    )
    with pytest.raises(DecodeError, match="there is no term"):
        its.heard("leaf0", report)
