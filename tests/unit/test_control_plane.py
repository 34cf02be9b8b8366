"""The control plane as one core: what rendezvous and switches hear of each other within a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.rendezvous.control_plane import ControlEvent, ControlPlane, TreesChanged
from inaproto.core.rendezvous.events import (
    HostArrived,
    JobView,
    MemberAsked,
    MemberLeft,
    MemberParked,
    RefuseHost,
    RendezvousConfig,
    Send,
    SessionEnded,
    SessionId,
    TreesWished,
    WelcomeHost,
    Woke,
)
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
    TreeControlConfig,
    TrunkSaid,
)
from inaproto.core.rendezvous.fabric.one_switch import ALONE, OneSwitch
from inaproto.core.steps import Steps
from inaproto.core.switch.accelerator import InstallRing, RemoveRing, RingFault, RingRefused
from inaproto.units import Instant, S
from inaproto.wire.control_messages import Closed, Failed, Halt, Left, Member, Message, Ring, Start
from inaproto.wire.messages.ina import InaParked, InaStands
from inaproto.wire.messages.trees import FabricTree, TreeWished
from tests.unit.rendezvous_fabrics import TWO_SPINES
from tests.unit.rendezvous_hosts import World, sent
from tests.unit.rendezvous_members import hello, ip, member
from tests.unit.test_rendezvous_shared import asks_all, halted_all
from tests.unit.test_tree_control import spec

THREE: Mapping[int, tuple[int, ...]] = {0: (0,), 1: (1,), 2: (2,)}
SPINES = TreeControlConfig(TWO_SPINES["switches"], {})
SPINE1 = FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "spine1")))
RECOVER_NS = 2 * S


class Planned(World):
    """Hosts at a control plane; ``answers``: its switches take every ring at once."""

    def __init__(
        self,
        fabric: TreeControlConfig | None = None,
        *,
        at: Sequence[str] = ("leaf0", "leaf1", "leaf1"),
        answers: bool = True,
        recover_ns: int = RECOVER_NS,
    ) -> None:
        self.plane = ControlPlane(RendezvousConfig(recover_ns=recover_ns), fabric)
        self.ranks, self.size = THREE, 3
        self.host_of = {0: 0, 1: 1, 2: 2}
        self.infiniband = ()
        self.now = 0
        self.answers = answers
        self.orders: list[Order] = []
        self.session = {host: SessionId(host) for host in THREE}
        for switch in [] if fabric is None else fabric.switches[1:]:
            self.step(SwitchArrived(switch.name))
        for host in THREE:
            said = replace(hello(host), switch="" if fabric is None else at[host])
            self.step(HostArrived(self.session[host], said))

    def step(self, event: Any) -> list[Any]:
        """As drivers do: what an accelerator answers comes when all actions have been performed."""
        actions: list[Any] = []

        def step(one: ControlEvent) -> None:
            told = self.plane.step(one, Instant(self.now))
            actions.extend(told)
            for action in told:
                if isinstance(action, Order):
                    self.orders.append(action)
                    if self.answers and isinstance(action.order, InstallRing):
                        steps.post(Installed(action.switch, action.order.spec.ring_id))

        steps: Steps[ControlEvent] = Steps(step)
        steps.post(event)
        return actions

    @property
    def jobs(self) -> tuple[JobView, ...]:
        return self.plane.view().rendezvous.jobs

    @property
    def switches_told(self) -> list[str]:
        """Which were ordered to install a ring since this was asked last."""
        orders, self.orders = self.orders, []
        return [one.switch for one in orders if isinstance(one.order, InstallRing)]

    def shared(self) -> int:
        """All have joined a job on two rings and wait for the switches; returns the ring that these get."""
        asks_all(self)
        halted_all(self)
        return self.job.ina_ring_id

    def parks(self, messages: int, epoch: int) -> list[Any]:
        ring_id, actions = self.job.ina_ring_id, []
        for host in THREE:
            told = InaParked(job="train", rank=host, ring_id=ring_id, epoch=epoch, messages=messages)
            actions += self.step(MemberParked(self.session[host], told))
        return actions

    @property
    def tree(self) -> tuple[str, int, str]:
        [state] = self.plane.tree_states()
        return state.phase, state.epoch, state.reason


def said(actions: Sequence[Any], kind: type[Message]) -> list[Any]:
    return [one.message for one in actions if isinstance(one, Send) and isinstance(one.message, kind)]


# --- a ring stands when its switches have it


def test_hosts_hear_that_they_may_start_when_every_switch_has_the_ring() -> None:
    world = Planned(SPINES, answers=False)
    world.connecting()
    ring_id = world.job.ring_id
    assert world.switches_told == ["spine0", "leaf0", "leaf1"]
    assert said(world.ready(), Start) == []
    for switch in ("leaf1", "spine0"):
        assert world.step(Installed(switch, ring_id)) == []
    starts = sent(world.step(Installed("leaf0", ring_id)), Start)
    assert [host for host, _ in starts] == [0, 1, 2]


def test_a_switch_that_is_alone_has_its_own_accelerator_told() -> None:
    world = Planned()
    world.connecting()
    ring_id = world.job.ring_id
    [order] = world.orders
    assert (order.switch, order.order.spec.ring_id, order.order.spec.role) == (ALONE, ring_id, None)  # type: ignore[union-attr]
    assert len(said(world.ready(), Start)) == 3
    assert world.plane.view().fabric is None
    assert world.plane.deadline is None


@pytest.mark.parametrize("fabric", [None, SPINES], ids=["alone", "fabric"])
def test_the_rendezvous_hears_that_a_ring_stands_when_its_hosts_do(fabric: TreeControlConfig | None) -> None:
    world = Planned(fabric)
    world.shared()
    assert world.tree[0] == "moving"
    actions: list[Any] = world.ready()
    changed = [one for one in actions if isinstance(one, TreesChanged)]
    assert [state.phase for state in changed[-1].states] == ["standing"]
    assert world.tree == ("standing", 0, "")


@pytest.mark.parametrize("fabric", [None, SPINES], ids=["alone", "fabric"])
def test_a_ring_that_moves_stands_for_nobody_before_its_switches_have_taken_it(
    fabric: TreeControlConfig | None,
) -> None:
    world = Planned(fabric)
    ring_id = world.shared()
    world.ready()
    world.step(TreesWished((TreeWished("train", 1, SPINE1),)))
    world.answers = False
    world.switches_told  # noqa: B018  those until now
    actions = world.parks(7, 1)
    names = world.switches_told
    assert names == ([ALONE] if fabric is None else ["spine1", "leaf0", "leaf1"])
    assert said(actions, InaStands) == []
    assert world.tree[:2] == ("moving", 1)
    last = [world.step(Installed(name, ring_id)) for name in names][-1]
    assert {stood.ring_id for stood in said(last, InaStands)} == {ring_id}
    assert world.tree[:2] == ("standing", 1)


@pytest.mark.parametrize("fabric", [None, SPINES], ids=["alone", "fabric"])
def test_of_a_ring_that_is_refused_where_it_moves_no_host_hears_that_it_stands(
    fabric: TreeControlConfig | None,
) -> None:
    world = Planned(fabric)
    ring_id = world.shared()
    world.ready()
    world.step(TreesWished((TreeWished("train", 1, SPINE1),)))
    world.answers = False
    world.parks(7, 1)
    name = world.switches_told[-1]
    actions = world.step(Refused(name, RingRefused(ring_id, "no room")))
    assert said(actions, InaStands) == []
    assert world.tree == ("refused", 1, "no room" if fabric is None else "leaf1: no room")
    assert Order(name, RemoveRing(ring_id)) in actions


def test_what_an_accelerator_says_of_a_ring_is_said_of_that_ring() -> None:
    world = Planned()
    world.connecting()
    ring_id = world.job.ring_id
    world.ready()
    assert world.step(Faulted(ALONE, RingFault(ring_id + 1, 0, "operations differ", "x"))) == []
    assert world.step(Refused(ALONE, RingRefused(ring_id + 1, "no room"))) == []
    [halt, *_] = said(world.step(Refused(ALONE, RingRefused(ring_id, "no room"))), Halt)
    assert halt.reason == "the switch cannot sum for it: no room"


@pytest.mark.parametrize("fabric", [None, SPINES], ids=["alone", "fabric"])
def test_what_is_ordered_of_switches_keeps_its_place_among_what_hosts_are_told(
    fabric: TreeControlConfig | None,
) -> None:
    """Switches are told of a ring before its hosts, and a job that starts only to end starts first."""
    world = Planned(fabric)
    actions: list[Any] = world.connecting()
    rings = [at for at, one in enumerate(actions) if isinstance(one, Send) and isinstance(one.message, Ring)]
    orders = [at for at, one in enumerate(actions) if isinstance(one, Order)]
    assert orders == list(range(1 if fabric is None else 3))
    assert min(rings) == len(orders)
    world.ready()
    world.step(SessionEnded(world.session[2], "cut"))
    for rank in (0, 1):
        world.step(MemberLeft(world.session[rank], Left(job="train", rank=rank, operations=1)))
        world.halted(rank, 0)
    world.session[2] = SessionId(12)
    world.step(HostArrived(world.session[2], replace(hello(2), switch="leaf1" if fabric else "")))
    world.asks(2, progress=0, left_after=1)
    ends: list[Any] = world.ready()
    told = [type(one.message) for one in ends if isinstance(one, Send)]
    assert told[-6:] == [Start] * 3 + [Closed] * 3


# --- hosts


def test_a_job_adds_as_the_fabric_does_where_its_hosts_are() -> None:
    world = Planned(SPINES, at=("leaf0", "leaf1", "leaf0"))
    world.connecting()
    assert world.job.plan == "[[0, 2], [1]]"
    alone = Planned()
    alone.connecting()
    assert alone.job.plan == "[0, 1, 2]"


def test_a_host_whose_hello_names_no_switch_is_at_the_root() -> None:
    world = Planned(SPINES, at=("", "leaf1", "leaf1"))
    world.connecting()
    assert world.job.plan == "[0, [1, 2]]"
    assert world.switches_told == ["spine0", "leaf1"]


def test_a_host_that_is_refused_moves_nobody_to_its_switch() -> None:
    world = Planned(SPINES)
    forged = replace(hello(9), ip=ip(0), switch="leaf1")
    [refused] = world.step(HostArrived(SessionId(9), forged))
    assert isinstance(refused, RefuseHost)
    world.connecting()
    assert world.switches_told == ["spine0", "leaf0", "leaf1"]
    assert world.job.plan == "[[0], [1, 2]]"


def test_a_host_is_welcome_before_anything_else_is_said_to_it() -> None:
    plane = ControlPlane(RendezvousConfig(), SPINES)
    actions = plane.step(HostArrived(SessionId(1), replace(hello(0), switch="leaf0")), Instant(0))
    assert actions[0] == WelcomeHost(SessionId(1), 1)


# --- deadlines


def test_a_ring_waits_for_a_switch_as_long_as_a_job_for_its_ranks() -> None:
    world = Planned(SPINES)
    world.step(SwitchLost("leaf1", "gone"))
    world.connecting()
    assert world.plane.deadline == RECOVER_NS
    world.now = RECOVER_NS
    [failed, *_] = said(world.step(Woke()), Failed)
    assert "switch leaf1 is not connected; it did not come within 2 s" in failed.message
    patient = Planned(SPINES, recover_ns=0)
    patient.step(SwitchLost("leaf1", "gone"))
    patient.connecting()
    assert patient.plane.deadline == SPINES.wait_ns


def test_one_wake_serves_both_cores() -> None:
    world = Planned(SPINES)
    world.connecting()
    world.ready()
    world.step(SwitchLost("leaf1", "gone"))
    assert world.job.phase == "halted"
    assert world.plane.deadline == RECOVER_NS
    world.now = RECOVER_NS
    assert "it has not come back within 2 s" in said(world.step(Woke()), Failed)[0].message
    assert world.plane.deadline is None


def test_room_in_the_switches_is_heard_of_in_the_same_step() -> None:
    world = Planned(SPINES)
    world.shared()
    world.ready()
    world.step(TreesWished((TreeWished("train", 1, SPINE1),)))
    world.step(SwitchLost("spine1", "gone"))
    world.parks(7, 1)
    assert world.tree == ("refused", 1, "switch spine1 is not connected")
    actions = world.step(SwitchArrived("spine1"))
    assert Admit("spine1") in actions
    assert world.plane.deadline == world.now, "it tries now"
    world.step(Woke())
    assert world.tree[:2] == ("standing", 1)


# --- selective rings (docs/protocol.md 7.8, 14.1)


def selective(rank: int, *, is_able: bool = True) -> Member:
    link = member(rank)
    out, into = replace(link.out, selective=is_able), replace(link.into, selective=is_able)
    return replace(link, out=out, into=into)


def joined(world: Planned, unable: int | str | None = None) -> list[Any]:
    """All have asked to join; what the last one brought about."""
    asked = [MemberAsked(world.session[rank], selective(rank, is_able=rank != unable), 7) for rank in THREE]
    return [world.step(event) for event in asked][-1]


def installed(world: Planned) -> set[bool]:
    """Whether the rings are selective that switches were told of."""
    return {one.order.spec.selective for one in world.orders if isinstance(one.order, InstallRing)}


@pytest.mark.parametrize("unable", [None, 1, "leaf0", "spine1"])
def test_7_8_a_ring_of_several_switches_is_selective_if_all_can(unable: int | str | None) -> None:
    world = Planned(SPINES)
    if isinstance(unable, str):
        world.step(SwitchArrived(unable, is_selective=False))
    rings = said(joined(world, unable), Ring)
    is_able = unable is None
    assert {ring.successor.selective for ring in rings} == {is_able}
    assert {ring.predecessor.selective for ring in rings} == {is_able}
    assert installed(world) == {is_able}


def test_7_8_a_switch_that_can_after_all_has_started_anew() -> None:
    world = Planned(SPINES)
    world.step(SwitchArrived("leaf0", is_selective=False))
    world.step(SwitchArrived("leaf0"))
    joined(world)
    assert installed(world) == {True}


def test_7_8_a_ring_that_waits_for_a_switch_that_cannot_is_not_selective() -> None:
    world = Planned(SPINES)
    world.step(SwitchLost("leaf1", "gone"))
    joined(world)
    assert world.orders == []
    world.step(SwitchArrived("leaf1", is_selective=False))
    assert installed(world) == {False}


# --- a switch that is alone


def start(ring_id: int) -> StartAsked:
    return StartAsked(Send(SessionId(3), Start(job="j", ring_id=ring_id)))


def test_an_answer_to_an_earlier_order_says_nothing_of_a_later_one() -> None:
    core = OneSwitch()
    order = Order(ALONE, InstallRing(spec(2)))
    ring_id = spec(2).ring_id

    def step(event: Any) -> list[Any]:
        return list(core.step(event, Instant(0)))

    assert step(RingWanted(spec(2))) == [order]
    assert step(RingWanted(spec(2), SPINE1)) == [order], "whatever tree is wished"
    assert step(start(ring_id)) == []
    refused = RingRefused(ring_id, "no room")
    assert step(Refused(ALONE, refused)) == [Tell(refused)]
    assert step(Installed(ALONE, ring_id)) == [Release(start(ring_id).start)]
    assert step(Installed(ALONE, ring_id)) == []
    assert step(start(ring_id)) == [Release(start(ring_id).start)]
    assert step(RingGone(ring_id)) == [Order(ALONE, RemoveRing(ring_id))]
    assert step(Installed(ALONE, ring_id)) == []


def test_of_a_refused_ring_nothing_is_said_until_it_is_given_up() -> None:
    core = OneSwitch()
    ring_id = spec(2).ring_id
    core.step(RingWanted(spec(2)), Instant(0))
    core.step(start(ring_id), Instant(0))
    refused = RingRefused(ring_id, "no room")
    assert core.step(Refused(ALONE, refused), Instant(0)) == [Tell(refused)]
    assert core.step(start(ring_id), Instant(0)) == []
    core.step(RingGone(ring_id), Instant(0))
    assert core.step(start(ring_id), Instant(0)) == [Release(start(ring_id).start)], "its base ring"


def test_what_fabrics_hear_is_nothing_to_it() -> None:
    core = OneSwitch()
    for event in (HostSeen(ip(0), "x"), SwitchArrived("x"), SwitchLost("x", "y"), TrunkSaid("x", "y")):
        assert core.step(event, Instant(0)) == []
    fault = RingFault(7, 0, "operations differ", "x")
    assert core.step(Faulted(ALONE, fault), Instant(0)) == [Tell(fault)]
    assert core.deadline is None
