"""NetReduce section 3.4: parallel rings over the network, one for each NIC of a machine, by real daemons.

"The NetReduce protocol provides the flexibility for a job to build multiple parallel rings to saturate the
bandwidth." A machine has m NICs, hence m host daemons, and any number of ranks. Every test is one seeded run
in virtual time (:mod:`tests.clusters.memory`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.host.events import NicRefused
from inaproto.wire.ina_header import Dtype
from tests.clusters.jobs import WEATHER, close_all, daemon, fabric_of
from tests.clusters.memory import MemoryCluster, run_world
from tests.clusters.parallel import MACHINES, connect_machines, host_of
from tests.daemon.test_allreduce_end_to_end import numpy_dtype
from tests.property.test_shm_plans import random_tensors

NAMES = {Dtype.F32: "float32", Dtype.F16: "float16", Dtype.BF16: "bfloat16"}
ELEMENTS = 6 * 4 * 16 * 91
"""Whole cache lines, and whole messages of the small clusters, for 1 to 4 rings."""
SHAPES = {
    "fewer NICs than ranks": ((0, 0, 0, 1, 1, 1), 2),
    "as many": ((0, 0, 1, 1, 2, 2), 2),
    "more": ((0, 1, 1), 3),
    "ranks in turns": ((0, 1, 0, 1), 4),
}


def hosts_in(machines: tuple[int, ...], rings: int) -> int:
    return len(set(machines)) * rings


ACK_BYTES = 14 + 20 + 8 + 12 + 4 + 4
"""On the wire: Ethernet, IPv4, UDP, BTH, AETH, ICRC."""


@pytest.mark.parametrize("shape", SHAPES)
def test_each_nic_of_a_machine_sends_one_mth_of_the_tensor(shape: str) -> None:
    """Of what one ring would have sent from that machine, whatever the number of its ranks."""
    machines, rings = SHAPES[shape]

    async def scenario(cluster: MemoryCluster) -> None:
        sent: dict[int, list[int]] = {}
        for used in (1, rings):
            comms = await connect_machines(cluster, machines, used)
            await trio.sleep(0.1)
            before = [data_bytes(cluster, host) for host in cluster.hosts]
            works = [comm.all_reduce(np.ones(ELEMENTS, np.float32)) for comm in comms]
            for work in works:
                assert (await work == len(machines)).all()
            await close_all(comms)
            await trio.sleep(0.1)
            sent[used] = [
                data_bytes(cluster, host) - then for host, then in zip(cluster.hosts, before, strict=True)
            ]
        whole = sent[1][0]
        assert ELEMENTS * 4 < whole < ELEMENTS * 4 * 1.4
        assert sent[rings] == [whole // rings] * len(cluster.hosts)

    run_world(f"share/{shape}", scenario, hosts=len(set(machines)) * rings)


def data_bytes(cluster: MemoryCluster, host: int) -> int:
    """That its NIC has sent, in packets with data."""
    counts = fabric_of(cluster, host).nic.statistics()
    return counts["bytes_sent"] - counts["acks_sent"] * ACK_BYTES


def submit(
    comms: Sequence[inaproto.Communicator], inputs: Sequence[Any], op: str = "sum"
) -> list[inaproto.Work]:
    return [comm.all_reduce(array, op) for comm, array in zip(comms, inputs, strict=True)]


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.F16, Dtype.BF16])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_ranks_have_the_bytes_of_one_ring(shape: str, dtype: Dtype) -> None:
    """NaN, infinities, subnormals, cancellation; tensors of every size, also too small for all rings."""
    machines, rings = SHAPES[shape]

    async def scenario(cluster: MemoryCluster) -> None:
        draws = random.Random(f"{shape}/{dtype}")
        one = await connect_machines(cluster, machines, 1, "one")
        several = await connect_machines(cluster, machines, rings)
        for elements in (0, 1, 7, 33, 100, 1000, 5001):
            tensors = random_tensors(draws, dtype, len(machines), elements)
            inputs = [tensor.view(numpy_dtype(NAMES[dtype])) for tensor in tensors]
            for op in ("sum", "max", "min"):
                results = {
                    (await work).tobytes() for comms in (one, several) for work in submit(comms, inputs, op)
                }
                assert len(results) == 1, (elements, op)
        assert {record.path for record in several[0].statistics().recent} == {"switch"}
        await close_all([*one, *several])

    run_world(f"bytes/{shape}/{dtype}", scenario, hosts=len(set(machines)) * rings, weather=WEATHER)


async def fall_back(cluster: MemoryCluster, ring: int) -> None:
    """A ring that breaks twice where it is goes on without the switch, for a while."""
    (broken,) = fabric_of(cluster, host_of(0, ring, 2)).rings()
    for recoveries in (1, 2):
        broken.feed(NicRefused("a queue pair failed"))
        await trio.sleep(0.05)
        for machine in (0, 1):
            (state,) = daemon(cluster, host_of(machine, ring, 2)).status()["rings"]
            assert (state["phase"], state["recoveries"]) == ("running", recoveries)
            assert (state["path"] == "chain") == (recoveries == 2)


@pytest.mark.parametrize("chained", [(0,), (1,), (0, 1)], ids=["first", "second", "both"])
def test_a_ring_that_its_hosts_sum_changes_no_byte(chained: tuple[int, ...]) -> None:
    """The accelerator goes on with the other: each slice follows the plan, on any path."""

    async def scenario(cluster: MemoryCluster) -> None:
        one = await connect_machines(cluster, MACHINES, 1, "one")
        draws = random.Random("chained")
        kinds = [draws.choice(list(NAMES)) for _ in range(8)]
        inputs = [
            [tensor.view(numpy_dtype(NAMES[dtype])) for tensor in random_tensors(draws, dtype, 6, 3000)]
            for dtype in kinds
        ]
        expected = [(await submit(one, tensors)[0]).tobytes() for tensors in inputs]
        await close_all(one)
        comms = await connect_machines(cluster, MACHINES, 2)
        for index, tensors in enumerate(inputs):
            if index == 4:
                for ring in chained:
                    await fall_back(cluster, ring)
            results = {(await work).tobytes() for work in submit(comms, tensors)}
            assert results == {expected[index]}
        paths = [record.path for record in comms[5].statistics().recent]
        assert paths == ["switch"] * 4 + ["chain" if len(chained) == 2 else "chain+switch"] * 4

    run_world(f"chained/{chained}", scenario, hosts=4, weather=WEATHER)
