"""Softnics in a VLAN and behind a router, each with a machine of its own: the switch between them sums all.

Between host and switch is a machine that tags what passes, as the access port of a fabric does, or routes it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import trio

from inaproto.wire import path_probe
from tests.clusters.machines import Bench, bench, received_frame
from tests.daemon.test_allreduce_end_to_end import reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.daemon.test_real_links_rings import inputs, joined
from tests.namespaces import Namespace, join, namespaces, require_namespaces, require_xdp
from tests.unit.test_accelerator_fabrics import by_router

TAG = bytes.fromhex("81006064")
"""VLAN 100, priority 3."""
LOOK_S = 0.1


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


def as_from_hardware(where: Namespace, interface: str) -> None:
    """What leaves here comes packet by packet: a card would have cut long segments before others saw them."""
    where.ip("link", "set", interface, "gso_max_segs", "1")


def start_host(
    found: Bench, number: int, where: Namespace, interface: str, *more: str, network: str = "10.5.0."
) -> None:
    link = ("--dir", str(found.directory), "--port", f"packet:{interface}")
    host = found.daemon(where, "host", "--name", f"h{number}", "--ip", f"{network}{number + 1}", *link, *more)
    assert host.ready_line.startswith("ready")


async def sums_by_the_switch(found: Bench, hosts: int) -> dict[str, Any]:
    """Three all-reduces go that way, exactly; returns what the accelerator counted."""
    found.wait(lambda status: len(status["hosts"]) == hosts, "all hosts known")
    async with joined(found) as comms:
        for seed in range(3):
            await reduce_all(comms, inputs(hosts, seed))
        assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
        counters: dict[str, Any] = found.status()["switch"]["accelerator"]["counters"]
        assert counters["aggregated_in"] > 0
        return counters


def relay(source: socket.socket, target: socket.socket, change: Callable[[bytes], bytes], end: Event) -> None:
    while not end.is_set():
        try:
            frame = change(received_frame(source))
        except TimeoutError:
            continue
        if frame:
            target.send(frame)


Change = Callable[[bytes], bytes]
"""What becomes of a frame on its way; nothing: it does not pass."""


@contextmanager
def between(found: Bench, hosts: Sequence[Namespace], out: Change, back: Change) -> Iterator[None]:
    """``out`` is done to what ``hosts`` send towards the switch, ``back`` to what comes from there."""
    end = Event()
    with ExitStack() as stack:
        for host, middle in zip(hosts, found.hosts, strict=True):
            join(host, "eth0", middle, "far")
            as_from_hardware(host, "eth0")
            near, far = found.raw(middle, "eth0"), found.raw(middle, "far")
            for source, target, change in ((far, near, out), (near, far, back)):
                source.settimeout(LOOK_S)
                thread = Thread(target=relay, args=(source, target, change, end))
                thread.start()
                stack.callback(thread.join)
        stack.callback(end.set)
        yield


def is_roce(frame: bytes) -> bool:
    return frame[12:14] == b"\x08\0" and frame[36:38] == b"\x12\xb7"


@pytest.mark.parametrize("adapter", ["packet", "xdp"])
async def test_hosts_of_a_vlan_are_summed(runtime_dir: Path, adapter: str) -> None:
    if adapter == "xdp":
        require_xdp()
    seen: set[bytes] = set()

    def tag(frame: bytes) -> bytes:
        return frame[:12] + TAG + frame[12:]

    def untag(frame: bytes) -> bytes:
        """Of another VLAN, or of none, nothing passes an access port."""
        bare = frame[:12] + frame[16:]
        if is_roce(bare):
            seen.add(frame[12:16])
        return bare if frame[12:16] == TAG else b""

    with (
        bench(runtime_dir, adapter=adapter) as found,
        namespaces("far 0", "far 1") as hosts,
        trio.fail_after(2 * DEADLINE_S),
    ):
        for port in found.ports:
            as_from_hardware(found.switch, port)
        found.start_switch()
        with between(found, hosts, tag, untag):
            for number, where in enumerate(hosts):
                start_host(found, number, where, "eth0")
            await sums_by_the_switch(found, 2)
        assert seen == {TAG}


@pytest.mark.parametrize(("adapter", "network"), [("packet", "fd00::"), ("xdp", "10.5.0.")])
async def test_softnics_put_what_they_send_into_a_vlan(runtime_dir: Path, adapter: str, network: str) -> None:
    if adapter == "xdp":
        require_xdp()
    seen: set[bytes] = set()

    def look(frame: bytes) -> bytes:
        if frame[12:14] == TAG[:2]:
            seen.add(frame[12:18])
        return frame

    vlan = ("--vlan", "100", "--service-level", "3")
    with (
        bench(runtime_dir, adapter=adapter) as found,
        namespaces("far 0", "far 1") as hosts,
        trio.fail_after(2 * DEADLINE_S),
    ):
        for port in found.ports:
            as_from_hardware(found.switch, port)
        found.start_switch()
        with between(found, hosts, look, look):
            for number, where in enumerate(hosts):
                start_host(found, number, where, "eth0", *vlan, network=network)
            await sums_by_the_switch(found, 2)
    probe = TAG + path_probe.ETHERTYPE.to_bytes(2, "big")  # now and then, of the path's MTU
    assert seen - {probe} == {TAG + (b"\x08\x00" if network == "10.5.0." else b"\x86\xdd")}


async def test_hosts_behind_routers_are_summed(runtime_dir: Path) -> None:
    """What comes from them has the routers' address, and less time to live."""
    router = bytes.fromhex("020000000099")
    hops: set[int] = set()

    def routed(frame: bytes) -> bytes:
        return by_router(frame, router, frame[:6]) if is_roce(frame) else frame

    def back(frame: bytes) -> bytes:
        if is_roce(frame):
            hops.add(frame[22])
        return frame

    with (
        bench(runtime_dir) as found,
        namespaces("far 0", "far 1") as hosts,
        trio.fail_after(2 * DEADLINE_S),
    ):
        for port in found.ports:
            as_from_hardware(found.switch, port)
        found.start_switch()
        with between(found, hosts, routed, back):
            for number, where in enumerate(hosts):
                start_host(found, number, where, "eth0")
            counters = await sums_by_the_switch(found, 2)
        assert counters["strange_addresses"] > 0, "the first message's"
        assert "not from where its rank is" not in counters["dropped"]
        assert hops == {63}, "results have what their packets had"
