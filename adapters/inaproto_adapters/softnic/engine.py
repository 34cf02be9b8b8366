"""A userspace RoCEv2 NIC without I/O: frames and time in, frames and completions out.

The engine owns registered memory and the queue pairs, and moves payload between frames and memory;
what a connection does is decided by ``inaproto.core.rc_requester`` and ``rc_responder``. It is the RDMA
endpoint that NetReduce's transparency (§3.2) is about, so it behaves as a kernel's RoCE stack does
(``specs/softroce-bench.md`` §4): wrong ICRC dropped silently, UDP source port folded from the two QP
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
from dataclasses import dataclass
from typing import Final, assert_never

import numpy as np

from inaproto.core.rc_requester import (
    AckArrived,
    Closing,
    Complete,
    Failed,
    PostWrite,
    RequesterAction,
    RequesterEvent,
    TimerExpired,
    Transmit,
)
from inaproto.core.rc_responder import (
    Deliver,
    Place,
    PostReceive,
    ReceiveFlushed,
    Reply,
    ResponderAction,
    ResponderClosing,
    ResponderFailed,
    RunArrived,
    append_reply,
)
from inaproto.errors import Blame, ConfigError, InvariantBroken, LocalMisuse
from inaproto.ports import (
    Completion,
    CompletionKind,
    MemoryRegion,
    QpAddress,
    QpAttributes,
    Segment,
    Status,
)
from inaproto.units import PSN_MASK, Frames, Instant
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import PlainRun, RoceRun, decode_runs
from inaproto_adapters.softnic.arp import arp_replies
from inaproto_adapters.softnic.counters import NicCounters
from inaproto_adapters.softnic.deadlines import Deadlines
from inaproto_adapters.softnic.memory import MemoryTable
from inaproto_adapters.softnic.packetiser import GatherList, build_frames
from inaproto_adapters.softnic.queue_pair import Connection, QueueLimits, QueuePair

_NO_PAYLOAD: Final = np.empty((1, 0), np.uint8)
_NO_REQUEST: Final = np.zeros(1, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftNicConfig:
    mac: bytes
    ip: bytes
    mtu_max: int = 4096
    qps_max: int = 1024
    regions_max: int = 4096
    send_queue_max: int = 1024
    """Writes of one queue pair that are not completed."""
    receive_queue_max: int = 1024
    completions_max: int = 65_536
    outstanding_packets_max: int = 512
    """Widest window of a queue pair in PSNs; losses narrow it."""
    output_frames_max: int = 16_384
    first_qpn: int = 17
    first_key: int = 1

    def __post_init__(self) -> None:
        if len(self.mac) != 6 or self.mac[0] & 1:
            raise ConfigError(f"mac must be 6 bytes of a unicast address, not {self.mac.hex(':')!r}")
        if len(self.ip) != 4:
            raise ConfigError(f"ip must be the 4 bytes of an IPv4 address, not {self.ip!r}")
        for name in ("qps_max", "regions_max", "send_queue_max", "receive_queue_max", "completions_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 1 <= self.outstanding_packets_max <= PSN_MASK >> 1:
            raise ConfigError(f"outstanding_packets_max must be 1 to {PSN_MASK >> 1}")
        if not 2 <= self.first_qpn <= PSN_MASK:
            raise ConfigError("first_qpn must be 2 to 0xffffff (0 and 1 are reserved)")


class SoftNicEngine:
    """The NIC's state machine; every call is synchronous, ``now`` is the caller's clock."""

    def __init__(self, config: SoftNicConfig) -> None:
        self.config: Final = config
        self._counters = NicCounters()
        self._memory = MemoryTable(regions_max=config.regions_max, first_key=config.first_key)
        self._qps: dict[int, QueuePair] = {}
        self._next_qpn = config.first_qpn
        self._deadlines = Deadlines()
        self._repliers: dict[int, QueuePair] = {}  # with replies to flush; a dict keeps their order
        self._output: list[Frames] = []
        self._output_frames = 0
        self._ip_id = 0
        self._completions: list[Completion] = []
        self._work = 0  # requests open or completed but not polled

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
        address = QpAddress(mac=self.config.mac, ip=self.config.ip, qpn=self._next_qpn, psn=psn)
        self._qps[address.qpn] = QueuePair(address)
        self._next_qpn = (self._next_qpn + 1) & PSN_MASK
        return address

    def connect_qp(self, qpn: int, remote: QpAddress, attributes: QpAttributes) -> None:
        if attributes.mtu > self.config.mtu_max:
            raise LocalMisuse(f"MTU {attributes.mtu} is more than this NIC's {self.config.mtu_max}")
        limits = QueueLimits(
            self.config.send_queue_max, self.config.receive_queue_max, self.config.outstanding_packets_max
        )
        self._qp(qpn).connect(remote, attributes, limits)

    def post_receive(self, qpn: int, wr_id: int) -> None:
        """Receives may be posted before the queue pair is connected."""
        qp = self._qp(qpn)
        self._reserve()
        if qp.failed:
            self._complete(qp, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED)
        elif qp.connection is not None:
            qp.connection.responder.step(PostReceive(wr_id), Instant(0))
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
        gather = GatherList([self._memory.source(segment) for segment in segments])
        for name, value, bits in (("remote_va", remote_va, 64), ("rkey", rkey, 32), ("imm", imm, 32)):
            if not 0 <= value < 1 << bits:
                raise LocalMisuse(f"{name} {value} does not fit {bits} bits")
        if not qp.failed and qp.connection is None:
            raise LocalMisuse(f"queue pair {qpn} is not connected")
        self._reserve()
        if qp.failed or qp.connection is None:
            self._complete(qp, CompletionKind.SEND, wr_id, Status.FLUSHED)
        else:
            connection = qp.connection
            serial = connection.requester.next_serial
            write = PostWrite(wr_id, gather.nbytes, remote_va, rkey, imm)
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

    # ---- the world -------------------------------------------------------------------------------

    @property
    def deadline(self) -> Instant | None:
        return self._deadlines.earliest

    def handle_timer(self, now: Instant) -> None:
        """Run what is due; too early a call does nothing."""
        for qpn in self._deadlines.due(now):
            qp = self._qps[qpn]
            if qp.connection is None:
                raise InvariantBroken(f"queue pair {qpn} has a timer but no connection")
            actions = qp.connection.requester.step(TimerExpired(), now)
            self._perform_requests(qp, qp.connection, actions, now)

    def handle_frames(self, blocks: Sequence[Frames], now: Instant) -> None:
        """Take in received frames; nothing keeps a reference to them afterwards."""
        for frames in blocks:
            for run in decode_runs(frames):
                if isinstance(run, RoceRun):
                    self._roce(run, now)
                else:
                    self._plain(run)
        for qp in self._repliers.values():
            self._send_replies(qp)
        self._repliers.clear()

    def take_output(self) -> list[Frames]:
        """Frames to send, in order."""
        output, self._output, self._output_frames = self._output, [], 0
        return output

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

    def count_lost_output(self, frames: int) -> None:
        """The port did not take these frames of ``take_output``."""
        self._counters.output_lost += frames

    # ---- receiving -------------------------------------------------------------------------------

    def _plain(self, run: PlainRun) -> None:
        self._counters.other_frames += len(run.frames)
        for reply in arp_replies(run.frames, mac=self.config.mac, ip=self.config.ip):
            self._counters.arp_replies += 1
            self._emit(reply)

    def _roce(self, run: RoceRun, now: Instant) -> None:
        n = len(run.psn)
        if run.dst_mac != self.config.mac or run.dst_ip != self.config.ip:
            self._counters.not_for_us += n
            return
        qp = self._qps.get(run.dest_qp)
        if qp is None or qp.connection is None:
            self._counters.unknown_qp += n
            return
        if run.src_ip != qp.connection.remote.ip:
            self._counters.wrong_source += n
            return
        right = run.verify()
        if not right.all():
            self._counters.icrc_errors += n - int(right.sum())
            run = run.select(right)
            if not len(run.psn):
                return
        self._counters.packets_received += len(run.psn)
        if run.opcode == Opcode.RC_ACK:
            self._acks(qp, qp.connection, run, now)
        else:
            self._requests(qp, qp.connection, run, now)

    def _acks(self, qp: QueuePair, connection: Connection, run: RoceRun, now: Instant) -> None:
        if run.aeth is None:
            raise InvariantBroken("an ACK was decoded without its AETH")
        for psn in run.psn.tolist():
            event: RequesterEvent = AckArrived(psn, *run.aeth)
            self._perform_requests(qp, connection, connection.requester.step(event, now), now)

    def _requests(self, qp: QueuePair, connection: Connection, run: RoceRun, now: Instant) -> None:
        responder = connection.responder
        if run.reth is not None:
            va, rkey, nbytes = run.reth
            permitted = self._memory.permits(rkey, va, nbytes)
        else:
            place = responder.place_at
            permitted = place is not None and self._memory.permits(place.rkey, place.va, place.remaining)
        event = RunArrived(
            opcode=run.opcode,
            psn=run.psn,
            ack_request=run.ack_request,
            payload_bytes=run.payload_bytes,
            reth=run.reth,
            imm=run.imm,
            permitted=permitted,
        )
        self._perform_responses(qp, connection, responder.step(event, now), run)

    def _perform_responses(
        self, qp: QueuePair, connection: Connection, actions: list[ResponderAction], run: RoceRun | None
    ) -> None:
        for action in actions:
            match action:
                case Place():
                    self._place(action, run)
                case Deliver(wr_id, imm, nbytes):
                    self._complete(qp, CompletionKind.RECEIVE_IMM, wr_id, Status.SUCCESS, imm, nbytes)
                case Reply():
                    append_reply(connection.replies, action)
                    self._repliers[qp.address.qpn] = qp
                case ReceiveFlushed(wr_id):
                    self._complete(qp, CompletionKind.RECEIVE_IMM, wr_id, Status.FLUSHED)
                case Blame():
                    self._counters.blames += 1
                case ResponderFailed():
                    self._fail(qp, requester=True)
                case _:
                    assert_never(action)

    def _place(self, place: Place, run: RoceRun | None) -> None:
        if run is None:
            raise InvariantBroken(f"{place} without a packet")
        target = self._memory.target(place.rkey, place.va, place.rows * run.payload_bytes)
        if target is None:
            raise InvariantBroken(f"{place} although the address is not permitted")
        rows = run.payload()[place.first_row : place.first_row + place.rows]
        target.reshape(place.rows, run.payload_bytes)[:] = rows

    # ---- sending ---------------------------------------------------------------------------------

    def _perform_requests(
        self, qp: QueuePair, connection: Connection, actions: list[RequesterAction], now: Instant
    ) -> None:
        for action in actions:
            match action:
                case Transmit():
                    self._transmit(connection, action)
                case Complete(wr_id, outcome, message):
                    nbytes = 0
                    if message is not None:
                        del connection.gathers[message.serial]
                        nbytes = message.write.nbytes
                    self._complete(qp, CompletionKind.SEND, wr_id, Status[outcome.name], nbytes=nbytes)
                case Blame():
                    self._counters.blames += 1
                case Failed():
                    self._fail(qp, responder=True)
                case _:
                    assert_never(action)
        self._deadlines.arm(qp.address.qpn, connection.requester.deadline)

    def _transmit(self, connection: Connection, order: Transmit) -> None:
        gather = connection.gathers[order.message.serial]
        mtu = connection.attributes.mtu
        for frames in build_frames(connection.template, order, gather, mtu=mtu, ip_id=self._ip_id):
            self._emit(frames)
        self._ip_id = (self._ip_id + order.count) & 0xFFFF

    def _send_replies(self, qp: QueuePair) -> None:
        connection = qp.connection
        if connection is None:
            raise InvariantBroken("a queue pair that was never connected replies")
        for reply in connection.replies:
            self._emit(
                connection.template.build(
                    opcode=Opcode.RC_ACK,
                    psns=np.array([reply.psn]),
                    ack_request=_NO_REQUEST,
                    ip_id=self._ip_id,
                    payload=_NO_PAYLOAD,
                    aeth=(reply.syndrome, reply.msn),
                )
            )
            self._ip_id = (self._ip_id + 1) & 0xFFFF
            self._counters.acks_sent += 1
        connection.replies.clear()

    def _emit(self, frames: Frames) -> None:
        room = self.config.output_frames_max - self._output_frames
        if len(frames) > room:
            self._counters.output_lost += len(frames) - room
            frames = frames[:room]
        if len(frames):
            self._output.append(frames)
            self._output_frames += len(frames)
            self._counters.packets_sent += len(frames)

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
        now = Instant(0)  # closing does not look at the clock
        if requester:
            self._perform_requests(qp, connection, connection.requester.step(Closing(), now), now)
        if responder:
            flushed = connection.responder.step(ResponderClosing(), now)
            self._perform_responses(qp, connection, flushed, None)
