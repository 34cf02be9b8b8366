"""A host whose job has a collective: what it tries, votes, takes and redoes (docs/protocol.md 9.8)."""

from dataclasses import replace
from itertools import pairwise

import pytest

from inaproto.core.host.collective import (
    ASK_EVERY_MAX,
    ATTACH_FIRST_NS,
    ATTACH_LAST_NS,
    FAILURES_MAX,
    Action,
    Allowed,
    Attach,
    Attached,
    AttachFailed,
    BaseEnded,
    Called,
    Closing,
    CollectiveCalls,
    Counted,
    Event,
    FellBack,
    Lost,
    Release,
    Released,
    Session,
    Stands,
    Superseded,
    TakeTried,
    ToBase,
    Tried,
    Try,
    TryFailed,
    Vote,
    Woke,
)
from inaproto.core.host.collective_terms import Code, CollectiveTerms, vote_on
from inaproto.core.host.operations import Memory, Operation
from inaproto.errors import LocalMisuse
from inaproto.units import MS, Instant, OpIndex, S
from inaproto.wire.ina_header import Dtype, Op

TERMS = CollectiveTerms("sharp", frozenset({Dtype.F32}), frozenset({Op.SUM}), 64, 4096)
TRY_NS = 10 * S


def operation(index: int, nbytes: int = 64, memory: tuple[Memory, ...] = ()) -> Operation:
    return Operation(OpIndex(index), Dtype.F32, Op.SUM, nbytes, signature=index, memory=memory)


class At:
    """A core, and a clock."""

    def __init__(self) -> None:
        self.core = CollectiveCalls(TERMS, try_ns=TRY_NS, steady_ns=3)
        self.now = Instant(0)

    def __call__(self, *events: Event) -> list[Action]:
        return [action for event in events for action in self.core.step(event, self.now)]

    def wakes(self) -> list[Action]:
        """It is woken at its deadline."""
        assert self.core.deadline is not None
        self.now = self.core.deadline
        return self(Woke())

    def call(self, index: int, nbytes: int = 64) -> list[Action]:
        return self(Called(operation(index, nbytes)))


@pytest.fixture
def at() -> At:
    return At()


@pytest.fixture
def attached(at: At) -> At:
    assert at.wakes() == [Attach(1)]
    assert at(Attached(1)) == []
    return at


@pytest.fixture
def stands(attached: At) -> At:
    """Operation 0 is being tried."""
    first = operation(0)
    assert attached.call(0) == [Vote(vote_on(first), 1)]
    assert attached(Counted(OpIndex(0), 1, 1)) == [Stands(OpIndex(0), 1), Try(first, 1)]
    return attached


def test_it_attaches_at_once(at: At) -> None:
    assert at.core.deadline == 0
    assert at.wakes() == [Attach(1)]
    assert (at.core.view().session, at.core.view().attempt) == (Session.ATTACHING, 1)
    assert at.core.deadline is None


def test_what_the_terms_leave_out_goes_to_the_base(stands: At) -> None:
    stands(Tried(OpIndex(0), 1, 5), Counted(OpIndex(0), 5, 5))
    assert stands.call(1, nbytes=60) == [ToBase(operation(1, 60))]
    assert stands.core.view().without == 0


def test_an_operation_that_all_hosts_have_is_taken(stands: At) -> None:
    assert stands(Tried(OpIndex(0), 1, 5)) == [Vote(vote_on(operation(0)), 5)]
    assert len(stands.core) == 1
    assert stands(Counted(OpIndex(0), 5, 5)) == [TakeTried(operation(0))]
    assert len(stands.core) == 0
    view = stands.core.view()
    assert (view.tried, view.taken, view.redone, view.stands) == (1, 1, {}, True)


def test_a_digest_of_0_is_one_like_another(stands: At) -> None:
    stands(Tried(OpIndex(0), 1, 0))
    assert stands(Counted(OpIndex(0), 0, 0)) == [TakeTried(operation(0))]
    stands.call(1)
    stands(Tried(OpIndex(1), 1, 0))
    assert stands(Counted(OpIndex(1), 0, 5))[0] == FellBack(
        operation(1), Code.DIFFERS, "hosts have different results"
    )


def test_what_is_tried_taken_and_redone_is_counted(stands: At) -> None:
    for index in (0, 1):
        stands(Tried(OpIndex(index), 1, 5), Counted(OpIndex(index), 5, 5))
        stands.call(index + 1)
    for index in (2, 3):
        stands(TryFailed(OpIndex(index), 1, "locked", False), Counted(OpIndex(index), -1, -1))
        stands.call(index + 1)
    view = stands.core.view()
    assert (view.tried, view.taken, view.redone) == (5, 2, {Code.FAILED: 2})


