"""Trees of accelerators, to the letter: what is refused and why, whom a fault names, what is ordered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.plan.aggregation_tree import SwitchAddress, TreeSwitch, compose_roles
from inaproto.core.rendezvous.events import Send, SessionId
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST
from inaproto.core.rendezvous.fabric.events import (
    Order,
    RingWanted,
    StartAsked,
    SwitchArrived,
    SwitchLost,
    Tell,
    TreeControlConfig,
)
from inaproto.core.rendezvous.fabric.shapes import plan_of
from inaproto.core.rendezvous.fabric_tree import FabricSwitch
from inaproto.core.switch.accelerator import InstallRing, RingFault
from inaproto.errors import DecodeError, LocalMisuse
from inaproto.wire.control_messages import Start
from inaproto.wire.messages.client import Ok
from inaproto.wire.tree_note import NOTE_BYTES, NoteKind, TreeNote
from tests.unit.test_tree_control import RING, Controlled, spec
from tests.unit.test_wire_tree_note import FIRST, NOTE, OPENS

# --- notes


def opens(header: bytes) -> bytes:
    """An OPENS note with any header, as bytes."""
    return NOTE.encode()[:5] + b"\1" + NOTE.encode()[6:20] + bytes(4) + NOTE.encode()[24:] + header


@pytest.mark.parametrize(
    ("data", "why", "offset"),
    [
        (b"J" + NOTE.encode()[1:], "magic is 0x4a4e4154, not 0x494e4154", 0),
        (OPENS.encode()[:20] + b"\0\1" + OPENS.encode()[22:], "a message opens with its first packet", 20),
        (opens(b""), "the header opens no RDMA WRITE", NOTE_BYTES),
        (opens(FIRST[:42]), "the header opens no RDMA WRITE", NOTE_BYTES),
        (opens(FIRST[:14] + b"\x46" + FIRST[15:]), "the header is no plain IPv4 and UDP", NOTE_BYTES + 12),
        (opens(FIRST[:36] + b"\0\0" + FIRST[38:]), "the header is not of RoCEv2", NOTE_BYTES + 36),
    ],
)
def test_what_no_note_can_be_is_told_exactly(data: bytes, why: str, offset: int) -> None:
    with pytest.raises(DecodeError) as refused:
        TreeNote.decode(data)
    assert (refused.value.layer, refused.value.reason, refused.value.offset) == ("tree note", why, offset)


def test_a_value_that_does_not_fit_is_named() -> None:
    with pytest.raises(LocalMisuse) as refused:
        replace(NOTE, rank=1 << 16).encode()
    assert str(refused.value) == "tree note: rank = 65536 does not fit 16 bits"
    with pytest.raises(LocalMisuse) as refused:
        replace(NOTE, kind=NoteKind.OPENS, header=FIRST).encode()
    assert str(refused.value) == "tree note: a message opens with its first packet"


# --- trees and fabrics


def test_two_switches_of_one_name_are_no_tree() -> None:
    with pytest.raises(LocalMisuse) as refused:
        compose_roles(
            TreeSwitch("s", (TreeSwitch("leaf", (0,)), TreeSwitch("leaf", (1,)))),
            ring_id=1,
            addresses={name: SwitchAddress(b"", b"") for name in ("s", "leaf")},
            port_toward={},
        )
    assert str(refused.value) == "two switches of a tree have one name"


def test_a_fabric_without_a_root_that_aggregates_is_none() -> None:
    for switches in ((), (FabricSwitch("s", SwitchAddress(b"", b""), aggregates=False),)):
        with pytest.raises(LocalMisuse) as refused:
            TreeControlConfig(switches, {})
        assert str(refused.value) == "fabric: the root, which is the first switch, must aggregate"


def test_each_switch_is_told_of_the_ring_with_its_own_role() -> None:
    world = Controlled(["leaf0", "leaf1", "leaf1"])
    orders = {}
    for action in world.step(RingWanted(spec(3))):
        assert isinstance(action, Order)
        assert isinstance(action.order, InstallRing)
        orders[action.switch] = action.order.spec
    assert orders.keys() == {"mid", "leaf0", "leaf1"}
    for name, told in orders.items():
        assert replace(told, role=None) == spec(3)
        assert told.role is not None
        assert told.role.ranks == {"mid": (), "leaf0": (0,), "leaf1": (1, 2)}[name]
    above = {switch.name: switch for switch in world.config.switches}
    assert orders["mid"].role is not None
    assert [child.port for child in orders["mid"].role.children] == [
        above["leaf0"].port_down,
        above["leaf1"].port_down,
    ]


def test_the_tree_is_of_all_seats_whichever_is_first() -> None:
    world = Controlled(["leaf2", "leaf0"])
    assert set(world.want()) == {"spine", "mid", "leaf0", "leaf2"}
    world = Controlled(["leaf0", "leaf2"])
    assert set(world.want()) == {"spine", "mid", "leaf0", "leaf2"}


def test_a_ring_at_one_switch_names_its_first_rank_when_that_is_lost() -> None:
    world = Controlled(["leaf0", "leaf0"])
    world.stand()
    faults = [
        act.event
        for act in world.step(SwitchLost("leaf0", "power"))
        if isinstance(act, Tell) and isinstance(act.event, RingFault)
    ]
    assert faults == [RingFault(RING, 0, SWITCH_LOST, "leaf0 is gone: power")]


def test_a_lost_switch_fails_all_rings_that_it_has() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.stand()
    world.step(RingWanted(replace(spec(2, RING + 1))))
    actions = world.step(SwitchLost("leaf0", "power"))
    told = repr(actions)
    assert f"ring_id={RING}," in told
    assert f"ring_id={RING + 1}," in told
    assert world.step(SwitchLost("leaf0", "power")) == []


def test_a_switch_that_was_not_here_loses_nothing_by_coming() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.step(SwitchLost("leaf2", "power"))
    world.stand()
    actions = world.step(SwitchArrived("leaf2"))
    assert len(actions) == 1
    assert world.phase == "standing"


def test_what_is_no_start_concerns_no_ring() -> None:
    assert StartAsked(Send(SessionId(1), Ok(id=5))).ring_id == 0
    assert StartAsked(Send(SessionId(1), Start(job="j", ring_id=8))).ring_id == 8


def test_the_plan_of_a_job_is_that_of_its_tree() -> None:
    world = Controlled(["leaf0", "leaf1", "leaf0"])
    seats = tuple(world.config.hosts.values())
    plan = plan_of(world.config.switches, seats)
    assert plan is not None
    assert plan.to_lists() == [[0, 2], [1]]
    assert plan_of(world.config.switches, (seats[0], "")) is None
