"""Trees and what is wished of them over the lives of many jobs: what is kept, and what comes through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import combinations
from typing import Any, Final

import trio
import trio.testing

from inaproto.core.migration.service_events import ServiceConfig
from inaproto.core.migration.wanted_roots import ROOTS_MAX
from inaproto.daemon.shell import current_instant
from inaproto.daemon.switch.lent_slots import LentSlots
from inaproto.daemon.switch.wished_trees import WishedTrees
from inaproto.units import S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome
from inaproto.wire.messages.trees import TreeWishes
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.service.trees.service import OWNER, PINS, TreeService
from inaproto_controller.service.trees.store import decode_pins, decode_record
from inaproto_controller.service.turns.service import SharingService
from tests.controller.planned_cluster import racks
from tests.controller.tree_agents import ROOT, Rings

RESEND_S: Final = ServiceConfig(1, None).resend_ns / S
ABSENT_S: Final = ServiceConfig(1, None).absent_ns / S


class Fabric:
    """A leader's trees, with switches that lend slots and a root that follows wishes; a store in memory."""

    def __init__(self, *, racks_: int = 2, jobs: int = 1, records: dict[str, bytes] | None = None) -> None:
        self.rings = Rings()
        self.records = {} if records is None else records
        self.lost: Callable[[Message], bool] = lambda message: False
        """What does not come through to a switch."""
        trees = FabricTrees(racks(racks=racks_, jobs=jobs), share_max=2)
        self.service = TreeService(
            self._send, SharingService(lambda host, message: None, lease_s=30), trees, root=ROOT
        )
        self._to_switch, self._from_switch = trio.open_memory_channel[tuple[str, Message]](10_000)
        self._sides: dict[str, list[Any]] = {}
        for name in trees.slots:
            slots = LentSlots(name, "b", rings=partial(self._installed, name), clock=current_instant)
            self._sides[name] = [slots]
        wished = WishedTrees(self.rings.wish, lambda: list(self.rings.states.values()))
        self.rings.changed = wished.changed
        self._sides[ROOT].append(wished)

    def _installed(self, switch: str) -> list[str]:
        return list(self.rings.states)

    def _send(self, switch: str, message: Message) -> None:
        self._to_switch.send_nowait((switch, message))

    async def put(self, owner: str, body: bytes | None) -> None:
        await trio.lowlevel.checkpoint()
        assert body is not None
        self.records[owner] = body

    async def deliver(self) -> None:
        async for switch, message in self._from_switch:
            for side in self._sides[switch]:
                if isinstance(message, side.hears) and not self.lost(message):
                    side.heard(message)

    def connect(self, term: int) -> None:
        for name, sides in self._sides.items():
            slots, trees = self.service.slots(name), self.service.hears_trees_of(name)
            for side in sides:
                side.connected(
                    AgentWelcome(term=term, report_ms=1000, slots=slots, trees=trees),
                    partial(self.service.heard, name),
                )

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(3600):
            while not condition():  # noqa: ASYNC110  time passes by itself
                await trio.sleep(0.05)

    async def stands(self, job: str) -> None:
        """By a wish."""
        await self.until(
            lambda: self.rings.states[job].epoch > 0 and self.rings.states[job].phase == "standing"
        )


@asynccontextmanager
async def leading(fabric: Fabric, term: int = 1) -> AsyncIterator[Fabric]:
    fabric.service.lead(term, dict(fabric.records), fabric.put)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fabric.deliver)
        nursery.start_soon(fabric.service.run)
        await trio.testing.wait_all_tasks_blocked()
        fabric.connect(term)
        yield fabric
        nursery.cancel_scope.cancel()


async def test_trees_that_nobody_has_are_not_kept_and_their_numbers_are_not_given_again(
    autojump_clock: object,
) -> None:
    """Each record had all trees that any job ever had; and a switch may know a lease by an old number yet."""
    fabric = Fabric(racks_=5)
    newest = 0
    async with leading(fabric):
        pairs = list(combinations([f"h{2 * rack}" for rack in range(5)], 2))
        for number, hosts in enumerate(pairs):
            job = f"job{number}"
            fabric.rings.begins(job, hosts)
            await fabric.stands(job)
            stored = decode_record(fabric.records[OWNER])
            assert len(stored.trees) <= 3
            newest = max(newest, *stored.trees)
            fabric.rings.ends(job)
            await fabric.until(lambda: not fabric.service.status()["switches"]["leaf0"]["lent"])
        assert newest >= len(pairs) - 1
    later = Fabric(racks_=5, records=fabric.records)
    async with leading(later, term=2):
        later.rings.begins("last", pairs[0])
        await later.stands("last")
        assert min(decode_record(later.records[OWNER]).trees) > newest


async def test_where_a_job_was_wanted_is_forgotten_with_it(autojump_clock: object) -> None:
    """Another one of its name, a day later, goes where the plan has it; and not as long as it is there."""
    fabric = Fabric()
    async with leading(fabric):
        for job in ("a", "b"):
            fabric.rings.begins(job)
        await fabric.until(lambda: fabric.service.jobs == ["a", "b"])
        for job in ("a", "b"):
            await fabric.service.pin(job, "spine1", fabric.put)
        await trio.sleep(10 * ABSENT_S)
        assert decode_pins(fabric.records[PINS]) == {"a": "spine1", "b": "spine1"}
        fabric.rings.ends("a")
        await trio.sleep(ABSENT_S / 2)
        assert "a" in decode_pins(fabric.records[PINS]), "its generation ended, and it may come back"
        await trio.sleep(ABSENT_S)
        assert decode_pins(fabric.records[PINS]) == {"b": "spine1"}
    quiet = Fabric(records=fabric.records)
    quiet.service.lead(2, quiet.records, quiet.put)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(quiet.service.run)
        await trio.sleep(10 * ABSENT_S)
        nursery.cancel_scope.cancel()
    assert decode_pins(quiet.records[PINS]) == {"b": "spine1"}, "the root has said nothing"


async def test_one_root_too_many_takes_the_place_of_the_oldest(autojump_clock: object) -> None:
    """Also where they were read from the store meanwhile."""
    fabric = Fabric()
    async with leading(fabric):
        await fabric.service.pin("z", "spine1", fabric.put)
        await fabric.service.pin("b", "spine1", fabric.put)
    async with leading(Fabric(records=fabric.records), term=2) as later:
        for number in range(ROOTS_MAX - 1):
            await later.service.pin(f"job{number}", "spine1", later.put)
        pins = decode_pins(later.records[PINS])
        assert len(pins) == ROOTS_MAX
        assert "z" not in pins
        assert "b" in pins


async def test_wishes_that_were_lost_are_sent_again(autojump_clock: object) -> None:
    fabric = Fabric()
    fabric.lost = lambda message: isinstance(message, TreeWishes)
    async with leading(fabric):
        fabric.rings.begins("a")
        await trio.sleep(3 * RESEND_S)
        assert fabric.rings.states["a"].epoch == 0
        fabric.lost = lambda message: False
        with trio.fail_after(2 * RESEND_S):
            await fabric.stands("a")
