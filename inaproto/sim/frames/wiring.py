"""The links of a world, and how much memory its switches have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from inaproto.core.rendezvous.fabric.shapes import roles_of
from inaproto.core.switch.aggregator import bytes_needed
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.sim.frames.link import SimLink
from inaproto.sim.frames.notes import note_kind
from inaproto.sim.frames.switch import SimSwitch, Trunk
from inaproto.sim.kernel.fates import DrawnFates, LinkFates, RecordedFates
from inaproto.units import Frames, PortId
from inaproto.wire.messages.trees import FabricTree

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.world import World


def make_links(world: World, fates: LinkFates | None) -> None:
    """Links of all hosts, then between switches, each with fates of its own: drawn, or those of a log."""
    for host, config in zip(world.hosts, world.config.links, strict=True):
        at = host.switch
        link = partial(_link, world, config, fates)
        of_host = partial(_link, world, replace(config, marking=None), fates)
        host.uplink = of_host(f"{host.name}>{at.name}", partial(at.frames_from, host))
        world.downlinks.append(link(f"{at.name}>{host.name}", _taker_of(host)))
    if world.config.topology is not None:
        for switch, below in zip(world.switches, world.config.topology.switches, strict=False):
            if below.above >= 0:
                above = world.switches[below.above]
                switch.trunk = _make_trunk(world, switch, above, below.trunk, fates)
        roots = world.switches[len(world.config.topology.switches) :]
        for root, further in zip(roots, world.config.topology.further_roots, strict=True):
            for number in further.below:
                _make_trunk(world, world.switches[number], root, further.trunk, fates)


def _taker_of(host: SimHost) -> Callable[[list[Frames]], None]:
    return host.frames_arrived if host.router is None else host.router.taker_at(host)


def _make_trunk(
    world: World, below: SimSwitch, above: SimSwitch, config: LinkConfig, fates: LinkFates | None
) -> Trunk:
    port_up, port_down = PortId(len(below.trunks) + 1), PortId(len(above.trunks) + 1)

    def lost(frame: Frames) -> None:
        if note_kind(frame.tobytes()) is not None:
            world.mark("a note was lost")

    link = partial(_link, world, config, fates, lost=lost)
    up = link(f"{below.name}>{above.name}", partial(above.frames_of_trunk, port_down))
    down = link(f"{above.name}>{below.name}", partial(below.frames_of_trunk, port_up))
    trunk = Trunk(below, above, up, down, port_up, port_down)
    below.add_trunk(trunk)
    above.add_trunk(trunk)
    world.trunks.append(trunk)
    return trunk


def _link(
    world: World,
    config: LinkConfig,
    fates: LinkFates | None,
    name: str,
    deliver: Callable[[list[Frames]], None],
    lost: Callable[[Frames], None] | None = None,
) -> SimLink:
    source = (
        DrawnFates(config.weather, world.config.seed, f"weather/{name}")
        if fates is None
        else RecordedFates(fates.get(name, {}))
    )
    return SimLink(world, name, config, source, deliver, lost)


def _trees_of(world: World, job: JobConfig) -> list[FabricTree | None]:
    """Along which its rings go, one after the other."""
    config = world.config
    moves = () if config.topology is None else config.moves
    return [world.along, *(world.mover.tree_to(one.root) for one in moves if config.jobs[one.job] is job)]


def switch_memory(world: World) -> dict[str, int]:
    """Memory of each switch's aggregator arrays: for all jobs, or for the largest alone."""
    needs: dict[str, list[int]] = {switch.name: [0] for switch in world.switches}
    for job in world.config.jobs:
        if len(job.positions) == 1:
            continue
        flows = tuple(
            FlowSpec(rank, world.hosts[number].ip, bytes(4), rank, world.hosts[number].mac, bytes(6))
            for rank, number in enumerate(job.positions)
        )
        spec = RingSpec(1, 1, 0, job.window_messages, job.message_packets, job.mtu, flows)
        most: dict[str, int] = {}
        for tree in _trees_of(world, job):
            roles = (
                {world.switch.name: None} if world.fabric is None else roles_of(world.fabric, spec, tree=tree)
            )
            for name, role in roles.items():
                most[name] = max(most.get(name, 0), bytes_needed(replace(spec, role=role)))
        for name, need in most.items():
            needs[name].append(need)
    memory = {name: max(of) if world.config.tight_switch else sum(of) for name, of in needs.items()}
    if world.config.refusing >= 0:
        memory[world.switches[world.config.refusing % len(world.switches)].name] = 0
    return memory
