"""What keeps a switch's shards: one that cannot be started, or says nothing, ends nothing else."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

import pytest
import trio

from inaproto.core.rendezvous.fabric.shards import shard_name
from inaproto.daemon.switch.shard_keeper import START_S, ShardKeeper


def silent(number: int, descriptor: int) -> Sequence[str]:
    return ("/bin/sh", "-c", "exec sleep 1000")


async def test_a_shard_that_says_nothing_is_ended_and_the_switch_begins(
    autojump_clock: trio.abc.Clock,
) -> None:
    """It hangs before its first word: the switch waited for that for ever."""
    keeper = ShardKeeper(1, silent)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        (said,) = keeper.status()
        assert said["error"].startswith(f"it has said nothing for {START_S:g} s")
        nursery.cancel_scope.cancel()


async def test_a_shard_for_which_no_descriptor_is_left_is_tried_again(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the switch."""

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", none_left)
    keeper = ShardKeeper(1, silent)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.run)
        (said,) = keeper.status()
        assert said["error"] == "cannot be started: Too many open files"
        assert not keeper.has("other")
        assert keeper.has(shard_name(1))
        nursery.cancel_scope.cancel()
