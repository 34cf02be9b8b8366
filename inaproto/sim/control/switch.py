"""A switch of the control world: its slots, lent by the product's ledger, and the pools of its trees.

What a job puts into a pool is taken in only while the job's tree has a slot here, and only under an epoch
that is not stale (:mod:`inaproto.sim.control.pool`). A switch that restarts has neither slots nor pools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from inaproto.core.migration.ledger import (
    ControllerArrived,
    FromController,
    LedgerAction,
    LedgerEvent,
    LedgerWoke,
    Renew,
    SlotFreed,
    SlotLedger,
    SlotLedgerConfig,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.errors import Blame
from inaproto.sim.control.node import Node
from inaproto.sim.control.pool import Pool
from inaproto.sim.control.words import ControllerIsHere
from inaproto.sim.kernel.machine import Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.messages.slots import Lease, SlotRequest

if TYPE_CHECKING:
    from inaproto.sim.control.world import ControlWorld


class ControlSwitch(Node):
    def __init__(self, world: ControlWorld, number: int, index: int) -> None:
        super().__init__(world, number, f"switch{index}")
        self.index = index
        self.capacity = world.config.switches[index]
        self.rings: dict[Lease, None] = {}
        """Leases of jobs that have a slot."""
        self.pools: dict[int, Pool] = {}
        """Pools by tree."""

    def begin(self) -> None:
        config = self.world.config
        boot = f"{self.name}.{self.incarnation}"
        self.ledger = SlotLedger(
            SlotLedgerConfig(self.name, boot, capacity=self.capacity, lease_ns=config.slot_lease_ns)
        )
        self.timer = Timer(self, lambda: self.ledger.deadline, lambda: self._step(LedgerWoke()))
        self.pools = {
            tree: Pool(tree, config.pools[tree])
            for tree, switches in enumerate(config.trees)
            if self.index in switches
        }
        if self.incarnation > 1:
            self._step(ControllerArrived())

    def lose(self) -> None:
        if self.rings:
            self.world.mark("a switch restarted with slots taken")
        for lease in self.rings:
            self.world.hooks.ring_removed(self, lease)
        self.rings, self.pools = {}, {}

    def received(self, source: Node, message: Any) -> None:
        match message:
            case SlotRequest():
                self._step(FromController(message))
            case Renew():
                self._step(message)
            case ControllerIsHere():
                self._step(ControllerArrived())
            case _:
                raise AssertionError(f"{self.name}: {message}")

    def _step(self, event: LedgerEvent) -> None:
        self.world.steps.slot_ledger += 1
        for action in self.ledger.step(event, self.now):
            self._perform(action)
        self.timer.arm()

    def _perform(self, action: LedgerAction) -> None:
        world = self.world
        match action:
            case ToController(message):
                self.send(world.controller, message)
            case ToHost(host, word):
                self.send(world.host_named(host), word)
            case SlotTaken(lease):
                self.rings[lease] = None
                world.mark("a switch granted a slot")
                world.hooks.slot_taken(self, lease)
            case SlotFreed(lease, has_run_out):
                del self.rings[lease]
                if has_run_out:
                    world.mark("a slot's lease ran out")
                world.hooks.slot_freed(self, lease, has_run_out=has_run_out)
                world.hooks.ring_removed(self, lease)
            case Blame():
                raise Violated("nobody is to blame", f"{self.name}: {action}")
            case _:
                assert_never(action)
