"""MLNet's push and pull in any order of deliveries, with and without faults, against a simple model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core.models.events import Mark, Patience, ShardSpec
from inaproto.units import MS
from inaproto.wire.messages.clocks import REMOVED
from inaproto.wire.messages.models import NodeId, Push, Weights
from tests.property.push_pull_net import QUICK, ROOT, Net, ancestors, children
from tests.seeds import seeds

STEPS = 40_000
UNDRAWN = {Mark.WORKER_REMOVED, Mark.RESHAPED, Mark.NOT_RESHAPED}
"""By what has tests of its own."""
LINE = {0: ROOT, 1: 0, 2: 1, 3: 2, 4: 2}
"""Of height 4."""


def drawn_tree(draw: Random) -> dict[int, int]:
    """Up to 8 nodes; often high."""
    parents: dict[int, int] = {}
    for node in range(draw.randint(1, 8)):
        parents[node] = draw.choice([ROOT, *range(node), *range(node)]) if node else ROOT
    return parents


def drawn_net(seed: int, patience: Patience | None = None) -> Net:
    draw = Random(f"{seed}/push and pull")
    parents = drawn_tree(draw)
    staleness = draw.choice([0, 0, 1, 2, 3])
    updates = draw.randint(2, 6)
    bare = [node for node in parents if draw.random() < 0.2][: len(parents) - 1]
    shard = ShardSpec(
        (len(parents) - len(bare)) * updates, "int64", staleness, ahead_max=staleness + draw.randint(1, 4)
    )
    pulls = draw.choice([staleness, staleness, staleness + 1, 0])
    return Net(
        parents, shard, random=draw, updates=updates, bare=bare, pulls=pulls, patience=patience or QUICK
    )


@pytest.mark.parametrize("seed", seeds(40))
def test_without_faults_every_update_is_in_the_model_once_and_no_pull_is_too_stale(seed: int) -> None:
    net = drawn_net(seed, Patience(heartbeat_ns=None))
    assert net.run(STEPS, haste=0)
    net.check_end()
    assert net.marks() <= {
        Mark.ATTACHED, Mark.WORKER_RESUMED, Mark.COALESCED, Mark.FROM_CACHE, Mark.FLUSHED, Mark.HELD
    }  # fmt: skip
    if net.shard.staleness == 0:
        for node in net.parents:
            below = [w for w in net.workers if node in (w, *ancestors(net.parents, w))]
            most = net.updates + len(below)  # and for each that leaves, at most one more
            assert (net.updates if below else 0) <= net.words(Push, by=node) <= most


def serial(
    parents: Mapping[int, int], gradients: Callable[[int, int], NDArray[Any]], clock: int
) -> NDArray[Any]:
    """The sum of the updates of a clock, in the order of the tree: own worker, then the children."""

    def below(node: int) -> NDArray[Any]:
        total = gradients(node, clock)
        for child in children(parents, node):
            total = total + below(child)
        return total

    first, *others = [below(child) for child in children(parents, ROOT)]
    for other in others:
        first = first + other
    return first


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("seed", seeds(6))
def test_at_staleness_0_each_pull_has_the_bits_of_the_serial_sum_in_the_order_of_the_tree(
    dtype: str, seed: int
) -> None:
    draw = Random(f"{seed}/serial")
    parents = LINE if seed == 0 else drawn_tree(draw)
    elements, updates = 5, 4
    rng = np.random.default_rng(seed)
    made = {
        (w, t): (rng.standard_normal(elements) * 10.0 ** rng.integers(-3, 8, elements)).astype(dtype)
        for w in parents
        for t in range(1, updates + 1)
    }
    first = rng.standard_normal(elements).astype(dtype)
    shard = ShardSpec(elements, dtype, ahead_max=3)
    patience = Patience(heartbeat_ns=None)
    net = Net(
        parents, shard, random=draw, updates=updates, patience=patience, weights=first,
        gradients=lambda w, t: made[w, t],
    )  # fmt: skip
    assert net.run(STEPS, haste=0)
    for program in net.programs.values():
        assert [answer.clock for answer in program.answers] == list(range(1, updates + 1))
    check_floats(net, made, first)


def check_floats(net: Net, made: Mapping[tuple[int, int], NDArray[Any]], first: NDArray[Any]) -> None:
    """Every pull, and the end, have the bits of the serial sums."""
    expected = [first]
    for clock in range(1, net.updates + 1):
        expected.append(expected[-1] + serial(net.parents, lambda w, t: made[w, t], clock))
    for program in net.programs.values():
        for answer in program.answers:
            assert answer.weights.tobytes() == expected[answer.clock].tobytes(), answer.clock
    assert net.root is not None
    assert net.root.snapshot().weights.tobytes() == expected[-1].tobytes()


def _made(made: Mapping[tuple[int, int], NDArray[Any]], worker: int, clock: int) -> NDArray[Any]:
    return made[worker, clock]


class Faults:
    """Crashes and cuts, one after the other, some at once; all are mended in the end."""

    def __init__(self, net: Net, kinds: tuple[str, ...], rate: float, at_most: int) -> None:
        self.net, self.kinds, self.rate, self.left = net, kinds, rate, at_most
        self.broken: list[NodeId | str] = []

    def __call__(self) -> None:
        draw = self.net.random
        if draw.random() >= self.rate:
            return
        if self.broken and draw.random() < 0.5:
            self.mend(self.broken.pop(draw.randrange(len(self.broken))))
        elif self.left > 0:
            self.left -= 1
            self._break(draw.choice(self.kinds))

    def _break(self, kind: str) -> None:
        net, draw = self.net, self.net.random
        if kind == "crash" and net.nodes:
            node = draw.choice(sorted(net.nodes))
            net.crash(node)
            self.broken.append(node)
        elif kind == "root" and net.root is not None:
            net.crash(ROOT)
            self.broken.append(ROOT)
        elif kind == "cut":
            node = NodeId(draw.choice(sorted(net.parents)))
            net.cut_off(node, draw.choice(ancestors(net.parents, node)))
            self.broken.append("cut")
        elif kind == "still":
            net.still.add(NodeId(draw.choice([*net.parents, ROOT])))
            self.broken.append("still")

    def mend(self, what: NodeId | str) -> None:
        if what == "still":
            self.net.still.clear()
        elif isinstance(what, str):
            self.net.heal()
        elif what == ROOT:
            self.net.start_root()
        else:
            self.net.start(what)

    def mend_all(self) -> None:
        while self.broken:
            self.mend(self.broken.pop())


KINDS = [("crash",), ("cut",), ("root",), ("crash", "cut"), ("crash", "cut", "root", "still"), ("still",)]


def run_with_faults(seed: int) -> Net:
    draw = Random(f"{seed}/faults")
    patience = draw.choice([QUICK, QUICK, Patience(None, 0, 0, 0), Patience(None, 30 * MS, 30 * MS, 90 * MS)])
    net = drawn_net(seed, patience)
    faults = Faults(net, draw.choice(KINDS), draw.choice([0.002, 0.01, 0.03]), draw.randint(1, 6))
    net.run(draw.randint(100, 3000), faults)
    faults.mend_all()
    assert net.run(STEPS), f"not finished: {net.root and net.root.view()}"
    net.check_end()
    return net


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_whatever_fails_every_update_is_in_the_model_once_and_no_pull_is_too_stale(first: int) -> None:
    """Updates of a worker on a host that died are made again where they were lost."""
    for seed in range(first, first + 10):
        run_with_faults(seed)


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_whatever_fails_plain_floats_at_staleness_0_have_the_bits_of_the_serial_sum(first: int) -> None:
    """With the shape of the tree: also with nodes attached elsewhere, and in direct mode."""
    for seed in range(first, first + 15):
        draw = Random(f"{seed}/floats and faults")
        parents, updates = drawn_tree(draw), draw.randint(2, 5)
        rng = np.random.default_rng(seed)
        made = {
            (w, t): (rng.standard_normal(3) * 10.0 ** rng.integers(-3, 8, 3)).astype(np.float32)
            for w in parents
            for t in range(1, updates + 1)
        }
        start = rng.standard_normal(3).astype(np.float32)
        gradients = partial(_made, made)
        shard = ShardSpec(3, "float32")
        net = Net(parents, shard, random=draw, updates=updates, weights=start, gradients=gradients)
        faults = Faults(net, draw.choice(KINDS), draw.choice([0.002, 0.01, 0.03]), draw.randint(1, 6))
        net.run(draw.randint(100, 2000), faults)
        faults.mend_all()
        assert net.run(STEPS)
        check_floats(net, made, start)


def test_the_faults_drawn_bring_about_whatever_may_happen() -> None:
    seen: set[Mark] = set()
    for seed in range(300):
        seen |= run_with_faults(seed).marks()
        if seen >= set(Mark) - UNDRAWN:
            return
    raise AssertionError(f"never seen: {set(Mark) - UNDRAWN - seen}")


@pytest.mark.parametrize("seed", seeds(10))
def test_workers_that_the_root_removes_hold_up_nobody_and_their_updates_count_or_not_whole(seed: int) -> None:
    draw = Random(f"{seed}/removal")
    staleness = draw.choice([0, 0, 2])
    shard = ShardSpec(5 * 4, "int64", staleness, ahead_max=staleness + 2)
    net = Net(LINE, shard, random=draw, updates=4, removal_ns=200 * MS)
    net.run(draw.randint(20, 150), haste=0)
    gone = draw.choice(sorted(net.nodes))
    net.crash(gone)
    net.programs[net.workers[gone]].is_away = True
    assert net.run(STEPS, haste=0)
    assert net.root is not None
    counts = net.counts(net.root.snapshot().weights)
    assert all((counts[worker] == 1).all() for worker in net.workers if worker != int(gone))
    assert counts[gone].tolist() == sorted(counts[gone].tolist(), reverse=True), "a beginning of them"
    assert set(counts[gone].tolist()) <= {0, 1}
    net.elapse(2000 * MS)
    assert net.root.view().clocks[net.workers[gone]] == REMOVED


def test_weights_come_down_once_for_each_clock_and_child() -> None:
    shard = ShardSpec(len(LINE) * 3, "int64", ahead_max=2)
    net = Net(LINE, shard, random=Random(1), updates=3, patience=Patience(heartbeat_ns=None))
    assert net.run(STEPS, haste=0)
    for node, parent in LINE.items():
        assert net.words(Weights, by=parent, to=node) == 3
