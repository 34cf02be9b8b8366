"""NetReduce, section 3.2, "Congestion Control": it reuses the congestion control of the NICs.

The NICs here do DCQCN (docs/protocol.md 4.5), and worlds are those of ``inaproto bench congestion`` with few
hosts. The section claims that the mechanism goes on as it is, and that no more than N messages are in the
network; section 2.2 that bandwidth is then shared as other traffic of these NICs shares it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.units import MS
from inaproto_hil.bench.congestion.measure import jain, run
from inaproto_hil.bench.congestion.scenarios import Kind, Scenario, Setup, bottlenecks_of, world_of

RATE = 10**10
SETUP = Setup(
    hosts=7,
    rate_bps=RATE,
    warm_up_ns=2 * MS,
    duration_ns=4 * MS,
    dcqcn=DcqcnConfig(line_rate_bps=RATE),
)


@cache
def played(kind: Kind, *, dcqcn: bool = True) -> dict[str, Any]:
    """Three plain flows to a host, and a fourth, which is plain too, or of a ring of four hosts."""
    setup = SETUP if kind is not Kind.RING else replace(SETUP, hosts=4)
    scenario = Scenario(kind=kind, dcqcn=dcqcn, others=3 if kind is not Kind.RING else 0, ring_hosts=4)
    return run(scenario, setup)


def test_3_2_a_ring_is_cut_as_the_plain_flow_in_its_place_is() -> None:
    ring, plain = played(Kind.SHARED), played(Kind.PLAIN)
    assert ring["compared_gbit_s"] == pytest.approx(plain["compared_gbit_s"], rel=0.25)
    assert ring["cnps"] == pytest.approx(plain["cnps"], rel=0.4)
    assert ring["jain"] > 0.97


def test_3_2_and_the_others_get_what_they_had() -> None:
    ring, plain = played(Kind.SHARED), played(Kind.PLAIN)
    others = [row["goodput_gbit_s"] - row["compared_gbit_s"] for row in (ring, plain)]
    assert others[0] == pytest.approx(others[1], rel=0.15)


def test_3_2_a_ring_that_has_its_links_for_itself_is_never_marked() -> None:
    ring = played(Kind.RING)
    assert (ring["marked"], ring["cnps"], ring["lost"]) == (0, 0, 0)
    assert ring["queue_bytes_max"] <= 2 * SETUP.mtu
    assert ring["goodput_gbit_s"] == pytest.approx(played(Kind.RING, dcqcn=False)["goodput_gbit_s"])
    assert ring["share_of_link"] > 0.9


def test_3_2_without_congestion_control_the_window_bounds_what_a_ring_puts_into_the_network() -> None:
    """N messages of each flow that leads to the link, and no more, wait for it."""
    free = played(Kind.SHARED, dcqcn=False)
    windows = 4 * SETUP.window_messages * SETUP.message_bytes
    assert windows / 2 < free["queue_bytes_max"] <= windows * 1.05
    assert played(Kind.SHARED)["queue_bytes_mean"] < free["queue_bytes_mean"] / 2


def test_what_scenarios_measure() -> None:
    at_all = Scenario(kind=Kind.SHARED, dcqcn=True, bottlenecks=4, ring_hosts=4)
    wide = replace(SETUP, hosts=16)
    assert bottlenecks_of(at_all, wide) == (0, 1, 2, 3)
    assert {flow.receiver for flow in world_of(at_all, wide).flows} == {0, 1, 2, 3}
    assert len({flow.sender for flow in world_of(at_all, wide).flows}) == 12
    assert jain([1, 1, 1, 1]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([0, 0]) is None
