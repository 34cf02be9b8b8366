"""A barrier between processes that knows who is missing.

Rank 0 collects and releases: who arrives adds one to an eventfd that rank 0 takes from, and rank 0 adds one
to the eventfd of each other rank. Both are semaphores, and a rank blocks on them. Where each rank has a
processor it looks again some times before it sleeps: to be woken takes as long as much of a chunk. Who looked
in vain sleeps at once the next time, then the next two times, and so on.

Every rank holds the writing end of a pipe of its own, into which nothing is written, and the reading ends of
all others. When a process ends, however it ends, the kernel closes its end: all who wait see it at once.
Control words in the shared mapping say how far each rank has come, so a wait in vain names who was missing.

Invariants: control words only explain. That a rank may go on, and sees what others wrote before they arrived,
follows from the eventfds, whose system calls order memory. A rank that arrived and then ended is not missing
at this barrier, only at the next. A stage that failed for one rank fails for all: who gives up closes its
pipe.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from inaproto.client.forks import keep_from_children
from inaproto.client.stage.layout import WORDS, Words
from inaproto.client.stage.waits import Clock, Steps, Wait
from inaproto.errors import JobError, OperationTimeout, RankLost

_ENTERED: Final = 0
"""How many barriers the rank has come to."""
_RELEASED: Final = 1
"""Rank 0: from how many barriers it has let the others go."""
_STATE: Final = 2
_BLAMED: Final = 3
"""Whom the rank waited for when it gave up: a bit for each rank."""
_PID: Final = 4
LOOKS: Final = 64
"""How often a rank looks before it sleeps: 0.1 ms or so."""
_SLEEPS_MAX: Final = 32
"""Waits without a look, at most, after looks in vain."""


class State(IntEnum):
    RUNNING = 0
    LEFT = 1
    GAVE_UP = 2
    SAW_END = 3
    """Gave up because those that it blames have ended."""

    @property
    def has_given_up(self) -> bool:
        return self in (State.GAVE_UP, State.SAW_END)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a rank gives up: whom it blames, and what it raises."""

    blamed: Sequence[int]
    error: JobError
    state: State = State.GAVE_UP


@dataclass(slots=True)
class Descriptors:
    """What a rank's barrier is made of; whoever holds it closes it, or nobody has it any more."""

    arrivals: int
    """The eventfd that rank 0 takes from."""
    releases: Sequence[int]
    """Eventfds: of ranks 1, 2, ... at rank 0, of the rank itself at others."""
    own_end: int
    """The writing end of the rank's own pipe."""
    others: dict[int, int] = field(default_factory=dict)
    """The reading ends of all others, by rank."""

    def close(self) -> None:
        """Idempotent."""
        closed = (self.arrivals, *self.releases, *self.others.values()) if self.arrivals >= 0 else ()
        self.arrivals, self.releases, self.others = -1, (), {}
        for descriptor in closed:
            os.close(descriptor)
        self.close_own_end()

    def close_own_end(self) -> None:
        """Now all others see that this rank is gone."""
        own_end, self.own_end = self.own_end, -1  # before anybody forks
        if own_end >= 0:
            os.close(own_end)

    def __del__(self) -> None:
        self.close()


