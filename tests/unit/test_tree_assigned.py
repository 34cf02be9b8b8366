"""Rings along trees that were assigned to them, by further links of the fabric (MINA section II-B)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import pytest

from inaproto.core.rendezvous.events import RoomMade
from inaproto.core.rendezvous.fabric.control import NO_WAY, SWITCH_LOST, TRUNK_LOST, TreeControl
from inaproto.core.rendezvous.fabric.events import (
    Admit,
    Faulted,
    HostSeen,
    Installed,
    Order,
    Refused,
    Release,
    RingGone,
    RingWanted,
    SwitchArrived,
    SwitchLost,
    Tell,
    TimePassed,
    TreeAction,
    TreeControlConfig,
    TrunkSaid,
)
from inaproto.core.rendezvous.fabric.shapes import plan_of, roles_of, shape_of
from inaproto.core.rendezvous.fabric_tree import FabricSwitch, LinkUp
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, PortId, S
from inaproto.wire.messages.trees import FabricTree
from tests.unit.test_tree_control import RING, Controlled, ip, spec, start, switch

OTHER_RING = 8


def leaf(number: int, *, aggregates: bool = True) -> FabricSwitch:
    """Port 1 is to spine0, port 2 to spine1; there, each leaf's number counted from 1."""
    further = (LinkUp("spine1", PortId(2), PortId(1 + number)),)
    return replace(switch(f"leaf{number}", "spine0", 1 + number, aggregates=aggregates), further=further)


def two_spines() -> tuple[FabricSwitch, ...]:
    return (switch("spine0"), switch("spine1"), leaf(0), leaf(1))


def tree(root: str) -> FabricTree:
    return FabricTree(root, (("leaf0", root), ("leaf1", root)))


ALONG_0 = tree("spine0")
ALONG_1 = tree("spine1")
LEAVES = ("leaf0", "leaf1")


class TwoSpines(Controlled):
    """Two ranks, one at each leaf."""

    def __init__(self, seats: tuple[str, ...] = LEAVES) -> None:
        self.config = TreeControlConfig(two_spines(), {ip(rank): name for rank, name in enumerate(seats)})
        self.core = TreeControl(self.config)
        self.now = Instant(0)
        self.size = len(seats)
        assert self.step(SwitchArrived("spine1")) == [Admit("spine1"), Tell(RoomMade())]
        for name in LEAVES:
            assert self.step(SwitchArrived(name)) == [Admit(name)]

    def wanted(self, along: FabricTree | None, ring_id: int = RING) -> list[TreeAction]:
        return self.step(RingWanted(spec(self.size, ring_id), along))

    def standing(self, along: FabricTree | None, ring_id: int = RING) -> None:
        for action in self.wanted(along, ring_id):
            assert isinstance(action, Order)
            assert self.step(Installed(action.switch, ring_id)) == []

    def phases(self) -> dict[int, str]:
        return {ring.ring_id: ring.phase for ring in self.core.view().rings}


def told_switches(actions: list[TreeAction]) -> list[str]:
    return [
        action.switch
        for action in actions
        if isinstance(action, Order) and isinstance(action.order, InstallRing)
    ]


def test_a_ring_goes_along_the_tree_that_was_assigned_to_it() -> None:
    world = TwoSpines()
    orders = world.wanted(ALONG_1)
    assert told_switches(orders) == ["spine1", "leaf0", "leaf1"]
    roles = {one.switch: one.order.spec.role for one in orders if isinstance(one, Order)}  # type: ignore[union-attr]
    for number, name in enumerate(LEAVES):
        role = roles[name]
        assert role is not None
        assert role.parent is not None
        assert (role.parent.peer, role.parent.port) == ("spine1", 2)
        child = roles["spine1"].children[number]  # type: ignore[union-attr]
        assert (child.peer, child.port) == (name, 1 + number)


def test_the_fabrics_own_tree_may_be_assigned_too() -> None:
    world = TwoSpines()
    assert world.wanted(ALONG_0) == TwoSpines().wanted(None)
    world = TwoSpines()
    world.step(TrunkSaid("leaf1", "cut"))
    assert world.wanted(ALONG_0) == [], "as any ring of the fabric's own tree it waits"


