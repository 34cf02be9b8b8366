"""What agents tell the service of trees, what a store does to it, and when it says something again."""

from __future__ import annotations

import pytest

from inaproto.core.migration.events import MigrationConfig, ToSwitch
from inaproto.core.migration.service import TreeService
from inaproto.core.migration.service_events import (
    REPORTED_MAX,
    REVISIONS_MAX,
    TERMS_MAX,
    AgentGone,
    BegunAnew,
    Persisted,
    PersistRoots,
    PersistTrees,
    Refused,
    Reported,
    RootsNotPersisted,
    RootWanted,
    ServiceConfig,
    SwitchSaid,
    TellRoot,
    Woke,
)
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.messages.slots import Lease, Outcome, SlotAnswer, SlotsChanged
from tests.unit.service_of_trees import SPINE1, Service, state


def answer(newest_term: int, switch: str = "spine") -> SlotAnswer:
    return SlotAnswer(switch, "b", 1, 99, Outcome.TOLD, (), newest_term)


# --- switches


def test_a_switch_speaks_for_itself() -> None:
    its = Service()
    for said in (answer(1), SlotsChanged("spine", "b")):
        why = "switch 'spine1' speaks for 'spine'"
        assert its.does(SwitchSaid("spine1", said)) == [Refused("spine1", why)]


def test_a_hint_is_followed_at_once() -> None:
    its = Service()
    its.reports("a")
    asked = len([one for one in its.log if isinstance(one, ToSwitch)])
    its.step(SwitchSaid("spine", SlotsChanged("spine", "b")))
    assert len([one for one in its.log if isinstance(one, ToSwitch)]) == asked + 1
    assert its.core.deadline == its.now, "and all is looked at"
    found = its.does(SwitchSaid("leaf", SlotsChanged("leaf", "b")))
    assert found == [Blame("leaf", "slots of a switch that is not there", "a hint")]


def test_a_newer_term_of_slots_is_followed_and_none_that_uses_all_up() -> None:
    its = Service()
    its.stands()
    why = f"there is no term {TERMS_MAX + 2}"
    assert its.does(SwitchSaid("spine", answer(TERMS_MAX + 2))) == [Refused("spine", why)]
    newest = TERMS_MAX + 1
    its.is_disk_quick = False
    assert its.does(SwitchSaid("spine", answer(newest))) == [BegunAnew(newest)]
    before = its.log[-1]
    its.wakes()
    written = its.log[-1]
    assert isinstance(written, PersistTrees)
    assert before == BegunAnew(newest)
    record = written.stored.record
    assert (record.term, record.plan, record.epoch, len(record.jobs)) == (newest + 1, 1, 1, 1)
    its.is_disk_quick = True
    its.step(Persisted(written.token))
    its.wakes()
    assert [one.request.term for one in its.log if isinstance(one, ToSwitch)][-1] == newest + 1
    assert its.wished == {"a": True}


def test_a_record_of_a_coordinator_that_another_has_followed_is_nobodys() -> None:
    its = Service()
    its.is_disk_quick = False
    its.reports("a")
    old = [one for one in its.log if isinstance(one, PersistTrees)][-1].token
    its.does(SwitchSaid("spine", answer(5)))
    its.wakes()
    assert its.does(Persisted(old)) == []
    new = [one for one in its.log if isinstance(one, PersistTrees)][-1].token
    assert new > old
    sent = len(its.log)
    its.step(Persisted(new))
    assert len(its.log) > sent
    sent = len(its.log)
    its.step(Persisted(new))
    assert len(its.log) == sent, "said again"


@pytest.mark.parametrize("token", [0, 2])
def test_a_token_that_was_never_given_is_misuse(token: int) -> None:
    its = Service()
    its.step(Persisted(1))
    with pytest.raises(LocalMisuse, match=f"^token {token} was never given; the last is 1$"):
        its.core.step(Persisted(token), its.now)


def test_a_switch_whose_session_is_over_counts_as_lost_and_no_other_agent() -> None:
    its = Service()
    its.step(AgentGone("leaf"))
    view = its.core.view().migration
    assert view is not None
    assert [one.is_lost for one in view.switches] == [False, False]
    its.step(AgentGone("spine1"))
    view = its.core.view().migration
    assert view is not None
    assert [one.is_lost for one in view.switches] == [False, True]


