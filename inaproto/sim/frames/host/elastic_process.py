"""A training process of an elastic job: what it does when a rank is lost, until it is finished or ends.

As ``inaproto.client.shrinking`` has it: the question who goes on is asked by the connection of the job that
has ended, or of the one that was to follow it, and that stays open until the next job has begun.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from inaproto.errors import JoinRefused, OperationTimeout, RankLost
from inaproto.faults.streams import Draws
from inaproto.sim.frames.host.elastic_ring import Held
from inaproto.units import MS, Instant
from inaproto.wire.control_messages import Error, Gone, Regroup, Regrouped

if TYPE_CHECKING:
    from inaproto.sim.frames.control_plane import Session
    from inaproto.sim.frames.host.elastic import ElasticJob
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.rank import SimRank


class State(Enum):
    JOINING = "joining"
    """Its first communicator has not begun."""
    RUNNING = "running"
    REGROUPING = "regrouping"
    """It asks who goes on."""
    FOLLOWING = "following"
    """It has been told, and joins."""
    LEFT = "left"
    """It has all its results, others have not."""
    DEAD = "dead"
    ENDED = "ended"
    """It was told that it cannot go on."""
    FINISHED = "finished"


UNDER_WAY: Final = (State.RUNNING, State.REGROUPING, State.FOLLOWING)
IN_ORDER: Final = (State.LEFT, State.FINISHED)
_CLOSED: Final = "it closed the connection"


class ElasticProcess:
    """The training process that began as rank ``number`` of ``job``."""

    def __init__(self, job: ElasticJob, number: int, rank: SimRank) -> None:
        self.job = job
        self.number = number
        self.host: SimHost = rank.host
        self.pid = 0
        self.first = rank
        """Its place in the job as it is started."""
        self.rank = rank
        """Its place in the job that it is in, or joins."""
        self._draws = Draws(job.world.config.seed, f"elastic/{job.root.name}/{number}")
        self.begin()

    def begin(self) -> None:
        """It has not joined anything yet."""
        self.state = State.JOINING
        self.rank = self.first
        self.told = ""
        """The code of the error with which it ended."""
        self.held: Held | None = None
        """The job that has ended, and of which it is a survivor."""
        self.following: Held | None = None
        """The one that was to follow, which has ended as well, perhaps before it began."""
        self.asks_first_ns = 0
        """When it first asked about the job that it is a survivor of."""
        self._session: Session | None = None
        """Session of its host, then."""
        self.asked_at: Instant | None = None
        """Since when it waits for an answer, by the connection that its host has."""
        self.is_turned_away = False
        """The job that it was to go on as did not take it."""
        self._closed_at: Instant | None = None
        """When its connections closed, if its host could tell."""
        self._request = 0
        self._tries = 0

    def __str__(self) -> str:
        return f"process {self.number} of {self.job.root.name} on {self.host.name}"

    @property
    def may_go_on(self) -> bool:
        return self.state in UNDER_WAY and not self.rank.has_left

    @property
    def companions(self) -> list[ElasticProcess]:
        """All that are in its job, or were to be."""
        generation = self.job.ring_of(self.rank).generation
        return [self.job.processes[number] for number in generation.former]

    @property
    def has_left_early(self) -> bool:
        """Its job failed when it had all its results."""
        return self.state is State.LEFT

    @property
    def gone_at(self) -> Instant | None:
        """When its connections closed, if the switch must have heard of it."""
        return self._closed_at if self.has_kept_host else None

    @property
    def has_kept_host(self) -> bool:
        """Its host has had one connection since it first asked, or died."""
        return self.host.session is self._session

    @property
    def is_asking(self) -> bool:
        return self.state is State.REGROUPING

    @property
    def is_to_join(self) -> bool:
        return self.state in (State.JOINING, State.FOLLOWING)

    @property
    def is_in_a_job(self) -> bool:
        """Or waits for all others to join it, as a new process does."""
        return self.state in (State.JOINING, State.RUNNING)

    # --- what its ring tells

    def began(self) -> None:
        """All ranks of its job are there."""
        self.job.world.seats.joined(self, (self.rank.job.name, self.rank.index))
        if self.state is State.FOLLOWING:
            self._let_go()
        self.state = State.RUNNING
        for hook in self.job.world.hooks.process_changed:
            hook(self)

    def failed(self, ended: Held, code: str, *, had_started: bool) -> None:
        """The job that it is in, or joins, has failed."""
        if self.state not in UNDER_WAY:
            return
        if ended.has_left:
            self._become(State.LEFT)
        elif code != RankLost.code:
            self._tell_gone(ended, code)
            self.end(code)
        elif had_started:
            self.held, self.following = ended, None
            self._tries += 1
            self.state = State.REGROUPING
            self.asks_first_ns, self._session = 0, None
            agenda, think = self.job.world.agenda, self._draws.below(self.job.root.think_ns + MS)
            agenda.after(think, self._ask_if, self._tries)
            agenda.after(think + self.job.patience_ns, self._time_out, self._tries)
        else:
            self.following = ended
            self.state = State.REGROUPING
            self.ask()

    # --- who goes on

    @property
    def asks_about(self) -> Held | None:
        return self.following or self.held

    def _ask_if(self, tries: int) -> None:
        if tries == self._tries:
            self.host.when_awake(lambda: self.ask() if tries == self._tries else None)

    def ask(self) -> None:
        """Asks; also again, when the host has another connection."""
        about = self.asks_about
        if self.state is not State.REGROUPING or about is None:
            return
        if self._request in self.host.regrouping:
            self.job.world.mark("a host came back, and its survivors asked again")
        self._forget_request()
        self._request = self.job.world.new_pid()
        self.host.regrouping[self._request] = self
        self.asked_at = None
        if not self.host.is_welcome:
            return
        self.asked_at = Instant(self.job.world.agenda.now)
        if self._session is None:
            self.asks_first_ns, self._session = self.asked_at, self.host.session
        for hook in self.job.world.hooks.regroups:
            hook(self)
        self.host.tell(
            Regroup(
                id=self._request,
                job=about.name,
                ring_id=about.ring_id,
                rank=about.index,
                operations_done=about.operations_done,
            )
        )

    def _forget_request(self) -> None:
        self.host.regrouping.pop(self._request, None)

    def answered(self, message: Regrouped | Error) -> None:
        held, following = self.held, self.following
        self.asked_at = None
        if self.state is not State.REGROUPING or held is None:
            return
        if isinstance(message, Error):
            if following is not None and message.code == JoinRefused.code:
                self.job.world.mark("a job that was to follow did not begin")
                self._tell_gone(following, _CLOSED)
                self.job.world.seats.closed(self, following.place, _CLOSED)
                self.following = None
                self.ask()
                return
            self.end(message.code)
            return
        of = following or held
        self.job.world.seats.follows(self, of.place, (message.job, message.ranks.index(of.index)))
        if following is not None:
            self._let_go()
            held = self.held = following
            self.following = None
        generation = self.job.generation(held, message)
        self.rank = self.job.place(self.host, generation, message.ranks.index(held.index))
        self.state, self.is_turned_away = State.FOLLOWING, False
        ring = self.job.ring_of(self.rank)
        self.job.world.agenda.after(self._draws.below(MS), ring.ask_to_join, self.rank)

    def _let_go(self) -> None:
        """Its host vouches for it no more as for a survivor: it has a place in another job."""
        if self.held is not None:
            self._tell_gone(self.held, _CLOSED)
            self.job.world.seats.closed(self, self.held.place, _CLOSED)
        self.held = None

    def _tell_gone(self, held: Held, reason: str) -> None:
        if held.ring_id:
            word = Gone(job=held.name, rank=held.index, reason=reason, ring_id=held.ring_id)
            held.ring.survivor_gone(word)

    # --- ends

    def dies(self, until_ns: int) -> bool:
        """Whether anybody depended on it."""
        world = self.job.world
        if self.state is State.JOINING:
            return self.job.ring_of(self.first).end_process(self.first, until_ns)
        if self.state not in UNDER_WAY or self.rank.has_left:
            return False
        if self.state is not State.RUNNING:
            world.mark("a rank died while its job was regrouping")
        self._close("its process died", State.DEAD)
        return True

    def crashed(self) -> None:
        """It dies with its host."""
        if self.state in UNDER_WAY:
            self._forget_request()
            self._become(State.LEFT if self.rank.has_left else State.DEAD)

    def end(self, code: str) -> None:
        """It was told that it cannot go on."""
        self.told = code
        self.job.world.mark(f"a rank could not go on: {code}")
        for hook in self.job.world.hooks.gave_up:
            hook(self, code)
        self._become(State.ENDED)

    def _time_out(self, tries: int) -> None:
        if tries == self._tries and self.state in (State.REGROUPING, State.FOLLOWING):
            self.host.when_awake(lambda: self._give_up(tries))

    def _give_up(self, tries: int) -> None:
        if tries == self._tries and self.state in (State.REGROUPING, State.FOLLOWING):
            self.told = OperationTimeout.code
            self.job.world.mark(f"a rank could not go on: {self.told}")
            for hook in self.job.world.hooks.gave_up:
                hook(self, self.told)
            self._close("it did not wait any longer", State.ENDED)

    def _close(self, reason: str, state: State) -> None:
        """Its connections are closed, all at once."""
        was, self.state = self.state, state
        self._closed_at = Instant(self.job.world.agenda.now) if self.host.is_reachable else None
        self._session = self.host.session
        self._forget_request()
        if was in (State.RUNNING, State.FOLLOWING):
            self.job.ring_of(self.rank).end_process(self.rank, 0)
        for held in (self.following, self.held):
            if held is not None and was is not State.RUNNING:
                self._tell_gone(held, reason)
        self._become(state)

    def finish(self) -> None:
        """All ranks of its job have left, or its job is finished without it."""
        self._become(State.FINISHED)

    def _become(self, state: State) -> None:
        self._forget_request()
        self._tries += 1
        self.state = state
        for hook in self.job.world.hooks.process_changed:
            hook(self)
        self.job.world.seats.ended(self, "" if state in IN_ORDER else self.told or state.value)
        self.job.settle_soon()
