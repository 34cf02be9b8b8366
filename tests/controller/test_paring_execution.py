"""Trees of PARING in the simulated world: rate and traffic as predicted, exactly; sums as numpy has them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import numpy as np
import pytest

from inaproto.errors import LocalMisuse
from inaproto.sim.frames.checkers import all_checkers
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.world import World
from inaproto.wire.ina_header import Dtype, Op
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.paring.fat_tree_names import fat_tree_network, switches_named
from inaproto_controller.planning.paring.model import (
    Accounting,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.planning.paring.network_file import read_network
from inaproto_controller.planning.paring.routes import Routes
from inaproto_controller.simulate.paring_execution import Unfolded, carry, go
from tests.controller.adding_time import carry_in_time
from tests.controller.paring_trees import draw_network, draw_tree
from tests.seeds import seeds

UNEVEN = Path(__file__).resolve().parents[2] / "examples" / "uneven.json"


def uneven() -> GraphTopology:
    return read_network(UNEVEN, server=Fraction(1)).topology


def best_tree_of_figure_1() -> tuple[ProgrammableNetwork, Task, PlacedTree]:
    network = fat_tree_network(4, "e*.* a*.*", capacity=Fraction(2))
    e01, e20, e21, a01, a21 = (
        switches_named(4, name)[0] for name in ("e0.1", "e2.0", "e2.1", "a0.1", "a2.1")
    )
    near = {1: 0, 2: e01, 3: e01, e01: a01, a01: 0}
    far = {8: e20, 9: e20, 10: e21, 11: e21, e20: a21, e21: a21, a21: a01}
    return network, Task(7, 10**9, Fraction(1)), PlacedTree(0, near | far)


def test_the_best_tree_of_figure_1_carries_15_gradients_at_its_cap() -> None:
    network, task, tree = best_tree_of_figure_1()
    unfolded = Unfolded.of(network, tree)
    carried = carry(unfolded)
    assert carried.hops == 15
    assert carried.hops * task.gradient_bytes == measure(network, task, tree).traffic_bytes(task)
    assert go(network, task, tree).rate == 1
    assert unfolded.plan.to_lists() == [0, [[1, 2], [[3, 4], [5, 6]]]]


@pytest.mark.parametrize("seed", seeds(12))
def test_any_tree_on_an_uneven_graph_carries_and_goes_as_predicted(seed: int) -> None:
    draw = Random(f"{seed}/paring")
    network = draw_network(draw, uneven())
    task, tree = draw_tree(draw, network)
    predicted = measure(network, task, tree)
    carried = carry(Unfolded.of(network, tree))
    assert carried.hops == predicted.hops
    by_link = {hop: nbytes // carried.operation_bytes for hop, nbytes in carried.link_bytes.items()}
    assert by_link == Routes(network.topology, tree).gradients
    assert go(network, task, tree).rate == predicted.rate


@pytest.mark.parametrize("seed", seeds(4))
def test_frames_along_an_installed_tree_go_at_the_planned_rate(seed: int) -> None:
    """On an uneven graph, exactly: by when results of messages come back, in whole nanoseconds."""
    draw = Random(f"{seed}/paring/frames in time")
    network = draw_network(draw, uneven())
    task, tree = draw_tree(draw, network)
    task = replace(task, accounting=Accounting.STRICT)
    assert carry_in_time(network, task, tree).rate == measure(network, task, tree).rate


def test_frames_along_the_best_tree_of_figure_1_go_at_its_cap() -> None:
    network, task, tree = best_tree_of_figure_1()
    assert carry_in_time(network, task, tree).rate == task.rate_cap == 1
    slower = replace(network, capacities=tuple(capacity and capacity / 3 for capacity in network.capacities))
    assert carry_in_time(slower, task, tree).rate == measure(slower, task, tree).rate < 1


def test_a_free_input_is_timed_in_the_model_alone() -> None:
    network, task, tree = best_tree_of_figure_1()
    with pytest.raises(LocalMisuse, match="takes no time"):
        carry_in_time(network, replace(task, accounting=Accounting.PAPER), tree)


@pytest.mark.parametrize("seed", seeds(60))
def test_the_rate_of_any_tree_is_what_its_tightest_adder_gives(seed: int) -> None:
    draw = Random(f"{seed}/paring/rate")
    network = draw_network(draw, uneven())
    task, tree = draw_tree(draw, network)
    assert go(network, task, tree).rate == measure(network, task, tree).rate


class Results(Checker):
    """What ranks got, and what they had given."""

    name = "results"

    def begin(self, world: World) -> None:
        self._world = world
        self.seen: list[tuple[bytes, list[bytes]]] = []

    def done(self, rank: SimRank, op_index: int) -> None:
        oracle, elements = self._world.oracle(rank.job), rank.job.elements[op_index]
        given = [
            oracle.inputs(rank.life, other, op_index, elements).tobytes()
            for other in range(len(rank.job.hosts))
        ]
        self.seen.append((rank.tensor(op_index).tobytes(), given))


@pytest.mark.parametrize("dtype", [Dtype.I32, Dtype.BF16])
def test_the_sums_are_those_of_numpy_bit_for_bit(dtype: Dtype) -> None:
    network, _, tree = best_tree_of_figure_1()
    unfolded, results = Unfolded.of(network, tree), Results()
    carry(unfolded, dtype=dtype, checkers=lambda: [*all_checkers(), results])
    assert len(results.seen) == 2 * 7
    for got, given in results.seen:
        inputs = [np.frombuffer(one, np.uint8) for one in given]
        assert got == unfolded.plan.reduce(inputs, dtype, Op.SUM).tobytes()
        if dtype is Dtype.I32:
            with np.errstate(over="ignore"):
                total = np.sum([one.view(np.int32) for one in inputs], axis=0, dtype=np.int32)
            assert got == total.tobytes()


def test_a_switch_that_adds_up_and_passes_on_is_two_places() -> None:
    """h7 and leaf-a both send to h0, below leaf-a: what h7 sends is not summed there."""
    network = read_network(UNEVEN, server=Fraction(6))
    names = {network.topology.name(node): node for node in range(network.topology.nodes)}
    tree = PlacedTree(
        names["h0"],
        {names["h1"]: names["leaf-a"], names["h2"]: names["leaf-a"], names["leaf-a"]: names["h0"]}
        | {names["h7"]: names["h0"]},
    )
    unfolded = Unfolded.of(network, tree)
    places = [(network.topology.name(place.node), place.adds) for place in unfolded.places]
    assert places == [("h0", True), ("leaf-a", False), ("leaf-a", True)]
    assert carry(unfolded).hops == measure(network, Task(3, 8, Fraction(1)), tree).hops == 5


def test_one_worker_alone_has_nothing_to_add() -> None:
    network = read_network(UNEVEN, server=Fraction(6))
    with pytest.raises(LocalMisuse, match="nothing to add"):
        carry(Unfolded.of(network, PlacedTree(0, {1: 0})))
