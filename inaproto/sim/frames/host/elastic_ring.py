"""The ring of an elastic job on one simulated host: of the job as it is started, or of one that follows it.

Who fails with it is told whether a rank was lost, and does what :mod:`inaproto.sim.frames.host.elastic` says;
where the ranks of a host share the loss of one, the switch is told of that one alone, as
``inaproto.daemon.host.ring`` does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.ring import Failure, HostRing
from inaproto.wire.control_messages import Gone

if TYPE_CHECKING:
    from inaproto.sim.frames.host.elastic import ElasticJob
    from inaproto.sim.frames.host.elastic_process import ElasticProcess
    from inaproto.sim.frames.host.host import SimHost


@dataclass(frozen=True)
class Generation:
    """A job of some of the processes that an elastic job began with."""

    job: JobConfig
    former: tuple[int, ...]
    """Rank that each had in the job as it was started."""
    agreed: int
    """All-reduces of that which all its ranks have; it has the rest."""
    number: int
    """How many such jobs were before it."""


@dataclass(frozen=True)
class Held:
    """What a process keeps of a job that has failed."""

    ring: ElasticRing
    generation: Generation
    rank: SimRank
    ring_id: int
    life: int
    operations_done: int
    has_left: bool

    @property
    def index(self) -> int:
        return self.rank.index

    @property
    def name(self) -> str:
        return self.generation.job.name

    @property
    def place(self) -> tuple[str, int]:
        """Job and rank."""
        return self.name, self.index


class ElasticRing(HostRing):
    """The ranks of ``generation`` on ``host``."""

    def __init__(self, host: SimHost, elastic: ElasticJob, generation: Generation) -> None:
        super().__init__(host, generation.job)
        self.elastic = elastic
        self.generation = generation

    def process(self, rank: SimRank) -> ElasticProcess:
        return self.elastic.processes[self.generation.former[rank.index]]

    def origin_of(self, op_index: int) -> tuple[str, int]:
        return self.elastic.root.name, self.generation.agreed + op_index

    @property
    def _follows(self) -> bool:
        return self.generation.number > 0

    # --- joining

    def _join(self, rank: SimRank) -> None:
        process = self.process(rank)
        if process.rank is rank and process.is_to_join:
            super()._join(rank)

    def _pid_of(self, rank: SimRank) -> int:
        process = self.process(rank)
        if not self._follows:
            process.pid = super()._pid_of(rank)
        return process.pid

    def _start_anew(self, rank: SimRank) -> None:
        if not self._follows and self.process(rank).is_to_join:
            super()._start_anew(rank)

    def _begun(self) -> None:
        for hook in self.host.world.hooks.began:
            hook(self)
        self.elastic.began(self.generation)
        for rank in self.ranks:
            self.process(rank).began()

    # --- ends

    def rank_failed(self, failure: Failure) -> None:
        rank, process, code = failure.rank, self.process(failure.rank), failure.error.code
        turned_away = failure.was_withdrawn and self._follows
        if turned_away:
            rank.begin()
        else:
            super().rank_failed(failure)
        if (failure.was_withdrawn and not turned_away) or process.rank is not rank:
            return
        of = Held(
            self,
            self.generation,
            rank,
            failure.ring_id,
            failure.life,
            failure.operations_done,
            failure.has_left,
        )
        if process.is_to_join and not self._follows and not rank.is_dead and of.ring_id:
            self.host.tell(Gone(job=of.name, rank=of.index, reason="it joins anew", ring_id=of.ring_id))
        process.is_turned_away = turned_away
        process.failed(of, code, had_started=failure.had_started)

    def process_died(self, rank: SimRank, until_ns: int) -> bool:
        return self.process(rank).dies(until_ns)

    def end_process(self, rank: SimRank, until_ns: int) -> bool:
        """The connection of the process is closed; whether anybody depended on it."""
        return super().process_died(rank, until_ns)

    def _start_again(self, rank: SimRank) -> None:
        rank.is_dead = False
        if not self._follows:
            self.ask_to_join(rank)

    def die(self) -> None:
        super().die()
        for rank in self.ranks:
            process = self.process(rank)
            if process.rank is rank:
                process.crashed()

    def _report_finished(self) -> None:
        for rank in self.ranks:
            process = self.process(rank)
            if process.rank is rank and process.is_in_a_job:
                process.finish()
        self.elastic.finished(self)

    def finish_if_unneeded(self, _: object = None) -> None:
        """The job has been finished by others."""
        if self.is_gathering and self.host.is_up:
            self.host.when_awake(lambda: self.finish() if self.is_gathering else None)
