"""Moves of rings to other trees in which something goes wrong: refusals, generations or ranks that end."""

from __future__ import annotations

from typing import Any

import pytest

from inaproto.core.rendezvous.events import (
    MemberAsked,
    MemberParked,
    MemberReady,
    Noted,
    RendezvousAction,
    RingStands,
    RoomMade,
    WantRing,
)
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST, TRUNK_LOST
from inaproto.core.rendezvous.tree_moves import stands
from inaproto.core.switch.accelerator import RemoveRing, RingFault, RingRefused
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Failed, Halt, Ready, Ring, Start
from inaproto.wire.messages.ina import InaPark, InaParked, InaStands
from inaproto.wire.messages.trees import FabricTree, TreeState
from tests.unit.rendezvous_fabrics import CROSSED, IN_TURN, OTHER, OTHER_PLAN, THREE_LEAVES, TWO_SPINES
from tests.unit.rendezvous_hosts import World, sent
from tests.unit.rendezvous_tree_moves import (
    CONFIG,
    HOSTS,
    SPINE0,
    SPINE1,
    park_all,
    parked,
    parks,
    stand,
    started,
    state,
    wish,
)
from tests.unit.test_rendezvous_shared import asks_all, halted, halted_all, joined


def test_hosts_that_disagree_about_what_was_carried_end_the_generation() -> None:
    world = started()
    wish(world, 3, None)
    parks(world, 0, 9, 3)
    parks(world, 1, 9, 3)
    actions = parks(world, 2, 8, 3)
    assert {halt.reason for _, halt in sent(actions, Halt)} == {
        "its ring through the switches carried, as its hosts say: h0 9, h1 9, h2 8"
    }
    assert world.core.view().counters["disagreements"] == 1
    assert state(world) == TreeState("train", HOSTS, 3, "parked")
    halted_all(world, 12)
    assert world.installed == {}
    actions = world.ready()
    assert {(start.ina_ring_id != 0, start.ina_parked) for _, start in sent(actions, Start)} == {(True, True)}
    assert stand(world, actions) == []
    assert state(world) == TreeState("train", HOSTS, 3, "parked")


def test_a_generation_that_begins_parked_gets_its_ring_under_the_running_job() -> None:
    world = World({0: (0, 3), 1: (1,), 2: (2,)}, **CONFIG)
    wish(world, 3, None)
    asks_all(world)
    actions = halted_all(world)
    ring_ids = {ring.ina_ring_id for _, ring in sent(actions, Ring)}
    assert len(ring_ids) == 1
    assert ring_ids != {0}
    assert world.installed == {}
    assert state(world) == TreeState("train", HOSTS, 3, "parked")
    world.ready()
    wanted = wish(world, 4, SPINE1)
    assert {stood.ring_id for _, stood in sent(wanted, InaStands)} == ring_ids
    assert world.installed.keys() == ring_ids
    assert world.installed[ring_ids.pop()].spec.first_message == 0
    stand(world, wanted)
    assert state(world) == TreeState("train", HOSTS, 4, "standing", "shared@spine1")
    assert world.job.recoveries == 0


def test_a_generation_begins_on_the_tree_that_is_wished() -> None:
    world = World({0: (0, 3), 1: (1,), 2: (2,)}, **CONFIG)
    wish(world, 3, SPINE1)
    asks_all(world)
    halted_all(world)
    assert list(world.trees.values()) == [SPINE1]
    actions = world.ready()
    assert {(start.ina_pool, start.ina_epoch) for _, start in sent(actions, Start)} == {("shared@spine1", 3)}
    stand(world, actions)
    assert state(world) == TreeState("train", HOSTS, 3, "standing", "shared@spine1")


