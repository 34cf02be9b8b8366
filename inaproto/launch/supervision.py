"""What follows when a process of the job ends, a signal comes, or time is up: a pure state machine.

- A rank that ends with 0 is done, and the others go on.
- One that ends badly ends the job: the others get SIGTERM, and SIGKILL when the grace is over. Where losses
  are survived (``is_elastic``) the others go on.
- The job's exit status is that of the one that failed first. That is not always the one whose process ended
  first: others end by its loss, and may be faster. What daemons say of it (:meth:`Supervision.heard`) comes
  before the order in which processes ended. While only such have ended as had been told that the job failed,
  and one still runs that had gone from the job by itself, its end is waited for, no longer than the grace.
- Ctrl-C goes to all as SIGINT; when the grace is over follows SIGTERM, then SIGKILL. A second one is SIGKILL.
- SIGTERM, SIGHUP and SIGQUIT go to all, and SIGKILL follows. SIGUSR1 and SIGUSR2 go to all.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PASSED_ON: Final = (signal.SIGUSR1, signal.SIGUSR2)
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NAMED_MAX: Final = 8
"""More are counted."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a signal to these ranks, and to what they have started."""

    number: signal.Signals
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that ended badly."""

    rank: int
    code: int
    """Exit status; negative: the signal that ended it."""
    who: str = ""
    """What it is called; empty: by its rank."""

    def __str__(self) -> str:
        return f"{self.who or f'rank {self.rank}'} {how_it_ended(self.code)}"


Action = Send | Say


def how_it_ended(code: int) -> str:
    """In words; ``code`` is negative for a signal, as :mod:`subprocess` has it."""
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = " (the kernel does that when memory runs out; see dmesg)" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{why}"


def exit_status(code: int) -> int:
    """As a shell would have it: 128 and the signal's number for a signal."""
    return 128 - code if code < 0 else code


