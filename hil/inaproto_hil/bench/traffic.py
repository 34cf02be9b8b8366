"""Ready-made INA traffic: the packets that a ring of workers sends through its accelerator.

Used by the accelerator benchmark and by tests that need whole messages as frames.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.units import PSN_MASK, Frames
from inaproto.wire.ina_header import FLAG_LAST, INA_HEADER_BYTES, Dtype, InaHeader, Op
from inaproto.wire.vector import FlowTemplate


def host_ip(rank: int) -> bytes:
    """10.0.0.(rank + 1)"""
    return bytes([10, 0, rank >> 8, (rank & 0xFF) + 1])


def host_mac(rank: int) -> bytes:
    """A locally administered address."""
    return bytes([2, 0, 0, 0, rank >> 8, (rank & 0xFF) + 1])


def receiving_qp(rank: int, ring_id: int = 1) -> int:
    """Other queue pairs for each ring."""
    return 0x1000 * (ring_id - 1) + 0x100 + rank


def _flow(rank: int, successor: int, ring_id: int) -> FlowSpec:
    addresses = host_mac(rank), host_mac(successor)
    qp = receiving_qp(successor, ring_id)
    return FlowSpec(rank, host_ip(rank), host_ip(successor), qp, *addresses)


def ring_spec(
    workers: int,
    *,
    window: int = 2,
    packets: int = 170,
    mtu: int = 1024,
    ring_id: int = 1,
    key: int = 0x1234_5678_9ABC_DEF0,
) -> RingSpec:
    """A ring in which rank r sits on host r."""
    flows = tuple(_flow(r, (r + 1) % workers, ring_id) for r in range(workers))
    return RingSpec(
        ring_id=ring_id,
        epoch=1,
        key=key,
        window_messages=window,
        message_packets=packets,
        mtu=mtu,
        flows=flows,
    )


@dataclass(slots=True)
class Sender:
    """Cuts the messages of one rank into packets as its NIC would."""

    spec: RingSpec
    rank: int
    psn: int

    def __post_init__(self) -> None:
        successor = (self.rank + 1) % self.spec.size
        self._template = FlowTemplate(
            src_mac=host_mac(self.rank),
            dst_mac=host_mac(successor),
            src_ip=host_ip(self.rank),
            dst_ip=host_ip(successor),
            udp_source_port=0xC000 | self.rank,
            dest_qp=self.spec.flows[self.rank].dst_qp,
        )
        self._ip_id = 1 + self.rank

    _template: FlowTemplate = None  # type: ignore[assignment]
    _ip_id: int = 0

    def header(self, serial: int, packets: int, dtype: Dtype, op: Op, op_index: int, last: bool) -> InaHeader:
        return InaHeader(
            dtype=dtype,
            op=op,
            flags=FLAG_LAST if last else 0,
            ring_id=self.spec.ring_id,
            epoch=self.spec.epoch,
            op_index=op_index,
            msg_id=serial & 0xFFFF_FFFF,
            rank=self.rank,
            ring_size=self.spec.size,
            msg_len=packets,
            signature=0x55AA,
            key=self.spec.key,
        )

    def message(
        self,
        serial: int,
        data: NDArray[np.uint8],
        *,
        dtype: Dtype = Dtype.F32,
        op: Op = Op.SUM,
        op_index: int = 0,
        last: bool = True,
    ) -> list[Frames]:
        """Packets of one message carrying ``data`` (uint8, 1-D), in PSN order: [first], [middles], [last].

        The PSN moves on past the message.
        """
        mtu = self.spec.mtu
        total = INA_HEADER_BYTES + len(data)
        packets = -(-total // mtu)
        ina = self.header(serial, packets, dtype, op, op_index, last)
        body = np.concatenate([np.frombuffer(ina.encode(), np.uint8), data])
        psn0 = self.psn
        self.psn = (self.psn + packets) & PSN_MASK
        reth = (0x1000, 0x77, total)
        if packets == 1:
            return [self._build(0x0B, psn0, body[None], reth=reth, imm=serial & 0xFFFF_FFFF, ack=True)]
        blocks = [self._build(0x06, psn0, body[None, :mtu], reth=reth)]
        if packets > 2:
            middle = body[mtu : (packets - 1) * mtu].reshape(packets - 2, mtu)
            blocks.append(self._build(0x07, psn0 + 1, middle))
        tail = body[(packets - 1) * mtu :]
        blocks.append(self._build(0x09, psn0 + packets - 1, tail[None], imm=serial & 0xFFFF_FFFF, ack=True))
        return blocks

    def _build(
        self,
        opcode: int,
        psn: int,
        payload: NDArray[np.uint8],
        *,
        reth: tuple[int, int, int] | None = None,
        imm: int | None = None,
        ack: bool = False,
    ) -> Frames:
        n = len(payload)
        frames = self._template.build(
            opcode=opcode,
            psns=(psn + np.arange(n, dtype=np.int64)) & PSN_MASK,
            ack_request=np.full(n, ack),
            ip_id=self._ip_id & 0xFFFF,
            payload=payload,
            reth=reth,
            imm=imm,
        )
        self._ip_id += n
        return frames
