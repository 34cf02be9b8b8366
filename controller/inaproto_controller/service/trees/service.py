"""On which tree the ring of each job on the path ``shared`` is: the driver of the core that decides it.

:class:`inaproto.core.migration.service.TreeService` has all rules. Here are its sockets, its store, its log,
and the planner (:mod:`inaproto_controller.service.trees.plans`) that it asks: what agents say becomes events,
at once; what is to be on disk is written by one task, in order; another one wakes the core at its deadline.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, assert_never

import trio

from inaproto.core.migration import service
from inaproto.core.migration.events import MigrationConfig, ToSwitch
from inaproto.core.migration.moves import Move, MovePhase
from inaproto.core.migration.numbers import NOTHING_STORED
from inaproto.core.migration.service_events import (
    AgentGone,
    BegunAnew,
    HoldTurns,
    Persisted,
    PersistRoots,
    PersistTrees,
    PlacesTold,
    PlannedTree,
    PlanTrees,
    Refused,
    Reported,
    RootsNotPersisted,
    RootWanted,
    ServiceAction,
    ServiceConfig,
    ServiceEvent,
    SlotsStand,
    SwitchSaid,
    TellRoot,
    TreesPlanned,
    Woke,
)
from inaproto.core.steps import Steps
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.daemon.switch.tree_records import wish_messages
from inaproto.errors import Blame, DecodeError
from inaproto.units import MS
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.slots import SlotAnswer, SlotsChanged
from inaproto.wire.messages.trees import TreeReport
from inaproto_controller.planning.fabric_trees import FabricTrees
from inaproto_controller.planning.paring.live_tree import LivePlace
from inaproto_controller.planning.planned_options import PlannedOptions
from inaproto_controller.service.store.records import PutRecord
from inaproto_controller.service.trees.plans import TreePlans
from inaproto_controller.service.trees.store import decode_pins, decode_record, encode_pins, encode_record
from inaproto_controller.service.turns.service import SharingService

if TYPE_CHECKING:  # it takes long to load
    from inaproto_controller.planning.paring.live_trees import LiveTrees

log = logging.getLogger("inaproto.controller")

OWNER: Final = "trees"
PINS: Final = "tree-roots"
JITTERS: Final = 64
TRIES_MAX: Final = 6
"""So long, 10 s, a switch that has no session is waited for before it counts as lost: after a restart of the
controller all have to find it, and who counts as lost costs its jobs their trees."""


class TreeService:
    """``send`` takes a message to an agent, or loses it. ``root``: the switch whose word on trees counts;
    empty: the first one that says something. ``live``: who plans trees, if they are not those of a job's
    nearest roots. ``migrates`` hears of moves: job, old root, new root, phase."""

    def __init__(
        self,
        send: Callable[[str, Message], None],
        sharing: SharingService,
        trees: FabricTrees,
        *,
        root: str = "",
        live: LiveTrees | None = None,
        migrates: Callable[[str, str, str, str], None] = lambda job, old, new, phase: None,
    ) -> None:
        self._send, self._sharing, self._trees = send, sharing, trees
        self._root = root
        self.migrates = migrates
        self._planned = None if live is None else PlannedOptions(trees, live)
        self._plans = TreePlans(trees, planned=self._planned)
        self._put_record: PutRecord | None = None
        """None: this controller does not lead, and the core is told to nobody."""
        self._core = service.TreeService(self._config(0))
        self._steps = Steps[ServiceEvent](self._step_core)
        self._alarm = Alarm(lambda: self._core.deadline, self._wake)
        self._refused = ""
        """Why what an agent has just said cannot be."""
        self._roots_to_write: deque[PersistRoots] = deque()
        self._roots_due = 0
        """The token up to which the writer is to write roots; 0: none."""
        self._trees_to_write: PersistTrees | None = None
        """The record that is to be written next. One coordinator has one under way; a later one's takes the
        place of an earlier one's, which nobody waits for any more."""
        self._one_write = trio.Lock()
        """Lock of writes of roots: those that were wanted first are written first."""
        self._news = trio.Event()

    def _config(self, term: int) -> ServiceConfig:
        switches = tuple(sorted(self._trees.slots))
        migration = (
            MigrationConfig(
                switches,
                tuple(self._trees.slots[name] for name in switches),
                tries_max=TRIES_MAX,
                jitter_ns=tuple(random.randrange(20 * MS) for _ in range(JITTERS)),
            )
            if switches
            else None
        )
        return ServiceConfig(term, migration, self._root, begins_anew=self._planned is not None)

    # --- leading

    def lead(self, term: int, records: Mapping[str, bytes], put_record: PutRecord) -> None:
        """Nothing is known of switches yet. Raises ``ConfigError`` for records that are not ours."""
        body, pins = records.get(OWNER), records.get(PINS)
        stored = NOTHING_STORED if body is None else decode_record(body)
        wanted = {} if pins is None else decode_pins(pins)
        self._core = service.TreeService(self._config(term), stored, wanted)
        self._put_record = put_record
        self._roots_to_write.clear()
        self._roots_due = 0
        self._trees_to_write = None
        self._is_to_write = trio.Event()

    async def run(self) -> None:
        """While this controller leads, until cancelled."""
        put_record = self._put_record
        assert put_record is not None, "only a leader has trees"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_writing, put_record)
                nursery.start_soon(self._alarm.run)
        finally:
            self._put_record = None

    async def _keep_writing(self, put_record: PutRecord) -> None:
        while True:
            await self._is_to_write.wait()
            self._is_to_write = trio.Event()
            while (due := self._trees_to_write) is not None:
                self._trees_to_write = None
                await put_record(OWNER, encode_record(due.stored))
                self._step(Persisted(due.token))
            until, self._roots_due = self._roots_due, 0
            if until:
                await self._write_roots(until, put_record)

    def _wake(self) -> None:
        self._step(PlacesTold(self._places()))
        self._step(Woke())
        if self._roots_to_write:
            self._roots_due = self._roots_to_write[-1].token
            self._is_to_write.set()

    def _places(self) -> dict[str, int]:
        places = ((job, self._sharing.operation(job)) for job in self._core.states)
        return {job: place for job, place in places if place is not None}

    async def _write_roots(self, until: int, put_record: PutRecord) -> None:
        """Write those with tokens up to ``until`` that are not written yet, in their order."""
        async with self._one_write:
            while self._roots_to_write and self._roots_to_write[0].token <= until:
                due = self._roots_to_write.popleft()
                try:
                    await put_record(PINS, encode_pins(due.roots))
                except BaseException:
                    self._step(RootsNotPersisted(due.token))
                    raise
                self._step(Persisted(due.token))

    # --- the core

    def _step(self, event: ServiceEvent) -> None:
        """Tell the core, and do what it says; what that leads to at once is told next."""
        if self._steps.post(event):
            self._alarm.look()
            self._news.set()
            self._news = trio.Event()

    def _step_core(self, event: ServiceEvent) -> None:
        for action in self._core.step(event, current_instant()):
            self._perform(action)

    def _perform(self, action: ServiceAction) -> None:
        """Only enqueues."""
        if isinstance(action, Refused):
            self._refused = action.why
            return
        if isinstance(action, PersistRoots):
            self._roots_to_write.append(action)
            return
        if self._put_record is None:
            return
        match action:
            case PersistTrees():
                self._trees_to_write = action
                self._is_to_write.set()
            case ToSwitch(name, request):
                self._send(name, request)
            case TellRoot(root, term, revision, wishes):
                for message in wish_messages(term, revision, wishes):
                    self._send(root, message)
            case HoldTurns(jobs):
                self._sharing.hold(jobs)
            case PlanTrees():
                self._steps.post(self._plan(action))
            case MovePhase(job, old, new, phase):
                log.info("job %s, from %s to %s: %s", job, old, new, phase)
                self.migrates(job, old, new, phase)
            case SlotsStand(job, switches, epoch):
                log.info("job %s has its slots at %s, epoch %d", job, ", ".join(switches), epoch)
            case BegunAnew(newest_term):
                log.warning("switches have heard of term %d of slots: beginning after it", newest_term)
            case Blame():
                log.warning("trees: %s", action)
            case _:
                assert_never(action)

    def promise(self, places: Mapping[str, LivePlace]) -> None:
        """Hosts and trees that were planned together: a ring on these hosts gets that tree."""
        if self._planned is not None:
            self._planned.promised = places

    @property
    def rings(self) -> Mapping[str, LivePlace]:
        """Hosts and trees of all rings."""
        return {} if self._planned is None else self._planned.rings()

    def _plan(self, asked: PlanTrees) -> TreesPlanned:
        plan = self._plans.plan(
            asked.states,
            had=asked.had,
            held=asked.held,
            roots=asked.roots,
            steps=self._sharing.steps(),
            pins=asked.wanted,
            away=asked.away,
            barred=asked.barred,
        )
        trees = {
            job: None if found is None else PlannedTree(found.tree, found.option.switches)
            for job, found in plan.trees.items()
        }
        return TreesPlanned(trees, plan.unserved)

    # --- agents

    def slots(self, agent: str) -> int:
        """Leases that it may give at once."""
        return self._trees.slots.get(agent, 0)

    def hears_trees_of(self, agent: str) -> bool:
        return self._core.hears_trees_of(agent)

    def departed(self, agent: str) -> None:
        self._step(AgentGone(agent))

    def heard(self, agent: str, message: SlotAnswer | SlotsChanged | TreeReport) -> None:
        """Raises ``DecodeError`` for what that switch cannot say."""
        if isinstance(message, TreeReport):
            states = message.trees
            self._step(Reported(agent, message.term, message.revision, states, message.more))
        else:
            self._step(SwitchSaid(agent, message))
        why, self._refused = self._refused, ""
        if why:
            raise DecodeError("control", f"{message.TYPE}: {why}")

    # --- people

    @property
    def jobs(self) -> list[str]:
        return sorted(self._core.states)

    def roots_for(self, job: str) -> list[str]:
        """Where its ring could be summed."""
        state = self._core.states.get(job)
        return [] if state is None else [one.tree.root for one in self._trees.options(state.hosts)]

    async def pin(self, job: str, root: str, put_record: PutRecord) -> None:
        """The root that the job is to have, on disk when this returns; empty: where the plan has it.

        Nobody waits for a leader that is none any more: what ``put_record`` raises goes on to the caller.
        """
        self._step(RootWanted(job, root))
        await self._write_roots(self._roots_to_write[-1].token, put_record)

    async def until_at(self, job: str, root: str, wait_s: float) -> bool:
        """Whether its ring stands there, now or within that time."""
        with trio.move_on_after(wait_s):
            while not self._core.is_at(job, root):
                await self._news.wait()
        return self._core.is_at(job, root)

    def last_move(self, job: str) -> dict[str, Any] | None:
        found = self._core.last_move(job)
        return None if found is None else _document(found)

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        view = self._core.view()
        trees = None if self._put_record is None else view.migration
        phases = {} if trees is None else {its.job: its for its in trees.jobs}
        return {
            "root": view.root,
            "revision": view.revision,
            "epoch": view.epoch,
            "jobs": {
                name: {
                    "hosts": list(state.hosts),
                    "root": view.at[name],
                    "pool": state.pool,
                    "ring": state.phase,
                    "epoch": state.epoch,
                    "reason": state.reason,
                    "slots": phases[name].phase.value if name in phases else "none",
                    "wished": view.wanted.get(name, ""),
                    "refusals": phases[name].refusals if name in phases else 0,
                    "planned": None if self._planned is None else self._planned.document(name),
                }
                for name, state in view.states.items()
            },
            "switches": {
                one.switch: {
                    "slots": self._trees.slots[one.switch],
                    "is_lost": one.is_lost,
                    "lent": [{"job": lease.job, "epoch": lease.epoch} for lease in one.held],
                }
                for one in (() if trees is None else trees.switches)
            },
            "counters": {} if trees is None else dict(trees.counters),
            "moves": {
                "under_way": [_document(move) for move in view.under_way],
                "done": [_document(move) for move in view.done],
            },
        }


def _document(move: Move) -> dict[str, Any]:
    fields = asdict(move)
    for name in ("parked", "acquired", "operation"):
        del fields[name]
    return {**fields, "downtime_s": move.downtime_s}
