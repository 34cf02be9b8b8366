"""What the hosts of :mod:`tests.property.accelerator_world` send: rings, their packets, and other traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import numpy as np

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.wire import icrc
from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.ina_header import (
    FLAG_LAST,
    FLAG_RESULT,
    FLAGS_OFFSET,
    INA_HEADER_BYTES,
    Dtype,
    InaHeader,
    Op,
)
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.roce import (
    SYNDROME_NAK,
    Aeth,
    Bth,
    Imm,
    NakCode,
    Opcode,
    Reth,
    RocePacket,
    extension_bytes,
)
from inaproto.wire.udp import UdpHeader
from tests.unit.exact_reference import exact

HEADERS_BYTES: Final = 54
DISAGREEMENTS: Final = ("op_index", "dtype", "op", "signature", "flags", "packets", "last packet")


def host_mac(host: int) -> bytes:
    return bytes([2, 0, 0, 0, 1, host])


def host_ip(host: int) -> bytes:
    return bytes([10, 1, 0, 1 + host])


@dataclass(frozen=True, slots=True)
class Operation:
    dtype: Dtype
    op: Op
    op_index: int
    signature: int
    data: tuple[bytes, ...]
    """One item a rank."""


@dataclass(slots=True)
class Packet:
    serial: int
    offset: int
    template: RocePacket
    heads: set[bytes] = field(default_factory=set)
    """Headers under which it was sent, INA header included."""
    result: bytes | None = None
    """What takes the place of the payload behind the headers; None if nothing may."""


@dataclass(slots=True)
class Flow:
    """One rank's connection to its successor: the sender's and the receiver's state."""

    ring: int
    rank: int
    host: int
    receiver: int
    send_qp: int
    receive_qp: int
    psn_mask: int
    packets: list[Packet] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Index after the last packet of each message."""
    next: int = 0
    expected: int = 0
    nak_sent: bool = False
    ip_id: int = 0
    steady: bool = True
    """Its packets cross no router and no congested queue: TTL and FECN do not vary."""
    trailer: int = 0
    """Bytes that its network puts behind a frame."""

    @property
    def connection(self) -> tuple[bytes, bytes, int]:
        return (host_ip(self.host), host_ip(self.receiver), self.receive_qp)

    def frame(self, rng: Random, index: int) -> bytes:
        """The packet as sent now: IP id and AckReq are of this transmission."""
        packet = self.packets[index]
        self.ip_id = (self.ip_id + 1) & 0xFFFF
        template = packet.template
        congestion, ttl = (0, 64) if self.steady else (rng.choice([0, 0, 0x40]), rng.choice([64, 63]))
        bth = replace(template.bth, ack_request=rng.random() < 0.1, congestion=congestion)
        ip = replace(template.ip, identification=self.ip_id, ttl=ttl)
        frame = replace(template, bth=bth, ip=ip).encode_frame()
        head = bytearray(frame[: self._summed_from(packet)])
        if packet.offset == 0:
            head[FLAGS_OFFSET - INA_HEADER_BYTES] |= FLAG_RESULT
        packet.heads.add(_covered(bytes(head)))
        return frame + bytes(self.trailer)

    @staticmethod
    def _summed_from(packet: Packet) -> int:
        ina = INA_HEADER_BYTES if packet.offset == 0 else 0
        return HEADERS_BYTES + extension_bytes(packet.template.opcode) + ina

    def index_of(self, psn: int) -> int:
        """The packet of that PSN that is nearest to what the receiver expects."""
        half = (self.psn_mask + 1) // 2
        ahead = (psn - self.packets[0].template.bth.psn - self.expected + half) & self.psn_mask
        return self.expected + ahead - half

    def check(self, index: int, got: RocePacket, frame: bytes) -> None:
        """A result packet is what the ring's exact reduction says, under headers that were sent."""
        assert 0 <= index < len(self.packets), f"PSN {got.bth.psn} was never sent"
        packet = self.packets[index]
        begin = self._summed_from(packet)
        assert _covered(frame[:begin]) in packet.heads, "headers of a result are those of its sender"
        assert packet.result is not None, "a result of ranks that disagree"
        end = len(frame) - 4 - got.pad
        assert frame[begin:end] == packet.result, (
            f"wrong result: {self.rank}, {packet.serial}, {packet.offset}"
        )
        assert not any(frame[end:-4])

    def nak(self) -> bytes:
        """The receiver's request to go back to what it expects."""
        psn = (self.packets[0].template.bth.psn + self.expected) & self.psn_mask
        return RocePacket.build(
            src_mac=host_mac(self.receiver),
            dst_mac=host_mac(self.host),
            src_ip=host_ip(self.receiver),
            dst_ip=host_ip(self.host),
            udp_source_port=0xC123,
            bth=Bth(opcode=Opcode.RC_ACK, dest_qp=self.send_qp, psn=psn),
            aeth=Aeth(syndrome=SYNDROME_NAK | NakCode.PSN_SEQUENCE_ERROR, msn=0),
        ).encode_frame()


