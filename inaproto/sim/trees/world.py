"""The deterministic world of trees: jobs whose trees move while the controller, switches and hosts come and
go.

The controller and its switches are the real cores of :mod:`inaproto.core.migration`; the root's rendezvous is
a model (:mod:`inaproto.sim.trees.rings`). Until ``weather_until_ns`` the world must be *safe*; then
everything heals, and it must be *live*: within ``heal_ns`` every job's ring stands where the planner has it,
by slots that are lent to it and to nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inaproto.core.migration.service_events import PlanTrees, TreesPlanned
from inaproto.sim.kernel.fates import LinkFates
from inaproto.sim.kernel.machine import Machine
from inaproto.sim.kernel.words import WorldOfWords
from inaproto.sim.kernel.world import StepCounts
from inaproto.sim.trees.checkers import TreesChecker, all_checkers
from inaproto.sim.trees.config import TreesConfig, TreesJob, Want
from inaproto.sim.trees.controller import TreesController
from inaproto.sim.trees.faults import TreesFaults
from inaproto.sim.trees.rings import switches_of
from inaproto.sim.trees.sessions import Sessions
from inaproto.sim.trees.switch import TreesRoot, TreesSwitch
from inaproto.units import MS
from inaproto.wire.messages.trees import FabricTree, TreeWished

_LOOK_EVENTS: Final = 16
_ASK_AGAIN_NS: Final = 3 * MS


@dataclass(slots=True)
class TreesSteps(StepCounts):
    """Events handed to each kind of core."""

    tree_service: int = 0
    slot_lender: int = 0
    taken_wishes: int = 0


class TreesWorld(WorldOfWords[TreesConfig, TreesChecker, Sessions]):
    """One run."""

    steps: TreesSteps

    checker_kind = TreesChecker
    all_checkers = staticmethod(all_checkers)

    def _make(self, fates: LinkFates | None) -> None:
        config = self.config
        self.steps = TreesSteps()
        self.network = Sessions(self, fates)
        self.faults = TreesFaults(self)
        self.controller = TreesController(self)
        self.root = TreesRoot(self, 1, 0)
        others = [TreesSwitch(self, 1 + index, index) for index in range(1, len(config.slots))]
        self.switches: list[TreesSwitch] = [self.root, *others]
        self._named = {switch.name: switch for switch in self.switches}
        self._jobs = {job.name: job for job in config.jobs}
        self._there: dict[str, None] = {}
        """Jobs that have begun and are not over."""
        self._away: dict[str, int] = {}
        """How often a job is away now."""
        self._plan: TreesPlanned | None = None
        """The last of this controller."""
        self._looked = 0

    # --- running

    @property
    def machines(self) -> Sequence[Machine[TreesWorld]]:
        return (self.controller, *self.switches)

    def _begin(self) -> None:
        for job in self.config.jobs:
            self.agenda.at(job.arrives_ns, self._job_begins, job)
            if job.ends_ns >= 0:
                self.agenda.at(max(job.ends_ns, job.arrives_ns + 1), self._job_ends, job)
        for want in self.config.wants:
            self.agenda.at(want.at_ns, self.want, want)

    @property
    def is_settled(self) -> bool:
        """Every ring is where it is planned, by its own slots."""
        if self.agenda.now < self.config.weather_until_ns or self.events < self._looked:
            return False
        self._looked = self.events + _LOOK_EVENTS
        return not self._amiss()

    def _overdue_rule(self) -> str:
        return "every ring comes to stand"

    def waiting(self) -> str:
        """For people: what is not as it should be at the end."""
        return "; ".join(self._amiss())

    # --- jobs

    def job_named(self, name: str) -> TreesJob:
        return self._jobs[name]

    def jobs_there(self) -> list[str]:
        """Jobs whose hosts are all there."""
        return [name for name in self._there if not self._away.get(name)]

    def comes_back(self, name: str) -> None:
        """Its hosts join the root, one after the other."""
        root = self.root
        most = self.config.generation_ns
        delay = root.draws.between(most // 4, most)

        def joins() -> None:
            if name in self._there and not self._away.get(name):
                root.joins(name)

        root.after(delay, joins)

    def goes_away(self, name: str) -> bool:
        """False: it is not there."""
        if name not in self._there:
            return False
        self._away[name] = self._away.get(name, 0) + 1
        self.root_forgets(name)
        return True

    def is_back(self, name: str) -> None:
        self._away[name] -= 1
        if self.root.is_up and name in self.jobs_there():
            self.comes_back(name)

    def root_forgets(self, name: str) -> None:
        self.hooks.job_gone(name)
        if self.root.is_up:
            self.root.leaves(name)

    def _job_begins(self, job: TreesJob) -> None:
        self._there[job.name] = None
        if self.root.is_up:
            self.comes_back(job.name)

    def _job_ends(self, job: TreesJob) -> None:
        del self._there[job.name]
        self.mark("a job ended")
        self.root_forgets(job.name)

    def refuses(self, job: TreesJob, tree: FabricTree) -> bool:
        return any(
            self.config.jobs[one.job] is job
            and self.config.fabric_tree(one.tree) == tree
            and self.agenda.now < one.until_ns
            for one in self.config.refusals
        )

    def jobs_installed_at(self, name: str) -> frozenset[str]:
        rings = self.root.rings.values() if self.root.is_up else ()
        return frozenset(
            ring.job.name
            for ring in rings
            if ring.installed is not None and name in switches_of(ring.installed.tree)
        )

    # --- people

    def want(self, want: Want) -> None:
        """Until somebody has heard it, or the job is over."""
        job = self.config.jobs[want.job]
        root = "" if want.tree < 0 else self.config.fabric_tree(want.tree).root
        is_over = job.name not in self._there and self.agenda.now > job.arrives_ns
        if is_over or self.agenda.now > self.config.weather_until_ns:
            return
        if self.controller.wants(job.name, root):
            self.mark("a person wants a job to be elsewhere")
        else:
            self.agenda.after(_ASK_AGAIN_NS, self.want, want)

    # --- whether all is as it should be

    def _amiss(self) -> list[str]:
        down = [node.name for node in (self.controller, *self.switches) if not node.is_up]
        if down or not self.controller.is_ready:
            return [f"{', '.join(down) or 'the controller'} is down"]
        view = self.controller.core.view()
        migration = view.migration
        assert migration is not None, "there are switches"
        said = [f"job {name} is not there yet" for name in self.jobs_there() if name not in self.root.rings]
        if set(view.states) != set(self.root.rings) or self._plan is None:
            return [*said, f"the controller has heard of {list(view.states)}"]
        for name, ring in self.root.rings.items():
            plan = self._plan.trees.get(name)
            state, tree = ring.state, None if ring.installed is None else ring.installed.tree
            wanted = "parked" if plan is None else "standing"
            if state != view.states[name] or ring.phase != wanted or tree != (plan and plan.tree):
                said.append(f"{name} is {state}, on {tree}, planned {plan}")
        for switch in self.switches:
            lent = sorted((one.job, one.epoch) for one in switch.held)
            due = sorted(
                (ring.job.name, ring.epoch)
                for ring in self.root.rings.values()
                if ring.installed is not None and switch.name in switches_of(ring.installed.tree)
            )
            if lent != due:
                said.append(f"{switch.name} lends {lent}, its rings are {due}")
        moving = [move for move in view.under_way if self._plan.trees.get(move.job) is not None]
        if not migration.is_settled or moving:
            said.append(f"{migration.jobs}, moves {moving}")
        if any(one.is_lost or not one.boot for one in migration.switches):
            said.append(f"{migration.switches}")
        return said

    # --- what the parts ask and tell

    def switch_named(self, name: str) -> TreesSwitch:
        return self._named[name]

    def planned(self, asked: PlanTrees, answer: TreesPlanned) -> None:
        self._plan = answer
        self.hooks.plans(asked)
        self.hooks.planned(answer)
        if asked.barred:
            self.mark("a tree that was refused is left alone")

    def wishes_taken(self, wishes: Sequence[TreeWished]) -> None:
        if not wishes and self.root.rings:
            self.mark("a new leader wished nothing yet")
