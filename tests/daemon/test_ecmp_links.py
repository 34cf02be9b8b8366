"""Hosts behind routers that choose among paths of equal cost: a ring goes on, exactly, when its path changes.

The routers are kernels, each with two links to the switch and a next hop by each. Which of them a connection
goes by, its addresses and UDP ports say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from tests.clusters.machines import Bench, bench
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.daemon.test_real_fabrics import as_from_hardware, start_host
from tests.daemon.test_real_links_rings import PATIENT, is_attached, joined, keep_reducing, progress, until
from tests.namespaces import Namespace, join, namespaces, require_namespaces

HOSTS = 2
MACS = ["02:00:0a:05:00:01", "02:00:0a:05:00:02"]
"""Of the softnics at 10.5.0.1 and 10.5.0.2."""


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def by_both(number: int) -> Sequence[str]:
    """Next hops of router ``number``."""
    other = 2 - number
    return (
        "nexthop",
        "via",
        f"10.9.0.{other}",
        "dev",
        "eth0",
        "nexthop",
        "via",
        f"10.9.1.{other}",
        "dev",
        "eth1",
    )


def by_one(number: int, link: int) -> Sequence[str]:
    return ("via", f"10.9.{link}.{2 - number}", "dev", f"eth{link}")


def route(found: Bench, number: int, hops: Sequence[str]) -> None:
    """How router ``number`` reaches the other one's host from now on."""
    found.hosts[number].ip("route", "replace", f"10.5.0.{2 - number}/32", *hops)


@contextmanager
def behind_routers(found: Bench) -> Iterator[Sequence[Namespace]]:
    """A host behind each of the machines at the switch, which route."""
    with namespaces("far 0", "far 1") as hosts:
        for number, (router, host) in enumerate(zip(found.hosts, hosts, strict=True)):
            join(router, "eth1", found.switch, f"sx{number}")
            router.ip("addr", "add", f"10.9.1.{number + 1}/24", "dev", "eth1")
            join(host, "eth0", router, "far")
            as_from_hardware(host, "eth0")
            # A softnic knows no gateway: it sends to its peer's own address, which the router has here.
            router.ip("link", "set", "far", "address", MACS[1 - number])
            router.ip("addr", "add", f"10.5.0.{254 - number}/32", "dev", "far")
            router.ip("route", "add", f"10.5.0.{number + 1}/32", "dev", "far")
            for setting, value in (
                ("ip_forward", "1"),
                ("fib_multipath_hash_policy", "1"),
                ("conf/all/arp_ignore", "1"),
                ("conf/all/arp_announce", "2"),
                ("conf/all/rp_filter", "0"),
            ):
                router.write(f"ipv4/{setting}", value)
            route(found, number, by_both(number))
        found.ports = ["sw0", "sx0", "sw1", "sx1"]
        for port in found.ports:
            as_from_hardware(found.switch, port)
        yield hosts


def frames_in(found: Bench) -> dict[str, int]:
    """What has come at each port, by its interface."""
    return {port["name"].split(":")[1]: port["frames_in"] for port in found.status()["switch"]["ports"]}


def start(found: Bench, hosts: Sequence[Namespace]) -> None:
    found.start_switch(*PATIENT)
    for number, where in enumerate(hosts):
        start_host(found, number, where, "eth0", *PATIENT)
    found.wait(lambda status: len(status["hosts"]) == len(hosts), "all hosts known")


def summed_by_the_switch(found: Bench, comms: Sequence[inaproto.Communicator]) -> None:
    """All of it, and its ring has never ended."""
    assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
    rendezvous: dict[str, Any] = found.status()["switch"]["rendezvous"]
    assert (rendezvous["rings_made"], rendezvous["recoveries"], rendezvous["fallbacks"]) == (1, 0, 0)


@pytest.mark.parametrize("elements", [100, 10_000, 200_000])
async def test_connections_are_summed_by_whatever_path_the_routers_choose(
    runtime_dir: Path, elements: int
) -> None:
    """Messages of a packet and of many: where another path is taken, one alone may be on its way."""
    with bench(runtime_dir) as found, behind_routers(found) as hosts, trio.fail_after(4 * DEADLINE_S):
        start(found, hosts)
        async with joined(found) as comms:

            async def reduce(seed: int) -> None:
                arrays = [draw(np.dtype(np.float32), (elements,), (rank, seed)) for rank in range(2)]
                await reduce_all(comms, arrays)

            await reduce(0)
            for number in (0, 1, 0, 1):
                for link in (0, 1):
                    port = f"s{'wx'[link]}{number}"
                    route(found, number, by_one(number, link))
                    before = frames_in(found)[port]
                    await reduce(1)
                    assert frames_in(found)[port] - before >= elements * 4 // 1024, port
            summed_by_the_switch(found, comms)


async def test_a_job_goes_on_by_the_other_path(runtime_dir: Path) -> None:
    """A router's link goes down, and comes back; the other router hears of it, and takes the other path."""
    counts: list[int] = []
    stop = trio.Event()
    with bench(runtime_dir) as found, behind_routers(found) as hosts, trio.fail_after(6 * DEADLINE_S):
        start(found, hosts)
        async with joined(found) as comms, trio.open_nursery() as nursery:

            async def work() -> None:
                counts.append(await keep_reducing(comms, stop))

            nursery.start_soon(work)
            await progress(comms, 2)
            for link in (0, 1):
                name = f"packet:s{'wx'[link]}0"
                found.hosts[0].ip("link", "set", f"eth{link}", "down")
                route(found, 1, by_one(1, 1 - link))
                await until(found, is_attached(name, False), f"{name} seen as away")
                await progress(comms, 2)
                found.hosts[0].ip("link", "set", f"eth{link}", "up")
                await until(found, is_attached(name, True), f"{name} attached again")
                for number in range(2):
                    route(found, number, by_both(number))
                await progress(comms, 2)
            stop.set()
        assert counts[0] >= 10
        summed_by_the_switch(found, comms)
