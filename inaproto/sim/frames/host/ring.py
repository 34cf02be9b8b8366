"""Drives a host in a job (:mod:`inaproto.core.host.job`) in the deterministic world.

The host's protocol is the product's; here are the training processes, the NIC, the session with the switch
and the clock of a simulated host, and what checkers are told. The ranks that a host has of a job share one
core; whenever their job fails, they start anew, with a new one.

A ring of a host has one *life* from its first ring id to its end. Where the world's ``recover_ns`` is 0, that
is one ring; else rings may end, and its operations go on in the next.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inaproto.core.host import events
from inaproto.core.host.config import HostConfig
from inaproto.core.host.engines.host_tree import Fold, PostDown
from inaproto.core.host.engines.hosts import Combine, PostSlot
from inaproto.core.host.engines.in_network import RingEngine
from inaproto.core.host.engines.two_paths import (
    BASE,
    INA,
    Binding,
    OnPath,
    Wait,
)
from inaproto.core.host.holdings import Holdings
from inaproto.core.host.job import HostJob
from inaproto.core.host.operations import (
    Operation,
    OperationFailed,
    PostKept,
    PostMessage,
    PostNeutral,
    TakeResult,
    Woke,
)
from inaproto.core.host.rings import Engine
from inaproto.core.host.view import Phase
from inaproto.errors import JobError
from inaproto.ports import Completion, CompletionKind, QpAttributes, Status
from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.host.facts import RingFacts
from inaproto.sim.frames.host.observing import check_ring, note_action, note_event, note_halt, note_sum
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.tensors import ClockedNic, HostTensors, allocate, tensors_of
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS, US, Instant, OpIndex
from inaproto.wire.control_messages import Broken, Gone
from inaproto.wire.messages.client import Join
from inaproto.wire.messages.ina import InaPark

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost

BACKOFF_NS: Final = 5 * MS
TURN_BYTES: Final = 2048
"""Bytes of the tensors of all ranks that one turn reads where a host adds alone: so few that sums take
turns."""
TURN_NS: Final = 20 * US
_SUCCESS: Final = Status.SUCCESS  # a member of an enumeration takes longer to look up than a constant
_SEND: Final = CompletionKind.SEND


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


class HostRing(RingFacts):
    """The ranks of ``job`` on ``host``; all times that they see are its host's."""

    def __init__(self, host: SimHost, job: JobConfig) -> None:
        self.host = host
        self.job = job
        self.position = job.positions.index(host.number)
        """Position of the host in the ring."""
        self.is_finished = False
        self.ranks = [SimRank(self, index) for index in job.ranks_on(host.number)]
        self.acting = BASE
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
        )
        self._forget()

    def _forget(self) -> None:
        """What has not happened before the first rank joins."""
        self.core: HostJob | None = None
        self.life = 0
        """Its first ring; 0: it has none yet."""
        self._holdings: Holdings | None = None
        self._tensors: HostTensors | None = None
        self._events: deque[events.HostEvent] = deque()
        self._is_feeding = self._is_adding = False
        self._wake_at: int | None = None
        self._asked: dict[OpIndex, Instant] = {}
        """When the binding of an all-reduce was asked for first."""
        self._to_park: InaPark | None = None
        """The ring through the switches is to be parked."""
        self._counted: Engine | None = None
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
            self.host.world.agenda.after(rank.process.think_of_joining(), self._again, rank)

    def _join(self, rank: SimRank) -> None:
        if rank.has_joined or rank.is_dead or not self.is_gathering or not self.host.is_up:
            return
        if self.host.world.is_closed(self.job):  # it had left, and so had all others, when its job failed
            self.finish()
            return
        if not self.host.is_welcome:  # the host daemon keeps the request until the switch knows it
            return
        rank.pid = self._pid_of(rank)
        rank.has_joined = True
        if self.core is None:
            self._begin()
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
        )
        self.feed(events.RankJoined(join, rank.pid))

    def _begin(self) -> None:
        job, host = self.job, self.host
        self.core = HostJob(self._config, self._bind)
        self._holdings = Holdings(
            self.core,
            allocate=allocate,
            first_psn=host.world.first_psn,
            attributes=QpAttributes(
                mtu=job.mtu,
                timeout=job.transport_timeout,
                retry_count=job.retry_count,
                spread_timers=host.world.config.topology is not None,  # one switch: no queue has two senders
            ),
            turn_bytes=TURN_BYTES,
        )
        self._open(self._holdings, self.core.opening)

    def _pid_of(self, rank: SimRank) -> int:
        """Id of the process that joins."""
        return self.host.world.new_pid()

    def _again(self, rank: SimRank) -> None:
        self.host.when_awake(lambda: self._join(rank))

    def _start_anew(self, rank: SimRank) -> None:
        """After a while."""
        wait_ns = BACKOFF_NS
        if len(self.ranks) > 1:
            wait_ns += rank.process.think_of_joining()
        self.host.world.agenda.after(wait_ns, self._again, rank)

    # --- what happens

    def feed(self, event: events.HostEvent) -> None:
        """It has happened: do what follows, and what follows of that."""
        if self.core is None:
            return
        self._events.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        while self._events and self.core is not None:
            self._step(self.core, self._events.popleft())
        self._is_feeding = False
        self._add_soon()

    def _step(self, core: HostJob, event: events.HostEvent) -> None:
        world, holdings = self.host.world, self._holdings
        assert holdings is not None
        world.steps.ring_engine += 1
        if world.recorder is not None:
            world.recorder.ring_step(self, event)
        was_gathering, had_started, was_among_hosts = core.is_gathering, core.has_started, self.sums_itself
        if isinstance(event, events.Answered):
            check_ring(self, event.ring)
        actions = core.step(event, self.host.now)
        if not self.life and core.ring is not None:
            self.life = core.ring.ring_id
            world.ring_connected(self.job, self.life)
        if core.engine is not None and self._tensors is None and not core.has_ended:
            self._tensors = holdings.tensors = tensors_of(self.job, self.ranks, self.host.nic)
        self._boots = self._boots_now if isinstance(event, events.Answered) else self._boots
        note_event(self, event, was_among_hosts=was_among_hosts)
        if core.phase is Phase.RUNNING and isinstance(event, events.Said):
            for rank in self.ranks:
                rank.process.go_on()
        failures: list[Failure] = []
        withdraws = was_gathering and isinstance(event, events.JoinDenied | events.JoiningFailed)
        self.acting = BASE
        holdings.begin()
        for action in actions:
            if isinstance(action, events.RankFailed):
                failures.append(self._failure(action, had_started=had_started, withdraws=withdraws))
            else:
                self._perform(holdings, action)
        if failures and not withdraws:
            if isinstance(event, events.Answered | events.LinkUnusable):
                raise Violated("a ring can be used", str(failures[0].error))
            error = failures[0].error
            if core.engine is not None:
                world.mark(f"a rank was told: {error.code}")
            for rank in self.ranks:
                rank.told = str(error)
        closed = [action.number for action in actions if isinstance(action, events.RankClosed)]
        if core.has_ended:
            self._ended(core)
        for failure in failures:
            self.rank_failed(failure)
        if closed:
            self.finish()
        if self.core is core:
            if self._to_park is not None:
                self.park_if_idle()
            if self._wake_at is None or core.is_binding:
                self._arm()  # else it wakes in time: other deadlines only move away

    def _failure(self, told: events.RankFailed, *, had_started: bool, withdraws: bool) -> Failure:
        rank = self._rank(told.number)
        rank.told = str(told.error)
        handed_on = 0 if self.engine is None else self.engine.operations.submitted
        for op_index in list(rank.running):
            if op_index >= handed_on:  # the engine does not know of it; of others it tells
                self._operation_failed(rank, op_index, told.error.code)
        done = rank.operations_done
        return Failure(rank, told.error, self.ring_id, self.life, done, rank.has_left, had_started, withdraws)

    def _rank(self, number: int) -> SimRank:
        return next(rank for rank in self.ranks if rank.index == number)

    def rank_failed(self, failure: Failure) -> None:
        """Its process hears that the job has failed, or does not take it: it starts anew."""
        rank = failure.rank
        if failure.was_withdrawn:
            rank.begin()
        if not rank.is_dead:
            self._start_anew(rank)

    def _ended(self, core: HostJob) -> None:
        """Nothing is left of this life."""
        if core.last_words:
            self._silent.append(core)
        if core.engine is not None:
            view = core.engine.view()
            started = view.operations_submitted - view.operations_queued + (view.running is not None)
            self.host.world.steps.message_window += started
        self._forget()

    # --- what is ordered

    def _perform(self, holdings: Holdings, action: events.HostAction) -> None:
        match action:
            case PostMessage() | PostSlot() | PostDown():
                self._post(holdings, action)
            case TakeResult(slot, op_index, offset, nbytes):
                holdings.perform(action)
                self._taken(slot, op_index, offset, nbytes)
            case events.PostReceive():
                holdings.perform(action)
            case OnPath(path):
                self.acting = path
                holdings.perform(action)
            case Combine() | Fold():
                holdings.perform(action)
                note_sum(self, action)
            case events.AllReduceDone(op_index, path):
                if path == "local" and len(self.ranks) == 1:  # its input is the result
                    self._taken(-1, op_index, 0, len(self.ranks[0].tensor(op_index)))
                self._done(op_index)
            case events.Tell(message):
                if isinstance(message, Broken):
                    self.host.world.mark("a ring broke")
                self.host.tell(message)
            case events.OpenLinks():
                self._open(holdings, action)
            case events.ConnectLink() | events.ConnectTree():
                holdings.on_links(action)
                self.feed(events.LinkReady(BASE if isinstance(action, events.ConnectTree) else action.path))
            case events.CloseLinks() | events.CloseIna() | events.KeepResults():
                self._close(holdings, action)
            case events.SumLocally():
                holdings.sum(action)
            case _:
                self._perform_rarely(action)

    def _perform_rarely(self, action: events.HostAction) -> None:
        world = self.host.world
        match action:
            case events.RanksBegun():
                self._begun()
            case events.RankClosed(number):
                for hook in world.hooks.closed:
                    hook(self._rank(number))
            case events.RankEnded(number):
                if self.is_gathering:
                    self._rank(number).begin()
            case events.ForgetNic() | events.Ended():
                if self._tensors is not None:
                    self._tensors.deregister()
            case OperationFailed(op_index, code):
                for rank in self.ranks:
                    self._operation_failed(rank, op_index, code)
            case events.ParkTurns(message):
                self._to_park = message
            case events.EndTurns():
                self._to_park = None
            case _:
                note_action(self, action)

    def _post(self, holdings: Holdings, action: PostMessage | PostSlot | PostDown) -> None:
        world = self.host.world
        if isinstance(action, PostMessage) and self.acting == INA and world.mover.is_parked(self.job.name):
            raise Violated("a parked ring sends nothing", f"{self} sends message {action.msg_id}")
        if not isinstance(action, PostDown):
            for hook in world.hooks.posted:
                hook(self, action.msg_id)
        holdings.perform(action)
        is_tensor = isinstance(action, PostMessage) and not isinstance(action, PostKept | PostNeutral)
        if is_tensor and len(self.ranks) > 1:
            world.mark("a host posted the sum of several ranks")
        self.host.nic_touched()

    def _taken(self, slot: int, op_index: int, offset: int, nbytes: int) -> None:
        for taken in self.host.world.hooks.taken:
            for rank in self.ranks:
                taken(rank, slot, op_index, offset, nbytes)

    # --- links

    def _open(self, holdings: Holdings, order: events.OpenLinks) -> None:
        host = self.host
        if order.registers and self._tensors is not None:
            self._tensors.register(host.nic)
        opened = holdings.open(order, ClockedNic(host.nic, lambda: host.now))
        for link in holdings.links.values():
            for qpn in link.qpns:
                host.serve(qpn, self)
        self.feed(opened)

    def _close(
        self, holdings: Holdings, order: events.CloseLinks | events.CloseIna | events.KeepResults
    ) -> None:
        """The NIC of a link is that of its opening: the host may have a new one."""
        world, engine = self.host.world, self.engine
        if isinstance(order, events.KeepResults):
            note_halt(self, order)
        if isinstance(engine, RingEngine) and self._counted is not engine:
            self._counted = engine  # it told its window of every result and completed send
            view = engine.view()
            completed = view.messages_sent - view.unacknowledged
            world.steps.message_window += view.messages_received + completed
        before = self.links
        holdings.on_links(order)
        for link in before:
            if not link.is_open:
                for qpn in link.qpns:
                    self.host.forget(qpn)

    def completed(self, completion: Completion) -> None:
        found = None if self._holdings is None else self._holdings.link_of(completion.qpn)
        if found is None:
            return
        path, link = found
        edge = link.edge_of(completion.qpn)
        if completion.status is not _SUCCESS:
            self.feed(events.ConnectionFailed(path, edge, completion.qpn == link.qpns[0], completion))
        elif completion.kind is _SEND:
            self.feed(events.MessageAcknowledged(path, edge, completion.wr_id))
        else:
            _, _, wr_id, _, imm, nbytes = completion
            self.acting = path
            for hook in self.host.world.hooks.received:
                hook(self, imm)
            self.feed(events.MessageArrived(path, edge, wr_id, imm, nbytes, link.header(edge, imm, nbytes)))

    # --- all-reduces

    def submit(self, rank: SimRank, operation: Operation) -> None:
        """A process calls an all-reduce."""
        self.feed(events.RankCalled(rank.index, operation))

    def _begun(self) -> None:
        """All hosts are ready, for the first time in this life."""

    def _done(self, op_index: int) -> None:
        """All its ranks have the result."""
        world = self.host.world
        if op_index == self._outliving:
            world.mark("an all-reduce outlived a reboot of a switch")
        for rank in self.ranks:
            world.note(self.host.number, "done", op_index)
            for done in world.hooks.done:
                done(rank, op_index)
            del rank.running[op_index]
            rank.operations_done += 1
        if self._tensors is not None:
            self._tensors.end(op_index)
        for rank in self.ranks:
            rank.process.go_on()

    def _operation_failed(self, rank: SimRank, op_index: int, code: str) -> None:
        if rank.running.pop(op_index, None) is not None:
            self.host.world.note(self.host.number, "failed", op_index)
            for failed in self.host.world.hooks.failed:
                failed(rank, op_index, code)

    def _add_soon(self) -> None:
        holdings = self._holdings
        if holdings is not None and holdings.sums and self.phase is Phase.RUNNING and not self._is_adding:
            self._is_adding = True
            self.host.world.agenda.after(TURN_NS, self._add_due, self.core)

    def _add_due(self, core: HostJob) -> None:
        self.host.when_awake(lambda: self._add_slice(core))

    def _add_slice(self, core: HostJob) -> None:
        """Do a part of what only ranks of this host are to add up."""
        holdings = self._holdings
        if core is not self.core or holdings is None:
            return
        self._is_adding = False
        if self.phase is not Phase.RUNNING or not holdings.sums:
            return
        begin = holdings.sums[0].offset
        total = holdings.add_slice()
        if total is not None:
            if total.offset > begin:
                self._taken(-1, total.operation.index, begin, total.offset - begin)
            if total.is_done:
                self.host.world.mark("an all-reduce on one host")
                self.feed(events.SummedLocally(total.operation.index))
        self._add_soon()

    # --- turns in the switches

    def _bind(self, op_index: OpIndex, now: Instant) -> Binding | Wait:
        """What the job's configuration says, once it is known."""
        job, asked = self.job, self._asked.setdefault(op_index, now)
        if op_index % 3 == 2 and now < asked + job.binding_ns:
            self.host.world.mark("an all-reduce waited for its binding")
            return Wait(Instant(asked + job.binding_ns))
        if self.host.world.mover.is_between_turns(job.name, self.life, op_index):
            return Binding(BASE)
        is_ina = (op_index in job.ina) ^ ((self.host.number, op_index) in job.strays)
        return Binding(INA if is_ina else BASE)

    def park_if_idle(self) -> None:
        """Say so when the ring through the switches may leave them, if it is to."""
        message = self._to_park
        if message is not None and self.host.world.mover.may_park(self):
            self._to_park = None
            self.feed(events.TurnsParked(message))

    # --- the clock

    def _arm(self) -> None:
        deadline = self.deadline
        if deadline is not None and (self._wake_at is None or deadline < self._wake_at):
            self._wake_at = deadline
            self.host.world.agenda.at(self.host.world_time(deadline), self._wake, self.core)

    def _wake(self, core: HostJob) -> None:
        if core is self.core:
            self.host.when_awake(lambda: self.woke(core))

    def woke(self, core: HostJob | None) -> None:
        """A deadline may have passed."""
        if core is None or core is not self.core:
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
        return sum(switch.boots for switch in self.host.world.switches)

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
        self.host.world.ring_finished(self)

    def leave(self, rank: SimRank) -> None:
        """A process has said that it is finished."""
        rank.has_left = True
        for hook in self.host.world.hooks.left:
            hook(rank, rank.process.called)
        self.feed(events.RankLeft(rank.index))

    def process_died(self, rank: SimRank, until_ns: int) -> bool:
        """One process is gone, and started again after ``until_ns``; whether anybody depended on it."""
        world = self.host.world
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
        self._again(rank)

    def survivor_gone(self, word: Gone) -> None:
        """A process is lost whose job had failed."""
        if self._silent:  # no switch has heard yet that it has
            self._silent[-1].step(events.RankGone(word.rank, word.reason), self.host.now)
        else:
            self.host.tell(word)

    def die(self) -> None:
        """The host crashed: the processes are gone, and so is all they had."""
        for rank in self.ranks:
            rank.is_dead = False
        self._silent = []
        if not self.is_finished:
            for hook in self.host.world.hooks.died:
                for rank in self.ranks:
                    hook(rank)
            self._forget()
