"""What is to change, from what is promised and what is seen: pure, level-triggered, idempotent.

``plan(desired, observed)`` looks at all of both, not at what has happened: a message that was lost is made up
for by the next look. After its changes are made, the same ``observed`` gives no further ones.

Jobs get hosts in the order of their submission; one that cannot be placed holds up all behind it (MINA,
section V-A). What a job had is freed only when its agent cannot still hold it, so a slot never has two jobs,
however late messages come (``tests/controller/test_controller_plan.py``).

An agent that the cluster file has no more is lost at once. Nothing that it had is given to others while the
file lacks its name; and if it has that again, the agent gets nothing new before it has said that it holds
nothing that is not known here. So what it had is freed without its word, which never comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from inaproto_controller.cluster.desired import (
    Change,
    Desired,
    Draft,
    Forget,
    Free,
    Give,
    Grant,
    GrantKind,
    Job,
    JobState,
    Release,
    SetJob,
    Slot,
    TreeNames,
)
from inaproto_controller.cluster.reserved import UFM, Pool
from inaproto_controller.planning.cluster_planner import ClusterPlanner, Resource, TreeWished
from inaproto_controller.service.observed import Agent, Observed, Phase, Presence

HISTORY_MAX: Final = 1000
"""Jobs that are over and still to be asked for."""
BEHIND: Final = "waits behind jobs that were submitted earlier"


def plan(
    desired: Desired,
    observed: Observed,
    planner: ClusterPlanner,
    *,
    pool: Pool | None = None,
    history_max: int = HISTORY_MAX,
) -> tuple[Change, ...]:
    """In the order in which they are to be made, in one commit. ``pool``: what may be reserved in UFM; None
    where it is not asked."""
    made = _Plan(desired, observed, planner, pool)
    made.judge_jobs()
    made.give_trees_up()
    made.free()
    made.place()
    made.give_trees()
    made.reserve()
    made.forget(history_max)
    return tuple(made.draft.changes)


class _Plan:
    def __init__(
        self, desired: Desired, observed: Observed, planner: ClusterPlanner, pool: Pool | None
    ) -> None:
        self.draft = Draft(desired)
        self._pool = pool
        self._observed = observed
        self._planner = planner

    def _live(self) -> list[Job]:
        return self.draft.result().live()

    def _grants_of(self, job: int, kind: GrantKind | None = None) -> list[Grant]:
        """Those not released."""
        return [
            grant
            for grant in self.draft.grants.values()
            if grant.job == job and grant.released is None and kind in (None, grant.kind)
        ]

    def _set(self, job: Job) -> None:
        self.draft.make(SetJob(job))

    def _release_all(self, job: int, kind: GrantKind | None = None) -> None:
        for grant in self._grants_of(job, kind):
            self.draft.make(Release(grant.number))

    # -- what has become of jobs

    def judge_jobs(self) -> None:
        for job in list(self.draft.jobs.values()):
            if not job.state.is_live:
                self._release_all(job.number)
            elif job.state in (JobState.PLACED, JobState.RUNNING):
                self._judge(job)

    def _judge(self, job: Job) -> None:
        seats = self._grants_of(job.number, GrantKind.SEATS)
        phases = []
        for grant in seats:
            name, agent = grant.agent, self._observed.agent(grant.agent)
            if name not in self._planner.hosts:
                self._lose(job, f"host {name} is lost: the cluster file has it no more")
                return
            if agent.presence is Presence.GONE:
                self._lose(job, f"host {name} is lost: nothing was heard of it for longer than its lease")
                return
            hold = agent.holds.get(grant.number) if agent.presence is Presence.UP else None
            if hold is None and agent.presence is Presence.UP and job.state is JobState.RUNNING:
                self._lose(job, f"host {name} was started anew and has lost its ranks")
                return
            phases.append(None if hold is None else hold.phase)
            if hold is not None and hold.phase is Phase.FAILED:
                self._end(job, JobState.FAILED, f"host {name}: {hold.reason or 'its ranks failed'}")
                return
        if phases and all(phase is Phase.ENDED for phase in phases):
            self._end(job, JobState.ENDED, "")
        elif job.state is JobState.PLACED and all(phase in (Phase.RUNNING, Phase.ENDED) for phase in phases):
            self._set(replace(job, state=JobState.RUNNING, why=""))

    def _lose(self, job: Job, why: str) -> None:
        """Ranks that ran are gone; who was only placed is placed again."""
        if job.state is JobState.RUNNING:
            self._end(job, JobState.FAILED, why)
            return
        self._set(replace(job, state=JobState.QUEUED, hosts=(), tree=None, group=None, why=f"again: {why}"))
        self._release_all(job.number)

    def _end(self, job: Job, state: JobState, why: str) -> None:
        self._set(replace(job, state=state, why=why))
        self._release_all(job.number)

    # -- what nobody has any more

    def give_trees_up(self) -> None:
        """Give up the trees of a switch that is lost, or that the cluster has no more."""
        self._planner.enter(self._wishes())
        for wish in self._wishes():
            if wish.tree is None:
                continue
            lost = [name for name in wish.tree.switches if self._is_lost(name)]
            if lost or wish.tree not in self._planner.candidates(wish.number):
                self._set(replace(self.draft.jobs[wish.number], tree=None, group=None))
                self._release_all(wish.number, GrantKind.TREE)
                self._release_all(wish.number, GrantKind.RESERVATION)

    def _is_lost(self, switch: str) -> bool:
        if switch not in self._planner.summing:
            return False
        return self._observed.agent(switch).presence is Presence.GONE

    def free(self) -> None:
        for grant in list(self.draft.grants.values()):
            if grant.released is None:
                continue
            agent = self._observed.agent(grant.agent)
            if not self._is_known(grant) or _is_rid(agent, grant.number, grant.released):
                self.draft.make(Free(grant.number))

    def _is_known(self, grant: Grant) -> bool:
        if grant.kind is GrantKind.RESERVATION:  # UFM has it, also while this controller is not to ask there
            return True
        return grant.agent in (
            self._planner.hosts if grant.kind is GrantKind.SEATS else self._planner.summing
        )

    def forget(self, history_max: int) -> None:
        busy = {grant.job for grant in self.draft.grants.values()}
        over = sorted(number for number, job in self.draft.jobs.items() if not job.state.is_live)
        for number in over[: max(0, len(over) - history_max)]:
            if number not in busy:
                self.draft.make(Forget(number))

    # -- hosts

    def place(self) -> None:
        free = self._free_hosts()
        is_held_up = False
        for job in self._live():
            if job.state not in (JobState.SUBMITTED, JobState.QUEUED):
                continue
            if job.spec.hosts > len(self._planner.hosts):  # there were more when it was submitted
                self._queue(
                    job, f"waits for {job.spec.hosts} hosts: the cluster has {len(self._planner.hosts)}"
                )
                continue
            hosts = None if is_held_up else self._planner.place(free, job.spec.hosts)
            if hosts is None:
                self._queue(job, BEHIND if is_held_up else self._why(job, free))
                is_held_up = True
                continue
            free -= set(hosts)
            self._set(replace(job, state=JobState.PLACED, why="", hosts=hosts))
            for name in hosts:
                self._give(job, GrantKind.SEATS, name, (Slot(name, "", 0),))

    def _free_hosts(self) -> set[str]:
        """Those that report, and hold nothing that is not known here."""
        taken = {slot.agent for slot in self.draft.taken}
        return {
            name
            for name in sorted(self._planner.hosts - taken)
            if self._is_usable(self._observed.agent(name))
        }

    def _is_usable(self, agent: Agent) -> bool:
        known = self.draft.grants
        return agent.presence is Presence.UP and all(number in known for number in agent.holds)

    def _why(self, job: Job, free: set[str]) -> str:
        away = sum(self._observed.agent(name).presence is not Presence.UP for name in self._planner.hosts)
        said = f"waits for {job.spec.hosts} hosts: {len(free)} of {len(self._planner.hosts)} are free"
        return f"{said}, {away} do not report" if away else said

    def _queue(self, job: Job, why: str) -> None:
        if job.state is not JobState.QUEUED or job.why != why:
            self._set(replace(job, state=JobState.QUEUED, why=why))

    def _give(self, job: Job, kind: GrantKind, agent: str, slots: tuple[Slot, ...]) -> None:
        number = self.draft.next_grant
        self.draft.make(Give(Grant(number=number, job=job.number, kind=kind, agent=agent, slots=slots)))

    # -- trees

    def give_trees(self) -> None:
        wishes = self._wishes()
        self._planner.enter(wishes)
        if all(wish.tree is not None for wish in wishes):
            return
        room = self._room()
        barred = {
            wish.number: [
                tree for tree in self._planner.candidates(wish.number) if self._is_barred(wish, tree, room)
            ]
            for wish in wishes
            if wish.tree is None
        }
        for number, tree in self._planner.build(wishes, barred).items():
            slots = self._slots(number, tree)
            if slots is None:
                continue  # an earlier one of this build has the last: the next look has another
            job = self.draft.jobs[number]
            self._set(replace(job, tree=tree, group=number))
            for name in tree.switches:
                if name in self._planner.summing:
                    own = tuple(slot for slot in slots if slot.agent == name)
                    self._give(job, GrantKind.TREE, name, own)

    # -- reservations

    def reserve(self) -> None:
        """Reserve for those who have a tree: hosts of others cannot open a SHARP job."""
        if self._pool is None or self._observed.agent(UFM).presence is not Presence.UP:
            return
        for job in self._live():
            if job.tree is None or self._grants_of(job.number, GrantKind.RESERVATION):
                continue
            slots = self._pool.slots(job.hosts, self.draft.taken, self._observed.barred_pkeys)
            if not isinstance(slots, str):
                self._give(job, GrantKind.RESERVATION, UFM, slots)

    def _wishes(self) -> list[TreeWished]:
        return [
            TreeWished(job.number, job.hosts, job.spec.model, job.tree)
            for job in self._live()
            if len(job.hosts) > 1 and self._planner.hosts.issuperset(job.hosts)
        ]

    def _room(self) -> dict[Resource, int]:
        room = dict(self._planner.capacities)
        for slot in self.draft.taken:
            resource = Resource(slot.agent, slot.port)
            if resource in room:
                room[resource] -= 1
        return room

    def _is_barred(self, wish: TreeWished, tree: TreeNames, room: dict[Resource, int]) -> bool:
        summing = (self._observed.agent(name) for name in tree.switches if name in self._planner.summing)
        if not all(self._is_usable(agent) for agent in summing):
            return True
        return any(room[resource] < 1 for resource in self._planner.used(wish.number, tree))

    def _slots(self, number: int, tree: TreeNames) -> tuple[Slot, ...] | None:
        taken = self.draft.taken
        found = []
        for resource in self._planner.used(number, tree):
            slot = next(_free_slots(resource, self._planner.capacities[resource], taken), None)
            if slot is None:
                return None
            found.append(slot)
        return tuple(found)


def _free_slots(resource: Resource, capacity: int, taken: dict[Slot, Grant]) -> Iterator[Slot]:
    slots = (Slot(resource.agent, resource.port, number) for number in range(capacity))
    return (slot for slot in slots if slot not in taken)


def _is_rid(agent: Agent, grant: int, released: int) -> bool:
    """Whether it cannot hold the grant, now or later: it has applied wishes that leave it out."""
    return agent.presence is Presence.UP and agent.applied >= released and grant not in agent.holds