class Barrier:
    """Rank ``rank``'s side; takes over ``descriptors``. ``words`` are the control words of all ranks.

    ``looks``: how often it looks, in vain, before it waits.
    """

    def __init__(
        self, rank: int, descriptors: Descriptors, words: Words, clock: Clock, *, looks: int = 0
    ) -> None:
        self.rank = rank
        self._looks = looks
        self._sleeps = 0
        """Waits that are left without looks."""
        self._sleeps_next = 1
        self._descriptors = descriptors
        self._words = words
        self._clock = clock
        self._count = 0
        self._gone: list[int] = []
        self._rank_of = {descriptor: other for other, descriptor in descriptors.others.items()}
        self._token = descriptors.releases[0] if rank else descriptors.arrivals
        self._epoll = select.epoll()
        self._epoll.register(self._token, select.EPOLLIN)
        for descriptor in self._rank_of:
            self._epoll.register(descriptor, 0)  # its hang-up is reported in any case
        self._words[rank, _PID] = os.getpid()
        keep_from_children(self)

    def passing(self, what: str, timeout: float) -> Steps[None]:
        """Arrive, and wait until all others have. ``timeout`` is in seconds; ``what`` the wait is for.

        Raises ``RankLost`` or ``OperationTimeout``, which name who is missing.
        """
        self._count += 1
        until = self._clock() + timeout
        self._words[self.rank, _ENTERED] = self._count
        if self.rank:
            os.eventfd_write(self._descriptors.arrivals, 1)
            yield from self._taking(what, timeout, until)
            return
        for _ in self._descriptors.releases:
            yield from self._taking(what, timeout, until)
        for release in self._descriptors.releases:
            os.eventfd_write(release, 1)
        self._words[0, _RELEASED] = self._count

    def give_up(self, cause: Cause) -> None:
        """Nothing will be exchanged any more: the others shall not wait for this rank."""
        bits = sum(1 << rank for rank in cause.blamed)
        self._words.view(np.uint64)[self.rank, _BLAMED] = bits
        self._leave(cause.state)

    def close(self) -> None:
        """Give everything back. Others learn that this rank left."""
        if self._epoll.closed:
            return
        self._leave(State.LEFT)
        self._words = np.zeros((0, WORDS), np.int64)
        self._epoll.close()
        self._descriptors.close()

    def missing(self) -> list[int]:
        """Who has not come to the barrier that this rank is at; rank 0 if it has yet to let the others go."""
        entered = self._words[:, _ENTERED].tolist()
        return [rank for rank, count in enumerate(entered) if count < self._count] or [0]

    def cause(self, rank: int, what: str) -> Cause | None:
        """Why the memory of ``rank`` cannot be used, between two barriers of a call.

        None if nothing is known of that. Nobody leaves there but for a reason: who ended, or closed its
        stage, is the first one, and who gave up because of it may have ended since.
        """
        self._note_who_is_gone()
        for other in self._gone:
            state = self._state(other)
            if not state.has_given_up:
                left = state is State.LEFT
                how = "closed its stage" if left else "ended"
                error = RankLost(f"{what}: {self.name(other)} {how} in the middle of it")
                return Cause([other], error, State.GAVE_UP if left else State.SAW_END)
        state = self._state(rank)
        if state.has_given_up:
            return Cause(self._blamed(rank), RankLost(f"{what}: {self._gave_up(rank)}"), state)
        return None

    def has_ended(self, rank: int) -> bool:
        """Whether the process of another rank has ended, or left the stage."""
        poll = select.poll()
        poll.register(self._descriptors.others[rank], 0)  # its hang-up is reported in any case
        return bool(poll.poll(0))

    def vital_descriptors(self) -> Sequence[int]:
        """As :class:`inaproto.client.forks.Inherited`."""
        return (self._descriptors.own_end,)

    def after_fork(self) -> None:
        """As :class:`inaproto.client.forks.Inherited`: one thread uses it, and there is no lock."""

    def _leave(self, state: State) -> None:
        if self._words[self.rank, _STATE] == State.RUNNING:
            self._words[self.rank, _STATE] = state
        self._descriptors.close_own_end()

    def _taking(self, what: str, timeout: float, until: float) -> Steps[None]:
        """Take one from the eventfd that this rank waits on."""
        if _took(self._token) or self._saw_it_come():
            return
        while not _took(self._token):
            self._note_who_is_gone()
            lost = self._loss(what)
            if lost is not None:
                if _took(self._token):  # it came just before
                    return
                raise lost
            if self._clock() >= until:
                raise self._late(what, timeout)
            yield Wait(self._epoll, until)

    def _saw_it_come(self) -> bool:
        if self._sleeps:
            self._sleeps -= 1
            return False
        for _ in range(self._looks):
            os.sched_yield()  # to whoever else is for this processor, another rank perhaps
            if _took(self._token):
                self._sleeps_next = 1
                return True
        self._sleeps = self._sleeps_next
        self._sleeps_next = min(2 * self._sleeps_next, _SLEEPS_MAX)
        return False

    def _note_who_is_gone(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            if descriptor in self._rank_of:
                self._epoll.unregister(descriptor)  # who has arrived may go: do not wake up for it again
                self._gone.append(self._rank_of[descriptor])

    def _loss(self, what: str) -> JobError | None:
        """Who will never come. One that ended goes before one that gave up because of it."""
        gave_up: list[int] = []
        for rank in self._gone:
            if self._state(rank).has_given_up:
                gave_up.append(rank)
            elif self._words[rank, _ENTERED if rank else _RELEASED] < self._count:
                how = "closed its stage" if self._state(rank) is State.LEFT else "ended"
                return RankLost(f"{what}: {self.name(rank)} {how} while rank {self.rank} waited for it")
        if not gave_up:
            return None
        return RankLost(f"{what}: {self._gave_up(max(gave_up, key=self._state))}")  # who knows most

    def _gave_up(self, rank: int) -> str:
        names = ", ".join(map(self.name, self._blamed(rank)))
        if self._state(rank) is State.SAW_END:
            return f"{self.name(rank)} gave up because {names} ended"
        why = f"waiting for {names}" if names else "in the middle of its call"
        return f"{self.name(rank)} gave up {why}"

    def _state(self, rank: int) -> State:
        return State(int(self._words[rank, _STATE]))

    def _blamed(self, rank: int) -> list[int]:
        bits = int(self._words.view(np.uint64)[rank, _BLAMED])
        return [other for other in range(len(self._words)) if bits >> other & 1]

    def _late(self, what: str, timeout: float) -> OperationTimeout:
        missing = self.missing()
        names = ", ".join(self.name(rank) for rank in missing)
        return OperationTimeout(
            f"{what}: rank {self.rank} waited {timeout:g} s for {names}, which did not come; see what "
            f"{'it does' if len(missing) == 1 else 'they do'}, or give a longer timeout"
        )

    def name(self, rank: int) -> str:
        """Number and process of a rank, as errors name it."""
        pid = int(self._words[rank, _PID])
        return f"rank {rank} (process {pid})" if pid else f"rank {rank}"


def _took(eventfd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(eventfd)
        return True
    return False