def _covered(head: bytes) -> bytes:
    """Headers without what the ICRC leaves out: there, damage on the way goes unseen."""
    kept = bytearray(head)
    for at in icrc.MASKED_OFFSETS:
        kept[at] = 0
    return bytes(kept)


@dataclass(slots=True)
class RingTraffic:
    spec: RingSpec
    flows: list[Flow]
    disagrees: bool = False
    failed: bool = False

    @property
    def one_host_a_rank(self) -> bool:
        return len({flow.host for flow in self.flows}) == len(self.flows)

    def may_send(self, flow: Flow) -> bool:
        """The window: message m only after the result of m - N has arrived whole."""
        behind = flow.packets[flow.next].serial - self.spec.window_messages
        incoming = self.flows[flow.rank - 1]
        return behind < 0 or incoming.expected >= incoming.ends[behind]


def flow_spec(flow: Flow, *, knows_addresses: bool = True) -> FlowSpec:
    addresses = (host_mac(flow.host), host_mac(flow.receiver)) if knows_addresses else ()
    return FlowSpec(flow.rank, *flow.connection, *addresses)


def draw_ring(rng: Random, number: int, hosts: list[int], *, disagreement: bool = False) -> RingTraffic:
    size = rng.randint(2, 5)
    if rng.random() < 0.15:
        members = [*rng.sample(hosts, 2)] * 2
    else:
        members = rng.sample(hosts, min(size, len(hosts)))
    window = rng.choice([1, 2, 4])
    length = rng.randint(1, 4 if window == 4 else 6)
    tight = (4 * window * length - 1).bit_length()
    psn_bits = rng.choice([24, 24, tight, tight + 2])
    base = 0x100 + 0x40 * number
    flows = []
    for rank, host in enumerate(members):
        into = (rank + 1) % len(members)
        flow = Flow(number, rank, host, members[into], base + 0x20 + rank, base + into, (1 << psn_bits) - 1)
        flow.ip_id = rng.choice([0, 0xFFF0, rng.getrandbits(16)])
        flow.steady = rng.random() < 0.7
        flow.trailer = rng.choice([*[0] * 9, rng.randint(1, 9)])
        flows.append(flow)
    knows_addresses = rng.random() < 0.7
    spec = RingSpec(
        ring_id=rng.choice([number, 0xFFFF_FF00 + number]),
        epoch=rng.choice([0, 5, 0xFFFF_FFFF]),
        key=rng.getrandbits(64),
        window_messages=window,
        message_packets=length,
        mtu=8 * rng.randint(8, 32),
        flows=tuple(flow_spec(flow, knows_addresses=knows_addresses) for flow in flows),
        psn_bits=psn_bits,
        msg_id_bits=rng.choice([32, (2 * window).bit_length() + 1]),
    )
    ring = RingTraffic(spec, flows)
    _fill(rng, ring, disagreement=disagreement)
    return ring


def fill_with(rng: Random, ring: RingTraffic, operations: Sequence[Operation]) -> None:
    """What the ranks send for ``operations``; what the results must be is the caller's."""
    immediate = rng.random() < 0.8
    psn0 = _first_psns(rng, ring)
    serial = 0
    for operation in operations:
        for flow in ring.flows:
            _cut(ring.spec, flow, operation, serial, FLAG_LAST, psn0[flow.rank], immediate=immediate)
        serial += _messages(ring.spec, operation)


def _first_psns(rng: Random, ring: RingTraffic) -> dict[int, int]:
    """By rank; some soon wrap."""
    near = rng.randint(0, 20)
    return {
        flow.rank: rng.choice([0, flow.psn_mask - near, 0xFFFF - near, rng.getrandbits(24)])
        for flow in ring.flows
    }


