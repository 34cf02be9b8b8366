"""Rings that need a switch or a trunk which is not there: they wait, are refused, or fail by its name."""

from __future__ import annotations

import pytest

from inaproto.core.rendezvous.events import RoomMade
from inaproto.core.rendezvous.fabric.control import NO_WAY
from inaproto.core.rendezvous.fabric.events import (
    Admit,
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
    TreeView,
    TrunkSaid,
)
from inaproto.core.switch.accelerator import InstallRing, RingFault, RingRefused
from inaproto.units import Instant, S
from tests.unit.test_tree_control import RING, Controlled, fabric, spec, start

OTHER_RING = 8
CUT = "the trunk between leaf1 and mid is down: cut"
NOT_YET = "the trunk between leaf1 and mid is down: it has not come up yet"


def installs(actions: list[TreeAction]) -> list[str]:
    return [
        action.switch
        for action in actions
        if isinstance(action, Order) and isinstance(action.order, InstallRing)
    ]


def both_wanted(world: Controlled) -> list[TreeAction]:
    """Two rings of the same two ranks."""
    return [action for ring in (RING, OTHER_RING) for action in world.step(RingWanted(spec(2, ring)))]


def counter(world: Controlled, name: str) -> int:
    return world.core.view().counters[name]


def cut_world(trunk: str = "leaf1") -> Controlled:
    """Ranks at two leaves, between which a trunk is down."""
    world = Controlled(["leaf0", "leaf1"])
    assert world.step(TrunkSaid(trunk, "cut")) == []
    return world


def deadline(world: Controlled) -> int | None:
    return world.core.deadline


def waiting(world: Controlled) -> str:
    (ring,) = world.core.view().rings
    assert (ring.phase, ring.missing) == ("waiting", ())
    return ring.waits_for


def test_a_ring_waits_for_a_trunk_between_its_ranks_and_starts_when_it_is_up() -> None:
    world = cut_world()
    assert world.step(RingWanted(spec(2))) == []
    assert waiting(world) == CUT
    assert world.step(start()) == []
    assert deadline(world) == 5 * S
    actions = world.step(TrunkSaid("leaf1", ""))
    assert installs(actions) == ["mid", "leaf0", "leaf1"]
    assert actions[-1] == Tell(RoomMade())
    assert deadline(world) is None
    for name in ("mid", "leaf0"):
        assert world.step(Installed(name, RING)) == []
    assert world.step(Installed("leaf1", RING)) == [Release(start().start)]
    assert world.core.view().counters["trees_waited"] == 1


def test_a_ring_that_waits_in_vain_fails_with_the_trunk_and_both_switches() -> None:
    world = cut_world()
    world.step(RingWanted(spec(2)))
    world.step(start())
    world.now = Instant(5 * S - 1)
    assert world.step(TimePassed()) == []
    assert waiting(world) == CUT
    world.now = Instant(5 * S)
    evidence = f"{CUT}; it did not come within 5 s, and no other path leads past it"
    assert world.step(TimePassed()) == [Tell(RingFault(RING, 1, NO_WAY, evidence))]
    assert world.phase == "failed"
    assert deadline(world) is None
    assert world.step(TrunkSaid("leaf1", "")) == [Tell(RoomMade())]
    assert world.step(RingGone(RING)) == [], "no switch has heard of it"
    assert world.step(SwitchArrived("leaf1"))[-1] == Admit("leaf1")
    assert installs(world.step(SwitchArrived("leaf1"))) == []


def test_a_trunk_that_comes_up_serves_every_ring_that_waits_for_it() -> None:
    world = cut_world()
    assert both_wanted(world) == []
    assert counter(world, "trees_waited") == 2
    assert installs(world.step(TrunkSaid("leaf1", ""))) == ["mid", "leaf0", "leaf1"] * 2
    assert [ring.phase for ring in world.core.view().rings] == ["installing", "installing"]


def test_all_that_wait_in_vain_fail_also_if_something_else_is_said_then() -> None:
    world = cut_world()
    both_wanted(world)
    assert world.step(TrunkSaid("leaf2", "cut")) == []
    world.now = Instant(5 * S)
    evidence = f"{CUT}; it did not come within 5 s, and no other path leads past it"
    assert world.step(TrunkSaid("leaf2", "still cut")) == [
        Tell(RingFault(ring, 1, NO_WAY, evidence)) for ring in (RING, OTHER_RING)
    ]


def test_ranks_below_one_switch_need_no_trunk_of_others() -> None:
    world = cut_world("mid")
    assert world.want() == ["mid", "leaf0", "leaf1"]


def test_a_trunk_above_all_ranks_is_no_way_between_them_so_their_hosts_sum() -> None:
    world = Controlled(["leaf0", "leaf1"], fabric(mid=False))
    world.step(TrunkSaid("mid", "cut"))
    reason = "the trunk between mid and spine is down: cut"
    refused = [Tell(RingRefused(RING, reason, until_room=True))]
    assert world.step(RingWanted(spec(2))) == refused
    assert world.core.view().rings == ()
    assert world.core.view().counters["trees_refused"] == 1
    assert world.step(TrunkSaid("mid", "")) == [Tell(RoomMade())]
    assert world.want() == ["spine", "mid", "leaf0", "leaf1"]


