"""The coordinator of tree migration: what it writes, asks again, believes, and does after a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import (
    Deposed,
    DrainJob,
    FromSwitch,
    JobDrained,
    JobEnded,
    JobRecord,
    MigrationAction,
    MigrationConfig,
    MigrationEvent,
    MigrationRecord,
    Persist,
    Persisted,
    Phase,
    PlanWanted,
    SwitchLost,
    ToSwitch,
    Tree,
    TreeStands,
    Woke,
)
from inaproto.core.migration.jobs import TABLE, Fact, Switch, stay
from inaproto.core.migration.ledger import (
    FromController,
    SlotFreed,
    SlotLedger,
    SlotLedgerConfig,
    ToController,
)
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Instant, S
from inaproto.wire.messages.slots import Lease, Order, Outcome, SlotAnswer, SlotRequest, SlotsChanged
from tests.unit.migrating_jobs import MigratingJobs, Restless, plan, tree

NOW = Instant(5)


def settled(switches: str, **targets: str) -> MigratingJobs:
    world = MigratingJobs(switches)
    world.tell(plan(1, **targets))
    assert world.settle()
    world.log.clear()
    return world


def phases(world: MigratingJobs) -> dict[str, Phase]:
    return {its.job: its.phase for its in world.core.view().jobs}


def test_nothing_is_sent_while_a_record_is_being_written() -> None:
    core = TreeMigration(MigrationConfig(("a",)))
    deadlines = [core.deadline]
    (persist,) = core.step(Woke(), NOW)
    assert isinstance(persist, Persist)
    assert persist.record.term == 1
    assert [*deadlines, core.deadline] == [0, None]
    assert core.step(plan(1, A="a"), NOW) == []
    (second,) = core.step(Persisted(persist.token), NOW)
    assert isinstance(second, Persist), "the plan, before anything of it is seen"
    assert second.record.plan == 1
    (sent,) = core.step(Persisted(second.token), NOW)
    assert isinstance(sent, ToSwitch)
    assert sent.request == SlotRequest(1, 1, "", Order.ASK)


def test_an_epoch_is_written_before_it_is_used() -> None:
    world = MigratingJobs("a")
    world.tell(plan(1, A="a"))
    assert world.settle()
    used = [
        its.request.lease.epoch for _, its in world.log if isinstance(its, ToSwitch) and its.request.lease
    ]
    at = [
        index for index, (_, its) in enumerate(world.log) if isinstance(its, ToSwitch) and its.request.lease
    ]
    records = [
        (index, its.record.epoch) for index, (_, its) in enumerate(world.log) if isinstance(its, Persist)
    ]
    assert used == [1]
    assert any(index < at[0] and epoch == 1 for index, epoch in records)


def test_a_token_that_was_never_given_is_misuse() -> None:
    core = TreeMigration(MigrationConfig(("a",)))
    with pytest.raises(LocalMisuse, match="never given"):
        core.step(Persisted(1), NOW)


@pytest.mark.parametrize(
    "wanted",
    [
        PlanWanted(1, (("A", tree("z")),)),
        PlanWanted(1, (("A", tree("a")), ("A", None))),
        PlanWanted(1, tuple((str(job), tree("a")) for job in range(3))),
    ],
)
def test_a_plan_that_cannot_be_meant_is_misuse_and_changes_nothing(wanted: PlanWanted) -> None:
    core = TreeMigration(MigrationConfig(("a",), jobs_max=2))
    before = core.view()
    with pytest.raises(LocalMisuse):
        core.step(wanted, NOW)
    assert core.view() == before


@pytest.mark.parametrize("switches", [(), ("b", "a"), ("a", "a")])
def test_a_tree_names_its_switches_in_ascending_order(switches: tuple[str, ...]) -> None:
    with pytest.raises(LocalMisuse):
        Tree(1, switches)


@pytest.mark.parametrize(
    "wrong",
    [
        {"switches": ()},
        {"switches": ("a", "a")},
        {"slots": (1, 1)},
        {"slots": (-1,)},
        {"jobs_max": 0},
        {"resend_ns": 0},
        {"tries_max": 0},
        {"audit_ns": 0},
        {"backoff_ns": 0},
        {"measures_max": 0},
        {"backoff_max_ns": 1},
        {"jitter_ns": ()},
        {"jitter_ns": (-1,)},
    ],
)
def test_a_configuration_that_cannot_be_is_misuse(wrong: dict[str, object]) -> None:
    with pytest.raises(LocalMisuse):
        replace(MigrationConfig(("a",)), **wrong)  # type: ignore[arg-type]


def test_every_phase_has_every_fact_and_says_which_matter() -> None:
    assert set(TABLE) == set(Phase)
    assert all(tuple(row) == tuple(Fact) for row in TABLE.values())
    matter = {
        phase.name: [fact.name for fact, its in row.items() if its is not stay]
        for phase, row in TABLE.items()
    }
    assert matter == {
        "ADOPTING": ["ENDED", "KNOWN"],
        "STABLE": ["ENDED", "MOVED", "LACKS"],
        "DRAINING": ["ENDED", "DRAINED"],
        "RELEASING": ["CLEAR"],
        "RELEASED": ["ENDED", "OPEN"],
        "ACQUIRING": ["ENDED", "MOVED", "STANDS", "REFUSED"],
        "GIVING_BACK": ["ENDED", "CLEAR"],
        "BACKING_OFF": ["ENDED", "MOVED", "DUE"],
    }


def test_a_repeated_or_older_plan_changes_nothing() -> None:
    world = settled("ab", A="a")
    world.tell(plan(1, A="b"))
    world.tell(plan(0, A="b"))
    assert world.log == []
    assert world.at_rest()


def test_a_newer_plan_half_way_counts() -> None:
    world = settled("abc", A="a", B="b")
    world.drain_ns = 10 * MS
    world.tell(plan(2, A="b", B="a"))
    world.run(5 * MS)
    world.tell(plan(3, A="c"))
    assert world.settle()
    assert {name: [its.job for its in world.held(name)] for name in "abc"} == {
        "a": ["B"],
        "b": [],
        "c": ["A"],
    }


def test_a_job_that_acquires_turns_to_the_tree_of_a_newer_plan() -> None:
    world = settled("abc", A="b")
    world.tell(plan(2, A="b", B="ab"))
    assert world.run(1 * S, lambda: phases(world)["B"] is Phase.BACKING_OFF)
    world.tell(plan(3, B="ac"))
    assert world.settle()
    assert [its.job for its in world.held("c")] == ["B"]


def test_a_job_that_gives_up_its_tree_is_forgotten() -> None:
    world = settled("a", A="a")
    world.tell(plan(2, A=""))
    assert world.settle()
    assert world.core.view().jobs == ()
    world.run(1 * MS)
    assert world.disk is not None
    assert world.disk.jobs == ()


@pytest.mark.parametrize("phase", [its for its in Phase if its is not Phase.ADOPTING])
def test_a_job_may_end_in_any_phase(phase: Phase) -> None:
    world = settled("abc", A="a", B="c")
    world.drain_ns = 5 * MS
    job = "C" if phase is Phase.RELEASED else "A"
    if phase in (Phase.GIVING_BACK, Phase.BACKING_OFF):
        world.tell(plan(2, A="bc"))
    elif phase is not Phase.STABLE:
        world.tell(plan(2, A="b", C="a"))
    assert world.run(1 * S, lambda: phases(world).get(job) is phase)
    world.die(job)
    assert world.settle()
    assert job not in phases(world)
    assert all(its.job != job for name in "abc" for its in world.held(name))


def test_a_request_without_an_answer_is_sent_again_and_its_switch_is_lost_in_the_end() -> None:
    config = MigrationConfig(("a",), resend_ns=10, tries_max=3, audit_ns=100)
    core = TreeMigration(config)
    core.step(Woke(), NOW)
    sent = core.step(Persisted(1), NOW)
    for waited in (10, 30):
        at = core.deadline
        assert at == NOW + waited
        assert core.step(Woke(), at) == sent, "the same request"
    at = core.deadline
    assert at == NOW + 70
    assert core.step(Woke(), at) == []
    (view,) = core.view().switches
    assert view.is_lost
    assert core.deadline == at + 100
    (asked,) = core.step(Woke(), Instant(at + 100))
    assert isinstance(asked, ToSwitch)
    assert asked.request.order is Order.ASK
    assert asked.request.number == 2


def test_a_switch_that_does_not_answer_is_asked_ever_less_often() -> None:
    core = TreeMigration(MigrationConfig(("a",), resend_ns=10, tries_max=100))
    core.step(Woke(), NOW)
    core.step(Persisted(1), NOW)
    waits, now = [], NOW
    for _ in range(7):
        at = core.deadline
        assert at is not None
        waits.append(at - now)
        assert core.step(Woke(), at)
        now = at
    assert waits == [10, 20, 40, 80, 160, 160, 160]


def test_a_switch_that_did_not_answer_is_asked_again_as_soon_as_it_says_something() -> None:
    core = TreeMigration(MigrationConfig(("a",), resend_ns=10))
    core.step(Woke(), NOW)
    (sent,) = core.step(Persisted(1), NOW)
    hint = FromSwitch(SlotsChanged("a", "boot"))
    assert core.step(hint, Instant(NOW + 1)) == [], "its answer may be on the way"
    assert core.step(Woke(), Instant(NOW + 10)) == [sent]
    assert core.step(hint, Instant(NOW + 11)) == [sent]


def test_who_says_something_does_not_count_as_lost_however_often_it_says_it() -> None:
    core = TreeMigration(MigrationConfig(("a",), resend_ns=10, tries_max=3))
    core.step(Woke(), NOW)
    (sent,) = core.step(Persisted(1), NOW)
    core.step(Woke(), Instant(NOW + 10))
    hint = FromSwitch(SlotsChanged("a", "boot"))
    told = [core.step(hint, Instant(NOW + 11)) for _ in range(9)]
    assert told == [[sent], *[[]] * 8], "once, as its answer may be on the way then"
    assert not core.view().switches[0].is_lost


def requests_of(core: TreeMigration, answer: Callable[[SlotRequest], SlotAnswer]) -> list[int]:
    """When a switch was asked within 20 s, which answers at once; job A wants it."""
    asked: list[int] = []
    now, end = Instant(NOW), NOW + 20 * S
    actions = [*core.step(Woke(), now), *core.step(plan(1, A="a"), now)]
    while now <= end and len(asked) < 1000:
        if actions:
            action, *actions = actions
            if isinstance(action, Persist):
                actions += core.step(Persisted(action.token), now)
            elif isinstance(action, ToSwitch):
                asked.append(now - NOW)
                actions += core.step(FromSwitch(answer(action.request)), now)
            elif isinstance(action, DrainJob):
                actions += core.step(JobDrained(action.job, action.epoch), now)
            continue
        assert core.deadline is not None
        now = max(now, core.deadline)
        actions = core.step(Woke(), now)
    return asked


@pytest.mark.parametrize("boots", ["the same", "another each time"])
def test_a_switch_that_never_knows_its_boot_is_asked_ever_less_often(boots: str) -> None:
    """Or two that have one name, and start again and again."""
    core = TreeMigration(MigrationConfig(("a",)))

    def answer(request: SlotRequest) -> SlotAnswer:
        boot = "one" if boots == "the same" else f"boot{request.number}"
        outcome = Outcome.TOLD if request.order is Order.ASK else Outcome.OLD_BOOT
        return SlotAnswer("a", boot, request.term, request.number, outcome, (), request.term)

    assert 3 < len(requests_of(core, answer)) < 60
    assert core.view().jobs[0].phase in (Phase.BACKING_OFF, Phase.ACQUIRING)


def test_a_switch_that_never_gives_back_a_slot_is_asked_ever_less_often() -> None:
    core = TreeMigration(MigrationConfig(("a",)))
    stranger = Lease("nobody", 1, 1)

    def answer(request: SlotRequest) -> SlotAnswer:
        outcome = Outcome.TOLD if request.order is Order.ASK else Outcome.RELEASED
        return SlotAnswer("a", "one", request.term, request.number, outcome, (stranger,), request.term)

    assert 3 < len(requests_of(core, answer)) < 60


def test_a_switch_that_has_started_again_once_is_asked_anew_at_once() -> None:
    world = settled("ab", A="a")
    world.reboot("b", says_so=False)
    world.tell(plan(2, A="b"))
    assert world.run(20 * MS, lambda: [its.job for its in world.held("b")] == ["A"])


def test_a_job_does_not_wait_for_a_lost_switch_to_release() -> None:
    world = settled("abc", A="ab", B="c")
    world.tell(SwitchLost("a"))
    world.tell(plan(2, A="b", B="c"))
    assert world.settle()
    assert world.held("a") == [], "what it still had was released when it was back"


def test_a_session_that_breaks_costs_nobody_its_tree() -> None:
    world = settled("ab", A="ab")
    world.tell(SwitchLost("a"))
    assert world.core.view().switches[0].is_lost
    world.run(20 * S)
    assert not [its for _, its in world.log if isinstance(its, DrainJob)]
    assert not world.core.view().switches[0].is_lost
    assert world.at_rest()


def test_a_quiet_switch_is_asked_what_it_holds_now_and_then() -> None:
    world = settled("ab", A="ab")
    world.reboot("a", says_so=False)
    assert world.run(6 * S, lambda: bool(world.log))
    assert world.settle()
    assert [its.job for its in world.held("a")] == ["A"]


def test_a_lease_of_nobody_is_released() -> None:
    world = settled("ab", A="a")
    stranger = Lease("X", 1, 77)
    world.ledgers["b"]._held[stranger] = Instant(world.now + 60 * S)
    assert world.run(10 * S, lambda: world.held("b") == [])
    assert SlotFreed(stranger, has_run_out=False) in [its for _, its in world.log]
    assert world.core.view().counters["strangers_freed"] == 1


def test_a_hint_is_not_believed_but_asked_about() -> None:
    world = settled("a", A="a")
    world.tell(FromSwitch(SlotsChanged("a", "an old boot")))
    assert world.settle()
    world.run(1 * S)
    assert [type(its) for _, its in world.log] == [ToSwitch]


def test_a_lease_that_is_being_released_does_not_stand() -> None:
    """Found by the exhaustive search: a release whose answer was on its way counted as a slot held."""
    core = TreeMigration(MigrationConfig(("a", "b"), backoff_ns=1))
    ledgers = {name: SlotLedger(SlotLedgerConfig(name, name)) for name in "ab"}
    asked: dict[str, SlotRequest] = {}

    def tell(event: MigrationEvent, now: int = NOW) -> list[MigrationAction]:
        """Records are written at once; requests wait in ``asked``."""
        actions = core.step(event, Instant(now))
        for action in list(actions):
            if isinstance(action, Persist):
                actions += tell(Persisted(action.token), now)
            elif isinstance(action, ToSwitch):
                asked[action.switch] = action.request
        return actions

    def last() -> Order:
        return asked["a"].order

    def serve(name: str) -> None:
        actions = ledgers[name].step(FromController(asked[name]), NOW)
        for action in actions:
            if isinstance(action, ToController):
                tell(FromSwitch(action.message))

    tell(Woke())
    tell(plan(1, A="ab"))
    serve("b")
    serve("a")
    assert last() is Order.ACQUIRE
    ledgers["a"].step(FromController(asked["a"]), NOW)
    tell(SwitchLost("a"))
    tell(FromSwitch(SlotsChanged("a", "a")))
    serve("a")
    assert last() is Order.RELEASE
    serve("b")
    assert not [its for its in tell(Woke(), NOW + 10) if isinstance(its, TreeStands)]
    assert core.view().jobs[0].phase is Phase.ACQUIRING
    serve("a")
    assert last() is Order.ACQUIRE


def test_a_newer_coordinator_silences_this_one() -> None:
    world = settled("a", A="a")
    newer = SlotRequest(9, 1, "", Order.ASK)
    world.ledgers["a"].step(FromController(newer), world.now)
    old = world.core
    world.tell(plan(2, A=""))
    assert world.run(1 * S, lambda: any(isinstance(its, Deposed) for _, its in world.log))
    assert old.deadline is None
    assert old.step(plan(3, A="a"), world.now) == []


def test_an_answer_of_a_switch_that_is_not_there_is_blamed() -> None:
    world = settled("a")
    answer = SlotAnswer("z", "z1", 1, 1, Outcome.TOLD, (), 1)
    for message in (answer, SlotsChanged("z", "z1")):
        blame = world.core.step(FromSwitch(message), world.now)[0]
        assert isinstance(blame, Blame)
        assert blame.peer == "z"


def test_a_late_answer_changes_nothing() -> None:
    world = settled("a", A="a")
    before = world.core.view()
    for number in (1, 2, 99):
        late = SlotAnswer("a", "a0", 1, number, Outcome.TOLD, (), 1)
        assert world.core.step(FromSwitch(late), world.now) == []
    assert world.core.view() == before


def test_what_is_said_of_unknown_jobs_and_switches_changes_nothing() -> None:
    world = settled("a", A="a")
    before = world.core.view()
    for event in (JobDrained("X", 1), JobDrained("A", 1), JobEnded("X"), SwitchLost("z")):
        assert world.core.step(event, world.now) == []
    assert world.core.view() == before


def test_a_restarted_coordinator_adopts_what_stands() -> None:
    world = settled("ab", A="a", B="b")
    term = world.core.view().term
    world.crash()
    world.run(1 * S)
    world.restart()
    assert world.settle()
    assert world.core.view().term == term + 1
    assert not [its for _, its in world.log if isinstance(its, DrainJob | SlotFreed)]
    assert {its.job for _, its in world.log if isinstance(its, TreeStands)} == {"A", "B"}


def test_a_restarted_coordinator_does_not_trust_a_tree_that_lacks_a_slot() -> None:
    world = settled("ab", A="ab")
    world.crash()
    world.reboot("b")
    world.restart()
    assert world.settle()
    told = [type(its) for _, its in world.log if isinstance(its, DrainJob | TreeStands)]
    assert told == [DrainJob, TreeStands]


def test_a_crash_at_any_instant_of_a_swap_is_made_up_for() -> None:
    for after in range(30):
        world = settled("ab", A="a", B="b")
        world.drain_ns = 4 * MS
        world.tell(plan(2, A="b", B="a"))
        world.run(after * MS // 2)
        world.crash()
        world.run(3 * MS)
        world.restart()
        world.tell(plan(2, A="b", B="a"))
        assert world.settle(), f"after {after / 2} ms"
        assert [its.job for its in world.held("a")] == ["B"]


def test_measures_are_bounded() -> None:
    world = MigratingJobs("ab", config=MigrationConfig(("a", "b"), measures_max=3))
    for version in range(1, 8):
        world.tell(plan(version, A="ab"[version % 2]))
        assert world.settle()
    view = world.core.view()
    assert [its.epoch for its in view.migrations] == [5, 6, 7]
    assert view.counters["migrations"] == 7


def test_a_job_that_waits_does_not_overtake_those_that_are_about_to_release() -> None:
    """X comes before Y in the coordinator's table, and has nothing to release."""
    world = settled("abc", A="a")
    world.tell(plan(2, X="a"))
    world.tell(plan(3, Y="b"))
    assert world.run(1 * S, lambda: phases(world).get("Y") is Phase.STABLE)
    assert world.run(1 * S, lambda: phases(world)["X"] is Phase.BACKING_OFF)
    world.drain_ns = 50 * MS
    world.log.clear()
    world.tell(plan(4, X="b", Y="c"))
    assert world.settle()
    assert world.orders(Order.RELEASE, Order.ACQUIRE) == [("Y", "b"), ("X", "b"), ("Y", "c")]


