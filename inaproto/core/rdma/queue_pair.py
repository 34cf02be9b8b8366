"""One queue pair: its address, its two protocol cores, and what the engine keeps beside them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inaproto.core.kernels.messages import connection_key
from inaproto.core.rdma.congestion import FlowCongestion
from inaproto.core.rdma.nic_config import SoftNicConfig
from inaproto.core.rdma.packetiser import GatherList
from inaproto.core.rdma.reliable_connection import MTUS
from inaproto.core.rdma.requester import RcRequester, RequesterConfig
from inaproto.core.rdma.responder import PostReceive, RcResponder, Reply, ResponderConfig
from inaproto.core.rdma.selective_requester import SelectiveRequester
from inaproto.core.rdma.selective_responder import SelectiveResponder
from inaproto.core.rdma.verbs import QpAddress, QpAttributes
from inaproto.errors import ConfigError, LocalMisuse
from inaproto.units import PSN_MASK, Frames, Instant
from inaproto.wire.behind_gap import BEHIND_PACKETS_MAX
from inaproto.wire.cnp import ECN_CAPABLE
from inaproto.wire.outer import short_ip
from inaproto.wire.packet import PacketBuilder
from inaproto.wire.run_builder import CopyRows
from inaproto.wire.run_template import RunTemplate
from inaproto.wire.vector import FlowTemplate


def udp_source_port(qpn: int, remote_qpn: int) -> int:
    """0xc000 | the product of both QP numbers folded to 14 bits, as Linux' RoCE stack derives it."""
    label = qpn * remote_qpn
    label ^= label >> 20
    label ^= label >> 40
    label &= 0xF_FFFF
    return 0xC000 | (label & 0x3FFF) ^ (label >> 14)


class QueueLimits(NamedTuple):
    send_queue_max: int
    receive_queue_max: int
    outstanding_packets_max: int


@dataclass(slots=True)
class Connection:
    remote: QpAddress
    remote_ip: bytes
    """As packets have it inside: an IPv6 address in its short form."""
    attributes: QpAttributes
    builder: PacketBuilder
    requester: RcRequester
    responder: RcResponder
    arriving: Frames
    """What packets that come on it have in common, for compiled kernels."""
    arriving_at: int
    """Where in memory that is."""
    leaving: NDArray[np.uint8]
    """The same of those that go out, unmasked: 54 bytes, for compiled kernels."""
    leaving_at: int
    is_selective: bool
    """Packets behind a gap are kept, and told of."""
    congestion: FlowCongestion | None
    gathers: dict[int, GatherList] = field(default_factory=dict)
    """Bytes of the writes that are not completed, by the requester's serial."""
    replies: list[Reply] = field(default_factory=list)
    """Acknowledgements that the current batch of frames caused."""
    middle: RunTemplate | None = None
    """What the middle of the last message that came looked like; most that comes looks like it."""
    unanswered: int = 0
    """Timers that have passed since the last ACK came."""


@dataclass(slots=True, eq=False)
class QueuePair:
    address: QpAddress
    connection: Connection | None = None
    failed: bool = False
    _held_receives: deque[int] = field(default_factory=deque)

    def hold_receive(self, wr_id: int, receives_max: int) -> None:
        """Keep a receive that was posted before the connection."""
        if len(self._held_receives) >= receives_max:
            raise LocalMisuse(f"receive queue full: {receives_max} receives are not used yet")
        self._held_receives.append(wr_id)

    def take_held_receives(self) -> list[int]:
        taken = list(self._held_receives)
        self._held_receives.clear()
        return taken

    def connect(
        self,
        remote: QpAddress,
        attributes: QpAttributes,
        limits: QueueLimits,
        copy: CopyRows,
        config: SoftNicConfig,
    ) -> None:
        """``copy``: see ``RunBuilder``; ``config``: of its NIC.

        Raises ``LocalMisuse`` if it is connected already or the parameters cannot be.
        """
        if self.connection is not None:
            raise LocalMisuse(f"queue pair {self.address.qpn} is connected already")
        if attributes.mtu not in MTUS:
            raise LocalMisuse(f"MTU {attributes.mtu} is none of {MTUS}")
        if len(remote.mac) != 6 or len(remote.ip) != len(self.address.ip) or not 0 <= remote.qpn <= PSN_MASK:
            raise LocalMisuse(f"{remote} is no address of a queue pair")
        if not 0 <= attributes.traffic_class < 256:
            raise LocalMisuse(f"traffic class {attributes.traffic_class} is no byte")
        if not 0 <= attributes.udp_source_port < 1 << 16:
            raise LocalMisuse(f"UDP source port {attributes.udp_source_port} does not fit 16 bits")
        selective = self.address.selective and remote.selective
        try:
            requester = RequesterConfig(
                initial_psn=self.address.psn,
                mtu=attributes.mtu,
                outstanding_packets_max=min(attributes.outstanding_packets, limits.outstanding_packets_max),
                messages_max=limits.send_queue_max,
                ack_every=attributes.ack_every,
                timeout=attributes.timeout,
                retry_count=attributes.retry_count,
                rnr_retry=attributes.rnr_retry,
                spread=remote.qpn if attributes.spread_timers else 0,
                behind_max=BEHIND_PACKETS_MAX if selective else 0,
                pace_burst_bytes=config.pace.burst_bytes,
                pace_quantum_ns=config.pace.quantum_ns,
            )
            responder = ResponderConfig(
                initial_psn=remote.psn,
                mtu=attributes.mtu,
                receives_max=limits.receive_queue_max,
                behind_max=BEHIND_PACKETS_MAX if selective else 0,
            )
        except ConfigError as error:
            raise LocalMisuse(f"queue pair {self.address.qpn} cannot be connected: {error}") from error
        own, own_ip, remote_ip = self.address, short_ip(self.address.ip), short_ip(remote.ip)
        arriving = connection_key(
            FlowTemplate(
                src_mac=remote.mac,
                dst_mac=own.mac,
                src_ip=remote_ip,
                dst_ip=own_ip,
                udp_source_port=0,
                dest_qp=own.qpn,
            )
        )
        flow = FlowTemplate(
            src_mac=own.mac,
            dst_mac=remote.mac,
            src_ip=own_ip,
            dst_ip=remote_ip,
            udp_source_port=attributes.udp_source_port or udp_source_port(own.qpn, remote.qpn),
            dest_qp=remote.qpn,
            tos=attributes.traffic_class | (ECN_CAPABLE if config.congestion is not None else 0),
        )
        leaving = np.frombuffer(flow.header(0, 0), np.uint8)
        self.connection = Connection(
            remote=remote,
            remote_ip=remote_ip,
            arriving=arriving,
            arriving_at=arriving.ctypes.data,
            leaving=leaving,
            leaving_at=leaving.ctypes.data,
            attributes=attributes,
            builder=PacketBuilder(flow, copy),
            requester=SelectiveRequester(requester) if selective else RcRequester(requester),
            responder=SelectiveResponder(responder) if selective else RcResponder(responder),
            is_selective=selective,
            congestion=None
            if config.congestion is None
            else FlowCongestion(config.congestion, attributes.mtu, config.pace.quantum_ns),
        )
        for wr_id in self.take_held_receives():
            self.connection.responder.step(PostReceive(wr_id), Instant(0))
