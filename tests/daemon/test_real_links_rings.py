"""All-reduces between machines whose softnics are on real links, summed by the switch between them.

The control channel is a UNIX socket, which all namespaces of this machine share.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

import inaproto
from tests.clusters.machines import Bench, bench
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S, Daemon
from tests.daemon.test_real_links import checksum_errors, open_socket, ping
from tests.namespaces import Namespace, join, require_namespaces, require_xdp

Array = NDArray[Any]
ELEMENTS = 200_000


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def start_hosts(found: Bench, *options: str, adapter: str = "", port: str = "eth0") -> list[Daemon]:
    """Softnics with addresses of their own, which the kernels at the same links do not have."""
    hosts = []
    for i, where in enumerate(found.hosts):
        link = ("--dir", str(found.directory), "--port", f"{adapter or found.adapter}:{port}", *options)
        host = found.daemon(where, "host", "--name", f"h{i}", "--ip", f"10.5.0.{i + 1}", *link)
        assert host.ready_line.startswith("ready")
        hosts.append(host)
    found.wait(lambda status: len(status["hosts"]) == len(found.hosts), "all hosts known")
    return hosts


@asynccontextmanager
async def joined(found: Bench) -> AsyncIterator[list[inaproto.Communicator]]:
    """One rank at each host."""
    comms: list[inaproto.Communicator | None] = [None] * len(found.hosts)

    async def join_as(rank: int) -> None:
        comms[rank] = await inaproto.connect(
            "job", rank, size=len(comms), key="k", socket=found.directory / f"h{rank}.sock"
        )

    try:
        async with trio.open_nursery() as nursery:
            for rank in range(len(comms)):
                nursery.start_soon(join_as, rank)
        yield [comm for comm in comms if comm is not None]
    finally:
        with trio.move_on_after(DEADLINE_S, shield=True):
            async with trio.open_nursery() as nursery:
                for comm in comms:
                    if comm is not None:
                        nursery.start_soon(comm.aclose)


def inputs(size: int, seed: int) -> Sequence[Array]:
    return [draw(np.dtype(np.float32), (ELEMENTS,), (rank, seed)) for rank in range(size)]


@pytest.mark.parametrize(
    ("adapter", "weather"),
    [
        ("packet", ""),
        ("packet", "drop=0.01,duplicate=0.01,reorder=0.01,corrupt=0.001"),
        ("veth", "drop=0.01,duplicate=0.01,reorder=0.01,corrupt=0.001"),
        ("xdp", ""),
    ],
)
async def test_the_switch_sums_for_softnics_on_links(runtime_dir: Path, weather: str, adapter: str) -> None:
    if adapter == "xdp":
        require_xdp()
    with bench(runtime_dir, hosts=3, adapter=adapter) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch(*(("--weather", weather) if weather else ()))
        start_hosts(found)
        async with joined(found) as comms:
            for seed in range(3):
                await reduce_all(comms, inputs(3, seed))
            status = found.status()
            (job,) = status["switch"]["jobs"]
            assert job["path"] == "switch"
            assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
            assert status["switch"]["accelerator"]["counters"]["aggregated_in"] > 0
        # The kernels at the same links saw none of it as theirs, and answered none of it.
        assert [icmp_sent(where) for where in found.hosts] == [0, 0, 0]
        if not weather:
            ping(found)
            assert [checksum_errors(where) for where in found.hosts] == [0, 0, 0]


@pytest.mark.parametrize(("switch", "host"), [("xdp", "packet"), ("packet", "xdp")])
async def test_ports_of_two_kinds_meet_at_a_cable(runtime_dir: Path, switch: str, host: str) -> None:
    """Long segments of a packet port come to an AF_XDP one packet by packet."""
    require_xdp()
    with bench(runtime_dir, adapter=switch) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch()
        start_hosts(found, adapter=host)
        async with joined(found) as comms:
            await reduce_all(comms, inputs(2, 0))
            assert [record.path for comm in comms for record in comm.statistics().recent] == ["switch"] * 2


def test_a_kernel_refuses_roce_at_its_own_address(runtime_dir: Path) -> None:
    """Why a softnic must have addresses of its own, which start-up sees to."""
    with bench(runtime_dir) as found:
        found.start_switch()
        ping(found)  # they have each other's addresses
        before = icmp_sent(found.hosts[1])
        with open_socket(found.hosts[0], socket.SOCK_DGRAM) as sock:
            sock.connect((found.ips[1], 4791))
            sock.send(bytes(60))
            with pytest.raises(ConnectionRefusedError):
                sock.recv(1)
        assert icmp_sent(found.hosts[1]) == before + 1


async def test_a_host_waits_for_its_link(runtime_dir: Path) -> None:
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch()
        found.hosts[0].ip("link", "set", "eth0", "down")
        link = ("--dir", str(runtime_dir), "--port", "packet:eth0", "--name", "h0", "--ip", "10.5.0.1")
        found.daemon(found.hosts[0], "host", *link)

        def error() -> str:
            (host,) = found.status()["hosts"]
            return str(host["switch"]["error"])

        while "eth0 is down; ip link set eth0 up" not in (told := error()):
            assert not told or "not tried yet" in told, told
        assert told.startswith("cannot attach to packet:eth0")
        found.hosts[0].ip("link", "set", "eth0", "up")
        await until(found, lambda status: status["hosts"] == ["h0"], "the host is known")


def icmp_sent(where: Namespace) -> int:
    lines = where.run("cat", "/proc/net/snmp").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Icmp:"))
    return int(dict(zip(names, values, strict=True))["OutMsgs"])


def is_attached(name: str, value: bool) -> Callable[[dict[str, Any]], bool]:
    """Whether the switch has, or has not, a port there."""
    return lambda status: any(
        link["link"] == name and link["is_attached"] is value for link in status["links"]
    )


async def keep_reducing(comms: Sequence[inaproto.Communicator], stop: trio.Event) -> int:
    """All-reduces, each with the right result, until told; returns how many."""
    done = 0
    while not stop.is_set():
        await reduce_all(comms, inputs(len(comms), done))
        done += 1
    return done


async def through_an_outage(found: Bench, cause: Callable[[], None], mend: Callable[[], None]) -> None:
    """A job goes on, exactly, when a link of it fails in the middle of an all-reduce and comes back."""
    counts: list[int] = []
    stop = trio.Event()
    async with joined(found) as comms:

        async def work() -> None:
            counts.append(await keep_reducing(comms, stop))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await progress(comms, 2)
            cause()
            await until(found, is_attached("packet:sw1", False), "sw1 seen as away")
            away = [port["name"] for port in found.status()["switch"]["ports"]]
            assert away == ["packet:sw0"], "the other port goes on"
            mend()
            await until(found, is_attached("packet:sw1", True), "sw1 attached again")
            await progress(comms, 3)
            stop.set()
        assert counts[0] >= 5


async def progress(comms: Sequence[inaproto.Communicator], operations: int) -> None:
    """Until that many more have ended on every rank."""
    before = [comm.statistics().operations for comm in comms]
    while any(
        comm.statistics().operations < start + operations for comm, start in zip(comms, before, strict=True)
    ):
        await trio.lowlevel.checkpoint()


async def until(found: Bench, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
    return await trio.to_thread.run_sync(found.wait, holds, what)


PATIENT = ("--recover-ms", "3600000")
"""However long commands take on this machine while a link is away, the job is still there."""


@pytest.mark.parametrize("end", ["switch's end", "host's end"])
async def test_a_link_that_goes_down_and_up_again_in_a_job(runtime_dir: Path, end: str) -> None:
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch(*PATIENT)
        start_hosts(found, *PATIENT)
        where, name = (found.switch, "sw1") if end == "switch's end" else (found.hosts[1], "eth0")
        await through_an_outage(
            found,
            lambda: print(where.ip("link", "set", name, "down")),
            lambda: print(where.ip("link", "set", name, "up")),
        )


async def test_a_link_that_is_removed_and_made_again_in_a_job(runtime_dir: Path) -> None:
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch(*PATIENT)
        start_hosts(found, *PATIENT)
        await through_an_outage(
            found,
            lambda: print(found.switch.ip("link", "del", "sw1")),
            lambda: join(found.hosts[1], "eth0", found.switch, "sw1"),
        )


async def test_a_link_that_stays_away_ends_the_job_and_says_why(runtime_dir: Path) -> None:
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch("--recover-ms", "500")
        start_hosts(found, "--recover-ms", "1000")
        async with joined(found) as comms:
            await reduce_all(comms, inputs(2, 0))
            found.switch.ip("link", "set", "sw1", "down")
            works = [comm.all_reduce(array) for comm, array in zip(comms, inputs(2, 1), strict=True)]
            for work in works:
                with pytest.raises(inaproto.JobError) as told:
                    await work
                print(told.value)
        (link,) = [link for link in found.status()["switch"]["links"] if link["link"] == "packet:sw1"]
        assert link["error"] == "sw1 is down; ip link set sw1 up"
