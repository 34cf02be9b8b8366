"""A node and a parameter server whose words go over queue pairs of softnics, in weather."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trio

from inaproto.core.push_pull.clocks import FOREVER
from inaproto.daemon.overlay.host_models import HostModels
from inaproto.daemon.overlay.model_seat import PulledWeights
from inaproto.daemon.overlay.models_file import models_of
from inaproto.daemon.overlay.parameter_server import ParameterServer
from inaproto.daemon.overlay.queue_pairs import QueuePairs
from inaproto_adapters.memory import Link, open_memory_pair
from tests.contract.test_message_channel_nic import WEATHER, opening, two_nics
from tests.daemon.models_cluster import WAIT_S, models_document

ELEMENTS = 50_000


class Worker:
    """What a process's session is to a seat."""

    def __init__(self) -> None:
        self.clocks: list[int] = []
        self.pulled: list[PulledWeights] = []
        self.news = trio.Event()

    def is_gone(self) -> bool:
        return False

    def _tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    def model_ready(self, clock: int) -> None:
        self.clocks.append(clock)
        self._tell()

    def model_done(self, request: int, clock: int) -> None:
        self.clocks.append(clock)
        self._tell()

    def model_pulled(self, request: int, pulled: PulledWeights) -> None:
        self.pulled.append(pulled)
        self._tell()

    def model_refused(self, request: int, reason: str) -> None:
        raise AssertionError(reason)


async def test_updates_and_weights_go_by_the_nic(tmp_path: Path) -> None:
    document = models_document(1, 1, dtype="int64", elements=ELEMENTS)
    models = models_of(document, tmp_path)
    link = Link(weather=WEATHER)
    nics = two_nics(*open_memory_pair(link, seed=5))
    server = ParameterServer(models, "ps0", tmp_path / "store", queue_pairs=QueuePairs(opening(nics[0])))
    host = HostModels(models, "h0", queue_pairs=QueuePairs(opening(nics[1])))
    worker, update = Worker(), np.arange(ELEMENTS)
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            await nursery.start(host.run)
            seat = host.seats["m"]
            seat.take(worker)
            for clock in range(4):
                while worker.clocks[-1:] != [clock]:
                    await worker.news.wait()
                if clock < 3:
                    seat.clocked(clock, clock + 1, update)
            seat.pull(9, 0)
            while not worker.pulled:
                await worker.news.wait()
            seat.leave(10)
            while worker.clocks[-1] != FOREVER:
                await worker.news.wait()
            (shard,) = host.status()[0]["shards"]
            assert [one["address"] for one in shard["links"]] == [
                f"ps0 at {tmp_path / 'ps0.tree'} by its NIC"
            ]
            nursery.cancel_scope.cancel()
    server.close()
    ((_, weights),) = worker.pulled[0].parts
    assert weights.tobytes() == (3 * update).tobytes()
    sent = [nic.statistics()["bytes_sent"] for nic in nics]
    assert min(sent) > ELEMENTS * 8  # an update is as long as that, and so are weights
