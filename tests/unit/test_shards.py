"""Which shard of a switch has which ring, and what follows when one dies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.rendezvous.control_plane import ControlPlane
from inaproto.core.rendezvous.events import HostArrived, MemberAsked, MemberReady, RendezvousConfig, Send
from inaproto.core.rendezvous.fabric.control import SWITCH_LOST
from inaproto.core.rendezvous.fabric.events import (
    Admit,
    Faulted,
    HostSeen,
    Installed,
    Order,
    Refused,
    Release,
    RingGone,
    RingWanted,
    StartAsked,
    SwitchArrived,
    SwitchLost,
    Tell,
)
from inaproto.core.rendezvous.fabric.one_switch import OneSwitch
from inaproto.core.rendezvous.fabric.shards import ALONE, Shards, owner_of
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import LocalMisuse
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Halt, Message, Ready, Ring, Start
from inaproto.wire.messages.switch import PoolSpec
from inaproto.wire.udp import SHARDS_MAX, shard_port
from tests.unit.rendezvous_members import hello, ip, member
from tests.unit.test_tree_control import spec

BOTH = {ip(0): True, ip(1): True}


def ring(ring_id: int) -> RingSpec:
    return replace(spec(2), ring_id=ring_id)


class Switch:
    """A core, whose hosts all choose their port unless told otherwise, and time."""

    def __init__(self, shards: int = 2, *, present: Sequence[int] = (1, 2), choose: bool = True) -> None:
        self.core = OneSwitch(shards)
        self.now = 0
        for host in range(2):
            assert self.step(HostSeen(ip(host), "", choose)) == []
        for number in present:
            assert self.step(SwitchArrived(f"shard {number}")) == [Admit(f"shard {number}")]

    def step(self, event: Any) -> list[Any]:
        return list(self.core.step(event, Instant(self.now)))

    def owner(self, ring_id: int) -> str:
        (order,) = self.step(RingWanted(ring(ring_id)))
        assert order == Order(order.switch, InstallRing(ring(ring_id)))
        return str(order.switch)


def start(ring_id: int) -> StartAsked:
    return StartAsked(Send(1, Start(job="train", ring_id=ring_id)))  # type: ignore[arg-type]


# --- ownership


@pytest.mark.parametrize(
    ("rings", "owner"), [({}, 0), ({1: 0, 2: 0}, 1), ({1: 1, 2: 0}, 2), ({1: 4, 3: 4}, 1), ({2: 9}, 2)]
)
def test_a_ring_is_the_shards_that_has_the_fewest(rings: dict[int, int], owner: int) -> None:
    assert owner_of(spec(2), BOTH, rings) == owner


@pytest.mark.parametrize("choose", [{}, {ip(0): True}, {ip(0): True, ip(1): False}])
def test_a_ring_of_a_host_that_cannot_choose_its_port_is_no_shards(choose: dict[bytes, bool]) -> None:
    assert owner_of(spec(2), choose, {1: 0}) == 0


def test_a_ring_that_has_slots_by_turns_is_no_shards() -> None:
    assert owner_of(replace(spec(2), pool=PoolSpec("shared", 1)), BOTH, {1: 0}) == 0


def test_each_shard_has_a_port_of_its_own_where_roce_nics_have_theirs() -> None:
    ports = [shard_port(number) for number in range(1, SHARDS_MAX + 1)]
    assert ports[:2] == [0xFFC1, 0xFFC2], "docs/protocol.md 12.5"
    assert len(set(ports)) == SHARDS_MAX
    assert min(ports) >= 0xC000
    assert max(ports) <= 0xFFFF
    Shards(SHARDS_MAX)
    with pytest.raises(LocalMisuse, match="there can be 63"):
        Shards(SHARDS_MAX + 1)


def test_rings_are_spread_and_one_that_ends_makes_room() -> None:
    switch = Switch()
    assert [switch.owner(ring_id) for ring_id in (7, 8, 9)] == ["shard 1", "shard 2", "shard 1"]
    assert [switch.owner(ring_id) for ring_id in (11, 12)] == ["shard 2", "shard 1"]
    assert switch.owner(7) == "shard 1", "once more, where it is"
    assert switch.step(RingGone(7)) == [Order("shard 1", RemoveRing(7))]
    assert switch.step(RingGone(9)) == [Order("shard 1", RemoveRing(9))]
    assert switch.owner(10) == "shard 1"
    assert switch.core.source_port(8) == shard_port(2)
    assert switch.core.source_port(7) == 0, "it is gone"


@pytest.mark.parametrize("switch", [Switch(0, present=()), Switch(present=()), Switch(choose=False)])
def test_what_no_shard_can_have_is_in_the_process_of_the_control_plane(switch: Switch) -> None:
    assert switch.owner(7) == ALONE
    assert switch.core.source_port(7) == 0
    assert switch.step(Installed(ALONE, 7)) == []
    assert switch.step(start(7)) == [Release(start(7).start)]
    assert switch.step(RingGone(7)) == [Order(ALONE, RemoveRing(7))]


def test_hosts_start_when_the_shard_has_the_ring() -> None:
    switch = Switch()
    assert switch.owner(7) == "shard 1"
    assert switch.step(start(7)) == []
    assert switch.step(Installed("shard 2", 7)) == [], "it has another ring of that name, or none"
    assert switch.step(Installed(ALONE, 7)) == []
    assert switch.step(Installed("shard 1", 7)) == [Release(start(7).start)]


def test_what_a_shard_refuses_or_stops_is_said_of_its_ring_alone() -> None:
    switch = Switch()
    switch.owner(7), switch.owner(8)
    refused, fault = RingRefused(7, "no room"), RingFault(8, 0, "operations differ", "x")
    assert switch.step(Refused("shard 2", refused)) == []
    assert switch.step(Refused("shard 1", refused)) == [Tell(refused)]
    assert switch.step(Faulted("shard 1", fault)) == []
    assert switch.step(Faulted("shard 2", fault)) == [Tell(fault)]


# --- death


def test_a_shard_that_dies_ends_its_rings_and_no_other() -> None:
    switch = Switch()
    for ring_id in (7, 8, 9):
        switch.owner(ring_id)
    told = switch.step(SwitchLost("shard 1", "killed by signal 9"))
    evidence = "shard 1 of the switch is gone: killed by signal 9"
    assert told == [Tell(RingFault(ring_id, 0, SWITCH_LOST, evidence)) for ring_id in (7, 9)]
    assert switch.step(start(7)) == [], "it starts nowhere"
    assert switch.step(Installed("shard 1", 7)) == []
    assert switch.step(RingGone(7)) == [], "nobody is there to be told"
    assert switch.step(start(8)) == []
    assert switch.step(Installed("shard 2", 8)) == [Release(start(8).start)]
    assert [switch.owner(ring_id) for ring_id in (10, 11)] == ["shard 2", "shard 2"]
    assert switch.step(SwitchLost("shard 1", "again")) == []


def test_a_shard_that_comes_again_hears_what_it_must_not_let_pass_before_its_ports_open() -> None:
    switch = Switch()
    for ring_id in (7, 8, 9):
        switch.owner(ring_id)
    switch.step(RingGone(7))
    switch.step(SwitchLost("shard 1", "killed"))
    both = [[Order("shard 1", InstallRing(ring(at))), Order("shard 1", RemoveRing(at))] for at in (7, 9)]
    assert sorted(switch.step(SwitchArrived("shard 1")), key=repr) == sorted(
        [*both[0], *both[1], Admit("shard 1")], key=repr
    )
    assert switch.step(Installed("shard 1", 9)) == [], "no answer to what was ordered before"
    assert switch.owner(10) == "shard 1"


def test_a_shard_that_comes_again_before_its_end_was_heard_has_lost_its_rings() -> None:
    switch = Switch()
    switch.owner(7), switch.owner(8)
    fault, *orders = switch.step(SwitchArrived("shard 1"))
    assert fault == Tell(RingFault(7, 0, SWITCH_LOST, "shard 1 of the switch is gone: it restarted"))
    assert orders == [
        Order("shard 1", InstallRing(ring(7))),
        Order("shard 1", RemoveRing(7)),
        Admit("shard 1"),
    ]


def test_what_a_shard_had_long_ago_is_forgotten() -> None:
    switch = Switch()
    switch.owner(7), switch.step(RingGone(7))
    switch.now = 60 * S
    assert switch.step(SwitchArrived("shard 1")) == [Admit("shard 1")]
    core = Shards(1, retired_ns=10, retired_max=2)
    for host in range(2):
        core.host_seen(ip(host), chooses_port=True)
    core.arrived("shard 1", Instant(0))
    for ring_id in range(1, 5):
        core.take(ring(ring_id))
    for ring_id in range(1, 4):
        core.give_up(ring_id, Instant(0))
    assert core.arrived("shard 1", Instant(9)) == [ring(4), ring(2), ring(3)], "two of those given up"
    core.give_up(4, Instant(10))
    assert core.arrived("shard 1", Instant(10)) == [ring(4)], "the others were given up 10 ns ago"


def test_of_shards_that_there_are_not_nothing_is_taken() -> None:
    switch = Switch()
    switch.owner(7)
    assert OneSwitch().step(SwitchArrived("shard 1"), Instant(0)) == []
    assert Shards().arrived("shard 1", Instant(0)) is None
    assert Shards(1).arrived("shard 0", Instant(0)) is None
    assert switch.step(SwitchArrived("shard 3")) == []
    assert switch.step(SwitchLost("shard 3", "x")) == []
    assert switch.owner(9) == "shard 2", "no other was lost"
    assert switch.owner(10) == "shard 1"


def test_hosts_that_were_seen_long_ago_make_room() -> None:
    core = Shards(1, hosts_max=2)
    core.arrived("shard 1", Instant(0))
    for host in (0, 1, 0, 2):
        core.host_seen(ip(host), chooses_port=True)
    first, second, third = spec(3).flows
    assert core.take(replace(ring(7), flows=(first, second))) == ALONE, "host 1 was seen before the others"
    assert core.take(replace(ring(8), flows=(first, replace(third, rank=1)))) == "shard 1"


# --- with a rendezvous


class Planned:
    """Two jobs of two hosts each, at a switch with two shards that answer at once."""

    def __init__(self) -> None:
        self.plane = ControlPlane(RendezvousConfig(recover_ns=S, shards=2))
        self.sent: list[tuple[int, Message]] = []
        self.orders: list[Order] = []
        self.does(SwitchArrived("shard 1"))
        self.does(SwitchArrived("shard 2"))
        for host in range(4):
            self.does(HostArrived(host, replace(hello(host), chooses_port=True)))  # type: ignore[arg-type]
        for host in range(4):
            job = "one" if host < 2 else "two"
            asked = member(host % 2, host=host, size=2, job=job)
            self.does(MemberAsked(host, asked, 77))  # type: ignore[arg-type]
        for host in range(4):
            ready = Ready(job="one" if host < 2 else "two", rank=host % 2)
            self.does(MemberReady(host, ready))  # type: ignore[arg-type]

    def does(self, event: Any) -> None:
        for action in self.plane.step(event, Instant(0)):
            if isinstance(action, Send):
                self.sent.append((action.session, action.message))
            elif isinstance(action, Order):
                self.orders.append(action)
                if isinstance(action.order, InstallRing):
                    self.does(Installed(action.switch, action.order.spec.ring_id))

    def told(self, kind: type[Message]) -> list[tuple[int, Any]]:
        found = [(session, message) for session, message in self.sent if isinstance(message, kind)]
        return sorted(found, key=lambda one: one[0])


def test_hosts_hear_the_port_of_the_shard_that_has_their_ring() -> None:
    at = Planned()
    assert [order.switch for order in at.orders] == ["shard 1", "shard 2"]
    ports = [message.udp_source_port for _, message in at.told(Ring)]
    assert ports == [shard_port(1), shard_port(1), shard_port(2), shard_port(2)]
    assert [session for session, _ in at.told(Start)] == [0, 1, 2, 3]


def test_a_shard_that_dies_costs_its_job_a_recovery_and_the_other_one_nothing() -> None:
    at = Planned()
    at.sent.clear()
    at.does(SwitchLost("shard 2", "killed by signal 9"))
    assert [session for session, _ in at.sent] == [2, 3]
    halts = at.told(Halt)
    assert {(halt.job, halt.path) for _, halt in halts} == {("two", "switch")}
    assert "shard 2 of the switch is gone: killed by signal 9" in halts[0][1].reason
    jobs = {job.name: job.recoveries for job in at.plane.view().rendezvous.jobs}
    assert jobs["one"] == 0
