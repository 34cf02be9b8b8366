"""Host daemons of a cluster in memory that end under their processes, and are followed by others."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio

from inaproto.core.host import events
from inaproto.core.host.operations import TakeResult
from inaproto.daemon.host.ring import HostRing
from tests.clusters.memory import HostLife, MemoryCluster

WAITS_S = (0.0, 0.001, 0.05, 0.5, 2.0)
"""How long a host is without daemon."""
SOON_S = 0.5


def rings_of(life: HostLife) -> list[HostRing]:
    assert life.daemon is not None
    fabric = life.daemon._fabric
    return [*life.daemon._away, *([] if fabric is None else fabric._rings)]


def _silence(life: HostLife) -> None:
    """As SIGKILL: what its tasks still do while they are cancelled changes no tensor, and no journal."""
    life.node.crash()
    for ring in rings_of(life):
        ring._stepped = lambda event: []  # type: ignore[method-assign]
        ring._perform_all = lambda actions: None  # type: ignore[method-assign]
        ring.submit = lambda rank, request: None  # type: ignore[method-assign]
        ring.filled = lambda rank, told: None  # type: ignore[method-assign]
        ring.holdings.write_end = lambda error=None: None  # type: ignore[method-assign]


async def kill(life: HostLife) -> None:
    """Between any two events."""
    _silence(life)
    await life.crash()


async def kill_in_the_middle(life: HostLife, orders: int) -> None:
    """After so many more orders of one of its rings: in the middle of the next, if that is to copy a result.

    If there are no more for a while it is killed at once.
    """
    died, left = trio.Event(), orders

    def perform(ring: HostRing, actions: Sequence[events.HostAction]) -> None:
        nonlocal left
        if died.is_set():
            return
        if left >= len(actions):
            left -= len(actions)
            HostRing._perform_all(ring, list(actions))
            return
        HostRing._perform_all(ring, list(actions[:left]))
        if isinstance(actions[left], TakeResult):
            _tear(ring, actions[left])
        _silence(life)
        died.set()

    for ring in rings_of(life):
        ring._perform_all = partial(perform, ring)  # type: ignore[method-assign]
    with trio.move_on_after(SOON_S):
        await died.wait()
    await kill(life)


def _tear(ring: HostRing, order: Any) -> None:
    """Half of the result is in each tensor, and a byte that is of neither it nor the input."""
    holdings = ring.holdings
    orders, tensors, journal = holdings._acting, holdings.tensors, holdings.journal
    if orders is None or tensors is None or journal is None:
        return
    slot, op_index, offset, nbytes = order
    operation, link = tensors.operation(op_index), orders._link
    journal.taking(operation, offset, nbytes, link.result_at(slot), orders._path)
    for view in tensors.views(op_index, offset, nbytes):
        half = nbytes // 2
        view[:half] = link.result(slot, nbytes)[:half]
        view[half : half + 1] = bytes([view[half] ^ 0x5A]) if nbytes else b""


async def killed(cluster: MemoryCluster, draws: random.Random) -> None:
    number = draws.choice(list(cluster.hosts))
    await kill(cluster.hosts[number])
    await trio.sleep(draws.choice(WAITS_S))
    await cluster.start_host(number)


async def killed_in_the_middle(cluster: MemoryCluster, draws: random.Random) -> None:
    number = draws.choice(list(cluster.hosts))
    await kill_in_the_middle(cluster.hosts[number], draws.randrange(60))
    await trio.sleep(draws.choice(WAITS_S))
    await cluster.start_host(number)


async def stopped(cluster: MemoryCluster, draws: random.Random) -> None:
    number = draws.choice(list(cluster.hosts))
    await cluster.hosts[number].stop()
    await trio.sleep(draws.choice(WAITS_S))
    await cluster.start_host(number)


async def killed_again(cluster: MemoryCluster, draws: random.Random) -> None:
    """The successor dies as well: before its ranks are back, before it is announced, or in the next ring."""
    number = draws.choice(list(cluster.hosts))
    for _ in range(draws.randint(2, 4)):
        await kill_in_the_middle(cluster.hosts[number], draws.randrange(20))
        await cluster.start_host(number)
        await trio.sleep(draws.choice((0.0, 0.0005, 0.002, 0.005, 0.02)))


async def killed_with_the_switch(cluster: MemoryCluster, draws: random.Random) -> None:
    number = draws.choice(list(cluster.hosts))
    assert cluster.switch is not None
    calls: list[Callable[[], Awaitable[None]]] = [cluster.switch.crash, partial(kill, cluster.hosts[number])]
    first, second = draws.sample(calls, 2)
    await first()
    await trio.sleep(draws.choice((0.0, 0.001, 0.2)))
    await second()
    await trio.sleep(draws.choice((0.0, 0.5)))
    if draws.random() < 0.5:
        await cluster.start_host(number)
        await trio.sleep(draws.choice((0.0, 0.1, 1.0)))
        await cluster.start_switch()
    else:
        await cluster.start_switch()
        await trio.sleep(draws.choice((0.0, 0.1, 1.0)))
        await cluster.start_host(number)


async def all_killed(cluster: MemoryCluster, draws: random.Random) -> None:
    for number in cluster.hosts:
        await kill(cluster.hosts[number])
        await trio.sleep(draws.choice((0.0, 0.001)))
    for number in cluster.hosts:
        await cluster.start_host(number)


DEATHS = {
    "killed": killed,
    "killed in the middle": killed_in_the_middle,
    "stopped": stopped,
    "killed again": killed_again,
    "killed with the switch": killed_with_the_switch,
    "all killed": all_killed,
}
