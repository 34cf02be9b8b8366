"""What follows when a process of a job ends, a signal comes, or time is up."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from inaproto.launch.supervision import Action, Failure, Say, Send, Supervision, exit_status, how_it_ended

INT, TERM, KILL, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1


def drive(supervision: Supervision, *events: tuple[Any, ...]) -> list[Action]:
    """``(time, "exited", rank, code)``, ``(time, "signalled", number)`` or ``(time, "due")``; all actions."""
    actions: list[Action] = []
    for now, name, *arguments in events:
        actions += getattr(supervision, name)(*arguments, now)
    return actions


def sent(actions: list[Action]) -> list[tuple[signal.Signals, tuple[int, ...]]]:
    return [(action.number, action.ranks) for action in actions if isinstance(action, Send)]


def said(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def test_all_end_well() -> None:
    job = Supervision(range(2), 10)
    assert drive(job, (0, "exited", 1, 0), (5, "exited", 0, 0)) == []
    assert (job.status, job.running, job.failure) == (0, set(), None)


def test_a_rank_that_ends_badly_ends_the_others_and_is_named() -> None:
    job = Supervision(range(3), 10)
    actions = drive(job, (0, "exited", 1, 3))
    assert said(actions) == ["rank 1 ended with exit status 3; ending ranks 0, 2"]
    assert sent(actions) == [(TERM, (0, 2))]
    assert drive(job, (1, "exited", 0, -TERM), (9, "due")) == []
    actions = drive(job, (10, "due"))
    assert said(actions) == ["rank 2 did not end within 10 s; SIGKILL"]
    assert sent(actions) == [(KILL, (2,))]
    assert drive(job, (11, "exited", 2, -KILL), (99, "due")) == []
    assert job.status == 3


def test_the_first_to_fail_is_named_and_not_the_first_to_end() -> None:
    """Rank 0 ended because rank 1 had gone, which takes longer to end."""
    job = Supervision(range(3), 10)
    job.heard({1}, {0: "rank 1 is lost"})
    assert drive(job, (0, "exited", 0, 5), (9, "due")) == []
    actions = drive(job, (9, "exited", 1, 7))
    assert said(actions) == ["rank 1 ended with exit status 7, and because of it rank 0; ending rank 2"]
    assert sent(actions) == [(TERM, (2,))]
    assert drive(job, (10, "exited", 2, 5), (99, "due")) == []
    assert (job.status, job.failure) == (7, Failure(1, 7))


def test_who_goes_on_after_it_has_left_is_waited_for_no_longer_than_the_grace() -> None:
    job = Supervision(range(2), 10)
    job.heard({1}, {0: "rank 1 left"})
    assert drive(job, (0, "exited", 0, 5), (9, "due")) == []
    actions = drive(job, (10, "due"))
    assert said(actions) == [
        "rank 0 ended with exit status 5 (the job had failed: rank 1 left); ending rank 1"
    ]
    assert sent(actions) == [(TERM, (1,))]
    assert sent(drive(job, (20, "due"))) == [(KILL, (1,))]
    assert drive(job, (21, "exited", 1, -KILL)) == []
    assert job.status == 5
    well = Supervision(range(2), 10)
    well.heard({1}, {0: "rank 1 left"})
    assert said(drive(well, (0, "exited", 0, 5), (1, "exited", 1, 0))) == [
        "rank 0 ended with exit status 5 (the job had failed: rank 1 left)"
    ]
    assert well.status == 5


def test_who_fails_by_itself_waits_for_nobody_who_has_left() -> None:
    job = Supervision(range(2), 10)
    job.heard({0, 1}, {})
    assert sent(drive(job, (0, "exited", 0, 5))) == [(TERM, (1,))]
    other = Supervision(range(2), 10)
    other.heard({1}, {})  # nothing is known of rank 0, which has never joined
    assert sent(drive(other, (0, "exited", 0, 5))) == [(TERM, (1,))]


def test_who_has_been_named_is_not_another_one_later() -> None:
    """A host daemon that is started again knows nothing of those before it."""
    job = Supervision(range(3), 10)
    job.heard({1}, {0: "rank 1 is lost"})
    (words,) = said(drive(job, (0, "ended", [(0, 5), (1, 7)])))
    assert words.startswith("rank 1 ended with exit status 7")
    job.heard((), {})
    assert (drive(job, (1, "exited", 2, -TERM)), job.status, job.told) == ([], 7, "")
    late = Supervision(range(2), 10)
    late.heard({1}, {0: "rank 1 is lost"})
    drive(late, (0, "exited", 0, 5), (10, "due"))
    late.heard((), {})
    assert late.told == "rank 1 is lost"


def test_a_signal_ends_the_wait_for_the_first_to_fail() -> None:
    job = Supervision(range(2), 10)
    job.heard({1}, {0: "rank 1 is lost"})
    actions = drive(job, (0, "exited", 0, 5), (1, "signalled", INT))
    assert sent(actions) == [(INT, (1,))]
    assert said(actions)[0] == "rank 0 ended with exit status 5 (the job had failed: rank 1 is lost)"
    assert sent(drive(job, (11, "due"))) == [(TERM, (1,))]
    drive(job, (12, "exited", 1, -TERM))
    assert job.status == 5


def test_ends_that_nothing_tells_apart_are_all_named() -> None:
    job = Supervision(range(3), 10)
    actions = drive(job, (0, "ended", [(2, 4), (0, 3)]))
    (words,) = said(actions)
    assert words.startswith(
        "ranks 0, 2 failed, which first is not known; of their processes rank 2 ended with"
    )
    assert words.endswith(" exit status 4 first; ending rank 1")
    assert job.status == 4
    told = Supervision(range(2), 10)
    told.heard((), {0: "host h9 is lost", 1: "host h9 is lost"})
    assert said(drive(told, (0, "ended", [(1, 4), (0, 3)]))) == [
        "rank 1 ended with exit status 4, and rank 0 too (the job had failed: host h9 is lost)"
    ]
    last = Supervision(range(2), 10)
    last.heard({0}, {1: "rank 0 is lost"})
    assert said(drive(last, (0, "ended", [(1, 4), (0, 3)]))) == [
        "rank 0 ended with exit status 3, and because of it rank 1"
    ]
    assert last.status == 3


def test_a_rank_that_a_signal_ends_is_told_as_a_shell_does() -> None:
    job = Supervision(range(1), 10)
    assert said(drive(job, (0, "exited", 0, -signal.SIGSEGV))) == ["rank 0 was ended by SIGSEGV"]
    assert job.status == 139
    assert "when memory runs out" in how_it_ended(-KILL)
    assert how_it_ended(-250) == "was ended by signal 250"
    assert exit_status(7) == 7


def test_a_loss_that_is_survived() -> None:
    job = Supervision(range(3), 10, is_elastic=True)
    assert drive(job, (0, "exited", 1, -KILL))[1:] == []
    assert drive(job, (1, "exited", 0, 0), (1, "exited", 2, 0)) == []
    assert job.status == 0
    nobody = Supervision(range(2), 10, is_elastic=True)
    drive(nobody, (0, "exited", 0, 5), (1, "exited", 1, 6))
    assert nobody.status == 5


def test_when_a_job_is_over_what_it_has_lost_is_ended_and_does_not_count() -> None:
    """The way to a host that is down may hang for hours."""
    job = Supervision(range(2), 10, is_elastic=True)
    assert sent(drive(job, (0, "exited", 0, 0), (1, "over"))) == [(TERM, (1,))]
    assert sent(drive(job, (11, "due"))) == [(KILL, (1,))]
    assert drive(job, (12, "exited", 1, -KILL)) == []
    assert job.status == 0


@pytest.mark.parametrize("is_elastic", [False, True])
def test_a_job_that_is_over_ends_those_that_run_as_by_sigterm(is_elastic: bool) -> None:
    job = Supervision(range(2), 10, is_elastic=is_elastic)
    assert sent(drive(job, (0, "over"))) == [(TERM, (0, 1))]
    drive(job, (1, "exited", 0, -TERM), (1, "exited", 1, -TERM))
    assert job.status == 143


def test_ctrl_c_is_asked_for_then_ordered_then_done() -> None:
    job = Supervision(range(2), 10)
    assert sent(drive(job, (0, "signalled", INT))) == [(INT, (0, 1))]
    assert sent(drive(job, (1, "exited", 0, -INT), (10, "due"))) == [(TERM, (1,))]
    assert sent(drive(job, (19, "due"), (20, "due"))) == [(KILL, (1,))]
    assert drive(job, (21, "exited", 1, -KILL)) == []
    assert job.status == 130


def test_a_second_ctrl_c_does_not_wait() -> None:
    job = Supervision(range(2), 10)
    actions = drive(job, (0, "signalled", INT), (1, "signalled", INT))
    assert sent(actions) == [(INT, (0, 1)), (KILL, (0, 1))]
    drive(job, (1, "exited", 0, -KILL), (1, "exited", 1, -KILL))
    assert job.status == 130


def test_sigterm_is_passed_on_and_a_script_that_ends_well_by_it_has() -> None:
    job = Supervision(range(2), 10)
    assert sent(drive(job, (0, "signalled", TERM))) == [(TERM, (0, 1))]
    assert sent(drive(job, (10, "due"))) == [(KILL, (0, 1))]
    drive(job, (11, "exited", 0, 0), (11, "exited", 1, 0))
    assert job.status == 0
    other = Supervision(range(2), 10)
    drive(other, (0, "signalled", TERM), (1, "exited", 0, 42), (2, "exited", 1, -TERM))
    assert other.status == 42


def test_any_exception_after_ctrl_c_is_an_end_by_ctrl_c() -> None:
    job = Supervision(range(2), 10)
    drive(job, (0, "signalled", INT), (1, "exited", 0, 1), (2, "exited", 1, 1))
    assert job.status == 130


def test_signals_of_schedulers_are_passed_on_and_end_nothing() -> None:
    job = Supervision(range(2), 10)
    assert drive(job, (0, "signalled", USR1)) == [Send(USR1, (0, 1))]
    assert job.deadline is None


def test_nothing_follows_when_nobody_runs() -> None:
    job = Supervision(range(1), 10)
    drive(job, (0, "exited", 0, 0))
    assert drive(job, (1, "signalled", INT), (99, "due")) == []
