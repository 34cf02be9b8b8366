"""Capacity models of SHARP's generations: their limits, and the same admissions planned and simulated.

The paper's rule is MINA, section III-C: trees share no switch on Quantum, no link on Quantum-2.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import networkx as nx
import pytest

from inaproto.errors import ConfigError
from inaproto_controller.cluster.capacity import CapacityModel, limited, of_generation, said
from inaproto_controller.cluster.desired import JobState, TreeNames
from inaproto_controller.cluster.graph_file import document, of_networkx, parse_json
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.cluster.network import FatTreeNetwork
from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.topology import FatTree
from inaproto_controller.planning.cluster_planner import STEPS_LEFT, ClusterPlanner
from inaproto_controller.planning.placement.occupancy import Cluster
from inaproto_controller.planning.trees.builder import Changes, TreeBuilder, TreeJob
from inaproto_controller.service.observed import Phase
from inaproto_controller.simulate.arrivals import poisson
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.presets import make_setting
from inaproto_controller.simulate.scenario.scenario import Scenario, load_scenario
from inaproto_controller.simulate.setting import Setting
from tests.controller.graphs import drawn
from tests.controller.planned_cluster import PlannedCluster
from tests.controller.test_controller_plan import set_phase
from tests.seeds import all_seeds, seeds

MODEL = "opt-125m-4"
"""It gains by INA at the speeds that both plan for."""
ONE_SWITCH = {
    "hosts": ["a", "b"],
    "switches": [{"name": "s"}],
    "links": [{"between": ["a", "s"]}, {"between": ["b", "s"]}],
}


def read(**fields: object) -> GraphTopology:
    """Read a cluster of one switch with these fields."""
    return parse_json(json.dumps(ONE_SWITCH | {"switches": [{"name": "s"} | fields]}).encode())


# --- limits


@pytest.mark.parametrize(
    ("generation", "model"),
    [
        ("quantum", CapacityModel.SWITCH),
        ("Quantum", CapacityModel.SWITCH),
        ("quantum-2", CapacityModel.PORT),
        ("QUANTUM-2", CapacityModel.PORT),
        ("switch-ib 2", CapacityModel.SWITCH),
        ("quantum-9", CapacityModel.SWITCH),
    ],
)
def test_a_generation_has_its_model_and_an_unknown_one_that_of_quantum(
    generation: str, model: CapacityModel
) -> None:
    assert of_generation(generation) is model
    assert read(generation=generation).switches == (model.limit("s"),)
    graph = nx.Graph([("a", "s"), ("b", "s")])
    for node in graph:
        graph.nodes[node].update(kind="switch" if node == "s" else "host")
    graph.nodes["s"]["generation"] = generation
    assert of_networkx(graph).switches == (model.limit("s"),)


@pytest.mark.parametrize("generation", ["quantum", "quantum-2"])
def test_a_switch_that_sums_by_sharp_is_written_as_such(generation: str) -> None:
    topology = read(generation=generation)
    assert parse_json(json.dumps(document(topology)).encode()) == topology
    assert ClusterPlanner(topology).sharp == {"s"}


def test_a_switch_has_one_quota() -> None:
    with pytest.raises(ConfigError, match=r"switches\[0\] \(s\): generation says the quota"):
        read(generation="quantum", jobs=2)


def test_who_does_not_sum_gets_no_limit_by_a_model() -> None:
    switches = (GraphSwitch("new", jobs=3), GraphSwitch("old"), GraphSwitch("off", jobs=0))
    links = (GraphLink(0, 1), GraphLink(1, 2, 1), GraphLink(2, 3, 0))
    topology = GraphTopology(("h",), switches, links)
    by_port = limited(topology, CapacityModel.PORT)
    assert by_port.switches == (GraphSwitch("new", jobs_per_port=1, sharp=True), *switches[1:])
    assert by_port.links == links
    assert said(by_port) == {"model": "port", "port": 1}
    assert said(topology) == {"model": "mixed", "mixed": 1}
    assert said(limited(topology, CapacityModel.SWITCH)) == {"model": "switch", "switch": 1}


@pytest.mark.parametrize("model", CapacityModel)
def test_the_link_of_a_host_is_a_port_too(model: CapacityModel) -> None:
    """Two jobs on the same two hosts exclude each other by either model; on other hosts of the same switch
    they do so by the switch alone."""
    names = tuple(f"h{number}" for number in range(4))
    topology = GraphTopology(names, (model.limit("s"),), tuple(GraphLink(host, 4) for host in range(4)))
    planner = ClusterPlanner(topology)
    planner._network.enter(0, [0, 1])
    planner._network.enter(1, [0, 1])
    planner._network.enter(2, [2, 3])
    used = [set(planner._network.resources(slot, 0)) for slot in range(3)]
    assert used[0] & used[1]
    assert bool(used[0] & used[2]) == (model is CapacityModel.SWITCH)


def scenario(folder: Path, table: str) -> Scenario:
    """Load a scenario with this table of the cluster."""
    (folder / "one.json").write_text(json.dumps(ONE_SWITCH | {"switches": [{"name": "s", "jobs": 2}]}))
    text = f'[cluster]\n{table}\n[[jobs]]\nmodel = "{MODEL}"\nhosts = 2\nsteps = 1\n'
    (folder / "scenario.toml").write_text(text)
    return load_scenario(folder / "scenario.toml")


def test_a_scenario_has_the_model_in_place_of_quotas(tmp_path: Path) -> None:
    by_port = scenario(tmp_path, 'graph = "one.json"\ncapacity_model = "port"').cluster
    assert isinstance(by_port, GraphTopology)
    assert by_port.switches == (CapacityModel.PORT.limit("s"),)
    for model in CapacityModel:
        found = scenario(tmp_path, f'degree = 4\ncapacity_model = "{model}"')
        network = found.setting(found.variants[0], 0).network
        assert isinstance(network, FatTreeNetwork)
        assert network.quota is model.quota
    with pytest.raises(ConfigError, match="capacity_model says the quota; give one of the two"):
        scenario(tmp_path, 'degree = 4\nquota = "link"\ncapacity_model = "port"')
    with pytest.raises(ConfigError, match="capacity_model"):
        scenario(tmp_path, 'degree = 4\ncapacity_model = "ports"')


# --- admissions, planned and simulated


@dataclass
class Recorder:
    """A builder that notes which trees its jobs have after each build.

    It shows them all with as many steps left as the controller assumes, for nobody tells the controller.
    """

    builder: TreeBuilder
    noted: list[tuple[float, dict[int, int | None]]] = field(default_factory=list)
    """At each build: when, and the root of each running job by order of placement."""
    wants_completions: bool = True

    def build(self, jobs: Sequence[TreeJob], new: Sequence[int], *, now: float, completed: bool) -> Changes:
        shown = [replace(job, steps_left=STEPS_LEFT) for job in jobs]
        changes = self.builder.build(shown, new, now=now, completed=completed)
        self.noted.append((now, {job.number: changes.get(job.slot, job.tree) for job in jobs}))
        return changes


@dataclass(frozen=True)
class Drawn:
    cluster: Cluster
    """As it is simulated: half of them fat trees by closed form."""
    topology: GraphTopology
    """The same node by node, as the controller has it."""
    requests: tuple[Request, ...]
    arrivals: tuple[float, ...]


def draw(seed: int, model: CapacityModel) -> Drawn:
    random_ = random.Random(f"{seed}/{model}/admissions")
    cluster: Cluster
    if seed % 2:
        cluster = random_.choice([FatTree((2, 2, 4), (1, 2, 2)), FatTree((4, 2, 2), (1, 2, 1))])
        topology = GraphTopology.of_fat_tree(cluster, model.quota)
    else:
        cluster = topology = limited(drawn(random_), model)
    sizes = [1, 2, 2, 3, 4, 6]
    requests = tuple(
        Request(MODEL, min(random_.choice(sizes), cluster.hosts), random_.randint(1, 30))
        for _ in range(random_.randint(4, 20))
    )
    arrivals = (0.0,) * len(requests)
    if random_.random() < 0.5:
        arrivals = tuple(poisson(len(requests), rate=3.0, seed=seed))
    return Drawn(cluster, topology, requests, arrivals)


def simulated(one: Drawn, model: CapacityModel) -> tuple[list[tuple[int, ...]], Recorder]:
    """Hosts of each request, and what became of trees at each build."""
    placement = "least-fragments" if not ClusterPlanner(one.topology).no_fragments else "first"
    setting: Setting = make_setting(
        one.cluster,
        quota=model.quota,
        placement=placement,
        trees="sticky",
        tree_options={"may_share": False},
    )
    recorder = Recorder(setting.trees)
    result = simulate(replace(setting, trees=recorder), one.requests, arrivals=one.arrivals)
    assert len(result.jobs) == len(one.requests)
    return [tuple(job.placed_on) for job in result.jobs], recorder


class Controlled(PlannedCluster):
    """The plan of a controller that is told of arrivals and of ends, in the order of a simulation."""

    def tell(self, one: Drawn, now: float, running: set[int]) -> None:
        for number in sorted(self.desired.jobs):
            job = self.desired.jobs[number]
            if job.state is JobState.PLACED and number not in running:
                set_phase(self, number, Phase.ENDED)
        self.settle()
        while self.submitted < len(one.requests) and one.arrivals[self.submitted] <= now:
            request = one.requests[self.submitted]
            number = self.submit(request.hosts)
            job = self.desired.jobs[number]
            self.desired = replace(
                self.desired,
                jobs={**self.desired.jobs, number: replace(job, spec=replace(job.spec, model=MODEL))},
            )
        self.settle()

    def admitted(self) -> dict[int, TreeNames | None]:
        return {job.number: job.tree for job in self.desired.live() if job.state is JobState.PLACED}


def admissions_differ(seed: int, model: CapacityModel) -> list[str]:
    """Each difference in who runs where, and with which tree; and each conflict of two trees."""
    one = draw(seed, model)
    hosts, recorder = simulated(one, model)
    cluster = Controlled(one.topology, seed)
    found: list[str] = []
    for now, trees in recorder.noted:
        running = {number + 1 for number in trees}
        cluster.tell(one, now, running)
        admitted = cluster.admitted()
        if admitted.keys() != running:
            return [*found, f"at {now}: {sorted(running)} run simulated, {sorted(admitted)} by the plan"]
        for number, root in trees.items():
            job = cluster.desired.jobs[number + 1]
            names = tuple(one.topology.host_names[host] for host in hosts[number])
            tree = None
            if root is not None and len(names) > 1:
                tree = cluster.planner.candidates(job.number)[root]
            if (job.hosts, job.tree) != (names, tree):
                found.append(f"at {now}, job {number}: {names} {tree} simulated, {job.hosts} {job.tree}")
        found += conflicts(model, one.topology, admitted)
    return found


def conflicts(
    model: CapacityModel, topology: GraphTopology, admitted: dict[int, TreeNames | None]
) -> list[str]:
    """Pairs that the paper's words exclude: trees that share a summing switch, or a link of one."""
    summing = {switch.name for switch in topology.switches if switch.aggregates}
    found = []
    for (one, its), (other, others) in combinations(sorted(admitted.items()), 2):
        if its is None or others is None:
            continue
        if model is CapacityModel.SWITCH:
            shared = set(its.switches) & set(others.switches) & summing
        else:
            links = set(its.links) & set(others.links)
            shared = {link for link in links if summing & set(link.partition(" #")[0].split(" - "))}
        found += [f"jobs {one} and {other} share {name}" for name in sorted(shared)]
    return found


@pytest.mark.parametrize("seed", seeds(8))
@pytest.mark.parametrize("model", CapacityModel)
def test_the_controller_admits_whom_the_simulation_admits(model: CapacityModel, seed: int) -> None:
    assert admissions_differ(seed, model) == []


@pytest.mark.parametrize("model", CapacityModel)
def test_the_controller_admits_whom_the_simulation_admits_on_200_drawn_clusters(model: CapacityModel) -> None:
    differ = {seed: found for seed in all_seeds(200) if (found := admissions_differ(seed, model))}
    assert differ == {}