@pytest.mark.parametrize(("tree", "phase"), [(SPINE1, "moving"), (None, "parked")])
def test_a_wish_that_comes_while_hosts_connect_is_followed_before_they_start(
    tree: FabricTree | None, phase: str
) -> None:
    world, _ = joined(**CONFIG)
    ring_id = world.job.ina_ring_id
    actions = wish(world, 2, tree)
    assert actions[0] == RemoveRing(ring_id)
    assert sent(actions, InaStands) == [], "their start will say it"
    assert (state(world).phase, state(world).epoch) == (phase, 2)
    assert wish(world, 2, tree) == []
    [start] = {start for _, start in sent(world.ready(), Start)}
    assert start.ina_parked == (tree is None)
    assert start.ina_pool == ("shared@spine1" if tree else "shared")


def test_a_wish_for_the_same_tree_while_hosts_connect_is_taken_over() -> None:
    world, _ = joined(**TWO_SPINES, **CONFIG)
    assert wish(world, 2, SPINE0) == []
    assert (state(world).phase, state(world).epoch) == ("moving", 2)
    wish(world, 3, None)
    wish(world, 4, SPINE0)
    assert (state(world).phase, state(world).epoch, len(world.installed)) == ("moving", 4, 1)


@pytest.mark.parametrize("at", ["parking", "parked", "moving", "standing"])
def test_a_generation_that_ends_in_the_middle_is_followed_by_one_where_it_is_wished(at: str) -> None:
    world = started()
    wish(world, 3, None)
    expected: FabricTree | None = None
    if at != "parking":
        park_all(world, 9, 3)
    if at in ("moving", "standing"):
        wanted = wish(world, 4, SPINE1)
        expected = SPINE1
        if at == "standing":
            stand(world, wanted)
    assert state(world).phase == at
    late = world.job.ina_ring_id
    world.broken(1, 20)
    assert world.installed == {}
    assert (state(world).phase, state(world).epoch) == (
        "moving" if expected else "parked",
        4 if expected else 3,
    )
    assert world.step(RingStands(late)) == [], "said of a ring that has gone"
    assert parks(world, 0, 9, 3, ring_id=late) == []
    halted_all(world, 20)
    assert list(world.trees.values()) == ([expected] if expected else [])
    assert all(install.spec.first_message == 0 for install in world.installed.values()), "a new ring"
    stand(world, world.ready())
    assert (state(world).phase, state(world).epoch) == (("standing", 4) if expected else ("parked", 3))


@pytest.mark.parametrize("at", ["parking", "parked", "moving"])
def test_a_host_that_goes_away_and_comes_back_in_the_middle(at: str) -> None:
    world = started()
    wish(world, 3, None)
    if at != "parking":
        park_all(world, 9, 3)
    if at == "moving":
        wish(world, 4, SPINE1)
    away = world.session[1]
    world.goes_away(1)
    assert world.installed == {}
    told = InaParked(job="train", rank=1, ring_id=1, epoch=3, messages=9)
    world.step(MemberParked(away, told))
    assert world.job.phase == "halted"
    world.arrives(1)
    for host in (0, 2):
        halted(world, host, 9)
    world.step(MemberAsked(world.session[1], world.member(1, path="shared", progress=9, boot_id=""), 7))
    halted(world, 1, 9)
    stand(world, world.ready())
    phase = "standing" if at == "moving" else "parked"
    assert (world.job.phase, state(world).phase) == ("running", phase)


def test_switches_that_refuse_the_ring_leave_it_parked_and_the_base_ring_alone() -> None:
    world = started()
    ring_id = parked(world, messages=40)
    wish(world, 4, SPINE1)
    said = Noted("job train: its ring stays parked: spine1 is not there", is_problem=True)
    assert world.step(RingRefused(ring_id, "spine1 is not there")) == [RemoveRing(ring_id), said]
    assert state(world) == TreeState("train", HOSTS, 4, "refused", reason="spine1 is not there")
    assert world.job.fallback == "spine1 is not there"
    assert wish(world, 4, SPINE1) == [], "said once"
    assert wish(world, 5, None) == []
    assert state(world) == TreeState("train", HOSTS, 5, "parked")
    stand(world, wish(world, 6, SPINE0))
    assert state(world) == TreeState("train", HOSTS, 6, "standing", "shared")
    assert world.job.fallback == ""
    assert world.installed[ring_id].spec.first_message == 40
    assert (world.job.path, world.job.recoveries, world.core.deadline) == ("shared", 0, None)


