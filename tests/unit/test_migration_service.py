"""What moves trees, event by event: what no planner and no fabric can do to it."""

from __future__ import annotations

from inaproto.core.migration.events import MigrationConfig, ToSwitch
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
from inaproto.units import Instant
from inaproto.wire.messages.slots import Lease, Order, Outcome, SlotAnswer
from inaproto.wire.messages.trees import FabricTree, TreeState


class Service:
    """A core whose disk is quick, and whose only switch gives all slots that it is asked for."""

    def __init__(self, jobs_max: int) -> None:
        self.core = TreeService(ServiceConfig(1, MigrationConfig(("spine",), jobs_max=jobs_max)))
        self.now = Instant(0)
        self.held: list[Lease] = []
        self.told: list[TellRoot] = []
        self.step = Steps[ServiceEvent](self._step).post
        self.step(Woke())

    def _step(self, event: ServiceEvent) -> None:
        for action in self.core.step(event, self.now):
            self.perform(action)

    def perform(self, action: ServiceAction) -> None:
        match action:
            case PersistTrees(_, token):
                self.step(Persisted(token))
            case ToSwitch(switch, asked):
                outcome = Outcome.TOLD
                if asked.lease is not None and asked.order is Order.ACQUIRE:
                    self.held.append(asked.lease)
                    outcome = Outcome.GRANTED
                elif asked.lease is not None:
                    self.held.remove(asked.lease)
                    outcome = Outcome.RELEASED
                said = SlotAnswer(
                    switch, "b", asked.term, asked.number, outcome, tuple(self.held), asked.term
                )
                self.step(SwitchSaid(switch, said))
            case TellRoot():
                self.told.append(action)
            case PlanTrees(states):
                tree = PlannedTree(FabricTree("spine"), ("spine",))
                self.step(TreesPlanned(dict.fromkeys(states, tree)))
            case _:
                pass

    def reports(self, *jobs: str) -> None:
        states = tuple(TreeState(job, ("h0", "h1"), 0, "standing", "shared@spine") for job in jobs)
        self.step(Reported("spine", 0, 0, states))
        deadline = self.core.deadline
        assert deadline is not None
        self.now = deadline
        self.step(Woke())

    @property
    def wished(self) -> dict[str, bool]:
        """Whether it is a tree that is wished, by job."""
        return {wish.job: wish.tree is not None for wish in self.core.view().wishes}


def test_more_jobs_than_may_have_trees_wait_for_others_to_end() -> None:
    its = Service(jobs_max=2)
    its.reports("a", "b", "c", "d")
    assert its.wished == {"a": True, "b": True, "c": False, "d": False}
    its.reports("b", "c", "d")
    its.reports("b", "c", "d")
    assert its.wished == {"b": True, "c": True, "d": False}
    assert {lease.tree for lease in its.held} == {1}, "numbers of trees are not used up meanwhile"