def test_the_assigned_root_stays_the_root_where_a_lower_switch_would_do() -> None:
    world = TwoSpines(("leaf0", "leaf0"))
    assert told_switches(world.wanted(None)) == ["leaf0"]
    assert told_switches(world.wanted(ALONG_1, OTHER_RING)) == ["spine1", "leaf0"]
    assert roles_of(world.config, spec(2), tree=FabricTree("leaf0")) == {"leaf0": None}


def test_hosts_add_in_the_order_of_the_assigned_tree() -> None:
    switches, seats = two_spines(), ("leaf0", "leaf1", "leaf0")
    own = plan_of(switches, seats)
    assert own is not None
    assert plan_of(switches, seats, ALONG_1) == own, "two roots over the same leaves add alike"
    assert plan_of(switches, seats, FabricTree("spine1", (("leaf0", "spine1"),))) is None
    assert plan_of(switches, ("",), ALONG_1) is None
    one_rack = seats[:1] + seats[2:]
    assert plan_of(switches, one_rack, ALONG_1) != plan_of(switches, one_rack)


def test_trees_along_which_a_ring_is_the_same_are_told_from_others() -> None:
    both, one_rack, strange = LEAVES, ("leaf0", "leaf0"), ("leaf0", "")

    def shape(seats: tuple[str, ...], tree: FabricTree | None = None) -> Hashable:
        return shape_of(two_spines(), seats, tree)

    assert shape(both, ALONG_0) == shape(both)
    assert shape(both, ALONG_1) != shape(both)
    fewer = FabricTree("spine1", (("leaf0", "spine1"),))
    assert shape(one_rack, ALONG_1) == shape(one_rack, fewer)
    assert shape(one_rack, FabricTree("leaf0")) == shape(one_rack)
    assert shape(both, fewer) == fewer
    assert (shape(strange, ALONG_1), shape(strange)) == (ALONG_1, None)
    assert hash(shape(both)) == hash(shape(both, ALONG_0))


@pytest.mark.parametrize(
    ("along", "words"),
    [
        (tree("spine2"), "the tree has a switch 'spine2', which is none of the fabric"),
        (
            FabricTree("spine1", (("leaf0", "spine1"), ("leaf7", "spine1"))),
            "the tree has a switch 'leaf7', which is none of the fabric",
        ),
        (
            FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "top"))),
            "the tree has a switch 'top', which is none of the fabric",
        ),
        (
            FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "spine1")), ("spine1",)),
            "switch spine1 is to pass sums on, and is the root",
        ),
        (
            FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "spine1")), ("spine0",)),
            "switch spine0 is to pass sums on, and is not in the tree",
        ),
        (
            FabricTree("leaf0", (("leaf1", "spine1"), ("spine1", "leaf1"))),
            "switch leaf1 is in the tree, but does not lead to leaf0, its root",
        ),
        (
            FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "leaf0"))),
            "the fabric has no trunk from leaf1 up to leaf0, as the tree has",
        ),
        (
            FabricTree("spine1", (("leaf0", "spine1"), ("spine0", "spine1"))),
            "the fabric has no trunk from spine0 up to spine1, as the tree has",
        ),
        (
            FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "spine0"))),
            "switch leaf1 is in the tree, but does not lead to spine1, its root",
        ),
        (
            FabricTree("spine1", (("leaf0", "spine0"), ("leaf0", "spine1"), ("leaf1", "spine1"))),
            "the tree has two links up from one switch, or one from its root",
        ),
        (
            FabricTree("leaf0", (("leaf0", "spine1"), ("leaf1", "spine1"))),
            "the tree has two links up from one switch, or one from its root",
        ),
        (FabricTree("spine1", (("leaf0", "spine1"),)), "the tree of spine1 does not reach switch leaf1"),
        (FabricTree("spine1"), "the tree of spine1 does not reach switch leaf0"),
    ],
)
def test_a_tree_that_cannot_be_laid_is_refused_by_what_is_wrong_with_it(
    along: FabricTree, words: str
) -> None:
    world = TwoSpines()
    (told,) = world.wanted(along)
    assert isinstance(told, Tell)
    assert isinstance(told.event, RingRefused)
    assert (told.event.reason, told.event.until_room) == (words, False)
    assert world.phases() == {}
    assert world.core.view().counters["trees_refused"] == 1


