"""Rings that left their switches and are installed anew, here or elsewhere, to go on where they ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.switch.accelerator import Accelerator, InstallRing, PortUp, RemoveRing
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import Blame
from inaproto.units import PortId
from tests.accelerators import EACH_ACCELERATOR
from tests.unit.pooled_rings import pool_of, pooled_ring, pooled_tree
from tests.unit.switched_ring import NOW, SwitchedRing, by_port, dropped
from tests.unit.switched_tree import SwitchedTree, data_of


def turn(ring: SwitchedRing, epoch: int, *serials: int) -> None:
    ring.epoch = epoch
    for serial in serials:
        assert by_port(ring.finish(serial)) == ring.results(serial)


def moved(spec: RingSpec, first_message: int) -> RingSpec:
    return replace(spec, first_message=first_message)


def move(ring: SwitchedRing, first_message: int, *, elsewhere: bool = False) -> None:
    """The ring is removed and comes back; ``elsewhere``: at another switch, that has never seen it."""
    accelerator = ring.accelerator
    assert accelerator.step(RemoveRing(ring.spec.ring_id), NOW) == []
    if elsewhere:
        ring.accelerator = Accelerator()
        for port in range(ring.spec.size + 1):
            ring.accelerator.step(PortUp(PortId(port)), NOW)
    assert ring.accelerator.step(InstallRing(moved(ring.spec, first_message)), NOW) == []


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("ended", [1, 3, 9])
def test_a_ring_that_moved_goes_on_with_the_message_that_is_next(ended: int, *, elsewhere: bool) -> None:
    ring = pooled_ring(1)
    turn(ring, 1, *range(ended))
    move(ring, ended, elsewhere=elsewhere)
    turn(ring, 2, *range(ended, ended + 5))
    assert dropped(ring) == {}
    assert ring.accelerator.view().rings[1]["next_message"] == ended + 5


def test_message_ids_wrap_across_a_move() -> None:
    ring = pooled_ring(1, first_message=(1 << 32) - 1)
    for epoch, serial in enumerate(range((1 << 32) - 1, (1 << 32) + 2)):
        ring.epoch = epoch
        assert by_port(ring.finish(serial, op_index=5)) == ring.results(serial, op_index=5)
        move(ring, serial + 1)


def test_the_first_packet_of_the_first_message_may_be_lost() -> None:
    """Whichever packet comes first, the frontier is where the ring ended: the gap is told, once."""
    ring = pooled_ring(1)
    turn(ring, 1, 0, 1, 2)
    move(ring, 3)
    ring.epoch = 2
    assert ring.send(0, 3, 1, 2, 3) == []
    assert dropped(ring) == {"first packet of the message not seen": 3}
    assert ring.send(0, 4) == ring.send(1, 3) == ring.send(1, 4) == ring.send(2, 3) == []
    assert by_port(ring.send(2, 4)) == {1: [ring.result(0, 4, 0)]}, "that flow alone sees the gap"
    results = by_port(ring.send(0, 3))
    assert results == {port: frames + ring.results(4)[port] for port, frames in ring.results(3).items()}


def test_the_first_message_may_be_overtaken_by_the_second() -> None:
    ring = pooled_ring(1)
    turn(ring, 1, 0)
    move(ring, 1)
    ring.epoch = 2
    for rank in range(3):
        ring.send(rank, 2)
    assert ring.send(0, 1) == ring.send(1, 1) == []
    both = {port: frames + ring.results(2)[port] for port, frames in ring.results(1).items()}
    assert by_port(ring.send(2, 1)) == both


@pytest.mark.parametrize("begun", [False, True], ids=["before its first turn there", "in its turn"])
def test_late_copies_from_before_the_move_are_stale(*, begun: bool) -> None:
    """The pool may have forgotten the turns of before: it went when its last ring did."""
    ring = pooled_ring(1)
    turn(ring, 1, 0, 1, 2)
    move(ring, 3)
    ring.epoch = 2
    if begun:
        ring.send(0, 3)
    for serial in range(3):
        for rank in range(3):
            assert ring.send(rank, serial, epoch=1) == []
    assert pool_of(ring).epochs == ((2,) if begun else (-1,))
    rule = "stale turn" if begun else "older than the tenant"
    assert dropped(ring) == {rule: 9, "first packet of the message not seen": 27}
    ranks = (1, 2) if begun else (0, 1, 2)
    actions = [ring.send(rank, 3) for rank in ranks]
    assert by_port(actions[-1]) == ring.results(3)


def test_late_copies_of_the_pools_last_turn_blame_nobody() -> None:
    """Another ring keeps the pool, so that turn is remembered: but as that of a ring which left."""
    one = pooled_ring(1)
    pooled_ring(2, beside=one)
    turn(one, 4, 0, 1)
    move(one, 2)
    assert one.send(0, 1) == []
    assert dropped(one) == {"older than the tenant": 1, "first packet of the message not seen": 3}


@EACH_ACCELERATOR
def test_a_ring_with_slots_of_its_own_takes_nothing_from_before_either() -> None:
    ring = SwitchedRing()
    for serial in range(3):
        ring.finish(serial)
    move(ring, 3)
    for rank in range(3):
        assert ring.send(rank, 2) == ring.send(rank, 2, 0) == ring.send(rank, 2, 1, 2) == []
    assert dropped(ring) == {"older than the tenant": 6, "first packet of the message not seen": 15}
    assert by_port(ring.finish(3)) == ring.results(3)
    assert by_port(ring.send(0, 3)) == {1: ring.results(3)[1]}, "a resend, as ever"


@EACH_ACCELERATOR
def test_a_message_beyond_the_window_of_the_first_is_refused() -> None:
    """As if the ring had been there: nobody may send 5 who lacks the result of 3."""
    ring = SwitchedRing(first_message=3)
    assert [action.rule for action in ring.send(0, 5) if isinstance(action, Blame)] == ["window passed"]
    assert ring.send(0, 4) == []


def test_nothing_passes_while_it_is_parked_and_its_connections_are_free_when_it_is_back() -> None:
    ring = pooled_ring(1)
    turn(ring, 1, 0, 1)
    ring.accelerator.step(RemoveRing(1), NOW)
    assert ring.send(0, 2, epoch=2) == []
    assert dropped(ring) == {"ring removed": 4}
    assert ring.accelerator.step(InstallRing(moved(ring.spec, 2)), NOW) == []
    turn(ring, 2, 2, 3)


def test_rings_of_the_pool_go_on_while_one_comes_and_goes() -> None:
    one = pooled_ring(1)
    two = pooled_ring(2, beside=one)
    turn(one, 1, 0, 1)
    move(one, 2)
    turn(two, 2, 0)
    move(two, 1)
    turn(one, 3, 2)
    turn(two, 4, 1, 2, 3)
    view = pool_of(one)
    assert (view.rings, view.epochs, view.conflicts) == ((1, 2), (4,), 0)


# -- trees


def tree_turn(tree: SwitchedTree, epoch: int, *serials: int) -> None:
    tree.hosts.epoch = epoch
    for serial in serials:
        for frames in tree.got.values():
            frames.clear()
        tree.finish(serial)
        assert tree.got == tree.results(serial)


def move_tree(tree: SwitchedTree, first_message: int) -> None:
    for name, spec in tree.specs().items():
        assert tree.switches[name].step(RemoveRing(spec.ring_id), NOW) == []
    for name, spec in tree.specs().items():
        assert tree.switches[name].step(InstallRing(moved(spec, first_message)), NOW) == []


def test_a_ring_below_a_tree_goes_on_where_it_ended() -> None:
    """Connections that begin at another leaf, too: what is due on them is what comes next."""
    tree = pooled_tree(1, SwitchedTree().tree)
    tree_turn(tree, 1, 0, 1, 2)
    move_tree(tree, 3)
    for ring in (accelerator.rings[1] for accelerator in tree.switches.values()):
        assert ring.is_between_messages, "its turn may end at once"
    tree_turn(tree, 2, 3, 4, 5, 6, 7)
    move_tree(tree, 8)
    tree_turn(tree, 3, 8)
    assert tree.said == []
    assert all(switch.view().counters.dropped == {} for switch in tree.switches.values())


def test_what_switches_sent_each_other_before_the_move_is_stale_after_it() -> None:
    tree = pooled_tree(1, SwitchedTree().tree)
    tree_turn(tree, 1, 0, 1)
    late = [sent for sent in tree.carried if sent.note is not None] + data_of(tree.carried)
    move_tree(tree, 2)
    tree.forget()
    for sent in late:
        tree.arrive(sent.receiver, tree.ports[sent.receiver][sent.sender], sent.frame)
    tree.settle()
    assert all(sent.note is not None for sent in tree.carried), "what is on its way elsewhere is not judged"
    assert not any(tree.got.values())
    assert tree.said == []
    tree_turn(tree, 2, 2, 3)


def test_the_first_message_behind_a_move_may_lose_its_first_packet_at_a_leaf() -> None:
    tree = pooled_tree(1, SwitchedTree().tree)
    tree_turn(tree, 1, 0)
    move_tree(tree, 1)
    tree.forget()
    tree.hosts.epoch = 2
    for rank in range(3):
        tree.send(rank, 1)
    tree.send(3, 1, 1, 2, 3)
    tree.settle()
    assert not any(tree.got.values())
    tree.send(3, 1)
    tree.settle()
    assert tree.got == tree.results(1)
