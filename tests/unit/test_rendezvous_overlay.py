"""The path overlay: who hears of which links, who may take it, and which path by the hosts is next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.events import LinkMeasured, Noted, RendezvousAction
from inaproto.core.rendezvous.path_costs import LinkFigures
from inaproto.core.switch.accelerator import RingRefused
from inaproto.units import S
from inaproto.wire.control_messages import Error, Halt, IntoAddress, OutAddress, Ring
from tests.unit.rendezvous_fabrics import fabric_adding
from tests.unit.rendezvous_hosts import LARGE, World, failure, sent
from tests.unit.rendezvous_members import member

FOUR = {host: (host,) for host in range(4)}
CROSSED = ReductionPlan(((0, 2), (1, 3)))
TREE = OverlayTree(CROSSED, 4)
SLOW = LinkFigures(latency_ns=1_000_000, rate_bps=10**10)
"""Links on which hops count."""


def world(plan: ReductionPlan | None = CROSSED, **config: Any) -> World:
    asked: dict[str, Any] = {"overlays": tuple(FOUR), "plan": plan}
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


# --- a choice against the switches

SLOW_SWITCH = LinkFigures(latency_ns=1000, rate_bps=10**10, switch_rate_bps=10**9)
"""It adds up at a tenth of what links carry."""


def paths_of(actions: list[RendezvousAction]) -> set[str]:
    return {halt.path for _, halt in sent(actions, Halt)}


def goes_on(at: World, actions: list[RendezvousAction], progress: int = 0) -> list[RendezvousAction]:
    """All hosts that are halted say how far they are, with links for the next path; returns what follows."""
    last: list[RendezvousAction] = []
    for session, halt in sent(actions, Halt):
        host = session % 10
        if halt.path == "overlay":
            last = at.halted(host, progress, below=below(host, halt.children), slots=2)
        else:
            last = at.halted(host, progress)
    return last


def test_hosts_that_are_predicted_to_be_faster_by_more_than_the_margin_sum_though_there_is_a_switch() -> None:
    at = world(None, links=SLOW_SWITCH)
    halts = asks_all(at)
    [path] = paths_of(halts)
    assert path in ("overlay", "chain")
    goes_on(at, halts)
    noted = at.ready()[-1]
    assert isinstance(noted, Noted)
    assert not noted.is_problem
    assert (at.job.phase, at.job.path) == ("running", path)
    assert at.job.fallback.startswith(f"predicted to be faster by {path} than in the switches: ")
    assert at.job.costs.startswith(f"{path}: ")
    assert "switch " in at.job.costs
    assert at.job.links == "configured: 1 us a hop, 10000 Mbit/s, switches 1000 Mbit/s"
    assert at.installed == {}
    assert at.core.deadline is None, "the switches are not tried again after a while"


@pytest.mark.parametrize(
    ("rate_bps", "expected"), [(10**10, "switch"), (4 * 10**9, "switch"), (10**9, "hosts")]
)
def test_within_the_margin_it_stays_in_the_switches(rate_bps: int, expected: str) -> None:
    at = world(None, links=LinkFigures(1000, 10**10, rate_bps))
    assert (not paths_of(asks_all(at))) == (expected == "switch")


def test_a_path_that_was_asked_for_is_kept_whatever_is_predicted() -> None:
    at = world(None, links=SLOW_SWITCH)
    assert {halt.path for _, halt in sent(asks_all(at, path="chain"), Halt)} == {"chain"}
    assert at.job.fallback == "asked for"


def measured(at: World, rate_bps: int) -> None:
    for one, other in (("h0", "h1"), ("h2", "h1"), ("h3", "h2")):
        at.step(LinkMeasured((one, other), 1000, rate_bps))


def test_links_that_hosts_have_measured_are_used_where_none_are_configured() -> None:
    at = world(None, switch_rate_bps=10**9)
    measured(at, 10**10)
    assert paths_of(asks_all(at))
    assert at.job.links == "measured: 1 us a hop, 10000 Mbit/s, switches 1000 Mbit/s"


def test_configured_links_go_before_measured_ones() -> None:
    at = world(None, links=SLOW)
    measured(at, 10**6)
    asks_all(at)
    at.ready()
    assert at.job.links == "configured: 1000 us a hop, 10000 Mbit/s"


def test_without_a_measure_of_each_host_nothing_is_predicted() -> None:
    at = world(None)
    at.step(LinkMeasured(("h0", "h1"), 1000, 10**9))
    assert not paths_of(asks_all(at))
    assert (at.job.costs, at.job.links) == ("", "")


def test_it_goes_back_when_its_ring_ends_and_the_prediction_is_the_other_way_by_the_margin() -> None:
    at = world(None, switch_rate_bps=10**9)
    measured(at, 10**10)
    halts = asks_all(at)
    [path] = paths_of(halts)
    goes_on(at, halts)
    at.ready()
    measured(at, 3 * 10**9)  # hosts and switches are alike now, within the margin: nothing changes
    goes_on(at, at.broken(1), 5)
    at.ready()
    assert at.job.path == path
    measured(at, 10**8)  # what hosts send twice counts
    goes_on(at, goes_on(at, at.broken(1), 9), 9)
    at.ready()
    assert (at.job.phase, at.job.path, at.job.fallback) == ("running", "switch", "")


def test_links_of_an_overlay_are_none_for_the_switches_and_all_hosts_are_asked_for_others() -> None:
    at = world(None, switch_rate_bps=10**9)
    measured(at, 10**10)
    goes_on(at, asks_all(at))
    at.ready()
    halts = at.broken(1)
    assert paths_of(halts) == {"overlay"}
    measured(at, 10**8)
    tree = OverlayTree(ReductionPlan.flat(4), next(halt.children for _, halt in sent(halts, Halt)))
    assert paths_of(halted_all(at, tree, 9)) == {"switch"}
    for host in (0, 1, 2):
        assert at.halted(host, 9) == [], "the others' links are those of the tree"
    rings = sent(at.halted(3, 9), Ring)
    assert {(ring.path, ring.successor.slots) for _, ring in rings} == {("switch", 4)}


def test_a_path_that_is_predicted_to_be_fast_and_breaks_is_left_for_the_switches() -> None:
    at = world(None, links=SLOW_SWITCH)
    halts = asks_all(at)
    goes_on(at, halts)
    at.ready()
    paths = []
    for _ in range(4):
        halts = at.broken(1)
        paths += sorted(paths_of(halts))
        goes_on(at, halts)
        at.ready()
    assert paths[0] == "overlay"
    assert "switch" in paths[1:], paths


@pytest.mark.parametrize(("overlays", "path"), [((), "switch"), (tuple(FOUR), "overlay")])
def test_hosts_that_can_be_no_chain_any_more_take_another_path(overlays: tuple[int, ...], path: str) -> None:
    """One of them comes back at another switch, so ranks are added in another order."""
    plan = ReductionPlan(((0, 1), (2, 3)))
    at = world(plan, overlays=overlays)
    asks_all(at)
    at.ready()
    goes_on(at, at.step(RingRefused(1, "full")))
    at.ready()
    assert at.job.path == "chain"
    at.goes_away(0)
    at.arrives(0, switch=fabric_adding(plan)[1][2], overlays=bool(overlays))
    at.asks(0, progress=0)
    last = [at.halted(host, 0) for host in FOUR][-1]
    goes_on(at, last)
    at.ready()
    assert (at.job.phase, at.job.path) == ("running", path)
