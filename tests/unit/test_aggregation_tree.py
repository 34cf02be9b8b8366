"""Roles that follow from a tree: who adds what, where results go, which notes pass where; what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from inaproto.core.plan.aggregation_tree import VIRTUAL_QP_BASE, TreeSwitch, compose_roles
from inaproto.errors import LocalMisuse
from inaproto.wire.messages.switch import Role, VirtualConnection
from tests.unit.switched_ring import ring_of
from tests.unit.switched_tree import FIGURE_5, addresses_of, ports_of


def roles_of(tree: TreeSwitch, ring_id: int = 7) -> dict[str, Role]:
    return compose_roles(tree, ring_id=ring_id, addresses=addresses_of(tree), port_toward=ports_of(tree))


def link(tree: TreeSwitch, here: str, there: str, *, rank: int, port: int) -> VirtualConnection:
    addresses = addresses_of(tree)
    ends = addresses[here].mac, addresses[here].ip, addresses[there].mac, addresses[there].ip
    return (
        VirtualConnection(there, ports_of(tree)[here][there], *ends, 0x80_0007, rank)
        if (ports_of(tree)[here][there] == port)
        else pytest.fail("the port is another one")
    )


def names(role: Role) -> tuple[int | str, ...]:
    return tuple(entry if isinstance(entry, int) else entry.peer for entry in role.inputs)


def test_roles_of_two_racks_below_a_spine() -> None:
    roles = roles_of(FIGURE_5)
    assert roles["S"] == Role(
        inputs=(link(FIGURE_5, "S", "L1", rank=0, port=0), link(FIGURE_5, "S", "L2", rank=2, port=1)),
        notes=(
            (1, link(FIGURE_5, "S", "L2", rank=2, port=1)),
            (3, link(FIGURE_5, "S", "L1", rank=0, port=0)),
        ),
    )
    up = link(FIGURE_5, "L1", "S", rank=0, port=2)
    assert roles["L1"] == Role(inputs=(0, 1), parent=up, delivers=(0, 3), notes=((1, up),))
    assert (roles["L1"].ranks, roles["L1"].learns, roles["L1"].children) == ((0, 1), (3,), ())
    up = link(FIGURE_5, "L2", "S", rank=2, port=2)
    assert roles["L2"] == Role(inputs=(2, 3), parent=up, delivers=(1, 2), notes=((3, up),))


def test_both_ends_of_a_virtual_connection_agree() -> None:
    tree = TreeSwitch("S", (TreeSwitch("A", (TreeSwitch("L", (3, 1)), 0)), 2))
    roles = roles_of(tree)
    for name, role in roles.items():
        if role.parent is None:
            continue
        down = next(child for child in roles[role.parent.peer].children if child.peer == name)
        assert (down.here_mac, down.here_ip) == (role.parent.there_mac, role.parent.there_ip)
        assert (down.there_mac, down.there_ip) == (role.parent.here_mac, role.parent.here_ip)
        assert (down.qp, down.rank) == (role.parent.qp, role.parent.rank)
    assert [child.rank for child in roles["S"].children] == [3], "the first in the order of addition"


def test_a_ring_on_one_switch_has_a_role_without_links() -> None:
    roles = roles_of(TreeSwitch("S", (1, 0)))
    assert roles == {"S": Role(inputs=(1, 0), delivers=(0, 1))}


def test_inputs_are_in_the_order_of_the_children() -> None:
    tree = TreeSwitch("S", (TreeSwitch("A", (3,)), 0, TreeSwitch("B", (2, 1))))
    assert names(roles_of(tree)["S"]) == ("A", 0, "B")
    assert tree.ranks == (3, 0, 2, 1)


def test_a_switch_that_does_not_aggregate_steers_its_ranks_to_the_one_above() -> None:
    steering = TreeSwitch(
        "X", (1, TreeSwitch("Y", (2,)), TreeSwitch("Z", (3,), aggregates=False)), aggregates=False
    )
    tree = TreeSwitch("S", (0, steering))
    roles = roles_of(tree)
    assert names(roles["S"]) == (0, 1, "Y", 3), "its children are inputs of the next that aggregates"
    (passed,) = roles["X"].passes
    assert roles["X"] == Role(steered=(1, 3), steer_to=ports_of(tree)["X"]["S"], passes=(passed,))
    assert (passed.peer, passed.port) == ("Y", ports_of(tree)["X"]["Y"])
    assert passed.there_mac == roles["Y"].parent.here_mac  # type: ignore[union-attr]
    assert roles["Z"] == Role(steered=(3,), steer_to=ports_of(tree)["Z"]["X"])
    parent = roles["Y"].parent
    assert parent is not None
    assert (parent.peer, parent.port) == ("S", ports_of(tree)["Y"]["X"])
    assert next(child.port for child in roles["S"].children) == ports_of(tree)["S"]["X"]
    assert roles["S"].delivers == (0, 2, 3)


def test_a_ring_beside_the_fabrics_own_tree_names_its_ports_downwards() -> None:
    tree = TreeSwitch("S", (0, TreeSwitch("X", (1, TreeSwitch("Y", (2,))), aggregates=False)))
    ports = ports_of(tree)
    roles = compose_roles(tree, ring_id=7, addresses=addresses_of(tree), port_toward=ports, is_beside=True)
    assert {name: role.below for name, role in roles.items()} == {
        "S": (ports["S"]["X"],),
        "X": (ports["X"]["Y"],),
        "Y": (),
    }
    assert all(role.below is None for role in roles_of(tree).values())


def test_notes_go_up_to_where_the_ways_part_and_down_to_the_successor() -> None:
    left = TreeSwitch("A", (TreeSwitch("L1", (0,)), TreeSwitch("L2", (1,))))
    roles = roles_of(TreeSwitch("S", (left, TreeSwitch("L3", (2,)))))
    ways = {name: {rank: way.peer for rank, way in role.notes} for name, role in roles.items()}
    assert ways == {
        "S": {1: "L3", 2: "A"},
        "A": {0: "L2", 1: "S", 2: "L1"},
        "L1": {0: "A"},
        "L2": {1: "A"},
        "L3": {2: "S"},
    }


def test_every_rank_is_one_switch_s_input_and_every_connection_is_delivered_once() -> None:
    tree = TreeSwitch("S", (4, TreeSwitch("A", (0, TreeSwitch("B", (2, 5)))), TreeSwitch("C", (1, 3))))
    roles = roles_of(tree).values()
    assert sorted(rank for role in roles for rank in role.ranks) == list(range(6))
    assert sorted(rank for role in roles for rank in role.delivers) == list(range(6))


def test_the_queue_pair_takes_the_low_bits_of_the_ring_s_id() -> None:
    roles = roles_of(FIGURE_5, ring_id=0xFFFF_FFFE)
    parent = roles["L1"].parent
    assert parent is not None
    assert parent.qp == VIRTUAL_QP_BASE | 0x7F_FFFE


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (TreeSwitch("S", (0, 2)), "has ranks"),
        (TreeSwitch("S", (0, 1, 1)), "has ranks"),
        (TreeSwitch("S", (0, TreeSwitch("S", (1,)))), "one name"),
        (TreeSwitch("S", (0, 1, TreeSwitch("L", ()))), "neither ranks nor switches"),
        (TreeSwitch("S", (0, 1), aggregates=False), "must aggregate"),
    ],
)
def test_what_is_no_tree_of_ranks_is_refused(tree: TreeSwitch, why: str) -> None:
    with pytest.raises(LocalMisuse, match=why):
        roles_of(tree)


UP = roles_of(FIGURE_5)["L1"].parent


@pytest.mark.parametrize(
    ("role", "why"),
    [
        (Role(inputs=(0, 4), delivers=(0, 4)), "has 4 ranks, its role names"),
        (Role(inputs=(0, 0), delivers=(0,)), "an input twice"),
        (Role(inputs=(0,), delivers=(0,), steered=(1,)), "not both"),
        (Role(steered=(1,)), "steers, to a port"),
        (Role(), "steers, to a port"),
        (Role(inputs=(0, 1), delivers=(0,), parent=UP), "connection of rank 1 ends elsewhere"),
    ],
)
def test_a_ring_refuses_a_role_that_cannot_be_its(role: Role, why: str) -> None:
    with pytest.raises(LocalMisuse, match=why):
        dataclasses.replace(ring_of(4), role=role)
