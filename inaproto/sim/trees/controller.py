"""The controller of a world of trees: a driver of the real core, with a disk, sessions and a planner."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, assert_never

from inaproto.core.migration.events import MigrationConfig, ToSwitch
from inaproto.core.migration.moves import JOB_OVER, STABLE, MovePhase
from inaproto.core.migration.numbers import NOTHING_STORED, StoredTrees
from inaproto.core.migration.service import TreeService
from inaproto.core.migration.service_events import (
    AgentGone,
    BegunAnew,
    HoldTurns,
    Persisted,
    PersistRoots,
    PersistTrees,
    PlacesTold,
    PlanTrees,
    Refused,
    Reported,
    RootWanted,
    ServiceAction,
    ServiceConfig,
    ServiceEvent,
    SlotsStand,
    SwitchSaid,
    TellRoot,
    Woke,
)
from inaproto.core.migration.taken_wishes import WishesCame
from inaproto.errors import Blame
from inaproto.sim.kernel.machine import Machine, Timer
from inaproto.sim.kernel.store import Store
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.trees.planner import Planner
from inaproto.sim.trees.words import ReportPage, Welcome
from inaproto.wire.messages.slots import SlotAnswer, SlotsChanged

if TYPE_CHECKING:
    from inaproto.sim.trees.sessions import Session
    from inaproto.sim.trees.switch import TreesSwitch
    from inaproto.sim.trees.world import TreesWorld

TERM: Final = "term"
TREES: Final = "trees"
ROOTS: Final = "roots"


class TreesController(Machine["TreesWorld"]):
    def __init__(self, world: TreesWorld) -> None:
        super().__init__(world, 0, "controller")
        self.store = Store(world)
        self.is_ready = False
        self.held: frozenset[str] = frozenset()
        """Jobs that have no turn."""
        self.sessions: dict[str, Session] = {}
        self._planner = Planner(world.config)

    # --- life

    def begin(self) -> None:
        """Nothing is said before its term is on disk."""
        self.is_ready = False
        self.term = self.store.disk.get(TERM, 0) + 1
        self.store.persist(TERM, self.term, self._lead)

    def lose(self) -> None:
        if self.is_ready:
            migration = self.core.view().migration
            for job in () if migration is None else migration.jobs:
                self.world.mark(f"the controller crashed while a job was {job.phase.value}")
        self.is_ready = False
        self.store.crash()
        self.sessions = {}
        self.world.network.lost_controller()

    def _lead(self) -> None:
        world, config = self.world, self.world.config
        if self.incarnation > 1:
            world.mark("the controller has started again")
        disk = self.store.disk
        migration = MigrationConfig(
            switches=tuple(switch.name for switch in world.switches),
            slots=config.slots,
            resend_ns=config.switch_resend_ns,
            tries_max=config.tries_max,
            audit_ns=config.audit_ns,
            backoff_ns=config.backoff_ns,
            backoff_max_ns=16 * config.backoff_ns,
            jitter_ns=tuple(self.draws.below(config.backoff_ns) for _ in range(8)),
        )
        self.core = TreeService(
            ServiceConfig(
                self.term,
                migration,
                root=world.root.name,
                look_ns=config.look_ns,
                resend_ns=config.resend_ns,
                bar_ns=config.bar_ns,
                bar_max_ns=config.bar_max_ns,
                absent_ns=config.absent_ns,
                forget_ns=max(config.absent_ns // 8, 1),
            ),
            disk.get(TREES, NOTHING_STORED),
            disk.get(ROOTS),
        )
        self.held = frozenset()
        self._events: deque[ServiceEvent] = deque()
        self._is_stepping = False
        self._timer = Timer(self, lambda: self.core.deadline, self._wake)
        self.is_ready = True
        self._timer.arm()

    # --- what people ask for

    def wants(self, job: str, root: str) -> bool:
        """False: ask again."""
        if not self.is_ready or job not in self.core.states:
            return False
        self.world.hooks.wants(job, root)
        self.step(RootWanted(job, root))
        return True

    @property
    def stored(self) -> StoredTrees:
        """On disk."""
        found: StoredTrees = self.store.disk.get(TREES, NOTHING_STORED)
        return found

    # --- the core

    def _wake(self) -> None:
        self.step(PlacesTold(dict.fromkeys(self.core.states, self.world.agenda.now // 1_000_000)))
        self.step(Woke())

    def step(self, event: ServiceEvent) -> None:
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._events:
            self.world.steps.tree_service += 1
            for action in self.core.step(self._events.popleft(), self.now):
                self._perform(action)
        self._is_stepping = False
        self.world.hooks.stepped(self.core.view())
        self._timer.arm()

    def _perform(self, action: ServiceAction) -> None:
        world = self.world
        match action:
            case PersistTrees(stored, token):
                world.mark("a record waits for the disk")
                self.store.persist(TREES, stored, lambda: self.step(Persisted(token)))
            case PersistRoots(roots, token):
                self.store.persist(ROOTS, roots, lambda: self._roots_written(roots, token))
            case ToSwitch(name, request):
                world.hooks.asks(request)
                self._say(name, request)
            case TellRoot(root, term, revision, wishes):
                world.hooks.tells_root(self, action)
                page = world.config.page
                parts = [wishes[at : at + page] for at in range(0, len(wishes), page)] or [()]
                for part, its in enumerate(parts):
                    self._say(root, WishesCame(term, revision, its, part, len(parts)))
            case HoldTurns(jobs):
                self.held = jobs
            case PlanTrees():
                planned = self._planner.plan(action)
                world.planned(action, planned)
                self._events.append(planned)
            case MovePhase(job, old, new, phase):
                world.note(self, "move", f"{job} {old} {new} {phase}")
                world.mark(f"a move ended: {phase}" if phase in (STABLE, JOB_OVER) else f"a move is {phase}")
            case SlotsStand(job, switches, epoch):
                world.note(self, "slots stand", f"{job} {switches} {epoch}")
                world.mark("a tree has its slots")
                [tree] = [one.tree for one in self.core.view().wishes if one.job == job]
                assert tree is not None, "it has slots for it"
                world.hooks.slots_stand(job, tree, epoch)
            case BegunAnew(newest_term):
                raise Violated("nobody is to blame", f"the only controller was deposed by term {newest_term}")
            case Refused() | Blame():
                raise Violated("nobody is to blame", f"controller: {action}")
            case _:
                assert_never(action)

    def _roots_written(self, roots: Mapping[str, str], token: int) -> None:
        self.step(Persisted(token))
        self.world.hooks.promised(dict(roots))

    # --- sessions

    def welcomes(self, session: Session) -> None:
        """The first message of a session."""
        switch = session.switch
        trees = self.core.hears_trees_of(switch.name)
        welcome = Welcome(self.world.config.slots[switch.index], trees)
        self.world.network.say(session, welcome, to_switch=True)

    def departed(self, switch: TreesSwitch) -> None:
        if self.is_ready:
            self.world.note(self, "session over", switch.name)
            self.step(AgentGone(switch.name))

    def heard(self, switch: TreesSwitch, message: Any) -> None:
        match message:
            case ReportPage(term, revision, states, more):
                self.step(Reported(switch.name, term, revision, states, more))
            case SlotAnswer() | SlotsChanged():
                self.step(SwitchSaid(switch.name, message))
            case _:
                raise AssertionError(f"controller: {message}")

    def _say(self, name: str, message: Any) -> None:
        session = self.sessions.get(name)
        if session is not None:
            self.world.network.say(session, message, to_switch=True)
