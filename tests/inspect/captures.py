"""Captures of simulated worlds: what passes a switch's ports, as a switch that captures writes it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from inaproto.faults.weather import Weather
from inaproto.sim.frames.checkers.checker import Checker, each_frame
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.sim.frames.switch import SimSwitch
from inaproto.sim.frames.world import World
from inaproto.units import Frames, PortId
from inaproto.wire.files.capture_reader import read_capture
from inaproto.wire.files.pcapng import CapturedFrame, CaptureWriter, Direction, Interface
from inaproto_hil.inspect.findings import Broken
from inaproto_hil.inspect.inspector import Inspector

CLEAR: Final = Weather()
EPOCH_NS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Passed:
    """A frame at a port of a switch."""

    switch: int
    port: int
    when_ns: int
    direction: Direction
    data: bytes


@dataclass
class Tap(Checker):
    """Not a judge: it writes down what passes all ports of all switches."""

    passed: list[Passed] = field(default_factory=list)

    def begin(self, world: World) -> None:
        self._world = world

    def switch_received(self, switch: SimSwitch, port: PortId, blocks: list[Frames]) -> None:
        for block in blocks:
            self._add(switch, port, Direction.INBOUND, block)

    def switch_sent(self, switch: SimSwitch, port: PortId, frames: Frames) -> None:
        self._add(switch, port, Direction.OUTBOUND, frames)

    def _add(self, switch: SimSwitch, port: PortId, direction: Direction, frames: Frames) -> None:
        now = EPOCH_NS + self._world.agenda.now
        self.passed += [Passed(switch.number, int(port), now, direction, one) for one in each_frame(frames)]


def tap(config: WorldConfig, switch: int = 0) -> list[Passed]:
    """All that passes a switch while the world runs; the world itself must be right."""
    checker = Tap()
    result = World(config, checkers=[checker]).run()
    assert result.violation is None, result.violation
    return [one for one in checker.passed if one.switch == switch]


def pcapng(passed: list[Passed], *, with_directions: bool = True) -> bytes:
    """As a switch writes it: one interface a port."""
    ports = sorted({one.port for one in passed})
    writer = CaptureWriter([Interface(f"port{port}") for port in ports])
    parts = [writer.header()]
    for one in passed:
        frame = np.frombuffer(one.data, np.uint8)[None, :]
        direction = one.direction if with_directions else Direction.UNKNOWN
        parts.append(writer.packets(ports.index(one.port), one.when_ns, frame, direction).tobytes())
    return b"".join(parts)


def frames_of(passed: list[Passed], *, with_directions: bool = True) -> list[CapturedFrame]:
    return read_capture(pcapng(passed, with_directions=with_directions))


def inspect(frames: list[CapturedFrame]) -> tuple[Inspector, list[Broken]]:
    inspector = Inspector()
    found = [broken for frame in frames if (broken := inspector.feed(frame)) is not None]
    return inspector, found


def ring_world(seed: str, weather: Weather = CLEAR, **changes: object) -> WorldConfig:
    """One job of three ranks on one switch: messages of four packets, short last ones, several operations."""
    job = JobConfig("job", (0, 1, 2), (300, 1, 700, 500), depth=2)
    job = replace(job, **changes)  # type: ignore[arg-type]
    return WorldConfig(seed, (job,), tuple(LinkConfig(weather=weather) for _ in job.positions))


def without_damage(config: WorldConfig) -> WorldConfig:
    """The same world, where frames are lost, late or doubled, but whole, and ranks agree."""

    def fair(weather: Weather) -> Weather:
        return replace(weather, corrupt=0.0, truncate=0.0, addresses=0.0)

    def links(one: LinkConfig) -> LinkConfig:
        return replace(one, weather=fair(one.weather))

    topology = config.topology
    if topology is not None:
        switches = tuple(replace(one, trunk=links(one.trunk)) for one in topology.switches)
        topology = replace(topology, switches=switches)
    return replace(
        config,
        jobs=tuple(replace(job, mismatch=None) for job in config.jobs),
        links=tuple(map(links, config.links)),
        faults=tuple(replace(fault, weather=fair(fault.weather)) for fault in config.faults),
        topology=topology,
    )
