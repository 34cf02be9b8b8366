"""A node and a parameter server whose words go over queue pairs of softnics, in weather."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import trio

from inaproto.daemon.models.channels.queue_pairs import QueuePairs
from inaproto.daemon.models.host_models import HostModels
from inaproto.daemon.models.parameter_server import ParameterServer
from inaproto.daemon.models.seat import PulledWeights
from inaproto.daemon.settings.models_file import models_of
from inaproto.faults.weather import Weather
from inaproto.wire.messages.clocks import FOREVER
from inaproto_adapters.memory import Link, MemoryFramePort, open_memory_pair
from tests.clusters.models import WAIT_S, models_document
from tests.contract.test_message_channel_nic import WEATHER, opening, two_nics

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


async def trained(
    server: ParameterServer,
    host: HostModels,
    clocks: int,
    at: Callable[[int], None],
    within_s: float = WAIT_S,
) -> bytes:
    """Weights after so many updates; ``at``: called after each, with its number, and at the end, with -1."""
    worker, update = Worker(), np.arange(ELEMENTS)
    with trio.fail_after(within_s):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            await nursery.start(host.run)
            seat = host.seats["m"]
            seat.take(worker)
            for clock in range(clocks + 1):
                while worker.clocks[-1:] != [clock]:
                    await worker.news.wait()
                at(clock)
                if clock < clocks:
                    seat.clocked(clock, clock + 1, update)
            seat.pull(9, 0)
            while not worker.pulled:
                await worker.news.wait()
            at(-1)
            nursery.cancel_scope.cancel()
    server.close()
    ((_, weights),) = worker.pulled[0].parts
    return bytes(weights.tobytes())


def ways(host: HostModels) -> list[tuple[str, str]]:
    """By what the links of a host go now, and why not by the NIC."""
    (shard,) = host.status()[0]["shards"]
    return [(link["by"], link["why"]) for link in shard["links"] if link["connected"]]


def parts(
    tmp_path: Path, ports: tuple[MemoryFramePort, MemoryFramePort]
) -> tuple[ParameterServer, HostModels]:
    models = models_of(models_document(1, 1, dtype="int64", elements=ELEMENTS), tmp_path)
    nics = two_nics(*ports)
    server = ParameterServer(models, "ps0", tmp_path / "store", queue_pairs=QueuePairs(opening(nics[0])))
    return server, HostModels(models, "h0", queue_pairs=QueuePairs(opening(nics[1])))


async def test_where_the_nics_do_not_reach_each_other_it_goes_without_them_and_says_so(
    tmp_path: Path,
) -> None:
    server, host = parts(tmp_path, open_memory_pair(Link(weather=Weather(drop=1.0))))
    seen: list[list[tuple[str, str]]] = []
    weights = await trained(server, host, 3, lambda clock: seen.append(ways(host)))
    assert weights == (3 * np.arange(ELEMENTS)).tobytes()
    ((by, why),) = seen[-1]
    assert by == "unix"
    assert "nothing comes by the NIC within" in why or "not ready in time" in why


async def test_where_a_nic_loses_its_link_in_the_middle_it_goes_on_without(tmp_path: Path) -> None:
    ports = open_memory_pair(Link())
    server, host = parts(tmp_path, ports)
    seen: list[list[tuple[str, str]]] = []

    def at(clock: int) -> None:
        seen.append(ways(host))
        if seen[-1] == [("nic", "")]:
            ports[0].close()  # once is enough

    weights = await trained(server, host, 5, at)
    assert weights == (5 * np.arange(ELEMENTS)).tobytes()
    assert [("nic", "")] in seen
    ((by, why),) = seen[-1]
    assert by == "unix"
    assert why
