"""Waiting for a job's hosts: for this one, not for another one that has its name by now."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from inaproto_controller.service.job_client import ControllerRefused, ControllerUnreachable, JobClient
from inaproto_controller.service.submitting import NotPlaced, Submission, submit_and_wait, taken_back


def job(number: int, state: str, hosts: Sequence[str] = (), revision: int = 1) -> dict[str, Any]:
    return {"number": number, "state": state, "why": "", "hosts": list(hosts), "revision": revision}


class Answers:
    """Of a controller: to the submission, then to each question, the last one again and again."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.submitted: list[dict[str, object]] = []
        self.cancelled: list[str] = []

    def within(self, answer_s: float) -> Answers:
        return self

    def submit(self, *given: object, **named: object) -> dict[str, Any]:
        self.submitted.append(named)
        return {"job": self._answers[0], "token": "t"}

    def job(self, name: str, **named: object) -> dict[str, Any]:
        if len(self._answers) > 1:
            del self._answers[0]
        return self._answers[0]

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)


def submission(answers: Answers) -> Submission:
    fields: dict[str, Any] = {"ranks_per_host": 1, "model": None, "on": (), "submission": "s" * 32}
    return Submission(cast("JobClient", answers), "j", 1, **fields)


def placed(answers: Answers, wait_s: float = 600.0) -> dict[str, Any]:
    asked = submission(answers)
    with asked.kept_at_the_end():
        return submit_and_wait(asked, wait_s=wait_s)


def test_it_comes_back_with_its_hosts() -> None:
    answers = Answers(job(1, "queued"), job(1, "placed", ["h0"], 2))
    assert placed(answers)["job"]["hosts"] == ["h0"]
    assert answers.cancelled == []


def test_a_job_that_was_cancelled_just_after_it_was_placed_has_no_hosts() -> None:
    answers = Answers(job(1, "queued"), job(1, "cancelled", ["h0"], 2))
    with pytest.raises(NotPlaced, match="it is cancelled"):
        placed(answers)


@pytest.mark.parametrize("comes_twice", [False, True])
def test_a_job_is_taken_back_when_a_scheduler_ends_who_waits_for_it(comes_twice: bool) -> None:
    """``timeout`` sends SIGTERM to the process and its group: the second comes while it is cancelled."""

    class Ended(Answers):
        def job(self, name: str, **named: object) -> dict[str, Any]:
            if not self.cancelled and (named or comes_twice):
                signal.raise_signal(signal.SIGTERM)
            return super().job(name)

    answers = Ended(job(1, "queued"))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        placed(answers)
    assert (ended.value.code, answers.cancelled) == (128 + signal.SIGTERM, ["j"])
    assert signal.getsignal(signal.SIGTERM) is before


class Interrupts(Answers):
    """Signals come while the first answer does, and at further submissions one of ``then`` is raised."""

    def __init__(
        self, *answers: dict[str, Any], number: signal.Signals, then: Sequence[Exception] = ()
    ) -> None:
        super().__init__(*answers)
        self._number, self._then = number, list(then)

    def submit(self, *given: object, **named: object) -> dict[str, Any]:
        found = super().submit(*given, **named)
        if len(self.submitted) == 1:
            signal.raise_signal(self._number)
        elif self._then:
            raise self._then.pop(0)
        return found


@pytest.mark.parametrize(
    ("number", "ends"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_job_is_taken_back_whose_answer_was_not_read(
    number: signal.Signals, ends: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which job it is, the controller says when it is submitted again."""
    answers = Interrupts(job(1, "queued"), number=number)
    with pytest.raises(ends):
        placed(answers)
    first, second = answers.submitted
    assert (first, answers.cancelled) == (second, ["j"])
    assert capsys.readouterr().err == ""


def test_a_job_that_may_be_left_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    gone = ControllerUnreachable("d.sock: nobody listens there", may_be_done=False)
    answers = Interrupts(job(1, "queued"), number=signal.SIGTERM, then=[gone])
    with pytest.raises(SystemExit):
        placed(answers)
    assert capsys.readouterr().err == (
        "inaproto job: d.sock: nobody listens there; job j may be left at the controller: "
        "inaproto job cancel j\n"
    )


def test_nothing_is_taken_back_or_said_where_the_name_is_somebody_elses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = ControllerRefused("name_taken", "job 'j' is there")
    answers = Interrupts(job(1, "queued"), number=signal.SIGTERM, then=[taken])
    with pytest.raises(SystemExit):
        placed(answers)
    assert (answers.cancelled, capsys.readouterr().err) == ([], "")


def test_a_job_that_somebody_else_runs_is_left_alone() -> None:
    answers = Interrupts(job(1, "running", ["h0"]), number=signal.SIGTERM)
    with pytest.raises(SystemExit):
        placed(answers)
    assert answers.cancelled == []


def test_a_signal_does_not_end_the_taking_back_of_a_job_whose_script_has_failed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Ended(Answers):
        def cancel(self, name: str) -> None:
            signal.raise_signal(signal.SIGTERM)
            super().cancel(name)

    answers = Ended(job(1, "placed", ["h0"]))
    asked = submission(answers)
    before = signal.getsignal(signal.SIGTERM)
    with asked.kept_at_the_end():
        asked.ask()
        asked.take_back()
    assert (answers.cancelled, capsys.readouterr().err) == (["j"], "")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_ctrl_c_ends_the_taking_back_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    class Twice(Interrupts):
        def cancel(self, name: str) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        placed(Twice(job(1, "queued"), number=signal.SIGINT))
    assert capsys.readouterr().err == (
        "inaproto job: job j may be left at the controller: inaproto job cancel j\n"
    )


def test_a_job_is_taken_back_that_was_placed_when_its_submitter_was_ended() -> None:
    """He has the answer, and has not done with it what he wanted it for."""
    answers = Answers(job(1, "placed", ["h0"]))
    asked = submission(answers)

    def prints() -> None:
        with asked.kept_at_the_end():
            submit_and_wait(asked, wait_s=600.0)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        prints()
    assert answers.cancelled == ["j"]


def test_signals_are_left_alone_where_a_thread_submits() -> None:
    """Python refuses to change them there."""

    def submits() -> str:
        with taken_back():
            return "done"

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(submits).result() == "done"


@pytest.mark.parametrize("hosts", [["h0"], []])
def test_another_job_of_its_name_is_neither_ours_nor_cancelled(hosts: list[str]) -> None:
    answers = Answers(job(1, "queued"), job(2, "running" if hosts else "queued", hosts, 5))
    with pytest.raises(NotPlaced, match="another one has its name"):
        placed(answers)
    assert answers.cancelled == []


def test_ours_is_cancelled_when_its_time_is_over() -> None:
    answers = Answers(job(1, "queued"))
    with pytest.raises(NotPlaced, match="has no hosts after"):
        placed(answers, wait_s=0.0)
    assert answers.cancelled == ["j"]
