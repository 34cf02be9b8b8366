"""What a NIC makes of received frames: which queue pair they are for, whether they are intact, where they go.

Part of :mod:`inaproto.core.rdma.nic`, whose invariants 1 and 2 are kept here. There are three ways for the
packets of a message. Each does nothing, and leaves them to the next one, where it does not fit: a compiled
kernel, which takes all that is as expected; vectors, for packets that look like those before; and one packet
by itself. What the responder of a connection says to them is performed by the NIC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, SupportsInt

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.messages import Arrivals
from inaproto.core.kernels.rows import Rows
from inaproto.core.rdma.counters import NicCounters
from inaproto.core.rdma.memory import MemoryTable
from inaproto.core.rdma.queue_pair import Connection, QueuePair
from inaproto.core.rdma.reliable_connection import MESSAGE_BYTES_MAX
from inaproto.core.rdma.requester import AckArrived
from inaproto.core.rdma.responder import (
    MessageInProgress,
    PacketArrived,
    ResponderAction,
    RunArrived,
    StretchBehind,
    StretchPlaced,
)
from inaproto.core.rdma.stretches import consecutive, one_by_one
from inaproto.units import PSN_MASK, Frames, Instant
from inaproto.wire.behind_gap import decode_behind
from inaproto.wire.cnp import ECN_MARK, TOS_AT, Cnp
from inaproto.wire.icrc import ICRC_BYTES
from inaproto.wire.packet import Packet, decode_packet
from inaproto.wire.roce import Opcode
from inaproto.wire.run_template import RunTemplate
from inaproto.wire.vector import BTH_END, PlainRun, RoceRun, decode_runs

_DEST_QP: Final = slice(47, 50)
_CONNECTION: Final = slice(26, 50)
"""Columns from the IP addresses to the destination queue pair."""
_PSN: Final = slice(51, 54)
_FEW: Final = 8
_ACK_REQUEST: Final = 50
"""Byte of a frame that is 0, or 0x80 where the packet asks for an ACK."""
_WHOLE: Final = ((0, None),)
"""A run that is not cut."""
_OPCODE: Final = 42
_ACK: Final = Opcode.RC_ACK
_ACK_BYTES_MAX: Final = 256
"""Acknowledgements are short, whatever they say besides."""
_MIDDLE: Final = Opcode.RC_WRITE_MIDDLE
_WRITES: Final = range(Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY_IMM + 1)
_STARTS: Final = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)
Payloads = NDArray[np.uint8]
"""Payloads of a run: uint8 (n, payload_bytes)."""


class Receiving:
    """``plain`` takes frames that are no packets of RoCE, ``acknowledged`` what a requester is told,
    ``answered`` what a responder says to packets, with their payloads where these are not placed yet, and
    ``marked`` how many packets of a connection have met congestion. ``mac`` and ``ip`` are the NIC's."""

    def __init__(
        self,
        qps: Mapping[int, QueuePair],
        memory: MemoryTable,
        counters: NicCounters,
        rows: Rows,
        mac: bytes,
        ip: bytes,
        *,
        plain: Callable[[PlainRun, Instant], None],
        acknowledged: Callable[[QueuePair, Connection, AckArrived, Instant], None],
        answered: Callable[[QueuePair, Connection, list[ResponderAction], Payloads | Packet | None], None],
        marked: Callable[[QueuePair, Connection, int, Instant], None],
    ) -> None:
        self._qps, self._memory, self._counters, self._rows = qps, memory, counters, rows
        self._mac, self._ip = mac, ip
        self._plain, self._acknowledged, self._answered, self._marked = plain, acknowledged, answered, marked
        self.responder_steps = 0
        """Events handed to the responders of all queue pairs: how often, not how much."""

    def frames(self, blocks: Sequence[Frames], now: Instant) -> None:
        """Blocks of frames of one length each, whatever they are."""
        for frames in blocks:
            n, length = frames.shape
            if n == 1:  # a vector of one row costs as much as one of a hundred
                packet = decode_packet(frames.tobytes())
                if packet is not None:
                    self._packet(packet, now)
                    continue
            elif n and length < _ACK_BYTES_MAX and length >= BTH_END and frames[0, _OPCODE] == _ACK:
                self.frames(one_by_one(frames), now)
                continue
            elif self._more_of_a_message(frames, now):
                continue
            # Where packets of several connections alternate, each would be a vector of one.
            for run in decode_runs(frames, by_connection=True):
                if isinstance(run, PlainRun):
                    self._plain(run, now)
                    continue
                packet = decode_packet(run.frames.tobytes()) if run.psn.size == 1 < n else None
                if packet is None:
                    self._run(run, now)
                else:
                    self._packet(packet, now)

    def next_of_a_message(self, arrivals: Arrivals, now: Instant) -> bool:
        """Do by the compiled kernel what ``frames`` does with the next packets of a message, or an ACK.

        False, and nothing is done, for all others: what a connection does not expect, damaged packets, those
        that may not be placed.
        """
        head = arrivals.head()
        if head is None:
            return False
        dest_qp, opcode, psn, reth = head
        qp = self._qps.get(dest_qp)
        if qp is None or (connection := qp.connection) is None:
            return False
        if opcode == _ACK:
            ack = arrivals.acknowledgement(connection.arriving_at)
            if ack is not None:
                self._counters.packets_received += 1
                self._acknowledged(qp, connection, AckArrived(*ack), now)
            return ack is not None
        if opcode not in _WRITES:
            return False
        awaited = connection.responder.awaits
        if awaited is None or psn != awaited.psn:
            if opcode == _MIDDLE and self._next_behind_a_gap(qp, connection, arrivals, psn, now):
                return True
            return connection.is_selective and not qp.failed and self._alone(connection, arrivals, psn, now)
        message, begun = awaited.message, None
        if opcode in _STARTS:
            va, rkey, nbytes = reth  # of a packet that is used only if it is intact
            if message is not None or not 0 < nbytes <= MESSAGE_BYTES_MAX:
                return False
            message = begun = MessageInProgress(va, rkey, nbytes, nbytes)
        elif message is None:
            return False
        to = self._memory.address_for(message.rkey, message.va, message.remaining)
        if to is None:
            return False
        at = arrivals.block, arrivals.row
        taken = arrivals.take(
            connection.arriving_at,
            psn=psn,
            mtu=connection.attributes.mtu,
            to=to,
            left=message.remaining,
            starts=begun is not None,
            may_end=1 + awaited.has_receive,
        )
        packets, nbytes, asked, ended, imm = taken
        if not packets:
            return False
        self._counters.packets_received += packets
        if connection.congestion is not None:
            self._look_for_marks(qp, connection, arrivals.since(*at), now)
        self.responder_steps += 1
        stretch = StretchPlaced(packets, nbytes, begun, ended, imm, asked)
        self._answered(qp, connection, connection.responder.step(stretch, now), None)
        return True

    def _next_behind_a_gap(
        self, qp: QueuePair, connection: Connection, arrivals: Arrivals, psn: int, now: Instant
    ) -> bool:
        """The same with middle packets of a message, from ``psn`` on, that something is missing before."""
        room = connection.responder.room_behind(psn)
        if room is None:
            return False
        place, most = room
        to = self._memory.address_for(place.rkey, place.va, place.remaining)
        if to is None:
            return False
        mtu = connection.attributes.mtu
        at = arrivals.block, arrivals.row
        packets, *_ = arrivals.take(
            connection.arriving_at,
            psn=psn,
            mtu=mtu,
            to=to,
            left=most * mtu + 1,  # the last one of a message is not among them
            starts=False,
            may_end=0,
        )
        if not packets:
            return False
        self._counters.packets_received += packets
        if connection.congestion is not None:
            self._look_for_marks(qp, connection, arrivals.since(*at), now)
        self.responder_steps += 1
        stretch = StretchBehind(psn, packets)
        self._answered(qp, connection, connection.responder.step(stretch, now), None)
        return True

    def _alone(self, connection: Connection, arrivals: Arrivals, psn: int, now: Instant) -> bool:
        """The same with a packet that no kernel takes, if one may take those behind it in its block, or few
        are left; and its answer is not that of others, too."""
        rest = arrivals.rest
        if len(rest) < 2 or (
            len(rest) > _FEW and connection.responder.room_behind(psn + 1 & PSN_MASK) is None
        ):
            return False
        alike = rest[:, _CONNECTION]
        if (alike != alike[0]).any():  # connections alternate
            return False
        following = (psn + 1 & PSN_MASK).to_bytes(3, "big")
        if connection.responder.expects(psn) and following in map(bytes, rest[:, _PSN]):
            return False  # both may close the gap, and then have one answer
        packet = decode_packet(rest[0].tobytes())
        if packet is None:
            return False
        arrivals.skip_one()
        self._packet(packet, now)
        return True

    def _run(self, run: RoceRun, now: Instant) -> None:
        n = len(run.psn)
        wanted = self.wanted(run, n)
        if wanted is None:
            return
        qp, connection = wanted
        right = run.verify(self._rows.crc)
        if not right.all():
            self._counters.icrc_errors += n - int(right.sum())
            run = run.select(right)
            if not len(run.psn):
                return
        self._counters.packets_received += len(run.psn)
        if run.aeth is not None:
            for row, psn in enumerate(run.psn.tolist()):
                ack = AckArrived(psn, *run.aeth)
                if connection.is_selective and run.payload_bytes:
                    ack = ack._replace(behind=decode_behind(run.payload()[row].tobytes()))
                self._acknowledged(qp, connection, ack, now)
            return
        if connection.congestion is not None:
            self._look_for_marks(qp, connection, [run.frames], now)
        stretches = consecutive(run.psn) if connection.is_selective else _WHOLE
        payloads = run.payload()
        for begin, end in stretches:  # each in one message: one answer of the memory is for all of it
            event = RunArrived(
                opcode=run.opcode,
                psn=run.psn[begin:end],
                ack_request=run.ack_request[begin:end],
                payload_bytes=run.payload_bytes,
                reth=run.reth,
                imm=run.imm,
                permitted=self._permitted(connection, run.reth, run.psn[begin]),
            )
            self.responder_steps += 1
            actions = connection.responder.step(event, now)
            self._answered(qp, connection, actions, payloads[begin:end])
        is_tight = run.header_bytes + run.payload_bytes + ICRC_BYTES == run.frames.shape[1]
        if run.opcode == _MIDDLE and is_tight and run.headers is not None:  # a whole block, and intact
            connection.middle = RunTemplate(run)

    def _more_of_a_message(self, frames: Frames, now: Instant) -> bool:
        """Do what ``_run`` does with intact packets that look like the last ones of their connection.

        False, and nothing is done, for all others.
        """
        if not frames.size:
            return False
        qp = self._qps.get(int.from_bytes(frames[0, _DEST_QP].tobytes(), "big"))
        if qp is None or (connection := qp.connection) is None or connection.middle is None:
            return False
        found = connection.middle.match(frames)
        if found is None:
            return False
        first, share, headers = found
        tail = frames[:, BTH_END:-ICRC_BYTES]
        if (self._rows.crc(tail) ^ share).tobytes() != frames[:, -ICRC_BYTES:].tobytes():
            return False
        n, payload_bytes = tail.shape
        self._counters.packets_received += n
        if connection.congestion is not None:
            self._look_for_marks(qp, connection, [frames], now)
        event = RunArrived(
            opcode=_MIDDLE,
            psn=np.arange(first, first + n),
            ack_request=headers[:, _ACK_REQUEST] != 0,
            payload_bytes=payload_bytes,
            reth=None,
            imm=None,
            permitted=self._permitted(connection, None, first),
        )
        self.responder_steps += 1
        self._answered(qp, connection, connection.responder.step(event, now), tail)
        return True

    def _packet(self, packet: Packet, now: Instant) -> None:
        """What ``_run`` does with a run of one."""
        wanted = self.wanted(packet, 1)
        if wanted is None:
            return
        qp, connection = wanted
        if not packet.intact():
            self._counters.icrc_errors += 1
            return
        self._counters.packets_received += 1
        reth, imm, aeth = packet.extensions()
        if aeth is not None:
            ack = AckArrived(packet.psn, *aeth)
            if connection.is_selective and packet.payload_bytes:
                ack = ack._replace(behind=decode_behind(packet.payload()))
            self._acknowledged(qp, connection, ack, now)
            return
        if connection.congestion is not None and packet.data[TOS_AT] & ECN_MARK == ECN_MARK:
            self._marked(qp, connection, 1, now)
        event = PacketArrived(
            packet.opcode,
            packet.psn,
            packet.ack_request,
            packet.payload_bytes,
            reth,
            imm,
            self._permitted(connection, reth, packet.psn),
        )
        self.responder_steps += 1
        self._answered(qp, connection, connection.responder.step(event, now), packet)

    def wanted(self, run: RoceRun | Packet | Cnp, packets: int) -> tuple[QueuePair, Connection] | None:
        """The queue pair that packets are for; None, and counted, if they are for none."""
        if run.dst_mac != self._mac or run.dst_ip != self._ip:
            self._counters.not_for_us += packets
            return None
        qp = self._qps.get(run.dest_qp)
        if qp is None or (connection := qp.connection) is None:
            self._counters.unknown_qp += packets
            return None
        if run.src_ip != connection.remote_ip:
            self._counters.wrong_source += packets
            return None
        return qp, connection

    def _permitted(self, connection: Connection, reth: tuple[int, int, int] | None, psn: SupportsInt) -> bool:
        """The peer may write where a packet begins, up to its message's end."""
        if reth is not None:
            va, rkey, nbytes = reth
            return self._memory.permits(rkey, va, nbytes)
        place = connection.responder.place_of(psn)
        return place is not None and self._memory.permits(place.rkey, place.va, place.remaining)

    def _look_for_marks(
        self, qp: QueuePair, connection: Connection, blocks: Iterable[Frames], now: Instant
    ) -> None:
        """Data packets of a connection came, and are intact."""
        marked = sum(int((frames[:, TOS_AT] & ECN_MARK == ECN_MARK).sum()) for frames in blocks)
        if marked:
            self._marked(qp, connection, marked, now)
