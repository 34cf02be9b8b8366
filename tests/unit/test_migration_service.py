"""What moves trees, event by event: what no planner and no fabric can do to it."""

from __future__ import annotations

from dataclasses import replace

from inaproto.core.migration.events import JobRecord, MigrationRecord, Tree
from inaproto.core.migration.moves import Move, MovePhase
from inaproto.core.migration.numbers import StoredTrees
from inaproto.core.migration.service import TreeService
from inaproto.core.migration.service_events import (
    AgentGone,
    HoldTurns,
    Persisted,
    PersistTrees,
    PlacesTold,
    PlanTrees,
    Reported,
    ServiceConfig,
    ServiceEvent,
    SlotsStand,
    TellRoot,
    TreesPlanned,
    Woke,
)
from inaproto.units import Instant, S
from inaproto.wire.messages.slots import Lease
from inaproto.wire.messages.trees import TreeWished
from tests.unit.service_of_trees import SPINE, SPINE1, Service, state

ON_SPINE, ON_SPINE1 = TreeWished("a", 1, SPINE.tree), TreeWished("a", 2, SPINE1.tree)
ADOPTED = StoredTrees(
    MigrationRecord(7, 3, 5, (JobRecord("a", Tree(4, ("spine",)), 5, Tree(4, ("spine",))),)),
    {4: SPINE.tree},
    9,
)
"""Job a had the spine, under an earlier leader."""


def test_a_job_gets_the_tree_that_is_planned_and_the_root_hears_of_it() -> None:
    its = Service()
    assert its.hears(state(pool="shared@spine")) == [
        HoldTurns(frozenset()),
        TellRoot("spine", 1, 1, ()),
        SlotsStand("a", ("spine",), 1),
        TellRoot("spine", 1, 2, (ON_SPINE,)),
    ]
    first = PlanTrees({"a": state(pool="shared@spine")}, {}, frozenset(), {"a": "spine"}, {}, frozenset(), {})
    assert next(one for one in its.log if isinstance(one, PlanTrees)) == first
    assert its.asked == replace(first, had={"a": SPINE.tree}, held=frozenset("a"))
    assert its.held["spine"] == [Lease("a", 1, 1)]
    stored = [one for one in its.log if isinstance(one, PersistTrees)]
    assert [one.token for one in stored] == [1, 2]
    assert (stored[1].stored.trees, stored[1].stored.next_number) == ({1: SPINE.tree}, 2)
    assert stored[1].stored.record.jobs[0].tree == Tree(1, ("spine",))


def test_a_job_leaves_its_tree_when_the_root_says_that_it_is_parked() -> None:
    its = Service()
    its.stands()
    assert its.core.is_at("a", "spine")
    its.plan["a"] = SPINE1
    nowhere = TreeWished("a", 1, None)
    assert its.wakes(after_ns=its.config.look_ns) == [
        MovePhase("a", "spine", "spine1", "draining"),
        HoldTurns(frozenset("a")),
        TellRoot("spine", 1, 3, (nowhere,)),
    ]
    assert its.hears(state("a", 1, "parking"), taken=(1, 3)) == [], "not yet"
    its.step(PlacesTold({"a": 7}))
    assert its.hears(state("a", 1, "parked"), taken=(1, 2)) == [], "it may have been for another reason"
    assert its.held["spine"] == [Lease("a", 1, 1)]
    assert its.hears(state("a", 1, "parked"), taken=(1, 3), after_ns=S) == [
        MovePhase("a", "spine", "spine1", "acquiring"),
        SlotsStand("a", ("spine1",), 2),
        TellRoot("spine", 1, 4, (ON_SPINE1,)),
        MovePhase("a", "spine", "spine1", "installing"),
    ]
    assert its.held == {"spine": [], "spine1": [Lease("a", 2, 2)]}
    its.step(PlacesTold({"a": 9}))
    assert not its.core.is_at("a", "spine1")
    assert its.hears(state("a", 2), taken=(1, 4), after_ns=S) == [
        HoldTurns(frozenset()),
        MovePhase("a", "spine", "spine1", "stable"),
    ]
    (move,) = its.core.view().done
    assert its.core.last_move("a") is move
    assert move == Move(
        1, "a", "spine", "spine1", 0.5,
        phase="stable", epoch=2, parked=0.5, acquired=1.5, drain_s=0.0, release_s=1.0, install_s=1.0,
        total_s=2.0, operation=7, operations=2,
    )  # fmt: skip


