"""Survivors go on together: all that say so in time, from a result that all of them have, as one next job.

For an elastic job that has lost a rank. Who was told, and from where they go on, is compared with what every
process did: which results it was given, when it asked, whether it lives. Who is turned away, or waits too
long, has a reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from inaproto.core.host.view import Phase
from inaproto.errors import JoinRefused, OperationTimeout, RankLost
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS
from inaproto.wire.control_messages import Failed, Message, Regrouped

if TYPE_CHECKING:
    from inaproto.sim.frames.host.elastic_process import ElasticProcess
    from inaproto.sim.frames.host.elastic_ring import ElasticRing, Held
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.rank import SimRank
    from inaproto.sim.frames.world import World

_ANSWER_NS: Final = 20 * MS
"""For a message there and one back, at most 2 ms each, and a host that has just come back."""


@dataclass
class _Lost:
    """A job that has lost a rank."""

    at_ns: int
    boots: int
    """Boots of the switch, then."""
    excused: frozenset[int]
    """Processes that may have been named as lost themselves: their hosts were away then."""
    begun: str = ""
    """The job that followed."""
    told: dict[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    """Who goes on, and what is agreed, by the name of the next job."""
    told_at_ns: int = -1
    """When the last of them was first told; none of a later round can have been before."""


class SurvivorsTogether(Checker):
    name = "survivors go on together"

    def begin(self, world: World) -> None:
        self._world = world
        self._done: dict[tuple[SimRank, int], int] = {}
        """Results of a rank in a life."""
        self._lost: dict[str, _Lost] = {}
        """The latest life of each job that has lost a rank, by name."""
        self._asked: set[tuple[ElasticProcess, str]] = set()

    def done(self, rank: SimRank, op_index: int) -> None:
        if rank.job.elastic:
            self._done[rank, rank.life] = op_index + 1

    def told(self, host: SimHost, message: Message) -> None:
        if isinstance(message, Regrouped):
            process = host.regrouping.get(message.id)
            if process is not None and process.asks_about is not None:
                self._goes_on(process, process.asks_about, message)
        elif isinstance(message, Failed) and message.code == RankLost.code and message.ring_id:
            self._loses(message.job)

    def _loses(self, job: str) -> None:
        now = self._world.agenda.now
        known = self._lost.get(job)
        if known is None or known.at_ns != now:
            self._lost[job] = _Lost(now, self._world.control.boots, frozenset(self._not_in_ring(job)))

    def _not_in_ring(self, job: str) -> list[int]:
        return [
            process.number
            for elastic in self._world.elastic.values()
            for process in elastic.processes
            if process.rank.job.name == job
            and not (process.host.is_reachable and process.rank.ring.phase in (Phase.RUNNING, Phase.LEFT))
        ]

    def regroups(self, process: ElasticProcess) -> None:
        held = process.asks_about
        assert held is not None
        self._asked.add((process, held.name))

    def _goes_on(self, process: ElasticProcess, held: Held, message: Regrouped) -> None:
        """An answer leaves the switch."""
        said = message.ranks, message.agreed
        lost = self._lost.get(held.name)
        if lost is None:
            lost = self._lost[held.name] = _Lost(-1, self._world.control.boots, frozenset())
        is_news = message.job not in lost.told
        first = lost.told.setdefault(message.job, said)
        if first != said:
            raise Violated(self.name, f"{message.job}: {said} for {process}, {first} for others")
        if held.index not in message.ranks:
            raise Violated(self.name, f"{process} is told that {message.ranks} go on, without itself")
        if lost.begun and lost.begun != message.job:
            raise Violated(
                self.name, f"{process} is to go on as {message.job}; others have begun {lost.begun}"
            )
        since_ns = lost.at_ns if lost.told_at_ns < 0 else lost.told_at_ns
        if is_news and len(lost.told) > 1:
            self._world.mark("survivors agreed once more, on another job")
        if is_news:
            lost.told_at_ns = self._world.agenda.now
            self._look_at_outcome(held, message, lost, since_ns)

    def _look_at_outcome(self, held: Held, message: Regrouped, lost: _Lost, since_ns: int) -> None:
        world, former = self._world, held.generation.former
        processes = [held.ring.elastic.processes[number] for number in former]
        went_on = [processes[rank] for rank in message.ranks]
        for process in went_on:
            if (process, held.name) not in self._asked:
                raise Violated(self.name, f"{process} is to go on as {message.job}, and has not said so")
        have = {
            process.number: self._done.get((of.rank, of.life), 0)
            for process in went_on
            if (of := process.held) is not None and of.name == held.name
        }
        if len(set(have.values())) > 1:
            world.mark("survivors had different results")
        wrong = {number: count for number, count in have.items() if count < message.agreed}
        if wrong or (len(have) == len(went_on) and min(have.values()) != message.agreed):
            raise Violated(
                self.name,
                f"{message.job} goes on from all-reduce {message.agreed}; results by process: {have}",
            )
        self._look_at_haste(
            held, message, since_ns, [one for one in processes if one not in went_on], went_on
        )
        waited_ns = world.agenda.now - since_ns
        if since_ns < 0 or waited_ns >= world.config.recover_ns:
            return
        for process in processes:
            if process not in went_on and process.may_go_on and process.number not in lost.excused:
                raise Violated(
                    self.name,
                    f"{process} is left out of {message.job}, {waited_ns / MS:g} ms after its job had lost a "
                    f"rank; it is {process.state.value}",
                )

    def _look_at_haste(
        self,
        held: Held,
        message: Regrouped,
        since_ns: int,
        others: list[ElasticProcess],
        went_on: list[ElasticProcess],
    ) -> None:
        """Nobody is waited for once all have come, or are lost and it was said."""
        if not all(process.has_left_early or process.gone_at is not None for process in others):
            return
        due_ns = since_ns
        for at in [process.asked_at for process in went_on] + [process.gone_at for process in others]:
            due_ns = max(due_ns, 0 if at is None else at)
        late_ns = self._world.agenda.now - due_ns
        if late_ns > _ANSWER_NS and all(process.asked_at is not None for process in went_on):
            raise Violated(
                self.name,
                f"who goes on as {message.job} is told {late_ns / MS:g} ms after all of {held.name} had come "
                "or were lost",
            )

    def began(self, ring: ElasticRing) -> None:
        held = next((of for rank in ring.ranks if (of := ring.process(rank).held) is not None), None)
        if held is None:
            return
        lost = self._lost.get(held.name)
        if lost is None or ring.job.name not in lost.told:
            raise Violated(self.name, f"{ring} has begun, and nobody was told to go on as that")
        if lost.begun not in ("", ring.job.name):
            raise Violated(self.name, f"{ring} has begun, and so has {lost.begun}")
        lost.begun = ring.job.name

    def gave_up(self, process: ElasticProcess, code: str) -> None:
        held = process.held
        lost = None if held is None else self._lost.get(held.name)
        if lost is None:
            return
        if code == OperationTimeout.code:
            self._waited_in_vain(process)
        elif code == JoinRefused.code:
            if lost.boots != self._world.control.boots:
                self._world.mark("survivors were refused after a restart of the switch")
            elif lost.at_ns >= 0 and process.number not in lost.excused and process.has_kept_host:
                self._refused(process, lost)

    def _waited_in_vain(self, process: ElasticProcess) -> None:
        world, asked_at = self._world, process.asked_at
        now, well_ns = world.agenda.now, world.config.weather_until_ns
        limit_ns = world.config.recover_ns + _ANSWER_NS
        if process.is_asking:
            if asked_at is not None and now - max(asked_at, well_ns) > limit_ns:
                raise Violated(
                    self.name, f"{process} was not told for {(now - asked_at) / MS:g} ms who goes on"
                )
        elif now - well_ns > limit_ns:
            others = [other for other in process.companions if other is not process]
            if all(other.rank.job is process.rank.job or other.gone_at is not None for other in others):
                states = ", ".join(f"{other.number} is {other.state.value}" for other in others)
                raise Violated(
                    self.name, f"{process} waits for {process.rank.job.name} in vain; of the others {states}"
                )

    def _refused(self, process: ElasticProcess, lost: _Lost) -> None:
        now, recover_ns = self._world.agenda.now, self._world.config.recover_ns
        if process.is_asking:
            came_ns = process.asks_first_ns - lost.at_ns
            if came_ns + _ANSWER_NS < recover_ns:
                raise Violated(
                    self.name,
                    f"{process} said {came_ns / MS:g} ms after its loss that it goes on, and is refused",
                )
        elif (
            process.is_turned_away and now - lost.told_at_ns < recover_ns and process.rank.job.path != "chain"
        ):
            raise Violated(
                self.name, f"{process} is refused by {process.rank.job.name}, as which it was to go on"
            )