# --- the root


@pytest.mark.parametrize("root", ["", "spine"])
def test_one_agent_alone_reports_trees(root: str) -> None:
    its = Service(root=root)
    assert its.core.hears_trees_of("spine")
    assert its.core.hears_trees_of("leaf") is not bool(root)
    its.reports("a")
    why = "trees are reported by 'spine', not by 'leaf'"
    assert its.does(Reported("leaf", 0, 0, ())) == [Refused("leaf", why)]
    its.step(AgentGone("leaf"))
    assert its.core.view().root == "spine"
    its.step(AgentGone("spine"))
    assert its.core.view().root == ""
    assert list(its.core.states) == ["a"], "its jobs are there"
    assert (its.does(Reported("leaf", 0, 0, ())) == [Refused("leaf", why)]) is bool(root)


def test_the_root_whose_word_counts_is_named_where_none_has_reported() -> None:
    why = "trees are reported by 'spine', not by 'leaf'"
    assert Service(root="spine").does(Reported("leaf", 0, 0, ())) == [Refused("leaf", why)]


def test_a_report_counts_when_its_last_page_has_come() -> None:
    its = Service()
    its.step(Reported("spine", 0, 0, (state("a"),), more=True))
    its.step(Reported("spine", 0, 0, (state("b"),), more=True))
    view = its.core.view()
    assert (view.states, view.root, view.taken) == ({}, "", (0, 0))
    its.step(Reported("spine", 0, 0, (state("c"),)))
    assert list(its.core.states) == ["a", "b", "c"]
    its.step(Reported("spine", 0, 0, (state("d"),), more=True))
    its.step(AgentGone("spine"))
    its.step(Reported("spine", 0, 0, (state("e"),)))
    assert list(its.core.states) == ["e"], "what it had begun to say in an earlier session"
    its.step(Reported("spine", 0, 0, (state("f"),)))
    assert list(its.core.states) == ["f"]


def test_a_report_has_no_more_jobs_than_there_may_be() -> None:
    its = Service()
    most = (state(),) * REPORTED_MAX
    assert its.does(Reported("spine", 0, 0, most, more=True)) == []
    why = f"more than {REPORTED_MAX} jobs"
    assert its.does(Reported("spine", 0, 0, (state(),), more=True)) == [Refused("spine", why)]
    assert its.does(Reported("spine", 0, 0, (state("b"),))) == []
    assert list(its.core.states) == ["b"], "the pages of which it was one are forgotten"


def test_wishes_that_are_not_taken_are_sent_again_after_a_while() -> None:
    its = Service(resend_ns=9 * S)
    its.reports("a")
    told = its.told
    assert its.hears(state(), taken=(1, 1), after_ns=9 * S - 1) == []
    assert its.hears(state(), taken=(0, 9), after_ns=1) == [told]
    assert its.hears(state(), taken=(1, 1), after_ns=9 * S - 1) == []
    assert its.hears(state(), taken=(1, 1), after_ns=1) == [told], "counted from the last time"
    assert its.hears(state("a", 1), taken=(1, 2), after_ns=99 * S) == []
    assert its.hears(state("a", 1), taken=(2, 1), after_ns=99 * S) == [], "another leader has told it"


def test_a_root_that_comes_again_is_told_at_once() -> None:
    its = Service()
    its.reports("a")
    assert its.does(AgentGone("spine")) == []
    assert its.hears(state()) == [its.told]
    its.step(AgentGone("spine"))
    its.plan["a"] = SPINE1
    before = its.told
    its.wakes(after_ns=S)
    assert its.told == before, "nobody hears"
    assert its.core.view().revision == before.revision + 1
    found = its.does(Reported("spine", 1, before.revision, (state("a", 1),)))
    assert [one.revision for one in found if isinstance(one, TellRoot)] == [before.revision + 1]


