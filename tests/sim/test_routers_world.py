"""Hosts behind routers with links of equal cost to several ports of the switch (docs/protocol.md 6.12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.errors import ConfigError
from inaproto.faults.streams import Draws
from inaproto.sim.campaign.kinds import WorldKind, draw_kind
from inaproto.sim.campaign.marks import declared_of, meaning_of
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.routers import routed, with_routers
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.sim.frames.switch import SimSwitch
from inaproto.sim.frames.world import World
from inaproto.units import MS, Frames, PortId
from tests.sim.worlds import run, small

DOWN = "a packet came by a link of a router that was down"
BY_ANOTHER = "a packet came by another link of its router"
PAIR = WorldConfig(
    seed="pair",
    jobs=(JobConfig("job0", (0, 1), (1,) * 8, think_ns=MS),),
    links=(LinkConfig(),) * 4,
    routers=(0, 1, 0, 1),
)
"""Two hosts, each behind a router with two links; all-reduces of one packet."""


def router_link(host: int, link: int, duration_ns: int) -> Fault:
    return Fault(
        2 * MS, FaultKind.ROUTER_LINK, host, duration_ns=duration_ns, job=0, operation=3, process=link
    )


def test_worlds_of_one_switch_have_them_now_and_then_and_are_else_as_before() -> None:
    worlds = [small(seed) for seed in range(60)]
    drawn = [with_routers(config) for config in worlds]
    assert 3 < sum(bool(config.routers) for config in drawn) < 20
    for plain, config in zip(worlds, drawn, strict=True):
        assert config.links[: len(plain.links)] == plain.links
        assert set(plain.faults) <= set(config.faults)
        assert config.jobs == plain.jobs
    racks = [draw_racks(str(seed)) for seed in range(12)]
    assert [with_routers(config) for config in racks] == racks
    assert any(draw_kind(str(seed), WorldKind.RECOVERY).routers for seed in range(20))


def test_campaigns_wait_for_routers_where_these_are_drawn() -> None:
    waiting = {kind for kind in WorldKind if "fault: router link down" in declared_of(kind)}
    assert waiting == {WorldKind.SINGLE, WorldKind.RECOVERY, WorldKind.MACHINES}
    assert meaning_of("a packet came by another link of its router")


@pytest.mark.parametrize("seed", range(16))
def test_every_job_ends_whichever_links_fail(seed: int) -> None:
    config = routed(small(seed), Draws(str(seed), "routers"))
    assert run(config).violation is None


def test_routers_use_all_their_links_and_what_comes_by_one_that_is_down_is_lost() -> None:
    marks = {
        mark for seed in range(6) for mark in run(routed(small(seed), Draws(str(seed), "routers"))).marks
    }
    assert {DOWN, BY_ANOTHER, "fault: router link down", "switch: strange_addresses"} <= marks


@pytest.mark.parametrize("link", [0, 1])
def test_a_flow_goes_on_by_another_link_when_its_own_is_lost_for_good(link: int) -> None:
    config = replace(PAIR, faults=(router_link(0, link, 0), router_link(1, link, 0)))
    world = World(config)
    assert world.run().violation is None
    for host in world.hosts:
        assert host.router is not None
        assert not host.router.lose_link(1 - link), "the last link is never lost"


def test_packets_come_by_one_router_s_hop_less() -> None:
    world = World(PAIR)
    hops: set[int] = set()

    def heard(_: SimSwitch, __: PortId, blocks: list[Frames]) -> None:
        hops.update(int(frame[22]) for block in blocks for frame in block)

    world.hooks.switch_received.append(heard)
    assert world.run().violation is None
    assert hops == {63}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"routers": (0, 1)}, "at all hosts of one switch"),
        ({"routers": (0, 0, 1, 1)}, "two of its hosts are at one router"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, tuple[int, ...]], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        replace(PAIR, routers=fields["routers"])