def _fill(rng: Random, ring: RingTraffic, *, disagreement: bool) -> None:
    spec = ring.spec
    immediate = rng.random() < 0.8
    psn0 = _first_psns(rng, ring)
    serial, messages = 0, rng.randint(2, 14)
    op_index = rng.choice([0, 0xFFFF_FFF0])
    wrong = rng.randrange(messages) if disagreement else -1
    while serial < messages:
        operation = _draw_operation(rng, spec, op_index & 0xFFFF_FFFF)
        kind = ""
        if not ring.disagrees and serial <= wrong < serial + _messages(spec, operation):
            ring.disagrees = True
            kind = rng.choice(DISAGREEMENTS)
        odd = rng.randrange(spec.size)
        for flow in ring.flows:
            own = _disagreeing(operation, kind, flow.rank) if kind and flow.rank == odd else operation
            flags = 0 if kind == "flags" and flow.rank == odd else FLAG_LAST
            _cut(spec, flow, own, serial, flags, psn0[flow.rank], immediate=immediate)
        _expect(ring, operation, serial, kind)
        serial += _messages(spec, operation)
        op_index += 1


def _draw_operation(rng: Random, spec: RingSpec, op_index: int) -> Operation:
    dtype, op = rng.choice(list(Dtype)), rng.choice(list(Op))
    capacity = (spec.message_packets * spec.mtu - INA_HEADER_BYTES) // dtype.itemsize
    elements = max(1, rng.choice([1, capacity, 2 * capacity, rng.randint(1, 3 * capacity)]))
    bulk = np.random.default_rng(rng.getrandbits(64))
    if rng.random() < 0.5 or dtype in (Dtype.I32, Dtype.I64):
        data = tuple(bulk.bytes(elements * dtype.itemsize) for _ in range(spec.size))
    else:  # numbers of like size: NaN and infinities are rare, rounding is not
        numbers = bulk.standard_normal((spec.size, elements + 1)).astype("<f8").view("<u8")
        shift = 64 - 8 * dtype.itemsize
        words = (numbers >> np.uint64(shift)).astype(f"<u{dtype.itemsize}")
        data = tuple(row[:elements].tobytes() for row in words)
    return Operation(dtype, op, op_index, rng.getrandbits(16), data)


