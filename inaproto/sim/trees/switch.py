"""A switch that lends slots, around the real cores; the first one is the root, and takes wishes as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from inaproto.core.migration.ledger import (
    CapacityTold,
    ControllerArrived,
    FromController,
    LedgerEvent,
    LedgerWoke,
    SlotFreed,
    SlotLedgerConfig,
    SlotTaken,
    ToController,
    ToHost,
)
from inaproto.core.migration.slot_lender import RingsAre, SlotLender
from inaproto.core.migration.taken_wishes import (
    Connected,
    Disconnected,
    Follow,
    Report,
    StatesAre,
    TakenWishes,
    WishesCame,
    WishEvent,
)
from inaproto.errors import Blame
from inaproto.sim.kernel.machine import Machine, Timer
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.trees.config import switch_name
from inaproto.sim.trees.rings import Ring
from inaproto.sim.trees.words import ReportPage, Welcome
from inaproto.wire.messages.slots import Lease, SlotRequest
from inaproto.wire.messages.trees import TreeWished

if TYPE_CHECKING:
    from inaproto.sim.trees.sessions import Session
    from inaproto.sim.trees.world import TreesWorld


class TreesSwitch(Machine["TreesWorld"]):
    def __init__(self, world: TreesWorld, number: int, index: int) -> None:
        super().__init__(world, number, switch_name(index))
        self.index = index
        self.session: Session | None = None
        self.held: dict[Lease, None] = {}

    def begin(self) -> None:
        config = self.world.config
        boot = f"{self.name}.{self.incarnation}"
        self.held = {}
        self._lender = SlotLender(SlotLedgerConfig(self.name, boot, lease_ns=config.slot_lease_ns), self.now)
        self._timer = Timer(self, lambda: self._lender.deadline, lambda: self.lend(LedgerWoke()))
        self._timer.arm()
        self.session = None
        self.world.network.dial(self)

    def lose(self) -> None:
        if self.held:
            self.world.mark("a switch restarted with slots taken")
        if self.session is not None:
            session, self.session = self.session, None
            self.world.network.lost_switch(session)
        for lease in self.held:
            self.world.hooks.lease_lost(self, lease)
        self.held = {}
        self.world.root.lost(self.name)

    # --- sessions

    def heard(self, message: Any) -> None:
        match message:
            case Welcome(slots, trees):
                self.lend(CapacityTold(slots))
                self.lend(ControllerArrived())
                if trees:
                    self.welcomed()
            case SlotRequest():
                self.lend(FromController(message))
            case WishesCame():
                self.wished(message)
            case _:
                raise AssertionError(f"{self.name}: {message}")

    def welcomed(self) -> None:
        """A controller welcomes it that wants to hear of trees."""

    def wished(self, message: WishesCame) -> None:
        raise AssertionError(f"{self.name} is no root: {message}")

    def disconnected(self) -> None:
        """The session is over."""

    def say(self, message: Any) -> None:
        if self.session is not None:
            self.world.network.say(self.session, message, to_switch=False)

    # --- slots

    def lend(self, event: LedgerEvent) -> None:
        self.world.steps.slot_lender += 1
        self._lender.step(RingsAre(self.world.jobs_installed_at(self.name)), self.now)
        for action in self._lender.step(event, self.now):
            match action:
                case ToController(message):
                    self.say(message)
                case SlotTaken(lease):
                    self.held[lease] = None
                    self.world.mark("a switch granted a slot")
                    self.world.hooks.slot_taken(self, lease)
                case SlotFreed(lease, has_run_out):
                    del self.held[lease]
                    if has_run_out:
                        self.world.mark("a slot's lease ran out")
                    self.world.hooks.slot_freed(self, lease, has_run_out=has_run_out)
                case ToHost():
                    pass
                case Blame():
                    raise Violated("nobody is to blame", f"{self.name}: {action}")
                case _:
                    assert_never(action)
        self._timer.arm()


class TreesRoot(TreesSwitch):
    """Jobs come to it; it knows where their rings are."""

    def begin(self) -> None:
        self.rings: dict[str, Ring] = {}
        self._wishes: dict[str, TreeWished] = {}
        self._taken = TakenWishes()
        super().begin()
        for job in self.world.jobs_there():
            self.world.comes_back(job)

    def lose(self) -> None:
        for name in list(self.rings):
            self.world.root_forgets(name)
            self.rings.pop(name).end()
        super().lose()

    def lost(self, at: str) -> None:
        """A switch has lost all its rings."""
        for ring in list(self.rings.values()):
            ring.lost(at)

    # --- jobs

    def joins(self, name: str) -> None:
        """All hosts of a job are there."""
        if self.is_up and name not in self.rings:
            ring = self.rings[name] = Ring(self.world, self.world.job_named(name))
            ring.wish(self._wishes.get(name))
            ring.begin()

    def leaves(self, name: str) -> None:
        ring = self.rings.pop(name, None)
        if ring is not None:
            ring.end()
            self.rings_changed()

    def rings_changed(self) -> None:
        if self.is_up:
            self._take(StatesAre(tuple(ring.state for ring in self.rings.values())))

    # --- wishes

    def welcomed(self) -> None:
        self._take(Connected())
        self.rings_changed()

    def disconnected(self) -> None:
        self._take(Disconnected())

    def wished(self, message: WishesCame) -> None:
        self._take(message)

    def _take(self, event: WishEvent) -> None:
        self.world.steps.taken_wishes += 1
        for action in self._taken.step(event, self.now):
            match action:
                case Follow(wishes):
                    self.world.wishes_taken(wishes)
                    self._wishes = {wish.job: wish for wish in wishes}
                    for ring in list(self.rings.values()):
                        ring.wish(self._wishes.get(ring.job.name))
                    self.rings_changed()
                case Report(term, revision, states):
                    self._report(term, revision, states)
                case _:
                    assert_never(action)

    def _report(self, term: int, revision: int, states: Any) -> None:
        page = self.world.config.page
        pages = [states[at : at + page] for at in range(0, len(states), page)] or [()]
        for number, one in enumerate(pages):
            self.say(ReportPage(term, revision, one, more=number + 1 < len(pages)))