def test_the_operation_that_has_to_make_progress_is_the_first(stands: At) -> None:
    stands.call(1)
    assert stands.core.head == operation(0)
    stands(Tried(OpIndex(0), 1, 5), Counted(OpIndex(0), 5, 5), Tried(OpIndex(1), 1, 5))
    stands(Counted(OpIndex(1), 5, 5))
    assert stands.core.head is None


def test_the_next_is_tried_without_a_question(stands: At) -> None:
    stands(Tried(OpIndex(0), 1, 5), Counted(OpIndex(0), 5, 5))
    assert stands.call(1) == [Try(operation(1), 1)]


def test_one_is_tried_at_a_time(stands: At) -> None:
    assert stands.call(1) == []
    stands(Tried(OpIndex(0), 1, 5))
    assert stands(Counted(OpIndex(0), 5, 5)) == [TakeTried(operation(0)), Try(operation(1), 1)]


def test_one_that_failed_here_is_redone_and_the_collective_stands(stands: At) -> None:
    assert stands(TryFailed(OpIndex(0), 1, "locked", False)) == [Vote(vote_on(operation(0)), -Code.FAILED)]
    found = stands(Counted(OpIndex(0), -1, 7))
    assert found == [FellBack(operation(0), Code.FAILED, "locked"), ToBase(operation(0))]
    assert stands.call(1) == [Try(operation(1), 1)]
    assert stands.core.view().redone == {Code.FAILED: 1}
    assert stands.core.view().reason == "locked"


def test_one_that_failed_at_another_host_is_redone_here_too(stands: At) -> None:
    stands(Tried(OpIndex(0), 1, 5))
    found = stands(Counted(OpIndex(0), -1, 5))
    assert found == [FellBack(operation(0), Code.FAILED, "another host: failed"), ToBase(operation(0))]


def test_different_bytes_are_nobodys_result(stands: At) -> None:
    stands(Tried(OpIndex(0), 1, 5))
    assert stands(Counted(OpIndex(0), 5, 6)) == [
        FellBack(operation(0), Code.DIFFERS, "hosts have different results"),
        ToBase(operation(0)),
        Release(1),
    ]


def test_a_lost_attachment_is_released_and_followed_by_the_next(stands: At) -> None:
    vote = Vote(vote_on(operation(0)), -Code.LOST)
    assert stands(TryFailed(OpIndex(0), 1, "gone", True)) == [vote, Release(1)]
    assert stands(Counted(OpIndex(0), -3, 5))[0] == FellBack(operation(0), Code.LOST, "gone")
    assert (stands.core.view().session, stands.core.deadline) == (Session.RELEASING, None)
    stands(Released(1))
    assert stands.core.deadline == ATTACH_FIRST_NS + 3
    assert stands.wakes() == [Attach(2)]


def test_one_that_does_not_end_is_given_up(stands: At) -> None:
    assert stands.core.deadline == TRY_NS
    assert stands.wakes() == [Vote(vote_on(operation(0)), -Code.TIMED_OUT), Release(1)]
    assert stands(Tried(OpIndex(0), 1, 5)) == []
    found = stands(Counted(OpIndex(0), -4, 5))
    assert found[0] == FellBack(operation(0), Code.TIMED_OUT, "the collective did not end within 10 s")


def test_a_host_that_lost_it_idle_votes_against_the_next(stands: At) -> None:
    stands(Tried(OpIndex(0), 1, 5), Counted(OpIndex(0), 5, 5))
    assert stands(Lost(1, "a port went down")) == [Release(1)]
    assert stands.call(1) == [Vote(vote_on(operation(1)), -Code.ABSENT)]
    found = stands(Counted(OpIndex(1), -2, 9))
    assert found == [FellBack(operation(1), Code.ABSENT, "a port went down"), ToBase(operation(1))]
    assert not stands.core.view().stands


def test_one_that_is_lost_while_it_tries_does_not_wait(stands: At) -> None:
    assert stands(Lost(1, "gone")) == [Vote(vote_on(operation(0)), -Code.LOST), Release(1)]


def test_a_host_that_begins_anew_takes_the_others_with_it(stands: At) -> None:
    assert stands(Superseded(4)) == [Vote(vote_on(operation(0)), -Code.LOST), Release(1)]
    stands(Counted(OpIndex(0), -3, 5), Released(1))
    assert stands.wakes() == [Attach(4)]


def test_what_is_superseded_while_detached_begins_at_once(at: At) -> None:
    at.wakes()
    at(AttachFailed(1, "busy"))
    at(Superseded(3))
    assert at.core.deadline == at.now
    assert at.wakes() == [Attach(3)]


def test_an_attempt_that_is_superseded_fails_by_itself(at: At) -> None:
    at.wakes()
    assert at(Superseded(2), Superseded(1)) == []
    at(AttachFailed(1, "another host has begun attempt 2"))
    assert at.wakes() == [Attach(2)]


