"""All short lives of a job under ``inaproto run``: ends of processes, what is heard of them, signals, time.

Processes do what is asked of them only if they will: some ignore all but SIGKILL. Whatever happens, the job
ends, nobody is asked who has ended, and its exit status is that of a process that failed.
"""

from __future__ import annotations

import copy
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

import pytest

from inaproto.launch.supervision import Action, Say, Supervision, exit_status

RANKS = range(3)
GRACE_S = 10.0
ENDINGS_MAX = 3
"""SIGINT, SIGTERM, SIGKILL."""


@dataclass(slots=True)
class Life:
    """A job, and what has happened to it."""

    job: Supervision
    stubborn: frozenset[int]
    is_elastic: bool
    now: float = 0.0
    codes: dict[int, int] = field(default_factory=dict)
    asked: dict[int, list[signal.Signals]] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    """Who failed unasked, in the order of their ends."""
    is_ending: bool = False
    by: signal.Signals | None = None
    by_itself: frozenset[int] = frozenset()
    told: frozenset[int] = frozenset()
    words: tuple[str, ...] = ()
    """What happened, for whoever reads a failure."""

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Say):  # whoever is named stays named
                self.is_ending = self.is_ending or not self.is_elastic
                continue
            assert action.ranks == tuple(sorted(self.job.running)), self.words
            assert not self.codes.keys() & set(action.ranks), self.words
            self.is_ending = self.is_ending or action.number != signal.SIGUSR1
            for rank in action.ranks:
                self.asked.setdefault(rank, []).append(action.number)

    def end(self, code: int, *ranks: int) -> None:
        """All at one look."""
        if code and not self.is_ending:
            self.failed += ranks
        self.codes |= dict.fromkeys(ranks, code)
        self.words = (*self.words, f"{ranks} end with {code}")
        self.perform(self.job.ended([(rank, code) for rank in ranks], self.now))

    def hear(self, by_itself: frozenset[int], told: frozenset[int]) -> None:
        self.words = (*self.words, f"{set(by_itself)} went, {set(told)} were told")
        if not self.is_ending:
            self.by_itself, self.told = by_itself, told
        self.job.heard(by_itself, dict.fromkeys(told, "it failed"))

    def signal(self, number: signal.Signals) -> None:
        self.words = (*self.words, number.name)
        if number != signal.SIGUSR1 and not self.is_ending and self.job.running:
            self.by = number
        self.perform(self.job.signalled(number, self.now))

    def wait(self) -> None:
        """Until the deadline, if there is one."""
        if self.job.deadline is not None:
            self.words = (*self.words, "time passes")
            self.now = max(self.now, self.job.deadline)
            self.perform(self.job.due(self.now))

    def obey(self) -> None:
        """Those that were asked to end do, if they will, or must."""
        for rank in sorted(self.job.running):
            asked = self.asked.get(rank, [])
            ending = [number for number in asked if number != signal.SIGUSR1]
            if signal.SIGKILL in ending:
                self.end(-signal.SIGKILL, rank)
            elif ending and rank not in self.stubborn:
                self.end(-ending[-1], rank)


def next_lives(life: Life) -> Iterator[Life]:
    """What may happen next."""
    running = sorted(life.job.running)
    for ranks in (*permutations(running, 1), *permutations(running, 2)):
        for code in (0, 3):
            later = copy.deepcopy(life)
            later.end(code, *ranks)
            yield later
    if not life.is_elastic and not life.by_itself:
        for gone in RANKS:
            for told in (frozenset(RANKS) - {gone}, frozenset[int]()):
                later = copy.deepcopy(life)
                later.hear(frozenset({gone}), told)
                yield later
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        if number not in life.asked.get(0, ()):
            later = copy.deepcopy(life)
            later.signal(number)
            yield later
    if life.job.deadline is not None:
        later = copy.deepcopy(life)
        later.wait()
        yield later


def finish(life: Life) -> None:
    """Whoever still runs was asked to end, and does, or goes on until its work is done."""
    for _ in range(ENDINGS_MAX + 2):
        life.obey()
        life.wait()
    for rank in sorted(life.job.running):
        assert not life.is_ending, (life.words, "somebody is waited for without end")
        life.end(0, rank)
    for _ in range(ENDINGS_MAX + 2):
        life.obey()
        life.wait()
    assert not life.job.running, life.words


def judge(life: Life) -> None:
    job, words = life.job, life.words
    if life.is_elastic and 0 in life.codes.values() and life.by is None:
        assert job.status == 0, words
        return
    if life.by is None and not life.failed:
        assert job.status == 0, words
        return
    if life.failed:
        named = [rank for rank in life.failed if rank in life.by_itself]
        untold = [rank for rank in life.failed if rank not in life.told]
        first = (named or untold or life.failed)[0]
        assert job.failure is not None, words
        assert job.failure.rank == first, words
        assert job.status == exit_status(life.codes[first]), words
    else:
        assert life.by is not None, words
        code = next(filter(None, life.codes.values()), 0)
        assert job.status == (exit_status(code if code > 1 else -life.by) if code else 0), words


@pytest.mark.parametrize("is_elastic", [False, True])
@pytest.mark.parametrize("stubborn", [(), (1,), (0, 1, 2)])
def test_whatever_happens_the_job_ends_with_the_status_of_who_failed_first(
    stubborn: tuple[int, ...], is_elastic: bool
) -> None:
    seen = 0
    lives = [Life(Supervision(RANKS, GRACE_S, is_elastic=is_elastic), frozenset(stubborn), is_elastic)]
    for _ in range(3):
        lives = [later for life in lives for later in next_lives(life)]
        for life in lives:
            over = copy.deepcopy(life)
            finish(over)
            judge(over)
            seen += 1
    assert seen > 300
