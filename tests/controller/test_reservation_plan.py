"""Reservations as the plan and the comparison with UFM have them, whatever is lost on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto_controller.cluster.desired import Change, Grant, GrantKind, applied
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.cluster.reserved import UFM, Pool, guids_of, parse_pkeys, pkey_of
from inaproto_controller.service.observed import Agent, Hold, Observed, Phase, Presence
from inaproto_controller.service.plan import plan
from inaproto_controller.service.sharp.comparison import Comparison, Entry, Put, Take, compare
from tests.controller.planned_cluster import PlannedCluster, racks
from tests.seeds import seeds

STRANGER = "0x00000000000000ff"
"""GUID of somebody else."""


def guid(number: int) -> str:
    """GUID of a host, by its number."""
    return f"{number + 0xA0:#018x}"


def pool(topology: GraphTopology, pkeys: str = "0x10-0x11") -> Pool:
    """Pool with a GUID for each host."""
    return Pool(parse_pkeys(pkeys), {name: (guid(at),) for at, name in enumerate(topology.host_names)})


class ReservedCluster(PlannedCluster):
    """A cluster with a UFM, whose questions are lost, or done and not answered, or both in part."""

    def __init__(self, topology: GraphTopology, seed: int, *, pkeys: str = "0x10-0x11", by_app: bool) -> None:
        super().__init__(topology, seed)
        self.pool = pool(topology, pkeys)
        self.by_app = by_app
        self.ufm: dict[str, Entry] = {}
        self.ufm_agent = Agent(Presence.UNKNOWN)
        self.barred: frozenset[str] = frozenset()
        self.is_reliable = False
        self.double: list[str] = []

    def key(self, grant: Grant) -> str:
        """Key in UFM."""
        return f"inaproto-{grant.number}" if self.by_app else pkey_of(grant)

    def look(self) -> tuple[Change, ...]:
        """Look at UFM, or not, then plan."""
        if self.is_reliable or self.random.random() < 0.5:
            self.look_at_ufm()
        agents = {**self.observed, UFM: self.ufm_agent}
        observed = Observed(agents, barred_pkeys=self.barred)
        return self.commit(plan(self.desired, observed, self.planner, pool=self.pool))

    def look_at_ufm(self) -> None:
        """One look, which may break off anywhere."""
        while True:
            found = self.compared()
            changes: list[Take | Put] = [*found.takes] or [*found.puts]
            for change in changes:
                if not self.is_reliable and self.random.random() < 0.2:
                    self.ufm_agent = replace(self.ufm_agent, presence=Presence.UNKNOWN)
                    if self.random.random() < 0.5:
                        self.do(change)
                    return
                self.do(change)
            if not changes:
                break
        holds = {
            number: Hold(Phase.RUNNING if number in found.standing else Phase.HELD) for number in found.held
        }
        self.ufm_agent = Agent(Presence.UP, self.desired.revision, holds)
        self.barred = frozenset(found.barred)

    def compared(self) -> Comparison:
        """What is to change in UFM."""
        grants = [one for one in self.desired.grants.values() if one.kind is GrantKind.RESERVATION]
        return compare(grants, self.ufm, self.key, self.pool.known_guids())

    def do(self, change: Take | Put) -> None:
        """UFM does it."""
        if isinstance(change, Put):
            self.ufm[change.key] = change.entry
        elif change.left and not self.by_app:
            self.ufm[change.key] = Entry(change.pkey, change.left)
        else:
            self.ufm.pop(change.key, None)
        self.check_ufm()

    def check_ufm(self) -> None:
        """No GUID is in two reservations."""
        owner: dict[str, str] = {}
        for key, entry in self.ufm.items():
            for one in entry.guids:
                if owner.setdefault(one, key) != key:
                    self.double.append(f"{one} in {key} and {owner[one]}")

    def _crash(self) -> None:
        super()._crash()
        self.ufm_agent, self.barred = Agent(Presence.UNKNOWN), frozenset()

    def settle(self) -> None:
        """Everything is answered."""
        self.is_reliable = True
        super().settle()
        self.is_reliable = False


def reservations(cluster: PlannedCluster) -> list[Grant]:
    """Those that are promised and not released."""
    grants = cluster.desired.grants.values()
    return [one for one in grants if one.kind is GrantKind.RESERVATION and one.released is None]


@pytest.mark.parametrize("by_app", [False, True], ids=["pkeys", "apps"])
@pytest.mark.parametrize("seed", seeds(40))
def test_no_pkey_and_no_guid_is_given_twice_and_none_is_left(seed: int, by_app: bool) -> None:
    cluster = ReservedCluster(racks(hosts=2 + seed % 2, jobs=1 + seed % 3), seed, by_app=by_app)
    stood = 0
    for _ in range(10):
        for _ in range(100):
            cluster.walk()
            cluster.check()
        cluster.settle()
        for grant in reservations(cluster):
            assert cluster.ufm[cluster.key(grant)] == Entry(pkey_of(grant), guids_of(grant))
            assert cluster.desired.jobs[grant.job].tree is not None
        assert len(cluster.ufm) == len(reservations(cluster))
        stood += len(cluster.ufm)
    for job in cluster.desired.live():
        cluster.cancel(job.number)
    cluster.settle()
    assert cluster.ufm == {}
    assert cluster.desired.grants == {}
    assert cluster.double == []
    assert stood


def test_whose_tree_is_lost_loses_the_reservation() -> None:
    cluster = ReservedCluster(racks(), 0, by_app=False)
    cluster.submit(4)
    cluster.settle()
    assert len(cluster.ufm) == 1
    cluster.observed["leaf0"] = Agent(Presence.GONE)
    cluster.is_reliable = True
    cluster.look()
    cluster.look()
    assert cluster.ufm == {}


def test_more_jobs_than_pkeys_wait_for_one() -> None:
    cluster = ReservedCluster(racks(hosts=4, jobs=4), 0, pkeys="0x10", by_app=False)
    first, second = cluster.submit(4), cluster.submit(4)
    cluster.settle()
    assert [one.job for one in reservations(cluster)] == [first]
    cluster.cancel(first)
    cluster.settle()
    assert [one.job for one in reservations(cluster)] == [second]
    taken = cluster.desired.taken()
    assert cluster.pool.slots(["h0"], taken, []) == "all 1 PKeys of ufm_pkeys are taken"
    assert "no GUIDs of h9 are known" in str(cluster.pool.slots(["h9"], taken, []))


def test_nothing_is_promised_while_ufm_does_not_answer() -> None:
    cluster = ReservedCluster(racks(), 0, by_app=False)
    cluster.submit(4)
    for name in cluster.agents:
        cluster.observed[name] = Agent(Presence.UP)
    for _ in range(3):
        changes = plan(cluster.desired, Observed(cluster.observed), cluster.planner, pool=cluster.pool)
        cluster.desired = applied(cluster.desired, changes)
    assert cluster.desired.jobs[1].tree is not None
    assert reservations(cluster) == []


def planned(cluster: ReservedCluster, ufm: Agent) -> list[Grant]:
    """Reservations that are promised still, freed ones left out, if UFM is known as this."""
    agents = {name: agent.report() for name, agent in cluster.agents.items()}
    for _ in range(2):
        observed = Observed({**agents, UFM: ufm})
        changes = plan(cluster.desired, observed, cluster.planner, pool=cluster.pool)
        cluster.desired = applied(cluster.desired, changes)
    return [one for one in cluster.desired.grants.values() if one.kind is GrantKind.RESERVATION]


def test_what_ufm_may_still_have_is_not_freed(settled: ReservedCluster) -> None:
    """Not while it does not answer, nor by an answer from before, nor while it has a GUID of it."""
    settled.cancel(1)
    (grant,) = planned(settled, settled.ufm_agent)
    assert grant.released is not None
    late = settled.desired.revision
    assert planned(settled, Agent(Presence.UNKNOWN, late)) == [grant]
    assert planned(settled, Agent(Presence.UP, grant.released - 1)) == [grant]
    settled.ufm = {"0x0010": Entry("0x0010", frozenset({guid(1)}))}
    found = settled.compared()
    assert found.held == {grant.number}
    assert planned(settled, Agent(Presence.UP, late, {number: Hold() for number in found.held})) == [grant]
    settled.ufm = {}
    assert settled.compared().held == set()
    assert planned(settled, Agent(Presence.UP, late)) == []


# --- the comparison, case by case


def compared(cluster: ReservedCluster, seen: dict[str, Entry]) -> tuple[Comparison, Grant]:
    """What is to change for the one reservation of a cluster, if UFM has this."""
    cluster.ufm = seen
    (grant,) = reservations(cluster)
    return cluster.compared(), grant


@pytest.fixture
def settled() -> ReservedCluster:
    cluster = ReservedCluster(racks(hosts=1), 0, by_app=False)
    cluster.submit(2)
    cluster.settle()
    return cluster


def test_what_is_missing_is_put_there(settled: ReservedCluster) -> None:
    whole = Entry("0x0010", frozenset({guid(0), guid(1)}))
    for seen in ({}, {"0x0010": Entry("0x0010", frozenset({guid(0)}))}):
        found, grant = compared(settled, dict(seen))
        assert found.puts == [Put(grant.number, "0x0010", whole, not seen)]
    found, grant = compared(settled, {"0x0010": whole})
    assert (found.puts, found.takes, found.standing) == ([], [], {grant.number})


def test_what_came_too_late_is_put_right(settled: ReservedCluster) -> None:
    """A question of a controller that led before has put another job's hosts there."""
    settled.pool = replace(settled.pool, guids={**settled.pool.guids, "h9": (guid(9),)})
    found, grant = compared(settled, {"0x0010": Entry("0x0010", frozenset({guid(9)}))})
    assert [put.grant for put in found.puts] == [grant.number]
    found, _ = compared(settled, {"0x0011": Entry("0x0011", frozenset({guid(9)}))})
    assert found.takes == [Take("0x0011", "0x0011", frozenset())]
    assert found.barred == {"0x0011"}


def test_strangers_are_told_and_stay(settled: ReservedCluster) -> None:
    both = frozenset({guid(0), STRANGER})
    found, grant = compared(settled, {"0x0010": Entry("0x0010", both)})
    assert (found.puts, found.takes) == ([], [])
    assert STRANGER in found.problems[grant.number]
    found, _ = compared(settled, {"0x0011": Entry("0x0011", frozenset({STRANGER}))})
    assert found.takes == []
    assert found.barred == {"0x0011"}
    assert found.strangers == {"0x0011": frozenset({STRANGER})}
    settled.cancel(1)
    settled.is_reliable = False
    settled.look()
    settled.ufm = {"0x0010": Entry("0x0010", both)}
    assert settled.compared().takes == [Take("0x0010", "0x0010", frozenset({STRANGER}))]


def test_who_is_elsewhere_is_not_put_in_twice(settled: ReservedCluster) -> None:
    elsewhere = Entry("0x0200", frozenset({guid(1)}), is_ours=False)
    found, grant = compared(settled, {"slurm": elsewhere})
    assert found.puts == []
    assert found.problems[grant.number] == f"{guid(1)}: still in slurm of UFM, and is to be in one only"
    assert found.strangers == {"slurm": elsewhere.guids}
