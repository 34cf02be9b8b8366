"""The ring of a job on one simulated host, from its first rank's joining to its last one's leaving.

The protocol is the product's (:class:`~inaproto.core.host.engines.in_network.RingEngine` or
:class:`~inaproto.core.host.engines.chain.ChainEngine` and the like over the host's NIC); this shell performs
what the engine orders, as ``inaproto.daemon.host.ring`` does on real hosts. One difference: before a host
daemon gives an overdue operation up, it asks the switch (``inaproto.core.host.operation_watch``). The ranks
that a host has of a job share one ring; whenever their job fails, they start anew.

A ring of a host has one *life* from its first ring id to its end. Where the world's ``recover_ns`` is 0, that
is one ring; else rings may end, and its operations go on in the next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inaproto.core.host.engines.in_network import Fail, RingEngine
from inaproto.core.host.engines.two_paths import INA, TwoPaths
from inaproto.core.host.link import TreeLink
from inaproto.core.host.performer import RingOrders
from inaproto.errors import JobError, RankLost
from inaproto.ports import QpAttributes
from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.host.joining import RingJoining
from inaproto.sim.frames.host.operations import orders_on
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.ring_link import HostTensors, RankTensors
from inaproto.sim.frames.host.state import IN_RING, WITHOUT_RING, Engine, Phase
from inaproto.units import Instant, RingId
from inaproto.wire.control_messages import (
    Broken,
    Closed,
    Error,
    Failed,
    Gone,
    Halt,
    Halted,
    JobStatus,
    Left,
    Message,
    Ready,
    Ring,
    Start,
)
from inaproto.wire.ina_messages import InaPark, InaParked, InaStands

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost


class HostRing(RingJoining):
    """Of the ranks of ``job`` on ``host``, from a start to an end, and anew after that."""

    def __init__(self, host: SimHost, job: JobConfig) -> None:
        super().__init__(host, job)
        self._last_words: list[Gone] = []
        """Why its ranks ended while the host had no switch, which is to be told."""
        self._ring: Ring | None = None
        """As the switch told it of the present one."""
        self._heard_of = 0
        """The last ring of the job that the host was told of, since it is welcome."""
        self.ranks = [SimRank(self, index) for index in job.ranks_on(host.number)]

    # --- what the switch says

    def heard(self, message: Message) -> None:
        if isinstance(message, Ring):
            self._heard_of = message.ring_id
        match message:
            case Ring() if self.phase in (Phase.JOINING, Phase.HALTED):
                self._answered(message)
            case Start() if self.phase is Phase.CONNECTING and message.ring_id == self.ring_id:
                self._attach_ina(message.ina_ring_id, parked=message.ina_parked)
                self._run()
                self.host.world.mover.look()
            case InaPark() if self._ina_of(message.ring_id) is not None:
                self._to_park = message
                self.park_if_idle()
            case InaStands():
                engine = self._ina_of(message.ring_id)
                if engine is not None:
                    engine.stand()
                    self.host.world.mover.look()
            case Halt(ring_id=ended) if self.is_gathering and self._heard_of == ended != self.ring_id:
                pass  # of ranks that were here before these
            case Halt():
                self._halt(message)
            case Failed() if (self.phase in IN_RING or self.phase is Phase.HALTED) or self.has_started:
                if message.ring_id in (0, self.ring_id) or self._came_back:
                    if not self.has_started and self.phase is Phase.HALTED:  # one may have joined anew since
                        self._tell_gone(message.message)
                    self._fail(message.code, message.message)
            case Failed():
                self._fail_joining(message)
            case Closed() if self._have_all_left and (message.ring_id == self.ring_id or self._came_back):
                for hook in self.host.world.hooks.closed:
                    for rank in self.ranks:
                        hook(rank)
                self.finish()
            case Error() if self.phase is Phase.JOINING:
                self._refused(message)
            case JobStatus() if message.mismatch:
                self.host.world.mark("a mismatch was explained")
            case _:
                pass  # of an earlier ring, or for information

    def _connect(self, ring: Ring) -> None:
        job, link, world = self.job, self._link, self.host.world
        assert link is not None
        was_among_hosts = self.sums_itself
        self.ring_id = ring.ring_id
        self.life = self.life or ring.ring_id
        self.phase = Phase.CONNECTING
        self._is_broken = False
        self._boots = self._boots_now
        self._boot_id = self.host.boot_id
        progress = self._progress
        self.engine = self._make_engine(ring)
        world.ring_connected(job, self.life)
        if self._resumes and progress < ring.progress:
            world.mark("a rank caught up with another")
        if was_among_hosts and not self.sums_itself:
            world.mark("a job returned to the switch")
        if self._tensors is None:
            self._tensors = self._make_tensors()
        self._orders = orders_on(link, self._kept, self._tensors)
        self._ring, self.ina_ring_id = ring, ring.ina_ring_id
        attributes = QpAttributes(
            mtu=job.mtu,
            timeout=job.transport_timeout,
            retry_count=job.retry_count,
            spread_timers=self.host.world.config.topology is not None,  # one switch: no queue has two senders
        )
        if isinstance(link, TreeLink):
            is_root = self._tree_of(ring).root == ring.position
            link.connect(None if is_root else ring.successor, ring.below, attributes)
        elif len(ring.peers) > 1:
            link.connect(ring.successor, ring.predecessor, attributes)
        if self._ina is not None and ring.ina_successor is not None and ring.ina_predecessor is not None:
            self._ina_orders = RingOrders(self._ina, self._kept, self._tensors)
            self._ina.connect(ring.ina_successor, ring.ina_predecessor, attributes)
        self.host.tell(Ready(job=job.name, rank=self._lowest))

    def _ina_of(self, ina_ring_id: int) -> TwoPaths | None:
        """Its engine, if that is its present ring through the switches."""
        engine = self.engine
        if not isinstance(engine, TwoPaths) or engine.ina_config is None or self._is_broken:
            return None
        return engine if self.phase in IN_RING and engine.ina_config.ring_id == ina_ring_id else None

    def park_if_idle(self) -> None:
        message = self._to_park
        engine = None if message is None else self._ina_of(message.ring_id)
        if message is None or engine is None or not self.host.world.mover.may_park(self):
            return
        self._to_park = None
        engine.park()
        self.host.tell(
            InaParked(
                job=self.job.name,
                rank=self._lowest,
                ring_id=message.ring_id,
                epoch=message.epoch,
                messages=engine.ina_messages,
            )
        )

    def _attach_ina(self, ina_ring_id: int, *, parked: bool = False) -> None:
        """The ring beside this one stands, or the switches have refused it: then its link is of no use."""
        if self._ina is None or self._is_broken:
            return
        if isinstance(self.engine, TwoPaths) and self._ring is not None and ina_ring_id:
            self.engine.attach(replace(self._ring_config(self._ring), ring_id=RingId(ina_ring_id)))
            if parked:
                self.engine.park()
                self.host.world.mark("a job began with its second ring parked")
            self.host.world.mark("a job had two rings")
        else:
            self._give_back(self._ina)
            self._ina = None
            self.host.world.mark("a job began without the ring in the switches")

    def _make_tensors(self) -> HostTensors:
        job, nic, made = self.job, self.host.nic, []
        for rank in self.ranks:
            elements = map(rank.process.elements, range(len(job.elements)))
            rank.tensors = RankTensors([count * job.dtype.itemsize for count in elements], nic)
            made.append(rank.tensors)
        return HostTensors(made)

    def _run(self) -> None:
        """All hosts are ready."""
        self.phase = Phase.LEFT if self._have_all_left else Phase.RUNNING
        self.has_started = True
        engine, world = self.engine, self.host.world
        if self._resumes and engine is not None:
            self._resumes = False
            world.mark("a job went on in another ring")
            if self._came_back:
                world.mark("a rank came back from away")
                if len(self.ranks) > 1:
                    world.mark("a host came back with several ranks")
            self._perform(engine.resume(self.host.now))
            self._arm()
            self.host.nic_touched()
        self._came_back = False
        self._add_soon()
        for rank in self.ranks:
            rank.process.go_on()

    # --- rings that end while the job goes on

    def _halt(self, message: Halt) -> None:
        """The ring has ended: say how far this host is, with queue pairs for the next."""
        if self.phase is Phase.JOINING:  # a path chosen meanwhile, or asked for, may need larger slots
            self._close_link()
            if not self.has_started:
                self.ring_id = message.ring_id
        elif message.ring_id == self.ring_id and self.phase in IN_RING:
            self._stop_ring()
        else:
            return
        link = self._open(message.path, message.plan, message.children)
        self.phase = Phase.HALTED
        told = Halted(
            job=self.job.name,
            rank=self._lowest,
            ring_id=message.ring_id,
            progress=self._progress,
            out=link.out,
            into=link.into,
            ina_out=None if self._ina is None else self._ina.out,
            ina_into=None if self._ina is None else self._ina.into,
            below=link.below,
        )
        self.host.tell(told)

    def _stop_ring(self) -> None:
        """Take nothing more of the ring, keep what others may lack, give the link back."""
        engine, link = self.engine, self._link
        self._answers.clear()
        self._to_park = None
        if engine is not None and link is not None:
            self.host.world.mark("a rank was halted")
            if self._resumes or self.phase is Phase.HALTED:
                self.host.world.mark("a rank was halted before it could go on")
            self._count_window_steps(engine)
            operations = engine.halt()
            beside = {} if self._ina is None else {self.ina_ring_id: self._ina}
            self._kept.keep(operations.kept, link, self._began_at, beside)
            if any(kept.ring_id in beside and kept.serial >= self._began_at for kept in operations.kept):
                self.host.world.mark("a halted rank kept results of the ring in the switches")
            if isinstance(engine, TwoPaths) and engine.carrier == INA and operations.running is not None:
                self.host.world.mark("a rank was halted in an all-reduce on the ring in the switches")
            self._began_at = operations.progress
        self._close_link()

    def _break(self, reason: str) -> None:
        """The ring cannot go on here. The switch ends it for all."""
        if self._is_broken or self.engine is None:
            return
        self._is_broken = True
        self.engine.halt()
        self.host.world.mark("a ring broke")
        told = Broken(
            job=self.job.name,
            rank=self._lowest,
            ring_id=self.ring_id,
            progress=self._progress,
            reason=reason[:1000],
        )
        self.host.tell(told)

    @property
    def _boots_now(self) -> int:
        return sum(switch.boots for switch in self.host.world.switches)

    def lose_fabric(self, error: JobError) -> None:
        """The host has lost switch or NIC: wait for the next, if it comes in time."""
        if self.phase in WITHOUT_RING or self.phase is Phase.AWAY:
            return
        if not self.has_started:  # announced to the next as if for the first time
            self._give_up()
            return
        assert self.engine is not None
        running = self.engine.view().running
        if running is not None and self._boots != self._boots_now:
            self._outliving = running.index
        self._stop_ring()
        if self._tensors is not None:
            self._tensors.deregister()
        self._away_until = Instant(self.host.now + self._recover_ns)
        self.phase = Phase.AWAY
        self._wake_at = None
        self._arm()

    def welcomed(self) -> None:
        """The host has a switch (again)."""
        self._heard_of = 0
        words, self._last_words = self._last_words, []
        for word in words:
            self.host.tell(word)
        if self.phase is not Phase.AWAY:
            self.start()
            return
        self._away_until = None
        self._came_back = True
        if self._tensors is not None:
            self._tensors.register(self.host.nic)
        self._open("switch", "")
        self.phase = Phase.JOINING
        for rank in self.ranks:
            self._announce(rank)

    # --- ends

    def _count_window_steps(self, engine: Engine) -> None:
        """The engine goes: it told its window of every result and completed send."""
        if isinstance(engine, RingEngine):
            view = engine.view()
            completed = view.messages_sent - view.unacknowledged
            self.host.world.steps.message_window += view.messages_received + completed

    def _forget_engine(self) -> None:
        """With the operations of this life, of each of which a window was told."""
        if self.engine is not None:
            view = self.engine.view()
            started = view.operations_submitted - view.operations_queued + (view.running is not None)
            self.host.world.steps.message_window += started
            if self._link is not None and self.ring_id and self.phase in IN_RING:
                self._count_window_steps(self.engine)
        self._begin()

    def finish(self) -> None:
        """All ranks of the job have left in good order."""
        if self.phase is Phase.JOINING:
            self._tell_gone("its job has ended")
        self._close()
        self._forget_engine()
        self.phase = Phase.FINISHED
        self._report_finished()

    def _report_finished(self) -> None:
        self.host.world.ring_finished(self)

    def leave(self, rank: SimRank) -> None:
        """A process has said that it is finished."""
        rank.has_left = True
        if self.phase is Phase.RUNNING and self._have_all_left:
            self.phase = Phase.LEFT
        for hook in self.host.world.hooks.left:
            hook(rank, rank.process.called)
        self.host.tell(Left(job=self.job.name, rank=rank.index, operations=rank.process.called))

    def lose(self, error: JobError) -> None:
        """This host cannot go on, and found so itself."""
        if self.phase in WITHOUT_RING:
            return
        self._tell_gone(str(error))
        self._fail(error.code, str(error))

    def _tell_gone(self, reason: str, *, first: SimRank | None = None) -> None:
        """The first that it hears ends the job at the switch, with its words."""
        gone = [rank for rank in self.ranks if rank.has_joined and not rank.has_left] or self.ranks[:1]
        if first is not None:
            gone = [first, *(rank for rank in gone if rank is not first)]
        words = [Gone(job=self.job.name, rank=rank.index, reason=reason[:1000]) for rank in gone]
        if self.phase is Phase.AWAY:
            self._last_words = words
        for word in words:
            self.host.tell(word)

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
        error = RankLost(f"{rank.place} of job {self.job.name!r} is lost: its process died")
        if self.is_gathering:
            world.mark("a process died while others of its job were missing")
            self.host.tell(Gone(job=self.job.name, rank=rank.index, reason="its process died"))
            self._withdraw(rank)
            return True
        if len(self.ranks) > 1:
            world.mark("a rank died beside others")
        self._tell_gone(str(error), first=rank)
        self._fail(error.code, str(error))
        return True

    def _start_again(self, rank: SimRank) -> None:
        rank.is_dead = False
        self._again(rank)

    def die(self) -> None:
        """The host crashed: the processes are gone, and so is all they had."""
        for rank in self.ranks:
            rank.is_dead = False
        self._last_words = []
        if self.phase is not Phase.FINISHED:
            for hook in self.host.world.hooks.died:
                for rank in self.ranks:
                    hook(rank)
            self._forget_engine()
            self._link = self._ina = self._tensors = self._orders = self._ina_orders = None
            self.phase = Phase.IDLE

    def _fail(self, code: str, message: str) -> None:
        if self.engine is not None:
            self.host.world.mark(f"a rank was told: {code}")
            self._step(Fail(code, message))
        for rank in self.ranks:
            rank.told = message
            for op_index in list(rank.running):
                if op_index >= self._handed_on:  # the engine does not know of it, others it has to tell of
                    self._operation_failed(rank, op_index, code)
        self._give_up()
        for rank in self.ranks:
            if not rank.is_dead:
                self._start_anew(rank)

    def _give_up(self) -> None:
        self._close()
        self._forget_engine()
        self.phase = Phase.IDLE
