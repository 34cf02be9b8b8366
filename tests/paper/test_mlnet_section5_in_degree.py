"""MLNet section 5: the tree that workers use follows what is measured, here its in-degree, in a living tree.

The paper names it as future work and has no rule. Ours: whoever is attached to whom meanwhile, each update
counts once, and a window without staleness is added in the order of the tree of its clock. With drawn
deliveries and faults: tests/property/test_push_pull_reshape.py.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inaproto.core.models.events import Reshape, ShardSpec
from tests.property.push_pull_net import ROOT, Net
from tests.property.test_push_pull import STEPS, _made, serial
from tests.property.test_push_pull_reshape import CALM, check_places, heap

NODES, UPDATES, CHANGES_AT = 8, 24, 5
TREES = [heap(NODES, degree) for degree in (1, 3)]


def trained(shard: ShardSpec, **more: Any) -> Net:
    """To the end; the root is told to take the second tree when the model is at clock ``CHANGES_AT``."""
    net = Net(TREES[0], shard, random=Random(7), updates=UPDATES, patience=CALM, others=TREES[1:], **more)

    def change() -> None:
        assert net.root is not None
        view = net.root.view()
        if view.model_clock == CHANGES_AT and view.epoch.tree == 0:
            net.step(ROOT, Reshape(1, "flatter"))

    assert net.run(STEPS, change, haste=0)
    return net


def test_section_5_a_living_tree_takes_another_in_degree_and_each_update_counts_once() -> None:
    net = trained(ShardSpec(NODES * UPDATES, "int64", ahead_max=2))
    net.check_end()
    net.settle()
    check_places(net)
    assert net.root is not None
    assert net.root.view().epoch.tree == 1


def test_section_5_each_window_is_added_in_the_order_of_the_tree_of_its_clock() -> None:
    rng = np.random.default_rng(7)
    made: dict[tuple[int, int], NDArray[Any]] = {
        (w, t): (rng.standard_normal(3) * 10.0 ** rng.integers(-3, 8, 3)).astype(np.float32)
        for w in range(NODES)
        for t in range(1, UPDATES + 1)
    }
    begin = np.zeros(3, np.float32)
    net = trained(ShardSpec(3, "float32", ahead_max=2), weights=begin, gradients=partial(_made, made))
    assert net.root is not None
    first = net.root.view().epoch.first
    assert CHANGES_AT < first <= UPDATES
    expected, other = [begin], [begin]
    for clock in range(1, UPDATES + 1):
        tree = TREES[clock >= first]
        expected.append(expected[-1] + serial(tree, partial(_made, made), clock))
        other.append(other[-1] + serial(TREES[0], partial(_made, made), clock))
    for program in net.programs.values():
        for answer in program.answers:
            assert answer.weights.tobytes() == expected[answer.clock].tobytes(), answer.clock
    assert net.root.snapshot().weights.tobytes() == expected[-1].tobytes()
    assert expected[-1].tobytes() != other[-1].tobytes(), "else the order would not show"
