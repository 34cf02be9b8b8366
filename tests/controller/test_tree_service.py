"""What moves trees, without switches: what it hears of them, and what people ask of it."""

from __future__ import annotations

from typing import Final

import pytest
import trio

from inaproto.errors import DecodeError
from inaproto.wire.slot_messages import SlotReport
from inaproto_controller.controller import NotLeading
from inaproto_controller.fabric_trees import FabricTrees
from inaproto_controller.sharing_service import SharingService
from inaproto_controller.tree_service import PINS, TreeService
from inaproto_controller.tree_store import decode_pins
from tests.controller.planned_cluster import racks

DEADLINE_S: Final = 30


def service() -> TreeService:
    sharing = SharingService(lambda host, message: None, lease_s=30)
    return TreeService(lambda agent, message: None, sharing, FabricTrees(racks(), share_max=2))


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


async def test_a_switch_cannot_use_up_the_terms() -> None:
    """The coordinator begins after the newest term that any switch has heard of, and writes it down."""
    its = service()
    report = SlotReport(
        switch="leaf0", boot="b", term=1, number=1, outcome="old_term", held=(), newest_term=(1 << 64) - 1
    )
    with pytest.raises(DecodeError, match="there is no term"):
        its.heard("leaf0", report)
