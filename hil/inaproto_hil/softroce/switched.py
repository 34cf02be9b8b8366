"""All-reduces of kernel RoCE hosts in a guest, summed by a switch daemon outside, which is their wire."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.events import MakeAccelerator
from inaproto.daemon.settings.config import load_switch_settings
from inaproto.daemon.switch.daemon import run_switch
from inaproto.daemon.switch.ports import WrapPort
from inaproto.ports import load_adapter
from inaproto_hil.softroce.guest import GuestFailed, boot
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.relay import serve_tcp
from inaproto_hil.softroce.ring import RECOVER_MS, RingPlan, run


@dataclass(frozen=True, slots=True)
class SwitchedConfig:
    """A ring of ``hosts``, each a RoCE device with a host daemon and a rank, and of ``own`` NICs of ours."""

    hosts: int
    mtu: int
    """That devices of the guest take."""
    rows: Sequence[tuple[str, int]]
    """Element type and bytes."""
    iterations: int = 3
    timeout: int = 17
    retry_count: int = 7
    window: int = 2
    message_packets: int = 64
    seconds: float = 600.0
    """Seconds that an all-reduce may take: one that hangs, for none takes so long on a busy machine."""
    vlan: int | None = None
    """In which all hosts are."""
    ipv6: bool = False
    """All hosts have IPv6 addresses."""
    auto_mtu: int = 0
    """Hosts of the guest find their MTU, at least this one; 0: it is ``mtu``."""
    own: int = 0
    """Hosts outside the guest, on userspace NICs; their ranks come first."""

    def plan(self, ips: Sequence[str], *, first_rank: int, control_port: int) -> RingPlan:
        return RingPlan(
            ips=list(ips),
            first_rank=first_rank,
            ranks=self.hosts + self.own,
            control_port=control_port,
            mtu=self.mtu,
            timeout=self.timeout,
            retry_count=self.retry_count,
            window=self.window,
            message_packets=self.message_packets,
            rows=list(self.rows),
            iterations=self.iterations,
            seconds=self.seconds,
            vlan=self.vlan or 0,
            auto_mtu=self.auto_mtu,
        )


@dataclass(frozen=True, slots=True)
class Switched:
    rows: list[dict[str, Any]]
    """As :mod:`~inaproto_hil.softroce.ring` prints them: those of the guest's ranks, then those of ours.

    ``devices`` of a row: their counters when it had ended.
    """
    devices: list[dict[str, int]]
    """Counters of each of the guest's, from the start of its daemon on."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A switch daemon that runs in this process."""

    folder: Path
    """Folder of its sockets."""
    ports: Path
    """The socket that NICs are plugged into."""
    control_port: int
    """On loopback: of the relay to its control socket."""


@asynccontextmanager
async def switch_outside(
    wrap_port: WrapPort | None = None, make_accelerator: MakeAccelerator = Accelerator
) -> AsyncIterator[Outside]:
    """``wrap_port`` may put weather on the wire; ``make_accelerator`` makes what sums."""
    with tempfile.TemporaryDirectory(prefix="ina-") as folder:
        settings = load_switch_settings({"dir": folder, "recover_ms": RECOVER_MS}, None, {}).settings
        stop, ready = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(
                    run_switch,
                    settings,
                    open_port_listener=load_adapter("frames").open().listen,
                    wrap_port=wrap_port,
                    stop=stop,
                    announce=lambda line: ready.set(),
                    make_accelerator=make_accelerator,
                )
            )
            await ready.wait()
            control_port: int = await nursery.start(serve_tcp, settings.control_path)
            yield Outside(settings.dir, settings.ports_path, control_port)
            nursery.cancel_scope.cancel()


async def run_switched(
    image: Image,
    config: SwitchedConfig,
    wrap_port: WrapPort | None = None,
    make_accelerator: MakeAccelerator = Accelerator,
) -> Switched:
    """Raises ``GuestFailed``. ``wrap_port`` may put weather on the wire."""
    own: list[dict[str, Any]] = []
    async with switch_outside(wrap_port, make_accelerator) as switch, trio.open_nursery() as nursery:
        if config.own:
            network = "fd00::1:" if config.ipv6 else "10.0.0."
            ips = [f"{network}{200 + number}" for number in range(config.own)]
            plan = config.plan(ips, first_rank=0, control_port=0)
            nursery.start_soon(run, plan, switch.folder, own.append)
        found = await _in_guest(image, config, switch.ports, switch.control_port)
        nursery.cancel_scope.cancel()
    return Switched([*found.rows, *(row for row in own if "wrong" in row)], found.devices)


async def _in_guest(image: Image, config: SwitchedConfig, ports_path: Path, control_port: int) -> Switched:
    async with boot(
        image, [ports_path] * config.hosts, mtu=config.mtu, vlan=config.vlan, ipv6=config.ipv6
    ) as guest:
        ips = [host.ip for host in guest.hosts]
        plan = config.plan(ips, first_rank=config.own, control_port=control_port)
        argv = [sys.executable, "-P", "-m", "inaproto_hil.softroce.ring", plan.encode()]
        ended = await guest.run(argv)
        if ended.rc:
            raise GuestFailed(f"the ring in the guest ended with {ended.rc}: {ended.err[-4000:]}")
        *rows, last = map(json.loads, ended.out.splitlines())
        return Switched(rows, last["devices"])
