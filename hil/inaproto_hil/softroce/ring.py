"""A host daemon on each of some NICs, a rank at each, and all-reduces that are checked.

In the guest the NICs are its RoCE devices; outside, in the bench itself, they are our own, for rings of both.
One process holds all daemons of a side: starting Python costs seconds under emulation, and the daemons are
the same. In the guest it is given its plan as JSON and prints one line of JSON for each row, then the
counters of the devices.
"""

from __future__ import annotations

import ipaddress
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import trio

import inaproto
from inaproto.daemon.host.daemon import run_host
from inaproto.daemon.settings.config import AUTO_MTU, load_host_settings
from inaproto.ports import load_adapter
from inaproto_hil.bench.pattern import DTYPES, reference
from inaproto_hil.ranks.predictable import Pattern, differing
from inaproto_hil.softroce.network import CONTROL_GATEWAY
from inaproto_hil.softroce.relay import serve_unix

if TYPE_CHECKING:
    from inaproto.client import Communicator
    from inaproto.daemon.host.daemon import HostDaemon
    from inaproto.ports import Nic

RECOVER_MS: Final = 3_600_000
"""Daemons that lose each other wait for each other: none is gone, but an emulated machine may stand still."""


@dataclass(frozen=True, slots=True)
class RingPlan:
    ips: list[str]
    """Addresses of the devices; the rank at each is its place here, after those of hosts elsewhere."""
    first_rank: int
    ranks: int
    control_port: int
    """Port of the relay to the switch's control socket; 0 outside, where the socket is."""
    mtu: int
    timeout: int
    """Exponent of the transport's timer."""
    retry_count: int
    """7: the devices never give up."""
    window: int
    message_packets: int
    rows: list[tuple[str, int]]
    """Element type and bytes."""
    iterations: int
    seconds: float
    """Seconds that an operation may take."""
    vlan: int = 0
    """Of userspace NICs; 0: none. In the guest, devices have that of their interface."""
    auto_mtu: int = 0
    """Hosts find their MTU, and ranks join when each has found this or more; 0: it is ``mtu``."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        fields = json.loads(text)
        fields["rows"] = [(str(dtype), int(nbytes)) for dtype, nbytes in fields["rows"]]
        return cls(**fields)


Report = Callable[[dict[str, Any]], None]
"""Gets what is told of a row, and at last of the NICs."""


async def run(plan: RingPlan, folder: Path, report: Report) -> None:
    """``folder``: of the sockets of all daemons."""
    nics: list[Nic] = []
    async with trio.open_nursery() as nursery:
        if plan.control_port:
            await nursery.start(serve_unix, folder / "control.sock", CONTROL_GATEWAY, plan.control_port)
        for ip in plan.ips:
            await _start_host(plan, ip, folder, nics, nursery)
        communicators: list[Communicator | None] = [None] * len(plan.ips)

        async def join(place: int) -> None:
            communicators[place] = await inaproto.connect(
                "bench",
                plan.first_rank + place,
                size=plan.ranks,
                socket=folder / f"{_name(plan.ips[place])}.sock",
                timeout=plan.seconds,
            )

        async with trio.open_nursery() as joining:
            for place in range(len(plan.ips)):
                joining.start_soon(join, place)
        joined = [one for one in communicators if one is not None]
        for dtype, nbytes in plan.rows:
            row = await _row(plan, joined, dtype, nbytes)
            report({**row, "devices": [nic.statistics() for nic in nics]})
        for one in joined:
            await one.aclose()
        report({"devices": [nic.statistics() for nic in nics]})
        nursery.cancel_scope.cancel()


def _name(ip: str) -> str:
    """What its host is called."""
    return "h" + ip.replace(":", "-")


async def _start_host(plan: RingPlan, ip: str, folder: Path, nics: list[Nic], nursery: trio.Nursery) -> None:
    is_here = trio.Event()

    address = ipaddress.ip_address(ip).packed
    device = load_adapter("verbs").open if plan.control_port else None

    async def open_one(port_path: str) -> Nic:
        if device is not None:
            nic: Nic = device(ip=address)
        else:
            port = await load_adapter("frames").open().connect(port_path)
            nic = load_adapter("softnic").open(port, mac=settings.mac_bytes, ip=address, vlan=plan.vlan)
        nics.append(nic)
        is_here.set()
        return nic

    mac = "auto"
    if device is not None:
        probe: Nic = device(ip=address)
        mac = probe.capabilities.mac.hex(":")
        await probe.aclose()
    flags = {
        "name": _name(ip),
        "ip": ip,
        "mac": mac,
        "dir": str(folder),
        "mtu": AUTO_MTU if plan.auto_mtu else plan.mtu,
        "transport_timeout": plan.timeout,
        "retry_count": plan.retry_count,
        "window_messages": plan.window,
        "message_packets": plan.message_packets,
        "stall_ms": 60_000,  # an emulated machine is slow, not stuck
        "recover_ms": RECOVER_MS,
    }
    settings = load_host_settings(flags, None, {}).settings

    async def serve(task_status: trio.TaskStatus[object]) -> None:
        await run_host(settings, open_nic=open_one, task_status=task_status)

    daemon: HostDaemon = await nursery.start(serve)
    # One after the other: opening a device keeps this process busy for longer than a switch waits for a word.
    await is_here.wait()
    while plan.auto_mtu and (daemon.status()["path"] or {"carries": 0})["carries"] < plan.auto_mtu:  # noqa: ASYNC110  what a daemon says of itself
        await trio.sleep(0.1)


async def _row(plan: RingPlan, joined: list[Communicator], dtype_name: str, nbytes: int) -> dict[str, Any]:
    dtype = DTYPES[dtype_name]
    count = nbytes // dtype.itemsize
    pattern = Pattern(count=count, ranks=plan.ranks)
    wrong, example, seconds, paths = 0, "", [], set()
    for iteration in range(plan.iterations):
        inputs = [pattern.values(rank=rank, iteration=iteration).astype(dtype) for rank in range(plan.ranks)]
        expected = reference(inputs, "sum")
        began = time.perf_counter()
        works = [one.all_reduce(inputs[one.rank]) for one in joined]
        results: list[np.ndarray[Any, Any]] = [await work.wait(plan.seconds) for work in works]
        seconds.append(time.perf_counter() - began)
        for one, result in zip(joined, results, strict=True):
            bad, words = differing(result, expected)
            wrong += bad
            example = example or (words and f"rank {one.rank}, iteration {iteration}: {words}")
            paths.add(one.statistics().recent[-1].path)
    return {
        "dtype": dtype_name,
        "bytes": count * dtype.itemsize,
        "iterations": plan.iterations,
        "wrong": wrong,
        "wrong_example": example,
        "seconds": seconds,
        "paths": sorted(paths),
    }


def _say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def main() -> None:
    folder = Path("/run/inaproto")
    folder.mkdir(parents=True, exist_ok=True)
    trio.run(run, RingPlan.decode(sys.argv[1]), folder, _say)


if __name__ == "__main__":
    main()
