"""A controller's plan with agents to whom messages come late or not at all, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from inaproto_controller.cluster.desired import (
    Change,
    Desired,
    Grant,
    GrantKind,
    Job,
    JobSpec,
    JobState,
    SetJob,
    Slot,
    applied,
)
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.cluster.number_groups import Groups
from inaproto_controller.planning.cluster_planner import ClusterPlanner
from inaproto_controller.planning.paring.live_placement import JointPlacement
from inaproto_controller.planning.paring.live_tree import LivePlace
from inaproto_controller.service.observed import Agent, Hold, Observed, Phase, Presence
from inaproto_controller.service.plan import plan


def racks(
    *,
    racks: int = 2,
    hosts: int = 2,
    jobs: int | None = 1,
    per_port: int | None = None,
    sharp: bool = False,
    spines: int = 2,
) -> GraphTopology:
    """Racks of hosts under spines; every switch has the same limits, and may sum by SHARP."""
    names = tuple(f"h{number}" for number in range(racks * hosts))
    switches = [GraphSwitch(f"leaf{rack}", jobs, per_port, sharp) for rack in range(racks)]
    switches += [GraphSwitch(f"spine{number}", jobs, per_port, sharp) for number in range(spines)]
    first = len(names)
    links = [GraphLink(host, first + host // hosts) for host in range(len(names))]
    links += [
        GraphLink(first + rack, first + racks + spine) for rack in range(racks) for spine in range(spines)
    ]
    return GraphTopology(names, tuple(switches), tuple(links))


def without(topology: GraphTopology, *hosts: str) -> GraphTopology:
    """A cluster file that an operator has taken them out of."""
    names = tuple(name for name in topology.host_names if name not in hosts)
    kept = [node for node, name in enumerate(topology.host_names) if name not in hosts]
    kept += range(topology.hosts, topology.hosts + len(topology.switches))
    number = {node: place for place, node in enumerate(kept)}
    links = [
        GraphLink(number[link.one], number[link.other])
        for link in topology.links
        if link.one in number and link.other in number
    ]
    return GraphTopology(names, topology.switches, tuple(links))


@dataclass(frozen=True, slots=True)
class Wishes:
    revision: int
    grants: tuple[Grant, ...]


@dataclass(slots=True)
class ModelAgent:
    """Takes whole wishes, and reports all that it has."""

    is_up: bool = True
    applied: int = 0
    holds: dict[int, tuple[Grant, Hold]] = field(default_factory=dict)
    unwanted: set[int] = field(default_factory=set)
    inbox: deque[Wishes] = field(default_factory=deque)
    outbox: deque[Agent] = field(default_factory=deque)
    has_collective: bool = False

    def take(self, wishes: Wishes) -> None:
        if wishes.revision < self.applied:
            return
        self.applied = wishes.revision
        wanted = {grant.number: grant for grant in wishes.grants}
        self.unwanted = {number for number in self.holds if number not in wanted}
        for number, grant in wanted.items():
            self.holds.setdefault(number, (grant, Hold()))
        self.outbox.append(self.report())

    def give_up(self) -> None:
        """What it was to give up, which takes a while."""
        self.holds = {number: held for number, held in self.holds.items() if number not in self.unwanted}

    def report(self) -> Agent:
        holds = {number: hold for number, (_, hold) in self.holds.items()}
        return Agent(Presence.UP, self.applied, holds, self.has_collective)

    def disconnect(self) -> None:
        self.inbox.clear()
        self.outbox.clear()


class PlannedCluster:
    """``walk`` does one random thing; ``check`` is for after each."""

    def __init__(
        self,
        topology: GraphTopology,
        seed: int,
        *,
        joint: Callable[[GraphTopology], JointPlacement | None] = lambda topology: None,
    ) -> None:
        self.random = Random(f"{seed}/planned cluster")
        self.joint = joint
        self.planner = ClusterPlanner(topology, joint(topology))
        self.topology = topology
        self.rings: dict[str, LivePlace] = {}
        self.desired = Desired()
        self.observed: dict[str, Agent] = {}
        switches = sorted(self.planner.summing - self.planner.sharp)
        self.agents = {name: ModelAgent(has_collective=True) for name in topology.host_names}
        self.agents |= {name: ModelAgent() for name in switches}
        self._elastic = Random(f"{seed}/elastic")
        self.submitted = 0
        self.trees: dict[int, frozenset[Slot]] = {}
        """Slots of the tree that each place was given for, by its number."""
        self.forsaken: set[int] = set()
        """Places that hosts had when the file lost them: an operator has said that they are down."""

    # -- the controller

    def look(self) -> tuple[Change, ...]:
        before = self.desired
        changes = self.commit(plan(before, self.seen, self.planner))
        self._check_elastic(before)
        return changes

    @property
    def seen(self) -> Observed:
        return Observed(dict(self.observed), rings=dict(self.rings))

    def commit(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        if not changes:
            return changes
        self.desired = applied(self.desired, changes)
        for number, grant in self.desired.grants.items():
            if grant.kind is GrantKind.PLACE and number not in self.trees:
                self.trees[number] = self.slots(grant.job)
        return changes

    def slots(self, job: int) -> frozenset[Slot]:
        """Slots of the tree that the job has now."""
        found = (
            one.slots
            for one in self.desired.grants.values()
            if one.job == job and one.kind is GrantKind.TREE and one.released is None
        )
        return frozenset(slot for slots in found for slot in slots)

    def wishes(self, name: str) -> Wishes:
        mine = [one for one in self.desired.grants.values() if one.agent == name and one.released is None]
        if not self.agents[name].has_collective:
            mine = [one for one in mine if one.kind is not GrantKind.PLACE]
        return Wishes(self.desired.revision, tuple(mine))

    def submit(self, hosts: int, on: tuple[str, ...] = (), *, elastic: bool = False) -> int:
        self.submitted += 1
        number = self.desired.next_job
        spec = JobSpec(name=f"job{number}", hosts=hosts, on=on, elastic=elastic)
        job = Job(number=number, spec=spec, token_hash="")
        self.desired = applied(self.desired, [SetJob(job)])
        return number

    def cancel(self, number: int) -> None:
        job = self.desired.jobs[number]
        if job.state.is_live:
            self.desired = applied(self.desired, [SetJob(replace(job, state=JobState.CANCELLED))])

    def wish(self, number: int, root: str) -> None:
        """A person wishes for a root."""
        self.desired = applied(self.desired, [SetJob(replace(self.desired.jobs[number], root=root))])

    # -- things that happen

    def walk(self) -> None:
        often = [
            self._submit,
            self._cancel,
            self._run,
            *[self._send, self._deliver, self._report, self.look] * 4,
        ]
        rare = [self._crash, self._reboot, self._lose, self._edit]
        rarely = 0.02
        if self.planner.sharp:  # a move takes many steps, so jobs are to live for longer
            often += [self._wish, self._wish, self._attach]
            often += [self._send, self._deliver, self._report, self.look] * 24
            rarely = 0.005
        self.random.choice(rare if self.random.random() < rarely else often)()

    def _submit(self) -> None:
        if len(self.desired.live()) < 6:
            most = 3 if self.planner.sharp else self.planner.topology.hosts
            self.submit(self.random.randint(1, most), elastic=self._elastic.random() < 0.4)

    def _cancel(self) -> None:
        live = self.desired.live()
        if live:
            self.cancel(self.random.choice(live).number)

    def _any(self) -> tuple[str, ModelAgent]:
        return self.random.choice(sorted(self.agents.items(), key=lambda item: item[0]))

    def _send(self) -> None:
        name, agent = self._any()
        if agent.is_up and name in self.observed and self.random.random() < 0.8:
            agent.inbox.append(self.wishes(name))

    def _deliver(self) -> None:
        _, agent = self._any()
        if agent.inbox:
            agent.take(agent.inbox.popleft())

    def _report(self) -> None:
        name, agent = self._any()
        if agent.is_up:
            if self.random.random() < 0.5:
                agent.give_up()
            if self.random.random() < 0.5:
                agent.outbox.append(agent.report())
            if agent.outbox and self._is_known(name):
                self.observed[name] = agent.outbox.popleft()

    def _run(self) -> None:
        _, agent = self._any()
        for number, (grant, hold) in sorted(agent.holds.items()):
            if grant.kind is GrantKind.SEATS and agent.is_up:
                after = {Phase.HELD: Phase.RUNNING, Phase.RUNNING: Phase.ENDED}.get(hold.phase, hold.phase)
                if self.random.random() < 0.1:
                    after = Phase.FAILED
                agent.holds[number] = grant, Hold(after)

    def _wish(self) -> None:
        live = self.desired.live()
        if live:
            switches = self.topology.switches
            roots = ["", *(one.name for one in switches if one.name.startswith("spine"))]
            self.wish(self.random.choice(live).number, self.random.choice(roots))

    def _attach(self) -> None:
        """Or not, for a while."""
        _, agent = self._any()
        for number, (grant, _) in agent.holds.items():
            if grant.kind is GrantKind.PLACE:
                agent.holds[number] = grant, Hold(self.random.choice([Phase.HELD, Phase.RUNNING]))

    def _crash(self) -> None:
        """Of the controller: what is stored stays."""
        self.observed.clear()
        for agent in self.agents.values():
            agent.disconnect()
        topology = self.planner.topology
        self.planner = ClusterPlanner(topology, self.joint(topology))

    def _reboot(self) -> None:
        """Of an agent, or only of its connection."""
        name, agent = self._any()
        agent.disconnect()
        self.observed.pop(name, None)
        if self.random.random() < 0.5:
            agent.applied, agent.holds = 0, {}
            if self.planner.sharp and name in self.topology.host_names:
                agent.has_collective = self.random.random() < 0.9

    def _lose(self) -> None:
        """Or find again, each of which has been lost."""
        for name, agent in self.agents.items():
            if not agent.is_up:
                agent.is_up = True
                if self.random.random() < 0.5:
                    agent.applied, agent.holds = 0, {}
                self.observed.pop(name, None)
        if self.random.random() < 0.5:
            name, agent = self._any()
            agent.is_up = False
            agent.disconnect()
            if self._is_known(name):
                self.observed[name] = Agent(Presence.GONE)

    def _edit(self) -> None:
        """The controller is started with a cluster file that lacks some host, or lacks none any more."""
        missing = [name for name in self.topology.host_names if name not in self.planner.hosts]
        gone = [] if missing else [self.random.choice(self.topology.host_names)]
        self.edit(*gone)

    def edit(self, *gone: str) -> None:
        for name in gone:
            held = self.agents[name].holds.values()
            self.forsaken |= {grant.number for grant, _ in held if grant.kind is GrantKind.PLACE}
        topology = without(self.topology, *gone)
        self.planner = ClusterPlanner(topology, self.joint(topology))
        self._crash()

    def _is_known(self, name: str) -> bool:
        """Others have no sessions."""
        return name in self.planner.hosts or name in self.planner.summing - self.planner.sharp

    # -- laws

    def _check_elastic(self, before: Desired) -> None:
        """An elastic job that has begun is over when no seat runs, or may run unheard of, and not before."""
        for number in before.index.live:
            old, job = before.jobs[number], self.desired.jobs[number]
            grants = [one for one in before.grants.values() if one.job == number]
            seats = [one for one in grants if one.kind is GrantKind.SEATS and one.released is None]
            if not job.spec.elastic or old.state not in (JobState.PLACED, JobState.RUNNING):
                continue
            goes_on = [one for one in seats if self._may_go_on(one)]
            has_begun = old.state is JobState.RUNNING or any(self._has_begun(one) for one in seats)
            if has_begun:
                assert job.state.is_live == bool(goes_on), (job, goes_on)
            else:
                assert job.state in (JobState.PLACED, JobState.QUEUED), job

    def _phase(self, seat: Grant) -> Phase | None:
        """As it was said last; None: nothing was."""
        agent = self.observed.get(seat.agent, Agent(Presence.UNKNOWN))
        if agent.presence is not Presence.UP or seat.agent not in self.planner.hosts:
            return None
        return agent.holds.get(seat.number, Hold()).phase

    def _has_begun(self, seat: Grant) -> bool:
        return self._phase(seat) in (Phase.RUNNING, Phase.ENDED, Phase.FAILED)

    def _may_go_on(self, seat: Grant) -> bool:
        agent = self.observed.get(seat.agent, Agent(Presence.UNKNOWN))
        if seat.agent not in self.planner.hosts or agent.presence is Presence.GONE:
            return False
        has_heard = agent.applied >= self.desired.jobs[seat.job].begun > 0
        phase = self._phase(seat)
        return phase in (None, Phase.RUNNING) or (phase is Phase.HELD and not has_heard)

    def _check_index(self) -> None:
        """What was carried from commit to commit is what all that is promised gives."""
        desired, index = self.desired, self.desired.index
        anew = replace(desired).index
        assert list(index.live) == list(anew.live) == [job.number for job in desired.live()]
        assert index.taken.keys() == anew.taken.keys()
        assert index.released.keys() == anew.released.keys()
        pairs: list[tuple[Groups[Any], Groups[Any]]] = [
            (index.by_name, anew.by_name),
            (index.of_job, anew.of_job),
            (index.at, anew.at),
            (index.of_kind, anew.of_kind),
        ]
        for groups, again in pairs:
            anew_keys = again.keys()
            assert groups.keys() == anew_keys
            assert all(groups.of(key) == again.of(key) for key in anew_keys)

    def check(self) -> None:
        """No slot has two grants, at any agent, now or by what is under way; nor have two jobs that may be
        attached to SHARP, and no job may be attached to two trees."""
        owner: dict[Slot, int] = {}
        for agent in self.agents.values():
            for grant, _ in agent.holds.values():
                for slot in grant.slots:
                    assert owner.setdefault(slot, grant.job) == grant.job, (slot, grant)
        self._check_places()
        self._check_index()

    def _check_places(self) -> None:
        user: dict[Slot, int] = {}
        tree: dict[int, frozenset[Slot]] = {}
        for agent in self.agents.values():
            for number, (grant, _) in agent.holds.items():
                if grant.kind is not GrantKind.PLACE or number in self.forsaken:
                    continue
                assert agent.has_collective
                assert tree.setdefault(grant.job, self.trees[number]) == self.trees[number], grant
                for slot in self.trees[number]:
                    assert user.setdefault(slot, grant.job) == grant.job, (slot, grant)
        for job, slots in tree.items():
            taken = self.desired.taken()
            assert all(slot in taken and taken[slot].job == job for slot in slots), "freed too soon"

    def settle(self) -> None:
        """All are up, and in the file, and every message arrives, until nothing changes."""
        if any(not self._is_known(name) for name in self.agents):
            self.edit()
        for agent in self.agents.values():
            agent.is_up = True
            agent.disconnect()
        for _ in range(20):
            for name, agent in self.agents.items():
                self.observed[name] = agent.report()
            told = {agent.applied for agent in self.agents.values()}
            changes = self.look()
            for name, agent in self.agents.items():
                agent.take(self.wishes(name))
                agent.give_up()
                agent.disconnect()
            self.check()
            if not changes and told == {self.desired.revision}:
                return
        raise AssertionError("it does not settle")
