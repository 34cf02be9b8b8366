"""One link that fails is one failure: who finds another way up is not lost (docs/protocol.md 18.8)."""

from __future__ import annotations

from random import Random

import pytest

from inaproto.core.models.events import Mark, ShardSpec
from inaproto.units import MS
from inaproto.wire.messages.clocks import REMOVED
from inaproto.wire.messages.models import NodeId
from tests.property.push_pull_net import ROOT, Net


def _trained(net: Net, rounds: int) -> None:
    for _ in range(rounds):
        net.elapse(10 * MS)
        for worker, program in net.programs.items():
            if program.may_act and (program.clock or 0) < program.updates - 1:
                net._act(worker)


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_worker_that_came_another_way_is_not_removed(staleness: int) -> None:
    spec = ShardSpec(3 * 400, "int64", staleness)
    net = Net({1: ROOT, 2: 1, 3: 2}, spec, random=Random(1), updates=400, removal_ns=200 * MS)
    net.elapse(20 * MS)
    net.cut_off(NodeId(3), NodeId(2))
    _trained(net, 60)
    assert net.root is not None
    view = net.root.view()
    assert view.lost == ()
    assert REMOVED not in [clock for _, clock in view.clocks.items()]


@pytest.mark.parametrize("staleness", [0, 2])
def test_one_cut_link_above_two_workers_does_not_tear_the_tree_down(staleness: int) -> None:
    spec = ShardSpec(4 * 900, "int64", staleness)
    net = Net({1: ROOT, 2: 1, 3: 2, 4: 3}, spec, random=Random(1), updates=900)
    net.elapse(20 * MS)
    net.cut_off(NodeId(3), NodeId(2))
    _trained(net, 100)
    assert Mark.TORN_DOWN not in net.marks()
