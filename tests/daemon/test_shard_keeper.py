"""Processes of shards that do not come up, and counters of those that have died."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from inaproto.core.rendezvous.fabric.events import Installed
from inaproto.core.switch.accelerator import RingFault, RingRefused
from inaproto.daemon.switch.shard_keeper import ShardKeeper, added
from inaproto.wire.messages.switch import RingRemove


class Told:
    """A control plane that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def shard_arrived(self, shard: str) -> None:
        self.heard.append(shard)

    def shard_lost(self, shard: str, reason: str) -> None:
        self.heard.append((shard, reason))

    def switch_said(self, switch: str, said: RingFault | RingRefused | Installed) -> None:
        self.heard.append(said)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["/bin/false"], "it ended with exit status 1"),
        (["/bin/sh", "-c", "kill -9 $$"], "killed by signal 9 (SIGKILL)"),
        (["/nowhere/at/all"], "cannot be started: No such file or directory"),
    ],
)
async def test_a_shard_that_cannot_come_up_is_tried_again_and_keeps_nobody(
    command: Sequence[str], error: str
) -> None:
    keeper, plane = ShardKeeper(2, lambda number, fd: command), Told()
    keeper.plane = plane
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        assert {record["error"] for record in keeper.status()} == {error}
        started = [record["starts"] for record in keeper.status()]
        while command[0] != "/nowhere/at/all" and [one["starts"] for one in keeper.status()] == started:
            await trio.lowlevel.checkpoint()
        keeper.tell("shard 1", RingRemove(ring_id=1))  # nobody hears it
        nursery.cancel_scope.cancel()
    assert plane.heard == []
    assert [record["is_up"] for record in keeper.status()] == [False, False]
    assert (keeper.has("shard 2"), keeper.has("shard 3"), keeper.has("")) == (True, False, False)


async def test_a_switch_without_shards_has_the_status_that_it_has() -> None:
    keeper = ShardKeeper(0, None)
    await keeper.run()
    found = {"totals": {"frames_in": 1}, "accelerator": {"rings": {}}, "blames": {}, "name": "s"}
    assert keeper.merged(found) == found


def test_counters_are_added_up_and_rings_are_put_together() -> None:
    own = {"totals": {"frames_in": 1}, "accelerator": {"rings": {"7": {"ranks": 2}}, "memory_bytes": 5}}
    other = {"totals": {"frames_in": 2, "frames_out": 3}, "accelerator": {"rings": {"8": {"ranks": 3}}}}
    assert added(own, other) == {
        "totals": {"frames_in": 3, "frames_out": 3},
        "accelerator": {"rings": {"7": {"ranks": 2}, "8": {"ranks": 3}}, "memory_bytes": 5},
    }
    assert added(
        {"failed": False, "name": "a", "map": 1}, {"failed": True, "name": "b", "map": {"x": 1}}
    ) == {
        "failed": False,
        "name": "a",
        "map": {"x": 1},
    }
