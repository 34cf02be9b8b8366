"""A host that is heard of, and does not answer or go on, keeps a pool from others for a while only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from inaproto.core.sharing.events import SharingConfig
from inaproto.core.sharing.group import GroupConfig
from inaproto.units import MS, Epoch, S
from inaproto.wire.messages.sharing import (
    Commit,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Refusal,
)
from tests.controller.test_sharing_service import Service, granted, leading, place

STALL_S = GroupConfig(SharingConfig("")).stall_ns / S
LEASE_S = 30.0
"""Of the services here."""


async def turn(here: Service, host: str, *, within: float) -> None:
    """The host's job gets a turn; all that it is asked meanwhile it answers."""
    answered = 0
    with trio.fail_after(within):
        while not any(one.decision.granted is not None for one in here.of(host, Commit)):
            asked = here.of(host, Prepare)
            for prepare in asked[answered:]:
                here.vote(host, prepare)
            answered = len(asked)
            here.news = trio.Event()
            with trio.move_on_after(0.1):
                await here.news.wait()
    commit = here.of(host, Commit)[-1]
    here.service.heard(host, Done(seat=commit.seat, version=commit.version))


async def test_a_host_that_never_says_that_it_is_done_keeps_the_pool_for_its_lease(
    autojump_clock: object,
) -> None:
    """It cannot read what was decided, and connects again each time."""
    async with leading() as here:
        here.report("h0", "train")
        await here.hears("h0", Prepare)
        here.vote("h0", here.of("h0", Prepare)[-1])
        await here.hears("h0", Commit)
        here.report("h1", "next")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_reconnects, here)
            await turn(here, "h1", within=LEASE_S + 1)
            nursery.cancel_scope.cancel()
        (pool,) = here.service.status()
        assert pool["counters"]["seat given up: it owed an answer"] == 1


async def _reconnects(here: Service) -> None:
    while True:
        await trio.sleep(1.0)
        here.service.departed("h0")
        here.service.arrived("h0")
        here.report("h0", "train")


@pytest.mark.parametrize("refuses", [False, True])
async def test_a_host_that_never_votes_keeps_the_pool_for_a_few_rounds(
    autojump_clock: object, refuses: bool
) -> None:
    async with leading(Service(vote_ns=50 * MS)) as here:
        here.report("h0", "train")
        await here.hears("h0", Prepare)
        here.report("h1", "zzz")
        async with trio.open_nursery() as nursery:
            if refuses:
                nursery.start_soon(_refuses, here)
            await turn(here, "h1", within=LEASE_S)
            nursery.cancel_scope.cancel()
        assert len(here.of("h0", Prepare)) <= 10


async def _refuses(here: Service) -> None:
    refused = 0
    while True:
        asked = here.of("h0", Prepare)
        for prepare in asked[refused:]:
            here.service.heard("h0", Refusal(seat=prepare.seat, version=prepare.version))
        refused = len(asked)
        await trio.sleep(0.01)


async def test_a_host_that_never_says_what_it_has_is_waited_for_for_the_lease_after_a_restart(
    autojump_clock: object,
) -> None:
    first = Service()
    async with leading(first) as here:
        here.report("h0", "train")
        await granted(here, "h0")
    again = Service()
    again.records = first.records
    async with leading(again) as here:
        here.report("h1", "next")
        await turn(here, "h1", within=LEASE_S + 1)


def stopped(here: Service) -> None:
    """Two of three hosts are in an all-reduce that the third does not begin."""
    for host in ("h0", "h1"):
        place(here, host, "train", 3, is_running=True)
    place(here, "h2", "train", 3)


async def in_turn(here: Service, *jobs: str) -> int:
    for host in ("h0", "h1", "h2"):
        here.report(host, *jobs, hosts=3)
    epochs = {await _voted(here, host) for host in ("h0", "h1", "h2")}
    for host in ("h0", "h1", "h2"):
        commit = await _committed(here, host)
        here.service.heard(host, Done(seat=commit.seat, version=commit.version))
        assert commit.decision.granted is not None
        epochs.add(commit.decision.granted.epoch)
    return int(max(epochs))


