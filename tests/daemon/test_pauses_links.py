"""A ring goes on, exactly, at a link whose far end asks the switch for silence again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from inaproto.units import Frames
from tests.clusters.machines import Bench, bench
from tests.daemon.test_allreduce_end_to_end import reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.daemon.test_real_links_rings import PATIENT, inputs, joined, start_hosts, until
from tests.daemon.test_shards_live import all_there
from tests.namespaces import require_namespaces
from tests.unit.test_softnic_edge import pause


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


@contextmanager
def asking(found: Bench, frame: Frames) -> Iterator[None]:
    """The second host's interface sends it every 10 ms."""
    raw, end, asked = found.raw(found.hosts[1], "eth0"), threading.Event(), frame.tobytes()

    def ask() -> None:
        while not end.wait(0.01):
            raw.send(asked)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def port_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    """Of a switch or a shard."""
    (port,) = (port for port in status["ports"] if port["name"] == name)
    return dict(port)


@pytest.mark.parametrize("priority", [(), (0,), (3,)], ids=["all", "priority 0", "another priority"])
async def test_a_ring_goes_on_at_a_port_that_is_paused(runtime_dir: Path, priority: tuple[int, ...]) -> None:
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch()
        start_hosts(found)
        with asking(found, pause(0xFFFF, *priority)):
            async with joined(found) as comms:
                for seed in range(3):
                    await reduce_all(comms, inputs(2, seed))
                assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
            await until(found, lambda at: port_of(at, "packet:sw1")["pauses"] > 10, "it was asked often")
            ports = {port["name"]: port for port in found.status()["switch"]["ports"]}
        assert ports["packet:sw0"]["pauses"] == 0
        assert ports["packet:sw1"]["pauses"] > 10
        assert ports["packet:sw1"]["paused_ms"] > 10
        assert ports["packet:sw1"]["drops"] == {}


async def test_shards_are_silent_too(runtime_dir: Path) -> None:
    """Nothing leaves for a host that always asks for silence, and what was held leaves when it does not."""
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch("--shards", "1", *PATIENT)
        await until(found, all_there, "its shard")
        start_hosts(found, *PATIENT)
        async with joined(found) as comms:
            await reduce_all(comms, inputs(2, 0))
            with asking(found, pause(0xFFFF)):
                for seed in range(3):
                    await reduce_all(comms, inputs(2, seed))
                # all three may be over before it was asked that often
                await until(
                    found, lambda at: port_of(at["shards"][0], "packet:sw1")["pauses"] > 10, "it has told"
                )
            assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
        (shard,) = found.status()["switch"]["shards"]
        ports = {port["name"]: port for port in shard["ports"]}
        assert ports["packet:sw0"]["pauses"] == 0
        assert ports["packet:sw1"]["paused_ms"] > 10
        assert ports["packet:sw1"]["drops"] == {}
