"""The ring through the switches of a job follows what is wished of it (MINA IV-A, docs/protocol.md 16.3).

A controller wishes, for a job on the path ``shared``, the tree on which its INA ring is to stand, or none.
The wish is followed under the running job: its hosts park the ring (no turn, nothing on its way), the
switches forget it, others are told of it with its next message, and its hosts hear that it stands. Meanwhile
operations go on by the base ring; no generation of the job's rings ends, so nobody halts.

A ring that the new switches refuse stays parked, and the wish is refused. What cannot be followed so is left
to :mod:`inaproto.core.rendezvous.ring_ends`: a ring that a switch loses, or one that its hosts do not park
within ``park_ns``, for an all-reduce on it waits for a rank, ends its generation, and the next one begins on
the tree that is wished then, or parked where none is. Where hosts disagree about what the ring has carried,
so it ends, too. Where a host cannot park a ring it ends for good when it is wished to be elsewhere. A tree
that adds in another order than the plan of the generation, which the base ring follows, is refused: bytes of
one generation are the same on both rings. Unless it is wished so much (``anew``) that the generation ends for
it: its hosts halt once, and all of the next one's bytes are those of the new order.

All of it is level-triggered: what is wished is compared with what is, whenever one of them has changed.

Invariants: those of :mod:`inaproto.core.rendezvous.job_tree`; a job of which nothing was ever wished is as if
there were no wishes; a wish that is withdrawn changes nothing before the generation ends.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import assert_never

from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.endings import Endings
from inaproto.core.rendezvous.events import (
    MemberParked,
    Noted,
    RendezvousAction,
    RingStands,
    TreesWished,
    WantRing,
)
from inaproto.core.rendezvous.fabric.shapes import plan_of, shape_of
from inaproto.core.rendezvous.job_tree import TreeIs
from inaproto.core.rendezvous.jobs import Job, Phase, ring_spec
from inaproto.core.rendezvous.state import State
from inaproto.core.switch.accelerator import InstallRing
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Message, Start
from inaproto.wire.messages.ina import POOL_DEFAULT, InaPark, InaStands
from inaproto.wire.messages.switch import PoolSpec
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished


class TreeMoves:
    """What a rendezvous does with wishes."""

    def __init__(self, state: State, endings: Endings) -> None:
        self._state = state
        self._endings = endings

    def woke(self) -> list[RendezvousAction]:
        """What hosts do not park in time, and trees that are tried again."""
        actions: list[RendezvousAction] = []
        for job in list(self._state.jobs.values()):
            if job.tree.park_until is not None and job.tree.park_until <= self._state.now:
                seconds, why = self._state.config.park_ns / S, self._not_parked(job)
                self._state.counters["parkings_given_up"] += 1
                actions += self._endings.halt(job, f"its ring was to be parked within {seconds:g} s: {why}")
            elif job.tree.retry_at is not None and job.tree.retry_at <= self._state.now:
                job.tree.is_settled()
                actions += self._follow_anew(job)
        return actions

    def trees_wished(self, event: TreesWished) -> list[RendezvousAction]:
        self._state.wishes = {wish.job: wish for wish in event.wishes}
        return [action for job in list(self._state.jobs.values()) for action in self.follow(job)]

    def plan(self, job: Job) -> None:
        """Plan of the next generation; a wish that it cannot keep to is not followed."""
        wish = self._state.wishes.get(job.name)
        job.tree.refused = ""
        if wish is not None and job.is_shared and self._must_leave(job, wish):
            job.tree.epoch = wish.epoch
        if wish is not None and wish.tree is not None and job.is_shared:
            job.plan = self._plan_on(job, wish.tree)
            if job.can_chain:
                return
            job.tree.refused = f"its hosts cannot sum in the order {job.rank_plan}, as that tree does"
            job.tree.epoch = wish.epoch
        job.plan = self._plan_on(job, None)

    def _plan_on(self, job: Job, tree: FabricTree | None) -> ReductionPlan | None:
        """What its ring adds along that tree (None: where nothing is wished); None: all in order."""
        switches = self._state.config.switches
        return plan_of(switches, job.switches, tree or self._state.config.along) if switches else None

    def _shape_on(self, job: Job, tree: FabricTree | None) -> Hashable:
        """Equal where its ring is the same."""
        switches = self._state.config.switches
        return shape_of(switches, job.switches, tree or self._state.config.along) if switches else tree

    def lay(self, job: Job, ring_key: int) -> list[RendezvousAction]:
        """The ring through the switches of a generation that begins, of two hosts or more."""
        job.ring_key = ring_key
        if not job.ina_ring_id:
            return self._install(job, ring_spec(job, self._state.config.epoch, ring_key, None), None)
        wish = self._state.wishes.get(job.name)
        if wish is not None and (wish.tree is None or job.tree.refused):
            job.tree.state, job.tree.epoch = TreeIs.PARKED, wish.epoch
            return []
        return self._want(job, wish)

    def _want(self, job: Job, wish: TreeWished | None) -> list[RendezvousAction]:
        """Tell the switches of the ring."""
        tree = None if wish is None else wish.tree
        pool = self._pool_of(tree)
        spec = ring_spec(job, self._state.config.epoch, job.ring_key, pool)
        job.tree.stands_for(0 if wish is None else wish.epoch, tree, pool)
        return self._install(job, replace(spec, first_message=job.tree.messages), tree)

    def _install(self, job: Job, spec: RingSpec, tree: FabricTree | None) -> list[RendezvousAction]:
        job.installed = spec.ring_id
        self._state.rings[job.installed] = job.name
        along = tree or self._state.config.along
        return [InstallRing(spec) if along is None else WantRing(spec, along)]

    def _pool_of(self, tree: FabricTree | None) -> PoolSpec | None:
        """One for each root."""
        pool = self._state.config.pool
        if pool is None or tree is None or tree.root == self._state.config.root:
            return pool
        return replace(pool, name=f"{pool.name}@{tree.root}")

    def stands(self, job: Job, event: RingStands) -> list[RendezvousAction]:
        """All switches have the ring, and its hosts were told."""
        if event.ring_id != job.ina_ring_id or job.tree.state is not TreeIs.INSTALLING:
            return []
        job.tree.is_standing()
        if not job.tree.messages:
            return self.follow(job)
        self._state.counters["trees_moved"] += 1
        text = f"job {job.name}: its ring {job.ina_ring_id} stands on {_named(job.tree.tree)}"
        return [Noted(f"{text}, from message {job.tree.messages} on"), *self.follow(job)]

    def is_on_its_way(self, job: Job, ring_id: int) -> bool:
        is_on_its_way = ring_id == job.ina_ring_id and job.tree.state is TreeIs.INSTALLING
        return is_on_its_way and job.name in self._state.wishes and not self._old_hosts(job)

    def stay_parked(
        self, job: Job, reason: str, *, until_room: bool, until_switch: bool
    ) -> list[RendezvousAction]:
        ring_id, messages, waits = job.ina_ring_id, job.tree.messages, job.tree.tells_start
        removed = self._endings.remove_ring(job)
        job.ina_ring_id, job.tree.messages = ring_id, messages
        job.tree.is_refused(reason, self._state.now, until_room=until_room, until_switch=until_switch)
        noted = Noted(f"job {job.name}: its ring stays parked: {reason}", is_problem=True)
        start = Start(job=job.name, ring_id=job.ring_id, ina_ring_id=ring_id, ina_parked=True)
        return [*removed, *(self._state.tell_all(job, start) if waits else []), noted, *self.follow(job)]

    def parked(self, job: Job, event: MemberParked) -> list[RendezvousAction]:
        told, tree = event.message, job.tree
        if tree.state is not TreeIs.PARKING or (told.ring_id, told.epoch) != (job.ina_ring_id, tree.asked):
            return []
        tree.parked[job.seats[told.rank].member.host] = told.messages
        if len(tree.parked) < len(job.members()):
            return []
        if len(set(tree.parked.values())) > 1:
            said = ", ".join(f"{host} {messages}" for host, messages in tree.parked.items())
            return self._endings.disagree(
                job, f"its ring through the switches carried, as its hosts say: {said}"
            )
        tree.messages, tree.park_until = told.messages, None
        wish = self._state.wishes.get(job.name)
        if wish is not None and self._is_on(job, wish):
            tree.stands_for(wish.epoch, wish.tree, tree.pool)
            return self._tell_stands(job)
        self._state.counters["trees_parked"] += 1
        parked = Noted(f"job {job.name}: its ring {job.ina_ring_id} is parked at message {tree.messages}")
        return [*self._take_away(job), parked, *self.follow(job)]

    def follow(self, job: Job) -> list[RendezvousAction]:
        """Do what brings it nearer to what is wished of it."""
        wish = self._state.wishes.get(job.name)
        if wish is None or job.first.path != "shared":
            return []
        if job.phase is Phase.CONNECTING:
            return self._follow_early(job, wish)
        if job.phase is not Phase.RUNNING:
            return []
        match job.tree.state:
            case TreeIs.ABSENT:
                return self._try_anew(job, wish)
            case TreeIs.STANDING:
                return self._park(job, wish)
            case TreeIs.PARKED:
                return self._unpark(job, wish)
            case TreeIs.INSTALLING | TreeIs.PARKING:
                return []  # when it stands, or is parked, the wish of then is looked at
            case _:
                assert_never(job.tree.state)

    def _follow_anew(self, job: Job) -> list[RendezvousAction]:
        """A wish that the switches have refused."""
        wish = self._state.wishes.get(job.name)
        if wish is None or job.tree.state is not TreeIs.PARKED:
            return []
        return self._unpark(job, wish, tell=job.phase is Phase.RUNNING)

    def _follow_early(self, job: Job, wish: TreeWished) -> list[RendezvousAction]:
        """No host has heard of a ring that stands: it may be laid elsewhere."""
        if not job.ina_ring_id or wish.epoch == job.tree.epoch or self._old_hosts(job):
            return []
        if job.tree.state is TreeIs.PARKED:
            return self._unpark(job, wish, tell=False)
        if self._is_on(job, wish):
            job.tree.epoch = wish.epoch
            return []
        return [*self._take_away(job), *self._unpark(job, wish, tell=False)]

    def _try_anew(self, job: Job, wish: TreeWished) -> list[RendezvousAction]:
        """The base ring has all of a job whose ring was refused: another tree may have room."""
        recovery = job.recovery
        if recovery.is_asked:
            job.tree.epoch = wish.epoch  # refused as all are
        elif wish.tree is not None and wish.epoch != job.tree.epoch and recovery.path != recovery.fast:
            recovery.return_at = self._state.now
        return []

    def _park(self, job: Job, wish: TreeWished) -> list[RendezvousAction]:
        """The switches on which it stands, if others are wished."""
        if self._is_on(job, wish):
            job.tree.epoch = wish.epoch
            return []
        if self._must_leave(job, wish):
            job.tree.epoch = wish.epoch
            return self._endings.halt(job, f"its ring is to be elsewhere: {job.recovery.fallback}")
        if self._begins_anew(job, wish):
            return self._begin_anew(job, wish)
        has_end = self._state.config.recover_ns and self._state.config.park_ns
        job.tree.parks(wish.epoch, Instant(self._state.now + self._state.config.park_ns) if has_end else None)
        park = InaPark(job=job.name, ring_id=job.ina_ring_id, epoch=wish.epoch)
        to = "no tree" if wish.tree is None else _named(wish.tree)
        return [*self._state.tell_all(job, park), Noted(f"job {job.name}: its ring is parked, for {to}")]

    def _old_hosts(self, job: Job) -> str:
        """Hosts of it that do not know what parking is."""
        sessions = {seat.session: seat.member.host for seat in job.in_order()}
        here = [(host, self._state.hosts.get(session)) for session, host in sessions.items()]
        return ", ".join(host for host, its in here if its is not None and not its.hello.parks)

    def _must_leave(self, job: Job, wish: TreeWished) -> bool:
        """Whether its hosts are to sum from now on, as some know of no ring but that on the own tree."""
        old, path = self._old_hosts(job), job.host_path
        is_elsewhere = wish.tree is None or self._pool_of(wish.tree) != self._state.config.pool
        if not old or not is_elsewhere or path is None or not self._state.config.recover_ns:
            return False
        job.recovery.leaves_for_good(f"{old}: of a release whose rings cannot move to another tree", path)
        self._state.counters["fallbacks"] += 1
        return True

    def _unpark(self, job: Job, wish: TreeWished, *, tell: bool = True) -> list[RendezvousAction]:
        tree = job.tree
        if wish.tree is None or (tree.refused and wish.epoch == tree.epoch):
            tree.epoch = wish.epoch
            if wish.tree is None:
                tree.is_settled()
            return []
        if self._begins_anew(job, wish):
            # Before its hosts have begun nothing is halted: they are followed up when they have.
            return self._begin_anew(job, wish) if job.phase is Phase.RUNNING else []
        plan = self._plan_on(job, wish.tree)
        if plan != job.plan:
            tree.epoch = wish.epoch
            tree.refused = f"{_named(wish.tree)} adds in another order than {job.rank_plan}"
            return [Noted(f"job {job.name}: its ring stays parked: {tree.refused}", is_problem=True)]
        return [*self._want(job, wish), *(self._tell_stands(job) if tell else [])]

    def _begins_anew(self, job: Job, wish: TreeWished) -> bool:
        """Whether its next generation is to begin for another order, in which its hosts can sum, too."""
        if not wish.anew or wish.tree is None or wish.epoch == job.tree.epoch:
            return False
        plan = self._plan_on(job, wish.tree)
        return plan is not None and plan != job.plan and list(plan.ranks) == list(range(plan.size))

    def _begin_anew(self, job: Job, wish: TreeWished) -> list[RendezvousAction]:
        assert wish.tree is not None, "it begins anew for a tree"
        job.tree.epoch = wish.epoch
        job.plan = self._plan_on(job, wish.tree)  # its hosts hear what slots that needs
        self._state.counters["generations_for_trees"] += 1
        return self._endings.halt(job, f"to go along {_named(wish.tree)}, which adds in another order")

    def _is_on(self, job: Job, wish: TreeWished) -> bool:
        """Whether its ring would be the one that it is."""
        if wish.tree is None:
            return False
        tree = job.tree
        if self._pool_of(wish.tree) != tree.pool:
            return False
        return wish.tree == tree.tree or self._shape_on(job, wish.tree) == self._shape_on(job, tree.tree)

    def _take_away(self, job: Job) -> list[RendezvousAction]:
        """Out of the switches: its generation goes on, and it may come back."""
        ring_id, messages = job.ina_ring_id, job.tree.messages
        for other in self._state.jobs.values():
            if other is not job:
                other.room_made(self._state.now)
        removed = self._endings.remove_ring(job)
        job.ina_ring_id, job.tree.state, job.tree.messages = ring_id, TreeIs.PARKED, messages
        return removed

    def _tell_stands(self, job: Job) -> list[RendezvousAction]:
        tree = job.tree
        pool = POOL_DEFAULT if tree.pool is None else tree.pool.name
        return self._state.tell_all(
            job, InaStands(job=job.name, ring_id=job.ina_ring_id, epoch=tree.epoch, pool=pool)
        )

    def _not_parked(self, job: Job) -> str:
        hosts = (member.host for member in job.members())
        return f"waits for {', '.join(host for host in hosts if host not in job.tree.parked)}"

    def tree_states(self) -> tuple[TreeState, ...]:
        """Where the trees of all jobs are that may have a ring through the switches beside another."""
        return tuple(
            self._tree_state(job)
            for job in self._state.jobs.values()
            if job.first.path == "shared" and not job.missing() and len(job.members()) > 1
        )

    def _tree_state(self, job: Job) -> TreeState:
        tree, wish = job.tree, self._state.wishes.get(job.name)
        hosts = tuple(member.host for member in job.members())
        pool = "" if tree.pool is None else tree.pool.name
        newest = tree.epoch if wish is None else wish.epoch
        match tree.state:
            case TreeIs.STANDING:
                return TreeState(job.name, hosts, tree.epoch, "standing", pool)
            case TreeIs.INSTALLING:
                return TreeState(job.name, hosts, tree.epoch, "moving", pool)
            case TreeIs.PARKING:
                return TreeState(job.name, hosts, newest, "parking", pool, self._not_parked(job))
            case TreeIs.PARKED if tree.refused:
                return TreeState(job.name, hosts, tree.epoch, "refused", reason=tree.refused)
            case TreeIs.PARKED:
                return TreeState(job.name, hosts, tree.epoch, "parked")
            case _:
                return self._absent_state(job, hosts, newest)

    def _absent_state(self, job: Job, hosts: tuple[str, ...], newest: int) -> TreeState:
        """Between two generations, or after the switches have refused its ring."""
        wish, recovery = self._state.wishes.get(job.name), job.recovery
        if wish is not None and wish.tree is None:
            return TreeState(job.name, hosts, newest, "parked")
        if recovery.path != recovery.fast and newest == job.tree.epoch:
            return TreeState(job.name, hosts, newest, "refused", reason=recovery.fallback)
        return TreeState(job.name, hosts, newest, "moving")


def stands(message: Message) -> int:
    """The ring through the switches, beside another, that hosts are told to stand by this; 0: none."""
    match message:
        case Start():
            return 0 if message.ina_parked else message.ina_ring_id
        case InaStands():
            return message.ring_id
        case _:
            return 0


def _named(tree: FabricTree | None) -> str:
    return "the fabric's own tree" if tree is None else f"the tree of {tree.root}"