def test_the_trunk_that_parts_the_ranks_is_named_first() -> None:
    world = Controlled(["leaf0", "leaf1"], fabric(mid=False))
    for name in ("mid", "leaf1"):
        world.step(TrunkSaid(name, "cut"))
    world.step(RingWanted(spec(2)))
    assert waiting(world) == CUT
    (told,) = [one for one in world.step(TrunkSaid("leaf1", "")) if one != Tell(RoomMade())]
    reason = "the trunk between mid and spine is down: cut"
    assert told == Tell(RingRefused(RING, reason, until_room=True))
    assert world.phase == "failed"


def test_a_switch_between_ranks_that_is_away_is_waited_for() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.step(SwitchLost("mid", "x"))
    assert world.step(RingWanted(spec(2))) == []
    assert waiting(world) == "switch mid is not connected"
    actions = world.step(SwitchArrived("mid"))
    assert actions[0] == Admit("mid")
    assert installs(actions) == ["mid", "leaf0", "leaf1"]


def test_a_switch_that_does_not_come_is_named_with_its_lowest_rank() -> None:
    world = Controlled(["leaf0", "leaf1", "leaf1"])
    world.step(SwitchLost("leaf1", "x"))
    assert world.step(RingWanted(spec(3))) == []
    world.now = Instant(5 * S)
    evidence = "switch leaf1 is not connected; it did not come within 5 s, and no other path leads past it"
    assert world.step(TimePassed()) == [Tell(RingFault(RING, 1, NO_WAY, evidence))]


def test_a_ring_that_waits_does_not_fail_when_a_switch_goes_and_its_time_goes_on() -> None:
    world = cut_world()
    world.step(RingWanted(spec(2)))
    world.now = Instant(3 * S)
    assert world.step(SwitchLost("leaf1", "power")) == []
    assert waiting(world) == "switch leaf1 is not connected"
    assert world.step(SwitchArrived("leaf1", is_trunk_up=False)) == [Admit("leaf1")]
    assert waiting(world) == NOT_YET
    assert deadline(world) == 5 * S
    assert installs(world.step(TrunkSaid("leaf1", ""))) == ["mid", "leaf0", "leaf1"]


def test_of_a_switch_that_has_just_come_the_word_is_awaited() -> None:
    """Also where its trunk is above all ranks: it may be up at once."""
    world = Controlled(["leaf0", "leaf0"], fabric(leaf=False))
    world.step(SwitchArrived("leaf0", is_trunk_up=False))
    assert world.step(RingWanted(spec(2))) == []
    reason = "the trunk between leaf0 and mid is down: it has not come up yet"
    assert waiting(world) == reason
    world.now = Instant(5 * S)
    assert world.step(TimePassed()) == [Tell(RingRefused(RING, reason, until_room=True))]
    world.step(RingGone(RING))
    world.step(RingWanted(spec(2)))
    told = world.step(TrunkSaid("leaf0", "cut"))
    assert told == [Tell(RingRefused(RING, "the trunk between leaf0 and mid is down: cut", until_room=True))]


def test_each_ring_is_refused_and_counted_whether_it_has_waited_or_not() -> None:
    world = Controlled(["leaf0", "leaf0"], fabric(leaf=False))
    world.step(SwitchArrived("leaf0", is_trunk_up=False))
    assert both_wanted(world) == []
    reason = "the trunk between leaf0 and mid is down: cut"
    refused = [Tell(RingRefused(ring, reason, until_room=True)) for ring in (RING, OTHER_RING)]
    assert world.step(TrunkSaid("leaf0", "cut")) == refused
    assert counter(world, "trees_refused") == 2
    for ring in (RING, OTHER_RING):
        world.step(RingGone(ring))
    assert both_wanted(world) == refused
    assert counter(world, "trees_refused") == 4


@pytest.mark.parametrize("late", [Installed("leaf1", RING), Refused("leaf1", RingRefused(RING, "full"))])
def test_nothing_is_heard_of_a_ring_that_waits(late: Installed | Refused) -> None:
    world = cut_world()
    world.step(RingWanted(spec(2)))
    assert world.step(late) == []
    assert waiting(world) == CUT
    assert world.step(RingGone(RING)) == []
    assert world.core.view().rings == ()


def test_a_trunk_that_goes_down_under_a_ring_that_stands_costs_frames_only() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.stand()
    assert world.step(TrunkSaid("leaf1", "cut")) == []
    assert world.phase == "standing"
    view = world.core.view()
    assert view.trunks_down == {("leaf1", "mid"): "cut"}
    assert view.rings == (TreeView(RING, "standing", ("mid", "leaf0", "leaf1"), ()),)


def test_what_is_said_of_trunks_is_counted_and_forgotten_with_the_session() -> None:
    world = Controlled(["leaf0", "leaf1"])

    def down() -> int:
        return world.core.view().counters["trunks_down"]

    for error in ("cut", "still cut"):
        world.step(TrunkSaid("leaf1", error))
        assert world.core.view().trunks_down == {("leaf1", "mid"): error}
        assert down() == 1
    assert world.step(TrunkSaid("leaf1", "")) == [Tell(RoomMade())]
    assert world.step(TrunkSaid("leaf1", "")) == []
    world.step(TrunkSaid("leaf1", "cut"))
    assert down() == 2
    world.step(SwitchLost("leaf1", "power"))
    assert world.step(TrunkSaid("leaf1", "said too late")) == []
    assert world.step(TrunkSaid("spine", "it has none")) == []
    assert world.step(TrunkSaid("leaf9", "nobody")) == []
    assert world.core.view().trunks_down == {}
    assert down() == 2
