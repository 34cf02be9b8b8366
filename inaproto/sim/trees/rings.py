"""The rings of jobs, and the root of the fabric that follows what is wished of them.

A model of :mod:`inaproto.core.rendezvous.tree_moves`, which has worlds of its own: a ring parks when its job
has no turn, stands on another tree a while later, or is refused there; it is lost with a switch of it, and
the next generation begins where it is wished then. A job of which nothing was wished is on the fabric's own
tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inaproto.wire.messages.trees import FabricTree, TreePhase, TreeState, TreeWished

if TYPE_CHECKING:
    from inaproto.sim.trees.config import TreesJob
    from inaproto.sim.trees.world import TreesWorld

POOL: Final = "shared"


@dataclass(frozen=True, slots=True)
class Installed:
    """A ring that switches have."""

    tree: FabricTree
    epoch: int
    """Epoch of the wish for it; 0: none."""


class Ring:
    """The ring of one job, as the root knows it."""

    def __init__(self, world: TreesWorld, job: TreesJob) -> None:
        self.world, self.job = world, job
        self.hosts = (f"{job.name}-h0", f"{job.name}-h1")
        self.phase: TreePhase = "moving"
        self.epoch = 0
        self.installed: Installed | None = None
        self.is_over = False
        self._wish: TreeWished | None = None
        self._at = 0
        """Number of its present step: what was planned before is out of date."""

    @property
    def state(self) -> TreeState:
        pool = ""
        if self.installed is not None:
            root = self.installed.tree.root
            pool = POOL if root == self.world.root.name else f"{POOL}@{root}"
        return TreeState(self.job.name, self.hosts, self.epoch, self.phase, pool)

    def begin(self) -> None:
        """A generation whose hosts are all there."""
        if self._wish is None:
            self._lay(self.world.config.fabric_tree(0), 0)
        elif self._wish.tree is None:
            self._is(self._wish.epoch, "parked")
        else:
            self._lay(self._wish.tree, self._wish.epoch)

    def end(self) -> None:
        """Its job is over, or the root knows it no more."""
        self.is_over = True
        self._remove()

    def lost(self, at: str) -> None:
        """A switch has lost all its rings; the next generation begins when the hosts are together again."""
        if self.installed is not None and at in switches_of(self.installed.tree):
            self.world.mark("a ring was lost with a switch")
            self._remove()
            wish = self._wish
            is_parked = wish is not None and wish.tree is None
            self._is(self.epoch if wish is None else wish.epoch, "parked" if is_parked else "moving")
            self._later(self.world.config.generation_ns, self.begin)

    def wish(self, wish: TreeWished | None) -> None:
        self._wish = wish
        self._follow()

    def _follow(self) -> None:
        wish = self._wish
        if wish is None or self.is_over or self.phase in ("moving", "parking"):
            return
        if self.installed is not None and self.installed.tree == wish.tree:
            if wish.epoch != self.epoch:
                self.world.mark("a ring stands already where it is wished")
                self.installed = Installed(wish.tree, wish.epoch)
                self._is(wish.epoch, "standing")
        elif self.installed is not None:
            self._is(wish.epoch, "parking")
            self._later(self.world.config.park_ns, self._park)
        elif wish.tree is None:
            if (self.epoch, self.phase) != (wish.epoch, "parked"):
                self._is(wish.epoch, "parked")
        elif self.phase != "refused" or wish.epoch != self.epoch:
            self._lay(wish.tree, wish.epoch)

    def _park(self) -> None:
        """Its hosts park it once the job has no turn; without a controller turns end by themselves."""
        if self.world.controller.is_ready and self.job.name not in self.world.controller.held:
            self.world.mark("a ring is not parked, for its job has a turn")
            self._later(self.world.config.park_ns, self._park)
            return
        self.world.mark("a ring was parked")
        self._remove()
        self._is(self.epoch if self._wish is None else self._wish.epoch, "parked")
        self._follow()

    def _lay(self, tree: FabricTree, epoch: int) -> None:
        self.epoch = epoch
        if self.world.refuses(self.job, tree):
            self.world.mark("a ring was refused")
            self.world.hooks.refused(self.job.name, tree)
            self._is(epoch, "refused")
            return
        if not all(self.world.switch_named(name).is_up for name in switches_of(tree)):
            self._is(epoch, "moving")
            self._later(self.world.config.generation_ns, self.begin)
            return
        self.installed = Installed(tree, epoch)
        self.world.hooks.ring_laid(self)
        self._is(epoch, "moving")
        self._later(self.world.config.lay_ns, self._stands)

    def _stands(self) -> None:
        self.world.mark("a ring stands")
        self.world.operations_done += 1
        self._is(self.epoch, "standing")
        self._follow()

    def _remove(self) -> None:
        self._at += 1
        if self.installed is not None:
            installed, self.installed = self.installed, None
            self.world.hooks.ring_gone(self, installed)

    def _is(self, epoch: int, phase: TreePhase) -> None:
        self.epoch, self.phase = epoch, phase
        if not self.is_over:
            self.world.note(self.world.root, f"ring is {phase}", f"{self.job.name} {epoch}")
            self.world.root.rings_changed()

    def _later(self, most: int, act: Callable[[], None]) -> None:
        self._at += 1
        at, root = self._at, self.world.root

        def now() -> None:
            if self._at == at and not self.is_over:
                act()

        root.after(root.draws.between(most // 4, most), now)


def switches_of(tree: FabricTree) -> tuple[str, ...]:
    return (tree.root, *(name for name, _ in tree.above))
