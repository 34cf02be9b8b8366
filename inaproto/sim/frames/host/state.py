"""What a simulated host has of the ring of a job: its ranks, link and engine, and how they are made.

:mod:`inaproto.sim.frames.host.operations` makes use of them.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

from inaproto.core.host.engines.chain import ChainEngine
from inaproto.core.host.engines.host_tree import OverlayEngine
from inaproto.core.host.engines.in_network import RingConfig, RingEngine
from inaproto.core.host.engines.ring import RingAllReduceEngine
from inaproto.core.host.engines.two_paths import BASE, INA, Binding, BoundPath, TwoPaths, Wait
from inaproto.core.host.gathering import Gathering
from inaproto.core.host.link import RingLink, TreeLink
from inaproto.core.host.local_reduction import SlicedReduction
from inaproto.core.host.operation_queue import FROM_THE_START
from inaproto.core.host.performer import KeptResults, RingOrders
from inaproto.core.host.recovery import Recovery
from inaproto.core.plan.accumulators import Accumulators, RotatedAccumulators, accumulators_on
from inaproto.core.plan.host_tree import OverlayTree, overlay_on
from inaproto.ports import Segment
from inaproto.sim.frames.draw.swarm import JobConfig
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.ring_link import ClockedNic, HostTensors, allocate
from inaproto.units import Epoch, Instant, OpIndex, Rank, RingId
from inaproto.wire.control_messages import Ring, RingPath
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.ina_messages import InaPark

if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.host.operations import RingOperations


Engine = RingEngine | ChainEngine | RingAllReduceEngine | OverlayEngine | TwoPaths


class Phase(Enum):
    IDLE = "idle"
    JOINING = "joining"
    CONNECTING = "connecting"
    RUNNING = "running"
    LEFT = "left"
    HALTED = "halted"
    """Its ring has ended; the next is not there yet."""
    AWAY = "away"
    """Its ring has ended, for its host has lost the switch."""
    FINISHED = "finished"


WITHOUT_RING: Final = (Phase.IDLE, Phase.FINISHED)
IN_RING: Final = (Phase.CONNECTING, Phase.RUNNING, Phase.LEFT)


class RingState:
    """Of the ranks of ``job`` on ``host``; all times that they see are its host's."""

    def __init__(self, host: SimHost, job: JobConfig) -> None:
        self.host = host
        self.job = job
        self.phase = Phase.IDLE
        self.position = job.positions.index(host.number)
        """Of the host in the ring."""
        self.ranks: list[SimRank] = []
        """In their order."""
        self.ring_id = 0
        self.life = 0
        """Its first ring; 0: it has none yet."""
        self.engine: Engine | None = None
        self._slots = 2 * job.window_messages
        self._slot_bytes = job.message_packets * job.mtu
        self._recover_ns = host.world.config.recover_ns
        self._link: RingLink | TreeLink | None = None
        self._ina: RingLink | None = None
        """Of the ring through the switches that stands beside that of ``_link``, or is to."""
        self.acting: BoundPath = BASE
        """On which of two rings it does or meets what checkers are told of just now."""
        self._orders: RingOrders[Segment] | None = None
        self._ina_orders: RingOrders[Segment] | None = None
        self._tensors: HostTensors | None = None
        self._accumulators: Accumulators | None = None
        """Of the present ring, if its hosts sum themselves."""
        self._wake_at: int | None = None
        self._begin()

    @property
    def owner(self) -> RingOperations:
        """Of its queue pairs' completions."""
        raise NotImplementedError

    def _begin(self) -> None:
        """What has not happened before the first ring."""
        self.engine = None
        self.ring_id = self.ina_ring_id = self.life = 0
        self._asked: dict[int, Instant] = {}
        """When the binding of an all-reduce was asked for first."""
        for rank in self.ranks:
            rank.begin()
        self._wake_at = None
        self.has_started = self._is_broken = False
        self._answers: dict[int, Ring] = {}
        """By rank, of a ring that does not have the answers to all ranks here yet."""
        self._gathering = Gathering((), stall_ns=0, timeout_ns=0)
        self._sums: deque[SlicedReduction] = deque()
        """Of a job that has no other host, in order."""
        self._is_adding = False
        self._handed_on = 0
        """Operations that the engine was given."""
        self._kept = KeptResults()
        self._began_at = 0
        """Progress when the last ring ended: only later results are in the slots of the present link."""
        self._resumes = self._came_back = False
        """The present ring is not the first, and has yet to run; and the host had lost the switch."""
        self._away_until: Instant | None = None
        self._boot_id = ""
        """Of the control plane that made the present ring."""
        self._to_park: InaPark | None = None
        """The ring through the switches is to be parked."""
        self._boots = 0
        """Of the switches, when the present ring was made."""
        self._outliving = -1
        """The all-reduce that ran when a switch went down."""

    def __str__(self) -> str:
        return f"{self.label} of {self.job.name} on {self.host.name}"

    @property
    def label(self) -> str:
        """Its ranks."""
        numbers = ", ".join(str(rank.index) for rank in self.ranks)
        return f"rank {numbers}" if len(self.ranks) == 1 else f"ranks {numbers}"

    def origin_of(self, op_index: int) -> tuple[str, int]:
        """The job as the world's configuration has it, and which of its all-reduces this is."""
        return self.job.name, op_index

    @property
    def sums_itself(self) -> bool:
        """Whether its present ring is summed by the hosts."""
        return isinstance(self.engine, ChainEngine | RingAllReduceEngine | OverlayEngine)

    @property
    def adds_itself(self) -> bool:
        """Whether the hosts sum what it acts on."""
        return self.sums_itself or (isinstance(self.engine, TwoPaths) and self.acting == BASE)

    @property
    def acts_on(self) -> int:
        """The ring that it acts on."""
        return self.ring_id if self.acting == BASE else self.ina_ring_id

    @property
    def is_rotated(self) -> bool:
        """And each message begins at the next host."""
        return isinstance(self.engine, RingAllReduceEngine)

    @property
    def waits_here(self) -> bool:
        """Some of its ranks have called an all-reduce that others have not, and nothing else runs."""
        return bool(self._gathering.waiting) and self.engine is not None and not self.is_busy

    @property
    def is_busy(self) -> bool:
        """An all-reduce that all its ranks have called has not ended."""
        return bool(self._sums) or (self.engine is not None and self.engine.operations_queued > 0)

    @property
    def deadline(self) -> Instant | None:
        """When it is to look at the clock."""
        engine = None if self.engine is None else self.engine.deadline
        found = engine, self._gathering.deadline, self._away_until
        return min((at for at in found if at is not None), default=None)

    @property
    def _lowest(self) -> int:
        """Speaks for all ranks of this host."""
        return self.ranks[0].index

    @property
    def _have_all_left(self) -> bool:
        return all(rank.has_left for rank in self.ranks)

    @property
    def _takes_calls(self) -> bool:
        return self.has_started and not self._have_all_left

    @property
    def _progress(self) -> int:
        return 0 if self.engine is None else self.engine.progress

    @property
    def links(self) -> list[RingLink | TreeLink]:
        """That it holds: the base ring's first."""
        return [link for link in (self._link, self._ina) if link is not None and link.is_open]

    @property
    def holds_queue_pairs(self) -> bool:
        return bool(self.links)

    # --- making and closing
    def _open(self, path: RingPath, plan: str, children: int = 0) -> RingLink | TreeLink:
        """Queue pairs and slots for the next ring; of the one that stands beside another, too.

        ``children``: in a tree of hosts, from how many this one gathers.
        """
        slot_bytes = self._slot_bytes
        self._ina = None
        if path == "overlay":
            link = self._link = self._open_tree(plan, children)
            return link
        if path != "switch":
            accumulators = accumulators_on(path, plan, len(self.job.positions))
            slot_bytes = accumulators.slot_bytes(slot_bytes - INA_HEADER_BYTES)
        ring_link = self._link = self._open_link(slot_bytes)
        self._ina = self._open_link(self._slot_bytes) if path == "shared" else None
        return ring_link

    def _open_tree(self, plan: str, children: int) -> TreeLink:
        host = self.host
        tree = overlay_on(plan, len(self.job.positions), 1)
        link = TreeLink(
            ClockedNic(host.nic, lambda: host.now),
            window=self.job.window_messages,
            slot_bytes=tree.slot_bytes(self._slot_bytes - INA_HEADER_BYTES),
            children=children,
            allocate=allocate,
            first_psn=host.world.first_psn,
        )
        for qpn in link.qpns:
            host.serve(qpn, self.owner)
        return link

    def _open_link(self, slot_bytes: int) -> RingLink:
        host = self.host
        link = RingLink(
            ClockedNic(host.nic, lambda: host.now),
            slots=self._slots,
            slot_bytes=slot_bytes,
            allocate=allocate,
            first_psn=host.world.first_psn,
        )
        for qpn in link.qpns:
            host.serve(qpn, self.owner)
        return link

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

    def _ring_config(self, ring: Ring) -> RingConfig:
        job = self.job
        return RingConfig(
            ring_id=RingId(ring.ring_id),
            epoch=Epoch(ring.epoch),
            key=ring.ring_key,
            rank=Rank(self.position),
            ring_size=len(job.positions),
            mtu=job.mtu,
            message_packets=job.message_packets,
            window_messages=job.window_messages,
            stall_ns=job.stall_ns,
            timeout_ns=job.timeout_ns,
            outlived=self._recover_ns > 0,
        )

    def _make_engine(self, ring: Ring) -> Engine:
        job, config = self.job, self._ring_config(ring)
        operations = None if self.engine is None else self.engine.halt()
        self._resumes = operations is not None
        recovery = FROM_THE_START if operations is None else Recovery(ring.progress, ring.donor)
        if not self._resumes:
            ranks = [rank.index for rank in self.ranks]
            self._gathering = Gathering(ranks, stall_ns=job.stall_ns, timeout_ns=job.timeout_ns)
        self._accumulators = None
        if ring.path == "switch":
            return RingEngine(config, operations, recovery)
        if ring.path == "overlay":
            return OverlayEngine(config, self._tree_of(ring), operations, recovery)
        self._accumulators = accumulators = accumulators_on(ring.path, ring.plan, len(job.positions))
        if ring.path == "shared":
            return TwoPaths(config, accumulators, self._bind, operations=operations, recovery=recovery)
        if isinstance(accumulators, RotatedAccumulators):
            return RingAllReduceEngine(config, accumulators, operations, recovery)
        return ChainEngine(config, accumulators, operations, recovery)

    def _tree_of(self, ring: Ring) -> OverlayTree:
        return overlay_on(ring.plan, len(self.job.positions), ring.in_degree)

    def _close(self) -> None:
        self._close_link()
        if self._tensors is not None and self.phase is not Phase.AWAY:
            self._tensors.deregister()
        self._tensors = self._orders = self._ina_orders = None

    def _close_link(self) -> None:
        for link in self.links:  # its NIC is that of its opening: the host may have a new one
            self._give_back(link)

    def _give_back(self, link: RingLink | TreeLink) -> None:
        link.close()
        for qpn in link.qpns:
            self.host.forget(qpn)
