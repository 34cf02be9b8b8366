"""Rings on their way to other switches: every role there and back, and what no ring can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.plan.aggregation_tree import TreeSwitch, compose_roles
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.daemon.switch.ring_records import install_message, ring_of
from inaproto.errors import DecodeError, LocalMisuse
from inaproto.units import PortId
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import decode_message, encode_message
from inaproto.wire.messages.switch import PoolSpec, RingInstall
from tests.unit.switched_ring import ip, mac
from tests.unit.test_tree_control import switch

NAMES = ("spine", "mid", "leaf0", "leaf1")
TREE = TreeSwitch(
    "spine",
    (TreeSwitch("mid", (TreeSwitch("leaf0", (0, 1)), 2)), TreeSwitch("leaf1", (3,), aggregates=False)),
)
PLAIN = RingSpec(
    7,
    1,
    99,
    2,
    4,
    256,
    tuple(
        FlowSpec(rank, ip(rank), ip((rank + 1) % 4), 100 + rank, mac(rank), mac((rank + 1) % 4))
        for rank in range(4)
    ),
)


def specs() -> list[RingSpec]:
    addresses = {name: switch(name).address for name in NAMES}
    ports = {name: {other: PortId(1 + NAMES.index(other)) for other in NAMES} for name in NAMES}
    roles = compose_roles(TREE, ring_id=7, addresses=addresses, port_toward=ports)
    nameless = tuple(replace(flow, src_mac=b"", dst_mac=b"") for flow in PLAIN.flows)
    pooled = replace(PLAIN, pool=PoolSpec("group 3", 2))
    alone = [PLAIN, replace(PLAIN, flows=nameless), pooled, replace(pooled, first_message=1 << 33)]
    passing = TreeSwitch("spine", (TreeSwitch("mid", (TreeSwitch("leaf0", (0, 1)), 2, 3), aggregates=False),))
    beside = compose_roles(passing, ring_id=7, addresses=addresses, port_toward=ports, is_beside=True)
    return [*alone, *(replace(PLAIN, role=role) for role in (*roles.values(), *beside.values()))]


KINDS = [
    "alone",
    "addresses not known",
    "of a pool",
    "moved",
    *NAMES,
    *(f"{name} beside" for name in NAMES[:3]),
]


@pytest.mark.parametrize("spec", specs(), ids=KINDS)
def test_every_ring_there_and_back(spec: RingSpec) -> None:
    (record,) = ControlDecoder().feed(encode_message(install_message(spec)))
    message = decode_message(record)
    assert isinstance(message, RingInstall)
    assert ring_of(message) == spec


def test_roles_of_all_kinds_are_among_them() -> None:
    roles = [spec.role for spec in specs() if spec.role is not None]
    assert any(role.steered and role.steer_to for role in roles)
    assert any(role.notes for role in roles)
    assert any(role.passes and role.below for role in roles)
    assert any(role.children and role.parent and role.ranks for role in roles)


def test_what_no_ring_can_be_is_refused() -> None:
    message = install_message(next(spec for spec in specs() if spec.role and spec.role.parent))
    with pytest.raises(LocalMisuse, match="a ring needs at least 2"):
        ring_of(replace(message, flows=message.flows[:1]))


def test_an_input_is_a_rank_or_a_connection() -> None:
    (record,) = ControlDecoder().feed(
        encode_message(install_message(next(spec for spec in specs() if spec.role and spec.role.parent)))
    )
    both = {"rank": 0, "link": record["role"]["parent"]}
    for wrong in ({}, both):
        with pytest.raises(DecodeError, match=r"role\.inputs\[0\] is wrong: .* just one of them"):
            decode_message(record | {"role": record["role"] | {"inputs": [wrong]}})


def test_the_key_stays_out_of_logs() -> None:
    assert "987654" not in repr(install_message(replace(PLAIN, key=987654)))