def test_a_wish_that_changed_while_switches_refused_the_last_one_is_followed() -> None:
    world = started()
    ring_id = parked(world)
    wish(world, 4, SPINE1)
    assert wish(world, 5, SPINE0) == []
    actions = world.step(RingRefused(ring_id, "no room"))
    assert {stood.epoch for _, stood in sent(actions, InaStands)} == {5}
    stand(world, actions)
    assert state(world) == TreeState("train", HOSTS, 5, "standing", "shared")


@pytest.mark.parametrize("config", [CONFIG, {"root": "spine0"}])
def test_hosts_whose_start_waited_for_the_switches_start_without_them(config: dict[str, Any]) -> None:
    """What was held until the ring stands is dropped with it."""
    world = World({0: (0, 3), 1: (1,), 2: (2,)}, **config)
    wish(world, 3, SPINE1)
    asks_all(world)
    halted_all(world)
    ring_id = next(iter(world.trees))
    world.ready()
    actions = world.step(RingRefused(ring_id, "no room"))
    starts = sent(actions, Start)
    assert [host for host, _ in starts] == list(world.ranks)
    assert {(start.ring_id, start.ina_ring_id, start.ina_parked) for _, start in starts} == {
        (world.job.ring_id, ring_id, True)
    }
    assert state(world) == TreeState("train", HOSTS, 3, "refused", reason="no room")
    stand(world, wish(world, 4, SPINE0))
    assert state(world).phase == "standing"


def test_a_ring_that_is_refused_before_the_start_begins_parked() -> None:
    world = World({0: (0, 3), 1: (1,), 2: (2,)}, **CONFIG)
    wish(world, 3, SPINE1)
    asks_all(world)
    halted_all(world)
    actions = world.step(RingRefused(next(iter(world.trees)), "no room"))
    assert [type(action) for action in actions] == [RemoveRing, Noted]
    assert {start.ina_parked for _, start in sent(world.ready(), Start)} == {True}
    assert state(world) == TreeState("train", HOSTS, 3, "refused", reason="no room")
    assert world.job.recoveries == 0


def test_a_ring_that_stood_and_is_refused_later_ends_its_generation() -> None:
    """A switch that restarted is told of it anew; hosts may have sent on it."""
    world = started()
    parked(world)
    stand(world, wish(world, 4, SPINE1))
    halts = sent(world.step(RingRefused(world.job.ina_ring_id, "less memory")), Halt)
    assert {halt.path for _, halt in halts} == {"chain"}


@pytest.mark.parametrize("rule", [SWITCH_LOST, TRUNK_LOST])
def test_a_switch_that_is_lost_before_it_stands_there_leaves_it_parked_until_there_is_room(rule: str) -> None:
    world = started()
    ring_id = parked(world)
    wish(world, 4, SPINE1)
    world.step(RingFault(ring_id, 0, rule, "spine1 is gone: it restarted"))
    assert state(world) == TreeState("train", HOSTS, 4, "refused", reason="spine1 is gone: it restarted")
    deadlines = [world.core.deadline]
    world.step(RoomMade())
    assert [*deadlines, world.core.deadline] == [None, world.now]
    actions = world.woke_at(world.now)
    assert state(world) == TreeState("train", HOSTS, 4, "moving", "shared@spine1")
    assert {stood.epoch for _, stood in sent(actions, InaStands)} == {4}
    stand(world, actions)
    assert state(world).phase == "standing"
    assert (world.job.recoveries, world.core.deadline) == (0, None)


def test_switches_that_have_refused_a_ring_are_asked_again_after_a_while_that_doubles() -> None:
    world = started()
    ring_id = parked(world)
    wish(world, 4, SPINE1)
    actions: list[RendezvousAction] = []
    for seconds in (1, 2, 4):
        world.step(RingRefused(ring_id, "no room"))
        assert world.core.deadline == world.now + seconds * S
        actions = world.woke_at(world.now + seconds * S)
        assert world.trees == {ring_id: SPINE1}
    stand(world, actions)
    parked(world, epoch=5)
    wish(world, 6, SPINE1)
    world.step(RingRefused(ring_id, "no room"))
    assert world.core.deadline == world.now + 1 * S
    assert wish(world, 7, None) == []
    assert world.core.deadline is None, "it is wished no more"


