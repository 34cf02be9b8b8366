"""One rank of a simulated job: what a host daemon does for it, and the training process behind it.

The protocol is the product's (:class:`~inaproto.core.ring_engine.RingEngine` or
:class:`~inaproto.core.chain_engine.ChainEngine` over the host's NIC); this shell performs what the engine
orders, as ``inaproto.daemon.host_ring`` does on real hosts. One difference: before a host daemon gives an
overdue operation up, it asks the switch (``inaproto.daemon.operation_watch``). Whenever its job fails, the
rank starts anew, with a new process (:mod:`inaproto.sim.process`).

A rank has one *life* from its first ring to its end. Where the world's ``recover_ns`` is 0, that is one
ring; else rings may end, and its operations go on in the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inaproto.core.chain_engine import ChainEngine
from inaproto.core.ring_engine import (
    Fail,
    RingEngine,
)
from inaproto.core.ring_orders import RingOrders
from inaproto.errors import (
    JobError,
)
from inaproto.ports import QpAttributes
from inaproto.sim.rank_link import RankTensors
from inaproto.sim.rank_ring import IN_RING, WITHOUT_RING, Phase, RankRing
from inaproto.units import MS, Instant
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
    Member,
    Message,
    Ready,
    Ring,
    Start,
)

if TYPE_CHECKING:
    pass

BACKOFF_NS: Final = 5 * MS


class SimRank(RankRing):
    """Rank ``index`` of ``job``, from a start to an end, and anew after that."""

    # --- joining

    def start(self) -> None:
        """A new process (or one that starts anew) asks to join."""
        if self.phase is not Phase.IDLE or not self.host.is_up:
            return
        if self.host.world.is_closed(self.job):  # it had left, and so had all others, when its job failed
            self.finish()
            return
        if not self.host.is_welcome:  # the host daemon keeps the request until the switch knows it
            return
        self.pid = self.host.world.new_pid()
        self._announce()

    def _announce(self) -> None:
        link = self._open("switch", "")
        self.phase = Phase.JOINING
        job = self.job
        self.host.tell(
            Member(
                id=self.pid,
                job=job.name,
                rank=self.index,
                size=len(job.hosts),
                key="simulated",
                pid=self.pid,
                host=self.host.name,
                mtu=job.mtu,
                window_messages=job.window_messages,
                message_packets=job.message_packets,
                out=link.out,
                into=link.into,
                progress=self._progress if self._has_started else None,
                left_after=self.process.called if self._has_left else None,
                boot_id=self._boot_id,
            )
        )

    def _again(self, _: Any = None) -> None:
        self.host.when_awake(self.start)

    # --- what the switch says

    def heard(self, message: Message) -> None:
        match message:
            case Ring() if self.phase in (Phase.JOINING, Phase.HALTED) and message.id == self.pid:
                self._connect(message)
            case Start() if self.phase is Phase.CONNECTING and message.ring_id == self.ring_id:
                self._run()
            case Halt():
                self._halt(message)
            case Failed() if (self.phase in IN_RING or self.phase is Phase.HALTED) or self._has_started:
                if message.ring_id in (0, self.ring_id) or self._came_back:
                    self._fail(message.code, message.message)
            case Closed() if self._has_left and (message.ring_id == self.ring_id or self._came_back):
                for hook in self.host.world.hooks.closed:
                    hook(self)
                self.finish()
            case Error() if self.phase is Phase.JOINING and message.of == self.pid:
                self.host.world.mark("a join was refused")
                if self._has_started:
                    self._fail(message.code, message.message)
                    return
                self._close()
                self.phase = Phase.IDLE
                self.host.world.agenda.after(BACKOFF_NS, self._again)
            case JobStatus() if message.mismatch:
                self.host.world.mark("a mismatch was explained")
            case _:
                pass  # of an earlier ring, or for information

    def _connect(self, ring: Ring) -> None:
        job, link, world = self.job, self._link, self.host.world
        assert link is not None
        was_chain = self.is_chain
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
        if was_chain and not self.is_chain:
            world.mark("a job returned to the switch")
        if self._tensors is None:
            sizes = [
                self.process.elements(op_index) * job.dtype.itemsize for op_index in range(len(job.elements))
            ]
            self._tensors = RankTensors(sizes, link.nic)
        self._orders = RingOrders(link, self._kept, self._tensors)
        attributes = QpAttributes(
            mtu=job.mtu,
            timeout=job.transport_timeout,
            retry_count=job.retry_count,
            spread_timers=self.host.world.config.topology is not None,  # one switch: no queue has two senders
        )
        link.connect(ring.successor, ring.predecessor, attributes)
        self.host.tell(Ready(job=job.name, rank=self.index))

    def _run(self) -> None:
        """All ranks are ready."""
        self.phase = Phase.LEFT if self._has_left else Phase.RUNNING
        self._has_started = True
        engine, world = self.engine, self.host.world
        if self._resumes and engine is not None:
            self._resumes = False
            world.mark("a job went on in another ring")
            if self._came_back:
                world.mark("a rank came back from away")
            self._perform(engine.resume(self.host.now))
            self._arm()
            self.host.nic_touched()
        self._came_back = False
        self.process.go_on()

    # --- rings that end while the job goes on

    def _halt(self, message: Halt) -> None:
        """The ring has ended: say how far this rank is, with queue pairs for the next."""
        if self.phase is Phase.JOINING and self._has_started:
            self._close_link()
        elif message.ring_id == self.ring_id and self.phase in IN_RING:
            self._stop_ring()
        else:
            return
        link = self._open(message.path, message.plan)
        self.phase = Phase.HALTED
        told = Halted(
            job=self.job.name,
            rank=self.index,
            ring_id=message.ring_id,
            progress=self._progress,
            out=link.out,
            into=link.into,
        )
        self.host.tell(told)

    def _stop_ring(self) -> None:
        """Take nothing more of the ring, keep what others may lack, give the link back."""
        engine, link = self.engine, self._link
        if engine is not None and link is not None:
            self.host.world.mark("a rank was halted")
            if self._resumes or self.phase is Phase.HALTED:
                self.host.world.mark("a rank was halted before it could go on")
            self._count_window_steps(engine)
            operations = engine.halt()
            self._kept.keep(operations.kept, link, self._began_at)
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
            rank=self.index,
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
        if not self._has_started:  # announced to the next as if for the first time
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
        if self.phase is not Phase.AWAY:
            self.start()
            return
        self._away_until = None
        self._came_back = True
        if self._tensors is not None:
            self._tensors.register(self.host.nic)
        self._announce()

    # --- ends

    def _count_window_steps(self, engine: RingEngine | ChainEngine) -> None:
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
            self.host.tell(Gone(job=self.job.name, rank=self.index, reason="its job has ended"))
        self._close()
        self._forget_engine()
        self.phase = Phase.FINISHED
        self.host.world.rank_finished(self)

    def leave(self) -> None:
        """The process has said that it is finished."""
        self._has_left = True
        if self.phase is Phase.RUNNING:
            self.phase = Phase.LEFT
        for hook in self.host.world.hooks.left:
            hook(self, self.process.called)
        self.host.tell(Left(job=self.job.name, rank=self.index, operations=self.process.called))

    def lose(self, error: JobError) -> None:
        """This rank cannot go on, and found so itself."""
        if self.phase in WITHOUT_RING:
            return
        self.host.tell(Gone(job=self.job.name, rank=self.index, reason=str(error)[:1000]))
        self._fail(error.code, str(error))

    def die(self) -> None:
        """The host crashed: the process is gone, and so is all it had."""
        if self.phase is not Phase.FINISHED:
            for hook in self.host.world.hooks.died:
                hook(self)
            self._forget_engine()
            self._link = self._tensors = self._orders = None
            self.phase = Phase.IDLE

    def _fail(self, code: str, message: str) -> None:
        if self.engine is not None:
            self.host.world.mark(f"a rank was told: {code}")
            self._step(Fail(code, message))
        self._give_up()
        self.host.world.agenda.after(BACKOFF_NS, self._again)

    def _give_up(self) -> None:
        self._close()
        self._forget_engine()
        self.phase = Phase.IDLE
