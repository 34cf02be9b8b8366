"""What a NIC sends: frames queued for the port, bounded, under IP ids that count up."""

from __future__ import annotations

from inaproto.core.kernels.messages import PIECES_MAX, Departures
from inaproto.core.rdma.counters import NicCounters
from inaproto.core.rdma.packetiser import build_frames
from inaproto.core.rdma.queue_pair import Connection
from inaproto.core.rdma.requester import Transmit
from inaproto.units import Frames
from inaproto.wire.cnp import build_cnp
from inaproto.wire.roce import Opcode

_NO_REQUEST = (False,)
_ACK = Opcode.RC_ACK


class Output:
    """Frames over ``frames_max`` that nobody took yet are dropped and counted, as on a wire."""

    def __init__(
        self, counters: NicCounters, departures: Departures | None = None, *, frames_max: int
    ) -> None:
        """``departures``: what builds messages, if a compiled kernel does; whoever takes frames is done with
        them when it asks for something else to be sent."""
        self._departures = departures
        self._counters = counters
        self._frames_max = frames_max
        self._blocks: list[Frames] = []
        self._queued = 0
        self._ip_id = 0

    @property
    def queued(self) -> int:
        """Frames that nobody took yet."""
        return self._queued

    def take(self) -> list[Frames]:
        """Frames to send, in order."""
        blocks = self._blocks
        if not blocks:
            return []
        self._blocks, self._queued = [], 0
        if self._departures is not None:
            self._departures.reset()
        return blocks

    def transmit(self, connection: Connection, order: Transmit) -> None:
        """Build the packets of an order and queue them."""
        gather = connection.gathers[order.message.serial]
        departures, places = self._departures, gather.places
        if departures is not None and 0 < len(places) <= 2 * PIECES_MAX:
            message = order.message
            write = message.write
            blocks = departures.build(
                connection.leaving_at,
                places,
                psn=order.psn,
                ip_id=self._ip_id,
                first=order.first_packet,
                count=order.count,
                packets=message.packets,
                mtu=connection.attributes.mtu,
                nbytes=write.nbytes,
                asking=order.ack_packets,
                reth=(write.remote_va, write.rkey),
                imm=write.imm,
            )
        else:
            mtu = connection.attributes.mtu
            blocks = build_frames(connection.builder, order, gather, mtu=mtu, ip_id=self._ip_id)
        if self._queued + order.count <= self._frames_max:
            self._blocks += blocks
            self._queued += order.count
            self._counters.packets_sent += order.count
        else:
            for frames in blocks:
                self.emit(frames)
        self._ip_id = (self._ip_id + order.count) & 0xFFFF

    def acknowledge(self, connection: Connection) -> None:
        """Queue the acknowledge packets that a connection owes."""
        departures = self._departures
        for reply in connection.replies:
            psn, syndrome, msn, behind = reply
            if departures is not None and behind is None:
                frames = departures.acknowledge(
                    connection.leaving_at, psn=psn, ip_id=self._ip_id, syndrome=syndrome, msn=msn
                )
            else:
                frames = connection.builder.build(
                    opcode=_ACK,
                    psn=psn,
                    ack_requests=_NO_REQUEST,
                    ip_id=self._ip_id,
                    payload=b"" if behind is None else behind.encode(),
                    aeth=(syndrome, msn),
                )
            self.emit(frames)
            self._ip_id = (self._ip_id + 1) & 0xFFFF
            self._counters.acks_sent += 1
        connection.replies.clear()

    def notify(self, connection: Connection) -> None:
        """Queue a congestion notification for the sender of a connection's packets."""
        self.emit(build_cnp(connection.leaving.tobytes(), self._ip_id))
        self._ip_id = (self._ip_id + 1) & 0xFFFF
        self._counters.cnps_sent += 1

    def emit(self, frames: Frames) -> None:
        count = len(frames)
        room = self._frames_max - self._queued
        if count > room:
            self._counters.output_lost += count - room
            frames, count = frames[:room], room
        if count:
            self._blocks.append(frames)
            self._queued += count
            self._counters.packets_sent += count