def test_a_ring_that_begins_parked_is_asked_for_again_before_its_start_too() -> None:
    world = World({0: (0, 3), 1: (1,), 2: (2,)}, **CONFIG)
    wish(world, 3, SPINE1)
    asks_all(world)
    halted_all(world)
    ring_id = next(iter(world.trees))
    world.step(RingRefused(ring_id, "cut", until_room=True))
    world.step(RoomMade())
    actions = world.woke_at(world.now)
    assert [type(action) for action in actions] == [WantRing], "their start will say it"
    actions = world.ready()
    assert {start.ina_parked for _, start in sent(actions, Start)} == {False}
    stand(world, actions)
    assert state(world) == TreeState("train", HOSTS, 3, "standing", "shared@spine1")


def test_a_parked_ring_that_no_present_switch_takes_waits_for_another_one() -> None:
    world = World({0: (0, 3), 1: (1,), 2: (2,)}, **CONFIG)
    wish(world, 3, SPINE1)
    asks_all(world)
    halted_all(world)
    ring_id = next(iter(world.trees))
    world.step(RingRefused(ring_id, "it has less in all", until_switch=True))
    world.ready()
    assert world.core.deadline is None
    world.step(RoomMade())
    assert world.core.deadline == world.now


def test_a_tree_that_adds_in_another_order_is_refused_and_the_ring_stays_parked() -> None:
    world = started(**THREE_LEAVES)
    parked(world)
    said = wish(world, 4, OTHER)
    reason = "the tree of spine1 adds in another order than [[[0, 3]], [1], [2]]"
    assert said == [Noted(f"job train: its ring stays parked: {reason}", is_problem=True)]
    assert state(world) == TreeState("train", HOSTS, 4, "refused", reason=reason)
    assert wish(world, 4, OTHER) == [], "said once"
    assert wish(world, 5, None) == []
    assert state(world) == TreeState("train", HOSTS, 5, "parked")
    stand(world, wish(world, 6, IN_TURN))
    assert state(world).phase == "standing"


@pytest.mark.parametrize("is_parked", [False, True], ids=["standing", "parked"])
def test_a_tree_that_adds_in_another_order_is_followed_anew_where_that_is_wished(is_parked: bool) -> None:
    world = started(**THREE_LEAVES)
    if is_parked:
        parked(world)
    said = wish(world, 4, OTHER, anew=True)
    halts = [halt for _, halt in sent(said, Halt)]
    assert {halt.reason for halt in halts} == {"to go along the tree of spine1, which adds in another order"}
    assert world.job.plan == str(OTHER_PLAN.over([(0, 3), (1,), (2,)])), "hosts hear what slots it needs"
    assert wish(world, 4, OTHER, anew=True) == [], "once"
    halted_all(world, 9)
    stand(world, world.ready())
    assert state(world) == TreeState("train", HOSTS, 4, "standing", "shared@spine1")
    counters = world.core.view().counters
    assert (counters["generations_for_trees"], counters["recoveries"]) == (1, 1)
    assert wish(world, 5, OTHER, anew=True) == [], "it is there"


def test_a_ring_whose_hosts_connect_goes_there_anew_when_they_have_begun() -> None:
    world, _ = joined(**CONFIG | THREE_LEAVES)
    assert sent(wish(world, 4, OTHER, anew=True), Halt) == []
    assert {halt.reason for _, halt in sent(world.ready(), Halt)} == {
        "to go along the tree of spine1, which adds in another order"
    }
    halted_all(world, 0)
    stand(world, world.ready())
    assert state(world) == TreeState("train", HOSTS, 4, "standing", "shared@spine1")


def test_an_order_in_which_hosts_cannot_sum_is_refused_though_it_is_wished_anew() -> None:
    world = started(**THREE_LEAVES)
    parked(world)
    assert sent(wish(world, 4, CROSSED, anew=True), Halt) == []
    assert state(world).phase == "refused"


