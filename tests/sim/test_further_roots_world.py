"""Worlds whose rings go along the tree of a further root: all weather and faults of racks, all checkers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inaproto.core.switch.accelerator import Accelerator, AcceleratorConfig
from inaproto.errors import ConfigError
from inaproto.sim.frames.draw.racks import along_a_further_root, draw_racks
from inaproto.sim.frames.draw.swarm import Swarm, WorldConfig
from inaproto.sim.frames.draw.topology import (
    FurtherRoot,
    SwitchConfig,
    Topology,
    leaf_spine,
    map_trunks,
    node_names,
)
from inaproto.sim.frames.world import World
from inaproto.wire.messages.trees import FabricTree
from tests.seeds import seeds
from tests.sim.worlds import run

SMALL = Swarm(ranks_max=6, jobs_max=2, packets_max=200)


@pytest.mark.parametrize("seed", seeds(12))
def test_every_rule_holds_along_a_further_root(seed: int) -> None:
    result = run(along_a_further_root(draw_racks(seed, SMALL)))
    assert result.violation is None, result.violation
    assert result.operations_done


def test_the_further_root_has_the_sums_and_none_of_the_other_traffic() -> None:
    for seed in range(30):
        config = along_a_further_root(draw_racks(seed, SMALL))
        if any(fault.kind.name == "SWITCH_REBOOT" for fault in config.faults) or config.refusing >= 0:
            continue
        world = World(replace(config, faults=()))
        assert world.run().violation is None
        own, further = world.switches[0].accelerator.counters, world.switches[-1].accelerator.counters
        assert further.aggregated_in > 0
        assert (further.bridged, own.aggregated_in) == (0, 0)
        assert all(
            "of no ring, on a trunk for rings" not in switch.accelerator.counters.dropped
            for switch in world.switches
        )
        return
    pytest.fail("no world without reboots")


def test_a_bridge_over_all_trunks_is_found() -> None:
    """Planted: further trunks carry everything. What is flooded then goes round for ever."""

    def planted(config: AcceleratorConfig) -> Accelerator:
        return Accelerator(replace(config, ring_ports=frozenset()))

    config = replace(along_a_further_root(draw_racks(0, SMALL)), events_max=50_000)
    assert run(config).violation is None
    violation = World(config, make_accelerator=planted).run().violation
    assert violation is not None
    assert violation.evidence.startswith("50001 events")


def test_a_world_is_the_same_from_its_record() -> None:
    config = along_a_further_root(draw_racks(3, SMALL))
    again = WorldConfig.from_record(config.as_record())
    assert again == config
    assert run(again).digest == run(config).digest


def test_the_tree_and_the_plan_of_a_further_root() -> None:
    topology = replace(leaf_spine(2, 4), further_roots=(FurtherRoot("spine1", (1, 2)),))
    assert node_names(topology) == ("spine", "leaf0", "leaf1", "spine1")
    assert topology.further_tree(0) == FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "spine1")))
    assert topology.plan((0, 2, 1)) == topology.plan((0, 2, 1), 0) == ((0, 2), (1,))
    assert (topology.plan((0, 1)), topology.plan((0, 1), 0)) == ((0, 1), ((0, 1),))
    deep = Topology(
        (SwitchConfig("spine"), SwitchConfig("mid", 0), SwitchConfig("leaf0", 1), SwitchConfig("leaf1", 1)),
        (2, 3),
        further_roots=(FurtherRoot("spine1", (1,)), FurtherRoot("spine2", (2, 3))),
    )
    assert deep.further_tree(0).above == (("leaf0", "mid"), ("leaf1", "mid"), ("mid", "spine1"))
    assert deep.further_tree(1).above == (("leaf0", "spine2"), ("leaf1", "spine2"))
    assert (deep.plan((0, 1), 0), deep.plan((0, 1), 1)) == ((((0,), (1,)),), ((0,), (1,)))
    slow = map_trunks(deep, lambda trunk: replace(trunk, delay_ns=7))
    assert [root.trunk.delay_ns for root in slow.further_roots] == [7, 7]


@pytest.mark.parametrize(
    ("roots", "words"),
    [
        ((FurtherRoot("spine1", ()),), "below spine1 is a switch twice, the root, or none"),
        ((FurtherRoot("spine1", (1, 1)),), "below spine1"),
        ((FurtherRoot("spine1", (0, 1)),), "below spine1"),
        ((FurtherRoot("spine1", (3,)),), "switches are 0 to 2"),
        ((FurtherRoot("leaf0", (1,)),), "each of its own name"),
    ],
)
def test_further_roots_that_cannot_be(roots: tuple[FurtherRoot, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(leaf_spine(2, 4), further_roots=roots)


def test_a_world_along_a_root_that_it_has_not() -> None:
    with pytest.raises(ConfigError, match="along is 1; it has 1 further roots"):
        replace(along_a_further_root(draw_racks(1, SMALL)), along=1)