def test_a_root_that_steers_is_refused() -> None:
    fabric = (switch("spine0"), switch("spine1"), leaf(0, aggregates=False))
    config = TreeControlConfig(fabric, {ip(0): "leaf0", ip(1): "leaf0"})
    with pytest.raises(LocalMisuse, match="switch leaf0, the root of the tree, does not aggregate"):
        roles_of(config, spec(2), tree=FabricTree("leaf0"))


def test_ranks_behind_a_switch_that_steers_are_inputs_of_the_assigned_root() -> None:
    fabric = (switch("spine0"), switch("spine1"), leaf(0, aggregates=False), leaf(1))
    config = TreeControlConfig(fabric, {ip(0): "leaf0", ip(1): "leaf1"})
    roles = roles_of(config, spec(2), tree=ALONG_1)
    assert roles["leaf0"] is not None
    assert (roles["leaf0"].steered, roles["leaf0"].steer_to) == ((0,), 2)
    assert roles["spine1"] is not None
    assert roles["spine1"].ranks == (0,)


def test_a_tree_may_lead_down_a_trunk_and_over_switches_that_only_pass_on() -> None:
    """Rooted at a leaf: what the other one adds goes up to a spine, which could add, and down again."""
    world = TwoSpines()
    along = FabricTree("leaf0", (("leaf1", "spine1"), ("spine1", "leaf0")), ("spine1",))
    roles = roles_of(world.config, spec(2), tree=along)
    leaf0, spine1, leaf1 = (roles[name] for name in ("leaf0", "spine1", "leaf1"))
    assert leaf0 is not None
    assert spine1 is not None
    assert leaf1 is not None
    (child,) = leaf0.children
    assert (child.peer, child.port, leaf0.below) == ("leaf1", 2, (2,))
    assert (spine1.inputs, spine1.steered, spine1.steer_to, spine1.below) == ((), (), 1, (2,))
    assert [(passed.peer, passed.port) for passed in spine1.passes] == [("leaf1", 2)]
    assert leaf1.parent is not None
    assert (leaf1.parent.peer, leaf1.parent.port, leaf1.below) == ("leaf0", 2, ())
    fabric = world.config.switches
    assert plan_of(fabric, LEAVES, along).to_lists() == [0, [1]]  # type: ignore[union-attr]
    added = FabricTree("leaf0", along.above)
    assert plan_of(fabric, LEAVES, added).to_lists() == [0, [[1]]]  # type: ignore[union-attr]
    assert shape_of(fabric, LEAVES, along) != shape_of(fabric, LEAVES, added)
    assert roles_of(world.config, spec(2), tree=ALONG_0)["leaf0"].below is None  # type: ignore[union-attr]


def test_a_ring_that_needs_a_trunk_downwards_ends_when_that_is_lost() -> None:
    world = TwoSpines()
    world.standing(FabricTree("leaf0", (("leaf1", "spine1"), ("spine1", "leaf0"))))
    (told,) = world.step(TrunkSaid("leaf0", "cut", "spine1"))
    assert isinstance(told, Tell)
    assert isinstance(told.event, RingFault)
    assert (told.event.rule, told.event.rank) == (TRUNK_LOST, 1)
    world.step(RingGone(RING))
    (told,) = world.wanted(FabricTree("leaf0", (("leaf1", "spine1"), ("spine1", "leaf0"))))
    assert isinstance(told, Tell)
    assert "the trunk between spine1 and leaf0 is down: cut" in str(told.event)


# --- what is missing