def test_the_next_generation_adds_as_the_tree_does_that_is_wished() -> None:
    world = started(**THREE_LEAVES)
    parked(world)
    wish(world, 4, OTHER)
    world.broken(1, 9)
    halted_all(world, 9)
    assert world.job.plan == str(OTHER_PLAN.over([(0, 3), (1,), (2,)]))
    stand(world, world.ready())
    assert state(world) == TreeState("train", HOSTS, 4, "standing", "shared@spine1")


def test_a_tree_that_no_chain_can_follow_is_refused_before_it_harms_the_job() -> None:
    world = World({0: (0, 3), 1: (1,), 2: (2,)}, **THREE_LEAVES, **CONFIG)
    wish(world, 4, CROSSED)
    asks_all(world)
    actions = halted_all(world)
    assert sent(actions, Failed) == []
    world.ready()
    assert state(world).phase == "refused"
    assert state(world).reason.startswith("its hosts cannot sum in the order")
    assert world.installed == {}


# --- ranks that leave, or are lost, in the middle


@pytest.mark.parametrize("at", ["parking", "parked", "moving"])
def test_ranks_that_leave_in_the_middle_close_the_job(at: str) -> None:
    world = started()
    wish(world, 3, None)
    if at != "parking":
        park_all(world, 9, 3)
    if at == "moving":
        wish(world, 4, SPINE1)
    for rank in range(world.size):
        world.leaves(rank)
    assert world.installed == {}
    assert world.core.tree_states() == ()
    assert wish(world, 5, SPINE0) == []


def test_hosts_whose_ranks_have_left_still_park() -> None:
    """Others have not: the ring is theirs, too."""
    world = started()
    world.leaves(1)
    wish(world, 3, None)
    park_all(world, 9, 3)
    assert state(world).phase == "parked"


def test_a_lost_rank_ends_the_job_and_what_is_wished_waits_for_the_next_of_that_name() -> None:
    world = started()
    wish(world, 3, None)
    parks(world, 0, 9, 3)
    world.gone(1)
    assert world.installed == {}
    assert world.core.tree_states() == ()
    told = InaParked(job="train", rank=0, ring_id=1, epoch=3, messages=9)
    assert world.step(MemberParked(world.session[0], told)) == []
    asks_all(world)
    halted_all(world)
    assert world.installed == {}
    assert state(world) == TreeState("train", HOSTS, 3, "parked")


@pytest.mark.parametrize("cause", ["until_room", "until_switch"])
def test_a_ring_that_leaves_the_switches_makes_room_for_others(cause: str) -> None:
    """As one whose job ends: another job, that the switches refused, tries them again, if that is of use."""
    world = started()
    names = {"job": "other", "path": "shared"}
    for rank in range(world.size):
        world.asks(rank, **names)
    for host in world.ranks:
        halted(world, host, job="other")
    ring_id = max(world.installed)
    world.step(RingRefused(ring_id, "no room", **{cause: True}))
    for host in world.ranks:
        world.step(MemberReady(world.session[host], Ready(job="other", rank=world.ranks[host][0])))
    assert world.core.deadline is None
    wish(world, 3, None)
    for host in world.ranks:
        told = InaParked(
            job="train", rank=world.ranks[host][0], ring_id=min(world.installed), epoch=3, messages=1
        )
        world.step(MemberParked(world.session[host], told))
    assert world.core.deadline == (Instant(world.now) if cause == "until_room" else None)


def test_only_starts_and_their_like_say_that_a_ring_stands() -> None:
    assert stands(Start(job="j", ring_id=7)) == 0
    assert stands(Start(job="j", ring_id=7, ina_ring_id=8)) == 8
    assert stands(Start(job="j", ring_id=7, ina_ring_id=8, ina_parked=True)) == 0
    assert stands(InaStands(job="j", ring_id=9, epoch=1)) == 9
    assert stands(InaPark(job="j", ring_id=9, epoch=1)) == 0
