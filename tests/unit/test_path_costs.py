"""What all-reduces take by each path, by hand, and what follows from it."""

from __future__ import annotations

import pytest

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.path_costs import LinkFigures, PathCost, Task, costs, explain
from inaproto.errors import LocalMisuse
from inaproto.wire.control_messages import RingPath

ALL: tuple[RingPath, ...] = ("switch", "chain", "overlay", "ring")
GIGABYTE_PER_S = LinkFigures(latency_ns=1000, rate_bps=8 * 10**9)
"""A byte takes a nanosecond."""
FULL = 1040
"""Bytes of a message: 1000 of tensor."""
RACKS = ReductionPlan(tuple(tuple(range(8 * rack, 8 * rack + 8)) for rack in range(8)))


def of(path: RingPath, plan: ReductionPlan, task: Task, links: LinkFigures = GIGABYTE_PER_S) -> PathCost:
    (cost,) = costs([path], plan, task, links)
    return cost


def test_one_message_takes_its_hops() -> None:
    one, flat = Task(1000, FULL, 8), ReductionPlan.flat(4)
    hop = 1000 + FULL
    assert of("switch", flat, one) == PathCost("switch", 2 * hop, 1)
    assert of("switch", ReductionPlan(((0, 1), (2, 3))), one).predicted_ns == 4 * hop
    assert of("chain", flat, one) == PathCost("chain", 6 * hop, 3)
    assert of("ring", flat, one) == PathCost("ring", 6 * hop, 3)
    star = of("overlay", flat, Task(0, FULL, 8))
    assert star == PathCost("overlay", 2 * (1000 + 3 * 40), 1, 3)


def test_further_messages_follow_as_fast_as_the_busiest_host() -> None:
    flat, many = ReductionPlan.flat(4), Task(101_000, FULL, 1000)
    hop = 1000 + FULL
    assert of("switch", flat, many).predicted_ns == 2 * hop + 100 * FULL
    assert of("chain", flat, many).predicted_ns == 6 * hop + 100 * 2 * FULL
    assert of("ring", flat, many).predicted_ns == 6 * hop + 100 * FULL * 6 // 4
    assert of("overlay", ReductionPlan.flat(2), many).predicted_ns == 2 * hop + 100 * FULL


def test_a_small_window_holds_them_back() -> None:
    flat, hop = ReductionPlan.flat(4), 1000 + FULL
    assert of("switch", flat, Task(3000, FULL, 1)).predicted_ns == 3 * 2 * hop
    assert of("chain", flat, Task(3000, FULL, 2)).predicted_ns == 2 * 6 * hop


def test_a_nested_plan_costs_a_chain_a_sum_for_each_list_that_is_open() -> None:
    """Ranks 2 to 4 of ((0, 1), (2, 3, 4)) pass two payloads on; the last one none."""
    nested, many = ReductionPlan(((0, 1), (2, 3, 4))), Task(101_000, FULL, 1000)
    flat = ReductionPlan.flat(5)
    assert (
        of("chain", nested, many).predicted_ns - of("chain", flat, many).predicted_ns == 2 * 1000 + 100 * 1000
    )


def test_the_bound_of_an_overlay_is_the_one_that_is_fastest() -> None:
    flat = ReductionPlan.flat(16)
    assert of("overlay", flat, Task(0, FULL, 8)).in_degree == 15
    assert of("overlay", flat, Task(10_000_000, FULL, 10_000)).in_degree == 1
    assert of("overlay", ReductionPlan((0,)), Task(5, FULL, 1)) == PathCost("overlay", 0, 0, 1)


def test_slow_switches_are_slow() -> None:
    slow = LinkFigures(1000, 8 * 10**9, switch_rate_bps=8 * 10**8)
    many = Task(101_000, FULL, 1000)
    found = costs(ALL, ReductionPlan.flat(2), many, slow)
    assert [cost.path for cost in found] == ["chain", "overlay", "ring", "switch"], (
        "equal ones keep their order"
    )
    assert (
        of("switch", ReductionPlan.flat(2), many, slow).predicted_ns == 2 * (1000 + 10 * FULL) + 1000 * FULL
    )


def test_small_tensors_of_many_hosts_go_up_a_tree_and_great_ones_of_few_along_a_chain() -> None:
    links = LinkFigures(10_000, 10**10)
    by_hosts: tuple[RingPath, ...] = ("chain", "overlay")
    small = costs(by_hosts, RACKS, Task(4096, 170 * 1024, 8), links)
    great = costs(by_hosts, ReductionPlan.flat(4), Task(64 << 20, 170 * 1024, 8), links)
    assert (small[0].path, great[0].path) == ("overlay", "chain")


def test_it_is_explained_in_words() -> None:
    found = costs(
        ("chain", "overlay", "switch"), RACKS, Task(4096, 170 * 1024, 8), LinkFigures(10_000, 10**10)
    )
    assert explain(found) == ("switch: 2 levels, predicted 0.0532 ms against overlay 0.156 ms, chain 1.84 ms")
    assert explain(found[1:2]) == "overlay: 2 levels, predicted 0.156 ms"


def test_what_has_no_cost_is_refused() -> None:
    task = Task(1, FULL, 1)
    with pytest.raises(LocalMisuse, match="path shared is no way by itself"):
        costs(["shared"], RACKS, task, GIGABYTE_PER_S)
    with pytest.raises(LocalMisuse, match="in another order"):
        costs(["chain"], ReductionPlan((1, 0)), task, GIGABYTE_PER_S)
    for figures in ((-1, 1, 0), (0, 0, 0), (0, 1, -1)):
        with pytest.raises(LocalMisuse, match="links of"):
            LinkFigures(*figures)
    for sizes in ((-1, FULL, 1), (1, 40, 1), (1, FULL, 0)):
        with pytest.raises(LocalMisuse, match="a size below 0"):
            Task(*sizes)


def test_a_flat_plan_of_a_thousand_hosts_has_a_cost() -> None:
    """Its tree of one child each is a thousand levels deep."""
    assert of("overlay", ReductionPlan.flat(1000), Task(4096, FULL, 8)).predicted_ns > 0