def test_a_switch_that_is_not_configured_any_more_costs_its_jobs_their_trees() -> None:
    """Whoever operates the cluster took b and d out of its file while no controller ran."""
    world = settled("abcd", A="ab", B="d", C="c")
    world.crash()
    record, world.config = world.disk, MigrationConfig(("a", "c"))
    assert record is not None
    world.restart()
    assert phases(world)["A"] is Phase.ADOPTING
    assert world.settle()
    told = {(type(its).__name__, its.job) for _, its in world.log if isinstance(its, DrainJob | TreeStands)}
    assert told == {("DrainJob", "A"), ("DrainJob", "B"), ("TreeStands", "C")}
    assert phases(world) == {"C": Phase.STABLE}, "b and d are taken out"
    world.tell(plan(record.plan + 1, A="a", B=""))
    assert world.settle()
    assert [its.job for its in world.held("a")] == ["A"]


@pytest.mark.parametrize("tree_at", ["ab", ""])
def test_a_job_that_ended_while_its_switch_was_taken_out_is_forgotten(tree_at: str) -> None:
    aim = tree("ab")
    one = JobRecord("A", tree(tree_at) if tree_at else None, 1 if tree_at else 0, aim)
    record = MigrationRecord(term=3, plan=7, epoch=1, jobs=(one,))
    world = MigratingJobs("ab", config=MigrationConfig(("b",)))
    world.coordinator, world.disk = None, record
    world.restart()
    world.tell(JobEnded("A"))
    assert world.settle()
    assert world.core.view().jobs == ()


