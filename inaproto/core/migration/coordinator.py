"""Aggregation trees move under running jobs: the coordinator (MINA section IV-A).

As in the paper, a job that is to shift its tree releases its slots after its current INA operation, at once
if there is none, and then tries to acquire the new tree; until it has it, operations take the fallback. Each
job goes STABLE -> DRAINING -> RELEASING -> RELEASED -> ACQUIRING -> STABLE, and no job of a plan acquires
slots that another of it has yet to release: two jobs that swap trees would else wait for each other for ever.

The paper lets none acquire before *all* have released. Then one job that cannot drain, because a rank of it
writes a checkpoint, keeps all others waiting; and that is not what prevents the deadlock (``inaproto explore
--world migration --variant no-barrier``). Ours waits only for what it wants: where a switch has a slot to
spare, or nobody is about to leave it, a job acquires at once.

The paper is silent on how slots of several switches are acquired, and on failure. Ours:

- *All or nothing*: a job acquires switch by switch, ascending. When one refuses, it gives back what it got
  and tries again after a back-off: nobody keeps slots while it waits for slots.
- *Level-triggered*: nothing is concluded from what was sent. Each switch has one request under way, is asked
  again until it answers, and each answer says all that it holds. What it holds that nobody here has a claim
  to (``JobMoves._keeps``) is released; a job goes on when what is held allows it.
- *Durable before visible*: while a record is being written nothing is sent. A record says for each job which
  tree it may have slots for, and its target. That suffices: a restarted coordinator takes a higher term, asks
  all switches, adopts a tree that all of its switches hold and that still is the target, and drains and
  releases all others.
- *A slot that is lost* (its lease ran out, its switch restarted) costs the job its tree: it drains,
  releases the rest and acquires anew. A switch that is merely silent costs nobody anything.
- A switch that answers twice in a row without doing what it was asked (it always says that it has started
  again, or keeps what it was to release) is asked ever less often, and acquiring at it counts as refused.
- A switch that does not answer is lost until it does: releases at it count as done (they are when it is back;
  and leases run out), acquiring at it counts as refused. One of which only the record knows, for it is not
  configured any more, is lost for ever: a job with a tree through it drains, and its target is dropped.

A newer plan may come at any time: it changes targets, and each job goes on from where it is. Jobs that end
skip the draining. :mod:`inaproto.core.migration.jobs` has the table of every phase with every fact.

Invariants: a job in RELEASED or BACKING_OFF has a lease at no switch that answers; an epoch is never used
for two trees; ``TreeStands`` is said only of trees that all their switches said to hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, assert_never

from inaproto.core.migration.events import (
    Deposed,
    DrainJob,
    FromSwitch,
    JobDrained,
    JobEnded,
    JobRecord,
    JobView,
    MigrationAction,
    MigrationConfig,
    MigrationEvent,
    MigrationRecord,
    MigrationView,
    Persist,
    Persisted,
    Phase,
    PlanStands,
    PlanWanted,
    SwitchLost,
    SwitchView,
    ToSwitch,
    TreeStands,
    Woke,
)
from inaproto.core.migration.jobs import Job, JobMoves, Switch
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant
from inaproto.wire.messages.slots import Lease, Order, Outcome, SlotAnswer, SlotRequest, SlotsChanged

_VAIN_MAX: Final = 8
"""Counted no further: waits are not doubled any more."""


class TreeMigration(JobMoves):
    """Pure core; see the module. The first event is ``Woke``, at once."""

    def __init__(self, config: MigrationConfig, record: MigrationRecord | None = None) -> None:
        """``record``: the last that was written, or None."""
        record = record or MigrationRecord(term=0, plan=0, epoch=0)
        super().__init__(config, record)
        self._term = record.term + 1
        self._plan = record.plan
        self._plan_said = 0
        self._written = record
        self._token = 0
        self._durable = 0
        self._is_deposed = False
        self._rests = False
        """All jobs stood and all was said when a switch had something new to say last."""

    @property
    def deadline(self) -> Instant | None:
        if self._is_deposed or self._is_writing:
            return None
        if self._token == 0:
            return Instant(0)
        found = [its.at for its in self._switches.values() if its.at is not None]
        waiting = [its for its in self._jobs.values() if its.phase is Phase.BACKING_OFF]
        found += [its.retry_at for its in waiting if self._is_open(its)]
        return min(found, default=None)

    def view(self) -> MigrationView:
        return MigrationView(
            term=self._term,
            plan=self._plan,
            is_settled=self._is_settled,
            jobs=tuple(
                JobView(its.name, its.phase, its.lease, its.target, its.refusals)
                for its in self._jobs.values()
            ),
            switches=tuple(
                SwitchView(its.name, its.boot, its.held, its.is_lost) for its in self._switches.values()
            ),
            migrations=tuple(self._measured),
            counters=dict(self._counters),
        )

    def step(self, event: MigrationEvent, now: Instant) -> list[MigrationAction]:
        """Raises ``LocalMisuse`` for plans that cannot be meant and for tokens never given."""
        if self._is_deposed:
            return []
        self._rests = self._rests and self._says_nothing_new(event)
        actions: list[MigrationAction] = []
        match event:
            case PlanWanted():
                self._planned(event, now)
            case JobDrained(name, epoch):
                job = self._jobs.get(name)
                if job is not None and job.phase is Phase.DRAINING and job.drained_said == epoch:
                    self._jobs[name] = replace(job, is_drained=True)
            case JobEnded(name):
                if name in self._jobs:
                    self._jobs[name] = replace(self._jobs[name], is_ended=True)
            case FromSwitch(message):
                actions += self._heard(message, now)
            case SwitchLost(name):
                self._lost(name, now)
            case Persisted(token):
                if token > self._token:
                    raise LocalMisuse(f"token {token} was never given; the last is {self._token}")
                self._durable = max(self._durable, token)
            case Woke():
                pass
            case _:
                assert_never(event)
        return [*actions, *self._settle(now)]

    # --- what happens

    def _says_nothing_new(self, event: MigrationEvent) -> bool:
        """Whether only time has passed, or a switch holds what it held: most events by far."""
        if isinstance(event, FromSwitch) and isinstance(event.message, SlotAnswer):
            switch, answer = self._switches.get(event.message.switch), event.message
            return switch is not None and (switch.boot, switch.held) == (answer.boot, answer.held)
        return isinstance(event, Woke)

    def _planned(self, plan: PlanWanted, now: Instant) -> None:
        if plan.version <= self._plan:
            return
        names = {name for name, _ in plan.targets}
        unknown = [at for _, tree in plan.targets if tree for at in tree.switches if at not in self._switches]
        if unknown or len(names) < len(plan.targets):
            raise LocalMisuse(
                f"plan {plan.version}: unknown switches {unknown}, or a job that is there twice"
            )
        if len(names | self._jobs.keys()) > self.config.jobs_max:
            raise LocalMisuse(f"plan {plan.version}: more than {self.config.jobs_max} jobs")
        self._plan = plan.version
        for name, target in plan.targets:
            job = self._jobs.get(name)
            if job is None and target is not None:
                self._jobs[name] = Job(name, Phase.STABLE, target=target, began=now)
            elif job is not None:
                began = now if job.phase is Phase.STABLE else job.began
                self._jobs[name] = replace(job, target=target, began=began)

    def _heard(self, message: SlotAnswer | SlotsChanged, now: Instant) -> list[MigrationAction]:
        match message:
            case SlotAnswer():
                return self._answered(message, now)
            case SlotsChanged():
                return self._hinted(message.switch, now)
            case _:
                assert_never(message)

    def _answered(self, answer: SlotAnswer, now: Instant) -> list[MigrationAction]:
        switch = self._switches.get(answer.switch)
        if switch is None:
            return [Blame(answer.switch, "slots of a switch that is not there", str(answer))]
        if answer.newest_term > self._term:
            self._is_deposed = True
            return [Deposed(answer.newest_term)]
        asked = switch.asked
        if asked is None or (answer.term, answer.number) != (asked.term, asked.number):
            return []
        vain = _in_vain(switch, asked, answer)
        rests = vain > 1  # one that has started again is asked anew at once
        self._switches[switch.name] = replace(
            switch,
            boot=answer.boot,
            held=answer.held,
            asked=None,
            at=Instant(now + self.config.patience_ns(vain - 1)) if rests else None,
            tries=0,
            is_lost=False,
            vain=vain,
            rests=rests,
        )
        if asked.order is Order.ACQUIRE and asked.lease is not None and asked.lease not in answer.held:
            job = self._jobs.get(asked.lease.job)
            if job is not None and (rests or answer.outcome is not Outcome.OLD_BOOT):
                self._jobs[job.name] = replace(job, is_refused=True)
        return []

    def _hinted(self, name: str, now: Instant) -> list[MigrationAction]:
        """A hint may be old: it says to ask, and nothing else."""
        switch = self._switches.get(name)
        if switch is None:
            return [Blame(name, "slots of a switch that is not there", "a hint")]
        if switch.tries > 1:  # it did not answer as it was not there, perhaps, and is now: counted anew
            switch = replace(switch, at=now, tries=0)
        self._switches[name] = replace(switch, is_due=True)
        return []

    def _lost(self, name: str, now: Instant) -> None:
        switch = self._switches.get(name)
        if switch is None:
            return
        self._counters["switches_lost"] += not switch.is_lost
        self._switches[name] = Switch(
            name,
            number=switch.number,
            at=Instant(now + self.config.audit_ns),
            is_due=False,
            is_lost=True,
        )

    # --- what follows

    @property
    def _is_writing(self) -> bool:
        return self._durable < self._token

    def _settle(self, now: Instant) -> list[MigrationAction]:
        """Let every job go as far as it can; then say what has not been said yet, or write it first."""
        if self._is_deposed:
            return []
        if self._rests:
            return self._audit(now)
        for switch in list(self._switches.values()):
            unanswered = switch.asked is not None and switch.at is not None and switch.at <= now
            if unanswered and switch.tries >= self.config.tries_max:
                self._lost(switch.name, now)
        self._advance_all(now)
        if self._is_writing:
            return []
        record = self._record()
        if record != self._written:
            self._written = record
            self._token += 1
            return [Persist(record, self._token)]
        actions: list[MigrationAction] = []
        for job in list(self._jobs.values()):
            actions += self._said(job)
        wanted = self._wanted()
        for switch in list(self._switches.values()):
            actions += self._ask(switch, wanted.get(switch.name), now)
        if self._is_settled and self._plan_said < self._plan:
            self._plan_said = self._plan
            actions.append(PlanStands(self._plan))
        self._rests = self._is_settled
        return actions

    def _audit(self, now: Instant) -> list[MigrationAction]:
        """What :meth:`_settle` does while nothing changes, without a look at each job and each switch."""
        due = [its for its in self._switches.values() if its.at is None or its.at <= now]
        if any(its.asked is not None and its.tries >= self.config.tries_max for its in due):
            self._rests = False
            return self._settle(now)
        return [action for switch in due for action in self._ask(switch, None, now)]

    def _record(self) -> MigrationRecord:
        jobs = tuple(
            JobRecord(its.name, its.tree, its.epoch, its.target)
            for its in self._jobs.values()
            if not its.is_ended
        )
        return MigrationRecord(self._term, self._plan, self._epoch, jobs)

    def _said(self, job: Job) -> list[MigrationAction]:
        if job.phase is Phase.DRAINING and job.drained_said != job.epoch:
            self._jobs[job.name] = replace(job, drained_said=job.epoch)
            return [DrainJob(job.name, job.epoch)]
        if job.phase is Phase.STABLE and job.tree is not None and job.stands_said != job.epoch:
            self._jobs[job.name] = replace(job, stands_said=job.epoch)
            return [TreeStands(job.name, job.tree, job.epoch)]
        return []

    # --- requests

    def _ask(self, switch: Switch, wanted: Lease | None, now: Instant) -> list[MigrationAction]:
        """The request that a switch is to get now: what it has not answered, or another."""
        if switch.asked is not None:
            if switch.at is not None and now < switch.at:
                return []
            again = Instant(now + self.config.patience_ns(switch.tries + 1))
            self._switches[switch.name] = replace(switch, at=again, tries=switch.tries + 1)
            return [ToSwitch(switch.name, switch.asked)]
        if switch.rests:
            if switch.at is not None and now < switch.at:
                return []
            switch = self._switches[switch.name] = replace(switch, at=None, rests=False)
        order = self._next_order(switch, wanted, now)
        if order is None:
            if switch.at is None:
                quiet = Instant(now + self.config.audit_ns)
                self._switches[switch.name] = replace(switch, at=quiet)
            return []
        what, lease = order
        boot = "" if what is Order.ASK else switch.boot
        request = SlotRequest(self._term, switch.number + 1, boot, what, lease)
        self._switches[switch.name] = replace(
            switch,
            number=request.number,
            asked=request,
            at=Instant(now + self.config.patience_ns(1)),
            tries=1,
            is_due=switch.is_due and what is not Order.ASK,
        )
        return [ToSwitch(switch.name, request)]

    def _wanted(self) -> dict[str, Lease]:
        """What is to be acquired next at each switch; the older epoch first."""
        found: dict[str, Lease] = {}
        acquiring = [job for job in self._jobs.values() if job.phase is Phase.ACQUIRING]
        for job in sorted(acquiring, key=lambda its: its.epoch):
            at = self._next_switch(job)
            if at is not None and job.lease is not None:
                found.setdefault(at, job.lease)
        return found

    def _next_order(
        self, switch: Switch, wanted: Lease | None, now: Instant
    ) -> tuple[Order, Lease | None] | None:
        if switch.is_due or (not switch.boot and not switch.is_lost):
            return Order.ASK, None
        for lease in switch.held:
            if not self._keeps(lease):
                self._counters["strangers_freed"] += lease.job not in self._jobs
                return Order.RELEASE, lease
        if wanted is not None and not switch.is_lost:
            return Order.ACQUIRE, wanted
        return (Order.ASK, None) if switch.at is not None and switch.at <= now else None


def _in_vain(switch: Switch, asked: SlotRequest, answer: SlotAnswer) -> int:
    """How many requests in a row were answered without anything being done, this one included: as if there
    were two switches of one name, or one that does not do what it says."""
    if asked.lease is None:
        return switch.vain
    is_kept = asked.order is Order.RELEASE and asked.lease in answer.held
    return min(switch.vain + 1, _VAIN_MAX) if is_kept or answer.outcome is Outcome.OLD_BOOT else 0