def test_attempts_wait_twice_as_long_each_time(at: At) -> None:
    at.wakes()
    waits = []
    for attempt in range(1, 9):
        at(AttachFailed(attempt, "busy"))
        assert at.core.deadline is not None
        waits.append(at.core.deadline - at.now - 3)
        assert at.wakes() == [Attach(attempt + 1)]
    assert waits == [min(ATTACH_FIRST_NS << n, ATTACH_LAST_NS) for n in range(8)]
    assert at.core.view().reason == "busy"
    at(Attached(9), Lost(9, "gone"), Released(9))
    assert at.core.deadline == at.now + 100 * MS + 3


def test_failures_in_a_row_end_an_attachment(stands: At) -> None:
    found: list[Action] = []
    for index in range(FAILURES_MAX):
        if index:
            stands.call(index)
        stands(TryFailed(OpIndex(index), 1, "locked", False))
        found = stands(Counted(OpIndex(index), -1, -1))
    assert found[-1] == Release(1)
    assert not stands.core.view().stands


def test_a_success_between_them_is_a_new_start(stands: At) -> None:
    for index in range(2 * FAILURES_MAX):
        if index:
            stands.call(index)
        if index % 2:
            stands(Tried(OpIndex(index), 1, 5), Counted(OpIndex(index), 5, 5))
        else:
            stands(TryFailed(OpIndex(index), 1, "locked", False), Counted(OpIndex(index), -1, -1))
    assert stands.core.view().stands


def test_questions_become_rare_while_a_host_is_missing(at: At) -> None:
    asked = []
    for index in range(300):
        if isinstance(at.call(index)[0], Vote):
            asked.append(index)
            assert at(Counted(OpIndex(index), -2, 1)) == [ToBase(operation(index))]
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[:9] == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert set(gaps[6:]) == {ASK_EVERY_MAX}
    assert at.core.view().without == 300


def test_hosts_of_different_attempts_do_not_stand(attached: At) -> None:
    attached.call(0)
    assert attached(Counted(OpIndex(0), 1, 2)) == [ToBase(operation(0))]


def test_input_that_the_base_has_yet_to_write_is_waited_for(stands: At) -> None:
    mine, other = Memory(0, 1, 0, 64), Memory(0, 1, 64, 128)
    stands(TryFailed(OpIndex(0), 1, "locked", False), Counted(OpIndex(0), -1, -1), BaseEnded(OpIndex(0)))
    long = replace(operation(1, 60), memory=(mine,))
    assert stands(Called(long)) == [ToBase(long)]
    same, apart = replace(operation(2), memory=(mine,)), replace(operation(3), memory=(other,))
    assert stands(Called(same), Called(apart)) == []
    assert stands(BaseEnded(OpIndex(1))) == [Try(same, 1)]


def test_a_tensor_of_which_a_part_is_missing_is_not_called(at: At) -> None:
    with pytest.raises(LocalMisuse, match="before its tensor is there"):
        at(Called(replace(operation(0), filled=8)))


def test_votes_that_nobody_waits_for(stands: At) -> None:
    with pytest.raises(LocalMisuse, match="before this host has voted"):
        stands(Counted(OpIndex(0), 5, 5))
    with pytest.raises(LocalMisuse, match="nobody waits for"):
        stands(Counted(OpIndex(1), 5, 5))


def test_what_comes_too_late_is_nothing(stands: At) -> None:
    assert stands(Tried(OpIndex(0), 2, 5), Tried(OpIndex(1), 1, 5)) == []
    assert stands(Attached(7), AttachFailed(1, "x"), Released(1), Lost(3, "x"), BaseEnded(OpIndex(9))) == []
    assert stands.core.view().session is Session.ATTACHED


# --- a place that is taken back (MINA, section IV-A)


def test_iv_a_a_place_that_is_taken_back_is_left_with_the_operation_that_all_have_voted_on(
    stands: At,
) -> None:
    assert stands(Allowed(False)) == []
    assert stands(Tried(OpIndex(0), 1, 5)) == [Vote(vote_on(operation(0)), 5, stays=False)]
    found = stands(Counted(OpIndex(0), 5, 5, stays=False))
    assert found == [TakeTried(operation(0)), Release(1)]
    assert (stands.core.view().taken, stands.core.view().reason) == (1, "a place in it was taken back")
    assert not stands.core.stands
    assert stands.call(1) == [ToBase(operation(1))]
    assert stands.call(2) == [Vote(vote_on(operation(2)), -Code.ABSENT)], "asked for after one"


def test_iv_a_hosts_that_have_not_heard_of_it_leave_with_the_others(stands: At) -> None:
    assert stands(Tried(OpIndex(0), 1, 5)) == [Vote(vote_on(operation(0)), 5)]
    assert stands(Counted(OpIndex(0), 5, 5, stays=False)) == [TakeTried(operation(0)), Release(1)]
    stands(Released(1))
    assert stands.wakes() == [Attach(2)]


