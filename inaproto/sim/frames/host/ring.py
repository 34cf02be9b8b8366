"""Drives a host in a job (:mod:`inaproto.core.host.job`) in the deterministic world.

The host's protocol is the product's; here are the training processes, the NIC, the session with the switch
and the clock of a simulated host, and what checkers are told. The ranks that a host has of a job share one
core; whenever their job fails, they start anew, with a new one.

A ring of a host has one *life* from its first ring id to its end. Where the world's ``recover_ns`` is 0, that
is one ring; else rings may end, and its operations go on in the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from inaproto.core.host import events
from inaproto.core.host.collective import Allowed, Attach, Release, Try
from inaproto.core.host.config import HostConfig
from inaproto.core.host.driver import HostDriver
from inaproto.core.host.engines.two_paths import AskBinding, Binding, Wait
from inaproto.core.host.job import HostJob
from inaproto.core.host.journal import Journal, PrivateArena, read_journal
from inaproto.core.host.local_reduction import Slice
from inaproto.core.host.operations import BASE, INA, BoundPath, OperationFailed, TakeResult, Woke
from inaproto.core.host.view import Phase
from inaproto.errors import JOB_ERRORS, FabricLost, JobError
from inaproto.sim.frames import library
from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.host import observing
from inaproto.sim.frames.host.facts import RingFacts
from inaproto.sim.frames.host.observing import WatchedHoldings
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.tensors import ClockedNic, HostTensors, tensors_of
from inaproto.sim.kernel.violated import Violated
from inaproto.units import US, Instant, OpIndex
from inaproto.wire.control_messages import Broken, Gone
from inaproto.wire.messages.client import Join
from inaproto.wire.messages.ina import InaPark

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost

SLICE_BYTES: Final = 2048
"""Most bytes of the tensors of all ranks in one slice of a sum: so few that there are several."""
SLICE_NS: Final = 20 * US
"""How long the third slice of a sum takes; those before take longer, so that others overtake them."""
ADDERS: Final = 2
"""Slices that are added at a time."""


@dataclass(frozen=True)
class Failure:
    """What a rank was, when it was told that its job has failed."""

    rank: SimRank
    error: JobError
    ring_id: int
    life: int
    operations_done: int
    has_left: bool
    had_started: bool
    was_withdrawn: bool
    """It was not in the job yet, which gathers on."""


class HostRing(HostDriver, RingFacts):
    """The ranks of ``job`` on ``host``; all times that they see are its host's."""

    holdings: WatchedHoldings

    def __init__(self, host: SimHost, job: JobConfig) -> None:
        super().__init__(lambda: host.now)
        self.host = host
        self._world = host.world
        self.job = job
        self.position = job.positions.index(host.number)
        """Position of the host in the ring."""
        self.is_finished = False
        self.ranks = [SimRank(self, index) for index in job.ranks_on(host.number)]
        self.acting = BASE
        self._outlives_daemon = False
        """Its host daemon is gone, and the job goes on by the next."""
        self._silent: list[HostJob] = []
        """Ended while the host had no switch, which is to be told."""
        self._config = HostConfig(
            job=job.name,
            host=host.name,
            mtu=job.mtu,
            message_packets=job.message_packets,
            window_messages=job.window_messages,
            stall_ns=job.stall_ns,
            timeout_ns=job.timeout_ns,
            recover_ns=host.world.config.recover_ns,
            collective=None if job.collective is None else library.TERMS,
            try_ns=library.TRY_NS,
        )
        self._forget()

    def _forget(self) -> None:
        """What has not happened before the first rank joins."""
        core, config = HostJob(self._config), self._config
        window, tensor_bytes = config.window_messages, config.tensor_bytes
        journal: Journal | None = None
        if config.recover_ns and self.job.collective is None:
            journal = Journal(PrivateArena(), window_messages=window, tensor_bytes=tensor_bytes)
        self.begin(core, WatchedHoldings(self, core, SLICE_BYTES, journal))
        self.life = 0
        """Its first ring; 0: it has none yet."""
        self._failures: list[Failure] = []
        self._adding: list[Slice] = []
        self._wake_at: int | None = None
        self._asked: dict[OpIndex, Instant] = {}
        """When the binding of an all-reduce was asked for first."""
        self._to_park: InaPark | None = None
        """The ring through the switches is to be parked."""
        self._boots = 0
        """Boots of the switches, when the present ring was made."""
        self._outliving = -1
        """The all-reduce that ran when a switch went down."""
        for rank in self.ranks:
            rank.begin()

    # --- joining

    def start(self) -> None:
        """New processes (or those that start anew) ask to join; several come up at times of their own."""
        if len(self.ranks) == 1:
            self._join(self.ranks[0])
            return
        for rank in self.ranks:
            self._world.agenda.after(rank.process.think_of_joining(), self.ask_to_join, rank)

    def _join(self, rank: SimRank) -> None:
        if rank.has_joined or rank.is_dead or not self.is_gathering or not self.host.is_up:
            return
        if self._world.is_closed(self.job):  # it had left, and so had all others, when its job failed
            self.finish()
            return
        if not self.host.is_welcome:  # the host daemon keeps the request until the switch knows it
            return
        if not rank.is_to_go_again:
            rank.pid = self._pid_of(rank)
        rank.is_to_go_again = False
        rank.has_joined = True
        if self.is_idle:
            self._open(self.core.opening)
        job = self.job
        join = Join(
            id=rank.pid,
            job=job.name,
            rank=rank.index,
            size=len(job.hosts),
            key="simulated",
            pid=rank.pid,
            path=job.path,
            exact_plan=job.exact_plan,
            elastic=job.elastic,
            life=str(rank.pid),
        )
        self.feed(events.RankJoined(join, rank.pid))
        self._world.places.look(self)

    def _pid_of(self, rank: SimRank) -> int:
        """Id of the process that joins."""
        return self._world.new_pid()

    def ask_to_join(self, rank: SimRank) -> None:
        self.host.when_awake(partial(self._join, rank))

    def _start_anew(self, rank: SimRank) -> None:
        """After a while."""
        wait_ns = rank.back_off()
        if len(self.ranks) > 1:
            wait_ns += rank.process.think_of_joining()
        self._world.agenda.after(wait_ns, self.ask_to_join, rank)

    # --- what happens

    def _step(self, event: events.HostEvent) -> None:
        core, world = self.core, self._world
        if self.host.is_without_daemon:
            return
        if not core.ranks and not isinstance(event, observing.OF_THE_NEXT_LIFE):
            return  # that life is over
        world.steps.ring_engine += 1
        if world.recorder is not None:
            world.recorder.ring_step(self, event)
        self._had_started, self._is_closed = core.has_started, False
        self._withdraws = isinstance(event, observing.WITHDRAWING) and core.is_gathering
        if isinstance(event, events.Answered):
            observing.check_ring(self, event.ring)
            self._boots = self._boots_now
        actions = self._stepped(event)
        if not self.life and core.ring is not None:
            self.life = world.life_of(self.job, core.ring.ring_id)
            world.ring_connected(self.job, self.life)
        if isinstance(event, observing.NOTED):
            observing.note_event(self, event)
            if core.phase is Phase.RUNNING and isinstance(event, events.Said):
                for rank in self.ranks:
                    rank.process.go_on()
        if actions:
            self._perform_all(actions)
        if self.host.dies_now:
            return
        if self._failures or core.has_ended or self._is_closed:
            self._look_at_end(event)
        if self.core is core:
            self.park_if_idle()
            if self._wake_at is None or isinstance(event, observing.SOONER):
                self._arm()  # else it wakes in time: other deadlines only move away
            self._add_soon()

    def _look_at_end(self, event: events.HostEvent) -> None:
        core, failures = self.core, tuple(self._failures)
        self._failures.clear()
        if failures and not self._withdraws:
            error = failures[0].error
            if isinstance(event, observing.OF_LINKS):
                raise Violated("a ring can be used", str(error))
            if core.engine is not None:
                self._world.mark(f"a rank was told: {error.code}")
            for rank in self.ranks:
                rank.told = str(error)
        if core.has_ended:
            self._silent += [core] if core.last_words else []
            self._forget()
        for failure in failures:
            self.rank_failed(failure)
        if self._is_closed:
            self.finish()
        elif core.has_ended and failures:
            for rank in self.ranks:  # one that had died, and came back before its job failed
                if not rank.is_dead and all(rank is not failure.rank for failure in failures):
                    self._start_anew(rank)

    def _faulted(self, fault: Exception) -> None:
        raise fault

    # --- what is ordered

    def _perform_all(self, actions: list[events.HostAction]) -> None:
        """All of them, or the first, if the host daemon dies over it."""
        left = self.host.dies_after
        if left is None or left >= len(actions):
            self.host.dies_after = None if left is None else left - len(actions)
            super()._perform_all(actions)
            return
        super()._perform_all(actions[:left])
        torn = actions[left]
        if isinstance(torn, TakeResult):
            self.holdings.tear(torn)
        self.host.daemon_dies()

    def _perform(self, action: events.ShellAction) -> None:
        world = self._world
        match action:
            case events.AllReduceDone(op_index, path):
                if op_index == self._outliving:
                    world.mark("an all-reduce outlived a reboot of a switch")
                if self.holdings.tensors is not None:
                    self.holdings.tensors.end(op_index)
                self._done(op_index, path)
            case events.Tell(message):
                if isinstance(message, Broken):
                    world.mark("a ring broke")
                self.host.tell(message)
            case events.RankFailed(number, error):
                self._failures.append(self._failure(self._rank(number), error))
            case events.RanksBegun():
                self._begun()
            case events.RankClosed(number):
                self._is_closed = True
                for hook in world.hooks.closed:
                    hook(self._rank(number))
            case events.RankEnded(number):
                if self.core.is_gathering:
                    self._rank(number).begin()
            case events.AnnounceAgain(number):
                self._rank(number).is_to_go_again = True
            case events.ForgetNic() | events.Ended():
                if self.holdings.tensors is not None:
                    self.holdings.tensors.deregister()
            case OperationFailed(op_index, code):
                for rank in self.ranks:
                    rank.operation_failed(op_index, code)
            case AskBinding(op_index):
                self.feed(events.BindingSaid(op_index, self._bind(op_index, self.host.now)))
            case events.ParkTurns(message):
                self._to_park = message
            case events.EndTurns():
                self._to_park = None
            case Attach(attempt):
                world.library.attach(self, attempt)
            case Release(attempt):
                world.library.release(self, attempt)
            case _:
                observing.note_action(self, action)

    def place_is(self, is_given: bool) -> None:
        """Whether a controller lets it attach to the collective library."""
        self.feed(events.OfCollective(Allowed(is_given)))

    def _memory_to_try(self, order: Try) -> tuple[memoryview, memoryview]:
        nbytes = order.operation.nbytes
        self._apart = memoryview(bytearray(nbytes)), memoryview(bytearray(nbytes))
        return self._apart

    def _try(self, order: Try) -> None:
        self._world.library.call(self, order, *self._apart)

    def _failure(self, rank: SimRank, error: JobError) -> Failure:
        engine = self.core.engine
        handed_on = 0 if engine is None else engine.operations.submitted
        for op_index in list(rank.running):
            if op_index >= handed_on:  # the engine does not know of it; of others it tells
                rank.operation_failed(op_index, error.code)
        done, has_left = rank.operations_done, rank.has_left
        had_started, withdraws = self._had_started, self._withdraws
        return Failure(rank, error, self.ring_id, self.life, done, has_left, had_started, withdraws)

    def _tensors(self) -> HostTensors:
        return tensors_of(self.job, self.ranks, self.host.nic)

    def _nic_for(self, order: events.OpenLinks) -> ClockedNic:
        if order.registers and self.holdings.tensors is not None:
            self.holdings.tensors.register(self.host.nic)
        return ClockedNic(self.host.nic, self._clock)

    def _open(self, order: events.OpenLinks) -> None:
        super()._open(order)
        for link in self.holdings.links.values():
            for qpn in link.qpns:
                self.host.serve(qpn, self)

    def _begin_connecting(self, path: BoundPath) -> None:
        self.feed(events.LinkReady(path))

    def _closing(self, order: events.CloseLinks | events.CloseIna | events.KeepResults) -> None:
        """The NIC of a link is that of its opening: the host may have a new one."""
        if isinstance(order, events.KeepResults):
            observing.note_halt(self, order)
        for link in self.holdings.closed_by(order):
            for qpn in link.qpns:
                self.host.forget(qpn)

    def _rank(self, number: int) -> SimRank:
        return next(rank for rank in self.ranks if rank.index == number)

    def rank_failed(self, failure: Failure) -> None:
        """Its process hears that the job has failed, or does not take it: it starts anew."""
        rank = failure.rank
        if failure.was_withdrawn:
            rank.begin()
        if not rank.is_dead:
            self._start_anew(rank)

    # --- all-reduces

    def _begun(self) -> None:
        """All hosts are ready, for the first time in this life."""

    def _done(self, op_index: int, path: str) -> None:
        """All its ranks have the result."""
        world = self._world
        if path == "sharp":
            world.mark("an all-reduce by a collective library")
            world.library.taken.add((self.job.name, self.life, op_index))
            self.holdings.taken(-1, op_index, 0, len(self.ranks[0].tensor(op_index)))
        if path == "local" and len(self.ranks) == 1:  # its input is the result
            [rank] = self.ranks
            for taken in world.hooks.taken:
                taken(rank, -1, op_index, 0, len(rank.tensor(op_index)))
        for rank in self.ranks:
            world.note(self.host.number, "done", op_index)
            for done in world.hooks.done:
                done(rank, op_index)
            del rank.running[op_index]
            rank.operations_done += 1
        for rank in self.ranks:
            rank.process.go_on()

    def _add_soon(self) -> None:
        while len(self._adding) < ADDERS and (part := self.take_slice()) is not None:
            self._adding.append(part)
            self.host.after(SLICE_NS * (3 - part.offset // part.nbytes % 3), partial(self._add, part))

    def _add(self, part: Slice) -> None:
        if part in self._adding:  # else its job has failed
            self._adding.remove(part)
            if any(other.offset < part.offset for other in self._adding):
                self._world.mark("a slice of a sum on one host overtook another")
            while part.block():
                pass
            self.added(part)
            self._add_soon()

    # --- turns in the switches

    def _bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        """What the job's configuration says, once it is known."""
        job, asked = self.job, self._asked.setdefault(op_index, now)
        if op_index % 3 == 2 and now < asked + job.binding_ns:
            self._world.mark("an all-reduce waited for its binding")
            return Wait(Instant(asked + job.binding_ns))
        if self._world.mover.is_between_turns(job.name, self.life, op_index):
            return Binding(BASE)
        is_ina = (op_index in job.ina) ^ ((self.host.number, op_index) in job.strays)
        return Binding(INA if is_ina else BASE)

    def park_if_idle(self) -> None:
        """Say so when the ring through the switches may leave them, if it is to."""
        message = self._to_park
        if message is not None and self._world.mover.may_park(self):
            self._to_park = None
            self.feed(events.TurnsParked(message))

    # --- the clock

    def _arm(self) -> None:
        deadline = self.core.deadline
        if deadline is not None and (self._wake_at is None or deadline < self._wake_at):
            self._wake_at = deadline
            self.host.at(deadline, partial(self.woke, self.core))

    def woke(self, core: HostJob) -> None:
        """A deadline may have passed."""
        if core is not self.core:
            return
        self._wake_at = None
        deadline = core.deadline
        if deadline is not None and deadline <= self.host.now:
            self.feed(Woke())
        else:
            self._arm()

    # --- the switch is lost, and back

    @property
    def _boots_now(self) -> int:
        return sum(switch.boots for switch in self._world.switches)

    def lose_fabric(self, error: JobError) -> None:
        """The host has lost switch or NIC."""
        running = None if self.engine is None else self.engine.view().running
        if running is not None and self._boots != self._boots_now:
            self._outliving = running.index
        self.feed(events.SwitchLost(error))

    def welcomed(self) -> None:
        """The host has a switch (again)."""
        silent, self._silent = self._silent, []
        for core in silent:
            for action in core.step(events.SwitchBack(()), self.host.now):
                if isinstance(action, events.Tell):
                    self.host.tell(action.message)
        if self.phase is Phase.AWAY:
            self.feed(events.SwitchBack(tuple(rank.pid for rank in self.ranks)))
        else:
            self.start()

    # --- ends

    def finish(self) -> None:
        """All ranks of the job have left in good order."""
        self.feed(events.Stopped("its job has ended"))
        self.is_finished = True
        self._report_finished()

    def _report_finished(self) -> None:
        self._world.ring_finished(self)

    def process_died(self, rank: SimRank, until_ns: int) -> bool:
        """One process is gone, and started again after ``until_ns``; whether anybody depended on it."""
        world = self._world
        if rank.is_dead or rank.has_left or not rank.has_joined:
            return False
        for hook in world.hooks.died:
            hook(rank)
        rank.running.clear()
        rank.is_dead = True
        world.agenda.after(until_ns, self._start_again, rank)
        if self.is_gathering:
            world.mark("a process died while others of its job were missing")
        elif len(self.ranks) > 1:
            world.mark("a rank died beside others")
        self.feed(events.RankGone(rank.index, "its process died"))
        return True

    def _start_again(self, rank: SimRank) -> None:
        rank.is_dead = False
        self.ask_to_join(rank)

    def survivor_gone(self, word: Gone) -> None:
        """A process is lost whose job had failed."""
        if self._silent:  # no switch has heard yet that it has
            self._silent[-1].step(events.RankGone(word.rank, word.reason), self.host.now)
        else:
            self.host.tell(word)

    def daemon_died(self) -> None:
        """The host daemon is gone, its processes are not."""
        core, journal = self.core, self.holdings.journal
        self._steps.clear()
        self._silent, self._to_park = [], None
        self._adding.clear()
        self._outlives_daemon = False
        if self.is_finished:
            return
        if not core.has_started or not (journal is None or journal.has_begun):
            for rank in self.ranks:
                rank.is_to_go_again = rank.has_joined
            self._forget()
        elif journal is None or core.done_path == "local":
            self.die()  # its processes start anew
        elif core.has_ended:  # it was about to say so
            self._outlives_daemon = True
            journal.failed(FabricLost.code, "the host daemon died when the job failed")
        else:
            self._outlives_daemon = True
        self.holdings.links.clear()  # gone with the NIC

    def daemon_back(self) -> None:
        """Another daemon is there: the processes come back to it with their journal."""
        if not self._outlives_daemon:
            return
        world, tensors, journal = self._world, self.holdings.tensors, self.holdings.journal
        assert journal is not None
        window, tensor_bytes = self._config.window_messages, self._config.tensor_bytes
        past = read_journal(journal.arena, window_messages=window, tensor_bytes=tensor_bytes)
        if past.failure is not None:
            self._end_after_daemon(*past.failure)
            return
        core = HostJob.of_successor(self._config, past, self.host.now)
        successor = Journal.of_successor(journal.arena, past)
        self.begin(core, WatchedHoldings(self, core, SLICE_BYTES, successor))
        self._wake_at = None
        if tensors is not None:
            tensors.forget_nic()
            self.holdings.tensors = tensors
            self.holdings.restore(past)
        world.mark("a host daemon was replaced in the middle of a job")
        if len(self.ranks) > 1:
            world.mark("a host daemon of several ranks was replaced")
        if past.results:
            world.mark("a host daemon was replaced in the middle of an all-reduce")
        if past.left:
            world.mark("a host daemon was replaced whose ranks had left")
        for op_index in sorted(self.ranks[0].running):
            if op_index < past.next_index:
                world.mark("a successor told of a result that its predecessor had taken")
                if tensors is not None:
                    tensors.end(op_index)
                self._done(op_index, past.path)
        for rank in self.ranks:
            for op_index, operation in sorted(rank.running.items()):
                again = replace(operation, filled=rank.process.filled.get(op_index))
                self.feed(events.RankCalled(rank.index, again))
        self._arm()

    def _end_after_daemon(self, code: str, words: str) -> None:
        """The job had ended when the daemon died; processes hear it of the next."""
        self._world.mark("a host daemon died over the end of a job")
        if all(rank.has_left for rank in self.ranks):
            self._forget()
            self.is_finished = True
            self._report_finished()
            return
        error = JOB_ERRORS.get(code, JobError)(words or "its job has ended")
        self._had_started, self._withdraws = True, False
        for rank in self.ranks:
            for op_index in list(rank.running):
                rank.operation_failed(op_index, error.code)
        failures = [self._failure(rank, error) for rank in self.ranks if not rank.is_dead]
        for rank in self.ranks:
            rank.told = str(error)
        self._forget()
        for failure in failures:
            self.rank_failed(failure)

    def die(self) -> None:
        """The host crashed: the processes are gone, and so is all they had."""
        for rank in self.ranks:
            rank.is_dead = rank.is_to_go_again = False
        self._silent = []
        if not self.is_finished:
            for hook in self._world.hooks.died:
                for rank in self.ranks:
                    hook(rank)
            self._forget()
