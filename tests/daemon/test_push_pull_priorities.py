"""Priorities of models on a shaped link: the channels of the daemons in virtual time (MLNet section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import inaproto
from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.channels.pacing import Paces
from tests.clusters.models import WAIT_S, ModelsCluster, models_cluster, models_text
from tests.contract.message_channel_contract import push
from tests.daemon.shared_link import SharedLink

RATE = 50_000_000
NBYTES = 5_000_000
"""Of a push: 0.1 s on a link of its own."""


@dataclass
class Model:
    priority: int
    compute_s: float
    rounds: int = 6
    took_s: float = 0.0


async def train(model: Model, link: SharedLink, paces: Paces | None) -> None:
    """Compute and push, in turns; a host takes what comes, and says nothing."""
    near, far = link.connect()
    sender, receiver = StreamChannel(near, "server"), StreamChannel(far, "host")
    receiver.allow_payload(NBYTES)
    sender.allow_payload(NBYTES)
    if paces is not None:
        receiver.pace(paces, model.priority)
    began, update = trio.current_time(), np.zeros(NBYTES, np.uint8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender.run)
        for number in range(model.rounds):
            await trio.sleep(model.compute_s)
            sender.send_nowait(push(number, update))
            assert await receiver.receive() == push(number, update)
        model.took_s = trio.current_time() - began
        nursery.cancel_scope.cancel()
    sender.close()
    receiver.close()


async def play(models: list[Model], *, with_priorities: bool) -> list[float]:
    """How long each took."""
    paces = Paces.of(RATE) if with_priorities else None
    link = SharedLink(RATE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        if paces is not None:
            nursery.start_soon(paces.incoming.run)
        async with trio.open_nursery() as training:
            for model in models:
                training.start_soon(train, model, link, paces)
        nursery.cancel_scope.cancel()
    return [model.took_s for model in models]


def two() -> list[Model]:
    return [Model(priority=9, compute_s=0.1), Model(priority=1, compute_s=0.1)]


async def test_section_3_3_the_high_one_finishes_as_if_alone(autojump_clock: MockClock) -> None:
    (alone,) = await play(two()[:1], with_priorities=False)
    high, low = await play(two(), with_priorities=True)
    assert high <= alone * 1.05
    assert low <= 2 * alone  # what the high one leaves is the low one's: it does not wait for its end


async def test_section_3_3_the_median_improves(autojump_clock: MockClock) -> None:
    def models() -> list[Model]:
        return [Model(priority=priority, compute_s=0.05) for priority in (9, 5, 1)]

    plain = await play(models(), with_priorities=False)
    ours = await play(models(), with_priorities=True)
    assert median(ours) < median(plain) * 0.95
    assert max(ours) <= max(plain) * 1.15  # and who is last is not much later


async def test_section_3_3_nobody_starves(autojump_clock: MockClock) -> None:
    """A high one that never rests leaves the low one its floor."""
    models = [Model(priority=9, compute_s=0.0, rounds=40), Model(priority=1, compute_s=0.0, rounds=1)]
    high, low = await play(models, with_priorities=True)
    assert low < high + 2 * NBYTES / RATE


async def test_models_of_one_priority_share_as_before(autojump_clock: MockClock) -> None:
    same = [Model(priority=3, compute_s=0.1), Model(priority=3, compute_s=0.1)]
    plain = await play(two(), with_priorities=False)
    assert await play(same, with_priorities=True) == pytest.approx(plain, rel=0.01)


async def test_what_is_sent_is_paced_too(autojump_clock: MockClock) -> None:
    """Two channels of a server: the low one waits with its weights while the high one has its own to send."""
    paces, link = Paces.of(RATE), SharedLink(RATE)
    ends: dict[int, float] = {}

    async def send(priority: int) -> None:
        near, far = link.connect()
        sender, receiver = StreamChannel(near, "host"), StreamChannel(far, "server")
        receiver.allow_payload(NBYTES)
        sender.allow_payload(NBYTES)
        sender.pace(paces, priority)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run)
            sender.send_nowait(push(1, np.zeros(NBYTES, np.uint8)))
            await receiver.receive()
            ends[priority] = trio.current_time()
            nursery.cancel_scope.cancel()
        sender.close()
        receiver.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        nursery.start_soon(paces.outgoing.run)
        began = trio.current_time()
        async with trio.open_nursery() as sending:
            sending.start_soon(send, 1)
            sending.start_soon(send, 9)
        nursery.cancel_scope.cancel()
    alone = NBYTES / RATE
    assert ends[9] - began <= alone * 1.1
    assert ends[1] - began <= 2 * alone * 1.1


async def test_daemons_pace_their_links_where_they_know_them(tmp_path: Path) -> None:
    """Two models of one server and two hosts: both end with all their updates, and nothing is left over."""
    text = models_text(2, 1, link_mbit=400, dtype="int64", elements=100_000, priority=9)
    text += '[[models]]\nname = "low"\ndtype = "int64"\nelements = 100000\npriority = 1\n'

    async def work(cluster: ModelsCluster, name: str, host: str) -> None:
        async with await inaproto.connect_model(name, socket=cluster.socket(host), timeout=WAIT_S) as model:
            for clock in range(1, 5):
                model.push(np.full(100_000, 3))
                await model.finish(WAIT_S)
                assert (await model.pull(0, WAIT_S)).tolist() == [2 * 3 * clock] * 100_000

    async with models_cluster(tmp_path, text) as cluster:
        async with trio.open_nursery() as nursery:
            for name in ("m", "low"):
                for host in ("h0", "h1"):
                    nursery.start_soon(work, cluster, name, host)
        link = cluster.servers["ps0"].status()["link"]
        assert link["incoming"]["transfers"] == link["outgoing"]["transfers"] == 0
        assert link["incoming"]["refused"] == link["outgoing"]["refused"] == 0
        assert cluster.hosts["h0"].status()["models_link"]["incoming"]["refused"] == 0