class Supervision:
    """The processes of one start. Times are seconds of any one clock."""

    def __init__(
        self,
        ranks: Iterable[int],
        grace_s: float,
        *,
        is_elastic: bool = False,
        names: Mapping[int, str] | None = None,
    ) -> None:
        """``names``: what its processes are called, where they are no ranks."""
        self._names = names or {}
        self.running = set(ranks)
        self.deadline: float | None = None
        """When :meth:`due` is to be called."""
        self._grace_s = grace_s
        self._is_elastic = is_elastic
        self._ended_well = False
        self._failures: list[Failure] = []
        """In the order of their ends; without those that were made to end."""
        self._by_themselves: Collection[int] = ()
        self._told: Mapping[int, str] = {}
        self._by: signal.Signals | None = None
        """Signal by which the user, or whoever, ends the job."""
        self._next: list[signal.Signals] = []
        """What follows at the deadline."""
        self._is_ending = False

    @property
    def status(self) -> int:
        """Exit status of the job, when nothing runs any more."""
        if self._is_elastic and self._ended_well and self._by is None:
            return 0
        return 0 if self.failure is None else exit_status(self.failure.code)

    @property
    def failure(self) -> Failure | None:
        """The first one, as far as is known."""
        by_itself = (failure for failure in self._failures if failure.rank in self._by_themselves)
        untold = (failure for failure in self._failures if failure.rank not in self._told)
        return next(by_itself, None) or next(untold, None) or next(iter(self._failures), None)

    @property
    def told(self) -> str:
        """What the first to fail had been told of its job; empty: nothing."""
        return "" if self.failure is None else self._told.get(self.failure.rank, "")

    def heard(self, by_themselves: Collection[int], told: Mapping[int, str]) -> None:
        """What is known of those that have gone from the job, whether they still run or not.

        ``by_themselves``: the job had not failed for them. ``told``: it had, by these words. Whoever has been
        named stays named: what is heard later may be less, as of a daemon that was started again.
        """
        if not self._is_ending:
            self._by_themselves, self._told = by_themselves, told

    def exited(self, rank: int, code: int, now: float) -> list[Action]:
        return self.ended([(rank, code)], now)

    def ended(self, ends: Iterable[tuple[int, int]], now: float) -> list[Action]:
        """Ranks with their codes, in the order of their ends, of which all were found at one look."""
        failures = []
        for rank, code in ends:
            self.running.discard(rank)
            if code == 0:
                self._ended_well = True
            elif self._by is not None and not self._failures:
                # By a stronger signal perhaps, but for the sake of the first one. Python says 1 for any
                # exception: a KeyboardInterrupt is a RuntimeError where torch's autograd meets it in a hook.
                self._failures.append(self._failure(rank, code if code > 1 else -self._by))
            elif not self._is_ending:
                failures.append(self._failure(rank, code))
        self._failures += failures
        if self._is_elastic:
            return self._survived(failures)
        if self._is_ending or not self._failures or self._is_awaited(now):
            return []
        self._is_ending, self.deadline = True, None
        if not self.running:
            return [Say(self._what_failed())]
        said = Say(f"{self._what_failed()}; ending {self._others()}")
        return [said, *self._escalate([signal.SIGTERM, signal.SIGKILL], now)]

    def _failure(self, rank: int, code: int) -> Failure:
        return Failure(rank, code, self._names.get(rank, ""))

    def _survived(self, failures: Sequence[Failure]) -> list[Action]:
        go_on = "; the others go on" if self.running else ""
        return [Say(f"{failure}{go_on}") for failure in failures]

    def _is_awaited(self, now: float) -> bool:
        """Whether the one that failed first still runs, by all that is known, and may end by itself."""
        if not self.running.intersection(self._by_themselves):
            return False
        if any(failure.rank not in self._told for failure in self._failures):
            return False
        if self.deadline is None:
            self.deadline = now + self._grace_s
        return now < self.deadline

    def _what_failed(self) -> str:
        """Who failed first, and who else; where that is not known, that it is not."""
        first = self.failure
        assert first is not None
        others = [failure.rank for failure in self._failures if failure is not first]
        if self.told:
            too = f", and {self._called(others)} too" if others else ""
            return f"{first}{too} (the job had failed: {self.told})"
        if not others:
            return str(first)
        if all(rank in self._told for rank in others):
            return f"{first}, and because of it {self._called(others)}"
        all_of_them = self._called([failure.rank for failure in self._failures])
        return f"{all_of_them} failed, which first is not known; of their processes {first} first"

    def signalled(self, number: signal.Signals, now: float) -> list[Action]:
        if not self.running:
            return []
        if number in PASSED_ON:
            return [Send(number, self._everybody())]
        if self._is_ending:
            return [Say(f"{number.name}: all are killed"), *self._escalate([signal.SIGKILL], now)]
        self._is_ending = True
        self._by = number
        is_unsaid = bool(self._failures) and not self._is_elastic  # who had failed first was awaited
        told = [Say(self._what_failed())] if is_unsaid else []
        if number == signal.SIGINT:
            said = Say(f"interrupted; again, and all {len(self.running)} are killed")
            return [*told, said, *self._escalate([number, signal.SIGTERM, signal.SIGKILL], now)]
        return [*told, Say(f"{number.name} is passed on"), *self._escalate([number, signal.SIGKILL], now)]

    def over(self, now: float) -> list[Action]:
        """The job is over for who placed it, and some still run: as by SIGTERM. If others of an elastic job
        ended well, these are what it has lost, such as the way to a host that is down."""
        if self._is_ending or not (self._is_elastic and self._ended_well and self.running):
            return self.signalled(signal.SIGTERM, now)
        self._is_ending = True
        return [Say(f"ending {self._others()}"), *self._escalate([signal.SIGTERM, signal.SIGKILL], now)]

    def due(self, now: float) -> list[Action]:
        """The deadline has passed."""
        if self.deadline is None or now < self.deadline:
            return []
        if not self._is_ending:  # who seems to have failed first goes on
            return self.ended([], now)
        if not self.running:
            self.deadline = None
            return []
        told = f"{self._others()} did not end within {self._grace_s:g} s; {self._next[0].name}"
        return [Say(told), *self._escalate(self._next, now)]

    def _escalate(self, numbers: list[signal.Signals], now: float) -> list[Action]:
        first, *self._next = numbers
        self.deadline = now + self._grace_s if self._next else None
        return [Send(first, self._everybody())]

    def _everybody(self) -> tuple[int, ...]:
        return tuple(sorted(self.running))

    def _others(self) -> str:
        if len(self.running) > NAMED_MAX:
            return f"the other {len(self.running)}" + ("" if self._names else " ranks")
        return self._called(self.running)

    def _called(self, ranks: Collection[int]) -> str:
        if len(ranks) > NAMED_MAX:
            return f"{len(ranks)} others" if self._names else f"{len(ranks)} ranks"
        if self._names:
            return ", ".join(self._names[rank] for rank in sorted(ranks))
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