def _messages(spec: RingSpec, operation: Operation) -> int:
    return -(-len(operation.data[0]) // (spec.message_packets * spec.mtu - INA_HEADER_BYTES))


def _disagreeing(operation: Operation, kind: str, rank: int) -> Operation:
    """The operation as a rank calls it that has it wrong."""
    if kind == "op_index":
        return replace(operation, op_index=(operation.op_index + 1) & 0xFFFF_FFFF)
    if kind == "dtype":
        return replace(operation, dtype=Dtype(operation.dtype ^ 1))  # F32 I32, F16 BF16, F64 I64
    if kind == "op":
        return replace(operation, op=Op((operation.op + 1) % 3))
    if kind == "signature":
        return replace(operation, signature=operation.signature ^ 0x8000)
    if kind in ("packets", "last packet"):
        data = list(operation.data)
        grown = data[rank] + bytes(operation.dtype.itemsize)
        data[rank] = data[rank][: -operation.dtype.itemsize] or grown
        return replace(operation, data=tuple(data))
    return operation


def _cut(
    spec: RingSpec, flow: Flow, operation: Operation, serial: int, last: int, psn0: int, *, immediate: bool
) -> None:
    data = operation.data[flow.rank]
    capacity = spec.message_packets * spec.mtu - INA_HEADER_BYTES
    for begin in range(0, len(data), capacity):
        chunk = data[begin : begin + capacity]
        total = INA_HEADER_BYTES + len(chunk)
        packets = -(-total // spec.mtu)
        header = InaHeader(
            dtype=operation.dtype,
            op=operation.op,
            flags=last if begin + capacity >= len(data) else 0,
            ring_id=spec.ring_id,
            epoch=spec.epoch,
            op_index=operation.op_index,
            msg_id=serial & ((1 << spec.msg_id_bits) - 1),
            rank=flow.rank,
            ring_size=spec.size,
            msg_len=packets,
            signature=operation.signature,
            key=spec.key,
        )
        body = header.encode() + chunk
        slot = serial % spec.regions
        reth = Reth(va=0x10_0000 + slot * spec.message_packets * spec.mtu, rkey=0x99, dma_length=total)
        for offset in range(packets):
            psn = (psn0 + len(flow.packets)) & flow.psn_mask
            payload = body[offset * spec.mtu : (offset + 1) * spec.mtu]
            template = _template(flow, psn, offset, packets, payload, reth, serial if immediate else None)
            flow.packets.append(Packet(serial, offset, template))
        flow.ends.append(len(flow.packets))
        serial += 1


def _template(
    flow: Flow, psn: int, offset: int, packets: int, payload: bytes, reth: Reth, imm: int | None
) -> RocePacket:
    final = offset == packets - 1
    if packets == 1:
        opcode = Opcode.RC_WRITE_ONLY if imm is None else Opcode.RC_WRITE_ONLY_IMM
    elif offset == 0:
        opcode = Opcode.RC_WRITE_FIRST
    elif not final:
        opcode = Opcode.RC_WRITE_MIDDLE
    else:
        opcode = Opcode.RC_WRITE_LAST if imm is None else Opcode.RC_WRITE_LAST_IMM
    return RocePacket(
        eth=EthernetHeader(dst=host_mac(flow.receiver), src=host_mac(flow.host)),
        ip=Ipv4Header(src=host_ip(flow.host), dst=host_ip(flow.receiver), total_length=0),
        udp=UdpHeader(src_port=0xC000 | flow.ring, length=0),
        bth=Bth(opcode=opcode, dest_qp=flow.receive_qp, psn=psn),
        reth=reth if offset == 0 else None,
        imm=Imm(imm) if final and imm is not None else None,
        payload=payload,
    )


def _expect(ring: RingTraffic, operation: Operation, serial: int, kind: str) -> None:
    """Note the exact result of each packet of the operation that starts with message ``serial``."""
    if kind and kind not in ("last packet", "packets", "flags"):
        return
    begins = [0 if serial == 0 else flow.ends[serial - 1] for flow in ring.flows]
    for packets in zip(
        *(flow.packets[begin:] for flow, begin in zip(ring.flows, begins, strict=True)), strict=False
    ):
        skip = INA_HEADER_BYTES if packets[0].offset == 0 else 0
        payloads = [packet.template.payload[skip:] for packet in packets]
        alike = {(packet.serial, packet.offset, packet.template.opcode) for packet in packets}
        if len({len(payload) for payload in payloads}) == 1 and len(alike) == 1:
            result = exact(operation.dtype, operation.op, payloads)
            for packet in packets:
                packet.result = result


def plain_frame(rng: Random, host: int, other: int) -> bytes:
    """ARP, TCP, a plain RDMA write between two queue pairs that no ring has, or noise."""
    kind = rng.randrange(4)
    macs = host_mac(other) + host_mac(host)
    if kind == 0:
        return b"\xff" * 6 + host_mac(host) + b"\x08\x06" + rng.randbytes(46)
    if kind == 1:
        ip = Ipv4Header(src=host_ip(host), dst=host_ip(other), total_length=60, protocol=6)
        return macs + b"\x08\x00" + ip.encode() + rng.randbytes(40)
    if kind == 2:
        return RocePacket.build(
            src_mac=host_mac(host),
            dst_mac=host_mac(other),
            src_ip=host_ip(host),
            dst_ip=host_ip(other),
            udp_source_port=0xC999,
            bth=Bth(opcode=Opcode.RC_WRITE_MIDDLE, dest_qp=0x9999, psn=rng.getrandbits(24)),
            payload=rng.randbytes(rng.choice([64, 100])),
        ).encode_frame()
    return macs[: rng.choice([12, 12, 12, 3])] + rng.randbytes(rng.choice([0, 2, 48, 90]))


def stranger_frame(rng: Random, host: int, rings: list[RingTraffic]) -> bytes:
    """An opening packet that no accelerator may take: from outside the ring, or with a wrong header."""
    ring = rng.choice(rings)
    mine = [flow for flow in ring.flows if flow.host == host]
    flow = rng.choice(mine or ring.flows)
    packet = flow.packets[rng.choice([0, *flow.ends[:-1]])]
    header = InaHeader.decode(packet.template.payload)
    template = packet.template
    rules = (
        ("key", "epoch", "rank", "ring_size", "ring_id", "magic", "connection") if mine else ("connection",)
    )
    rule = rng.choice(rules)
    if rule == "connection":
        template = replace(
            template,
            eth=EthernetHeader(dst=template.eth.dst, src=host_mac(host)),
            bth=replace(template.bth, dest_qp=0x7777),
        )
    elif rule == "ring_size":
        header = replace(header, ring_size=header.ring_size + 1)
    elif rule == "rank":
        header = replace(header, rank=(header.rank + 1) % header.ring_size)
    elif rule == "ring_id":
        header = replace(header, ring_id=header.ring_id ^ 0x8000)
    elif rule != "magic":
        header = replace(header, **{rule: getattr(header, rule) ^ 1})
    head = bytes(INA_HEADER_BYTES) if rule == "magic" else header.encode()
    return replace(template, payload=head + template.payload[INA_HEADER_BYTES:]).encode_frame()
