"""The path overlay: who hears of which links, who may take it, and which path by the hosts is next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.accelerator import RingRefused
from inaproto.core.overlay_tree import OverlayTree
from inaproto.core.path_costs import LinkFigures
from inaproto.core.reduction_plan import ReductionPlan
from inaproto.core.rendezvous_types import Noted, RendezvousAction
from inaproto.units import S
from inaproto.wire.control_messages import Error, Halt, IntoAddress, OutAddress, Ring
from tests.unit.rendezvous_hosts import LARGE, World, failure, sent
from tests.unit.rendezvous_members import member

FOUR = {host: (host,) for host in range(4)}
CROSSED = ReductionPlan(((0, 2), (1, 3)))
TREE = OverlayTree(CROSSED, 4)
SLOW = LinkFigures(latency_ns=1_000_000, rate_bps=10**10)
"""Links on which hops count."""


def world(plan: ReductionPlan | None = CROSSED, **config: Any) -> World:
    asked: dict[str, Any] = {"overlays": tuple(FOUR), "plan_of": lambda hosts: plan}
    return World(FOUR, **(asked | config))


def asks_all(of: World, **wishes: Any) -> list[RendezvousAction]:
    actions: list[RendezvousAction] = []
    for rank in range(of.size):
        actions = of.asks(rank, **wishes)
    return actions


def below(host: int, children: int) -> tuple[IntoAddress, ...]:
    link = replace(member(0, host=host).into, slots=2, slot_bytes=LARGE)
    return tuple(replace(link, qpn=1000 + 10 * host + child) for child in range(children))


def halted(of: World, host: int, tree: OverlayTree = TREE, progress: int = 0) -> list[RendezvousAction]:
    return of.halted(host, progress, below=below(host, len(tree.children(host))), slots=2)


def halted_all(of: World, tree: OverlayTree = TREE, progress: int = 0) -> list[RendezvousAction]:
    actions: list[RendezvousAction] = []
    for host in of.ranks:
        actions = halted(of, host, tree, progress)
    return actions


def test_each_host_hears_from_how_many_it_gathers_and_then_of_the_links_around_its_own() -> None:
    at = world()
    halts = sent(asks_all(at, path="overlay"), Halt)
    assert [(halt.path, halt.plan) for _, halt in halts] == [("overlay", "[[0, 2], [1, 3]]")] * 4
    assert [halt.children for _, halt in halts] == [2, 1, 0, 0]
    assert TREE.parents == (None, 0, 0, 1)
    rings = [ring for _, ring in sent(halted_all(at), Ring)]
    assert {(ring.path, ring.in_degree, ring.plan) for ring in rings} == {("overlay", 4, "[[0, 2], [1, 3]]")}
    assert [tuple(link.qpn for link in ring.below) for ring in rings] == [(602, 601), (603,), (), ()]
    assert [ring.successor.qpn for ring in rings] == [600, 1001, 1000, 1010], "the root has none, but its own"
    for ring in rings:
        up = ring.successor
        assert ring.predecessor == OutAddress(mac=up.mac, ip=up.ip, qpn=up.qpn, psn=up.psn)
    assert at.installed == {}
    at.ready()
    assert (at.job.phase, at.job.path, at.job.exact_plan) == ("running", "overlay", True)


def test_a_host_alone_has_no_tree_whatever_it_asks_for() -> None:
    at = World({0: (0, 1)}, overlays=(0,))
    assert {ring.path for _, ring in sent(asks_all(at, path="overlay"), Ring)} == {"switch"}


@pytest.mark.parametrize(
    ("children", "slots", "words"),
    [
        (1, 2, "it has 1 links to hosts below it, and is to gather from 2"),
        (2, 4, "its receive buffer has 4 slots of"),
    ],
)
def test_links_that_cannot_be_those_of_a_tree_end_the_job(children: int, slots: int, words: str) -> None:
    at = world()
    asks_all(at, path="overlay")
    assert words in failure(at.halted(0, 0, below=below(0, children), slots=slots))


def test_a_host_speaks_for_itself_of_links_below_it_too() -> None:
    at = world()
    asks_all(at, path="overlay")
    assert "a host speaks for itself" in failure(at.halted(0, 0, below=below(3, 2), slots=2))


def test_a_job_that_asks_for_it_beside_an_older_host_is_refused_in_words() -> None:
    at = world(overlays=(0, 2, 3))
    [words] = {error.message for _, error in sent(asks_all(at, path="overlay"), Error)}
    assert words == (
        "job 'train' asked for the path overlay, and h1 is of a release that does not know it; start its "
        "host daemon from a newer one, or connect with path='auto'"
    )


@pytest.mark.parametrize("exact_plan", [True, False])
def test_where_no_chain_can_follow_the_plan_hosts_that_know_overlays_sum_up_a_tree(
    exact_plan: bool,
) -> None:
    at = world()
    asks_all(at, exact_plan=exact_plan)
    at.ready()
    halts = sent(at.step(RingRefused(1, "full")), Halt)
    assert {halt.path for _, halt in halts} == {"overlay"}
    halted_all(at, progress=3)
    assert at.ready()[-1] == Noted("job train: started, the hosts sum: full", is_problem=True)
    assert (at.job.path, at.job.fallback, at.job.exact_plan) == ("overlay", "full", True)
    assert {halt.path for _, halt in sent(at.woke_at(1 * S), Halt)} == {"switch"}


def test_a_host_that_is_away_hears_of_its_own_links() -> None:
    at = world()
    asks_all(at, path="overlay")
    halted_all(at)
    at.ready()
    at.goes_away(1)
    at.arrives(1, overlays=True)
    [(session, halt)] = sent(at.asks(1, path="overlay", progress=2), Halt)
    assert (session, halt.path, halt.children) == (11, "overlay", 1)


# --- costs


def test_where_link_figures_are_known_the_fastest_path_is_next_and_the_others_follow() -> None:
    at = world(None, links=SLOW)
    asks_all(at)
    at.ready()
    assert at.job.costs == "switch: 1 level, predicted 9.11 ms against overlay 11.3 ms, chain 27.3 ms"
    paths = []
    for _ in range(5):
        paths += sorted({halt.path for _, halt in sent(at.broken(1), Halt)})
        halted_all(at, OverlayTree(ReductionPlan.flat(4), 3)) if paths[-1] == "overlay" else [
            at.halted(host, 0) for host in at.ranks
        ]
        at.ready()
    assert paths == ["switch", "overlay", "overlay", "chain", "chain"]
    assert "makes no progress by any path" in failure(at.broken(1))


def test_a_job_that_may_be_inexact_has_the_ring_among_them() -> None:
    at = world(links=SLOW)
    asks_all(at, exact_plan=False)
    at.ready()
    costs = at.job.costs.split(" against ")[1]
    assert [cost.split()[0] for cost in costs.split(", ")] == ["overlay", "ring"]
    assert {halt.path for _, halt in sent(at.step(RingRefused(1, "full")), Halt)} == {"overlay"}


def test_without_figures_it_is_the_chain_and_nothing_is_said() -> None:
    at = world(None)
    asks_all(at)
    at.ready()
    assert at.job.costs == ""
    assert {halt.path for _, halt in sent(at.step(RingRefused(1, "full")), Halt)} == {"chain"}