def test_without_a_further_root_its_ring_is_refused_at_once_and_tried_when_it_comes() -> None:
    world = TwoSpines()
    world.step(SwitchLost("spine1", "power"))
    refused = [Tell(RingRefused(RING, "switch spine1 is not connected", until_room=True))]
    assert world.wanted(ALONG_1) == refused
    assert world.core.deadline is None
    world.standing(ALONG_0, OTHER_RING)
    assert world.step(SwitchArrived("spine1")) == [Admit("spine1"), Tell(RoomMade())]
    assert told_switches(world.wanted(ALONG_1)) == ["spine1", "leaf0", "leaf1"]


def test_without_a_further_trunk_its_ring_is_refused_at_once_and_tried_when_it_is_up() -> None:
    world = TwoSpines()
    world.step(TrunkSaid("leaf1", "cut", "spine1"))
    reason = "the trunk between leaf1 and spine1 is down: cut"
    assert world.core.view().trunks_down == {("leaf1", "spine1"): "cut"}
    assert world.wanted(ALONG_1) == [Tell(RingRefused(RING, reason, until_room=True))]
    assert told_switches(world.wanted(None, OTHER_RING)) == ["spine0", "leaf0", "leaf1"]
    assert world.step(TrunkSaid("leaf1", "", "spine1")) == [Tell(RoomMade())]
    assert told_switches(world.wanted(ALONG_1)) == ["spine1", "leaf0", "leaf1"]


def test_nobody_starts_on_a_ring_that_was_refused_at_once() -> None:
    """The rendezvous has asked for the starts before it hears of the refusal, and gives the ring up then."""
    world = TwoSpines()
    for along in (ALONG_1, FabricTree("spine1")):
        world.step(TrunkSaid("leaf1", "cut", "spine1"))
        assert isinstance(world.wanted(along)[0], Tell)
        assert world.step(start()) == []
        assert world.step(RingGone(RING)) == [], "no switch has heard of it"
        assert world.step(start()) == [Release(start().start)], "one of the hosts alone"
    world.wanted(ALONG_1)
    world.standing(None)
    assert world.step(start()) == [Release(start().start)], "it is wanted along another tree, and stands"


def test_trunks_that_the_fabric_has_not_are_not_believed() -> None:
    world = TwoSpines()
    for said in (TrunkSaid("leaf1", "cut", "leaf0"), TrunkSaid("spine1", "cut"), TrunkSaid("spine0", "cut")):
        assert world.step(said) == []
    assert world.core.view().trunks_down == {}


def test_of_a_switch_that_has_just_come_the_word_on_all_its_trunks_is_awaited() -> None:
    world = TwoSpines()
    world.step(SwitchArrived("leaf1", is_trunk_up=False))
    assert len(world.core.view().trunks_down) == 2
    assert world.wanted(ALONG_1) == []
    assert world.step(TrunkSaid("leaf1", "")) == [Tell(RoomMade())]
    assert world.phases() == {RING: "waiting"}
    reason = "the trunk between leaf1 and spine1 is down: it has not come up yet"
    assert world.core.view().rings[0].waits_for == reason
    assert told_switches(world.step(TrunkSaid("leaf1", "", "spine1"))) == ["spine1", "leaf0", "leaf1"]


def test_a_ring_of_a_further_root_waits_only_while_its_ranks_cannot_reach_each_other() -> None:
    """What they send is answered along the fabric's own tree."""
    world = TwoSpines()
    world.step(TrunkSaid("leaf1", "cut"))
    assert world.wanted(ALONG_1) == []
    assert world.core.view().rings[0].waits_for == "the trunk between leaf1 and spine0 is down: cut"
    assert told_switches(world.step(TrunkSaid("leaf1", ""))) == ["spine1", "leaf0", "leaf1"]
    world.step(RingGone(RING))
    world.step(TrunkSaid("leaf1", "cut"))
    world.step(TrunkSaid("leaf1", "cut, too", "spine1"))
    assert world.wanted(ALONG_1) == []
    refused = RingRefused(RING, "the trunk between leaf1 and spine1 is down: cut, too", until_room=True)
    assert world.step(TrunkSaid("leaf1", "")) == [Tell(refused), Tell(RoomMade())]
    world.step(RingGone(RING))
    world.step(TrunkSaid("leaf1", "cut"))
    assert world.wanted(ALONG_1) == []
    world.now = Instant(world.now + 5 * S)
    (told,) = world.step(TimePassed())
    assert isinstance(told, Tell)
    assert isinstance(told.event, RingFault)
    assert told.event.rule == NO_WAY