async def _voted(here: Service, host: str) -> int:
    await here.hears(host, Prepare)
    here.vote(host, here.of(host, Prepare)[-1])
    return 0


async def _committed(here: Service, host: str) -> Commit:
    await here.hears(host, Commit)
    found = here.of(host, Commit)[-1]
    assert isinstance(found, Commit)
    return found


async def until(here: Service, is_so: Callable[[], bool], within: float) -> float:
    began = trio.current_time()
    with trio.fail_after(within):
        while not is_so():
            here.news = trio.Event()
            with trio.move_on_after(0.1):
                await here.news.wait()
    return trio.current_time() - began


async def test_a_job_that_was_stopped_inside_an_all_reduce_does_not_keep_the_pool(
    autojump_clock: object,
) -> None:
    """A person stops one of its processes: the others wait in their all-reduce, and never drain."""
    async with leading() as here:
        here.service.arrived("h3")
        epoch = await in_turn(here, "train")
        here.report("h3", "next")
        stopped(here)

        def is_ended() -> bool:
            return any(one.epoch == epoch and one.until == 0 for one in here.of("h0", EndTurn))

        assert await until(here, is_ended, STALL_S + 1) >= STALL_S - 1
        (end,) = [one for one in here.of("h2", EndTurn) if one.until == 0][:1]
        here.service.heard("h2", Drained(seat=end.seat, epoch=Epoch(epoch)))
        await turn(here, "h3", within=LEASE_S + 1)
        asked = len(here.of("h0", Prepare))
        await trio.sleep(100)
        assert len(here.of("h0", Prepare)) == asked, "it would not use a turn"

        def is_another_ended_for_it() -> bool:
            return any(one.until == 0 for one in here.of("h3", EndTurn))

        assert not is_another_ended_for_it()
        place(here, "h3", "next", 900, is_running=True)
        for host in ("h0", "h1", "h2"):
            place(here, host, "train", 4)
        await until(here, is_another_ended_for_it, 10)


async def test_a_seat_of_which_nothing_was_ever_heard_does_not_keep_the_pool(autojump_clock: object) -> None:
    async with leading() as here:
        here.report("h0", "train")
        epoch = await granted(here, "h0")
        here.report("h1", "next")
        await turn(here, "h1", within=STALL_S + LEASE_S + 1)
        assert any(one.epoch == epoch and one.until == 0 for one in here.of("h0", EndTurn))


async def test_a_seat_that_is_past_its_turn_and_never_says_so_does_not_keep_the_pool(
    autojump_clock: object,
) -> None:
    """It goes on by the ring of the hosts, so its job does not stand."""
    async with leading() as here:
        here.report("h0", "train", "zeta")
        epoch = await granted(here, "h0")
        here.report("h0", "train")
        here.report("h1", "next")

        async def goes_on() -> None:
            for operation in range(1, 1000):
                place(here, "h0", "train", operation, is_running=True)
                await trio.sleep(0.5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(goes_on)
            await turn(here, "h1", within=10 + LEASE_S)
            nursery.cancel_scope.cancel()
        (commit,) = {one.version: one for one in here.of("h0", Commit)}.values()
        assert commit.decision.granted is not None
        assert (commit.decision.granted.epoch, commit.decision.granted.until) == (epoch, 8)


async def test_a_move_of_a_tree_waits_for_a_job_that_was_stopped_no_longer(autojump_clock: object) -> None:
    """It is held to drain, and the end that was agreed is one that it never comes to."""
    async with leading() as here:
        epoch = await in_turn(here, "train")
        stopped(here)
        here.service.hold(frozenset({"train"}))

        def is_ended() -> bool:
            return any(one.epoch == epoch and one.until == 0 for one in here.of("h0", EndTurn))

        await until(here, is_ended, 2 * STALL_S)