def test_a_store_that_begins_anew_goes_on_where_the_root_has_heard_the_last() -> None:
    its = Service()
    why = f"there is no revision {REVISIONS_MAX + 1}"
    assert its.does(Reported("spine", 1, REVISIONS_MAX + 1, ())) == [Refused("spine", why)]
    assert its.core.view().root == ""
    its.hears(taken=(1, REVISIONS_MAX))
    assert (its.core.view().taken, its.told.revision) == ((1, REVISIONS_MAX), REVISIONS_MAX + 1)
    assert its.hears(taken=(1, REVISIONS_MAX + 1), after_ns=9 * S) == [], "that it has taken"
    other = Service()
    other.hears(taken=(0, 40))
    assert other.told.revision == 1, "those were another term's"


# --- roots that people want


def written(its: Service) -> list[PersistRoots]:
    return [one for one in its.log if isinstance(one, PersistRoots)]


def test_what_people_want_is_planned_for_once_it_is_on_disk() -> None:
    its = Service()
    its.reports("a")
    assert its.does(RootWanted("a", "spine1")) == [PersistRoots({"a": "spine1"}, 3)]
    assert its.core.view().wanted == {}
    its.step(Persisted(3))
    assert its.core.deadline == its.now, "it is looked at"
    its.wakes()
    assert its.core.view().wanted == its.asked.wanted == {"a": "spine1"}
    assert its.does(RootWanted("a", "")) == [PersistRoots({}, 4)]


def test_what_a_store_has_not_taken_is_not_written_with_the_next() -> None:
    its = Service(wanted={"z": "spine"})
    for job in "abc":
        its.step(RootWanted(job, "spine1"))
    tokens = [one.token for one in written(its)]
    assert tokens == [2, 3, 4]
    its.step(RootsNotPersisted(tokens[2]))
    its.step(RootWanted("d", "spine1"))
    assert written(its)[-1].roots.keys() == {"z", "a", "b", "d"}
    for token in (*tokens[:2], 5, 77):
        its.step(RootsNotPersisted(token))
    its.step(RootWanted("e", "spine1"))
    assert written(its)[-1].roots == {"z": "spine", "e": "spine1"}


def test_jobs_that_are_over_are_looked_for_from_the_first_report_on() -> None:
    its = Service(wanted={"a": "spine1"}, absent_ns=7 * S, forget_ns=2 * S)
    its.wakes(after_ns=99 * S)
    assert written(its) == [], "the root has said nothing"
    its.hears()
    for after_s in (2, 2, 2, 2):
        assert written(its) == []
        its.hears(after_ns=after_s * S)
        its.wakes()
    assert written(its) == [], "missed first after 2 s"
    its.wakes(after_ns=2 * S)
    assert [one.roots for one in written(its)] == [{}]
    its.step(Persisted(written(its)[0].token))
    assert its.core.view().wanted == {}


# --- time


def test_everything_is_looked_at_when_something_has_happened_and_again_and_again() -> None:
    its = Service(look_ns=3 * S, forget_ns=5 * S)
    its.now = Instant(S)
    assert its.core.deadline == 1000 * S, "the coordinator asks what is held"
    its.step(Reported("spine", 0, 0, ()))
    assert its.core.deadline == S
    its.wakes()
    assert its.core.deadline == 4 * S
    its.wakes(after_ns=3 * S)
    assert its.core.deadline == 6 * S, "then jobs that are over are looked for"
    its.wakes(after_ns=2 * S)
    assert its.core.deadline == 7 * S
    its.wakes(after_ns=S)
    assert its.core.deadline == 10 * S
    its.wakes(after_ns=3 * S)
    assert its.core.deadline == 11 * S, "5 s after the last time"


def test_while_a_record_is_being_written_nothing_else_is_due() -> None:
    core = TreeService(ServiceConfig(1, MigrationConfig(("spine",))))
    assert core.deadline == 0
    core.step(Woke(), Instant(0))
    assert core.deadline is None


def test_a_lease_that_is_nobodys_comes_back() -> None:
    its = Service()
    its.held["spine"] = [Lease("x", 3, 3)]
    its.step(SwitchSaid("spine", SlotsChanged("spine", "b")))
    assert its.held["spine"] == []