def test_what_stands_above_all_ranks_in_the_own_tree_is_no_matter_for_an_assigned_one() -> None:
    fabric = (switch("spine0"), switch("spine1"), leaf(0, aggregates=False), leaf(1))
    config = TreeControlConfig(fabric, {ip(0): "leaf0", ip(1): "leaf0"})
    core = TreeControl(config)
    for name in ("spine1", *LEAVES):
        core.step(SwitchArrived(name), Instant(0))
    core.step(TrunkSaid("leaf0", "cut"), Instant(0))
    reason = "the trunk between leaf0 and spine0 is down: cut"
    assert core.step(RingWanted(spec(2)), Instant(0)) == [Tell(RingRefused(RING, reason, until_room=True))]
    orders = core.step(RingWanted(spec(2), FabricTree("spine1", (("leaf0", "spine1"),))), Instant(0))
    assert told_switches(orders) == ["spine1", "leaf0"]


# --- what is lost


def test_a_further_root_that_is_lost_hurts_only_the_rings_that_are_on_it() -> None:
    world = TwoSpines()
    world.standing(ALONG_1)
    world.standing(ALONG_0, OTHER_RING)
    fault = RingFault(RING, 0, SWITCH_LOST, "spine1 is gone: power")
    assert world.step(SwitchLost("spine1", "power")) == [Tell(fault)]
    assert world.phases() == {RING: "failed", OTHER_RING: "standing"}
    assert world.step(RingGone(RING)) == [Order(name, RemoveRing(RING)) for name in LEAVES]
    blocked = world.step(SwitchArrived("spine1"))
    assert [type(one.order) for one in blocked if isinstance(one, Order)] == [InstallRing, RemoveRing]


def test_a_further_trunk_that_is_lost_ends_every_ring_that_needs_it() -> None:
    world = TwoSpines()
    for ring in (RING, OTHER_RING):
        world.standing(ALONG_1, ring)
    assert world.step(TrunkSaid("leaf0", "", "spine1")) == []
    assert set(world.phases().values()) == {"standing"}
    told = world.step(TrunkSaid("leaf0", "cut", "spine1"))
    evidence = "the trunk between leaf0 and spine1 is down: cut"
    assert told == [Tell(RingFault(ring, 0, TRUNK_LOST, evidence)) for ring in (RING, OTHER_RING)]


def test_what_is_known_of_other_trunks_stays_when_a_switch_comes_or_goes() -> None:
    world = TwoSpines()
    world.step(TrunkSaid("leaf1", "cut", "spine1"))
    world.step(SwitchArrived("leaf0", is_trunk_up=False))
    not_said = "it has not come up yet"
    assert world.core.view().trunks_down == {
        ("leaf1", "spine1"): "cut",
        ("leaf0", "spine0"): not_said,
        ("leaf0", "spine1"): not_said,
    }
    assert world.step(SwitchLost("leaf0", "power")) == []
    assert world.step(SwitchLost("leaf9", "which is none")) == []
    assert world.core.view().trunks_down == {("leaf1", "spine1"): "cut"}


@pytest.mark.parametrize("stands", [False, True])
def test_a_further_trunk_that_is_lost_ends_the_rings_that_need_it(stands: bool) -> None:
    """Its frames are not sent again for ever: its ranks reach each other, so their hosts can sum."""
    world = TwoSpines()
    for action in world.wanted(ALONG_1):
        if stands:
            assert isinstance(action, Order)
            world.step(Installed(action.switch, RING))
    world.standing(ALONG_0, OTHER_RING)
    fault = RingFault(RING, 1, TRUNK_LOST, "the trunk between leaf1 and spine1 is down: cut")
    assert world.step(TrunkSaid("leaf1", "cut", "spine1")) == [Tell(fault)]
    assert world.phases() == {RING: "failed", OTHER_RING: "standing"}
    assert world.step(TrunkSaid("leaf1", "still cut", "spine1")) == []
    assert world.core.view().counters["trunks_down"] == 1
    assert world.step(TrunkSaid("leaf1", "cut")) == [], "the ranks of the other are parted by this one"
    assert world.phases() == {RING: "failed", OTHER_RING: "standing"}


