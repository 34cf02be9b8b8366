"""The control of rings over several switches: trees pruned, orders given, refusals, losses, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import pytest

from inaproto.core.plan.aggregation_tree import SwitchAddress, TreeSwitch
from inaproto.core.rendezvous.events import Send, SessionId
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST, Phase, TreeControl
from inaproto.core.rendezvous.fabric.events import (
    Admit,
    Faulted,
    HostSeen,
    Installed,
    Order,
    Refused,
    Release,
    RingEvent,
    RingGone,
    RingWanted,
    StartAsked,
    SwitchArrived,
    SwitchLost,
    Tell,
    TreeAction,
    TreeControlConfig,
    TreeEvent,
    TreeView,
)
from inaproto.core.rendezvous.fabric.shapes import roles_of, tree_of
from inaproto.core.rendezvous.fabric_tree import FabricSwitch
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, PortId, S
from inaproto.wire.control_messages import Start

RING = 7


def switch(name: str, above: str | None = None, port: int = 0, *, aggregates: bool = True) -> FabricSwitch:
    number = sum(name.encode()) & 0xFF
    address = SwitchAddress(bytes([2, 0, 0, 0, 2, number]), bytes([10, 0, 1, number]))
    return FabricSwitch(name, address, above, PortId(1), PortId(port), aggregates)


def fabric(*, mid: bool = True, leaf: bool = True) -> tuple[FabricSwitch, ...]:
    """spine over mid (over leaf0, leaf1) and leaf2."""
    return (
        switch("spine"),
        switch("mid", "spine", 1, aggregates=mid),
        switch("leaf0", "mid", 2, aggregates=leaf),
        switch("leaf1", "mid", 3),
        switch("leaf2", "spine", 2),
    )


def ip(rank: int) -> bytes:
    return bytes([10, 0, 0, rank + 1])


def mac(rank: int) -> bytes:
    return bytes([2, 0, 0, 0, 0, rank + 1])


def spec(size: int, ring_id: int = RING) -> RingSpec:
    flows = tuple(
        FlowSpec(rank, ip(rank), ip((rank + 1) % size), 100 + rank, mac(rank), mac((rank + 1) % size))
        for rank in range(size)
    )
    return RingSpec(ring_id, 1, 99, 2, 4, 256, flows)


class Controlled:
    """With all switches there."""

    def __init__(self, seats: Sequence[str], switches: tuple[FabricSwitch, ...] | None = None) -> None:
        self.config = TreeControlConfig(
            switches or fabric(), {ip(rank): name for rank, name in enumerate(seats)}
        )
        self.core = TreeControl(self.config)
        self.now = Instant(0)
        self.size = len(seats)
        for one in self.config.switches[1:]:
            assert self.step(SwitchArrived(one.name)) == [Admit(one.name)]

    def step(self, event: TreeEvent) -> list[TreeAction]:
        before = {ring.ring_id: ring.phase for ring in self.core.view().rings}
        actions = self.core.step(event, self.now)
        if isinstance(event, RingEvent) and event.ring_id in before:
            was = Phase(before[event.ring_id])
            now = next(
                (Phase(one.phase) for one in self.core.view().rings if one.ring_id == event.ring_id), None
            )
            assert now in (was, *self.core.handlers.leads_to(was, type(event))), (was, event, now)
        return actions

    def want(self) -> list[str]:
        """The switches that are ordered to install the ring."""
        found = []
        for action in self.step(RingWanted(spec(self.size))):
            assert isinstance(action, Order)
            assert isinstance(action.order, InstallRing)
            found.append(action.switch)
        return found

    def stand(self) -> list[str]:
        names = self.want()
        for name in names:
            self.step(Installed(name, RING))
        return names

    @property
    def phase(self) -> str:
        (ring,) = self.core.view().rings
        return ring.phase


def start() -> StartAsked:
    return StartAsked(Send(SessionId(3), Start(job="j", ring_id=RING)))


# --- trees


@pytest.mark.parametrize(
    ("seats", "tree"),
    [
        (["leaf0"], TreeSwitch("leaf0", (0,))),
        (["leaf0", "leaf0"], TreeSwitch("leaf0", (0, 1))),
        (
            ["leaf0", "leaf1"],
            TreeSwitch("mid", (TreeSwitch("leaf0", (0,)), TreeSwitch("leaf1", (1,)))),
        ),
        (
            ["leaf2", "leaf0", "leaf2"],
            TreeSwitch(
                "spine",
                (TreeSwitch("leaf2", (0, 2)), TreeSwitch("mid", (TreeSwitch("leaf0", (1,)),))),
            ),
        ),
        (
            ["leaf1", "mid", "leaf0", "mid"],
            TreeSwitch("mid", (TreeSwitch("leaf1", (0,)), 1, TreeSwitch("leaf0", (2,)), 3)),
        ),
    ],
)
def test_a_tree_is_what_the_ranks_need_in_the_order_of_lowest_ranks(
    seats: list[str], tree: TreeSwitch
) -> None:
    assert tree_of(fabric(), seats) == tree


def test_below_a_switch_that_steers_none_aggregates() -> None:
    assert tree_of(fabric(mid=False), ["leaf0", "leaf2", "leaf1"]) == TreeSwitch(
        "spine",
        (
            TreeSwitch("mid", (TreeSwitch("leaf0", (0,), False), TreeSwitch("leaf1", (2,), False)), False),
            TreeSwitch("leaf2", (1,)),
        ),
    )


def test_below_one_that_passes_sums_on_others_aggregate() -> None:
    passing = tuple(replace(one, passes_sums=one.name == "mid") for one in fabric(mid=False))
    tree = tree_of(passing, ["leaf0", "leaf2", "leaf1"])
    mid = TreeSwitch("mid", (TreeSwitch("leaf0", (0,)), TreeSwitch("leaf1", (2,))), False)
    assert tree == TreeSwitch("spine", (mid, TreeSwitch("leaf2", (1,))))
    below = tuple(replace(one, passes_sums=one.name == "leaf0") for one in fabric(mid=False, leaf=False))
    assert tree_of(below, ["leaf0", "leaf1"]).children == (
        TreeSwitch("mid", (TreeSwitch("leaf0", (0,), False), TreeSwitch("leaf1", (1,), False)), False),
    )


def test_a_switch_with_nothing_but_sums_to_pass_on_has_its_role_too() -> None:
    passing = tuple(replace(one, passes_sums=not one.aggregates) for one in fabric(mid=False))
    config = TreeControlConfig(passing, {ip(0): "leaf0", ip(1): "leaf1"})
    role = roles_of(config, spec(2))["mid"]
    assert role is not None
    assert (role.inputs, role.steered, role.steer_to) == ((), (), PortId(1))


def test_the_root_is_the_lowest_switch_above_all_ranks_that_aggregates() -> None:
    steering = tree_of(fabric(mid=False), ["leaf0", "leaf1"])
    assert (steering.name, steering.aggregates) == ("spine", True)
    leaf = tree_of(fabric(leaf=False), ["leaf0", "leaf0"])
    assert leaf == TreeSwitch("mid", (TreeSwitch("leaf0", (0, 1), False),))


def test_one_switch_alone_has_no_role_and_others_have_theirs() -> None:
    alone = Controlled(["leaf0", "leaf0"])
    assert roles_of(alone.config, spec(2)) == {"leaf0": None}
    both = roles_of(Controlled(["leaf0", "leaf1"]).config, spec(2))
    assert list(both) == ["mid", "leaf0", "leaf1"]
    role = both["leaf1"]
    assert role is not None
    assert role.parent is not None
    assert (role.parent.peer, role.parent.port, role.ranks, role.delivers) == ("mid", 1, (1,), (0,))


def test_a_stranger_gets_no_roles() -> None:
    config = Controlled(["leaf0", "leaf0"]).config
    with pytest.raises(LocalMisuse, match="at no switch"):
        roles_of(config, spec(3))


@pytest.mark.parametrize(
    ("switches", "hosts", "words"),
    [
        ((switch("a"), switch("a", "a")), {}, "a is there twice"),
        ((switch("a"), switch("b", "c")), {}, "before the one above it"),
        ((switch("a", "b"),), {}, "before the one above it"),
        ((), {}, "the root"),
        ((switch("a", aggregates=False),), {}, "must aggregate"),
        ((switch("a"),), {b"1234": "b"}, "a host is at b"),
    ],
)
def test_fabrics_that_cannot_be(
    switches: tuple[FabricSwitch, ...], hosts: dict[bytes, str], words: str
) -> None:
    with pytest.raises(LocalMisuse, match=words):
        TreeControlConfig(switches, hosts)


# --- rings


def test_every_phase_and_event_has_a_handler() -> None:
    assert set(TreeControl(TreeControlConfig(fabric(), {})).handlers) == {
        (phase, event) for phase in Phase for event in get_args(RingEvent)
    }


def test_ranks_start_when_every_switch_has_the_ring() -> None:
    world = Controlled(["leaf0", "leaf1"])
    assert world.want() == ["mid", "leaf0", "leaf1"]
    assert world.step(start()) == []
    assert world.step(Installed("leaf0", RING)) == world.step(Installed("leaf0", RING)) == []
    assert world.core.view().rings == (
        TreeView(RING, "installing", ("mid", "leaf0", "leaf1"), ("mid", "leaf1")),
    )
    assert world.step(Installed("mid", RING)) == []
    assert world.step(Installed("leaf1", RING)) == [Release(start().start)]
    assert world.phase == "standing"
    assert world.step(start()) == [Release(start().start)]
    assert world.step(Installed("mid", RING)) == []


def test_a_ring_that_needs_no_switch_starts_at_once() -> None:
    assert Controlled(["leaf0"]).step(start()) == [Release(start().start)]


def test_a_refusal_is_told_once_and_the_ring_removed_everywhere() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.want()
    world.step(start())
    told = world.step(Refused("leaf1", RingRefused(RING, "no room")))
    assert told == [Tell(RingRefused(RING, "leaf1: no room"))]
    assert world.phase == "failed"
    assert world.step(Refused("mid", RingRefused(RING, "no room"))) == []
    assert world.step(Installed("leaf0", RING)) == world.step(start()) == []
    assert world.step(RingGone(RING)) == [Order(name, RemoveRing(RING)) for name in ("mid", "leaf0", "leaf1")]
    assert world.core.view().rings == ()
    assert world.step(Installed("leaf0", RING)) == world.step(RingGone(RING)) == []


@pytest.mark.parametrize("stands", [False, True])
def test_a_fault_goes_to_the_rendezvous_as_it_is(stands: bool) -> None:
    world = Controlled(["leaf0", "leaf1"])
    _ = world.stand() if stands else world.want()
    world.step(Installed("mid", RING))  # which it says before anything else of a ring
    fault = RingFault(RING, 1, "operations differ", "evidence")
    assert world.step(Faulted("mid", fault)) == [Tell(fault)]
    assert world.step(Faulted("leaf0", fault)) == []


@pytest.mark.parametrize("stands", [False, True])
def test_a_lost_switch_fails_the_rings_that_it_has(stands: bool) -> None:
    world = Controlled(["leaf0", "leaf1"])
    _ = world.stand() if stands else world.want()
    assert world.step(SwitchLost("leaf2", "power")) == []
    told = world.step(SwitchLost("leaf1", "power"))
    assert told == [Tell(RingFault(RING, 1, SWITCH_LOST, "leaf1 is gone: power"))]
    assert world.step(SwitchLost("mid", "power")) == []
    assert world.step(RingGone(RING)) == [Order("leaf0", RemoveRing(RING))]
    assert world.core.view().present == ("spine", "leaf0")


def test_the_fault_names_the_lowest_rank_of_the_lost_switch_if_it_has_one() -> None:
    world = Controlled(["leaf2", "leaf0", "leaf0", "leaf1"])
    world.stand()
    assert world.step(SwitchLost("leaf0", "x")) == [Tell(RingFault(RING, 1, SWITCH_LOST, "leaf0 is gone: x"))]
    other = Controlled(["leaf2", "leaf0", "leaf1"])
    other.stand()
    assert other.step(SwitchLost("mid", "x")) == [Tell(RingFault(RING, 0, SWITCH_LOST, "mid is gone: x"))]


def test_a_switch_that_is_away_and_above_all_ranks_refuses() -> None:
    """They reach each other below it."""
    world = Controlled(["leaf0", "leaf0"], fabric(mid=False, leaf=False))
    world.step(SwitchLost("mid", "x"))
    assert world.step(RingWanted(spec(2))) == [Tell(RingRefused(RING, "switch mid is not connected"))]
    assert world.core.view().rings == ()
    strange = world.step(RingWanted(spec(3)))
    assert strange == [Tell(RingRefused(RING, "a rank's host is at no switch of the fabric"))]


# --- restarts


def retired(actions: list[TreeAction]) -> list[tuple[str, type]]:
    return [(action.switch, type(action.order)) for action in actions if isinstance(action, Order)]


def test_a_switch_that_restarts_hears_of_its_rings_as_removed_before_it_is_admitted() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.stand()
    world.step(RingGone(RING))
    world.step(SwitchLost("leaf1", "x"))
    actions = world.step(SwitchArrived("leaf1"))
    assert retired(actions) == [("leaf1", InstallRing), ("leaf1", RemoveRing)]
    assert actions[-1] == Admit("leaf1")
    (install, remove) = actions[:2]
    assert isinstance(install, Order)
    role = roles_of(world.config, spec(2))["leaf1"]
    assert install.order == InstallRing(replace(spec(2), role=role))
    assert remove == Order("leaf1", RemoveRing(RING))
    assert world.step(SwitchArrived("leaf2"))[-1] == Admit("leaf2")
    assert retired(world.step(SwitchArrived("leaf2"))) == []


def test_after_a_while_nobody_sends_for_the_ring_any_more() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.stand()
    world.step(RingGone(RING))
    world.now = Instant(60 * S - 1)
    assert len(retired(world.step(SwitchArrived("leaf1")))) == 2
    world.now = Instant(60 * S)
    assert world.step(SwitchArrived("leaf1")) == [Admit("leaf1")]


def test_a_switch_that_comes_back_before_it_was_missed_has_lost_its_rings() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.stand()
    actions = world.step(SwitchArrived("leaf1"))
    assert actions[0] == Tell(RingFault(RING, 1, SWITCH_LOST, "leaf1 is gone: it restarted"))
    assert retired(actions) == [("leaf1", InstallRing), ("leaf1", RemoveRing)]
    assert actions[-1] == Admit("leaf1")
    assert world.phase == "failed"


def test_a_switch_of_no_fabric_is_not_admitted() -> None:
    assert Controlled(["leaf0"]).step(SwitchArrived("leaf9")) == []


def test_rings_that_are_remembered_are_bounded() -> None:
    config = TreeControlConfig(fabric(), {ip(0): "leaf0", ip(1): "leaf1"}, retired_max=2)
    core = TreeControl(config)
    for name in ("mid", "leaf0", "leaf1"):
        core.step(SwitchArrived(name), Instant(0))
    for ring_id in range(1, 5):
        core.step(RingWanted(spec(2, ring_id)), Instant(0))
        core.step(RingGone(ring_id), Instant(0))
    orders = [
        action.order
        for action in core.step(SwitchArrived("leaf1"), Instant(1))
        if isinstance(action, Order) and isinstance(action.order, RemoveRing)
    ]
    assert orders == [RemoveRing(3), RemoveRing(4)]


def test_it_has_no_timers_but_of_rings_that_wait() -> None:
    world = Controlled(["leaf0", "leaf1"])
    world.stand()
    assert world.core.deadline is None


# --- hosts that are seen


def test_hosts_are_where_they_were_seen_last() -> None:
    control = Controlled(["leaf0", "leaf0"])
    assert control.step(HostSeen(ip(1), "leaf1")) == []
    assert control.want() == ["mid", "leaf0", "leaf1"]


def test_a_host_at_an_unknown_switch_is_not_seen() -> None:
    control = Controlled(["leaf0", "leaf0"])
    assert control.step(HostSeen(ip(1), "leaf9")) == []
    assert control.want() == ["leaf0"]


def test_the_host_seen_longest_ago_makes_room() -> None:
    core = TreeControl(TreeControlConfig(fabric(), {}, hosts_max=2))
    core.step(SwitchArrived("leaf0"), Instant(0))
    for rank in (0, 1, 0, 2):
        core.step(HostSeen(ip(rank), "leaf0"), Instant(0))
    first, unknown, known = spec(2), spec(2, 8), spec(2, 9)
    known = replace(known, flows=(first.flows[0], replace(first.flows[1], src_ip=ip(2))))
    assert core.step(RingWanted(unknown), Instant(0)) == [
        Tell(RingRefused(8, "a rank's host is at no switch of the fabric"))
    ]
    assert [type(action) for action in core.step(RingWanted(known), Instant(0))] == [Order]


def test_trees_refusals_and_losses_are_counted() -> None:
    control = Controlled(["leaf0", "leaf1"])

    def counts() -> list[int]:
        counters = control.core.view().counters
        return [counters[name] for name in ("trees_made", "trees_refused", "switches_lost")]

    assert counts() == [0, 0, 0]
    for made in (1, 2):
        control.stand()
        control.step(RingGone(RING))
        assert counts() == [made, 0, 0]
    for refused in (1, 2):
        control.want()
        control.step(Refused("mid", RingRefused(RING, "no room")))
        assert counts() == [2, refused, 0]
        control.step(Refused("leaf0", RingRefused(RING, "no room")))
        assert counts() == [2, refused, 0], "a ring is refused once"
        control.step(RingGone(RING))
    for lost, name in ((1, "leaf1"), (2, "leaf0")):
        control.step(SwitchLost(name, "gone"))
        control.step(SwitchLost(name, "gone"))
        assert counts() == [2, 2, lost]
    for refused in (3, 4):
        control.step(RingWanted(spec(3)))
        assert counts() == [2, refused, 2]
    assert dict(control.core.view().counters) == {
        "trees_made": 2,
        "trees_refused": 4,
        "trees_waited": 0,
        "switches_lost": 2,
        "trunks_down": 0,
    }
