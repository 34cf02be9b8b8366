"""Coordinator, slots of switches and hosts of jobs in virtual time; a test decides on the network.

Hosts drain ``drain_ns`` after they are told to, and renew their leases as long as they use a tree. Beside the
coordinator another one hears the same, which looks at all jobs and switches each time: both say the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import (
    DrainJob,
    FromSwitch,
    JobDrained,
    JobEnded,
    MigrationAction,
    MigrationConfig,
    MigrationEvent,
    MigrationRecord,
    Persist,
    Persisted,
    PlanWanted,
    ToSwitch,
    Tree,
    TreeStands,
    Woke,
)
from inaproto.core.migration.ledger import (
    ControllerArrived,
    FromController,
    LedgerAction,
    LedgerWoke,
    NotHeld,
    Renew,
    SlotFreed,
    SlotLedger,
    SlotLedgerConfig,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.units import MS, Instant, S
from inaproto.wire.messages.slots import Lease, Order

TRIP_NS = MS
LEASE_NS = 2 * S
RENEW_NS = S // 2


def tree(switches: str, number: int = 0) -> Tree:
    """Over switches of one letter each."""
    return Tree(number or sum(1 << (ord(at) - ord("a")) for at in switches), tuple(switches))


def plan(version: int, **targets: str) -> PlanWanted:
    return PlanWanted(version, tuple((job, tree(at) if at else None) for job, at in targets.items()))


@dataclass
class Hosts:
    """Of one job."""

    uses: TreeStands | None = None
    is_alive: bool = True


class Restless(TreeMigration):
    def _says_nothing_new(self, event: MigrationEvent) -> bool:
        return False


class MigratingJobs:
    def __init__(
        self,
        switches: str,
        *,
        capacity: int = 1,
        config: MigrationConfig | None = None,
        drain_ns: int = 0,
        copies: Callable[[], list[int]] = lambda: [TRIP_NS],
    ) -> None:
        """``copies``: after how many nanoseconds each copy of a message arrives; none: it is lost."""
        self.now = Instant(0)
        self.config = config or MigrationConfig(tuple(switches), (capacity,) * len(switches))
        self.drain_ns = drain_ns
        self.copies = copies
        self.ledgers = {
            name: SlotLedger(SlotLedgerConfig(name, f"{name}1", capacity, LEASE_NS)) for name in switches
        }
        self.capacity = capacity
        self.boots = 1
        self.hosts: dict[str, Hosts] = {}
        self.disk: MigrationRecord | None = None
        self.coordinator: TreeMigration | None = None
        self.log: list[tuple[Instant, MigrationAction | SlotTaken | SlotFreed]] = []
        self._queue: list[tuple[Instant, int, Callable[[], None]]] = []
        self._serial = 0
        self.restart()

    # --- what a test does

    @property
    def core(self) -> TreeMigration:
        assert self.coordinator is not None, "the coordinator is down"
        return self.coordinator

    def restart(self) -> None:
        self.coordinator = TreeMigration(self.config, self.disk)
        self._restless = Restless(self.config, self.disk)
        self.tell(Woke())

    def crash(self) -> None:
        self.coordinator = None

    def tell(self, event: MigrationEvent) -> None:
        if self.coordinator is not None:
            actions = self.coordinator.step(event, self.now)
            assert self._restless.step(event, self.now) == actions
            assert self._restless.view() == self.coordinator.view()
            assert self._restless.deadline == self.coordinator.deadline
            self._perform(actions)

    def reboot(self, switch: str, *, says_so: bool = True) -> None:
        self.boots += 1
        boot = f"{switch}{self.boots}"
        self.ledgers[switch] = SlotLedger(SlotLedgerConfig(switch, boot, self.capacity, LEASE_NS))
        if says_so:
            self._serve(switch, self.ledgers[switch].step(ControllerArrived(), self.now))

    def die(self, job: str) -> None:
        self.hosts[job] = Hosts(is_alive=False)
        self.tell(JobEnded(job))

    def run(self, for_ns: int = 20 * S, until: Callable[[], bool] | None = None) -> bool:
        """Until the condition holds (whether it does is returned), or for that long."""
        end = self.now + for_ns
        while until is None or not until():
            at = self._next_at()
            if at is None or at > end:
                self.now = Instant(end)
                return until is None
            self.now = max(self.now, at)
            self._one()
        return True

    def settle(self, for_ns: int = 20 * S) -> bool:
        return self.run(for_ns, lambda: self.coordinator is not None and self.at_rest())

    def at_rest(self) -> bool:
        """Jobs have what they are to have, and slots are lent for just that."""
        view = self.core.view()
        if not view.is_settled:
            return False
        claims = {
            (at, job.lease)
            for job in view.jobs
            if job.lease is not None and job.target is not None
            for at in job.target.switches
        }
        held = {(name, lease) for name, its in self.ledgers.items() for lease, _ in its.view().held}
        used = {job: its.uses.epoch for job, its in self.hosts.items() if its.uses is not None}
        return held == claims and used == {job.job: job.lease.epoch for job in view.jobs if job.lease}

    def uses(self, job: str) -> TreeStands | None:
        return self.hosts[job].uses

    def held(self, switch: str) -> list[Lease]:
        return [lease for lease, _ in self.ledgers[switch].view().held]

    def orders(self, *kinds: Order) -> list[tuple[str, str]]:
        """(job, switch) of what was asked of switches, in order."""
        return [
            (action.request.lease.job, action.switch)
            for _, action in self.log
            if isinstance(action, ToSwitch) and action.request.lease and action.request.order in kinds
        ]

    # --- the world

    def _next_at(self) -> Instant | None:
        found = [self._queue[0][0]] if self._queue else []
        deadlines = [its.deadline for its in (*self.ledgers.values(), self.coordinator) if its is not None]
        return min([*found, *(at for at in deadlines if at is not None)], default=None)

    def _one(self) -> None:
        if self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
            return
        for name, ledger in self.ledgers.items():
            if ledger.deadline is not None and ledger.deadline <= self.now:
                self._serve(name, ledger.step(LedgerWoke(), self.now))
        if self.coordinator is not None and (at := self.coordinator.deadline) is not None and at <= self.now:
            self.tell(Woke())

    def later(self, delay_ns: int, act: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (Instant(self.now + delay_ns), self._serial, act))

    def _perform(self, actions: list[MigrationAction]) -> None:
        for action in actions:
            self.log.append((self.now, action))
            match action:
                case Persist(record, token):
                    self.later(0, self._written(self.core, record, token))
                case ToSwitch(name, request):
                    for delay in self.copies():
                        self.later(delay, lambda name=name, its=request: self._request(name, its))  # type: ignore[misc]
                case DrainJob(job, epoch):
                    self.later(self.drain_ns, self._drained(self.core, job, epoch))
                case TreeStands(job, _, _):
                    self._stands(job, action)
                case _:
                    pass

    def _written(self, writer: TreeMigration, record: MigrationRecord, token: int) -> Callable[[], None]:
        def act() -> None:
            if self.coordinator is writer:
                self.disk = record
                self.tell(Persisted(token))

        return act

    def _drained(self, teller: TreeMigration, job: str, epoch: int) -> Callable[[], None]:
        def act() -> None:
            if self.coordinator is teller:
                self.hosts.setdefault(job, Hosts()).uses = None
                self.tell(JobDrained(job, epoch))

        return act

    def _stands(self, job: str, order: TreeStands) -> None:
        hosts = self.hosts.setdefault(job, Hosts())
        if hosts.is_alive:
            hosts.uses = order
            self._renew(job, order)

    def _renew(self, job: str, order: TreeStands) -> None:
        if self.hosts[job].uses is not order:
            return
        lease = Lease(job, order.tree.tree_id, order.epoch)
        for name in order.tree.switches:
            self._serve(name, self.ledgers[name].step(Renew(job, lease), self.now))
        self.later(RENEW_NS, lambda: self._renew(job, order))

    def _request(self, name: str, request: object) -> None:
        self._serve(name, self.ledgers[name].step(FromController(request), self.now))  # type: ignore[arg-type]

    def _serve(self, name: str, actions: list[LedgerAction]) -> None:
        assert len(self.held(name)) <= self.capacity, "a switch lends more than it has"
        for action in actions:
            match action:
                case ToController(message):
                    for delay in self.copies():
                        self.later(delay, lambda its=message: self.tell(FromSwitch(its)))  # type: ignore[misc]
                case SlotFreed(lease, has_run_out):
                    uses = self.hosts.get(lease.job, Hosts()).uses
                    assert has_run_out or uses is None or uses.epoch != lease.epoch, f"{lease} is in use"
                    self.log.append((self.now, action))
                case SlotTaken():
                    self.log.append((self.now, action))
                case ToHost(_, NotHeld()):
                    pass
                case ToHost():
                    pass
                case _:
                    raise AssertionError(f"switch {name}: {action}")
