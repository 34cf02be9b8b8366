"""The simulated accelerator as a machine of its own: hosts at its ports, a switch daemon at its registers."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

from inaproto.core.switch.events import AcceleratorConfig
from inaproto_adapters.fpga.board import BoardAccelerator, open_board
from tests.clusters.loopback import open_cluster
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all
from tests.rtl.builds import LARGER, library

pytestmark = pytest.mark.rtl

OPTIONS: dict[str, Any] = {"mtu": 256, "message_packets": 4, "window_messages": 2}
SIZES = "ports=4,words=4,rings=2,children=4,window=4,slots=128,mtu=256"
LOOK_S = 0.02


@contextmanager
def served(directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``inaproto rtl serve``, ready: a process of its own, as hosts hear nothing while it simulates."""
    library(LARGER)
    command = [sys.executable, "-m", "inaproto", "rtl", "serve", "--sizes", SIZES, "--dir", str(directory)]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"ready rtl dir={directory} ports={LARGER.ports}\n"
            yield process
        finally:
            process.kill()


async def until(holds: Callable[[], object]) -> None:
    with trio.fail_after(60):
        while True:
            if holds():
                return
            await trio.sleep(LOOK_S)


async def test_host_daemons_sum_through_it_under_loss(runtime_dir: Path) -> None:
    made: list[BoardAccelerator] = []

    def make(config: AcceleratorConfig) -> BoardAccelerator:
        made.append(open_board(f"socket:{runtime_dir / 'csr'}", config))
        return made[0]

    with served(runtime_dir, "--weather", "drop=0.01,duplicate=0.005,corrupt=0.005", "--seed", "3"):
        async with open_cluster(runtime_dir, 0, switch=False) as cluster:
            await cluster.start_switch(make_accelerator=make)
            for _ in range(3):
                await cluster.start_host(**OPTIONS)
            await until(lambda: made[0].status()["is_there"])
            comms = await cluster.job("train", 3)
            for turn in range(4):
                arrays = [draw(np.dtype(np.float32), (5000,), (turn, rank)) for rank in range(3)]
                await reduce_all(comms, arrays)
            least = 3 * 4 * 5000 * 4 // 256
            await until(lambda: made[0].view().counters.results_out >= least)


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
