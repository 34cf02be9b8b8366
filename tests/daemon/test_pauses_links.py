"""A ring goes on, exactly, at a link whose far end asks the switch for silence again and again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from tests.clusters.machines import bench
from tests.daemon.test_allreduce_end_to_end import reduce_all
from tests.daemon.test_cli_daemons import DEADLINE_S
from tests.daemon.test_real_links_rings import inputs, joined, start_hosts
from tests.namespaces import require_namespaces
from tests.unit.test_softnic_edge import pause


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


@pytest.mark.parametrize("priority", [(), (0,), (3,)], ids=["all", "priority 0", "another priority"])
async def test_a_ring_goes_on_at_a_port_that_is_paused(runtime_dir: Path, priority: tuple[int, ...]) -> None:
    asked = pause(0xFFFF, *priority).tobytes()
    with bench(runtime_dir) as found, trio.fail_after(2 * DEADLINE_S):
        found.start_switch()
        start_hosts(found)
        raw, end = found.raw(found.hosts[1], "eth0"), threading.Event()

        def ask() -> None:
            while not end.wait(0.01):
                raw.send(asked)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            async with joined(found) as comms:
                for seed in range(3):
                    await reduce_all(comms, inputs(2, seed))
                assert {record.path for comm in comms for record in comm.statistics().recent} == {"switch"}
            ports = {port["name"]: port for port in found.status()["switch"]["ports"]}
        finally:
            end.set()
            thread.join()
        assert ports["packet:sw0"]["pauses"] == 0
        assert ports["packet:sw1"]["pauses"] > 10
        assert ports["packet:sw1"]["paused_ms"] > 10
        assert ports["packet:sw1"]["drops"] == {}
