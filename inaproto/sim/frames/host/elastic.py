"""An elastic job of a simulated cluster: its training processes go on without those that are lost.

Each does as :mod:`inaproto.sim.frames.host.elastic_process` says: told that a rank is lost, it asks the
switch who goes on (:mod:`inaproto.core.rendezvous.regroupings`), joins the next job with the others, and goes
back to the first all-reduce that not all of them have. One that dies stays dead. When nobody goes on any more
and the job is not finished, it is started anew, with all its ranks: as whoever runs a cluster would do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.host.elastic_process import UNDER_WAY, ElasticProcess, State
from inaproto.sim.frames.host.elastic_ring import ElasticRing, Generation, Held
from inaproto.sim.frames.host.rank import BACKOFF_NS
from inaproto.sim.frames.host.ring import HostRing
from inaproto.sim.kernel.violated import Violated
from inaproto.units import S
from inaproto.wire.control_messages import Regrouped

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.world import World


class ElasticJob:
    """All that becomes of ``root``, under whichever names, until it is finished."""

    def __init__(self, world: World, root: JobConfig) -> None:
        self.world = world
        self.root = root
        self.attempt = 1
        self.is_finished = False
        self._has_ended = False
        self.patience_ns = 3 * world.config.recover_ns + S
        """How long a process tries to go on."""
        self._generations: dict[str, Generation] = {}
        self._begun: set[str] = set()
        """Names of those that have begun, since it was started last."""
        first = Generation(root, tuple(range(len(root.hosts))), 0, 0)
        self.rings = [ElasticRing(world.hosts[number], self, first) for number in root.positions]
        """Rings of the job as it is started."""
        ranks = {rank.index: rank for ring in self.rings for rank in ring.ranks}
        self.processes = [ElasticProcess(self, number, ranks[number]) for number in sorted(ranks)]

    def ring_of(self, rank: SimRank) -> ElasticRing:
        ring = rank.ring
        assert isinstance(ring, ElasticRing)
        return ring

    # --- jobs that follow

    def generation(self, held: Held, message: Regrouped) -> Generation:
        """The job that survivors of ``held`` join next."""
        former = tuple(held.generation.former[rank] for rank in message.ranks)
        agreed = held.generation.agreed + message.agreed
        hosts = tuple(held.generation.job.hosts[rank] for rank in message.ranks)
        job = replace(
            self.root, name=message.job, hosts=hosts, elements=self.root.elements[agreed:], mismatch=None
        )
        job = replace(job, slow_rank=job.slow_rank if job.slow_rank < len(hosts) else -1)
        made = Generation(job, former, agreed, held.generation.number + 1)
        found = self._generations.setdefault(message.job, made)
        if found != made:
            raise Violated("survivors go on together", f"{message.job} is {made} for one, {found} for others")
        if found is made:
            self.world.add_job(job)
        return found

    def began(self, generation: Generation) -> None:
        """On one of its hosts."""
        if not generation.number or generation.job.name in self._begun:
            return
        self._begun.add(generation.job.name)
        mark = self.world.mark
        mark("a job was shrunk")
        if generation.number > 1:
            mark("a job was shrunk twice")
        if len(generation.former) == 1:
            mark("one survivor went on alone")
        if len(generation.job.positions) < len(generation.former):
            mark("several ranks of a host survived")
        if sum(process.state is State.DEAD for process in self.processes) > generation.number:
            mark("several ranks were lost at once")

    def place(self, host: SimHost, generation: Generation, index: int) -> SimRank:
        """Where rank ``index`` of it is on its host."""
        ring = next((ring for ring in host.rings if ring.job.name == generation.job.name), None)
        if ring is None:
            ring = ElasticRing(host, self, generation)
            host.rings.append(ring)
        assert isinstance(ring, ElasticRing)
        assert ring.generation is generation
        return next(rank for rank in ring.ranks if rank.index == index)

    # --- ends

    def finished(self, ring: ElasticRing) -> None:
        """All ranks of one of its jobs have left, and a host has been told."""
        if self.is_finished:
            return
        self.is_finished = True
        self.world.elastic_job_closed(self.root)
        if self.attempt > 1:
            self.world.mark("a job finished after it had started anew")
        for process in self.processes:
            if process.state is State.JOINING and process.host.is_up:
                self.world.agenda.at(0, self.ring_of(process.first).finish_if_unneeded)

    def settle_soon(self) -> None:
        self.world.agenda.at(0, self._settle)

    def _settle(self, _: Any = None) -> None:
        """Whether anybody still goes on."""
        states = {process.state for process in self.processes}
        if not states.isdisjoint(UNDER_WAY):
            return
        if self.is_finished:
            if State.JOINING not in states and not self._has_ended:
                self._has_ended = True
                self.world.elastic_job_ended(self.root)
        elif states != {State.JOINING}:
            self._start_anew()

    def _is_past(self, ring: HostRing) -> bool:
        return isinstance(ring, ElasticRing) and ring.elastic is self and ring not in self.rings

    def _start_anew(self) -> None:
        self.attempt += 1
        self.world.seats.start_anew(self)
        self._generations.clear()
        self._begun.clear()
        for host in self.world.hosts:
            host.rings = [ring for ring in host.rings if not self._is_past(ring)]
        self.world.mark("a job was started anew, for nobody went on")
        for process in self.processes:
            if process.state is not State.JOINING:
                process.begin()
                if process.host.is_up:
                    ring = self.ring_of(process.first)
                    self.world.agenda.after(BACKOFF_NS, ring.ask_to_join, process.first)
