"""A board that is taken out for one of another MTU: rings have that from then on, not what was said."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import trio

from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.events import AcceleratorConfig, Action, Event, InstallRing
from inaproto.units import Instant
from tests.clusters.loopback import open_cluster
from tests.daemon.test_allreduce_end_to_end import draw, reduce_all

OPTIONS: dict[str, Any] = {"mtu": "auto", "message_packets": 4}


class Card(Accelerator):
    """It says what it takes, as boards do, and notes what rings get."""

    mtu_max = 1024

    def __init__(self, config: AcceleratorConfig) -> None:
        super().__init__(config)
        self.mtus: list[int] = []

    def step(self, event: Event, now: Instant) -> list[Action]:
        if isinstance(event, InstallRing):
            self.mtus.append(event.spec.mtu)
        return super().step(event, now)


def test_rings_have_the_mtu_of_the_board_that_is_there_now() -> None:
    with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as directory:
        trio.run(_rings_of_several_boards, Path(directory))


async def _rings_of_several_boards(directory: Path) -> None:
    made: list[Card] = []

    def make(config: AcceleratorConfig) -> Card:
        made.append(Card(config))
        return made[0]

    async with open_cluster(directory, 0, switch=False) as cluster:
        await cluster.start_switch(make_accelerator=make)
        for _ in range(2):
            await cluster.start_host(**OPTIONS)
        for turn, takes in enumerate((1024, 256, 512, 0)):
            made[0].mtu_max = takes
            comms = await cluster.job(f"train{turn}", 2)
            arrays = [draw(np.dtype(np.float32), (1000,), (turn, rank)) for rank in range(2)]
            await reduce_all(comms, arrays)
    assert made[0].mtus[:3] == [1024, 256, 512]
    assert made[0].mtus[3] > 1024, "it is not known, so that of the hosts"
