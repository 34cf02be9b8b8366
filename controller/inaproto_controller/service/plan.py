"""What is to change, from what is promised and what is seen: pure, level-triggered, idempotent.

``plan(desired, observed)`` looks at all of both, not at what has happened: a message that was lost is made up
for by the next look. After its changes are made, the same ``observed`` gives no further ones.

Jobs get hosts in the order of their submission; one that cannot be placed holds up all behind it (MINA,
section V-A). One that names its hosts, which another scheduler has chosen, holds up those alone. What a job
had is freed only when its agent cannot still hold it, so a slot never has two jobs, however late messages
come (``tests/controller/test_controller_plan.py``).

An agent that the cluster file has no more is lost at once. Nothing that it had is given to others while the
file lacks its name; and if it has that again, the agent gets nothing new before it has said that it holds
nothing that is not known here. So what it had is freed without its word, which never comes: whoever takes a
host out of the file says that it is down, and attached to no tree of SHARP.

**Switches that sum by SHARP** have no agent: they are never lost. Who uses a tree there is known of the hosts
of its job alone, each of which holds a *place* as long as it may be attached. So a job gets such a tree only
if all its hosts keep to places, and the tree's slots are free when none of them has its place any more. A job
gives one tree up, and all its places, before it gets another (MINA, section IV-A): also where a person wishes
for another root (:mod:`inaproto_controller.service.sharp.moves`). While a job without a tree waits for the
one that is wished, nobody else gets its slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final, assert_never

from inaproto.core.grants.verdict import (
    AsItWas,
    HostSeen,
    Over,
    PlacedAgain,
    Runs,
    SeatSeen,
    seat_seen,
    verdict,
)
from inaproto.core.rendezvous.rules import gone_on
from inaproto.errors import Infeasible
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
    Route,
    SetJob,
    Slot,
    TreeNames,
    applied,
)
from inaproto_controller.cluster.reserved import UFM, Pool
from inaproto_controller.planning.cluster_planner import ClusterPlanner, Resource, TreeWished
from inaproto_controller.planning.paring.live_placement import JointPlacement
from inaproto_controller.planning.paring.live_tree import LivePlace, LiveTree
from inaproto_controller.planning.placement.occupancy import Occupancy
from inaproto_controller.service.observed import Agent, Hold, Observed, Phase, Presence
from inaproto_controller.service.sharp.moves import Wished, who_moves
from inaproto_controller.service.why_no_tree import GAINS_NOTHING, NOT_LEFT, NOWHERE, Bar, told

HISTORY_MAX: Final = 1000
"""Jobs that are over and still to be asked for."""
NAMED_MAX: Final = 4
"""Hosts that are named of those for which a job waits."""
BEHIND: Final = "waits behind jobs that were submitted earlier"
_NOWHERE: Final[dict[str, Any]] = {"hosts": (), "tree": None, "group": None, "route": None}


def plan(
    desired: Desired,
    observed: Observed,
    planner: ClusterPlanner,
    *,
    pool: Pool | None = None,
    history_max: int = HISTORY_MAX,
    news_of: Collection[str] | None = None,
) -> tuple[Change, ...]:
    """In the order in which they are to be made, in one commit. ``pool``: what may be reserved in UFM; None
    where it is not asked. ``news_of``: agents of which what is seen has changed since a plan was made; None:
    all may have."""
    made = _Plan(desired, observed, planner, pool)
    made.judge_jobs(news_of)
    made.give_trees_up()
    made.free()
    made.move()
    made.place()
    made.give_trees()
    made.reserve()
    made.give_places()
    made.forget(history_max)
    return tuple(made.draft.changes)


@dataclass(frozen=True, slots=True)
class Planned:
    changes: tuple[Change, ...]
    without_trees: Mapping[int, str]
    """Why jobs of several hosts have no tree, by number, once the changes are made."""
    seconds: float
    """What it took."""


def planned(
    desired: Desired,
    observed: Observed,
    planner: ClusterPlanner,
    *,
    pool: Pool | None,
    news_of: Collection[str] | None = None,
) -> Planned:
    """As :func:`plan`, and what is lacking after it."""
    began = perf_counter()
    changes = plan(desired, observed, planner, pool=pool, news_of=news_of)
    after = applied(desired, changes) if changes else desired
    without = without_trees(after, observed, planner)
    return Planned(changes, without, perf_counter() - began)


def rests_on(changes: Sequence[Change], before: Desired, now: Desired) -> bool:
    """Whether changes that were planned for ``before`` may be made now: nobody has changed one of their jobs.
    Nobody but who plans gives, releases and frees."""
    if now is before:
        return True
    jobs: set[int] = set()
    for change in changes:
        match change:
            case SetJob(job):
                jobs.add(job.number)
            case Give(grant):
                jobs.add(grant.job)
            case Release(number) | Free(number):
                known = before.grants.get(number)
                jobs |= set() if known is None else {known.job}
            case Forget(number):
                jobs.add(number)
            case _:
                assert_never(change)
    return all(now.jobs.get(number) is before.jobs.get(number) for number in jobs)


def without_trees(desired: Desired, observed: Observed, planner: ClusterPlanner) -> dict[int, str]:
    """Why jobs of several hosts have no tree, by number: what has kept :func:`plan` from giving them one."""
    return _Plan(desired, observed, planner, None).without_trees()


class _Plan:
    def __init__(
        self, desired: Desired, observed: Observed, planner: ClusterPlanner, pool: Pool | None
    ) -> None:
        self.draft = Draft(desired)
        self._pool = pool
        self._observed = observed
        self._planner = planner
        self._joint: Final = planner.joint
        self._awaited: dict[int, TreeNames] = {}
        """Wished trees of jobs that have none, and wait for these."""

    def _live(self) -> list[Job]:
        return self.draft.live()

    def _grants_of(self, job: int, kind: GrantKind | None = None) -> list[Grant]:
        """Those not released."""
        return [
            grant for grant in self.draft.of_job(job) if grant.released is None and kind in (None, grant.kind)
        ]

    def _set(self, job: Job) -> None:
        self.draft.make(SetJob(job))

    def _release_all(self, job: int, kind: GrantKind | None = None) -> None:
        for grant in self._grants_of(job, kind):
            self.draft.make(Release(grant.number))

    # -- what has become of jobs

    def judge_jobs(self, news_of: Collection[str] | None) -> None:
        having = self.draft.index.of_job.keys()
        for number in sorted(having - self.draft.index.live.keys()):
            self._release_all(number)
        for job in self._live() if news_of is None else self._concerned(news_of):
            if job.state in (JobState.PLACED, JobState.RUNNING):
                self._judge(job)

    def _concerned(self, agents: Collection[str]) -> list[Job]:
        """Jobs that have something there, in order of submission."""
        draft = self.draft
        numbers = {draft.grants[number].job for name in agents for number in draft.index.at.of(name)}
        return [draft.jobs[number] for number in sorted(numbers)]

    def _judge(self, job: Job) -> None:
        seats = self._grants_of(job.number, GrantKind.SEATS)
        is_running = job.state is JobState.RUNNING
        seen = (self._seen(job, grant) for grant in seats)
        match verdict(seen, is_running=is_running, is_elastic=job.spec.elastic):
            case AsItWas():
                pass
            case Runs(why):
                if not is_running:
                    self._set(replace(job, state=JobState.RUNNING, why=why, begun=self.draft.revision))
                elif job.why != why:
                    self._set(replace(job, why=why))
            case PlacedAgain(why):
                self._set(replace(job, state=JobState.QUEUED, **_NOWHERE, why=f"again: {why}"))
                self._release_all(job.number)
            case Over(has_failed, why):
                self._end(job, JobState.FAILED if has_failed else JobState.ENDED, why)
            case never:
                assert_never(never)

    def _seen(self, job: Job, grant: Grant) -> SeatSeen:
        name, agent = grant.agent, self._observed.agent(grant.agent)
        host = HostSeen(
            name,
            agent.presence.value if name in self._planner.hosts else "unlisted",
            is_anew=agent.is_anew,
            has_heard=not job.spec.elastic or agent.applied >= job.begun,
        )
        hold = agent.holds.get(grant.number, Hold())
        return seat_seen(host, hold.phase.value, hold.reason)

    def _end(self, job: Job, state: JobState, why: str) -> None:
        self._set(replace(job, state=state, why=why))
        self._release_all(job.number)

    # -- what nobody has any more

    def give_trees_up(self) -> None:
        """Give up the trees of a switch that is lost, or that the cluster has no more, and those in SHARP of
        a host that keeps to no places any more."""
        self._follow_routes()
        self._planner.enter(self._wishes())
        for wish in self._wishes():
            if wish.tree is None:
                continue
            lost = any(map(self._is_lost, wish.tree.switches)) or self._is_refused(wish, wish.tree)
            if lost or wish.tree not in self._planner.candidates(wish.number):
                self._give_up(wish.number)
                self._release_all(wish.number, GrantKind.RESERVATION)

    def _follow_routes(self) -> None:
        """Where hosts and trees are planned together, jobs have the trees that their rings have, and those
        whose ring is to come another one, on their hosts, if a switch of it is lost."""
        if self._joint is None:
            for job in self._live():
                if job.route is not None:
                    self._set(replace(job, route=None, tree=None))
            return
        for job in self._live():
            if self._grants_of(job.number, GrantKind.TREE):  # of a controller that had another rule
                self._give_up(job.number)
            ring = self._ring_of(job)
            if ring is not None:
                self._set_route(job, Route(ring.tree.tree, ring.tree.rate, ring.why))
            elif job.state is JobState.PLACED and (lost := self._lost_adders(job.route)):
                found = self._joint.planned(job.hosts, self._trees_taken(but=job), self._switches_away())
                if isinstance(found, Infeasible):
                    self._set_route(job, Route(None, why=f"switch {lost[0]} is lost: {found}"))
                else:
                    self._set_route(job, Route(found.tree, found.rate))

    def _set_route(self, job: Job, route: Route) -> None:
        if route != job.route:
            tree = None if route.tree is None else self._planner.named(route.tree)
            self._set(replace(job, route=route, tree=tree, group=None))

    def _ring_of(self, job: Job) -> LivePlace | None:
        ring = self._observed.rings.get(job.spec.name)
        return None if ring is None or ring.hosts != job.hosts else ring

    def _lost_adders(self, route: Route | None) -> list[str]:
        if route is None or route.tree is None:
            return []
        names = (route.tree.root, *dict(route.tree.above))
        return [name for name in names if name not in route.tree.passing and self._is_lost(name)]

    def _give_up(self, job: int) -> None:
        self._set(replace(self.draft.jobs[job], tree=None, group=None))
        self._release_all(job, GrantKind.TREE)
        self._release_all(job, GrantKind.PLACE)

    def _is_lost(self, switch: str) -> bool:
        if switch not in self._planner.summing or switch in self._planner.sharp:
            return False
        return self._observed.agent(switch).presence is Presence.GONE

    def free(self) -> None:
        """Trees last: what they have in SHARP is free when the places are."""
        for are_trees in (False, True):
            attached = self._attached()
            for number in list(self.draft.index.released):
                grant = self.draft.grants[number]
                if grant.released is None or (grant.kind is GrantKind.TREE) is not are_trees:
                    continue
                if not (are_trees and grant.job in attached) and self._is_rid(grant, grant.released):
                    self.draft.make(Free(number))

    def _attached(self) -> set[int]:
        """Jobs for which some host may be attached."""
        return {grant.job for grant in self._places()}

    def _places(self) -> list[Grant]:
        """Also released ones."""
        return [self.draft.grants[number] for number in self.draft.index.of_kind.of(GrantKind.PLACE)]

    def _is_rid(self, grant: Grant, released: int) -> bool:
        if not self._is_known(grant) or (grant.kind is GrantKind.TREE and grant.agent in self._planner.sharp):
            return True
        return _is_rid(self._observed.agent(grant.agent), grant.number, released)

    def _is_known(self, grant: Grant) -> bool:
        if grant.kind is GrantKind.RESERVATION:  # UFM has it, also while this controller is not to ask there
            return True
        return grant.agent in (self._planner.summing if grant.kind is GrantKind.TREE else self._planner.hosts)

    # -- wished trees

    def move(self) -> None:
        """Give up trees for those that are wished, if these will be free."""
        while self._planner.sharp:
            wishes = self._wishes()
            self._await(wishes)
            wished = {}
            for wish in wishes:
                tree = None if wish.tree is None else self._wished(wish)
                if (
                    wish.tree is not None
                    and tree not in (None, wish.tree)
                    and not self._unreachable(wish, tree)
                ):
                    has, wants = (self._planner.used(wish.number, one) for one in (wish.tree, tree))
                    wished[wish.number] = Wished(has, wants)
            moving = who_moves(self._room_beside(), wished) if wished else frozenset()
            if not moving:
                return
            for number in sorted(moving):
                self._give_up(number)
            self.free()

    def _wished(self, wish: TreeWished) -> TreeNames | None:
        """The candidate in switches of SHARP with the root that is wished, if it is not known to be out of
        reach."""
        root = self.draft.jobs[wish.number].root
        for tree in self._planner.candidates(wish.number) if root else ():
            if tree.root == root and self._planner.sharp.intersection(tree.switches):
                lost = any(map(self._is_lost, tree.switches)) or self._is_refused(wish, tree)
                return None if lost else tree
        return None

    def _await(self, wishes: list[TreeWished]) -> None:
        """Jobs without a tree wait if the one that they wish has room, once what was released is free; but
        not for a host that may never say that it has given its place back, of whichever job."""
        stuck = {grant.job for grant in self._places() if self._is_stuck(grant)}
        room = self._room(stuck)
        self._awaited = {}
        for wish in wishes:
            tree = self._wished(wish) if wish.tree is None and wish.number not in stuck else None
            used = [] if tree is None else self._planner.used(wish.number, tree)
            if tree is not None and all(room[resource] > 0 for resource in used):
                self._awaited[wish.number] = tree
                _take(room, used)

    def _is_stuck(self, grant: Grant) -> bool:
        return self._observed.agent(grant.agent).presence is Presence.GONE

    def _room_beside(self) -> dict[Resource, int]:
        """Free slots that nobody waits for; less than none where somebody waits for one that is taken."""
        room = self._room()
        for number, tree in self._awaited.items():
            _take(room, self._planner.used(number, tree))
        return room

    def _is_refused(self, wish: TreeWished, tree: TreeNames) -> bool:
        """Whether it is in SHARP, and a host of the job says that it keeps to no places."""
        agents = (self._observed.agent(host) for host in wish.hosts)
        return bool(self._planner.sharp.intersection(tree.switches)) and any(
            agent.presence is Presence.UP and not agent.has_collective for agent in agents
        )

    def _unreachable(self, wish: TreeWished, tree: TreeNames) -> list[str]:
        """Who is not there as a new tree needs it: switches, and for SHARP hosts with its library."""
        sharp = self._planner.sharp.intersection(tree.switches)
        summing = self._planner.summing.intersection(tree.switches) - sharp
        hosts = [(name, self._observed.agent(name)) for name in wish.hosts] if sharp else []
        found = [
            name for name, agent in hosts if agent.presence is not Presence.UP or not agent.has_collective
        ]
        return found + [name for name in sorted(summing) if not self._is_usable(self._observed.agent(name))]

    def forget(self, history_max: int) -> None:
        """Jobs that have been over for longest, not those that came first: one may just have ended."""
        busy = self.draft.index.of_job.keys()
        if len(self.draft.jobs) - len(self.draft.index.live) <= history_max:
            return
        jobs = self.draft.jobs
        over = sorted(jobs.keys() - self.draft.index.live.keys(), key=lambda one: (jobs[one].revision, one))
        for number in over[: len(over) - history_max]:
            if number not in busy:
                self.draft.make(Forget(number))

    # -- hosts

    def place(self) -> None:
        waiting = [job for job in self._live() if job.state in (JobState.SUBMITTED, JobState.QUEUED)]
        if not waiting:
            return
        free = self._free_hosts()
        occupancy = self._planner.occupancy(free)
        taken = self._trees_taken()
        is_held_up = False
        for job in waiting:
            named = job.spec.on
            if not named and job.spec.hosts > len(self._planner.hosts):  # there were more, at first
                self._queue(
                    job, f"waits for {job.spec.hosts} hosts: the cluster has {len(self._planner.hosts)}"
                )
                continue
            route: Route | None = None
            hosts = None if is_held_up else self._hosts_for(job, free, occupancy)
            if hosts is not None and self._joint is not None and len(hosts) > 1:
                hosts, route = self._planned_jointly(self._joint, job, hosts, free, taken)
            out = free.intersection(named if hosts is None else hosts)
            if hosts is None:
                self._queue(job, BEHIND if is_held_up else self._why(job, free))
                is_held_up = is_held_up or not named
            free -= out
            self._planner.take(occupancy, out)
            if hosts is None:
                continue
            tree = None if route is None or route.tree is None else self._planner.named(route.tree)
            self._set(replace(job, state=JobState.PLACED, why="", hosts=hosts, tree=tree, route=route))
            for name in hosts:
                self._give(job, GrantKind.SEATS, name, (Slot(name, "", 0),))

    def _hosts_for(self, job: Job, free: set[str], occupancy: Occupancy) -> tuple[str, ...] | None:
        if not job.spec.on:
            return self._planner.place(occupancy, job.spec.hosts)
        return job.spec.on if free.issuperset(job.spec.on) else None

    def _planned_jointly(
        self,
        joint: JointPlacement,
        job: Job,
        hosts: tuple[str, ...],
        free: set[str],
        taken: list[LiveTree],
    ) -> tuple[tuple[str, ...], Route]:
        """``hosts``: what it gets where there is no tree for it. Its tree is added to those ``taken``."""
        found: LivePlace | LiveTree | Infeasible
        away = self._switches_away()
        found = joint.planned(hosts, taken, away) if job.spec.on else joint.placed(free, hosts, taken, away)
        if isinstance(found, Infeasible):
            return hosts if job.spec.on else joint.ranked(hosts), Route(None, why=str(found))
        place = found if isinstance(found, LivePlace) else LivePlace(hosts, found)
        taken.append(place.tree)
        return place.hosts, Route(place.tree.tree, place.tree.rate)

    def _trees_taken(self, but: Job | None = None) -> list[LiveTree]:
        """Trees of rings, and those that are promised to other jobs, whose ring is to come."""
        if self._joint is None:
            return []
        rings = self._observed.rings
        taken = [ring.tree for ring in rings.values()]
        followed = gone_on(rings)
        for job in self._live():
            if job != but and self._ring_of(job) is None and job.spec.name not in followed:
                tree = self._joint.tree(job)
                taken += [] if tree is None else [tree]
        return taken

    def _switches_away(self) -> frozenset[str]:
        return frozenset(
            name for name in self._planner.summing if not self._is_usable(self._observed.agent(name))
        )

    def _free_hosts(self) -> set[str]:
        """Those that report, and hold nothing that is not known here."""
        taken = {slot.agent for slot in self.draft.taken}
        return {name for name in self._planner.hosts - taken if self._is_usable(self._observed.agent(name))}

    def _is_usable(self, agent: Agent) -> bool:
        known = self.draft.grants
        return agent.presence is Presence.UP and all(number in known for number in agent.holds)

    def _why(self, job: Job, free: set[str]) -> str:
        if job.spec.on:
            missing = sorted(set(job.spec.on) - free)
            return f"waits for hosts that it names: {', '.join(map(self._why_not, missing))}"
        hosts, seen = self._planner.hosts, self._observed
        away = sorted(name for name in hosts if seen.agent(name).presence is not Presence.UP)
        said = f"waits for {job.spec.hosts} hosts: {len(free)} of {len(hosts)} are free"
        if not away:
            return said
        more = f" and {len(away) - NAMED_MAX} more" if len(away) > NAMED_MAX else ""
        return f"{said}, {len(away)} do not report: {', '.join(away[:NAMED_MAX])}{more}"

    def _why_not(self, host: str) -> str:
        if host not in self._planner.hosts:
            return f"{host}, which the cluster file has no more"
        return (
            f"{host} is taken"
            if self._observed.agent(host).presence is Presence.UP
            else f"{host} does not report"
        )

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
        if self._planner.sharp:
            self._await(wishes)
        if all(wish.tree is not None for wish in wishes):
            return
        room, beside, attached = self._room(), self._room_beside(), self._attached()
        barred = {
            wish.number: [
                tree
                for tree in self._planner.candidates(wish.number)
                if wish.number in attached
                or self._is_barred(wish, tree, room if wish.number in self._awaited else beside)
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
        for job in self._live():
            if job.tree is None and job.number not in self._awaited:
                self._release_all(job.number, GrantKind.RESERVATION)  # it had moved, and found its wish taken
        if self._pool is None or self._observed.agent(UFM).presence is not Presence.UP:
            return
        for job in self._live():
            if job.tree is None or self._grants_of(job.number, GrantKind.RESERVATION):
                continue
            slots = self._pool.slots(job.hosts, self.draft.taken, self._observed.barred_pkeys)
            if not isinstance(slots, str):
                self._give(job, GrantKind.RESERVATION, UFM, slots)

    # -- places

    def give_places(self) -> None:
        """One at each host of a job whose tree is in SHARP, once its reservation stands if it needs one."""
        for job in self._live():
            if job.tree is None or not self._planner.sharp.intersection(job.tree.switches):
                self._release_all(job.number, GrantKind.PLACE)
                continue
            if self._pool is not None and not self._is_reserved(job.number):
                continue
            having = {grant.agent for grant in self._grants_of(job.number, GrantKind.PLACE)}
            for name in job.hosts:
                if name not in having:
                    self._give(job, GrantKind.PLACE, name, ())

    def _is_reserved(self, job: int) -> bool:
        holds = self._observed.agent(UFM).holds
        grants = self._grants_of(job, GrantKind.RESERVATION)
        return any(grant.number in holds and holds[grant.number].phase is Phase.RUNNING for grant in grants)

    def _wishes(self) -> list[TreeWished]:
        """None where hosts and trees are planned together: nothing is granted for these trees."""
        if self._joint is not None:
            return []
        return [
            TreeWished(job.number, job.hosts, job.spec.model, job.tree)
            for job in self._live()
            if len(job.hosts) > 1 and self._planner.hosts.issuperset(job.hosts)
        ]

    def _room(self, stuck: Collection[int] | None = None) -> dict[Resource, int]:
        """Free slots; with ``stuck`` also those that are to become free, but of these jobs."""
        room = dict(self._planner.capacities)
        for number in self.draft.index.of_kind.of(GrantKind.TREE):
            grant = self.draft.grants[number]
            if grant.released is None or stuck is None or grant.job in stuck:
                for slot in grant.slots:
                    resource = Resource(slot.agent, slot.port)
                    if resource in room:
                        room[resource] -= 1
        return room

    def _is_barred(self, wish: TreeWished, tree: TreeNames, room: dict[Resource, int]) -> bool:
        return self._bar(wish, tree, room) is not None

    def _bar(self, wish: TreeWished, tree: TreeNames, room: dict[Resource, int]) -> Bar | None:
        """What keeps the job from that tree now."""
        away = self._unreachable(wish, tree)
        if away:
            return Bar(away=tuple(away))
        awaited = self._awaited.get(wish.number, tree)
        if awaited != tree:
            return Bar(awaited=awaited.root)
        full = [one for one in self._planner.used(wish.number, tree) if room[one] < 1]
        return Bar(full=tuple(full)) if full else None

    def _holders(self, resources: Collection[Resource]) -> set[str]:
        """Names of jobs that have slots there."""
        held = {
            grant.job
            for slot, grant in self.draft.taken.items()
            if Resource(slot.agent, slot.port) in resources
        }
        return {self.draft.jobs[number].spec.name for number in held if number in self.draft.jobs}

    def without_trees(self) -> dict[int, str]:
        if self._joint is not None:
            return {
                job.number: job.route.why for job in self._live() if job.route is not None and job.route.why
            }
        wishes = [wish for wish in self._wishes() if wish.tree is None]
        if not wishes:
            return {}
        self._planner.enter(self._wishes())
        if self._planner.sharp:
            self._await(self._wishes())
        room, beside, attached = self._room(), self._room_beside(), self._attached()
        return {
            wish.number: NOT_LEFT
            if wish.number in attached
            else self._why_none(wish, room if wish.number in self._awaited else beside)
            for wish in wishes
        }

    def _why_none(self, wish: TreeWished, room: dict[Resource, int]) -> str:
        trees = self._planner.candidates(wish.number)
        if not trees:
            return NOWHERE
        if not self._planner.gains(wish.model):
            return f"{wish.model} {GAINS_NOTHING}"
        return told([self._bar(wish, tree, room) for tree in trees], self._holders)

    def _slots(self, number: int, tree: TreeNames) -> tuple[Slot, ...] | None:
        taken = self.draft.taken
        found = []
        for resource in self._planner.used(number, tree):
            slot = next(_free_slots(resource, self._planner.capacities[resource], taken), None)
            if slot is None:
                return None
            found.append(slot)
        return tuple(found)


def _free_slots(resource: Resource, capacity: int, taken: Mapping[Slot, Grant]) -> Iterator[Slot]:
    slots = (Slot(resource.agent, resource.port, number) for number in range(capacity))
    return (slot for slot in slots if slot not in taken)


def _take(room: dict[Resource, int], used: list[Resource]) -> None:
    for resource in used:
        room[resource] -= 1


def _is_rid(agent: Agent, grant: int, released: int) -> bool:
    """Whether it cannot hold the grant, now or later: it has applied wishes that leave it out."""
    return agent.presence is Presence.UP and agent.applied >= released and grant not in agent.holds
