"""The deterministic world: hosts, NICs, links, switches and jobs, driven in virtual time from one agenda.

The parts are the product's pure cores in the product's wiring; only I/O and clocks are simulated. A
world has two phases. Until ``weather_until_ns`` weather and faults befall it and it must stay *safe*:
no checker may object. Then everything heals, and it must be *live*: every job finishes within
``heal_ns``, and afterwards nothing is left in any NIC or switch.

Everything that happens depends on the configuration alone, so two runs give one digest: a hash over
every ``(time, node, event)`` in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop
from typing import Final
from zlib import adler32

from inaproto.core.switch.accelerator import Accelerator, AcceleratorConfig
from inaproto.core.switch.ring_spec import FlowSpec
from inaproto.faults.streams import Draws
from inaproto.sim.frames.checkers import all_checkers
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.checkers.hooks import Hooks
from inaproto.sim.frames.control_plane import ControlPlane, fabric_of
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.draw.topology import node_names
from inaproto.sim.frames.faults import Faults
from inaproto.sim.frames.host.elastic import ElasticJob
from inaproto.sim.frames.host.host import SimHost
from inaproto.sim.frames.host.plain_flow import PlainFlow
from inaproto.sim.frames.host.ring import HostRing
from inaproto.sim.frames.library import SimLibrary
from inaproto.sim.frames.link import SimLink
from inaproto.sim.frames.oracle import Oracle, oracle_of
from inaproto.sim.frames.places import SimPlaces
from inaproto.sim.frames.recorder import Recorder
from inaproto.sim.frames.routers import make_routers
from inaproto.sim.frames.seats import SimSeats
from inaproto.sim.frames.switch import SimSwitch, Trunk
from inaproto.sim.frames.tree_moves import TreeMover
from inaproto.sim.frames.wiring import make_links, switch_memory
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.kernel.world import DIGEST_BYTES, RunResult, SimulatedWorld, StepCounts
from inaproto.units import PSN_MASK, Frames
from inaproto.wire.control_messages import OutAddress
from inaproto.wire.messages.trees import FabricTree

_NOTE: Final = struct.Struct("<qHHI")
_FRAMES: Final = 0
_SAMPLE_EVENTS: Final = 1024
_COUNTED: Final = (
    *("results_out", "replayed", "replay_filled", "gaps_signalled", "bridged"),
    *("sums_up", "sums_up_again", "results_in", "results_down", "results_down_again"),
    *("notes_in", "notes_out", "steered", "links_down", "strange_addresses", "early", "early_taken"),
)
"""What accelerators count, and is told as marks."""


@dataclass(slots=True)
class Steps(StepCounts):
    """Events handed to each kind of pure core: one call of ``step`` each, whatever it carries."""

    accelerator: int = 0
    ring_engine: int = 0
    requester: int = 0
    responder: int = 0
    control_plane: int = 0


class WorldResult(RunResult[WorldConfig]):
    """What a run of a world of frames came to."""

    steps: Steps


def _assigned(config: WorldConfig) -> FabricTree | None:
    if config.topology is None:
        return None
    if config.to_root:
        return config.topology.own_tree()
    return None if config.along < 0 else config.topology.further_tree(config.along)


class World(SimulatedWorld):
    """One run. ``make_accelerator`` gives that part; ``fates`` replays those of a log."""

    config: WorldConfig
    steps: Steps

    def __init__(
        self,
        config: WorldConfig,
        *,
        fates: LinkFates | None = None,
        checkers: Sequence[Checker] | None = None,
        recorder: Recorder | None = None,
        make_accelerator: Callable[[AcceleratorConfig], Accelerator] = Accelerator,
    ) -> None:
        super().__init__()
        self.config = config
        self.make_accelerator = make_accelerator
        self.recorder = recorder
        self.steps = Steps()
        self.frames = 0
        self.damage = False
        """Whether the weather has flipped or cut bits of any frame."""
        self.checkers = list(all_checkers() if checkers is None else checkers)
        self.hooks = Hooks.of(self.checkers)
        self.chance_draws = Draws(config.seed, "chance")
        """Ids, keys and sequence numbers that the parts must be given."""
        self.nic_totals: dict[str, int] = {}
        self.accelerator_totals: dict[str, int] = {}
        self._oracles = {job.name: oracle_of(config, job) for job in config.jobs}
        self._first_ring: dict[str, int] = {}
        self._rings: dict[str, set[int]] = {job.name: set() for job in config.jobs}
        self._closed: set[str] = set()
        self._pid = 1000
        self._unfinished = sum(len(job.hosts) for job in config.jobs) + len(config.flows)
        self._kinds: dict[str, int] = {"frames": _FRAMES}
        self.downlinks: list[SimLink] = []
        """Links to each host."""
        self.trunks: list[Trunk] = []
        self.switches = [
            SimSwitch(self, number, name) for number, name in enumerate(node_names(config.topology))
        ]
        self.hosts = [SimHost(self, number) for number in range(len(config.links))]
        make_routers(self)
        self.faults = Faults(self)
        make_links(self, fates)
        self.fabric = None if config.topology is None else fabric_of(self, config.topology)
        """What the control plane knows of several switches."""
        self.along = _assigned(config)
        """The tree that is assigned to all rings; None: the fabric's own."""
        self.mover = TreeMover(self)
        self.library = SimLibrary(self)
        self.places = SimPlaces(self)
        self.seats = SimSeats(self)
        for switch, memory in zip(self.switches, switch_memory(self).values(), strict=True):
            switch.memory_bytes_max = memory
        if recorder is not None and config.topology is not None:
            names = {switch.node: switch.name for switch in self.switches}
            recorder.begin({switch.ip: switch.name for switch in self.switches}, names)
        for switch in self.switches:
            switch.boot()
        self.elastic: dict[str, ElasticJob] = {}
        """Elastic jobs by the name that each is started with."""
        for job in config.jobs:
            for ring in self._rings_of(job):
                ring.host.rings.append(ring)
        self.flows = [PlainFlow(self, flow) for flow in config.flows]

    def _rings_of(self, job: JobConfig) -> Sequence[HostRing]:
        if not job.elastic:
            return [HostRing(self.hosts[number], job) for number in job.positions]
        elastic = self.elastic[job.name] = ElasticJob(self, job)
        return elastic.rings

    @property
    def switch(self) -> SimSwitch:
        """The first, at which the control plane is."""
        return self.switches[0]

    @property
    def control(self) -> ControlPlane:
        control = self.switches[0].control
        assert control is not None
        return control

    @property
    def links(self) -> list[SimLink]:
        """All directions, those of hosts first."""
        found = [link for host in self.hosts for link in (host.uplink, self.downlinks[host.number])]
        return found + [link for trunk in self.trunks for link in (trunk.up, trunk.down)]

    # --- running

    def run(self) -> WorldResult:
        """Runs to the end, or to the first violation. Never raises for a fault of the parts."""
        return WorldResult(**self._ran())

    @property
    def fates(self) -> LinkFates:
        return {link.name: link.fates.recorded for link in self.links if link.fates.recorded}

    def _carried(self) -> int:
        return self.frames

    def _run(self) -> None:
        for checker in self.checkers:
            checker.begin(self)
        agenda, config = self.agenda, self.config
        for host in self.hosts:
            agenda.at(self.chance_draws.below(1_000_000), host.power_on)
        self.faults.begin()
        self.mover.begin()
        self.places.begin()
        self.seats.begin()
        for flow in self.flows:
            agenda.at(flow.config.begin_ns, flow.begin)
        until = config.weather_until_ns + config.heal_ns
        heap, events_max = agenda.heap, config.events_max
        sampled = 0
        while self._unfinished:
            if not heap:
                raise Violated("no wait without deadline", f"nothing will happen any more; {self.waiting()}")
            # ``agenda.run_next()``, without its call: all that happens comes through here
            agenda.now, _, act, argument = heappop(heap)
            act(argument)
            if agenda.now > until:
                raise Violated(
                    "progress after healing",
                    f"not finished {config.heal_ns / 1e9:g} s after the weather: {self.waiting()}",
                )
            if self.events > events_max:
                raise Violated("progress after healing", f"{self.events} events; {self.waiting()}")
            sampled += 1
            if sampled == _SAMPLE_EVENTS:
                sampled = 0
                for hook in self.hooks.sample:
                    hook(self)
        quiet = agenda.now + config.heal_ns
        while agenda.run_next():
            if agenda.now > quiet:
                raise Violated("nothing is left", "something still happens long after all jobs have ended")
        for end in self.hooks.end:
            end(self)

    def waiting(self) -> str:
        """Who is not finished, for people."""
        unfinished = [
            f"{ring} is {ring.state}" for host in self.hosts for ring in host.rings if not ring.is_finished
        ]
        return "; ".join([*unfinished, *(str(flow) for flow in self.flows if not flow.is_finished)])

    # --- what the parts ask and tell

    def new_pid(self) -> int:
        self._pid += 1
        return self._pid

    def first_psn(self) -> int:
        near = self.config.first_psns
        return PSN_MASK - self.chance_draws.below(near) if near else self.chance_draws.below(PSN_MASK + 1)

    def first_psn_of(self, flow: FlowSpec) -> int | None:
        """The PSN with which the sender of a flow begins; None if it is gone already."""
        found = self.sender_of(flow)
        return None if found is None else found[1].psn

    def sender_of(self, flow: FlowSpec) -> tuple[HostRing, OutAddress] | None:
        """The ring on its host, and the address of its queue pair; None if it is gone already."""
        open_rings = [ring for host in self.hosts for ring in host.rings if ring.holds_queue_pairs]
        rings = {(ring.job.name, ring.position): ring for ring in open_rings}
        for (job, position), ring in rings.items():
            successor = rings.get((job, (position + 1) % len(ring.job.positions)))
            if successor is None or (ring.host.ip, position) != (flow.src_ip, flow.rank):
                continue
            for link, of_successor in zip(ring.links, successor.links, strict=False):
                if of_successor.qpns[1:2] == (flow.dst_qp,):  # a tree of hosts may have one
                    return ring, link.out
        return None

    def oracle(self, job: JobConfig) -> Oracle:
        return self._oracles[job.name]

    def life_of(self, job: JobConfig, ring_id: int) -> int:
        """The life of a job that a host comes into with its ring ``ring_id``, named by its first ring.

        It may be under way: a host that loses its session before it hears of the start comes again with the
        same processes, which have called nothing, and the others go on with it.
        """
        lives = (ring.life for host in self.hosts for ring in host.rings if ring.job.name == job.name)
        return next(filter(None, lives), ring_id)

    def ring_connected(self, job: JobConfig, ring_id: int) -> None:
        self._first_ring.setdefault(job.name, ring_id)
        self._rings.setdefault(job.name, set()).add(ring_id)

    def is_first_ring(self, job: JobConfig, ring_id: int) -> bool:
        return self._first_ring.get(job.name) == ring_id

    def add_job(self, job: JobConfig) -> None:
        """Some processes of an elastic job have another."""
        self._oracles[job.name] = oracle_of(self.config, job)

    def elastic_job_closed(self, job: JobConfig) -> None:
        """All ranks of one that followed it, or its own, have left."""
        self._closed.add(job.name)

    def elastic_job_ended(self, job: JobConfig) -> None:
        """An elastic job has ended, and nobody goes on."""
        self._unfinished -= len(job.hosts)

    def is_closed(self, job: JobConfig) -> bool:
        """Whether all its ranks have left in good order."""
        return job.name in self._closed

    def ring_finished(self, ring: HostRing) -> None:
        """All ranks of a job on one host are finished."""
        job = ring.job
        self._unfinished -= len(ring.ranks)
        if job.name in self._closed:
            return
        self._closed.add(job.name)
        if len(self._rings[job.name]) > 1:
            self.mark("a job finished after it had started anew")
        for host in self.hosts:
            for other in host.rings:
                if other.job is job and other.is_unneeded and host.is_up:
                    self.agenda.at(0, _finish, other)

    def flow_finished(self) -> None:
        self._unfinished -= 1

    def fate_befell(self, link: SimLink, fate: Fate) -> None:
        self.damage = self.damage or fate.corrupt_bit >= 0 or fate.cut_bytes >= 0
        if self.recorder is not None:
            self.recorder.fate(link.name, fate)

    def nic_gone(self, host: SimHost) -> None:
        self.steps.requester += host.nic.requester_steps
        self.steps.responder += host.nic.responder_steps
        _add(self.nic_totals, host.nic.statistics())

    def accelerator_gone(self, switch: SimSwitch) -> None:
        counters = switch.accelerator.view().counters
        totals = {name: getattr(counters, name) for name in _COUNTED}
        _add(self.accelerator_totals, totals)
        _add(self.accelerator_totals, {f"dropped: {rule}": n for rule, n in counters.dropped.items()})

    # --- trace

    def note(self, node: int, kind: str, detail: int) -> None:
        """An event at a node: into the digest, and the log if there is one."""
        self.events += 1
        code = self._kinds.get(kind)
        if code is None:
            code = self._kinds[kind] = len(self._kinds)
            self._notes += kind.encode()
        self._notes += _NOTE.pack(self.agenda.now, node, code, detail)
        if len(self._notes) > DIGEST_BYTES:
            self._hash_notes()
        if self.recorder is not None:
            self.recorder.event(self.events, self.agenda.now, node, kind, detail)

    def note_frames(self, node: int, block: Frames) -> None:
        """Frames arrive at a node."""
        self.frames += len(block)
        self.events += 1
        detail = adler32(block.data)  # CRC-32 is the same for all payloads whose ICRC, which is one, is right
        notes = self._notes
        notes += _NOTE.pack(self.agenda.now, node, _FRAMES, detail)
        if len(notes) > DIGEST_BYTES:
            self._hash_notes()
        if self.recorder is not None:
            self.recorder.event(self.events, self.agenda.now, node, "frames", detail)
            self.recorder.frames(node, block)

    def _collect_marks(self) -> None:
        for host in self.hosts:
            if host.is_up:
                self.nic_gone(host)
        for switch in self.switches:
            if switch.is_up:
                self.accelerator_gone(switch)
        for source, totals in (("nic", self.nic_totals), ("switch", self.accelerator_totals)):
            for name, count in totals.items():
                if count:
                    self.marks[f"{source}: {name}"] = self.marks.get(f"{source}: {name}", 0) + count


def _finish(ring: HostRing) -> None:
    if ring.is_unneeded and ring.host.is_up:
        ring.host.when_awake(lambda: ring.finish() if ring.is_unneeded else None)


def _add(totals: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        totals[name] = totals.get(name, 0) + count
