"""Ranks that come back: their host daemon is another one than the one by which they joined.

Each brings the journal of their host in the job, its segments, and what it has called that has not ended.
When all ranks are back that had not left, the host goes on in the job as one that has lost its switch
(:mod:`inaproto.core.host.journal`). Until then nobody else hears of them: the switch waits for the host.

Invariants: only the ranks that a journal names come back by it, each once; one that does not come is named,
when the time is over in which the others wait for it; a rank that goes while it waits ends for the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

from inaproto.core.host.config import HostConfig
from inaproto.core.host.journal import JournalRefused, Past, read_journal
from inaproto.core.host.meeting_place import MeetingPlace
from inaproto.core.host.ranks import REASON_CHARACTERS_MAX
from inaproto.core.host.ring_words import name_ranks
from inaproto.daemon.host.local_rank import Keeps, LocalRank, Owner
from inaproto.daemon.host.ring_settings import OPERATIONS_MAX
from inaproto.daemon.host.shared_arena import SharedArena
from inaproto.errors import (
    JOB_ERRORS,
    InvariantBroken,
    JobError,
    JoinRefused,
    RankLost,
    SwitchUnreachable,
)
from inaproto.ports import Nic
from inaproto.units import Instant
from inaproto.wire.control_messages import Gone, Regrouped
from inaproto.wire.messages.client import AllReduce, DonePath, Filled, Join, Rejoin


class Nobody:
    """Owner of a rank whose process hears nothing: it has left, and is gone perhaps."""

    def joined(
        self,
        ring_id: int,
        operations_max: int,
        *,
        local: bool,
        fills: bool,
        keeps: Keeps,
        meets: MeetingPlace,
    ) -> None: ...
    def resumed(self) -> None: ...
    def waits(self, refused: str) -> None: ...
    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def results_taken(self, op_index: int, nbytes: int) -> None: ...
    def operation_done(self, op_index: int, path: DonePath, duration_ns: int) -> None: ...
    def rank_failed(self, error: JobError) -> None: ...
    def rank_closed(self) -> None: ...
    def other_left(self, number: int) -> None: ...
    def regrouped(self, message: Regrouped) -> None: ...
    def regroup_refused(self, error: JobError) -> None: ...
    def announce_again(self) -> None: ...
    def process_is_gone(self) -> bool:
        return True


class GoesOn(Protocol):
    """A ring whose ranks came back."""

    def adopt(self, rank: LocalRank) -> bool:
        """Whether that rank has left, and its process is here to hear of the end."""


class Succession:
    """The ranks of one job on this host that come back by one journal: what ``LocalRank`` has for a ring."""

    def __init__(self, job: str, arena: SharedArena, past: Past, until: Instant) -> None:
        self.job = job
        self.arena = arena
        self.past = past
        self.until = until
        self.ranks: dict[int, LocalRank] = {}
        self.calls: dict[int, list[AllReduce]] = {}
        self._called: dict[int, int] = {}
        self._leaving: set[int] = set()

    @property
    def awaited(self) -> list[int]:
        """Ranks that have not left, and have not said all of what they have called."""
        return [
            join.rank
            for join in self.past.joins
            if join.rank not in self.past.left and not self._is_whole(join.rank)
        ]

    def _is_whole(self, number: int) -> bool:
        calls = self.calls.get(number)
        return calls is not None and self._called[number] <= (calls[-1].op_index + 1 if calls else 0)

    def take(self, rejoin: Rejoin, owner: Owner) -> LocalRank:
        """Raises ``JoinRefused`` for another rank than the journal's, or one that is back already."""
        known = next((join for join in self.past.joins if join.rank == rejoin.rank), None)
        asked = rejoin.join
        if known is None or _words_of(known) != _words_of(asked):
            raise JoinRefused(f"rank {asked.rank} of job {asked.job!r}: its journal is not that of this rank")
        if asked.rank in self.ranks:
            raise JoinRefused(f"rank {asked.rank} of job {asked.job!r} is back already")
        if not rejoin.done <= rejoin.called:
            raise JobError(
                f"rank {asked.rank} has the results of {rejoin.done} of {rejoin.called} all-reduces"
            )
        rank = LocalRank(asked, owner)
        rank.ring, rank.returns = self, True
        self.ranks[asked.rank] = rank
        self.calls[asked.rank] = []
        self._called[asked.rank] = rejoin.called if rejoin.called > rejoin.done else 0
        return rank

    @property
    def may_have_successor(self) -> bool:
        return True

    def why_late(self) -> JobError:
        if not self.awaited:
            text = f"job {self.job!r}: the host daemon that is here now has found no switch in time"
            return SwitchUnreachable(text)
        missing = name_ranks(self.awaited)
        return RankLost(
            f"{missing} of job {self.job!r}: not back in time at the host daemon that is here now"
        )

    # --- a ring, for those who wait

    @property
    def nic(self) -> Nic:
        raise InvariantBroken("ranks that come back have no NIC yet")

    @property
    def ring_id(self) -> int | None:
        return None

    def submit(self, rank: LocalRank, request: AllReduce) -> None:
        """Raises ``JobError`` where it is not the next."""
        calls = self.calls[rank.number]
        if len(calls) >= OPERATIONS_MAX:
            raise JobError(f"{rank}: {len(calls)} all-reduces wait already; wait for one of them")
        if calls and request.op_index != calls[-1].op_index + 1:
            raise JobError(f"{rank}: all_reduce {request.op_index} after {calls[-1].op_index}")
        calls.append(request)

    def filled(self, rank: LocalRank, told: Filled) -> None:
        """Of what it has called before it was back."""
        calls = self.calls[rank.number]
        for at, request in enumerate(calls):
            if request.op_index == told.op_index and request.filled is not None:
                calls[at] = replace(request, filled=max(request.filled, min(told.nbytes, request.nbytes)))

    def leave(self, rank: LocalRank) -> None:
        if self.ranks.get(rank.number) is rank:
            self._leaving.add(rank.number)

    @property
    def leaving(self) -> Sequence[LocalRank]:
        """They have said so while they waited."""
        return [self.ranks[number] for number in sorted(self._leaving)]

    def gone(self, rank: LocalRank, reason: str) -> None:
        """It may come once more; if it does not, it is named. One that has said that it leaves need not."""
        if self.ranks.get(rank.number) is rank and rank.number not in self._leaving:
            del self.ranks[rank.number], self.calls[rank.number]
            rank.end()

    def gone_after_end(self, rank: LocalRank, reason: str) -> Gone:
        text = reason[:REASON_CHARACTERS_MAX]
        return Gone(job=self.job, rank=rank.number, reason=text)

    def fail(self, error: JobError) -> None:
        ranks, self.ranks = list(self.ranks.values()), {}
        for rank in ranks:
            rank.returns = False
            rank.fail(error)


