"""The world of tree migration (MINA section IV-A), for the exhaustive search.

The real coordinator and the real slot ledgers (``migration_cores``) meet over a network that orders nothing:
what is under way between the coordinator and a switch is a bag of messages, any of which may be next; one
hint stands for all that say the same. A state is a short tuple of numbers into tables.

*Jobs.* What carries the coordinator's orders to the hosts of a job (sharing by two-phase commit) is one
place: the newest order replaces what was not carried out yet, and is carried out some time later,
``DrainJob`` when the operation under way has ended. An order of a coordinator that crashed may still be
carried out, but only a living one hears that it was. A job dies as a whole: with one host less its INA
operations end on none. Its renewals are not messages here: a lease runs out at any time when its job is dead,
or when no living host uses it and its coordinator never returns; else that is a fault.

*Laws.* No switch lends more slots than it has; no slot is released that a living job uses; no tree is said
to stand when a switch of it has not lent its slot (unless one restarted, or let a lease run out); nobody
blames anybody. *Finished* is a state in which every job that lives has what the newest plan gives it,
every slot that is lent is one of those, and nothing is under way; where no coordinator returns: in which
every slot that is lent is used by a living job. That each state can still become such a one says
that no slot is lent to nobody for ever, and that every fault heals.

*Faults* strike a message when it is sent (lost, or doubled) or anything at any time.

*Timers.* A request is sent again when neither it nor its answer is under way. A quiet switch is asked what it
holds when the coordinator takes it for something that it is not: to ask at other times changes nothing.

*Reductions* (compared with the full search in ``tests/sim/test_explore_migration.py``):

1. While a record is being written, that it is written comes before all else, but for a crash. Meanwhile
   the coordinator only takes note of what comes, says nothing, and so nobody can tell.
2. Messages that can change nothing any more are no longer under way: answers to a request that the
   coordinator no longer waits for; requests older than what their switch has obeyed. Numbers of requests
   never come again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import (
    Deposed,
    DrainJob,
    FromSwitch,
    JobDrained,
    JobEnded,
    MigrationAction,
    MigrationConfig,
    MigrationRecord,
    Persist,
    Persisted,
    Phase,
    PlanStands,
    SwitchLost,
    ToSwitch,
    TreeStands,
)
from inaproto.core.migration.ledger import (
    ControllerArrived,
    FromController,
    LedgerAction,
    SlotFreed,
    SlotLedger,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.errors import Blame, InvariantBroken
from inaproto.sim.explore.migration.config import MigrationWorldConfig
from inaproto.sim.explore.migration.states import (
    BROKEN,
    BUDGET,
    COORDINATOR,
    DISK,
    DOWN,
    GONE,
    PLANS,
    WRITING,
    Budget,
    MigrationStates,
    Seat,
    State,
    Step,
    key_of,
)
from inaproto.sim.explore.migration.words import told
from inaproto.wire.messages.slots import SlotRequest

Remembers = Callable[[MigrationRecord | None], MigrationRecord | None]


class MigrationWorld(MigrationStates):
    """An ``Explorable``."""

    def __init__(
        self,
        config: MigrationWorldConfig,
        coordinator: Callable[[MigrationConfig, MigrationRecord | None], TreeMigration] = TreeMigration,
        ledger: type[SlotLedger] = SlotLedger,
        remembers: Remembers = lambda record: record,
    ) -> None:
        """``remembers``: what a coordinator that returns finds on its disk, of what was written there."""
        super().__init__(config, coordinator, ledger)
        self._remembers = remembers

    # -- the Explorable ------------------------------------------------------------------------

    def initial(self) -> Iterable[State]:
        """The first plan is carried out: without faults, the first step that can be each time."""
        parts = self._at_bag + len(self.switches)
        none = self.budgets.of(self.budgets[0]._replace(faults=0))
        state: State = (DOWN, 0, 0, 0, none, *([0] * (parts - BROKEN)))
        seen = 0
        while not self.is_at_rest(state, 1):
            ways = [
                (step, after)
                for step, after in self.successors(state)
                if after[PLANS] <= 1 and step.what not in ("ends", "asks again")
            ]
            if not ways or seen > 1000:
                raise InvariantBroken("the first plan is not carried out, without any fault")
            state = ways[seen % len(ways)][1]
            seen += 1
        yield (*state[:BUDGET], 0, *state[BUDGET + 1 :])

    def is_fault(self, step: Step) -> bool:
        return bool(step.faults)

    def canonical(self, state: State) -> State:
        return state

    def violation(self, state: State) -> str | None:
        if state[BROKEN]:
            return self.words[state[BROKEN]]
        for at, ledgers in enumerate(self.ledgers):
            held = len(ledgers.cores[state[self._at_switch + at]]._held)
            if held > self.config.capacity:
                return f"switch {self.switches[at]} lends {held} slots, and has {self.config.capacity}"
        return None

    def is_finished(self, state: State) -> bool:
        if state[COORDINATOR] == GONE:
            used = self.used(state)
            held = [lease for at in range(len(self.switches)) for lease in self.ledger(state, at)._held]
            return all((lease.job, lease.epoch) in used for lease in held)
        return self.is_at_rest(state, self.plans)

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        return [told(self, state, step) for state, step in run]

    def successors(self, state: State) -> list[tuple[Step, State]]:
        found: list[tuple[Step, State]] = []
        budget = self.budgets[state[BUDGET]]
        if state[COORDINATOR] >= 0:
            if budget.has("crashes"):
                self._crash(found, state, budget)
            if state[WRITING]:
                core = self.coordinators.cores[state[COORDINATOR]]
                written = self.put(state, DISK, state[WRITING])
                self._coordinate(found, Step("writes"), written, Persisted(core._token))
                if self.config.reduced:
                    return found
            self._plan(found, state)
            self._expire(found, state)
        elif state[COORDINATOR] == DOWN:
            self._restart(found, state)
        self._network(found, state)
        for at, job in enumerate(self.jobs):
            self._seat(found, state, at, job, budget)
        for at in range(len(self.switches)):
            self._switch(found, state, at, budget)
        return found

    # -- the coordinator -----------------------------------------------------------------------

    def _coordinate(self, found: list[tuple[Step, State]], step: Step, state: State, event: object) -> None:
        local, actions = self.coordinators.step(state[COORDINATOR], event)  # type: ignore[arg-type]
        self._carry_out(found, step, self.put(state, COORDINATOR, local), actions)

    def _carry_out(
        self,
        found: list[tuple[Step, State]],
        step: Step,
        state: State,
        actions: Sequence[MigrationAction],
    ) -> None:
        after = list(state)
        if not self.coordinators.cores[after[COORDINATOR]]._is_writing:
            after[WRITING] = 0
        sent: list[tuple[int, int]] = []
        for action in actions:
            match action:
                case Persist(record, _):
                    after[WRITING] = self.records.of(record)
                case ToSwitch(switch, request):
                    sent.append((self.switches.index(switch), self.messages.of(request)))
                case DrainJob() | TreeStands():
                    at = self._at_job + self.jobs.index(action.job)
                    seat = self.seats[after[at]]
                    if isinstance(action, TreeStands):
                        self._judge_tree(after, action)
                    if seat.is_alive:
                        after[at] = self.seats.of(seat._replace(order=action, is_old=False, drained=0))
                case PlanStands():
                    pass
                case Blame() | Deposed():
                    after[BROKEN] = self.words.of(f"the coordinator says: {action}")
                case _:
                    assert_never(action)
        self._send(found, step, after, sent)

    def _judge_tree(self, after: list[int], stands: TreeStands) -> None:
        budget = self.budgets[after[BUDGET]]
        full = self.budgets[0]
        is_alive = self.job_seats(after)[stands.job].is_alive
        if not is_alive or (budget.reboots, budget.run_outs) != (full.reboots, full.run_outs):
            return
        for name in stands.tree.switches:
            ledger = self.ledger(after, self.switches.index(name))
            if not any((its.job, its.epoch) == (stands.job, stands.epoch) for its in ledger._held):
                rule = f"job {stands.job} is told that its tree stands, and switch {name} has lent it nothing"
                after[BROKEN] = self.words.of(rule)

    def _crash(self, found: list[tuple[Step, State]], state: State, budget: Budget) -> None:
        """What the disk was about to have, it has or has not."""
        for is_written in (False, True) if state[WRITING] else (False,):
            after = list(state)
            after[COORDINATOR] = DOWN
            after[DISK] = state[WRITING] if is_written else state[DISK]
            after[WRITING] = 0
            for at in range(self._at_job, self._at_bag):
                seat = self.seats[after[at]]
                is_old = seat.order is not None
                after[at] = self.seats.of(seat._replace(is_old=is_old, drained=0))
            after[BUDGET] = self.budgets.of(budget.less("crashes"))
            faults = ("crash",)
            found.append((Step("crashes", which=is_written, faults=faults), self.tidy(after)))
            if budget.no_return:
                gone = budget.less("crashes")._replace(no_return=budget.no_return - 1)
                for_ever = [*after]
                for_ever[COORDINATOR] = GONE
                for_ever[BUDGET] = self.budgets.of(gone)
                found.append((Step("is gone", which=is_written, faults=faults), self.tidy(for_ever)))

    def _restart(self, found: list[tuple[Step, State]], state: State) -> None:
        record = self._remembers(self.records[state[DISK]])
        local, actions = self.coordinators.born(record)
        self._carry_out(found, Step("restarts"), self.put(state, COORDINATOR, local), actions)

    def _plan(self, found: list[tuple[Step, State]], state: State) -> None:
        """The planner has a new plan, or says its last one to a coordinator that does not know it."""
        plans = state[PLANS]
        if plans < self.plans:
            wanted = self.config.scenario.wanted(plans)
            self._coordinate(found, Step("plans", plans + 1), self.put(state, PLANS, plans + 1), wanted)
        if self.coordinators.cores[state[COORDINATOR]]._plan < plans:
            self._coordinate(found, Step("plans", plans), state, self.config.scenario.wanted(plans - 1))

    def _expire(self, found: list[tuple[Step, State]], state: State) -> None:
        core = self.coordinators.cores[state[COORDINATOR]]
        if core._is_writing:
            return
        for at, name in enumerate(self.switches):
            known = core._switches[name]
            if known.asked is not None:
                key = (known.asked.term, known.asked.number)
                is_due = all(key != key_of(self.messages[its]) for its in self.bag(state, at))
            else:
                ledger = self.ledger(state, at)
                is_due = (known.boot, set(known.held)) != (ledger.config.boot, set(ledger._held))
            if is_due and known.at is not None:
                local, actions = self.coordinators.expire(state[COORDINATOR], name)
                self._carry_out(found, Step("asks again", at), self.put(state, COORDINATOR, local), actions)
        for at, job in enumerate(self.jobs):
            its = core._jobs.get(job)
            if its is not None and its.phase is Phase.BACKING_OFF and core._is_open(its):
                local, actions = self.coordinators.expire(state[COORDINATOR], job)
                self._carry_out(found, Step("tries again", at), self.put(state, COORDINATOR, local), actions)

    # -- the network ---------------------------------------------------------------------------

    def _network(self, found: list[tuple[Step, State]], state: State) -> None:
        for at, name in enumerate(self.switches):
            bag = self.bag(state, at)
            for index, number in enumerate(bag):
                if index and bag[index - 1] == number:
                    continue
                message = self.messages[number]
                rest = self.bags.of(bag[:index] + bag[index + 1 :])
                taken = self.put(state, self._at_bag + at, rest)
                if isinstance(message, SlotRequest):
                    local, actions = self.ledgers[at].step(
                        taken[self._at_switch + at], FromController(message)
                    )
                    lent = self.put(taken, self._at_switch + at, local)
                    self._serve(found, Step("gets", at, number), lent, at, actions)
                elif state[COORDINATOR] >= 0:
                    assert message.switch == name, "a message lies in the bag of its switch"
                    self._coordinate(found, Step("hears", at, number), taken, FromSwitch(message))
                else:
                    found.append((Step("nobody hears", at, number), self.tidy(list(taken))))

    def _serve(
        self,
        found: list[tuple[Step, State]],
        step: Step,
        state: State,
        at: int,
        actions: Sequence[LedgerAction],
    ) -> None:
        """What a switch does."""
        after = list(state)
        sent: list[tuple[int, int]] = []
        for action in actions:
            match action:
                case ToController(message):
                    sent.append((at, self.messages.of(message)))
                case SlotFreed(lease, has_run_out):
                    if not has_run_out and (lease.job, lease.epoch) in self.used(state):
                        rule = f"switch {self.switches[at]} releases the slot of {lease}, which uses it"
                        after[BROKEN] = self.words.of(rule)
                case SlotTaken() | ToHost():
                    pass
                case Blame():
                    after[BROKEN] = self.words.of(f"switch {self.switches[at]} says: {action}")
                case _:
                    assert_never(action)
        self._send(found, step, after, sent)

    def _send(
        self,
        found: list[tuple[Step, State]],
        step: Step,
        state: list[int],
        sent: Sequence[tuple[int, int]],
    ) -> None:
        """Add the step, with each choice of faults for what is sent."""
        ways: list[tuple[tuple[str, ...], tuple[tuple[int, int], ...], Budget]]
        ways = [(step.faults, (), self.budgets[state[BUDGET]])]
        for at, number in sent:
            item = (at, number)
            longer = []
            for faults, put, budget in ways:
                longer.append((faults, (*put, item), budget))
                if budget.has("losses"):
                    name = f"lost: {number}"
                    longer.append(((*faults, name), put, budget.less("losses")))
                if budget.has("duplicates"):
                    name = f"doubled: {number}"
                    longer.append(((*faults, name), (*put, item, item), budget.less("duplicates")))
            ways = longer
        for faults, put, budget in ways:
            after = state.copy()
            after[BUDGET] = self.budgets.of(budget)
            for at, number in put:
                bag = self.bags[after[self._at_bag + at]]
                after[self._at_bag + at] = self.bags.of(tuple(sorted((*bag, number))))
            found.append((step._replace(faults=faults), self.tidy(after)))

    # -- jobs and switches ---------------------------------------------------------------------

    def _seat(self, found: list[tuple[Step, State]], state: State, at: int, job: str, budget: Budget) -> None:
        place = self._at_job + at
        seat = self.seats[state[place]]
        core = self.coordinators.cores[state[COORDINATOR]] if state[COORDINATOR] >= 0 else None
        if not seat.is_alive:
            if core is not None and job in core._jobs and not core._jobs[job].is_ended:
                self._coordinate(found, Step("is heard to have ended", at), state, JobEnded(job))
            return
        dead = self.put(state, place, self.seats.of(Seat(is_alive=False)))
        if budget.has("deaths"):
            less = self.budgets.of(budget.less("deaths"))
            found.append((Step("dies", at, faults=("death",)), self.put(dead, BUDGET, less)))
        if self.config.scenario.jobs_end and seat.uses is not None:
            found.append((Step("ends", at), dead))
        after: Seat | None = None
        match seat.order:
            case TreeStands():
                after = seat._replace(uses=seat.order, order=None)
            case DrainJob(_, epoch):
                heard = 0 if seat.is_old else epoch
                after = seat._replace(uses=None, order=None, is_old=False, drained=heard)
            case None:
                pass
            case _:
                assert_never(seat.order)
        if after is not None:
            obeyed = self.seats.of(after._replace(is_old=False))
            found.append((Step("obeys", at), self.put(state, place, obeyed)))
        if seat.drained and core is not None:
            heard_of = self.put(state, place, self.seats.of(seat._replace(drained=0)))
            event = JobDrained(job, seat.drained)
            self._coordinate(found, Step("is heard to have drained", at), heard_of, event)

    def _switch(self, found: list[tuple[Step, State]], state: State, at: int, budget: Budget) -> None:
        place = self._at_switch + at
        ledgers, core = self.ledgers[at], state[COORDINATOR]
        if budget.has("reboots"):
            fresh = list(state)
            fresh[place] = ledgers.restarted(state[place])
            fresh[BUDGET] = self.budgets.of(budget.less("reboots"))
            _, actions = ledgers.step(fresh[place], ControllerArrived())
            self._serve(found, Step("reboots", at, faults=("reboot",)), tuple(fresh), at, actions)
        name = self.switches[at]
        if budget.has("outages") and core >= 0 and not self.coordinators.cores[core]._switches[name].is_lost:
            less = self.put(state, BUDGET, self.budgets.of(budget.less("outages")))
            self._coordinate(found, Step("is lost", at, faults=("outage",)), less, SwitchLost(name))
        seats = self.job_seats(state)
        for lease in self.ledger(state, at)._held:
            if not self.ledger(state, at).deadline:
                continue
            seat = seats[lease.job]
            used = seat.uses is not None and seat.uses.epoch == lease.epoch
            will_use = isinstance(seat.order, TreeStands) and seat.order.epoch == lease.epoch
            is_free = not seat.is_alive or (core == GONE and not used and not will_use)
            if not is_free and not budget.has("run_outs"):
                continue
            local, actions = ledgers.run_out(state[place], lease)
            after = list(state)
            after[place] = local
            if not is_free:
                after[BUDGET] = self.budgets.of(budget.less("run_outs"))
            faults = () if is_free else ("run-out",)
            which = self.words.of(str(lease))
            self._serve(found, Step("lets run out", at, which, faults), tuple(after), at, actions)
