"""Hosts on InfiniBand in the rendezvous: their addresses, who may be in one job, and which paths it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inaproto.ca.identity import Identity, Role
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.core.rendezvous.control_plane import ControlAction, ControlPlane
from inaproto.core.rendezvous.events import (
    HostArrived,
    MemberAsked,
    Noted,
    RefuseHost,
    RendezvousAction,
    RendezvousConfig,
    SessionId,
    WelcomeHost,
)
from inaproto.core.rendezvous.fabric.events import HostSeen
from inaproto.core.rendezvous.jobs import NO_SWITCH
from inaproto.core.rendezvous.path_costs import LinkFigures
from inaproto.daemon.net.session_rules import refusal_of
from inaproto.units import Instant
from inaproto.wire.control_messages import Error, Halt, Member, Ring
from inaproto.wire.messages.infiniband import InfinibandPort
from tests.unit.rendezvous_hosts import LARGE, World, failure, refusal, sent
from tests.unit.rendezvous_members import gid, hello, ip, mac, member, on_infiniband

ALL = (0, 1, 2)
THREE = {host: (host,) for host in ALL}
CROSSED = ReductionPlan(((0, 2), (1,)))


def world(ranks: Any = THREE, **options: Any) -> World:
    return World(ranks, **({"infiniband": ALL, "overlays": ALL} | options))


def asks_all(of: World, **wishes: Any) -> list[RendezvousAction]:
    actions: list[RendezvousAction] = []
    for rank in range(of.size):
        actions = of.asks(rank, **wishes)
    return actions


def goes_on(of: World, actions: Sequence[RendezvousAction]) -> list[RendezvousAction]:
    """Each host that is halted makes links for the path of which it is told."""
    last: list[RendezvousAction] = []
    for session, halt in sent(actions, Halt):
        host = session % 10
        link = replace(member(0, host=host).into, slots=2, slot_bytes=LARGE)
        below = tuple(replace(link, qpn=1000 + 10 * host + child) for child in range(halt.children))
        slots = 2 if halt.path == "overlay" else 4
        last = of.halted(host, 0, below=below, slots=slots)
    return last


def place(host: int) -> InfinibandPort:
    return InfinibandPort(gid=gid(host), lid=host + 1)


@pytest.mark.parametrize("path", ["auto", "chain", "overlay", "ring"])
def test_hosts_hear_of_each_other_by_gid_and_lid(path: str) -> None:
    at = world()
    rings = [ring for _, ring in sent(goes_on(at, asks_all(at, path=path)), Ring)]
    assert {ring.path for ring in rings} == {"chain" if path == "auto" else path}
    tree = OverlayTree(ReductionPlan.flat(3), rings[0].in_degree or 1)
    for ring in rings:
        here = ring.position
        up = tree.parents[here]
        after, before = (here + 1) % 3, (here - 1) % 3
        if path == "overlay":
            after = before = here if up is None else up
        assert (ring.successor.infiniband, ring.predecessor.infiniband) == (place(after), place(before))
        assert (ring.successor.mac, ring.predecessor.ip) == (bytes(6), bytes(4))
        assert [link.infiniband for link in ring.below] == [
            place(child) for child in (tree.children(here) if path == "overlay" else ())
        ]
    noted = at.ready()[-1]
    assert isinstance(noted, Noted)
    assert not noted.is_problem
    assert at.installed == {}
    assert at.job.fallback == (NO_SWITCH if path == "auto" else "asked for")
    assert at.core.deadline is None, "the switches are not tried again after a while"


def test_a_job_on_both_paths_has_the_chain_alone() -> None:
    at = world()
    actions: list[RendezvousAction] = []
    for rank in ALL:
        its = member(rank)
        actions = at.asks(rank, path="shared", ina_out=its.out, ina_into=its.into)
    rings = [ring for _, ring in sent(goes_on(at, actions), Ring)]
    assert {(ring.path, ring.ina_ring_id) for ring in rings} == {("chain", 0)}
    at.ready()
    assert (at.installed, at.job.fallback) == ({}, NO_SWITCH)


def test_where_no_chain_can_follow_the_plan_its_hosts_sum_up_a_tree() -> None:
    at = world(plan=CROSSED)
    assert {ring.path for _, ring in sent(goes_on(at, asks_all(at)), Ring)} == {"overlay"}


def test_a_job_that_its_hosts_cannot_sum_is_refused_in_words() -> None:
    at = world(plan=CROSSED, overlays=())
    [words] = {error.message for _, error in sent(asks_all(at), Error)}
    assert "its hosts cannot sum in the order" in words


def test_figures_choose_among_the_paths_by_hosts_alone() -> None:
    at = world(links=LinkFigures(1_000_000, 10**10))
    assert {ring.path for _, ring in sent(goes_on(at, asks_all(at)), Ring)} == {"overlay"}
    at.ready()
    assert at.job.fallback == NO_SWITCH
    assert "switch" not in at.job.costs


def test_a_ring_that_breaks_is_made_again_by_hosts_and_its_end_is_said_in_words() -> None:
    at = world(overlays=())
    goes_on(at, asks_all(at))
    at.ready()
    halts = at.broken(1)
    assert {halt.path for _, halt in sent(halts, Halt)} == {"chain"}
    goes_on(at, halts)
    at.ready()
    words = failure(at.broken(1))
    assert "broke again where it broke before" in words
    assert "asked for the path" not in words


def test_a_host_alone_needs_no_network() -> None:
    at = world({0: (0, 1)}, infiniband=(0,))
    assert {ring.path for _, ring in sent(asks_all(at), Ring)} == {"switch"}
    at.ready()
    assert (at.installed, at.job.fallback) == ({}, "")


@pytest.mark.parametrize(
    ("on", "words"), [((1,), ("InfiniBand", "Ethernet")), ((0,), ("Ethernet", "InfiniBand"))]
)
def test_hosts_of_different_link_layers_are_no_job(on: tuple[int, ...], words: tuple[str, str]) -> None:
    at = world(infiniband=on)
    at.asks(0)
    said = refusal(at.asks(1), 1)
    assert said.startswith(
        f"its host is on {words[0]}, that of rank 0 (h0, pid 1000), which opened the job, on"
    )
    assert f"on {words[1]}; the hosts of a job send to each other on one network" in said
    assert at.job.missing == (1, 2)


# --- who they are


def test_their_zeros_are_no_address_and_their_gid_is_one() -> None:
    at = world()
    taken = on_infiniband(hello(7), 1)
    [refused] = at.step(HostArrived(SessionId(7), taken))
    assert isinstance(refused, RefuseHost)
    assert "its GID fe80::200:0:0:2 is that of host 'h1'" in refused.error.message
    noted = at.step(HostArrived(SessionId(7), on_infiniband(hello(7), 7)))[1]
    assert noted == Noted("host h7 is here (fe80::200:0:0:8)")


def asked(of: World, told: Member) -> list[RendezvousAction]:
    return of.step(MemberAsked(of.at(0), told, 7))


def test_a_host_speaks_for_its_own_gid_alone() -> None:
    at = world()
    told = at.member(0)
    said = refusal(asked(at, replace(told, into=replace(told.into, infiniband=place(2)))), 0)
    assert "its 'into' address is h0 fe80::200:0:0:3, its host daemon is h0 fe80::200:0:0:1" in said
    said = refusal(asked(at, member(0)), 0)
    assert f"its 'out' address is h0 10.0.0.1 {mac(0).hex(':')}" in said


def test_another_lid_of_the_same_port_is_no_stranger() -> None:
    at = world()
    told, moved = at.member(0), InfinibandPort(gid=gid(0), lid=99)
    out, into = replace(told.out, infiniband=moved), replace(told.into, infiniband=moved)
    asked(at, replace(told, out=out, into=into))
    assert at.job.missing == (1, 2)


@pytest.mark.parametrize(
    ("addresses", "may"),
    [((), True), (("FE80:0:0:0:200:0:0:1",), True), (("10.0.0.1",), False), (("fe80::9", "no"), False)],
)
def test_a_certificate_may_name_the_gid(addresses: tuple[str, ...], may: bool) -> None:
    identity = Identity(Role.HOST, "h0", "", addresses)
    said = refusal_of(identity, on_infiniband(hello(0), 0))
    assert (not said) == may
    assert may or "says that its NIC is fe80::200:0:0:1" in said


def test_switches_hear_of_no_host_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take zeros for the address of one host, which is at several switches."""
    heard: list[object] = []
    core = ControlPlane(RendezvousConfig())

    def hear(event: object, now: Instant) -> list[ControlAction]:
        heard.append(event)
        return []

    monkeypatch.setattr(core, "_to_switches", hear)
    for host, said in ((0, on_infiniband(hello(0), 0)), (1, hello(1))):
        welcome = core.step(HostArrived(SessionId(host), said), Instant(0))[0]
        assert isinstance(welcome, WelcomeHost)
    assert heard == [HostSeen(ip(1), "")]
