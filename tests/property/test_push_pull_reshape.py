"""Trees that follow one another under a running training, with any deliveries and faults, against a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.models.events import Mark, Patience, Reshape, ShardSpec
from inaproto.core.models.shard import ShardRoot
from inaproto.core.models.tree.trees import heap_tree
from inaproto.wire.messages.models import FIRST_EPOCH, NodeId, Push, Reshaped
from tests.property.push_pull_net import QUICK, ROOT, Net
from tests.property.test_push_pull import KINDS, STEPS, Faults, _made, serial
from tests.seeds import seeds

Parents = dict[int, int]
CALM = Patience(heartbeat_ns=None)


def heap(nodes: int, in_degree: int) -> Parents:
    tree = heap_tree(ROOT, [NodeId(node) for node in range(nodes)], in_degree=in_degree)
    return {node: tree.ancestors(NodeId(node))[0] for node in range(nodes)}


def drawn_trees(draw: Random, nodes: int) -> list[Parents]:
    """Heaps of one order, as the in-degree makes them, or any trees at all: parents may become children."""
    count = draw.randint(2, 4)
    if draw.random() < 0.5:
        return [heap(nodes, degree) for degree in draw.sample(range(1, 6), count)]
    return [drawn_parents(draw, nodes) for _ in range(count)]


def drawn_parents(draw: Random, nodes: int) -> Parents:
    order = draw.sample(range(nodes), nodes)
    return {node: draw.choice([ROOT, *order[:at]]) for at, node in enumerate(order)}


class Reshapes:
    """Now and then the root is told to use another tree."""

    def __init__(self, net: Net, rate: float) -> None:
        self.net, self.rate, self.times = net, rate, 0

    def __call__(self) -> None:
        net, draw = self.net, self.net.random
        if net.root is not None and draw.random() < self.rate:
            self.times += 1
            net.step(ROOT, Reshape(draw.randrange(len(net.trees)), "drawn"))

    @property
    def begun(self) -> list[tuple[int, int]]:
        """(first clock, tree) of all epochs that are durable."""
        found = [(0, 0)]
        found += [(r.epoch.first, r.epoch.tree) for r in self.net.durable if r.epoch is not None]
        return found

    def tree(self, clock: int) -> Mapping[int, int]:
        return self.net.trees[[tree for first, tree in self.begun if first <= clock][-1]]


def drawn_net(draw: Random, dtype: str, **more: Any) -> Net:
    nodes = draw.randint(2, 8)
    trees = drawn_trees(draw, nodes)
    updates = draw.randint(6, 24)
    staleness = 0 if dtype != "int64" else draw.choice([0, 0, 1, 3])
    elements = nodes * updates if dtype == "int64" else 3
    shard = ShardSpec(elements, dtype, staleness, ahead_max=staleness + draw.randint(1, 3))
    return Net(trees[0], shard, random=draw, updates=updates, others=trees[1:], **more)


def check_places(net: Net) -> None:
    """Everybody is where the newest tree has it."""
    assert net.root is not None
    epoch = net.root.view().epoch
    for node, core in net.nodes.items():
        view = core.view()
        assert (view.epoch, view.is_attached) == (epoch, True)
        assert view.parent == net.trees[epoch.tree][node], f"node {node} in {epoch}"


@pytest.mark.parametrize("seed", seeds(40))
def test_reshapes_alone_lose_nothing_and_everybody_comes_to_its_place(seed: int) -> None:
    draw = Random(f"{seed}/reshapes")
    net = drawn_net(draw, "int64", patience=draw.choice([CALM, QUICK]))
    reshapes = Reshapes(net, draw.choice([0.01, 0.1]))
    assert net.run(STEPS, reshapes, haste=0)
    net.check_end()
    net.settle()
    check_places(net)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whatever_fails_meanwhile_every_update_is_in_the_model_once(first: int) -> None:
    for seed in range(first, first + 10):
        draw = Random(f"{seed}/reshapes and faults")
        net = drawn_net(draw, "int64")
        reshapes = Reshapes(net, draw.choice([0.01, 0.05]))
        faults = Faults(net, draw.choice(KINDS), draw.choice([0.002, 0.01, 0.03]), draw.randint(1, 6))

        def both(reshapes: Reshapes = reshapes, faults: Faults = faults) -> None:
            reshapes()
            faults()

        net.run(draw.randint(100, 3000), both)
        faults.mend_all()
        assert net.run(STEPS, reshapes), f"seed {seed}: {net.root and net.root.view()}"
        net.check_end()


@pytest.mark.parametrize("has_faults", [False, True])
@pytest.mark.parametrize("first", range(0, 30, 10))
def test_each_window_has_the_bits_of_the_tree_of_its_clock(first: int, has_faults: bool) -> None:
    """s = 0, plain floats; nodes hear of the new tree at any time, or were away."""
    for seed in range(first, first + 10):
        draw = Random(f"{seed}/reshapes of floats")
        rng = np.random.default_rng(seed)
        made: dict[tuple[int, int], NDArray[Any]] = {
            (w, t): (rng.standard_normal(3) * 10.0 ** rng.integers(-3, 8, 3)).astype(np.float32)
            for w in range(8)
            for t in range(1, 25)
        }
        start = rng.standard_normal(3).astype(np.float32)
        net = drawn_net(draw, "float32", weights=start, gradients=partial(_made, made))
        reshapes = Reshapes(net, draw.choice([0.01, 0.05]))
        rate = draw.choice([0.002, 0.01, 0.03]) if has_faults else 0
        faults = Faults(net, draw.choice(KINDS), rate, draw.randint(1, 6))

        def both(reshapes: Reshapes = reshapes, faults: Faults = faults) -> None:
            reshapes()
            faults()

        net.run(draw.randint(200, 3000), both)
        faults.mend_all()
        assert net.run(STEPS, reshapes), f"seed {seed}"
        expected = [start]
        for clock in range(1, net.updates + 1):
            window = serial(reshapes.tree(clock), partial(_made, made), clock)
            expected.append(expected[-1] + window)
        for program in net.programs.values():
            for answer in program.answers:
                assert answer.weights.tobytes() == expected[answer.clock].tobytes(), (seed, answer.clock)
        assert net.root is not None
        assert net.root.snapshot().weights.tobytes() == expected[-1].tobytes(), seed


def test_after_a_reshape_each_node_pushes_once_for_each_clock_again() -> None:
    trees = [heap(8, degree) for degree in (2, 4)]
    shard = ShardSpec(8 * 30, "int64", ahead_max=2)
    net = Net(trees[0], shard, random=Random(3), updates=30, patience=CALM, others=trees[1:])
    is_told, told = False, 0

    def reshape() -> None:
        nonlocal is_told, told
        assert net.root is not None
        view = net.root.view()
        if not is_told and view.model_clock == 5:
            is_told = True
            net.step(ROOT, Reshape(1, "flatter"))
        if view.model_clock < 20:
            told = len(net.told)

    assert net.run(STEPS, reshape, haste=0)
    net.check_end()
    check_places(net)
    later = [(a, word.clock) for a, _, word in net.told[told:] if isinstance(word, Push) and word.clock > 22]
    for node in range(8):
        of_node = [clock for a, clock in later if a == node and clock <= 30]
        assert of_node == list(range(23, 31)), f"node {node} pushes {of_node}"
    assert net.words(Reshaped) >= 8


def test_the_root_refuses_another_tree_while_the_last_change_is_not_over() -> None:
    trees = [heap(4, degree) for degree in (1, 2, 4)]
    shard = ShardSpec(4 * 20, "int64", ahead_max=2)
    net = Net(trees[0], shard, random=Random(1), updates=20, patience=CALM, others=trees[1:])
    assert net.root is not None
    net.settle()
    assert net.root.view().may_reshape
    net.step(ROOT, Reshape(0, "the same"))
    assert net.noted[-1].mark is Mark.NOT_RESHAPED
    net.step(ROOT, Reshape(1, "flatter"))
    assert net.root.view().epoch == FIRST_EPOCH, "not before it is durable"
    assert not net.words(Reshaped)
    net.settle()
    assert net.root.view().epoch.tree == 1
    net.step(ROOT, Reshape(2, "flatter still"))
    assert net.noted[-1].mark is Mark.NOT_RESHAPED
    assert not net.root.view().may_reshape


def test_a_root_that_crashed_goes_on_with_the_tree_that_is_on_its_disk() -> None:
    trees = [heap(5, degree) for degree in (1, 3)]
    shard = ShardSpec(5 * 8, "int64", ahead_max=2)
    net = Net(trees[0], shard, random=Random(1), updates=8, others=trees[1:])
    net.settle()
    net.step(ROOT, Reshape(1, "flatter"))
    record, _ = net.persisting.popleft()
    net.durable.append(record)  # on disk, and nobody was told
    net.crash(ROOT)
    net.settle()
    net.start_root()
    net.elapse(100_000_000)
    check_places(net)
    assert net.run(STEPS)
    net.check_end()


def test_a_root_whose_disk_names_a_tree_that_is_none_any_more_begins_with_the_first() -> None:
    shard = ShardSpec(3 * 4, "int64", ahead_max=2)
    net = Net(heap(3, 1), shard, random=Random(1), updates=4, others=[heap(3, 3)])
    net.settle()
    net.step(ROOT, Reshape(1, "flatter"))
    net.settle()
    root = ShardRoot(replace(net.root_config, others=()), net.snapshot, net.durable, net.now)
    assert root.view().epoch == FIRST_EPOCH