def test_a_job_that_never_drains_holds_up_nobody_who_wants_other_slots() -> None:
    """Its all-reduce waits for a rank that writes a checkpoint."""
    world = settled("abc", A="a")
    world.drain_ns = 3600 * S
    world.tell(plan(2, A="b"))
    world.tell(plan(3, B="c"))
    assert world.run(1 * S, lambda: bool(world.hosts.get("B")) and world.uses("B") is not None)
    assert phases(world) == {"A": Phase.DRAINING, "B": Phase.STABLE}


def test_a_slot_that_is_free_beside_one_that_is_to_be_released_is_had_at_once() -> None:
    world = MigratingJobs("ab", capacity=2)
    world.tell(plan(1, A="a"))
    assert world.settle()
    world.drain_ns = 3600 * S
    world.tell(plan(2, A="b"))
    world.tell(plan(3, B="a", C="a"))
    assert world.run(1 * S, lambda: phases(world).get("B") is Phase.STABLE)
    assert not world.run(1 * S, lambda: phases(world)["C"] is not Phase.RELEASED), "that one A has"
    assert ("C", "a") not in world.orders(Order.ACQUIRE), "it would be refused"


def test_where_slots_are_not_known_a_switch_that_a_job_has_yet_to_leave_is_full() -> None:
    world = MigratingJobs("ab", capacity=2, config=MigrationConfig(("a", "b")))
    world.tell(plan(1, A="a"))
    assert world.settle()
    world.drain_ns = 1 * S
    world.tell(plan(2, A="b", B="a"))
    assert not world.run(S // 2, lambda: phases(world).get("B") is not Phase.RELEASED)
    assert world.settle()


def test_a_back_off_waits_only_for_those_who_have_what_is_wanted() -> None:
    world = settled("abc", A="a", B="b")
    world.tell(plan(2, A="a", B="b", C="b"))
    assert world.run(1 * S, lambda: phases(world)["C"] is Phase.BACKING_OFF)
    world.drain_ns = 3600 * S
    world.tell(plan(3, A="c", B="b", C="b"))
    world.die("B")
    assert world.run(5 * S, lambda: phases(world)["C"] is Phase.STABLE)
    assert phases(world)["A"] is Phase.DRAINING


def test_at_rest_a_switch_that_holds_what_it_held_costs_no_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = settled("abcd", A="ab", B="c")
    looked: list[str] = []
    ask = TreeMigration._ask

    def counted(core: TreeMigration, switch: Switch, *rest: Any) -> list[MigrationAction]:
        looked.append(switch.name)
        return ask(core, switch, *rest)

    world.run(30 * S)
    began = world.now
    monkeypatch.setattr(TreeMigration, "_ask", counted)
    monkeypatch.setattr(Restless, "_ask", ask)
    world.run(30 * S)
    asked = sum(isinstance(action, ToSwitch) for at, action in world.log if at > began)
    assert len(looked) <= 2 * asked, "each is looked at when it is asked, and when it has answered"
