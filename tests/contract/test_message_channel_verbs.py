"""Message channels over queue pairs of RoCE devices, and models whose arrays go by them: run in the guest.

``INAPROTO_VERBS_PAIR`` names the addresses of two devices that reach each other, as for the NIC contract.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.channels.queue_pair_stream import QueuePairStream
from inaproto.daemon.models.channels.queue_pairs import QueuePairs
from inaproto.daemon.models.host_models import HostModels
from inaproto.daemon.models.parameter_server import ParameterServer
from inaproto.daemon.settings.config import OverlayNic
from inaproto.daemon.settings.models_file import models_of
from inaproto.parts import overlay_nic_of
from inaproto_adapters.memory import open_stream_pair
from tests.clusters.models import models_document
from tests.contract.message_channel_contract import MessageChannelContract, Pair
from tests.daemon.test_push_pull_nic import ELEMENTS, trained

PAIR = os.environ.get("INAPROTO_VERBS_PAIR", "")
CLOCKS = 3


def pairs_of(address: str) -> QueuePairs:
    return QueuePairs(overlay_nic_of(OverlayNic("verbs", "", address, Path("/none"), 0)))


class TestVerbs(MessageChannelContract):
    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        async with trio.open_nursery() as nursery:
            owners = [pairs_of(address) for address in PAIR.split(",")]
            for owner in owners:
                await nursery.start(owner.run)
            others = [StreamChannel(stream, "the other way") for stream in open_stream_pair()]
            made: dict[int, QueuePairStream] = {}

            async def open_one(number: int) -> None:
                made[number] = await owners[number].open(others[number])

            async with trio.open_nursery() as both:
                both.start_soon(open_one, 0)
                both.start_soon(open_one, 1)
            yield StreamChannel(made[0], "left"), StreamChannel(made[1], "right")
            for stream in made.values():
                stream.close()
                stream.abort()
            nursery.cancel_scope.cancel()


@pytest.mark.timeout(3000)
async def test_a_host_and_a_server_train_by_their_devices(tmp_path: Path) -> None:
    """As the daemons open them; of processes the emulated machine would make minutes."""
    document = models_document(1, 1, dtype="int64", elements=ELEMENTS, heartbeat_ms=100_000)
    models = models_of(document, tmp_path)
    there, here = (pairs_of(address) for address in PAIR.split(","))
    server = ParameterServer(models, "ps0", tmp_path / "store", queue_pairs=there)
    host = HostModels(models, "h0", queue_pairs=here)
    found: list[dict[str, Any]] = []

    def at(clock: int) -> None:
        if clock < 0:
            found.extend(shard for model in host.status() for shard in model["shards"])
            found.append(host.nic_status() or {})

    weights = await trained(server, host, CLOCKS, at, within_s=2400.0)
    assert weights == (CLOCKS * np.arange(ELEMENTS)).tobytes()
    shard, nic = found
    assert [(link["by"], link["why"]) for link in shard["links"]] == [("nic", "")]
    assert nic["name"].startswith("verbs ")
    assert nic["carried"]["nic"] > (CLOCKS + 1) * ELEMENTS * 8
    assert set(nic["carried"]) == {"nic"}
    assert nic["counters"]["packets_sent"] > CLOCKS * ELEMENTS * 8 // 4096


if not PAIR:
    del TestVerbs, test_a_host_and_a_server_train_by_their_devices  # they are run in the guest of tests/hil
