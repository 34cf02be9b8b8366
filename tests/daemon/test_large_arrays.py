"""Arrays that take longer than a neighbour's patience: nobody is dead who sends one, or takes one in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto_hil.rigs.shaped_cluster import Link, ShapedModelsCluster, shaped_cluster
from tests.namespaces import require_namespaces

MBIT = 6
ELEMENTS = 800_000
"""3.2 MB, for which the link needs more than 4 s; dead is who is silent for 3 s."""
WAIT_S = 300.0
MODEL = f'[[models]]\nname = "m"\ndtype = "int32"\nelements = {ELEMENTS}\nheartbeat_ms = 1000\n'


async def _train(cluster: ShapedModelsCluster) -> None:
    async with await inaproto.connect_model("m", socket=cluster.host_socket(0), timeout=WAIT_S) as model:
        model.push(np.arange(ELEMENTS, dtype=np.int32))
        await model.finish(WAIT_S)
        assert np.array_equal(await model.pull(0, WAIT_S), np.arange(ELEMENTS, dtype=np.int32))


def _marks(status: dict[str, Any]) -> dict[str, int]:
    shards = status["shards"] if "shards" in status else status["models"][0]["shards"]
    found: dict[str, int] = shards[0]["marks"]
    return found


@pytest.mark.timeout(600)
def test_who_sends_or_receives_for_longer_than_patience_is_not_taken_for_dead() -> None:
    require_namespaces()
    with shaped_cluster(1, 1, MODEL, link=Link(mbit=MBIT)) as cluster:
        trio.run(_train, cluster)
        host, server = _marks(cluster.status("h0")), _marks(cluster.status("ps0"))
    assert host["attached"] == 1
    assert not {"parent_dead", "resent", "reset", "torn_down"} & host.keys()
    assert not {"child_dead", "torn_down"} & server.keys()