def test_iv_a_an_operation_that_fails_as_a_host_leaves_is_redone_and_all_leave(stands: At) -> None:
    stands(TryFailed(OpIndex(0), 1, "locked", False))
    found = stands(Counted(OpIndex(0), -1, 5, stays=False))
    assert found[1:] == [ToBase(operation(0)), Release(1)]
    assert not stands.core.stands


def test_iv_a_who_has_no_place_does_not_attach(at: At) -> None:
    assert at(Allowed(False)) == []
    assert at.core.deadline is None
    assert at(Superseded(4)) == []
    assert at.core.deadline is None
    assert at.call(0) == [Vote(vote_on(operation(0)), -Code.ABSENT)]
    assert at(Counted(OpIndex(0), -2, -2)) == [ToBase(operation(0))]
    assert at.core.view().reason == "", "who never had a place has lost none"
    assert at(Allowed(True), Allowed(True)) == []
    assert at.wakes() == [Attach(4)]


def test_iv_a_an_attempt_under_way_is_given_up(at: At) -> None:
    at.wakes()
    assert at(Allowed(False)) == [Release(1)]
    assert at(Attached(1), Released(1)) == []
    assert at.core.deadline is None


def test_iv_a_a_place_in_which_nothing_was_tried_is_left_at_once(attached: At) -> None:
    assert attached(Allowed(False)) == [Release(1)]
    assert attached.core.view().reason == "a place in it was taken back"


def test_iv_a_a_place_of_which_a_question_was_denied_is_left_at_once(attached: At) -> None:
    attached.call(0)
    attached(Counted(OpIndex(0), -2, 1))
    assert attached(Allowed(False)) == [Release(1)]


def test_iv_a_who_has_no_place_when_asked_says_so_and_leaves_at_once(at: At) -> None:
    at.wakes()
    at.call(0)
    assert at(Attached(1), Allowed(False)) == [Release(1)], "it has answered that it is not attached"


def test_iv_a_after_the_end_of_the_job_no_place_is_taken(at: At) -> None:
    at(Closing())
    assert at(Allowed(False), Allowed(True)) == []
    assert at.core.deadline is None
    assert at.core.view().is_allowed


def test_iv_a_an_attempt_that_does_not_stand_is_left_at_once_though_an_earlier_one_does(stands: At) -> None:
    """Nobody has asked anything since the host came back, and perhaps nobody will."""
    stands(Tried(OpIndex(0), 1, 5))
    stands(Counted(OpIndex(0), 5, 5))
    stands(Lost(1, "a link"), Released(1))
    assert stands.wakes() == [Attach(2)]
    stands(Attached(2))
    assert stands.core.stands
    assert stands(Allowed(False)) == [Release(2)]
    assert stands.call(1) == [Vote(vote_on(operation(1)), -Code.ABSENT, stays=False)]


def test_iv_a_what_was_said_to_a_question_holds(attached: At) -> None:
    """Others may be trying the operation by now."""
    attached.call(0)
    assert attached(Allowed(False)) == []
    assert attached(Counted(OpIndex(0), 1, 1)) == [Stands(OpIndex(0), 1), Try(operation(0), 1)]
    assert attached(Tried(OpIndex(0), 1, 5)) == [Vote(vote_on(operation(0)), 5, stays=False)]


def test_iv_a_a_question_that_fails_ends_what_was_kept_for_it(attached: At) -> None:
    attached.call(0)
    attached(Allowed(False))
    assert attached(Counted(OpIndex(0), -2, 1)) == [Release(1), ToBase(operation(0))]


def test_iv_a_a_place_that_is_given_again_before_the_vote_is_kept(stands: At) -> None:
    stands(Allowed(False), Allowed(True))
    assert stands(Tried(OpIndex(0), 1, 5)) == [Vote(vote_on(operation(0)), 5)]


def test_how_long_it_has_taken_to_come_and_to_leave(at: At) -> None:
    at.wakes()
    at.now = Instant(7)
    at(Attached(1), Allowed(False))
    at.now = Instant(10)
    at(Released(1))
    view = at.core.view()
    assert (view.attach_ns, view.release_ns, view.is_allowed) == (7, 3, False)


def test_the_end_of_the_job_gives_the_attachment_back(stands: At) -> None:
    assert stands(Closing()) == [Release(1)]
    assert (len(stands.core), stands.core.deadline) == (0, None)
    assert stands(Released(1), Superseded(4), Called(operation(5))) == []


def test_the_end_of_the_job_while_it_attaches(at: At) -> None:
    at.wakes()
    assert at(Closing()) == [Release(1)]
    assert at(Attached(1)) == []


def test_waking_early_changes_nothing(stands: At) -> None:
    assert stands(Woke()) == []
