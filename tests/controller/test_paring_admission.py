"""PARING section IV-C: tasks come and go, memory is short, several servers add up; nothing is taken twice."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from inaproto.errors import Infeasible, LocalMisuse
from inaproto_controller.cluster.graph_topology import GraphLink, GraphSwitch, GraphTopology
from inaproto_controller.planning.paring.admission import (
    CHUNK_BYTES,
    FURTHER_APART,
    FURTHER_UNABLE,
    NEITHER,
    NO_CAPACITY,
    NO_FURTHER,
    NONE_PROGRAMMABLE,
    STRAIGHT,
    Subtasks,
    Tenants,
    schedule,
)
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switches_named
from inaproto_controller.planning.paring.model import Accounting, ProgrammableNetwork, Task
from inaproto_controller.planning.paring.planner import Mode

MB = 10**6


def tenants(mask: str = "e*.* a*.0", **memory: int) -> Tenants:
    network = fat_tree_network(4, mask, capacity=Fraction(10))
    by_node = {switches_named(4, name.replace("_", "."))[0]: nbytes for name, nbytes in memory.items()}
    return Tenants(network, by_node)


def admitted(state: Tenants, name: str, task: Task, **options: object) -> Tenants:
    answer = state.admitted(name, task, **{"mode": Mode.PRINTED} | options)  # type: ignore[arg-type]
    assert isinstance(answer, Tenants), answer
    return answer


def check(state: Tenants) -> None:
    free = state.free
    servers = [server for one in state.running.values() for server in one.servers]
    assert len(set(servers)) == len(servers)
    for node in state.network.programmable:
        capacity, left = state.network.capacities[node], free.capacities[node]
        assert capacity is not None
        assert left is not None
        has_room = state.free_bytes(node) != 0
        assert state.taken(node) <= capacity
        assert left == (capacity - state.taken(node) if has_room else 0)
        assert (state.free_bytes(node) or 0) >= 0


def test_section_4_c_1_a_thousand_tasks_come_and_go_and_leave_nothing_behind() -> None:
    draw = Random("paring/tenants")
    state = tenants(e0_0=MB, e1_0=3 * MB, a2_0=10 * MB, e3_1=0)
    before, came, refusals = state.free, 0, 0
    for number in range(1000):
        if state.running and draw.random() < 0.5:
            name = draw.choice(list(state.running))
            without, taken = state.left(name), state.running[name]
            for node in state.network.programmable:
                held = [part.plan.held.get(node, Fraction(0)) for part in taken.parts]
                assert number % 10 or without.taken(node) == state.taken(node) - sum(held)
            state = without
        else:
            task = Task(
                draw.randint(1, 7),
                draw.randint(1, 8 * MB),
                Fraction(draw.choice((1, 2, 5)), draw.choice((1, 3))),
                accounting=draw.choice(list(Accounting)),
            )
            servers = draw.choice((1, 1, 2))
            answer = state.admitted(str(number), task, servers=servers, mode=Mode.PRINTED)
            refusals += isinstance(answer, Infeasible)
            if isinstance(answer, Tenants):
                state, came = answer, came + 1
        if number % 10 == 0:
            check(state)
        assert state.free.topology is before.topology, "it raises if more is taken than there is"
    assert came > 300
    assert refusals > 20
    for name in list(state.running):
        state = state.left(name)
    assert state.free == before
    assert not state.busy


def test_section_4_c_1_a_task_takes_rate_times_load_and_its_servers() -> None:
    state = admitted(tenants(), "a", Task(5, MB, Fraction(5)))
    part = state.running["a"].parts[0]
    assert state.busy == {part.plan.tree.ps, *state.running["a"].workers}
    for node, load in part.plan.measures.loads.items():
        if node >= 16:
            assert state.free.capacities[node] == 10 - part.plan.rate * load
    assert state.left("a") == tenants()


def test_section_4_c_1_a_task_is_planned_anew_on_what_another_left() -> None:
    state = admitted(tenants("e*.*"), "first", Task(7, MB, Fraction(10)), mode=Mode.FAST)
    state = admitted(state, "second", Task(6, MB, Fraction(10)), mode=Mode.FAST)
    squeezed = state.running["second"]
    alone = state.left("first")
    assert state.replanned("first", mode=Mode.PRINTED) is state, "nothing became better"
    better = alone.replanned("second", mode=Mode.FAST)
    check(better)
    assert better.running["second"].servers == squeezed.servers
    assert better.running["second"].rate > squeezed.rate
    with pytest.raises(LocalMisuse, match="no task first runs"):
        alone.replanned("first")


def test_section_4_c_2_what_does_not_fit_goes_in_subtasks() -> None:
    task = Task(5, 10 * MB, Fraction(5))
    state = admitted(tenants("e0.*", e0_0=3 * MB, e0_1=4 * MB), "a", task)
    (part,) = state.running["a"].parts
    least = min(state.memory[node] for node in part.plan.tree.switches(state.network))
    whole, rest = divmod(10 * MB, least)
    assert part.subtasks == Subtasks(least, whole, rest)
    assert part.subtasks.count == whole + 1
    assert part.subtasks.nbytes == task.gradient_bytes
    assert set(part.held_bytes.values()) == {least}


def test_section_4_c_2_what_is_left_of_a_memory_cuts_no_gradient_into_crumbs() -> None:
    state = admitted(tenants("e0.0", e0_0=2 * MB), "a", Task(3, 2 * MB - 1, Fraction(1)))
    crumb = admitted(state, "b", Task(3, 2 * MB, Fraction(1)))
    assert crumb.running["b"].reason == STRAIGHT
    assert crumb.running["b"].parts[0].subtasks.count == 1
    fits = admitted(state, "b", Task(3, 1, Fraction(1)))
    assert fits.running["b"].reason == "", "all of it has room"
    small = admitted(tenants("e0.0", e0_0=CHUNK_BYTES), "a", Task(3, 10**15, Fraction(1)))
    assert small.running["a"].parts[0].subtasks == Subtasks(CHUNK_BYTES, *divmod(10**15, CHUNK_BYTES))
    full = admitted(tenants("e0.0", e0_0=CHUNK_BYTES - 1), "a", Task(3, 2 * 10**9, Fraction(1)))
    assert full.running["a"].reason == STRAIGHT


def test_section_4_c_2_without_memory_anywhere_gradients_go_straight_to_the_server() -> None:
    state = admitted(tenants("e0.0", e0_0=MB), "a", Task(3, MB, Fraction(5)))
    state = admitted(state, "b", Task(3, MB, Fraction(5)))
    assert [one.reason for one in state.running.values()] == ["", STRAIGHT]
    (part,) = state.running["b"].parts
    assert set(part.plan.tree.parents.values()) == {part.plan.tree.ps}
    assert part.subtasks == Subtasks(MB, 1, 0)
    again = state.left("a").replanned("b", mode=Mode.PRINTED)
    assert again.running["b"].traffic_bytes <= state.running["b"].traffic_bytes


def test_section_4_c_3_several_parameter_servers_have_the_same_workers() -> None:
    one = admitted(tenants("e0.0"), "a", Task(8, MB, Fraction(5))).running["a"]
    two = admitted(tenants("e0.0"), "a", Task(8, MB, Fraction(5)), servers=2).running["a"]
    assert [part.plan.task.gradient_bytes for part in two.parts] == [MB // 2, MB // 2]
    assert len({part.plan.tree.ps for part in two.parts}) == 2
    assert len({part.plan.tree.workers(part.plan.network) for part in two.parts}) == 1
    assert two.rate > one.rate
    assert two.seconds == max(part.plan.seconds for part in two.parts)
    answer = tenants().admitted("a", Task(15, MB, Fraction(5)), servers=2, mode=Mode.PRINTED)
    assert isinstance(answer, Infeasible)
    assert answer.witness == {"parameter servers": 1, "idle": 0}


def test_section_4_c_4_a_budget_is_that_of_all_parts_and_a_switch_has_its_fee_once() -> None:
    fees = {node: Fraction(2) for node in switches_named(4, "e*.* a*.* c*")}
    asked: dict[str, object] = {"servers": 2, "fees": fees, "mode": Mode.FAST}
    state = tenants("e*.* a*.* c*")
    found = admitted(state, "a", Task(7, MB, Fraction(3)), budget=Fraction(4), **asked).running["a"]
    used = {node for part in found.parts for node in part.plan.tree.switches(part.plan.network)}
    assert found.fee == 2 * len(used) <= 4
    answer = state.admitted("a", Task(7, MB, Fraction(3)), budget=Fraction(1), **asked)  # type: ignore[arg-type]
    assert isinstance(answer, Infeasible)
    again = Tenants(state.network, running={"a": found}).replanned("a", fees=fees, budget=Fraction(4))
    assert again.running["a"].fee <= 4


def test_section_4_c_6_a_scheduler_says_what_goes_first_and_changes_no_tree() -> None:
    task = admitted(tenants(), "a", Task(5, MB, Fraction(2))).running["a"]
    sent = schedule(task, [(Fraction(1, 2), 0), (Fraction(1, 6), 5), (Fraction(1, 3), 0)])
    assert [one.fraction for one in sent] == [Fraction(1, 6), Fraction(1, 2), Fraction(1, 3)]
    assert [one.ends / task.seconds for one in sent] == [Fraction(1, 6), Fraction(2, 3), 1]
    with pytest.raises(LocalMisuse, match="together 1"):
        schedule(task, [(Fraction(1, 2), 0)])


def test_callers_that_are_wrong() -> None:
    state = admitted(tenants(), "a", Task(5, MB, Fraction(2)))
    with pytest.raises(LocalMisuse, match="task a runs already"):
        state.admitted("a", Task(1, MB, Fraction(1)))
    with pytest.raises(LocalMisuse, match="0 parameter servers"):
        state.admitted("b", Task(1, MB, Fraction(1)), servers=0)
    with pytest.raises(LocalMisuse, match="no task b runs"):
        state.left("b")
    with pytest.raises(LocalMisuse, match="memory of node 0"):
        Tenants(state.network, {0: 5})


@pytest.mark.parametrize(
    ("busy", "able", "reason", "idle"),
    [
        (frozenset({3, 4, 5}), True, NO_FURTHER, 0),
        (frozenset({4, 5}), False, FURTHER_UNABLE, 1),
        (frozenset({3}), True, FURTHER_APART, 2),
    ],
)
def test_why_there_is_no_further_parameter_server(
    busy: frozenset[int], able: bool, reason: str, idle: int
) -> None:
    """h0 to h3 are on one switch, h4 and h5 on another that no path leads to."""
    hosts, links = 6, ((0, 6), (1, 6), (2, 6), (3, 6), (4, 7), (5, 7))
    topology = GraphTopology(
        tuple(f"h{host}" for host in range(hosts)),
        (GraphSwitch("s"), GraphSwitch("t")),
        tuple(GraphLink(*link) for link in links),
        may_be_apart=True,
    )
    ten, none = Fraction(10), Fraction(0)
    servers = (ten, none, none, ten if able else none, ten, ten)
    state = Tenants(ProgrammableNetwork(topology, (*servers, ten, ten)), others=busy)
    answer = state.admitted("a", Task(2, MB, ten), servers=2, ps=0)
    assert isinstance(answer, Infeasible)
    assert (answer.reason, dict(answer.witness)) == (reason, {"parameter servers": 1, "idle": idle})


def test_why_gradients_go_straight_to_the_server() -> None:
    """No switch that could ever add up, none with capacity left, none with memory, or some lack this, some
    that."""
    task = Task(3, MB, Fraction(100))
    none = admitted(tenants(""), "a", task)
    assert none.running["a"].reason == NONE_PROGRAMMABLE
    full = admitted(tenants("e0.0"), "a", task)
    assert full.taken(16) == 10
    assert admitted(full, "b", task).running["b"].reason == NO_CAPACITY
    either = admitted(tenants("e0.0 e1.0", e1_0=0), "a", task)
    assert either.taken(16) == 10
    assert admitted(either, "b", task).running["b"].reason == NEITHER
    assert admitted(either.left("a"), "b", task).running["b"].reason == ""
    no_memory = admitted(tenants("e0.0 e1.0", e0_0=0, e1_0=0), "a", task)
    assert no_memory.running["a"].reason == STRAIGHT
