"""What the jobs of a :class:`~inaproto.core.migration.coordinator.TreeMigration` do: phases, facts, moves.

A job moves when a fact of ``Fact`` holds that its phase looks at; facts are read off what is known, and never
off how it came to be known. ``TABLE`` has all phases with all facts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from inaproto.core.migration.events import JobRecord, Migration, MigrationConfig, MigrationRecord, Phase, Tree
from inaproto.units import Instant
from inaproto.wire.messages.slots import Lease, Order, SlotRequest

_UNSET: Final = Instant(0)


@dataclass(frozen=True, slots=True)
class Job:
    """Where a job is. ``tree`` and ``epoch`` stay what they were until another tree is acquired."""

    name: str
    phase: Phase
    tree: Tree | None = None
    epoch: int = 0
    target: Tree | None = None
    is_ended: bool = False
    is_drained: bool = False
    is_refused: bool = False
    refusals: int = 0
    retry_at: Instant = _UNSET
    drained_said: int = 0
    """The epoch of the last ``DrainJob``, and of the last ``TreeStands``."""
    stands_said: int = 0
    began: Instant = _UNSET
    drained: Instant = _UNSET
    released: Instant = _UNSET
    acquiring: Instant = _UNSET

    @property
    def lease(self) -> Lease | None:
        return None if self.tree is None else Lease(self.name, self.tree.tree_id, self.epoch)


@dataclass(frozen=True, slots=True)
class Switch:
    """What is known of a switch, by its last answer."""

    name: str
    boot: str = ""
    """Empty: it has not answered (yet)."""
    held: tuple[Lease, ...] = ()
    number: int = 0
    """Number of the last request."""
    asked: SlotRequest | None = None
    """The request under way."""
    at: Instant | None = None
    """When it is asked again, or asked what it holds."""
    tries: int = 0
    is_due: bool = True
    """Whether it is to be asked what it holds, before all else."""
    is_lost: bool = False
    vain: int = 0
    """Requests in a row whose answers say that nothing was done."""
    rests: bool = False
    """It is asked nothing before ``at``."""

    def holds(self, lease: Lease | None) -> bool:
        """It does, and goes on to: a release may be obeyed before its answer comes."""
        asked = self.asked
        is_leaving = asked is not None and asked.order is Order.RELEASE and asked.lease == lease
        return lease in self.held and not is_leaving

    def may_hold(self, job: str) -> bool:
        """It does, or would if it had obeyed what it has not answered yet."""
        asked = self.asked
        may_get = asked is not None and asked.order is Order.ACQUIRE
        leases = (*self.held, asked.lease) if asked is not None and may_get else self.held
        return any(lease is not None and lease.job == job for lease in leases)


class Fact(Enum):
    """What may be true of a job; looked at in this order."""

    ENDED = "its job has ended"
    MOVED = "the plan gives it another tree, or none"
    DRAINED = "no operation of it uses INA"
    KNOWN = "all its switches have said what they hold, or are lost"
    STANDS = "all its switches hold it"
    LACKS = "a switch of its tree has said that it does not hold it"
    REFUSED = "the next switch refused, or is lost"
    CLEAR = "no switch that answers holds it"
    OPEN = "no job has yet to release what it wants"
    DUE = "its back-off is over, and no job has yet to release what it wants"


_CLAIMS: Final = (Phase.ADOPTING, Phase.STABLE, Phase.DRAINING, Phase.ACQUIRING)
"""A job has a claim to the leases of its tree."""
_NOWHERE: Final = (Phase.RELEASED, Phase.BACKING_OFF)
"""A job has no lease anywhere."""


def _holds_up(job: Job) -> bool:
    """None begins to acquire its slots before this job has released them."""
    is_leaving = job.phase is Phase.STABLE and job.tree is not None and job.target != job.tree
    return is_leaving or job.phase in (Phase.ADOPTING, Phase.DRAINING, Phase.RELEASING)


class JobMoves:
    """The jobs, and the switches as far as they are known."""

    def __init__(self, config: MigrationConfig, record: MigrationRecord) -> None:
        self.config = config
        self._epoch = record.epoch
        self._switches = {name: Switch(name) for name in sorted(config.switches)}
        self._jobs = {its.job: self._recorded(its) for its in record.jobs if its.tree or self._aim(its)}
        self._slots = dict(zip(config.switches, config.slots, strict=False))
        self._free: dict[str, int] | None = None
        """See ``_free_beside_leavers``; None: to be counted."""
        self._table = TABLE
        self._backoffs = 0
        self._measured: deque[Migration] = deque(maxlen=config.measures_max)
        self._counters = dict.fromkeys(
            ("refusals", "migrations", "trees_lost", "switches_lost", "strangers_freed"), 0
        )

    @property
    def _is_settled(self) -> bool:
        return all(its.phase is Phase.STABLE and its.tree == its.target for its in self._jobs.values())

    def _advance_all(self, now: Instant) -> None:
        """Let every job go as far as it can."""
        self._free = None
        has_moved = True
        while has_moved:
            has_moved = False
            for name in list(self._jobs):
                has_moved = self._advance(name, now) or has_moved

    def _advance(self, name: str, now: Instant) -> bool:
        """One move of a job, if a fact calls for one."""
        job = self._jobs[name]
        for fact, handler in self._table[job.phase].items():
            if handler is not stay and _IS_TRUE[fact](self, job, now):
                after = handler(self, job, now)
                self._free = None
                if after is None:
                    del self._jobs[job.name]
                else:
                    self._jobs[job.name] = after
                return True
        return False

    def _keeps(self, lease: Lease) -> bool:
        """Whether a job has a claim to a lease."""
        job = self._jobs.get(lease.job)
        return job is not None and job.phase in _CLAIMS and lease == job.lease

    def _next_switch(self, job: Job) -> str | None:
        """Where a job that acquires asks next."""
        return next((at for at in self._order(job) if not self._switch(at).holds(job.lease)), None)

    def _order(self, job: Job) -> tuple[str, ...]:
        return () if job.tree is None else job.tree.switches

    def _switch(self, name: str) -> Switch:
        """One that a record of earlier speaks of and that is configured no more is lost for ever."""
        return self._switches.get(name) or Switch(name, is_due=False, is_lost=True)

    def _aim(self, record: JobRecord) -> Tree | None:
        """Its target, unless that cannot be had any more."""
        target = record.target
        return target if target is not None and self._switches.keys() >= set(target.switches) else None

    def _recorded(self, record: JobRecord) -> Job:
        phase = Phase.STABLE if record.tree is None else Phase.ADOPTING
        return Job(record.job, phase, tree=record.tree, epoch=record.epoch, target=self._aim(record))

    # --- facts

    def _is_known(self, job: Job) -> bool:
        return all(its.boot or its.is_lost for its in map(self._switch, self._order(job)))

    def _stands(self, job: Job) -> bool:
        return all(its.holds(job.lease) for its in map(self._switch, self._order(job)))

    def _lacks(self, job: Job) -> bool:
        known = [its for its in map(self._switch, self._order(job)) if its.boot]
        return any(not switch.holds(job.lease) for switch in known)

    def _is_refused(self, job: Job) -> bool:
        at = self._next_switch(job)
        return job.is_refused or (at is not None and self._switch(at).is_lost)

    def _is_clear(self, job: Job) -> bool:
        known = [switch for switch in self._switches.values() if not switch.is_lost]
        return all(switch.boot and not switch.may_hold(job.name) for switch in known)

    def _is_open(self, job: Job) -> bool:
        if self._free is None:
            self._free = self._free_beside_leavers()
        switches = () if job.target is None else job.target.switches
        return all(self._free.get(at, 1) > 0 for at in switches)

    def _free_beside_leavers(self) -> dict[str, int]:
        """Slots, of switches that a job has yet to leave, that nobody has or is about to get."""
        leavers = [its for its in self._jobs.values() if _holds_up(its)]
        found = {at: self._slots.get(at, 0) for job in leavers for at in self._order(job)}
        if not found:
            return found
        lent = {(at, lease.job) for at in found.keys() & self._switches for lease in self._switches[at].held}
        claimed = {
            (at, its.name)
            for its in self._jobs.values()
            if its.phase not in _NOWHERE
            for at in self._order(its)
        }
        for at, _ in lent | claimed:
            if at in found:
                found[at] -= 1
        return found

    # --- moves; None: the job is forgotten

    def _adopt(self, job: Job, now: Instant) -> Job:
        if self._stands(job) and job.target == job.tree:
            return replace(job, phase=Phase.STABLE)
        return replace(job, phase=Phase.DRAINING, began=now)

    def _leave(self, job: Job, now: Instant) -> Job:
        if job.tree is None:
            return replace(job, phase=Phase.RELEASED, drained=now, released=now)
        return replace(job, phase=Phase.DRAINING, is_drained=False)

    def _lose(self, job: Job, now: Instant) -> Job:
        self._counters["trees_lost"] += 1
        return replace(job, phase=Phase.DRAINING, is_drained=False, began=now)

    def _release(self, job: Job, now: Instant) -> Job:
        return replace(job, phase=Phase.RELEASING, drained=now)

    def _release_done(self, job: Job, now: Instant) -> Job | None:
        if job.is_ended or job.target is None:
            return None
        return replace(job, phase=Phase.RELEASED, released=now)

    def _acquire(self, job: Job, now: Instant) -> Job | None:
        if job.is_ended or job.target is None:
            return None
        self._epoch += 1
        return replace(
            job,
            phase=Phase.ACQUIRING,
            tree=job.target,
            epoch=self._epoch,
            is_refused=False,
            refusals=0,
            acquiring=now,
        )

    def _give_back(self, job: Job, now: Instant) -> Job:
        self._counters["refusals"] += job.target == job.tree
        refusals = job.refusals + (job.target == job.tree)
        return replace(job, phase=Phase.GIVING_BACK, is_refused=False, refusals=refusals)

    def _back_off(self, job: Job, now: Instant) -> Job | None:
        if job.is_ended:
            return None
        if job.target != job.tree:
            return replace(job, phase=Phase.RELEASED)
        doublings = min(max(job.refusals - 1, 0), 32)
        wait = min(self.config.backoff_ns << doublings, self.config.backoff_max_ns)
        jitter = self.config.jitter_ns[self._backoffs % len(self.config.jitter_ns)]
        self._backoffs += 1
        return replace(job, phase=Phase.BACKING_OFF, retry_at=Instant(now + wait + jitter))

    def _try_again(self, job: Job, now: Instant) -> Job:
        return replace(job, phase=Phase.ACQUIRING, is_refused=False)

    def _turn_back(self, job: Job, now: Instant) -> Job:
        return replace(job, phase=Phase.RELEASED)

    def _stand(self, job: Job, now: Instant) -> Job:
        assert job.tree is not None, "a job acquires a tree"
        self._counters["migrations"] += 1
        self._measured.append(
            Migration(
                job=job.name,
                tree=job.tree.tree_id,
                epoch=job.epoch,
                drain_ns=job.drained - job.began,
                release_ns=job.released - job.drained,
                barrier_ns=job.acquiring - job.released,
                acquire_ns=now - job.acquiring,
                refusals=job.refusals,
            )
        )
        return replace(job, phase=Phase.STABLE, is_refused=False, is_drained=False)


def stay(core: JobMoves, job: Job, now: Instant) -> Job:
    """The fact means nothing in this phase."""
    return job


Handler = Callable[[JobMoves, Job, Instant], Job | None]
_M: Final = JobMoves
_MOVES: Final[Mapping[Phase, Mapping[Fact, Handler]]] = {
    Phase.ADOPTING: {Fact.ENDED: _M._release, Fact.KNOWN: _M._adopt},
    Phase.STABLE: {Fact.ENDED: _M._release, Fact.MOVED: _M._leave, Fact.LACKS: _M._lose},
    Phase.DRAINING: {Fact.ENDED: _M._release, Fact.DRAINED: _M._release},
    Phase.RELEASING: {Fact.CLEAR: _M._release_done},
    Phase.RELEASED: {Fact.ENDED: _M._release, Fact.OPEN: _M._acquire},
    Phase.ACQUIRING: {
        Fact.ENDED: _M._release,
        Fact.MOVED: _M._give_back,
        Fact.STANDS: _M._stand,
        Fact.REFUSED: _M._give_back,
    },
    Phase.GIVING_BACK: {Fact.ENDED: _M._release, Fact.CLEAR: _M._back_off},
    Phase.BACKING_OFF: {Fact.ENDED: _M._release, Fact.MOVED: _M._turn_back, Fact.DUE: _M._try_again},
}
TABLE: Final[Mapping[Phase, Mapping[Fact, Handler]]] = {
    phase: {fact: _MOVES[phase].get(fact, stay) for fact in Fact} for phase in Phase
}
"""(phase, fact) -> what the job does."""

_IS_TRUE: Final[Mapping[Fact, Callable[[JobMoves, Job, Instant], bool]]] = {
    Fact.ENDED: lambda core, job, now: job.is_ended,
    Fact.MOVED: lambda core, job, now: job.target != job.tree,
    Fact.DRAINED: lambda core, job, now: job.is_drained,
    Fact.KNOWN: lambda core, job, now: core._is_known(job),
    Fact.STANDS: lambda core, job, now: core._stands(job),
    Fact.LACKS: lambda core, job, now: core._lacks(job),
    Fact.REFUSED: lambda core, job, now: core._is_refused(job),
    Fact.CLEAR: lambda core, job, now: core._is_clear(job),
    Fact.OPEN: lambda core, job, now: core._is_open(job),
    Fact.DUE: lambda core, job, now: job.retry_at <= now and core._is_open(job),
}
