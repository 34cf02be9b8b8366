"""The session of a library of whole all-reduces, step by step, and drawn runs of several ranks."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any, Final, get_args

import pytest

from inaproto.core.collective.events import (
    FINE,
    Agree,
    Agreed,
    Attached,
    AttachWanted,
    Begin,
    Call,
    Died,
    Drain,
    Drained,
    ExchangeLost,
    NotAttached,
    OperationFailed,
    Outcome,
    PeerFailed,
    Phase,
    Redo,
    Refuse,
    Released,
    ReleaseWanted,
    Returned,
    SessionConfig,
    SessionEvent,
    Vote,
    Voted,
    Weight,
    Woke,
)
from inaproto.core.collective.session import TABLE, CollectiveSession
from inaproto.errors import LocalMisuse
from inaproto.units import MS, Instant, S
from tests.seeds import seeds

BUSY: Final = Outcome(-11, Weight.BUSY)
GONE: Final = Outcome(-2, Weight.PERMANENT)
T0: Final = Instant(1_000)


def attached() -> CollectiveSession:
    """With one vote of two ranks on each call."""
    session = CollectiveSession(SessionConfig())
    for event in (
        AttachWanted(),
        Agreed(7),
        Returned(Call.INIT, FINE),
        Voted((FINE, FINE)),
        Returned(Call.COMM, FINE),
    ):
        session.step(event, T0)
    assert session.step(Voted((FINE, FINE)), T0) == [Attached(1)]
    return session


def test_the_table_has_every_phase_with_every_event() -> None:
    assert set(TABLE) == set(product(Phase, get_args(SessionEvent)))


def test_a_place_is_had_after_two_votes_and_given_back_in_order() -> None:
    session = CollectiveSession(SessionConfig())
    assert session.step(AttachWanted(), T0) == [Agree(1)]
    assert session.step(Agreed(7), T0) == [Begin(Call.INIT, 7)]
    assert session.step(Returned(Call.INIT, FINE), T0) == [Vote(Call.INIT, FINE)]
    assert session.step(Voted((FINE, FINE)), T0) == [Begin(Call.COMM)]
    assert session.step(Returned(Call.COMM, FINE), T0) == [Vote(Call.COMM, FINE)]
    assert session.step(Voted((FINE, FINE)), T0) == [Attached(1)]
    assert session.deadline is None
    assert session.step(ReleaseWanted(), T0) == [Drain()]
    assert session.step(Drained(), T0) == [Begin(Call.DEREGISTER)]
    assert session.step(Returned(Call.DEREGISTER, FINE), T0) == [Begin(Call.DESTROY)]
    assert session.step(Returned(Call.DESTROY, FINE), T0) == [Begin(Call.FINALIZE)]
    assert session.step(Returned(Call.FINALIZE, FINE), T0) == [Released(is_clean=True)]
    assert session.phase is Phase.DETACHED


def test_who_succeeded_gives_back_when_another_rank_did_not_and_tries_again_under_a_new_number() -> None:
    session = CollectiveSession(SessionConfig(jitters=(500,)))
    session.step(AttachWanted(), T0)
    session.step(Agreed(7), T0)
    session.step(Returned(Call.INIT, FINE), T0)
    assert session.step(Voted((FINE, BUSY)), T0) == [Begin(Call.FINALIZE)]
    assert session.step(Returned(Call.FINALIZE, FINE), T0) == []
    assert session.deadline == T0 + 150 * MS
    assert session.step(Woke(), Instant(T0 + 149 * MS)) == []
    assert session.step(Woke(), Instant(T0 + 150 * MS)) == [Agree(2)]
    with pytest.raises(LocalMisuse, match="last try"):
        session.step(Agreed(7), T0)
    assert session.step(Agreed(8), T0) == [Begin(Call.INIT, 8)]


def test_the_back_off_doubles_up_to_its_longest() -> None:
    session = CollectiveSession(SessionConfig(tries_max=9))
    now, waits = T0, list[int]()
    session.step(AttachWanted(), now)
    for job in range(8):
        session.step(Agreed(job), now)
        session.step(Returned(Call.INIT, BUSY), now)
        assert session.step(Voted((BUSY, FINE)), now) == []
        assert session.deadline is not None
        waits.append((session.deadline - now) // MS)
        now = session.deadline
        session.step(Woke(), now)
    assert waits == [100, 200, 400, 800, 1600, 3200, 5000, 5000]


def test_what_is_permanent_at_one_rank_ends_all() -> None:
    session = CollectiveSession(SessionConfig())
    session.step(AttachWanted(), T0)
    session.step(Agreed(7), T0)
    session.step(Returned(Call.INIT, FINE), T0)
    assert session.step(Voted((BUSY, GONE)), T0) == [Begin(Call.FINALIZE)]
    assert session.step(Returned(Call.FINALIZE, FINE), T0) == [NotAttached(GONE, 1)]


def test_a_failed_peer_is_heard_of_inside_the_call_and_there_is_no_other_vote() -> None:
    session = CollectiveSession(SessionConfig())
    session.step(AttachWanted(), T0)
    session.step(Agreed(7), T0)
    assert session.step(PeerFailed(1, BUSY), T0) == [Refuse()]
    assert session.step(Returned(Call.INIT, Outcome(-15, Weight.ENVIRONMENT)), T0) == []
    assert session.view().last == BUSY
    assert session.view().retry_at == T0 + 100 * MS


def test_a_late_call_is_refused_then_dead() -> None:
    config = SessionConfig(call_ns=5 * S, unwind_ns=S)
    session = CollectiveSession(config)
    session.step(AttachWanted(), T0)
    session.step(Agreed(7), T0)
    assert session.step(Woke(), Instant(T0 + 5 * S)) == [Refuse()]
    actions = session.step(Woke(), Instant(T0 + 6 * S))
    assert [type(action) for action in actions] == [Died, NotAttached]
    assert session.phase is Phase.DEAD
    assert session.step(Returned(Call.INIT, FINE), Instant(T0 + 7 * S)) == []
    assert session.step(ReleaseWanted(), Instant(T0 + 7 * S)) == [Released(is_clean=False)]


def test_a_busy_operation_is_to_be_redone_and_the_place_is_kept() -> None:
    session = attached()
    locked = Outcome(-18, Weight.BUSY)
    assert session.step(OperationFailed(3, locked), T0) == [Redo(3, locked)]
    assert session.phase is Phase.ATTACHED


def test_another_failure_of_an_operation_ends_the_context() -> None:
    session = attached()
    actions = session.step(OperationFailed(3, Outcome(-1, Weight.FATAL)), T0)
    assert [type(action) for action in actions] == [Redo, Refuse, Died]


def test_leaving_during_a_call_waits_for_it_and_gives_back() -> None:
    session = CollectiveSession(SessionConfig())
    session.step(AttachWanted(), T0)
    session.step(Agreed(7), T0)
    assert session.step(ReleaseWanted(), T0) == [Refuse()]
    assert session.step(Returned(Call.INIT, FINE), T0) == [Begin(Call.FINALIZE)]
    actions = session.step(Returned(Call.FINALIZE, FINE), T0)
    assert [type(action) for action in actions] == [NotAttached, Released]


def test_a_configuration_that_cannot_be_meant_is_refused() -> None:
    small, jitters = (
        "a number that is too small: SessionConfig",
        "^a session's jitters: at least one, none below 0$",
    )
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"tries_max": 0}, small),
        ({"drain_ns": 0}, small),
        ({"backoff_ns": 6 * S}, small),
        ({"jitters": ()}, jitters),
        ({"jitters": (-1,)}, jitters),
    ]
    for wrong, words in wrongs:
        with pytest.raises(LocalMisuse, match=words):
            SessionConfig(**wrong)
    SessionConfig(tries_max=1, backoff_ns=S, backoff_max_ns=S)


@pytest.mark.parametrize("seed", seeds(200))
def test_whatever_happens_a_session_ends_holding_nothing_or_dead(seed: int) -> None:
    """One rank; the world answers at random, cuts exchanges, is late; the caller may leave at any time."""
    draw = Random(f"{seed}/session")
    session = CollectiveSession(SessionConfig(tries_max=4, jitters=(draw.randrange(500),)))
    now, job, held = T0, 0, list[Call]()
    waiting = session.step(AttachWanted(), now)
    call: Call | None = None
    has_left = False
    for _ in range(400):
        seen = session.view()
        for action in waiting:
            match action:
                case Begin(begun):
                    assert call is None
                    call = begun
                case NotAttached() if seen.phase is Phase.DETACHED:
                    assert held == []
                case Released(is_clean) if is_clean:
                    assert held == []
                case _:
                    pass
        if has_left and any(isinstance(action, Released) for action in waiting):
            break
        if not has_left and draw.random() < 0.03:
            has_left = True
            waiting = session.step(ReleaseWanted(), now)
            continue
        event: SessionEvent
        outcome = draw.choice([FINE, FINE, FINE, BUSY, GONE, Outcome(-1, Weight.FATAL)])
        if call is not None and draw.random() < 0.7:
            event, began, call = Returned(call, outcome), call, None
            if session.phase is not Phase.DEAD and outcome is FINE:
                if began in (Call.INIT, Call.COMM):
                    held.append(began)
                elif began in (Call.DESTROY, Call.FINALIZE):
                    assert held.pop() is {Call.DESTROY: Call.COMM, Call.FINALIZE: Call.INIT}[began]
        elif session.phase is Phase.AGREE:
            job += 1
            event = Agreed(job) if draw.random() < 0.7 else ExchangeLost("cut")
        elif session.phase is Phase.VOTE:
            event = Voted((FINE, outcome)) if draw.random() < 0.7 else ExchangeLost("cut")
        elif session.phase is Phase.DRAIN:
            event = Drained()
        elif call in (Call.INIT, Call.COMM) and draw.random() < 0.3:
            event = PeerFailed(1, BUSY) if draw.random() < 0.5 else ExchangeLost("cut")
        else:
            now = max(now, session.deadline or now)
            event = Woke()
        if has_left is False and session.phase in (Phase.ATTACHED, Phase.DEAD):
            has_left = True
            waiting = session.step(ReleaseWanted(), now)
            continue
        waiting = session.step(event, now)
        if not has_left and any(isinstance(action, NotAttached) for action in waiting):
            break
    else:
        raise AssertionError(f"seed {seed}: no end: {session.view()}")
    if session.phase is not Phase.DEAD:
        assert (session.view().has_context, session.view().has_comm, held) == (False, False, [])
