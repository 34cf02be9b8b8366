"""Slots as leases: whatever is lost, late or said twice, a switch lends no more than it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.migration.ledger import (
    CapacityTold,
    ControllerArrived,
    FromController,
    LedgerAction,
    LedgerWoke,
    NotHeld,
    Renew,
    Renewed,
    SlotFreed,
    SlotLedger,
    SlotLedgerConfig,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant
from inaproto.wire.messages.slots import (
    Lease,
    Order,
    Outcome,
    SlotAnswer,
    SlotRequest,
    SlotsChanged,
)

A, B = Lease("A", 1, 1), Lease("B", 1, 2)
NOW = Instant(100)


def ledger(capacity: int = 1, lease_ns: int = 10, boot: str = "one") -> SlotLedger:
    return SlotLedger(SlotLedgerConfig("s", boot, capacity, lease_ns))


def request(
    number: int, order: Order, lease: Lease | None = None, term: int = 1, boot: str = "one"
) -> SlotRequest:
    return SlotRequest(term, number, boot, order, lease)


def ask(core: SlotLedger, its: SlotRequest, now: int = NOW) -> tuple[SlotAnswer, list[LedgerAction]]:
    """The answer, and what came before it."""
    *others, last = core.step(FromController(its), Instant(now))
    assert isinstance(last, ToController)
    assert isinstance(last.message, SlotAnswer)
    return last.message, others


def test_a_slot_is_lent_and_comes_back() -> None:
    core = ledger()
    answer, others = ask(core, request(1, Order.ACQUIRE, A))
    assert (answer.outcome, answer.held, others) == (Outcome.GRANTED, (A,), [SlotTaken(A)])
    assert (answer.switch, answer.boot) == ("s", "one"), "a controller asks several"
    answer, others = ask(core, request(2, Order.RELEASE, A))
    assert (answer.outcome, answer.held) == (Outcome.RELEASED, ())
    assert others == [SlotFreed(A, has_run_out=False)]


def test_a_refusal_says_who_has_the_slots() -> None:
    core = ledger()
    ask(core, request(1, Order.ACQUIRE, A))
    answer, others = ask(core, request(2, Order.ACQUIRE, B))
    assert (answer.outcome, answer.held, others) == (Outcome.REFUSED, (A,), [])


def test_a_job_has_one_slot_of_a_switch() -> None:
    core = ledger(capacity=2)
    ask(core, request(1, Order.ACQUIRE, A))
    answer, _ = ask(core, request(2, Order.ACQUIRE, replace(A, epoch=7)))
    assert (answer.outcome, answer.held) == (Outcome.REFUSED, (A,))
    assert ask(core, request(3, Order.ACQUIRE, B))[0].held == (A, B)


def test_a_request_that_comes_again_is_answered_and_not_obeyed_again() -> None:
    core = ledger()
    its = request(1, Order.ACQUIRE, A)
    ask(core, its)
    assert core.step(LedgerWoke(), Instant(NOW + 10))[0] == SlotFreed(A, has_run_out=True)
    answer, others = ask(core, its, NOW + 10)
    assert (answer.outcome, answer.held, others) == (Outcome.GRANTED, (), [])


def test_a_late_request_is_ignored() -> None:
    core = ledger()
    ask(core, request(2, Order.ACQUIRE, A))
    assert core.step(FromController(request(1, Order.RELEASE, A)), NOW) == []
    assert core.view().held == ((A, Instant(NOW + 10)),)


def test_an_old_term_is_refused_and_told_of_the_new_one() -> None:
    core = ledger()
    ask(core, request(1, Order.ASK, term=3))
    answer, others = ask(core, request(9, Order.ACQUIRE, A, term=2))
    assert (answer.outcome, answer.newest_term, answer.held, others) == (Outcome.OLD_TERM, 3, (), [])
    assert (answer.term, answer.number) == (2, 9)


def test_numbers_begin_anew_with_a_term() -> None:
    core = ledger()
    ask(core, request(5, Order.ACQUIRE, A))
    assert ask(core, request(1, Order.RELEASE, A, term=2))[0].outcome is Outcome.RELEASED


@pytest.mark.parametrize("order", [Order.ACQUIRE, Order.RELEASE])
def test_what_was_meant_for_an_earlier_life_of_the_switch_is_not_obeyed(order: Order) -> None:
    core = ledger(boot="two")
    answer, others = ask(core, request(1, order, A, boot="one"))
    assert (answer.outcome, answer.boot, answer.held, others) == (Outcome.OLD_BOOT, "two", (), [])


def test_anybody_may_ask_without_knowing_the_boot() -> None:
    assert ask(ledger(), request(1, Order.ASK, boot=""))[0].outcome is Outcome.TOLD


def test_releasing_what_is_not_held_changes_nothing() -> None:
    core = ledger()
    ask(core, request(1, Order.ACQUIRE, A))
    answer, others = ask(core, request(2, Order.RELEASE, replace(A, epoch=9)))
    assert (answer.outcome, answer.held, others) == (Outcome.RELEASED, (A,), [])


def test_a_lease_lives_as_long_as_a_host_renews_it() -> None:
    core = ledger()
    ask(core, request(1, Order.ACQUIRE, A))
    for now in range(NOW, NOW + 100, 9):
        assert core.step(Renew("h", A), Instant(now)) == [ToHost("h", Renewed(A, 10))]
    assert core.deadline == NOW + 99 + 10
    assert core.step(LedgerWoke(), Instant(NOW + 108)) == []
    gone = core.step(LedgerWoke(), Instant(NOW + 109))
    assert gone == [SlotFreed(A, has_run_out=True), ToController(SlotsChanged("s", "one"))]
    assert core.deadline is None


def test_a_renewal_never_makes_a_lease_and_comes_too_late_at_the_last_instant() -> None:
    core = ledger()
    assert core.step(Renew("h", A), NOW) == [ToHost("h", NotHeld(A, "one"))]
    ask(core, request(1, Order.ACQUIRE, A))
    assert core.step(Renew("h", replace(A, epoch=2)), NOW)[-1] == ToHost(
        "h", NotHeld(replace(A, epoch=2), "one")
    )
    assert core.step(Renew("h", A), Instant(NOW + 10))[-1] == ToHost("h", NotHeld(A, "one"))


def test_what_has_run_out_is_free_for_a_request_of_the_same_instant() -> None:
    core = ledger()
    ask(core, request(1, Order.ACQUIRE, A))
    answer, others = ask(core, request(2, Order.ACQUIRE, B), NOW + 10)
    assert answer.held == (B,)
    assert others == [
        SlotFreed(A, has_run_out=True),
        ToController(SlotsChanged("s", "one")),
        SlotTaken(B),
    ]


def test_a_coordinator_that_connects_hears_of_the_boot() -> None:
    hint = ToController(SlotsChanged("s", "one"))
    core = ledger()
    assert core.step(ControllerArrived(), NOW) == [hint]
    ask(core, request(1, Order.ACQUIRE, A))
    assert core.step(ControllerArrived(), Instant(NOW + 10)).count(hint) == 1


@pytest.mark.parametrize(
    ("its", "rule"),
    [
        (request(0, Order.ASK), "bad slot request"),
        (request(1, Order.ASK, term=0), "bad slot request"),
        (request(1, Order.ASK, A), "bad slot request"),
        (request(1, Order.RELEASE), "bad slot request"),
        (request(5, Order.RELEASE, A), "slot request number used twice"),
    ],
)
def test_what_no_coordinator_may_ask_is_blamed_and_changes_nothing(its: SlotRequest, rule: str) -> None:
    core = ledger()
    ask(core, request(5, Order.ACQUIRE, A))
    before = core.view()
    (blame,) = core.step(FromController(its), NOW)
    assert isinstance(blame, Blame)
    assert (blame.peer, blame.rule) == ("coordinator", rule)
    assert core.view() == before


def test_the_view_tells_the_last_request() -> None:
    core = ledger(capacity=3)
    ask(core, request(4, Order.ACQUIRE, A, term=2))
    view = core.view()
    assert (view.switch, view.boot, view.capacity, view.term, view.number) == ("s", "one", 3, 2, 4)


@pytest.mark.parametrize("wrong", [{"switch": ""}, {"boot": ""}, {"capacity": 0}, {"lease_ns": 0}])
def test_a_configuration_that_cannot_be_is_misuse(wrong: dict[str, object]) -> None:
    with pytest.raises(LocalMisuse):
        replace(SlotLedgerConfig("s", "one"), **wrong)  # type: ignore[arg-type]


def test_slots_beyond_a_smaller_capacity_stay_until_they_come_back() -> None:
    core = ledger(capacity=2)
    ask(core, request(1, Order.ACQUIRE, A))
    ask(core, request(2, Order.ACQUIRE, B))
    assert core.step(CapacityTold(1), NOW) == []
    assert (core.view().capacity, len(core.view().held)) == (1, 2)
    ask(core, request(3, Order.RELEASE, A))
    assert ask(core, request(4, Order.ACQUIRE, A))[0].outcome is Outcome.REFUSED
    core.step(CapacityTold(2), NOW)
    assert ask(core, request(5, Order.ACQUIRE, A))[0].outcome is Outcome.GRANTED
    core.step(CapacityTold(0), NOW)
    ask(core, request(6, Order.RELEASE, A))
    ask(core, request(7, Order.RELEASE, B))
    assert ask(core, request(8, Order.ACQUIRE, B))[0].outcome is Outcome.REFUSED
