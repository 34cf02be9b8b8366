"""On which tree the ring of each job on the path ``shared`` is, and how it moves (MINA section IV-A).

The root of the fabric reports where jobs are; a planner says where they should be, when it is asked;
:class:`~inaproto.core.migration.coordinator.TreeMigration` brings it about, with its record on disk before
anything is said: a job drains, all slots of its old tree are given back, those of the new one are acquired.
What it says goes two ways: to the switches, as requests for slots, and to the root, as the whole of what is
wished, level-triggered. A job that is to be nowhere has no turn meanwhile.

What is wished of jobs before this leader came stays so until the coordinator knows what the switches hold: a
list that lacks what is yet to be found would stop jobs for nothing.

Departure from the paper: MINA has one planner that knows where all jobs are; here a root says so, and may
stop to say it. Nothing is concluded from what was sent, only from what was reported: a job has drained when
the root has taken the wishes that say so and reports its ring as parked.

Invariants: one agent, the root, reports trees; a switch answers for its own slots; wishes of one revision
never differ, and a newer list has a greater one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never

from inaproto.core.migration.bars import Bars
from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import (
    Deposed,
    DrainJob,
    FromSwitch,
    JobDrained,
    JobEnded,
    MigrationEvent,
    MigrationRecord,
    MigrationView,
    Persist,
    Phase,
    PlanStands,
    PlanWanted,
    SwitchLost,
    ToSwitch,
    Tree,
    TreeStands,
)
from inaproto.core.migration.events import Persisted as RecordPersisted
from inaproto.core.migration.events import Woke as MigrationWoke
from inaproto.core.migration.moves import Move, Moves
from inaproto.core.migration.numbers import NOTHING_STORED, StoredTrees, TreeNumbers, numbers_in
from inaproto.core.migration.service_events import (
    REPORTED_MAX,
    REVISIONS_MAX,
    TERMS_MAX,
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
    ServiceView,
    SlotsStand,
    SwitchSaid,
    TellRoot,
    TreesPlanned,
    Woke,
)
from inaproto.core.migration.wanted_roots import WantedRoots
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.messages.slots import SlotAnswer
from inaproto.wire.messages.trees import TreeState, TreeWished

MOVING: Final = ("parking", "parked", "moving")
"""Phases of a job that has no turn."""


class TreeService:
    """Pure core; see the module. The first event is ``Woke``, at once."""

    def __init__(
        self,
        config: ServiceConfig,
        stored: StoredTrees = NOTHING_STORED,
        wanted: Mapping[str, str] | None = None,
    ) -> None:
        """``stored`` and ``wanted``: what was persisted last."""
        self.config = config
        self._record = stored.record
        self._numbers = TreeNumbers(stored.trees, stored.next_number)
        self._wanted = WantedRoots(wanted or {}, config.absent_ns)
        self._migration = None if config.migration is None else TreeMigration(config.migration, stored.record)
        self._slots = frozenset(() if config.migration is None else config.migration.switches)
        self._root = ""
        self._states: dict[str, TreeState] | None = None
        """States by job, as the root has reported last; None: it has not since this leader came."""
        self._pages: dict[str, tuple[TreeState, ...]] = {}
        """What each agent has begun to report."""
        self._taken = (0, 0)
        self._wishes: dict[str, TreeWished] = {}
        self._revision = 0
        self._told: tuple[TreeWished, ...] | None = None
        """The wishes of this revision."""
        self._sent_at: Instant | None = None
        """When the root's present session was told last."""
        self._held_told: frozenset[str] | None = None
        self._moves = Moves()
        self._bars = Bars(config.bar_ns, config.bar_max_ns)
        self._places: Mapping[str, int] = {}
        self._token = 0
        self._record_tokens: dict[int, int] = {}
        """Tokens of the coordinator's records, by the tokens that they were given here."""
        self._roots_tokens: dict[int, dict[str, str]] = {}
        self._look_at: Instant | None = None
        self._forget_at: Instant | None = None

    # --- what it is

    @property
    def deadline(self) -> Instant | None:
        if self._migration is None:
            return None
        found = (self._migration.deadline, self._look_at, self._forget_at)
        return min((at for at in found if at is not None), default=None)

    def view(self) -> ServiceView:
        states = dict(sorted((self._states or {}).items()))
        return ServiceView(
            root=self._root,
            revision=self._revision,
            taken=self._taken,
            epoch=self._record.epoch,
            states=states,
            at={name: self._moves.root_of(name) for name in states},
            wanted=self._wanted.durable,
            wishes=tuple(self._wishes[name] for name in sorted(self._wishes)),
            migration=None if self._migration is None else self._migration.view(),
            under_way=self._moves.under_way,
            done=self._moves.done,
        )

    @property
    def states(self) -> Mapping[str, TreeState]:
        """What the root has reported last, by job."""
        return self._states or {}

    def hears_trees_of(self, agent: str) -> bool:
        return agent == self.config.root if self.config.root else True

    def is_at(self, job: str, root: str) -> bool:
        """Whether a job's ring stands there, and nobody wants it elsewhere."""
        state, wish = self.states.get(job), self._wishes.get(job)
        if state is None or state.phase != "standing" or (self._wanted.durable.get(job, root) != root):
            return False
        if wish is None:
            return self._root_by_pool(state.pool) == root
        stands = wish.tree is not None and wish.tree.root == root and state.epoch == wish.epoch
        # A report may be here that was not looked at yet.
        return stands and self._moves.has_ended_at(job, root)

    def last_move(self, job: str) -> Move | None:
        return self._moves.last(job)

    # --- what happens

    def step(self, event: ServiceEvent, now: Instant) -> list[ServiceAction]:
        """Raises ``LocalMisuse`` for tokens never given."""
        match event:
            case SwitchSaid():
                return self._heard(event, now)
            case AgentGone(agent):
                return self._gone(agent, now)
            case Reported():
                return self._reported(event, now)
            case PlacesTold(places):
                self._places = dict(places)
                return []
            case TreesPlanned():
                return self._planned(event, now)
            case RootWanted(job, root):
                return [self._persist_roots(self._wanted.want(job, root))]
            case Persisted(token):
                return self._persisted(token, now)
            case RootsNotPersisted(token):
                self._roots_tokens.pop(token, None)
                self._wanted.newest_is(next(reversed(self._roots_tokens.values()), None))
                return []
            case Woke():
                return self._woke(now)
            case _:
                assert_never(event)

    def _heard(self, event: SwitchSaid, now: Instant) -> list[ServiceAction]:
        agent, said = event.agent, event.message
        if said.switch != agent:
            return [Refused(agent, f"switch {agent!r} speaks for {said.switch!r}")]
        if isinstance(said, SlotAnswer) and said.newest_term > self._record.term + TERMS_MAX:
            return [Refused(agent, f"there is no term {said.newest_term}")]
        actions = self._migrate(FromSwitch(said), now)
        self._look_soon(now)
        return actions

    def _gone(self, agent: str, now: Instant) -> list[ServiceAction]:
        self._pages.pop(agent, None)
        if agent == self._root:
            self._root, self._sent_at = "", None
        return self._migrate(SwitchLost(agent), now) if agent in self._slots else []

    def _reported(self, event: Reported, now: Instant) -> list[ServiceAction]:
        agent = event.agent
        if not self.hears_trees_of(agent) or (self._root and self._root != agent):
            root = self.config.root or self._root
            return [Refused(agent, f"trees are reported by {root!r}, not by {agent!r}")]
        states = (*self._pages.pop(agent, ()), *event.states)
        if event.more:
            if len(states) > REPORTED_MAX:
                return [Refused(agent, f"more than {REPORTED_MAX} jobs")]
            self._pages[agent] = states
            return []
        if self._migration is None:
            return []
        if event.term == self.config.term and event.revision > self._revision:
            # Told by a leader before this one whose term was the same: the store has begun anew. What is
            # wished now would else be older than what the root has taken, and change nothing.
            if event.revision > self._revision + REVISIONS_MAX:
                return [Refused(agent, f"there is no revision {event.revision}")]
            self._revision, self._told = event.revision, None
        self._root = agent
        self._states = {one.job: one for one in states}
        self._taken = event.term, event.revision
        if self._forget_at is None:
            self._forget_at = Instant(now + self.config.forget_ns)
        self._look_soon(now)
        return self._send_wishes(now)

    def _persisted(self, token: int, now: Instant) -> list[ServiceAction]:
        if not 1 <= token <= self._token:
            raise LocalMisuse(f"token {token} was never given; the last is {self._token}")
        if (roots := self._roots_tokens.pop(token, None)) is not None:
            self._wanted.persisted(roots)
            self._look_soon(now)
        own = self._record_tokens.pop(token, None)
        if own is None:
            return []  # said again, or of a coordinator that another has followed
        return self._migrate(RecordPersisted(own), now)

    def _persist_roots(self, roots: dict[str, str]) -> PersistRoots:
        self._token += 1
        self._roots_tokens[self._token] = roots
        return PersistRoots(roots, self._token)

    def _woke(self, now: Instant) -> list[ServiceAction]:
        actions: list[ServiceAction] = []
        if self._migration is None:
            return actions
        due = self._migration.deadline
        if due is not None and due <= now:
            actions += self._migrate(MigrationWoke(), now)
        if self._forget_at is not None and self._forget_at <= now:
            self._forget_at = Instant(now + self.config.forget_ns)
            if (roots := self._wanted.forget(self.states.keys(), now)) is not None:
                actions.append(self._persist_roots(roots))
        if self._look_at is not None and self._look_at <= now:
            actions += self._look(now)
        return actions

    # --- the coordinator

    def _migrate(self, event: MigrationEvent, now: Instant) -> list[ServiceAction]:
        """Tell the coordinator, and do what it says."""
        if self._migration is None:
            return []
        found: list[ServiceAction] = []
        has_changed = False
        for action in self._migration.step(event, now):
            has_changed |= not isinstance(action, ToSwitch | Persist)
            match action:
                case Persist(record, token):
                    self._record = record
                    self._token += 1
                    self._record_tokens[self._token] = token
                    found.append(PersistTrees(self._numbers.stored(record), self._token))
                case DrainJob(job, epoch):
                    self._wishes[job] = TreeWished(job, epoch, None)
                case TreeStands(job, tree, epoch):
                    wanted = self._numbers.trees[tree.tree_id]
                    self._wishes[job] = TreeWished(job, epoch, wanted, self.config.begins_anew)
                    found.append(SlotsStand(job, tree.switches, epoch))
                case Deposed(newest_term):
                    found += self._begin_anew(newest_term)
                case ToSwitch() | Blame():
                    found.append(action)
                case PlanStands():
                    pass
                case _:
                    assert_never(action)
            self._look_soon(now)
        if has_changed:
            found += self._hold()
            found += self._tell_root(now)
        return found

    def _begin_anew(self, newest_term: int) -> list[ServiceAction]:
        """Who leads is for the store to say, and it says that it is this controller."""
        assert self.config.migration is not None, "a coordinator was deposed"
        record = self._record
        self._record = MigrationRecord(newest_term, record.plan, record.epoch, record.jobs)
        self._migration = TreeMigration(self.config.migration, self._record)
        self._record_tokens.clear()
        return [BegunAnew(newest_term)]

    # --- all of it, again and again

    def _look_soon(self, now: Instant) -> None:
        if self._states is not None:
            self._look_at = now

    def _look(self, now: Instant) -> list[ServiceAction]:
        """Compare what is with what should be; goes on in ``_planned`` when the planner has answered."""
        states, core = self._states, self._migration
        self._look_at = Instant(now + self.config.look_ns)
        if states is None or core is None:
            return []
        actions = self._follow_states(core.view(), states, now)
        view = core.view()
        if any(not switch.boot and not switch.is_lost for switch in view.switches):
            return [*actions, *self._look_at_rest({}, now)]
        return [*actions, self._ask_plan(view, states, now)]

    def _follow_states(
        self, view: MigrationView, states: Mapping[str, TreeState], now: Instant
    ) -> list[ServiceAction]:
        """Tell the coordinator what has become of what it waits for."""
        is_taken = self._told is not None and self._taken >= (self.config.term, self._revision)
        actions = []
        for its in view.jobs:
            state, wish = states.get(its.job), self._wishes.get(its.job)
            if state is None:
                actions += self._migrate(JobEnded(its.job), now)
                continue
            is_drained = is_taken and wish is not None and wish.tree is None and state.phase == "parked"
            if its.phase is Phase.DRAINING and wish is not None and is_drained:
                actions += self._migrate(JobDrained(its.job, wish.epoch), now)
        return actions

    def _ask_plan(self, view: MigrationView, states: Mapping[str, TreeState], now: Instant) -> PlanTrees:
        roots = {name: self._moves.root_of(name) for name in states}
        for name, state in states.items():
            if state.epoch == 0 and state.phase == "standing" and name not in self._wishes:
                roots[name] = roots[name] or self._root_by_pool(state.pool)
                self._moves.stands(name, roots[name])
        trees = self._numbers.trees
        had = {its.job: trees.get(its.target.tree_id) for its in view.jobs if its.target is not None}
        return PlanTrees(
            states=states,
            had={job: tree for job, tree in had.items() if tree is not None},
            held=frozenset(its.job for its in view.jobs if its.is_held),
            roots=roots,
            wanted=self._wanted.durable,
            away=frozenset(one.switch for one in view.switches if one.is_lost),
            barred=self._bars.look(states, self._wishes, now),
        )

    def _planned(self, event: TreesPlanned, now: Instant) -> list[ServiceAction]:
        """Want what should be, if that is something else."""
        if self._states is None or self._migration is None:
            return []
        view = self._migration.view()
        known = {its.job: its.target for its in view.jobs}
        new = [name for name, found in sorted(event.trees.items()) if found is not None and name not in known]
        waiting = dict.fromkeys(new[max(0, self._migration.config.jobs_max - len(known)) :])
        planned = {name: found for name, found in event.trees.items() if name not in waiting}
        targets = {name: self._tree(found) for name, found in planned.items()}
        wanted = {job: tree for job, tree in targets.items() if tree is not None or job in known}
        actions: list[ServiceAction] = []
        if any(known.get(job) != tree for job, tree in wanted.items()):
            actions += self._migrate(PlanWanted(view.plan + 1, tuple(sorted(wanted.items()))), now)
        for name in (*event.unserved, *waiting):
            wish = self._wishes.get(name)
            if name not in known and (wish is None or wish.tree is not None):
                # Its slots may have gone to others while it was away; by its old wish it would stand without.
                self._wishes[name] = TreeWished(name, 1 if wish is None else wish.epoch, None)
        roots = {name: found.tree.root for name, found in planned.items() if found is not None}
        return [*actions, *self._look_at_rest(roots, now)]

    def _look_at_rest(self, targets: Mapping[str, str], now: Instant) -> list[ServiceAction]:
        """``targets``: the root that each job is to have."""
        assert self._migration is not None, "there is something to look at"
        view, states = self._migration.view(), self.states
        self._forget(view, states)
        actions = [*self._hold(), *self._tell_root(now)]
        seconds = now / S
        moves = self._moves
        return [
            *actions,
            *moves.look(view.jobs, states, self._wishes, targets, view.migrations, self._places, seconds),
        ]

    def _root_by_pool(self, pool: str) -> str:
        """As pools are named: ``shared`` is that of the fabric's root, ``shared@ROOT`` of another one."""
        return pool.partition("@")[2] or self._root

    def _tree(self, found: PlannedTree | None) -> Tree | None:
        return None if found is None else Tree(self._numbers.of(found.tree), found.switches)

    def _forget(self, view: MigrationView, states: Mapping[str, TreeState]) -> None:
        """Wishes of jobs that nobody knows any more, and trees that none has."""
        known = {its.job for its in view.jobs}
        self._wishes = {job: wish for job, wish in self._wishes.items() if job in states or job in known}
        numbers = set(numbers_in(self._record))
        for its in view.jobs:
            numbers |= {its.target.tree_id} if its.target is not None else set()
            numbers |= {its.lease.tree} if its.lease is not None else set()
        self._numbers.keep(numbers)

    # --- the root

    def _hold(self) -> list[ServiceAction]:
        """Jobs that are to have no turn, if they are others than those told last."""
        moving = {
            name for name, state in self.states.items() if state.phase in MOVING and name in self._wishes
        }
        held = frozenset(moving | {name for name, wish in self._wishes.items() if wish.tree is None})
        if held == self._held_told:
            return []
        self._held_told = held
        return [HoldTurns(held)]

    def _tell_root(self, now: Instant) -> list[ServiceAction]:
        """All wishes, if they are others than those told last, and all that was promised before is known."""
        if self._migration is None or any(its.phase is Phase.ADOPTING for its in self._migration.view().jobs):
            return []
        wishes = tuple(self._wishes[name] for name in sorted(self._wishes))
        if wishes != self._told:
            self._told, self._sent_at = wishes, None
            self._revision += 1
        return self._send_wishes(now)

    def _send_wishes(self, now: Instant) -> list[ServiceAction]:
        """Unless the root has taken them, or may be about to."""
        if self._told is None or not self._root or self._taken >= (self.config.term, self._revision):
            return []
        if self._sent_at is not None and now - self._sent_at < self.config.resend_ns:
            return []
        self._sent_at = now
        return [TellRoot(self._root, self.config.term, self._revision, self._told)]
