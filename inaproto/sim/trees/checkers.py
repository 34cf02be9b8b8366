"""What a world of trees is checked for: slots, rings, promises, and moves that have a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from inaproto.core.migration.service_events import PlanTrees, ServiceView, TellRoot, TreesPlanned
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.trees.rings import Installed, Ring, switches_of
from inaproto.wire.messages.slots import Lease, Order, SlotRequest
from inaproto.wire.messages.trees import FabricTree

if TYPE_CHECKING:
    from inaproto.sim.trees.controller import TreesController
    from inaproto.sim.trees.switch import TreesSwitch
    from inaproto.sim.trees.world import TreesWorld


class TreesChecker:
    """Hooks; raise :class:`Violated` from any of them."""

    name: ClassVar[str] = ""

    def begin(self, world: TreesWorld) -> None:
        self.world = world

    # --- switches

    def slot_taken(self, switch: TreesSwitch, lease: Lease) -> None: ...

    def slot_freed(self, switch: TreesSwitch, lease: Lease, *, has_run_out: bool) -> None:
        """A slot is free by an order, or because nobody renewed it."""

    def lease_lost(self, switch: TreesSwitch, lease: Lease) -> None:
        """The switch has restarted."""

    # --- rings

    def ring_laid(self, ring: Ring) -> None: ...

    def ring_gone(self, ring: Ring, installed: Installed) -> None: ...

    def job_gone(self, job: str) -> None:
        """The root knows nothing of it, for ever or for a while."""

    def refused(self, job: str, tree: FabricTree) -> None: ...

    # --- the controller

    def asks(self, request: SlotRequest) -> None: ...

    def tells_root(self, controller: TreesController, told: TellRoot) -> None: ...

    def plans(self, asked: PlanTrees) -> None: ...

    def planned(self, answer: TreesPlanned) -> None: ...

    def slots_stand(self, job: str, tree: FabricTree, epoch: int) -> None: ...

    def stepped(self, view: ServiceView) -> None:
        """The core has heard of something."""

    def wants(self, job: str, root: str) -> None:
        """A person wants it to be there."""

    def promised(self, roots: dict[str, str]) -> None:
        """These are on disk, and whoever asked has been told."""

    def sample(self) -> None:
        """Now and then, between two events."""

    def end(self, world: TreesWorld) -> None:
        """All is as it should be."""


class SlotsKept(TreesChecker):
    """No switch lends more slots than it has, nor two to one job"""

    name = "slots kept"

    def slot_taken(self, switch: TreesSwitch, lease: Lease) -> None:
        held = list(switch.held)
        slots = self.world.config.slots[switch.index]
        if len(held) > slots:
            raise Violated(self.name, f"{switch.name} lends {held} of {slots} slots")
        if sum(one.job == lease.job for one in held) > 1:
            raise Violated(self.name, f"{switch.name} lends job {lease.job} two: {held}")


class RingsHaveSlots(TreesChecker):
    """A ring is laid where all switches have granted its job their slots, and nobody takes them from under
    it"""

    name = "a ring has its slots"

    def begin(self, world: TreesWorld) -> None:
        super().begin(world)
        self._granted: dict[tuple[str, str, int], bool] = {}
        """Grants by switch, job and epoch: whether one may be gone without an order of ours."""
        self._laid: dict[str, tuple[Installed, int]] = {}
        """What was laid for each job, and when."""

    def slot_taken(self, switch: TreesSwitch, lease: Lease) -> None:
        self._granted[switch.name, lease.job, lease.epoch] = False

    def lease_lost(self, switch: TreesSwitch, lease: Lease) -> None:
        self._granted[switch.name, lease.job, lease.epoch] = True

    def job_gone(self, job: str) -> None:
        for key in self._granted:
            if key[1] == job:
                self._granted[key] = True

    def stepped(self, view: ServiceView) -> None:
        """A job that is not reported is over: its slots go, also if it comes back at once by old wishes."""
        for key in self._granted:
            if view.root and key[1] not in view.states:
                self._granted[key] = True

    def slot_freed(self, switch: TreesSwitch, lease: Lease, *, has_run_out: bool) -> None:
        key = switch.name, lease.job, lease.epoch
        installed, since = self._laid.get(lease.job, (None, 0))
        is_used = (
            installed is not None
            and installed.epoch == lease.epoch
            and switch.name in switches_of(installed.tree)
        )
        is_excused = self._granted[key]
        if has_run_out:
            self._granted[key] = True
            lease_ns = self.world.config.slot_lease_ns
            is_excused |= self.world.agenda.now - since < lease_ns // 4 + 1
        if is_used and not is_excused:
            how = "ran out" if has_run_out else "was released"
            raise Violated(self.name, f"{lease} {how} at {switch.name} under its ring")

    def ring_laid(self, ring: Ring) -> None:
        installed = ring.installed
        assert installed is not None, "it is laid"
        self._laid[ring.job.name] = installed, self.world.agenda.now
        if not installed.epoch:
            return
        for name in switches_of(installed.tree):
            key = name, ring.job.name, installed.epoch
            is_held = any((one.job, one.epoch) == key[1:] for one in self.world.switch_named(name).held)
            if not is_held and not self._granted.get(key, False):
                what = "was released" if key in self._granted else "was never granted"
                raise Violated(
                    self.name, f"the ring of {ring.job.name} is laid at {name}, its slot {what}: {installed}"
                )

    def ring_gone(self, ring: Ring, installed: Installed) -> None:
        self._laid.pop(ring.job.name, None)


class PromisedOnDisk(TreesChecker):
    """What is asked of switches and told to the root is on disk"""

    name = "on disk before it is said"

    def begin(self, world: TreesWorld) -> None:
        super().begin(world)
        self._asked: dict[SlotRequest, None] = {}
        """What was on disk when it was asked for first may be repeated: the answer says what to free."""

    def asks(self, request: SlotRequest) -> None:
        lease = request.lease
        if request.order is not Order.ACQUIRE or lease is None or request in self._asked:
            return
        self._asked[request] = None
        record = self.world.controller.stored.record
        if not any(
            one.job == lease.job
            and one.epoch == lease.epoch
            and one.tree is not None
            and one.tree.tree_id == lease.tree
            for one in record.jobs
        ):
            raise Violated(self.name, f"{lease} is asked for, and on disk is {record}")

    def tells_root(self, controller: TreesController, told: TellRoot) -> None:
        epoch = controller.stored.record.epoch
        for wish in told.wishes:
            if wish.tree is not None and wish.epoch > epoch:
                raise Violated(self.name, f"{wish} is told, and on disk is epoch {epoch}")


class OneTree(TreesChecker):
    """An epoch is of one tree, and a number of a tree is never that of another"""

    name = "an epoch is of one tree"

    def begin(self, world: TreesWorld) -> None:
        super().begin(world)
        self._trees: dict[int, tuple[str, FabricTree]] = {}
        """Job and tree of each epoch."""
        self._numbers: dict[int, FabricTree] = {}

    def tells_root(self, controller: TreesController, told: TellRoot) -> None:
        for wish in told.wishes:
            if wish.tree is not None:
                one = wish.job, wish.tree
                if self._trees.setdefault(wish.epoch, one) != one:
                    raise Violated(self.name, f"epoch {wish.epoch}: {self._trees[wish.epoch]}, now {one}")
        for number, tree in controller.stored.trees.items():
            if self._numbers.setdefault(number, tree) != tree:
                raise Violated(self.name, f"tree {number}: {self._numbers[number]}, now {tree}")


class MovedForAReason(TreesChecker):
    """A job that has its tree is not moved to the same tree again unless a slot or the job was lost"""

    name = "a tree moves for a reason"

    def begin(self, world: TreesWorld) -> None:
        super().begin(world)
        self._stood: dict[str, tuple[FabricTree, int]] = {}
        self._has_reason: dict[str, bool] = {}

    def lease_lost(self, switch: TreesSwitch, lease: Lease) -> None:
        self._has_reason[lease.job] = True

    def slot_freed(self, switch: TreesSwitch, lease: Lease, *, has_run_out: bool) -> None:
        if has_run_out:
            self._has_reason[lease.job] = True

    def job_gone(self, job: str) -> None:
        self._has_reason[job] = True

    def planned(self, answer: TreesPlanned) -> None:
        for job, found in answer.trees.items():
            stood = self._stood.get(job)
            if stood is not None and (found is None or found.tree != stood[0]):
                self._has_reason[job] = True

    def stepped(self, view: ServiceView) -> None:
        switches = () if view.migration is None else view.migration.switches
        lost = {one.switch for one in switches if one.is_lost}
        for job, (tree, _) in self._stood.items():
            if (view.root and job not in view.states) or (lost and not lost.isdisjoint(switches_of(tree))):
                self._has_reason[job] = True

    def slots_stand(self, job: str, tree: FabricTree, epoch: int) -> None:
        stood = self._stood.get(job)
        if stood is not None and stood[0] == tree and stood[1] != epoch and not self._has_reason.get(job):
            raise Violated(self.name, f"job {job} had {tree} by epoch {stood[1]}, and gets it by {epoch}")
        self._stood[job] = tree, epoch
        self._has_reason[job] = False


class WishesStay(TreesChecker):
    """No wish for a tree is withdrawn while the root reports its job, and the job is on disk"""

    name = "a wish stays with its job"

    def begin(self, world: TreesWorld) -> None:
        super().begin(world)
        self._told: dict[str, None] = {}
        """Jobs that were wished to be on a tree, and have been reported since."""

    def job_gone(self, job: str) -> None:
        self._told.pop(job, None)

    def stepped(self, view: ServiceView) -> None:
        if view.root:
            self._told = {job: None for job in self._told if job in view.states}

    def tells_root(self, controller: TreesController, told: TellRoot) -> None:
        wishes = {wish.job: wish for wish in told.wishes}
        on_disk = {one.job for one in controller.stored.record.jobs}
        for job in self._told:
            if job not in wishes and job in controller.core.states and job in on_disk:
                raise Violated(self.name, f"job {job} is there, and of it nothing is wished: {told}")
        self._told = {wish.job: None for wish in told.wishes if wish.tree is not None}


class RefusedIsBarred(TreesChecker):
    """No tree is barred for a job but one that the fabric has refused it"""

    name = "only what was refused is barred"

    def begin(self, world: TreesWorld) -> None:
        super().begin(world)
        self._refused: dict[tuple[str, FabricTree], None] = {}

    def refused(self, job: str, tree: FabricTree) -> None:
        self._refused[job, tree] = None

    def plans(self, asked: PlanTrees) -> None:
        for job, trees in asked.barred.items():
            for tree in sorted(trees):
                if (job, tree) not in self._refused:
                    raise Violated(self.name, f"job {job} may not be on {tree}, which nobody refused")


class WantedKept(TreesChecker):
    """What a person was promised is not forgotten as long as the job is there"""

    name = "a promised root is kept"

    def begin(self, world: TreesWorld) -> None:
        super().begin(world)
        self._may_be: dict[str, list[str]] = {}
        """What was promised last to each job, and what was asked for since."""

    def wants(self, job: str, root: str) -> None:
        self._may_be.setdefault(job, [""]).append(root)

    def promised(self, roots: dict[str, str]) -> None:
        for job, asked in self._may_be.items():
            root = roots.get(job, "")
            if root in asked:
                self._may_be[job] = asked[asked.index(root) :]

    def job_gone(self, job: str) -> None:
        self._may_be.setdefault(job, []).append("")

    def plans(self, asked: PlanTrees) -> None:
        for job, may_be in self._may_be.items():
            if asked.wanted.get(job, "") not in may_be:
                raise Violated(
                    self.name, f"job {job} is planned at {asked.wanted.get(job, '')!r}, promised was {may_be}"
                )

    def end(self, world: TreesWorld) -> None:
        wanted = world.controller.core.view().wanted
        for job, may_be in self._may_be.items():
            if wanted.get(job, "") not in may_be:
                raise Violated(self.name, f"job {job} is wanted at {wanted.get(job)}, promised was {may_be}")


def all_checkers() -> list[TreesChecker]:
    return [
        SlotsKept(),
        RingsHaveSlots(),
        PromisedOnDisk(),
        OneTree(),
        MovedForAReason(),
        WishesStay(),
        RefusedIsBarred(),
        WantedKept(),
    ]