def test_what_is_shown_is_what_was_heard_and_wished() -> None:
    its = Service(jobs_max=4, wanted={"z": "spine1"})
    its.hears(state("b"), state("a", pool="shared@spine1"))
    view = its.core.view()
    assert (view.root, view.revision, view.taken, view.epoch) == ("spine", 3, (0, 0), 2)
    assert (list(view.states), view.at) == (["a", "b"], {"a": "spine1", "b": "spine"})
    assert [wish.job for wish in view.wishes] == ["a", "b"]
    assert view.wanted == {"z": "spine1"}
    assert view.migration is not None
    assert [job.job for job in view.migration.jobs] == ["a", "b"]
    assert [(move.job, move.old) for move in view.under_way] == [("a", "spine1")]
    assert its.core.states == view.states


def test_rings_of_a_generation_begin_anew_where_the_configuration_says_so() -> None:
    its = Service(begins_anew=True)
    its.reports("a")
    assert its.told.wishes == (replace(ON_SPINE, anew=True),)


def test_a_job_is_at_a_root_when_all_know_and_nobody_wants_it_elsewhere() -> None:
    its = Service()
    assert not its.core.is_at("a", "spine"), "nobody has said anything"
    its.unserved = ("b",)
    its.step(Reported("spine", 0, 0, (state(pool="shared@spine1"), state("b"))))
    assert its.core.is_at("a", "spine1")
    assert not its.core.is_at("a", "spine")
    assert its.core.is_at("b", "spine"), "the pool of no root is the first root's"
    its.wakes()
    assert not its.core.is_at("b", "spine"), "it is wished to be nowhere"
    its.hears(state("a", 1, "moving"), taken=(1, 2))
    assert not its.core.is_at("a", "spine")
    its.step(Reported("spine", 1, 2, (state("a", 1),)))
    assert not its.core.is_at("a", "spine"), "nobody has looked"
    its.wakes()
    assert its.core.is_at("a", "spine")
    assert not its.core.is_at("a", "spine1")
    its.step(Reported("spine", 1, 2, (state("a", 0),)))
    assert not its.core.is_at("a", "spine"), "by an older wish"
    wanted = Service(wanted={"a": "spine1"})
    wanted.step(Reported("spine", 0, 0, (state(),)))
    assert not wanted.core.is_at("a", "spine")
    wanted.step(Reported("spine", 0, 0, (state(pool="shared@spine1"),)))
    assert wanted.core.is_at("a", "spine1")


def test_a_job_for_which_no_slot_is_left_is_to_be_nowhere() -> None:
    its = Service(jobs_max=4)
    its.stands()
    its.unserved = ("b",)
    its.hears(state("a", 1), state("b"), taken=(1, 2))
    assert list(its.told.wishes) == [ON_SPINE, TreeWished("b", 1, None)]
    assert its.wakes(after_ns=its.config.look_ns) == [], "it is said once"
    its.unserved = ("a",)
    its.hears(state("a", 1), taken=(1, 3))
    assert its.told.wishes == (ON_SPINE,), "a job that has a tree keeps it until its plan says otherwise"


