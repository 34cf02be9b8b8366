"""Hosts and switch with two links between them: a ring goes on, exactly, when one goes down and comes back.

This kernel may have no bonds, so both ends are ports that join two interfaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.clusters.machines import Bench, bench
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.daemon.test_real_links_rings import joined, keep_reducing, progress, start_hosts
from tests.namespaces import join, require_namespaces

JOINED = "eth0+eth1"


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def second_links(found: Bench) -> None:
    for i, host in enumerate(found.hosts):
        join(host, "eth1", found.switch, f"sx{i}")
    found.ports = [f"sw{i}+sx{i}" for i in range(len(found.hosts))]


def way(found: Bench, port: str) -> str:
    return next(str(its["way"]) for its in found.status()["switch"]["ports"] if its["name"] == port)


async def seen(found: Bench, port: str, words: str) -> None:
    with trio.fail_after(DEADLINE_S):
        while words not in await trio.to_thread.run_sync(way, found, port):
            await trio.lowlevel.checkpoint()


async def test_a_ring_goes_on_by_the_other_link(runtime_dir: Path) -> None:
    counts: list[int] = []
    stop = trio.Event()
    with bench(runtime_dir) as found, trio.fail_after(4 * DEADLINE_S):
        second_links(found)
        found.start_switch()
        start_hosts(found, port=JOINED)
        async with joined(found) as comms, trio.open_nursery() as nursery:

            async def work() -> None:
                counts.append(await keep_reducing(comms, stop))

            nursery.start_soon(work)
            await progress(comms, 2)
            for interface in ("sw1", "sx1"):
                found.switch.ip("link", "set", interface, "down")
                await seen(found, "packet:sw1+sx1", "1 of 2 links")
                await progress(comms, 2)
                found.switch.ip("link", "set", interface, "up")
                await seen(found, "packet:sw1+sx1", "2 of 2 links")
                await progress(comms, 2)
            stop.set()
        assert counts[0] >= 10
        status: dict[str, Any] = found.status()["switch"]
        assert [link["times_up"] for link in status["links"]] == [1, 1], "the ports were there all the time"
        assert status["rendezvous"]["recoveries"] == 0
