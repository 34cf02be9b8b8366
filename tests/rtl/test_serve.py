"""The simulated accelerator as a machine of its own: hosts at its ports, a switch daemon at its registers."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import trio

from inaproto.core.switch.events import AcceleratorConfig
from inaproto.daemon.observe.status import ask
from inaproto_adapters.fpga.board import BoardAccelerator, open_board
from inaproto_hil.rtl.in_switch import open_rtl
from inaproto_hil.rtl.parameters import Parameters
from tests.clusters.loopback import open_cluster
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all
from tests.rtl.builds import LARGER, library

pytestmark = pytest.mark.rtl

OPTIONS: dict[str, Any] = {"mtu": 256, "message_packets": 4, "window_messages": 2}
SIX_HOSTS = Parameters(ports=6, words=4, rings=1, children=6, window=2, slots=136, mtu=1024)
ELEMENTS = int(os.environ.get("INAPROTO_RTL_ELEMENTS", "250000"))
LOOK_S = 0.02


@contextmanager
def served(directory: Path, *options: str, sizes: Parameters = LARGER) -> Iterator[subprocess.Popen[str]]:
    """``inaproto rtl serve``, ready: a process of its own, as hosts hear nothing while it simulates."""
    library(sizes)
    told = ",".join(f"{name}={size}" for name, size in asdict(sizes).items())
    command = [sys.executable, "-m", "inaproto", "rtl", "serve", "--sizes", told, "--dir", str(directory)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"ready rtl dir={directory} ports={sizes.ports}\n"
            yield process
        finally:
            process.kill()


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(600):
        while True:
            if holds():
                return
            await trio.sleep(LOOK_S)


DEADLINE_S = 3600
"""Hosts send again what the simulated board has not answered in time: beside other work it takes long."""


async def sum_through(directory: Path, hosts: int, turns: int, elements: int, **options: Any) -> None:
    """Host daemons, and a switch daemon that is the control plane alone; the board sums all of it."""
    made: list[BoardAccelerator] = []

    def make(config: AcceleratorConfig) -> BoardAccelerator:
        made.append(open_board(f"socket:{directory / 'csr'}", config))
        return made[0]

    async with open_cluster(directory, 0, switch=False, deadline_s=DEADLINE_S) as cluster:
        await cluster.start_switch(make_accelerator=make)
        for _ in range(hosts):
            await cluster.start_host(**options)
        await until(lambda: made[0].status()["is_there"])
        mtu = made[0].mtu_max if options["mtu"] == "auto" else options["mtu"]
        comms = await cluster.job("train", hosts)
        for turn in range(turns):
            arrays = [draw(np.dtype(np.float32), (elements,), (turn, rank)) for rank in range(hosts)]
            await reduce_all(comms, arrays)
        least = hosts * turns * elements * 4 // mtu
        await until(lambda: made[0].view().counters.results_out >= least)


async def test_host_daemons_sum_through_it_under_loss(runtime_dir: Path) -> None:
    with served(runtime_dir, "--weather", "drop=0.01,duplicate=0.005,corrupt=0.005", "--seed", "3"):
        await sum_through(runtime_dir, hosts=3, turns=4, elements=5000, **OPTIONS)


@pytest.mark.timeout(DEADLINE_S + 60)
async def test_six_hosts_sum_a_megabyte_under_loss(runtime_dir: Path) -> None:
    """The bytes of each rank are those of numpy in rank order, which are a software switch's. Ten megabytes
    take some four minutes: ``INAPROTO_RTL_ELEMENTS=2500000``."""
    options: dict[str, Any] = {"mtu": 1024, "message_packets": 34, "window_messages": 2}
    with served(runtime_dir, "--weather", "drop=0.01", sizes=SIX_HOSTS):
        await sum_through(runtime_dir, hosts=6, turns=1, elements=ELEMENTS, **options)


def test_the_command_says_where_it_is_and_in_the_end_what_it_did(runtime_dir: Path) -> None:
    with served(runtime_dir) as process:
        names = {path.name for path in runtime_dir.iterdir()}
        assert names == {"port0", "port1", "port2", "port3", "ports.sock", "csr"}
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        report = json.loads(process.stdout.readline())
    assert (report["frames_in"], report["frames_out"]) == (0, 0)
    assert report["cycles"] > 0
    assert not list(runtime_dir.iterdir())


async def test_hosts_that_find_their_mtu_have_that_of_the_board(runtime_dir: Path) -> None:
    """It answers no path probes, and what it sums is smaller than what hosts have without any."""
    with served(runtime_dir):
        await sum_through(runtime_dir, hosts=2, turns=2, elements=3000, **{**OPTIONS, "mtu": "auto"})


async def test_hosts_of_a_switch_that_simulates_find_the_mtu_of_its_hardware(runtime_dir: Path) -> None:
    """The ports are the switch's, which answers probes; longer frames than those of a ring pass, too."""
    library(LARGER)
    sizes = ",".join(f"{name}={size}" for name, size in asdict(LARGER).items())
    async with open_cluster(runtime_dir, 0, switch=False, deadline_s=DEADLINE_S) as cluster:
        await cluster.start_switch(make_accelerator=lambda config: open_rtl(sizes, config))
        for _ in range(2):
            await cluster.start_host(**{**OPTIONS, "mtu": "auto"})
        comms = await cluster.job("train", 2)
        await reduce_all(comms, [draw(np.dtype(np.float32), (3000,), (0, rank)) for rank in range(2)])
        found = await ask(runtime_dir / "control.sock")
        assert [job["path"] for job in found["jobs"]] == ["switch"]
        counters = found["accelerator"]["counters"]
        assert counters["path_probes"] >= 2
        assert counters["results_out"] >= 2 * 3000 * 4 // LARGER.mtu