def test_a_job_whose_slots_went_to_others_while_it_was_away_does_not_stand_by_its_old_wish() -> None:
    its = Service()
    its.reports("b")
    its.hears(state("b", 1), state("a"), taken=its.taken)
    its.silent.add("spine")
    its.hears(state("b", 1), taken=its.taken)
    assert its.wished == {"a": True, "b": True}, "its slots are not back"
    its.unserved = ("a",)
    its.hears(state("b", 1), state("a", 2), taken=its.taken)
    its.silent.clear()
    its.wakes(after_ns=S)
    assert its.held["spine"] == [Lease("b", 1, 1)]
    assert its.told.wishes == (TreeWished("a", 2, None), replace(ON_SPINE, job="b"))
    assert its.hears(state("b", 1), state("a", 2), taken=its.taken) == [], "it is said once"


def test_a_job_that_is_given_up_and_planned_again_comes_back() -> None:
    its = Service()
    its.stands()
    its.plan["a"] = None
    its.hears(state("a", 1), taken=(1, 2))
    assert its.told.wishes == (TreeWished("a", 1, None),)
    its.hears(state("a", 1, "parked"), taken=(1, 3))
    assert its.held["spine"] == []
    its.plan["a"] = SPINE
    its.hears(state("a", 1, "parked"), taken=(1, 3))
    assert its.told.wishes == (TreeWished("a", 2, SPINE.tree),)


def test_a_job_that_is_over_gives_its_slots_back_and_its_tree_loses_its_number() -> None:
    its = Service()
    its.stands()
    its.hears(taken=(1, 2))
    assert (its.held["spine"], its.wished, its.told.wishes) == ([], {}, ())
    its.reports("b")
    assert its.held["spine"] == [Lease("b", 2, 2)]


def test_jobs_that_are_over_together_give_their_slots_back_together() -> None:
    its = Service()
    its.plan["b"] = SPINE1
    its.reports("a", "b")
    its.step(Reported("spine", 1, 2, ()))
    its.step(Woke())
    assert its.held == {"spine": [], "spine1": []}


def test_jobs_that_are_parked_together_change_places() -> None:
    its = Service()
    its.plan["b"] = SPINE1
    its.reports("a", "b")
    its.plan = {"a": SPINE1, "b": SPINE}
    its.hears(state("a", 1), state("b", 2), taken=its.taken)
    its.step(Reported("spine", *its.taken, (state("a", 1, "parked"), state("b", 2, "parked"))))
    its.step(Woke())
    assert its.held == {"spine": [Lease("b", 1, 4)], "spine1": [Lease("a", 2, 3)]}


def test_jobs_whose_rings_move_have_no_turns_where_they_are_wished_for() -> None:
    its = Service()
    its.stands()
    its.plan["b"] = None
    for phase, held in (
        ("parking", "a"),
        ("parked", "a"),
        ("moving", "a"),
        ("refused", ""),
        ("standing", ""),
    ):
        its.hears(state("a", 1, phase), state("b", 0, phase), taken=(1, 2))  # type: ignore[arg-type]
        assert [one for one in its.log if isinstance(one, HoldTurns)][-1] == HoldTurns(frozenset(held))


def test_a_tree_that_was_refused_is_told_to_the_planner_for_a_while() -> None:
    its = Service(bar_ns=2 * S, bar_max_ns=3 * S)
    its.stands()
    barred = {"a": frozenset([SPINE.tree])}
    for epoch, bar_ns in ((1, 2 * S), (2, 3 * S)):
        its.hears(state("a", epoch, "refused"), taken=its.taken)
        assert its.asked.barred == barred
        its.hears(state("a", epoch), taken=its.taken, after_ns=bar_ns - 1)
        assert its.asked.barred == barred
        its.hears(state("a", epoch), taken=its.taken, after_ns=1)
        assert its.asked.barred == {}
        its.plan["a"] = None
        its.wakes(after_ns=its.config.look_ns)
        its.plan["a"] = SPINE
        its.hears(state("a", epoch, "parked"), taken=its.taken)