def test_a_trunk_of_the_own_tree_that_only_an_assigned_one_needs_is_as_a_further_one() -> None:
    """A switch without hosts, as a second aggregation switch of a pod is."""
    middle = switch("agg1", "spine0", 3)
    leaves = [
        replace(
            switch(f"leaf{number}", "spine0", 1 + number),
            further=(LinkUp("agg1", PortId(2), PortId(number)),),
        )
        for number in (0, 1)
    ]
    config = TreeControlConfig((switch("spine0"), middle, *leaves), {ip(0): "leaf0", ip(1): "leaf1"})
    core = TreeControl(config)
    for name in ("agg1", *LEAVES):
        core.step(SwitchArrived(name), Instant(0))
    along = FabricTree("spine0", (("agg1", "spine0"), ("leaf0", "agg1"), ("leaf1", "agg1")))
    orders = core.step(RingWanted(spec(2), along), Instant(0))
    assert told_switches(orders) == ["spine0", "agg1", "leaf0", "leaf1"]
    fault = RingFault(RING, 0, TRUNK_LOST, "the trunk between agg1 and spine0 is down: cut")
    assert core.step(TrunkSaid("agg1", "cut"), Instant(0)) == [Tell(fault)]


# --- one ring after another of the same id


def test_a_ring_may_be_wanted_again_along_another_tree() -> None:
    world = TwoSpines()
    world.standing(ALONG_0)
    assert world.step(RingGone(RING)) == [Order(name, RemoveRing(RING)) for name in ("spine0", *LEAVES)]
    for name in told_switches(world.wanted(ALONG_1)):
        assert world.phases() == {RING: "installing"}
        world.step(Installed(name, RING))
    assert world.phases() == {RING: "standing"}
    assert world.step(start()) == [Release(start().start)]


def test_what_a_switch_answers_to_an_earlier_order_is_not_taken_for_the_answer_to_the_last() -> None:
    world = TwoSpines()
    world.wanted(ALONG_0)
    world.step(Installed("spine0", RING))
    world.step(RingGone(RING))
    world.wanted(ALONG_1)
    world.step(start())
    assert world.step(Installed("leaf0", RING)) == []
    assert world.step(Faulted("leaf0", RingFault(RING, 0, "operations differ", "late"))) == []
    assert world.step(Refused("leaf1", RingRefused(RING, "full, then"))) == []
    assert world.core.view().rings[0].missing == ("spine1", "leaf0", "leaf1")
    for name in ("spine1", "leaf0"):
        assert world.step(Installed(name, RING)) == []
    assert world.step(Installed("leaf1", RING)) == [Release(start().start)]
    fault = RingFault(RING, 0, "operations differ", "now")
    assert world.step(Faulted("leaf0", fault)) == [Tell(fault)]


def test_a_switch_that_restarts_hears_once_of_a_ring_that_was_there_often() -> None:
    world = TwoSpines()
    for _ in range(5):
        for along in (ALONG_0, ALONG_1):
            world.standing(along)
            world.step(RingGone(RING))
    for name in ("leaf0", "spine1"):
        orders = world.step(SwitchArrived(name))
        assert told_switches(orders) == [name]
        assert [type(one.order) for one in orders if isinstance(one, Order)] == [InstallRing, RemoveRing]
    half = world.config.retired_ns // 2
    world.now = Instant(world.now + half)
    world.standing(ALONG_0)
    world.step(RingGone(RING))
    assert told_switches(world.step(SwitchArrived("spine1"))) == ["spine1"], "it counts from the last time"
    world.now = Instant(world.now + 2 * half)
    assert told_switches(world.step(SwitchArrived("leaf0"))) == []
    world.standing(ALONG_0)
    world.step(RingGone(RING))
    assert told_switches(world.step(SwitchArrived("spine1"))) == [], "that it had it is long ago"


