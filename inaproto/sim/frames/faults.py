"""What befalls a world beside the weather, and how it ends: each fault once, all of them before the healing.

Faults of one kind may overlap on one part; it is well again when the last of them has ended. A fault counts
as seen only if it hit something: a crash of a host that is down is none.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, assert_never

from inaproto.core.rendezvous.fabric.shards import shard_name
from inaproto.errors import FabricLost
from inaproto.faults.weather import Weather
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.sim.frames.draw.topology import node_names
from inaproto.sim.frames.link_pauses import LinkPauses

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.link import SimLink
    from inaproto.sim.frames.world import World

_CLEAR: Final = Weather()


class Faults:
    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: dict[tuple[str, int], list[Fault]] = {}
        """Those that strike when a job comes to an all-reduce."""
        self._bursts: dict[str, list[Fault]] = {}
        """In force on a link, by the name of its upward direction."""
        self._cuts: dict[str, int] = {}
        """How many partitions are in force on a link direction."""
        self._link_pauses = LinkPauses(world)
        self._is_healed = False

    def begin(self) -> None:
        config, agenda = self._world.config, self._world.agenda
        for fault in config.faults:
            if fault.job < 0:
                agenda.at(fault.at_ns, self._strike, fault)
            else:
                key = config.jobs[fault.job].name, fault.operation
                self._waiting.setdefault(key, []).append(fault)
        agenda.at(config.weather_until_ns, self._heal)

    def called(self, job: str, op_index: int) -> None:
        """A rank called an all-reduce: the first time, faults wait for it."""
        for fault in self._waiting.pop((job, op_index), ()):
            self._world.agenda.after(fault.at_ns, self._strike, fault)

    # --- one fault

    def _strike(self, fault: Fault) -> None:
        world = self._world
        now, until = world.agenda.now, world.config.weather_until_ns
        if now >= until:
            return
        duration = fault.duration_ns
        if fault.kind is not FaultKind.CLOCK_JUMP:
            duration = min(duration, until - now)
        fault = replace(fault, at_ns=now, duration_ns=duration, job=-1)
        host = world.hosts[fault.target % len(world.hosts)]
        is_running = self._is_running(fault, host)
        world.note(host.number, fault.kind, 0)
        if world.recorder is not None:
            world.recorder.fault(fault, hit_by(fault, world.config))
        if self._befall(fault, host):
            trunk = "trunk " if fault.trunk >= 0 else ""
            world.mark(f"fault: {trunk}{fault.kind}")
            if is_running:
                world.mark(f"fault during an all-reduce: {trunk}{fault.kind}")

    def _is_running(self, fault: Fault, host: SimHost) -> bool:
        is_wide = fault.kind in (FaultKind.SWITCH_REBOOT, FaultKind.SHARD_DEATH) or fault.trunk >= 0
        hosts = self._world.hosts if is_wide else [host]
        rings = (ring for hit in hosts for ring in hit.rings)
        return any(ring.waits_here or (ring.engine and ring.engine.deadline is not None) for ring in rings)

    def _links_of(self, fault: Fault, host: SimHost) -> tuple[SimLink, SimLink]:
        """Upward, downward."""
        if fault.trunk < 0:
            return host.uplink, self._world.downlinks[host.number]
        trunk = self._world.trunks[fault.trunk - 1]
        return trunk.up, trunk.down

    def _befall(self, fault: Fault, host: SimHost) -> bool:
        """False if there was nothing to hit."""
        world = self._world
        links = self._links_of(fault, host)

        def after(act: Any, argument: Any = None) -> None:
            world.agenda.after(fault.duration_ns, act, argument)

        match fault.kind:
            case FaultKind.BURST:
                self._bursts.setdefault(links[0].name, []).append(fault)
                self._set_weather(links)
                after(self._end_burst, (links, fault))
            case FaultKind.PARTITION | FaultKind.ONE_WAY_PARTITION:
                if fault.trunk >= 0 and world.trunks[fault.trunk - 1].below.has_rings:
                    world.mark("a trunk was cut under a ring")
                one_way = links[1:] if fault.is_downward else links[:1]
                hit = links if fault.kind is FaultKind.PARTITION else one_way
                self._cut(hit, 1)
                after(lambda _: self._cut(hit, -1))
            case FaultKind.LINK_PAUSE:
                return self._link_pauses.begin(fault, host)
            case FaultKind.ROUTER_LINK:
                if host.router is None:
                    return False
                router, link = host.router, fault.process % host.router.links
                if not fault.duration_ns:
                    return router.lose_link(link)
                after(lambda _: router.link_returns(link))
                return router.link_fails(link)
            case FaultKind.CLOCK_JUMP:
                host.jump(fault.duration_ns)
            case FaultKind.SWITCH_REBOOT:
                switch = world.switches[fault.target % len(world.switches)]
                if not switch.is_up:
                    return False
                switch.go_down()
                after(switch.boot)
            case FaultKind.SHARD_DEATH:
                shards = world.switch.shards
                if not shards or not shards[fault.target % len(shards)].die():
                    return False
                after(shards[fault.target % len(shards)].boot)
            case FaultKind.DAEMON_CRASH:
                return host.lose_daemon(fault.process, fault.duration_ns)
            case FaultKind.NIC_RESET:
                if not host.is_up or host.is_without_daemon:
                    return False
                host.lose_nic(FabricLost(f"{host}: the NIC was reset"))
            case FaultKind.HOST_CRASH:
                if not host.is_up:
                    return False
                host.crash()
                after(host.power_on)
            case FaultKind.PAUSE:
                if not host.is_up:
                    return False
                after(partial(host.resume, host.pause()))
            case FaultKind.PROCESS_DEATH:
                return host.lose_process(fault.process, fault.duration_ns)
            case FaultKind.SESSION_LOSS:
                if host.session is None:
                    return False
                host.session.break_off("the control connection broke")
            case _:
                assert_never(fault.kind)
        return True

    def _cut(self, links: tuple[SimLink, ...], more: int) -> None:
        for link in links:
            self._cuts[link.name] = self._cuts.get(link.name, 0) + more
            link.is_cut = self._cuts[link.name] > 0

    def _end_burst(self, ended: tuple[tuple[SimLink, SimLink], Fault]) -> None:
        links, fault = ended
        self._bursts[links[0].name].remove(fault)
        self._set_weather(links)

    def _set_weather(self, links: tuple[SimLink, SimLink]) -> None:
        """What a link has now: the weather of the latest burst, else its own; none once healed."""
        bursts = self._bursts.get(links[0].name)
        for link in links:
            weather = bursts[-1].weather if bursts else link.weather
            link.fates.set_weather(_CLEAR if self._is_healed else weather)

    def _heal(self, _: Any) -> None:
        self._is_healed = True
        for link in self._world.links:
            link.fates.set_weather(_CLEAR)
        self._world.note(0, "heal", 0)


def hit_by(fault: Fault, config: WorldConfig) -> str:
    """What it strikes, for people."""
    names = node_names(config.topology)
    if fault.trunk >= 0 and config.topology is not None:
        switch = config.topology.switches[fault.trunk]
        return f"{switch.name}>{names[switch.above]}"
    if fault.kind is FaultKind.SWITCH_REBOOT:
        return "the switch" if len(names) == 1 else names[fault.target % len(names)]
    if fault.kind is FaultKind.SHARD_DEATH:
        return shard_name(1 + fault.target % config.shards) if config.shards else "no shard"
    return f"host{fault.target % len(config.links)}"