def test_where_a_ring_stands_that_nobody_has_wished_for_its_pool_says() -> None:
    its = Service(jobs_max=4)
    its.unserved = ("a", "b")
    states = [state("a", 3), state("b", 0, "parking"), state("c", 0, pool="shared@spine1")]
    its.hears(*states)
    assert its.asked.roots == {"a": "", "b": "", "c": "spine1"}
    its.hears(state("b"))
    assert its.asked.roots == {"b": ""}, "it is wished to be nowhere"


def test_a_switch_that_is_lost_is_told_to_the_planner_and_one_that_is_not_known_yet_is_waited_for() -> None:
    its = Service(jobs_max=2)
    its.step(AgentGone("spine1"))
    its.reports("a")
    assert its.asked.away == {"spine1"}
    slow = Service()
    slow.silent.add("spine1")
    slow.core = TreeService(slow.config)
    slow.log.clear()
    slow.wakes()
    assert slow.hears(state()) == [HoldTurns(frozenset()), TellRoot("spine", 1, 1, ())]
    assert not any(isinstance(one, PlanTrees) for one in slow.log)


def test_a_tree_that_is_planned_while_a_record_is_being_written_keeps_its_number() -> None:
    its = Service()
    its.stands()
    its.is_disk_quick = False
    its.hears(state("a", 1), state("b"), taken=its.taken)
    its.plan["a"] = SPINE1
    its.wakes(after_ns=its.config.look_ns)
    assert its.written.trees == {1: SPINE.tree}
    its.silent.add("spine")
    its.now = Instant(its.now + 1)
    its.step(Persisted(3))
    assert its.core.deadline == its.now, "all is looked at"
    assert its.written.trees == {1: SPINE.tree, 2: SPINE1.tree}


def test_a_plan_that_nobody_has_asked_for_is_none() -> None:
    its = Service()
    before = len(its.log)
    its.step(TreesPlanned({"a": SPINE}))
    assert len(its.log) == before


# --- after another leader


def test_what_was_promised_before_is_known_before_the_root_is_told_anything() -> None:
    its = Service(stored=ADOPTED)
    its.silent.add("spine")
    its.core = TreeService(its.config, ADOPTED)
    its.wakes()
    assert its.hears(state("a", 5), taken=(0, 0)) == [HoldTurns(frozenset())]
    assert its.core.view().wishes == ()
    its.silent.clear()
    its.held["spine"] = [Lease("a", 4, 5)]
    found = its.wakes(after_ns=S)
    assert found[0] == SlotsStand("a", ("spine",), 5)
    assert its.told == TellRoot("spine", 1, 1, (TreeWished("a", 5, SPINE.tree),))
    assert its.asked.had == {"a": SPINE.tree}
    its.plan["b"] = SPINE1
    its.hears(state("a", 5), state("b"), taken=(1, 1))
    assert its.held["spine1"] == [Lease("b", 9, 6)], "numbers and epochs go on"


def test_without_switches_that_lend_slots_nothing_is_ever_done() -> None:
    core = TreeService(ServiceConfig(1, None), wanted={"a": "x"})
    events: list[ServiceEvent] = [
        Woke(),
        Reported("spine", 1, 5, (state(),)),
        TreesPlanned({"a": SPINE}, ("b",)),
        AgentGone("spine"),
        Woke(),
    ]
    assert [core.step(event, Instant(at * 1000 * S)) for at, event in enumerate(events)] == [[]] * 5
    view = core.view()
    assert (core.deadline, view.migration, view.states, view.root) == (None, None, {}, "")
    assert not core.is_at("a", "x")


# --- how many


def test_more_jobs_than_may_have_trees_wait_for_others_to_end() -> None:
    its = Service(jobs_max=2)
    its.reports("a", "b", "c", "d")
    assert its.wished == {"a": True, "b": True, "c": False, "d": False}
    its.reports("b", "c", "d")
    its.reports("b", "c", "d")
    assert its.wished == {"b": True, "c": True, "d": False}
    assert {lease.tree for lease in its.held["spine"]} == {1}, "numbers of trees are not used up meanwhile"
