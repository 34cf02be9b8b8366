"""A userspace RoCEv2 NIC without I/O: frames and time in, frames and completions out.

The engine owns registered memory and the queue pairs, and moves payload between frames and memory;
what a connection does is decided by ``requester`` and ``responder`` beside it. It is the RDMA
endpoint that NetReduce's transparency (§3.2) is about, so it behaves as a kernel's RoCE stack does
(docs/protocol.md 3.2, 4): wrong ICRC dropped silently, UDP source port folded from the two QP
numbers, an IP identification that grows with every packet sent, retransmissions included.

Invariants:
1. Nothing of a frame is used before its ICRC has been verified, except to find it unwanted.
2. A RoCE packet has an effect only if its MAC and IP destination are this NIC's, its queue pair is
   connected, and its IP source is that queue pair's peer. All others are counted by reason.
3. Every work request gives exactly one completion. The completion queue cannot overflow: a work
   request is refused while as many are open or not yet polled as the queue holds.
4. Output is bounded: frames over ``output_frames_max`` are dropped and counted, as on a wire, and
   go-back-N brings them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, assert_never

from inaproto.core.kernels import active
from inaproto.core.kernels.messages import Arrivals, Departures
from inaproto.core.kernels.rows import rows_by
from inaproto.core.rdma.counters import NicCounters
from inaproto.core.rdma.dcqcn import SetRate
from inaproto.core.rdma.deadlines import Deadlines
from inaproto.core.rdma.edge import Edge
from inaproto.core.rdma.memory import MemoryTable
from inaproto.core.rdma.nic_config import SoftNicConfig as SoftNicConfig  # noqa: PLC0414
from inaproto.core.rdma.output import Output
from inaproto.core.rdma.packetiser import GatherList
from inaproto.core.rdma.path_probes import PathProbes
from inaproto.core.rdma.queue_pair import Connection, QueueLimits, QueuePair
from inaproto.core.rdma.receiving import Payloads, Receiving
from inaproto.core.rdma.reliable_connection import Outcome
from inaproto.core.rdma.requester import (
    AckArrived,
    Closing,
    Complete,
    Failed,
    LinkWasSilent,
    PostWrite,
    RateChanged,
    RequesterAction,
    TimerExpired,
    Transmit,
)
from inaproto.core.rdma.responder import (
    Deliver,
    Place,
    PostReceive,
    ReceiveFlushed,
    Reply,
    ResponderAction,
    ResponderClosing,
    ResponderFailed,
    append_reply,
)
from inaproto.core.rdma.verbs import (
    Completion,
    CompletionKind,
    MemoryRegion,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto.errors import Blame, InvariantBroken, LocalMisuse
from inaproto.units import PSN_MASK, Frames, Instant
from inaproto.wire.cnp import CNP_BYTES, OPCODE_CNP, decode_cnp
from inaproto.wire.outer import is_dressed, short_ip
from inaproto.wire.packet import Packet
from inaproto.wire.pause import pauses_of, silence_asked
from inaproto.wire.vector import PlainRun

UNANSWERED_BEFORE_ARP: Final = 3
"""Timers of a connection that passed one after another, with no ACK in between: few, for a connection that
does not retry for ever must have its answer before it fails."""
_NO_TIME: Final = Instant(0)
"""For steps that do not look at the clock: posted receives, closing."""
_OPCODE: Final = 42
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1
# A member of an enumeration takes longer to look up than a constant.
_SUCCESS: Final = Status.SUCCESS
_DONE: Final = Outcome.SUCCESS
_SEND: Final = CompletionKind.SEND
_RECEIVE_IMM: Final = CompletionKind.RECEIVE_IMM


def _nothing() -> list[Frames]:
    return []


class SoftNicEngine:
    """The NIC's state machine; every call is synchronous, ``now`` is the caller's clock."""

    def __init__(self, config: SoftNicConfig, *, reuses_output: bool = False) -> None:
        """``reuses_output``: frames of ``take_output`` are valid until the next call of anything else."""
        self.config: Final = config
        self._edge = Edge(mac=config.mac, ip=config.ip, vlan=config.vlan, priority=config.priority)
        self.requester_steps = 0
        """Events handed to the requesters of all queue pairs: how often, not how much."""
        self._counters = NicCounters()
        kernels = active()
        self._rows = rows_by(kernels)
        self._arrivals = None if kernels is None else Arrivals(kernels)
        self._memory = MemoryTable(regions_max=config.regions_max, first_key=config.first_key)
        self._qps: dict[int, QueuePair] = {}
        self._next_qpn = config.first_qpn
        self._deadlines = Deadlines()
        self._repliers: dict[int, Connection] = {}  # with replies to flush; a dict keeps their order
        departures = None if kernels is None else Departures(kernels, reuses=reuses_output)
        self._output = Output(self._counters, departures, frames_max=config.output_frames_max)
        self.path: Final = PathProbes(config, self._edge, self._output)
        self._may_send = self._take_dressed if self._edge.changes_all else self._output.take
        self.take_output = self._may_send
        """Frames to send, in order; none while the link is paused."""
        self._silent: tuple[Instant, Instant] | None = None
        """Since when the link is paused, and until when; no timer of a queue pair runs meanwhile."""
        self._completions: list[Completion] = []
        self._work = 0  # requests open or completed but not polled
        self._receiving = Receiving(
            self._qps,
            self._memory,
            self._counters,
            self._rows,
            config.mac,
            short_ip(config.ip),
            plain=self._plain,
            acknowledged=self._acknowledged,
            answered=self._perform_responses,
            marked=self._marked,
        )

    # ---- verbs -----------------------------------------------------------------------------------

    def register_memory(self, buffer: memoryview) -> MemoryRegion:
        return self._memory.register(buffer)

    def deregister_memory(self, region: MemoryRegion) -> None:
        self._memory.deregister(region)

    def create_qp(self, *, psn: int) -> QpAddress:
        if not 0 <= psn <= PSN_MASK:
            raise LocalMisuse(f"first PSN {psn} does not fit 24 bits")
        if len(self._qps) >= self.config.qps_max:
            raise LocalMisuse(f"all {self.config.qps_max} queue pairs are in use")
        while self._next_qpn in self._qps or self._next_qpn < 2:
            self._next_qpn = (self._next_qpn + 1) & PSN_MASK
        config = self.config
        repaired = config.selective and config.repaired
        address = QpAddress(config.mac, config.ip, self._next_qpn, psn, config.selective, repaired)
        self._qps[address.qpn] = QueuePair(address)
        self._next_qpn = (self._next_qpn + 1) & PSN_MASK
        return address

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        if attributes.mtu > self.config.mtu_max:
            raise LocalMisuse(f"MTU {attributes.mtu} is more than this NIC's {self.config.mtu_max}")
        limits = QueueLimits(
            self.config.send_queue_max, self.config.receive_queue_max, self.config.outstanding_packets_max
        )
        self._qp(qpn).connect(remote, attributes, limits, self._rows.copy, self.config)
        self._edge.connect(remote.ip)

    def require_connected(self, qpn: int) -> None:
        """Raises ``LocalMisuse`` if it was never connected."""
        if self._qp(qpn).connection is None:
            raise LocalMisuse(f"queue pair {qpn} is not connected")

    def post_receive(self, qpn: int, wr_id: int) -> None:
        """Receives may be posted before the queue pair is connected."""
        qp = self._qp(qpn)
        self._reserve()
        if qp.failed:
            self._complete(qp, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED)
        elif qp.connection is not None:
            self._receiving.responder_steps += 1
            qp.connection.responder.step(PostReceive(wr_id), _NO_TIME)
        else:
            qp.hold_receive(wr_id, self.config.receive_queue_max)
        self._work += 1

    def post_write_imm(
        self,
        qpn: int,
        wr_id: int,
        segments: Sequence[Segment],
        *,
        remote_va: int,
        rkey: int,
        imm: int,
        now: Instant,
    ) -> None:
        """The bytes are read whenever they are sent, until the completion: leave them alone till then."""
        qp = self._qp(qpn)
        gather = GatherList(*self._memory.sources(segments))
        if not (0 <= remote_va <= _U64_MAX and 0 <= rkey <= _U32_MAX and 0 <= imm <= _U32_MAX):
            raise LocalMisuse(
                f"remote_va {remote_va} must fit 64 bits, rkey {rkey} and immediate {imm} 32 bits each"
            )
        connection = qp.connection
        if connection is None and not qp.failed:
            self.require_connected(qpn)
        self._reserve()
        if qp.failed or connection is None:
            self._complete(qp, CompletionKind.SEND, wr_id, Status.FLUSHED)
        else:
            serial = connection.requester.next_serial
            write = PostWrite(wr_id, gather.nbytes, remote_va, rkey, imm)
            self.requester_steps += 1
            actions = connection.requester.step(write, now)
            connection.gathers[serial] = gather
            self._perform_requests(qp, connection, actions, now)
        self._work += 1

    def destroy_qp(self, qpn: int) -> None:
        """Everything that it still holds is completed as flushed."""
        qp = self._qp(qpn)
        self._fail(qp, requester=True, responder=True)
        del self._qps[qpn]
        self._deadlines.arm(qpn, None)
        self._repliers.pop(qpn, None)
        if qp.connection is not None:
            self._counters.retire(qp.connection)

    @property
    def responder_steps(self) -> int:
        """Events handed to the responders of all queue pairs."""
        return self._receiving.responder_steps

    # ---- the world -------------------------------------------------------------------------------

    @property
    def is_silent(self) -> bool:
        """Whether the link is paused."""
        return self._silent is not None

    @property
    def deadline(self) -> Instant | None:
        return self._deadlines.earliest if self._silent is None else self._silent[1]

    @property
    def rest_ns(self) -> int:
        """For how long what comes may be left alone (``RcRequester.rest_ns``), by every connection that has
        packets on the way; 0: not at all."""
        rest = 0
        if self._silent is not None:
            return 0
        for qpn in self._deadlines.keys:
            connection = self._qps[qpn].connection
            # Marks and notifications are answered at once, which a rest would put off.
            is_asleep = connection is not None and connection.congestion is None
            own = connection.requester.rest_ns if connection is not None and is_asleep else 0
            if not own:
                return 0
            rest = min(rest, own) if rest else own
        return rest

    def handle_timer(self, now: Instant) -> None:
        """Run what is due; too early a call does nothing."""
        if self._silent is not None:
            if now < self._silent[1]:
                return
            self._end_silence(now)
        for qpn in self._deadlines.due(now):
            qp = self._qps[qpn]
            if qp.connection is None:
                raise InvariantBroken(f"queue pair {qpn} has a timer but no connection")
            connection = qp.connection
            if connection.congestion is not None:
                if connection.congestion.owes(now):
                    self._output.notify(connection)
                self._regulate(qp, connection, connection.congestion.woke(now), now)
            before = connection.requester.counters.timeouts
            self.requester_steps += 1
            self._perform_requests(qp, connection, connection.requester.step(TimerExpired(), now), now)
            if connection.requester.counters.timeouts > before:
                self._unanswered(connection)

    def _be_silent(self, silence_ns: int, now: Instant) -> None:
        if silence_ns:
            since = now if self._silent is None else self._silent[0]
            self._silent = (since, Instant(now + silence_ns))
            self.take_output = _nothing
        elif self._silent is not None:
            self._end_silence(now)

    def _end_silence(self, now: Instant) -> None:
        """What waited may leave, and timers go on."""
        assert self._silent is not None
        over = LinkWasSilent(self._silent[0])
        self._silent = None
        self.take_output = self._may_send
        for qp in self._qps.values():
            if qp.connection is not None:
                self.requester_steps += 1
                self._perform_requests(qp, qp.connection, qp.connection.requester.step(over, now), now)

    def _unanswered(self, connection: Connection) -> None:
        """A timer has passed; of many in a row the bridges on the way may be the reason."""
        connection.unanswered += 1
        if connection.unanswered % UNANSWERED_BEFORE_ARP == 0:
            self._counters.arp_questions += 1
            self._output.emit(self._edge.question(connection.remote.ip))

    def handle_frames(self, blocks: Sequence[Frames], now: Instant) -> None:
        """Take in received frames; nothing keeps a reference to them afterwards."""
        if self._edge.changes_all:
            blocks = self._edge.inward(blocks, self._counters)
        arrivals = self._arrivals
        if arrivals is None:
            self._receiving.frames(blocks, now)
        else:
            arrivals.read(blocks)
            while arrivals.block < len(blocks):
                if not self._receiving.next_of_a_message(arrivals, now):
                    self._receiving.frames([arrivals.rest], now)
                    arrivals.skip()
        if self._repliers:
            for connection in self._repliers.values():
                self._output.acknowledge(connection)
            self._repliers.clear()

    @property
    def has_completions(self) -> bool:
        return bool(self._completions)

    def take_completions(self) -> list[Completion]:
        taken, self._completions = self._completions, []
        self._work -= len(taken)
        return taken

    def statistics(self) -> dict[str, int]:
        connections = (qp.connection for qp in self._qps.values() if qp.connection is not None)
        return self._counters.as_dict(connections)

    @property
    def resources(self) -> dict[str, int]:
        """What is in use now: all zero once every queue pair and region has been given back."""
        connections = [qp.connection for qp in self._qps.values() if qp.connection is not None]
        return {
            "queue_pairs": len(self._qps),
            "regions": len(self._memory),
            "work_requests": self._work,
            "output_frames": self._output.queued,
            "payloads": sum(len(c.gathers) for c in connections),
            "messages": sum(c.requester.view().messages for c in connections),
            "unacknowledged": sum(c.requester.view().outstanding for c in connections),
        }

    def count_lost_output(self, frames: int) -> None:
        """The port did not take these frames of ``take_output``."""
        self._counters.output_lost += frames

    # ---- receiving -------------------------------------------------------------------------------

    def _plain(self, run: PlainRun, now: Instant) -> None:
        if not self._edge.changes_all and is_dressed(run.frames):
            self._receiving.frames(self._edge.inward([run.frames], self._counters), now)
            return
        frames = run.frames
        silence_ns = silence_asked(frames, self.config.priority)
        if silence_ns is not None:
            pauses = pauses_of(frames)
            self._counters.pauses += len(pauses)
            self._be_silent(silence_ns, now)
            frames = frames[[row[: len(pauses[0])].tobytes() not in pauses for row in frames]]
            if not len(frames):
                return
        if self.path.heard(frames):
            return
        count = len(frames)
        if frames.shape[1] == CNP_BYTES and frames[0, _OPCODE] == OPCODE_CNP:
            count -= sum(self._notified(row.tobytes(), now) for row in frames)
        self._counters.other_frames += count
        for reply in self._edge.replies(frames):
            self._counters.arp_replies += 1
            self._output.emit(reply)

    def _acknowledged(self, qp: QueuePair, connection: Connection, ack: AckArrived, now: Instant) -> None:
        connection.unanswered = 0
        self.requester_steps += 1
        self._perform_requests(qp, connection, connection.requester.step(ack, now), now)

    # ---- congestion ------------------------------------------------------------------------------

    def _marked(self, qp: QueuePair, connection: Connection, packets: int, now: Instant) -> None:
        self._counters.marks_received += packets
        assert connection.congestion is not None
        if connection.congestion.marked(now):
            self._output.notify(connection)
        self._arm(qp, connection)

    def _notified(self, frame: bytes, now: Instant) -> bool:
        """Whether the frame is a congestion notification; it is dealt with then."""
        cnp = decode_cnp(frame)
        if cnp is None:
            return False
        wanted = self._receiving.wanted(cnp, 1)
        if wanted is not None:
            qp, connection = wanted
            self._counters.packets_received += 1
            self._counters.cnps_received += 1
            if connection.congestion is not None and not qp.failed:
                self._regulate(qp, connection, connection.congestion.notified(now), now)
        return True

    def _regulate(
        self, qp: QueuePair, connection: Connection, changes: Sequence[SetRate], now: Instant
    ) -> None:
        for change in changes:
            self.requester_steps += 1
            actions = connection.requester.step(RateChanged(change.rate_bps), now)
            self._perform_requests(qp, connection, actions, now)
        self._arm(qp, connection)

    def _arm(self, qp: QueuePair, connection: Connection) -> None:
        at = connection.requester.deadline
        if connection.congestion is not None:
            at = connection.congestion.earliest(at)
        self._deadlines.arm(qp.address.qpn, at)

    def _perform_responses(
        self,
        qp: QueuePair,
        connection: Connection,
        actions: list[ResponderAction],
        payloads: Payloads | Packet | None,
    ) -> None:
        for action in actions:
            match action:
                case Place():
                    self._place(action, payloads)
                case Deliver():
                    self._complete(qp, _RECEIVE_IMM, action.wr_id, _SUCCESS, action.imm, action.nbytes)
                case Reply():
                    append_reply(connection.replies, action)
                    self._repliers[qp.address.qpn] = connection
                case ReceiveFlushed(wr_id):
                    self._complete(qp, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED)
                case Blame():
                    self._counters.blames += 1
                case ResponderFailed():
                    self._fail(qp, requester=True)
                case _:
                    assert_never(action)

    def _place(self, place: Place, payloads: Payloads | Packet | None) -> None:
        match payloads:
            case None:
                raise InvariantBroken(f"{place} without a packet")
            case Packet():
                placed = self._memory.write(place.rkey, place.va, payloads.payload())
            case _:
                rows = payloads[place.first_row : place.first_row + place.rows]
                target = self._memory.target(place.rkey, place.va, rows.size)
                placed = target is not None
                if target is not None:
                    target.reshape(rows.shape)[:] = rows
        if not placed:
            raise InvariantBroken(f"{place} although the address is not permitted")

    def _take_dressed(self) -> list[Frames]:
        return self._edge.outward(self._output.take())

    # ---- sending ---------------------------------------------------------------------------------

    def _perform_requests(
        self, qp: QueuePair, connection: Connection, actions: list[RequesterAction], now: Instant
    ) -> None:
        for action in actions:
            match action:
                case Transmit():
                    self._output.transmit(connection, action)
                case Complete():
                    message, outcome = action.message, action.outcome
                    nbytes = 0
                    if message is not None:
                        del connection.gathers[message.serial]
                        nbytes = message.write.nbytes
                    status = _SUCCESS if outcome is _DONE else Status[outcome.name]
                    self._complete(qp, _SEND, action.wr_id, status, 0, nbytes)
                case Blame():
                    self._counters.blames += 1
                case Failed():
                    self._fail(qp, responder=True)
                case _:
                    assert_never(action)
        if connection.congestion is None:
            self._deadlines.arm(qp.address.qpn, connection.requester.deadline)
            return
        packets = sum(action.count for action in actions if isinstance(action, Transmit))
        self._regulate(qp, connection, connection.congestion.sent(packets, now), now)

    # ---- completions -----------------------------------------------------------------------------

    def _qp(self, qpn: int) -> QueuePair:
        qp = self._qps.get(qpn)
        if qp is None:
            raise LocalMisuse(f"there is no queue pair {qpn}")
        return qp

    def _reserve(self) -> None:
        if self._work >= self.config.completions_max:
            raise LocalMisuse(
                f"completion queue full: {self._work} work requests are open or not polled; poll first"
            )

    def _complete(
        self, qp: QueuePair, kind: CompletionKind, wr_id: int, status: Status, imm: int = 0, nbytes: int = 0
    ) -> None:
        self._completions.append(Completion(qp.address.qpn, kind, wr_id, status, imm, nbytes))

    def _fail(self, qp: QueuePair, *, requester: bool = False, responder: bool = False) -> None:
        """The queue pair takes no more work; flush the named halves (a half that failed has done so)."""
        qp.failed = True
        for wr_id in qp.take_held_receives():
            self._complete(qp, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED)
        connection = qp.connection
        if connection is None:
            return
        if requester:
            self._perform_requests(qp, connection, connection.requester.step(Closing(), _NO_TIME), _NO_TIME)
        if responder:
            flushed = connection.responder.step(ResponderClosing(), _NO_TIME)
            self._perform_responses(qp, connection, flushed, None)
