"""Neighbours that say what no honest one does, to real daemons: it is refused, shown, and their connection
ends; whoever is honest goes on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from inaproto.daemon.models.links import Links
from inaproto.daemon.settings.models_file import Shard
from inaproto.wire.messages.clocks import NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.model_connections import OverlayState
from inaproto.wire.messages.models import Attach, Attached, NodeId, PullRequest, Word
from tests.clusters.models import WAIT_S, ModelsCluster, models_cluster, models_text

TEXT = models_text(2, 1, dtype="int64", elements=2, tree="direct", heartbeat_ms=500)


class Liar:
    """In the place of a process: it connects as that one does, and says what it is told to."""

    def __init__(
        self,
        cluster: ModelsCluster,
        name: str,
        says: Callable[[Word | None], Word | None],
        state: OverlayState | None = None,
    ) -> None:
        self._state = state or OverlayState()
        self.shard: Shard = cluster.models.shards_of(name)[0]
        self.links = Links(cluster.models, name, 1)
        self.ends = 0
        self._says = says
        self.links.seat(self.shard, self)

    def connected(self, peer: NodeId) -> None:
        self._say(peer, self._says(None))

    def heard(self, peer: NodeId, word: Word) -> None:
        self._say(peer, self._says(word))

    def stirred(self, peer: NodeId) -> None:
        """It waits until a word is whole."""

    def disconnected(self, peer: NodeId, why: str) -> None:
        self.ends += 1

    def state(self) -> OverlayState:
        return self._state

    def _say(self, peer: NodeId, word: Word | None) -> None:
        if word is not None:
            self.links.tell(self.shard, peer, word)


@asynccontextmanager
async def lying(liar: Liar) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(liar.links.run)
        yield
        nursery.cancel_scope.cancel()


async def until(said: Callable[[], Any]) -> Any:
    while not (found := said()):  # noqa: ASYNC110
        await trio.sleep(0.01)
    return found


def blamed(status: dict[str, Any]) -> str:
    """What the shard's status says of it."""
    notes = [note for note in status["notes"] if "is blamed" in note]
    return notes[-1] if notes and status["marks"].get("blamed") else ""


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (Attach(1, (WorkerId(1), WorkerId(7))), "h1 is blamed: node or worker of another tree: 1, 7"),
        (Attach(1, (WorkerId(1),), Clocks({WorkerId(0): 1})), "h1 is blamed: floor of other workers: 0"),
        (PullRequest(1 << 40), "h1 is blamed: needs what nobody has made"),
    ],
)
async def test_a_server_refuses_a_host_that_lies_and_serves_the_others(
    said: Word, rule: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with models_cluster(tmp_path, TEXT) as cluster:
        await cluster.end("h1")

        def says(heard: Word | None) -> Word | None:
            if isinstance(said, Attach):
                return said if heard is None else None
            return Attach(1, (WorkerId(1),)) if heard is None else said

        liar = Liar(cluster, "h1", says)
        with caplog.at_level(logging.WARNING, "inaproto.overlay"):
            async with lying(liar):
                liar.links.connect(liar.shard, liar.shard.tree.root)
                shown = await until(lambda: blamed(cluster.servers["ps0"].status()["shards"][0]))
                await until(lambda: liar.ends)
        assert rule in shown
        assert any(rule in record.getMessage() for record in caplog.records)
        await cluster.start("h1")
        async with await cluster.worker("h0") as one, await cluster.worker("h1") as two:
            for model in (one, two):
                model.push(np.array([1, 2]))
                await model.finish(WAIT_S)
            weights = await two.pull(0, WAIT_S)
            assert weights.tolist() == [2, 4]


async def test_a_host_refuses_a_server_that_lies_and_goes_on_with_the_true_one(tmp_path: Path) -> None:
    async with models_cluster(tmp_path, TEXT) as cluster:
        await cluster.end("ps0")

        def says(heard: Word | None) -> Word | None:
            base = Clocks({WorkerId(5): 0})
            return Attached(heard.session, base, NO_CLOCKS) if isinstance(heard, Attach) else None

        liar = Liar(cluster, "ps0", says)
        async with lying(liar):
            shown = await until(lambda: blamed(cluster.status("h0")["shards"][0]))
            await until(lambda: liar.ends > 2)  # the host dials again, as it does whenever a server ends
        assert shown[15:] == "ps0 is blamed: base of other workers: 5, asked was 0"
        await cluster.start("ps0")
        async with await cluster.worker("h0") as one, await cluster.worker("h1") as two:
            for model in (one, two):
                model.push(np.array([1, 2]))
                await model.finish(WAIT_S)
            assert (await one.pull(0, WAIT_S)).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (OverlayState(clocks=Clocks({WorkerId(0): 0, WorkerId(99): 0})), "99"),
        (OverlayState(clocks=Clocks({WorkerId(1): 0}), absent=((2, 1), (1, 1))), "2"),
    ],
)
async def test_a_host_that_asks_why_it_waits_is_not_ended_by_workers_that_are_none(
    state: OverlayState, named: str, tmp_path: Path
) -> None:
    async with models_cluster(tmp_path, TEXT) as cluster:
        await cluster.end("ps0")
        await cluster.end("h1")
        async with lying(Liar(cluster, "ps0", lambda heard: None, state)), trio.open_nursery() as nursery:
            nursery.start_soon(cluster.worker, "h0")
            why = await until(lambda: cluster.status("h0")["worker"]["why"])
            nursery.cancel_scope.cancel()
        assert f"server ps0, which does not answer: it names workers that the model has not: {named}" in why
