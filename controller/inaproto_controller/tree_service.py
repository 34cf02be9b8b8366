"""On which tree the ring of each job on the path ``shared`` is, and how it gets to another (MINA, IV-A).

The root of the fabric reports where jobs are; :mod:`inaproto_controller.trees.shared_roots` says where they
should be; :class:`inaproto.core.tree_migration.TreeMigration` brings it about, with its record in the store
before anything is said: a job drains, all slots of its old tree are given back, those of the new one are
acquired. What it says goes two ways: to the switches, as requests for slots, and to the root, as the whole
of what is wished, level-triggered. A job that is to be nowhere has no turn meanwhile.

What is wished of jobs before this controller was started stays so until the coordinator knows what the
switches hold: a list that lacks what is yet to be found would stop jobs for nothing.

Invariants: one agent, the root, reports trees; a switch answers for its own slots; only a leader decides.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, assert_never

import trio

from inaproto.core.rendezvous_types import TreeState, TreeWished
from inaproto.core.slot_ledger import SlotAnswer, SlotsChanged
from inaproto.core.tree_migration import TreeMigration
from inaproto.core.tree_migration_types import (
    Deposed,
    DrainJob,
    FromSwitch,
    JobDrained,
    JobEnded,
    MigrationAction,
    MigrationConfig,
    MigrationEvent,
    MigrationRecord,
    MigrationView,
    Persist,
    Persisted,
    Phase,
    PlanStands,
    PlanWanted,
    SwitchLost,
    ToSwitch,
    Tree,
    TreeStands,
    Woke,
)
from inaproto.daemon.slot_records import order_message, switch_said
from inaproto.daemon.tree_records import state_of, wish_messages
from inaproto.errors import Blame, DecodeError
from inaproto.units import MS, Instant, S
from inaproto.wire.control_messages import Message
from inaproto.wire.slot_messages import SlotHint, SlotReport
from inaproto.wire.tree_messages import TreeRecord, TreeReport
from inaproto_controller.core_runner import CoreRunner, PutRecord, ToPersist
from inaproto_controller.fabric_trees import FabricTrees
from inaproto_controller.planned_options import PlannedOptions
from inaproto_controller.sharing_service import SharingService
from inaproto_controller.tree_moves import Moves
from inaproto_controller.tree_numbers import TreeNumbers
from inaproto_controller.tree_pins import PINS, TreePins
from inaproto_controller.tree_plans import TreePlans
from inaproto_controller.tree_store import StoredTrees, decode_pins, decode_record, encode_record, numbers_in

if TYPE_CHECKING:  # it takes long to load
    from inaproto_controller.paring.live_trees import LiveTrees

log = logging.getLogger("inaproto.controller")

OWNER: Final = "trees"
TERMS_MAX: Final = 1 << 32
"""No switch has heard of a term so far above ours: ours would begin after it, and run out of numbers."""
REVISIONS_MAX: Final = 1 << 32
"""No root has taken one so far above ours."""
REPORTED_MAX: Final = 1 << 14
"""Jobs of a report, but for its last page."""
LOOK_S: Final = 0.5
"""Everything is looked at so often, if nothing happens."""
JITTERS: Final = 64
TRIES_MAX: Final = 50
"""So long, 10 s, a switch that has no session is waited for before it counts as lost: after a restart of the
controller all have to find it, and who counts as lost costs its jobs their trees."""
RESEND_S: Final = 5.0
"""After which wishes that the root has not taken are sent again."""
NOTHING_STORED: Final = StoredTrees(MigrationRecord(term=0, plan=0, epoch=0), {}, 1)
MOVING: Final = ("parking", "parked", "moving")
"""Phases of a job that has no turn."""


def _now() -> Instant:
    return Instant(int(trio.current_time() * S))


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
        self._only_root = root
        self._root = ""
        """That has a session, and has reported."""
        self._states: dict[str, TreeState] | None = None
        """By job, as it has reported last; None: it has not since this controller leads."""
        self._pages: dict[str, tuple[TreeRecord, ...]] = {}
        """By agent: what it has begun to report."""
        self._taken = (0, 0)
        """Term and revision of the wishes that it took."""
        self.migrates = migrates
        self._moves = Moves(self._migrates, sharing.operation, trio.current_time)
        self._planned = None if live is None else PlannedOptions(trees, live)
        self._plans = TreePlans(trees, planned=self._planned)
        self._put_record: PutRecord | None = None
        self._term = 0
        self._look = trio.Event()
        self._news = trio.Event()
        self._deposed = trio.Event()
        self._reset(NOTHING_STORED, {})

    def _reset(self, stored: StoredTrees, pins: Mapping[str, str]) -> None:
        self._record = stored.record
        self._numbers = TreeNumbers(stored.trees, stored.next_number)
        self._pins = TreePins(pins)
        self._wishes: dict[str, TreeWished] = {}
        self._revision = 0
        self._told: tuple[TreeWished, ...] | None = None
        """The wishes of this revision."""
        self._sent_at: float | None = None
        """To the root's present session, last."""
        self._asked = 0
        """Version of the last plan."""
        self._asked_trees: tuple[Tree, ...] = ()
        """Of it."""
        self._core: TreeMigration | None = None

    # --- leading

    def lead(self, term: int, records: Mapping[str, bytes], put_record: PutRecord) -> None:
        """Nothing is known of switches yet. Raises ``ConfigError`` for records that are not ours."""
        body, pins = records.get(OWNER), records.get(PINS)
        stored = NOTHING_STORED if body is None else decode_record(body)
        self._reset(stored, {} if pins is None else decode_pins(pins))
        self._term, self._put_record = term, put_record
        self._states, self._root = None, ""
        self._pages.clear()

    async def run(self) -> None:
        """While this controller leads, until cancelled."""
        try:
            while self._trees.slots:
                await self._run_core()
            await trio.sleep_forever()
        finally:
            self._core, self._put_record = None, None

    async def _run_core(self) -> None:
        assert self._put_record is not None, "only a leader has trees"
        self._deposed = trio.Event()
        jitter = tuple(random.randrange(20 * MS) for _ in range(JITTERS))
        switches = tuple(sorted(self._trees.slots))
        slots = tuple(self._trees.slots[name] for name in switches)
        config = MigrationConfig(switches, slots, tries_max=TRIES_MAX, jitter_ns=jitter)
        core = self._core = TreeMigration(config, self._record)
        self._asked = self._record.plan
        self._runner: CoreRunner[MigrationEvent, MigrationAction] = CoreRunner(
            OWNER,
            core,
            put_record=self._put_record,
            persistence=self._persistence,
            persisted=Persisted,
            woke=Woke(),
            perform=self._perform,
            now=_now,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._runner.run)
            nursery.start_soon(self._keep_looking)
            nursery.start_soon(self._pins.forget_jobs, lambda: self._states, self._put_record)
            await self._deposed.wait()
            nursery.cancel_scope.cancel()

    def _persistence(self, action: MigrationAction) -> ToPersist | None:
        if not isinstance(action, Persist):
            return None
        self._record = action.record
        body = encode_record(action.record, self._numbers.trees, self._numbers.next)
        return ToPersist(body, action.token)

    # --- agents

    def slots(self, agent: str) -> int:
        """Leases that it may give at once."""
        return self._trees.slots.get(agent, 0)

    def hears_trees_of(self, agent: str) -> bool:
        return agent == self._only_root if self._only_root else True

    def departed(self, agent: str) -> None:
        self._pages.pop(agent, None)
        if agent == self._root:
            self._root, self._sent_at = "", None
        if agent in self._trees.slots:
            self._tell(SwitchLost(agent))

    def heard(self, agent: str, message: SlotReport | SlotHint | TreeReport) -> None:
        """Raises ``DecodeError`` for what that switch cannot say."""
        if isinstance(message, TreeReport):
            self._reported(agent, message)
            return
        if message.switch != agent:
            raise DecodeError("control", f"{message.TYPE}: switch {agent!r} speaks for {message.switch!r}")
        said = switch_said(message)
        if isinstance(said, SlotAnswer) and said.newest_term > self._record.term + TERMS_MAX:
            raise DecodeError("control", f"{message.TYPE}: there is no term {said.newest_term}")
        if isinstance(said, SlotAnswer | SlotsChanged):
            self._tell(FromSwitch(said))
            self._look_soon()

    def _reported(self, agent: str, report: TreeReport) -> None:
        if not self.hears_trees_of(agent) or (self._root and self._root != agent):
            root = self._only_root or self._root
            raise DecodeError("control", f"{report.TYPE}: trees are reported by {root!r}, not by {agent!r}")
        records = (*self._pages.pop(agent, ()), *report.trees)
        if report.more:
            if len(records) > REPORTED_MAX:
                raise DecodeError("control", f"{report.TYPE}: more than {REPORTED_MAX} jobs")
            self._pages[agent] = records
            return
        if self._core is None:
            return
        if report.term == self._term and report.revision > self._revision:
            self._go_on_after(report)
        self._root = agent
        self._states = {one.job: state_of(one) for one in records}
        self._taken = report.term, report.revision
        self._send_wishes()
        self._look_soon()

    def _go_on_after(self, report: TreeReport) -> None:
        """Of a leader before this one whose term was the same: the store has begun anew.

        What is wished now would else be older than what the root has taken, and change nothing.
        """
        if report.revision > self._revision + REVISIONS_MAX:
            raise DecodeError("control", f"{report.TYPE}: there is no revision {report.revision}")
        self._revision, self._told = report.revision, None

    # --- the coordinator

    def _tell(self, event: MigrationEvent) -> bool:
        """Whether it will hear of it. What it does not hear is said again, or asked for."""
        if self._core is None:
            return False
        try:
            self._runner.tell(event)
        except trio.WouldBlock:
            log.warning("trees: the coordinator has more to do than it can")
            return False
        return True

    def _perform(self, action: MigrationAction) -> None:
        match action:
            case ToSwitch(name, request):
                self._send(name, order_message(request))
            case DrainJob(job, epoch):
                self._wishes[job] = TreeWished(job, epoch, None)
                self._sharing.hold(self._held())
            case TreeStands(job, tree, epoch):
                # What is planned for its rate is worth that the job's rings begin anew for it.
                found, is_planned = self._numbers.trees[tree.tree_id], self._planned is not None
                self._wishes[job] = TreeWished(job, epoch, found, is_planned)
                log.info("job %s has its slots at %s, epoch %d", job, ", ".join(tree.switches), epoch)
            case Deposed(newest_term):
                # Who leads is for the store to say, and it says that it is this controller.
                log.warning("switches have heard of term %d of slots: beginning after it", newest_term)
                self._record = MigrationRecord(
                    newest_term, self._record.plan, self._record.epoch, self._record.jobs
                )
                self._deposed.set()
            case Blame():
                log.warning("trees: %s", action)
            case PlanStands() | Persist():
                pass
            case _:
                assert_never(action)
        if not isinstance(action, ToSwitch):
            self._tell_root()
        self._look_soon()

    # --- all of it, again and again

    def _look_soon(self) -> None:
        self._look.set()

    async def _keep_looking(self) -> None:
        while True:
            self._look = trio.Event()
            self._look_at_all()
            with trio.move_on_after(LOOK_S):
                await self._look.wait()

    def _look_at_all(self) -> None:
        core = self._core
        if core is None or self._states is None:
            return
        view = core.view()
        self._follow_states(view, self._states)
        targets = self._plan(view, self._states)
        self._forget(view, self._states)
        self._tell_root()
        self._sharing.hold(self._held())
        self._moves.look(view.jobs, self._states, self._wishes, targets, view.migrations)
        self._news.set()
        self._news = trio.Event()

    def _follow_states(self, view: MigrationView, states: Mapping[str, TreeState]) -> None:
        """Tell the coordinator what has become of what it waits for."""
        is_taken = self._told is not None and self._taken >= (self._term, self._revision)
        for its in view.jobs:
            state, wish = states.get(its.job), self._wishes.get(its.job)
            if state is None:
                self._tell(JobEnded(its.job))
                continue
            is_drained = is_taken and wish is not None and wish.tree is None and state.phase == "parked"
            if its.phase is Phase.DRAINING and is_drained:
                self._tell(JobDrained(its.job, self._wishes[its.job].epoch))

    def _plan(self, view: MigrationView, states: Mapping[str, TreeState]) -> dict[str, str]:
        """Ask for what should be, if that is something else. Returns the root that each job is to have."""
        if any(not switch.boot and not switch.is_lost for switch in view.switches):
            return {}
        roots = {name: self._moves.root_of(name) for name in states}
        for name, state in states.items():
            if state.epoch == 0 and state.phase == "standing" and name not in self._wishes:
                roots[name] = roots[name] or self._root_by_pool(state.pool)
                self._moves.stands(name, roots[name])
        trees = self._numbers.trees
        had = {its.job: trees.get(its.target.tree_id) for its in view.jobs if its.target is not None}
        plan = self._plans.plan(
            states,
            had={job: tree for job, tree in had.items() if tree is not None},
            held=frozenset(its.job for its in view.jobs if its.is_held),
            roots=roots,
            steps=self._sharing.steps(),
            pins=self._pins.roots,
            away=frozenset(one.switch for one in view.switches if one.is_lost),
            wishes=self._wishes,
            now=trio.current_time(),
        )
        targets = {name: None if found is None else self._tree(found) for name, found in plan.trees.items()}
        known = {its.job: its.target for its in view.jobs}
        wanted = {job: tree for job, tree in targets.items() if tree is not None or job in known}
        if view.plan >= self._asked and any(known.get(job) != tree for job, tree in wanted.items()):
            self._asked = view.plan + 1
            if not self._tell(PlanWanted(self._asked, tuple(sorted(wanted.items())))):
                self._asked = view.plan
            self._asked_trees = tuple(tree for tree in wanted.values() if tree is not None)
        for name in plan.unserved:
            if name not in known and name not in self._wishes:
                self._wishes[name] = TreeWished(name, 1, None)
        return {name: found.tree.root for name, found in plan.trees.items() if found is not None}

    def _root_by_pool(self, pool: str) -> str:
        """As pools are named: ``shared`` is that of the fabric's root, ``shared@ROOT`` of another one."""
        return pool.partition("@")[2] or self._root

    def _tree(self, found: Any) -> Tree:
        return Tree(self._numbers.of(found.tree), found.option.switches)

    def _forget(self, view: MigrationView, states: Mapping[str, TreeState]) -> None:
        """Wishes of jobs that nobody knows any more, and trees that none has."""
        known = {its.job for its in view.jobs}
        self._wishes = {job: wish for job, wish in self._wishes.items() if job in states or job in known}
        numbers = {tree.tree_id for tree in self._asked_trees}.union(numbers_in(self._record))
        for its in view.jobs:
            numbers |= {its.target.tree_id} if its.target is not None else set()
            numbers |= {its.lease.tree} if its.lease is not None else set()
        self._numbers.keep(numbers)

    # --- the root

    def _held(self) -> frozenset[str]:
        """Jobs that are to have no turn."""
        states = self._states or {}
        moving = {name for name, state in states.items() if state.phase in MOVING and name in self._wishes}
        return frozenset(moving | {name for name, wish in self._wishes.items() if wish.tree is None})

    def _tell_root(self) -> None:
        """All wishes, if they are others than those told last, and all that was promised before is known."""
        if self._core is None or any(its.phase is Phase.ADOPTING for its in self._core.view().jobs):
            return
        wishes = tuple(self._wishes[name] for name in sorted(self._wishes))
        if wishes != self._told:
            self._told, self._sent_at = wishes, None
            self._revision += 1
        self._send_wishes()

    def _send_wishes(self) -> None:
        """Unless the root has taken them, or may be about to."""
        if self._told is None or not self._root or self._taken >= (self._term, self._revision):
            return
        now = trio.current_time()
        if self._sent_at is None or now - self._sent_at >= RESEND_S:
            self._sent_at = now
            for message in wish_messages(self._term, self._revision, self._told):
                self._send(self._root, message)

    # --- people

    @property
    def jobs(self) -> list[str]:
        return sorted(self._states or {})

    def roots_for(self, job: str) -> list[str]:
        """Where its ring could be summed."""
        state = (self._states or {}).get(job)
        return [] if state is None else [one.tree.root for one in self._trees.options(state.hosts)]

    async def pin(self, job: str, root: str, put_record: PutRecord) -> None:
        """The root that the job is to have, on disk when this returns; empty: where the plan has it.

        Nobody waits for a leader that is none any more: what ``put_record`` raises goes on to the caller.
        """
        await self._pins.put(job, root, put_record)
        self._look_soon()

    async def until_at(self, job: str, root: str, wait_s: float) -> bool:
        """Whether its ring stands there, now or within that time."""
        with trio.move_on_after(wait_s):
            while not self._is_at(job, root):
                await self._news.wait()
        return self._is_at(job, root)

    def _is_at(self, job: str, root: str) -> bool:
        state, wish = (self._states or {}).get(job), self._wishes.get(job)
        if state is None or state.phase != "standing" or (self._pins.roots.get(job, root) != root):
            return False
        if wish is None:
            return self._root_by_pool(state.pool) == root
        stands = wish.tree is not None and wish.tree.root == root and state.epoch == wish.epoch
        # A report may be here that was not looked at yet.
        return stands and self._moves.has_ended_at(job, root)

    def last_move(self, job: str) -> dict[str, Any] | None:
        found = self._moves.last(job)
        return None if found is None else found.document()

    def _migrates(self, job: str, old: str, new: str, phase: str) -> None:
        log.info("job %s, from %s to %s: %s", job, old, new, phase)
        self.migrates(job, old, new, phase)

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        view = None if self._core is None else self._core.view()
        phases = {} if view is None else {its.job: its for its in view.jobs}
        states = self._states or {}
        return {
            "root": self._root,
            "revision": self._revision,
            "epoch": self._record.epoch,
            "jobs": {
                name: {
                    "hosts": list(state.hosts),
                    "root": self._moves.root_of(name),
                    "pool": state.pool,
                    "ring": state.phase,
                    "epoch": state.epoch,
                    "reason": state.reason,
                    "slots": phases[name].phase.value if name in phases else "none",
                    "wished": self._pins.roots.get(name, ""),
                    "refusals": phases[name].refusals if name in phases else 0,
                    "planned": None if self._planned is None else self._planned.document(name),
                }
                for name, state in sorted(states.items())
            },
            "switches": {
                one.switch: {
                    "slots": self._trees.slots[one.switch],
                    "is_lost": one.is_lost,
                    "lent": [{"job": lease.job, "epoch": lease.epoch} for lease in one.held],
                }
                for one in (() if view is None else view.switches)
            },
            "counters": {} if view is None else dict(view.counters),
            "moves": self._moves.status(),
        }