class Successions:
    """All of this host; ``begin`` is called with one that is whole, when there is a switch to go on with."""

    def __init__(
        self,
        begin: Callable[[Succession], None],
        ring_of: Callable[[tuple[int, int]], GoesOn | None],
        clock: Callable[[], Instant],
        config: HostConfig,
        changed: Callable[[], None],
    ) -> None:
        """``ring_of``: whose journal the file is, of those that have begun. ``config``: of any job here.

        ``changed``: the deadline is another one.
        """
        self._begin = begin
        self._ring_of = ring_of
        self._clock = clock
        self._config = config
        self._changed = changed
        self._waiting: list[Succession] = []

    @property
    def are_waited_for(self) -> bool:
        """Processes of this host look for a successor of its daemon."""
        return self._config.recover_ns > 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def deadline(self) -> Instant | None:
        return min((each.until for each in self._waiting), default=None)

    def take(self, rejoin: Rejoin, descriptor: int, owner: Owner) -> LocalRank:
        """A rank is back. Raises ``JobError`` for one that cannot go on; takes the descriptor."""
        who = f"rank {rejoin.rank} of job {rejoin.job!r}"
        try:
            arena = SharedArena(descriptor)
            ring = self._ring_of(arena.file)
            if ring is not None:
                return self._adopted(ring, rejoin, owner)
            found = next((each for each in self._waiting if each.arena.file == arena.file), None)
            past = self._read(arena) if found is None else found.past
        except JournalRefused as why:
            raise JoinRefused(f"{who} cannot come back: its journal is refused: {why}") from None
        if past.failure is not None:
            code, words = past.failure
            if not words and rejoin.rank in past.left:
                return _ended(rejoin, owner)
            raise JOB_ERRORS.get(code, JobError)(words or f"{who}: its job has ended")
        if found is None:
            found = Succession(rejoin.job, arena, past, Instant(self._clock() + self._config.recover_ns))
        rank = found.take(rejoin, owner)
        if found not in self._waiting:
            self._waiting = [each for each in self._waiting if each.ranks]  # who has gone begins anew
            self._waiting.append(found)
            self._changed()
        return rank

    def _read(self, arena: SharedArena) -> Past:
        if not self._config.recover_ns:
            raise JournalRefused("this host daemon has recover_ms = 0, so no job outlives the one before it")
        window, tensor_bytes = self._config.window_messages, self._config.tensor_bytes
        return read_journal(arena, window_messages=window, tensor_bytes=tensor_bytes)

    def _adopted(self, ring: GoesOn, rejoin: Rejoin, owner: Owner) -> LocalRank:
        rank = LocalRank(rejoin.join, owner)
        if not ring.adopt(rank):
            raise JoinRefused(f"rank {rejoin.rank} of job {rejoin.job!r} is back already")
        return rank

    def look(self) -> None:
        """Ranks may have come, or a switch."""
        for each in list(self._waiting):
            if not each.awaited:
                self._begin(each)

    def begun(self, succession: Succession) -> None:
        self._waiting.remove(succession)

    def status(self) -> list[dict[str, Any]]:
        """Jobs whose ranks come back: whom they wait for; nobody: for a switch."""
        return [
            {"job": each.job, "ranks": sorted(each.ranks), "awaited": each.awaited} for each in self._waiting
        ]

    def woke(self) -> None:
        """Some may have waited long enough."""
        now = self._clock()
        for each in [each for each in self._waiting if each.until <= now]:
            self._waiting.remove(each)
            each.fail(each.why_late())


def _words_of(join: Join) -> tuple[object, ...]:
    return join.job, join.rank, join.size, join.key, join.life, join.path, join.exact_plan, join.elastic


def _ended(rejoin: Rejoin, owner: Owner) -> LocalRank:
    """A rank that had left, of a job that has ended well."""
    rank = LocalRank(rejoin.join, owner)
    rank.end()
    return rank


def left_rank(join: Join) -> LocalRank:
    """A rank that has left before."""
    return LocalRank(join, Nobody())
