"""Waiting for a job's hosts: for this one, not for another one that has its name by now."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from inaproto_controller.service.job_client import JobClient
from inaproto_controller.service.submitting import NotPlaced, submit_and_wait, taken_back


def job(number: int, state: str, hosts: Sequence[str] = (), revision: int = 1) -> dict[str, Any]:
    return {"number": number, "state": state, "why": "", "hosts": list(hosts), "revision": revision}


class Answers:
    """Of a controller: to the submission, then to each question, the last one again and again."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)
        self.cancelled: list[str] = []

    def submit(self, *given: object, **named: object) -> dict[str, Any]:
        return {"job": self._answers[0], "token": "t"}

    def job(self, name: str, **named: object) -> dict[str, Any]:
        if len(self._answers) > 1:
            del self._answers[0]
        return self._answers[0]

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)


def placed(answers: Answers, wait_s: float = 600.0) -> dict[str, Any]:
    return submit_and_wait(
        cast("JobClient", answers),
        "j",
        1,
        ranks_per_host=1,
        model=None,
        on=(),
        submission="s" * 32,
        wait_s=wait_s,
    )


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
    with pytest.raises(SystemExit) as ended, taken_back():
        placed(answers)
    assert (ended.value.code, answers.cancelled) == (128 + signal.SIGTERM, ["j"])
    assert signal.getsignal(signal.SIGTERM) is before


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