@pytest.mark.parametrize("has_less", [True, False])
def test_what_a_switch_says_of_a_ring_that_has_left_it_hurts_nobody(has_less: bool) -> None:
    """It restarts, is told of the ring as one that was removed, and cannot take it, or finds a fault."""
    world = TwoSpines()
    world.standing(ALONG_1)
    world.step(RingGone(RING))
    world.standing(ALONG_0)
    assert told_switches(world.step(SwitchArrived("spine1"))) == ["spine1"]
    if has_less:
        assert world.step(Refused("spine1", RingRefused(RING, "needs 10 bytes of memory, 5 are free"))) == []
    else:
        world.step(Installed("spine1", RING))
        assert world.step(Faulted("spine1", RingFault(RING, 0, "packet layout", "a stray"))) == []
    assert world.phases() == {RING: "standing"}
    (told,) = world.step(Refused("leaf0", RingRefused(RING, "no room")))
    assert isinstance(told, Tell)
    assert world.core.view().counters["trees_refused"] == 1


@pytest.mark.parametrize("until_switch", [True, False])
def test_whether_trying_again_helps_is_what_the_switch_says(until_switch: bool) -> None:
    world = TwoSpines()
    world.wanted(ALONG_0)
    refusal = RingRefused(RING, "no room", until_switch=until_switch)
    told = RingRefused(RING, "leaf0: no room", until_switch=until_switch)
    assert world.step(Refused("leaf0", refusal)) == [Tell(told)]


def test_a_switch_that_restarts_owes_no_answers() -> None:
    world = TwoSpines()
    world.wanted(ALONG_0)
    world.step(RingGone(RING))
    world.wanted(ALONG_0)
    (told,) = world.step(SwitchLost("leaf0", "power"))
    assert isinstance(told, Tell)
    world.step(RingGone(RING))
    orders = world.step(SwitchArrived("leaf0"))
    assert told_switches(orders) == ["leaf0"], "it is told of it, as removed"
    world.wanted(ALONG_0)
    assert world.step(Installed("leaf0", RING)) == []
    assert "leaf0" in world.core.view().rings[0].missing
    world.step(Installed("leaf0", RING))
    assert "leaf0" not in world.core.view().rings[0].missing


# --- fabrics


def test_no_host_is_at_a_further_root() -> None:
    world = TwoSpines()
    world.step(HostSeen(ip(0), "spine1"))
    assert told_switches(world.wanted(None)) == ["spine0", "leaf0", "leaf1"]


def test_words_for_fabrics_with_further_links_that_cannot_be() -> None:
    further = (LinkUp("spine1", PortId(2), PortId(1)),)
    below = replace(switch("leaf0", "spine0", 1), further=further)
    for switches, hosts, words in (
        ((switch("spine0"), below), {}, "leaf0 is there twice, or before the one above it"),
        ((replace(switch("spine0"), further=further),), {}, "before the one above it"),
        (
            (switch("spine0"), switch("spine1"), replace(below, further=further * 2)),
            {},
            "leaf0 has two links to one switch",
        ),
        (
            (switch("spine0"), switch("spine1"), replace(below, above=None)),
            {},
            "leaf0 has further links up, and none of",
        ),
        (
            (switch("spine0"), switch("spine1"), switch("x", "spine1")),
            {},
            "x is below spine1, which is a further",
        ),
        (
            (switch("spine0"), switch("spine1", aggregates=False)),
            {},
            "spine1, a further root, must aggregate",
        ),
        ((switch("spine0"), switch("spine1")), {ip(0): "spine1"}, "a host is at spine1, which is no switch"),
    ):
        with pytest.raises(LocalMisuse, match=words):
            TreeControlConfig(switches, hosts)
