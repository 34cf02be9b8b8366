"""Rings through the switches that move from tree to tree under their jobs, as a controller wishes."""

from __future__ import annotations

from inaproto.core.rendezvous.events import Noted, Send, TreesWished, WantRing
from inaproto.core.rendezvous.fabric.events import StartAsked
from inaproto.core.switch.accelerator import InstallRing, RemoveRing
from inaproto.wire.control_messages import Start
from inaproto.wire.messages.ina import InaPark, InaStands
from inaproto.wire.messages.switch import PoolSpec
from inaproto.wire.messages.trees import TreeState
from tests.unit.rendezvous_fabrics import TWO_SPINES
from tests.unit.rendezvous_hosts import World, sent
from tests.unit.rendezvous_tree_moves import (
    CONFIG,
    HOSTS,
    POOL,
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
from tests.unit.test_rendezvous_shared import halted_all, joined


def test_a_job_of_which_nothing_is_wished_has_its_ring_on_the_fabrics_own_tree() -> None:
    world, actions = joined(**CONFIG)
    [install] = [action for action in actions if isinstance(action, InstallRing)]
    assert (install.spec.pool, install.spec.first_message) == (POOL, 0)
    assert state(world) == TreeState("train", HOSTS, 0, "moving", "shared")
    actions = world.ready()
    for _, start in sent(actions, Start):
        assert (start.ina_pool, start.ina_epoch, start.ina_parked) == ("shared", 0, False)
    stand(world, actions)
    assert state(world) == TreeState("train", HOSTS, 0, "standing", "shared")
    assert world.core.view().trees == world.core.tree_states()


def test_a_ring_moves_to_another_tree_and_no_generation_ends() -> None:
    world = started()
    generation, ring_id = world.job.ring_id, world.job.ina_ring_id
    key = world.installed[ring_id].spec.key
    asked = wish(world, 3, None)
    assert sent(asked, InaPark) == [
        (host, InaPark(job="train", ring_id=ring_id, epoch=3)) for host in world.ranks
    ]
    assert asked[-1] == Noted("job train: its ring is parked, for no tree")
    assert state(world) == TreeState("train", HOSTS, 3, "parking", "shared", "waits for h0, h1, h2")
    assert parks(world, 1, 41, 3) == []
    assert state(world).reason == "waits for h0, h2"
    assert list(world.installed) == [ring_id]
    parks(world, 0, 41, 3)
    assert parks(world, 2, 41, 3) == [
        RemoveRing(ring_id),
        Noted(f"job train: its ring {ring_id} is parked at message 41"),
    ]
    assert state(world) == TreeState("train", HOSTS, 3, "parked")
    assert world.job.ina_ring_id == 0
    wanted = wish(world, 4, SPINE1)
    [want] = [action for action in wanted if isinstance(action, WantRing)]
    assert (want.tree, want.spec.ring_id, want.spec.first_message, want.spec.key) == (
        SPINE1,
        ring_id,
        41,
        key,
    )
    assert want.spec.pool == PoolSpec("shared@spine1", 2)
    told = InaStands(job="train", ring_id=ring_id, epoch=4, pool="shared@spine1")
    assert sent(wanted, InaStands) == [(host, told) for host in world.ranks]
    assert state(world) == TreeState("train", HOSTS, 4, "moving", "shared@spine1")
    assert stand(world, wanted) == [
        Noted(f"job train: its ring {ring_id} stands on the tree of spine1, from message 41 on")
    ]
    assert state(world) == TreeState("train", HOSTS, 4, "standing", "shared@spine1")
    assert (world.job.ring_id, world.job.phase, world.job.recoveries) == (generation, "running", 0)
    counters = world.core.view().counters
    assert (counters["trees_parked"], counters["trees_moved"]) == (1, 1)


def test_a_ring_moves_back_and_forth_and_counts_its_messages_on() -> None:
    world = started()
    ring_id, messages = world.job.ina_ring_id, 0
    for epoch in range(2, 22, 2):
        messages += epoch
        wish(world, epoch, None)
        park_all(world, messages, epoch)
        stand(world, wish(world, epoch + 1, SPINE1 if epoch % 4 else SPINE0))
        assert world.installed[ring_id].spec.first_message == messages
        assert (state(world).phase, state(world).epoch) == ("standing", epoch + 1)
    assert world.job.recoveries == 0


def test_the_switches_have_the_ring_before_the_hosts_hear_of_it() -> None:
    """Of the tree of switches: that it stands is asked for in its name, as a start is."""
    world = started()
    ring_id = parked(world)
    actions = wish(world, 4, SPINE1)
    kinds = [type(action) for action in actions]
    assert kinds == [WantRing, Send, Send, Send]
    assert {StartAsked(action).ring_id for action in actions if isinstance(action, Send)} == {ring_id}


def test_a_move_wished_at_once_goes_by_way_of_being_parked() -> None:
    world = started()
    ring_id = world.job.ina_ring_id
    wish(world, 1, SPINE1)
    assert state(world).phase == "parking"
    actions = park_all(world, 7, 1)
    assert [type(action) for action in actions if not isinstance(action, Noted)] == [
        RemoveRing,
        WantRing,
        Send,
        Send,
        Send,
    ]
    stand(world, actions)
    assert state(world) == TreeState("train", HOSTS, 1, "standing", "shared@spine1")
    assert world.installed[ring_id].spec.first_message == 7


def test_a_wish_for_the_tree_on_which_it_stands_takes_its_epoch_over() -> None:
    """Though it was laid on the fabric's own, unnamed: whether it is the same ring counts."""
    world = started(**TWO_SPINES)
    assert wish(world, 5, SPINE0) == []
    assert state(world) == TreeState("train", HOSTS, 5, "standing", "shared")
    wish(world, 6, SPINE1)
    assert state(world).phase == "parking"


def test_a_wish_that_is_withdrawn_changes_nothing_before_the_generation_ends() -> None:
    world = started()
    parked(world)
    stand(world, wish(world, 4, SPINE1))
    assert world.step(TreesWished(())) == []
    assert state(world) == TreeState("train", HOSTS, 4, "standing", "shared@spine1")
    world.broken(1, 50)
    halted_all(world, 50)
    assert world.trees == {}, "the next one is on the fabric's own tree"
    stand(world, world.ready())
    assert state(world) == TreeState("train", HOSTS, 0, "standing", "shared")


def test_a_parked_ring_whose_wish_is_withdrawn_stays_parked() -> None:
    world = started()
    parked(world)
    assert world.step(TreesWished(())) == []
    assert state(world) == TreeState("train", HOSTS, 3, "parked")


def test_wishes_for_others_concern_nobody_here() -> None:
    world = started()
    assert wish(world, 3, None, job="other") == []
    assert state(world).phase == "standing"


def test_a_job_that_is_not_shared_follows_no_wish() -> None:
    world = World({0: (0,), 1: (1,)}).running()
    assert wish(world, 3, None) == []
    assert world.core.tree_states() == ()
    assert len(world.installed) == 1


# --- wishes that change in the middle


def test_one_that_parks_parks_whatever_is_wished_meanwhile() -> None:
    world = started()
    ring_id = world.job.ina_ring_id
    wish(world, 3, None)
    parks(world, 0, 9, 3)
    assert wish(world, 4, SPINE1) == []
    assert state(world) == TreeState("train", HOSTS, 4, "parking", "shared", "waits for h1, h2")
    parks(world, 1, 9, 3)
    actions = parks(world, 2, 9, 3)
    assert RemoveRing(ring_id) in actions
    assert {stood.epoch for _, stood in sent(actions, InaStands)} == {4}


def test_back_to_the_old_tree_while_it_parks_the_ring_never_leaves_the_switches() -> None:
    world = started(**TWO_SPINES)
    ring_id = world.job.ina_ring_id
    wish(world, 3, None)
    parks(world, 0, 9, 3)
    wish(world, 4, SPINE0)
    actions = [*parks(world, 1, 9, 3), *parks(world, 2, 9, 3)]
    told = InaStands(job="train", ring_id=ring_id, epoch=4, pool="shared")
    assert actions == [Send(world.session[host], told) for host in world.ranks]
    stand(world, actions)
    assert state(world) == TreeState("train", HOSTS, 4, "standing", "shared")
    assert world.core.view().counters["trees_parked"] == 0


def test_a_wish_that_changes_while_switches_get_the_ring_is_followed_when_it_stands() -> None:
    world = started()
    ring_id = parked(world)
    wanted = wish(world, 4, SPINE1)
    assert wish(world, 5, None) == []
    assert state(world) == TreeState("train", HOSTS, 4, "moving", "shared@spine1")
    asked = stand(world, wanted)
    assert {park.epoch for _, park in sent(asked, InaPark)} == {5}
    park_all(world, 40, 5)
    assert world.installed == {}
    stand(world, wish(world, 6, SPINE0))
    assert world.installed[ring_id].spec.first_message == 40


def test_what_a_host_says_of_an_earlier_parking_counts_for_nothing() -> None:
    world = started()
    ring_id = world.job.ina_ring_id
    parked(world)
    stand(world, wish(world, 4, SPINE1))
    wish(world, 5, None)
    for changes in ({"epoch": 3}, {"epoch": 5, "ring_id": ring_id + 1}):
        for host in world.ranks:
            assert parks(world, host, 40, **changes) == []
    assert state(world).reason == "waits for h0, h1, h2"
    park_all(world, 60, 5)
    assert state(world).phase == "parked"


def test_a_host_that_was_not_asked_parks_nothing() -> None:
    world = started()
    assert park_all(world, 5, 0) == []
    assert state(world).phase == "standing"
