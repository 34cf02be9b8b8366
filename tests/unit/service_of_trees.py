"""What moves the trees of jobs, with two switches, a disk, and a planner that says what a test has said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inaproto.core.migration.events import MigrationConfig, ToSwitch
from inaproto.core.migration.numbers import NOTHING_STORED, StoredTrees
from inaproto.core.migration.service import TreeService
from inaproto.core.migration.service_events import (
    Persisted,
    PersistTrees,
    PlannedTree,
    PlanTrees,
    Reported,
    ServiceAction,
    ServiceConfig,
    ServiceEvent,
    SwitchSaid,
    TellRoot,
    TreesPlanned,
    Woke,
)
from inaproto.core.steps import Steps
from inaproto.units import Instant, S
from inaproto.wire.messages.slots import Lease, Order, Outcome, SlotAnswer, SlotRequest
from inaproto.wire.messages.trees import FabricTree, TreePhase, TreeState

SPINE, SPINE1 = (PlannedTree(FabricTree(root), (root,)) for root in ("spine", "spine1"))
SWITCHES = ("spine", "spine1")


def state(
    job: str = "a", epoch: int = 0, phase: TreePhase = "standing", *, pool: str = "shared"
) -> TreeState:
    return TreeState(job, ("h0", "h1"), epoch, phase, pool)


class Service:
    """A core whose disk is quick, and whose switches give all slots that they are asked for."""

    def __init__(
        self,
        jobs_max: int = 2,
        stored: StoredTrees = NOTHING_STORED,
        wanted: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> None:
        migration = MigrationConfig(SWITCHES, jobs_max=jobs_max, audit_ns=1000 * S)
        self.config = replace(ServiceConfig(1, migration), **changes)
        self.core = TreeService(self.config, stored, wanted)
        self.now = Instant(0)
        self.held: dict[str, list[Lease]] = {name: [] for name in SWITCHES}
        self.silent: set[str] = set()
        """Switches that do not answer."""
        self.plan: dict[str, PlannedTree | None] = {}
        """All others get the spine."""
        self.unserved: tuple[str, ...] = ()
        self.is_disk_quick = True
        self.log: list[ServiceAction] = []
        self.step = Steps[ServiceEvent](self._step).post
        self.wakes()

    def _step(self, event: ServiceEvent) -> None:
        for action in self.core.step(event, self.now):
            self.log.append(action)
            self.perform(action)

    def perform(self, action: ServiceAction) -> None:
        match action:
            case PersistTrees(_, token) if self.is_disk_quick:
                self.step(Persisted(token))
            case ToSwitch(switch, asked) if switch not in self.silent:
                self.step(SwitchSaid(switch, self.answer(switch, asked)))
            case PlanTrees(states):
                trees = {job: self.plan.get(job, SPINE) for job in states if job not in self.unserved}
                self.step(TreesPlanned(trees, self.unserved))
            case _:
                pass

    def answer(self, switch: str, asked: SlotRequest) -> SlotAnswer:
        held, outcome = self.held[switch], Outcome.TOLD
        if asked.lease is not None and asked.order is Order.ACQUIRE:
            held.append(asked.lease)
            outcome = Outcome.GRANTED
        elif asked.lease is not None:
            held.remove(asked.lease)
            outcome = Outcome.RELEASED
        return SlotAnswer(switch, "b", asked.term, asked.number, outcome, tuple(held), asked.term)

    def does(self, *events: ServiceEvent) -> list[ServiceAction]:
        """What it orders, but for what the harness answers at once."""
        before = len(self.log)
        for event in events:
            self.step(event)
        return [one for one in self.log[before:] if not isinstance(one, PersistTrees | ToSwitch | PlanTrees)]

    def hears(
        self, *states: TreeState, taken: tuple[int, int] = (0, 0), after_ns: int = 0
    ) -> list[ServiceAction]:
        """Of a root's report, and looks at it."""
        self.now = Instant(self.now + after_ns)
        return [*self.does(Reported("spine", *taken, states)), *self.wakes()]

    def wakes(self, after_ns: int = 0) -> list[ServiceAction]:
        """Until there is nothing to do at that time."""
        self.now = Instant(self.now + after_ns)
        found: list[ServiceAction] = []
        while (at := self.core.deadline) is not None and at <= self.now:
            found += self.does(Woke())
        return found

    def reports(self, *jobs: str) -> None:
        self.hears(*(state(job, pool="shared@spine") for job in jobs))

    @property
    def asked(self) -> PlanTrees:
        """The last that the planner was asked."""
        return [one for one in self.log if isinstance(one, PlanTrees)][-1]

    @property
    def told(self) -> TellRoot:
        return [one for one in self.log if isinstance(one, TellRoot)][-1]

    @property
    def written(self) -> StoredTrees:
        return [one for one in self.log if isinstance(one, PersistTrees)][-1].stored

    @property
    def taken(self) -> tuple[int, int]:
        """What a root says that has taken all that it was told."""
        return self.told.term, self.told.revision

    @property
    def wished(self) -> dict[str, bool]:
        """Whether it is a tree that is wished, by job."""
        return {wish.job: wish.tree is not None for wish in self.core.view().wishes}

    def stands(self) -> None:
        """Job a has its ring on the spine, by a wish."""
        self.reports("a")
        self.hears(state("a", 1), taken=(1, 2))

    def leaves(self) -> None:
        """And is to have it on the other spine."""
        self.stands()
        self.plan["a"] = SPINE1
        self.wakes(after_ns=self.config.look_ns)
