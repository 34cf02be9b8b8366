"""The ring of an elastic job on one simulated host: of the job as it is started, or of one that follows it.

Who fails with it is told whether a rank was lost, and does what :mod:`inaproto.sim.frames.host.elastic` says;
where the ranks of a host share the loss of one, the switch is told of that one alone, as
``inaproto.daemon.host.ring`` does it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inaproto.errors import RankLost
from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.ring import HostRing
from inaproto.sim.frames.host.state import Phase
from inaproto.wire.control_messages import Error, Failed, Gone, Message, job_error

if TYPE_CHECKING:
    from inaproto.sim.frames.host.elastic import ElasticJob
    from inaproto.sim.frames.host.elastic_process import ElasticProcess
    from inaproto.sim.frames.host.host import SimHost


@dataclass(frozen=True)
class Generation:
    """A job of some of the processes that an elastic job began with."""

    job: JobConfig
    former: tuple[int, ...]
    """By rank: its rank in the job as it was started."""
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


class ElasticRing(HostRing):
    """Of the ranks of ``generation`` on ``host``."""

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

    def heard(self, message: Message) -> None:
        match message:
            case Failed() if self._follows and self.is_gathering and message.ring_id:
                is_known, self._heard_of = self._heard_of == message.ring_id, 0
                if not is_known and not self.ring_id:  # announced again, before they had started
                    self.lose(job_error(message))
                    return
        super().heard(message)

    def _run(self) -> None:
        had_started = self.has_started
        super()._run()
        if had_started:
            return
        for hook in self.host.world.hooks.began:
            hook(self)
        self.elastic.began(self.generation)
        for rank in self.ranks:
            self.process(rank).began()

    # --- ends

    def _held(self, rank: SimRank) -> Held:
        done = rank.operations_done
        return Held(self, self.generation, rank, self.ring_id, self.life, done, rank.has_left)

    def _fail(self, code: str, message: str) -> None:
        had_started = self.has_started
        held = [(rank, self._held(rank)) for rank in self.ranks if rank.has_joined]
        super()._fail(code, message)
        for rank, of in held:
            process = self.process(rank)
            if process.rank is not rank:
                continue
            if process.is_to_join and not self._follows and not rank.is_dead and of.ring_id:
                word = Gone(job=of.name, rank=of.index, reason="it joins anew", ring_id=of.ring_id)
                self.host.tell(word)
            process.failed(of, code, had_started=had_started)

    def _refused(self, message: Error) -> None:
        rank = self._rank_of(message.of)
        if rank is None or not (self.has_started or self._follows):
            super()._refused(message)
            return
        self.host.world.mark("a join was refused")
        if not self.has_started:
            self._turn_away(rank, message.code)
        elif message.code == RankLost.code:  # another is lost, while these were away
            self._fail(message.code, message.message)
        else:
            self.lose(job_error(message))

    def _fail_joining(self, message: Failed) -> None:
        if not self._follows:
            super()._fail_joining(message)
            return
        for rank in self.ranks:
            if rank.index in self._answers and self._answers[rank.index].ring_id == message.ring_id:
                self._turn_away(rank, message.code)

    def _turn_away(self, rank: SimRank, code: str) -> None:
        held = self._held(rank)
        self._withdraw(rank)
        self.process(rank).is_turned_away = True
        self.process(rank).failed(held, code, had_started=False)

    def _tell_gone(self, reason: str, *, first: SimRank | None = None) -> None:
        if first is None:
            super()._tell_gone(reason)
            return
        word = Gone(job=self.job.name, rank=first.index, reason=reason[:1000])
        if self.phase is Phase.AWAY:
            self._last_words = [word]
        self.host.tell(word)

    def tell_of_survivor(self, word: Gone) -> None:
        """A process is lost whose job had failed."""
        if self._last_words:  # no switch has heard yet that it has
            self._last_words.append(word)
        else:
            self.host.tell(word)

    def process_died(self, rank: SimRank, until_ns: int) -> bool:
        return self.process(rank).dies(until_ns)

    def end_process(self, rank: SimRank, until_ns: int) -> bool:
        """The connection of the process is closed; whether anybody depended on it."""
        return super().process_died(rank, until_ns)

    def _start_again(self, rank: SimRank) -> None:
        rank.is_dead = False
        if not self._follows:
            self._again(rank)

    def ask_to_join(self, rank: SimRank) -> None:
        self._again(rank)

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
