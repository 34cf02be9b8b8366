"""NetReduce section 3.3: tables of non-leaf switches are "populated during the job initialization"."""

from __future__ import annotations

from inaproto.core.switch.ring_spec import RingSpec
from inaproto.sim.frames.checkers.checker import Checker, each_frame
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig, fat_tree
from inaproto.sim.frames.switch import SimSwitch
from inaproto.sim.frames.world import World
from inaproto.units import MS, Frames, PortId

_WRITES = range(0x06, 0x0C)


class SetUp(Checker):
    """Which switches had their part of the ring when the first packet of it came to any."""

    name = "set-up"

    def __init__(self) -> None:
        self.installed: list[str] = []
        self.before_data: list[str] | None = None

    def ring_installed(self, switch: SimSwitch, spec: RingSpec) -> None:
        self.installed.append(switch.name)

    def switch_received(self, switch: SimSwitch, port: PortId, blocks: list[Frames]) -> None:
        for block in blocks:
            if self.before_data is None and any(frame[42] in _WRITES for frame in each_frame(block)):
                self.before_data = list(self.installed)


def set_up(hosts: tuple[int, ...]) -> SetUp:
    """In a fat tree of 8 hosts whose control messages are slow."""
    job = JobConfig("job0", hosts, (100,))
    config = WorldConfig(
        "set-up", (job,), (LinkConfig(),) * 8, control_delay_ns=3 * MS, topology=fat_tree(4, 8)
    )
    checker = SetUp()
    assert World(config, checkers=[checker]).run().violation is None
    return checker


def test_every_switch_of_the_tree_has_its_tables_before_the_ranks_send() -> None:
    found = set_up((0, 2, 4))
    tree = ["core0", "pod0-agg0", "pod0-edge0", "pod0-edge1", "pod1-agg0", "pod1-edge0"]
    assert sorted(found.installed) == tree
    assert found.before_data == found.installed


def test_the_tree_is_the_part_of_the_network_that_the_ranks_need() -> None:
    assert sorted(set_up((5, 7, 4)).installed) == ["pod1-agg0", "pod1-edge0", "pod1-edge1"]
    assert set_up((3, 2)).installed == ["pod0-edge1"]
