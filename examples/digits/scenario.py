"""What happens to the racks while they train, when, and what has to follow: the script of the act, pure.

:class:`Scenario` is shown what is seen and answers with orders. Each thing that is waited for has a time,
after which the act is given up, and says what did not come.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Job:
    """What the rendezvous says of the job."""

    name: str
    phase: str
    path: str
    fallback: str
    """Why it is not summed in the switches; empty while it is."""
    recoveries: int
    last_recovery: str

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Self | None:
        """From the root's status; None if it has no job now. The demo has one job."""
        for job in status["jobs"]:
            return cls(**{name: job[name] for name in cls.__slots__})
        return None

    @property
    def by_switches(self) -> bool:
        return self.phase == "running" and self.path == "switch" and not self.fallback

    @property
    def by_hosts(self) -> bool:
        return self.phase == "running" and self.path == "chain" and bool(self.fallback)


@dataclass(frozen=True, slots=True)
class Seen:
    at_s: float
    step: int
    """Last step that rank 0 has said it ended; from 1."""
    stepped_s: float
    """When that was. What was said before ``at_s`` may be heard only now."""
    job: Job | None

    @property
    def by_switches(self) -> bool:
        return self.job is not None and self.job.by_switches

    @property
    def by_hosts(self) -> bool:
        return self.job is not None and self.job.by_hosts


@dataclass(frozen=True, slots=True)
class CutLink:
    """Between a leaf and the spine."""


@dataclass(frozen=True, slots=True)
class MendLink:
    pass


@dataclass(frozen=True, slots=True)
class Reboot:
    """A leaf is killed (SIGKILL) and started again."""

    with_memory: bool
    """Whether its accelerator has any."""


@dataclass(frozen=True, slots=True)
class End:
    """The training may end."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: str


Order = CutLink | MendLink | Reboot | End | GiveUp


@dataclass(frozen=True, slots=True)
class Timing:
    steps: int = 20
    """Steps of training between one event and the next."""
    flaps: int = 3
    flap_s: float = 0.3
    within_s: float = 60.0
    """How long anything that is waited for may take."""


Script = Generator[Order | None, Seen, Seen]
"""Yields an order, or None when there is nothing to do now; is sent what is seen."""


class Scenario:
    """``look`` as often as something new is seen."""

    def __init__(self, timing: Timing) -> None:
        self._script = _act(timing)
        self._ended = False
        next(self._script)

    def look(self, seen: Seen) -> list[Order]:
        """What is to be done now, in order; ``End`` and ``GiveUp`` come last, and once."""
        orders: list[Order] = []
        while not self._ended and (order := self._script.send(seen)) is not None:
            orders.append(order)
            self._ended = isinstance(order, End | GiveUp)
        return orders


def _act(timing: Timing) -> Script:
    seen = yield None
    seen = yield from _until(timing, seen, "a sum in the switches", lambda now: now.by_switches)
    seen = yield from _steps(timing, seen)
    for _ in range(timing.flaps):
        seen = yield CutLink()
        cut_s = seen.at_s
        while seen.at_s < cut_s + timing.flap_s:
            seen = yield None
        seen = yield MendLink()
        seen = yield from _steps(timing, seen)
    seen = yield Reboot(with_memory=False)
    seen = yield from _until(timing, seen, "a sum by the hosts themselves", lambda now: now.by_hosts)
    seen = yield from _steps(timing, seen)
    seen = yield Reboot(with_memory=True)
    seen = yield from _until(timing, seen, "the return to the switches", lambda now: now.by_switches)
    seen = yield from _steps(timing, seen)
    return (yield End())


def _steps(timing: Timing, seen: Seen) -> Script:
    """So many steps end from now on, however many have ended that were not heard of yet."""
    since_s = seen.at_s
    seen = yield from _until(timing, seen, f"step after {seen.step}", lambda now: now.stepped_s > since_s)
    enough = seen.step + timing.steps - 1
    return (yield from _until(timing, seen, f"step {enough}", lambda now: now.step >= enough))


def _until(timing: Timing, seen: Seen, what: str, holds: Callable[[Seen], bool]) -> Script:
    since_s = seen.at_s
    while not holds(seen):
        if seen.at_s > since_s + timing.within_s:
            yield GiveUp(
                f"no {what} within {timing.within_s:g} s, at step {seen.step}; seen last: {seen.job}"
            )
        seen = yield None
    return seen
