"""Rings of a campaign: ranks that send by go-back-N, and all bytes of their messages.

A message may begin once the results of the one a window before it have come (NetReduce section 3.2).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.units import PSN_MASK
from inaproto.wire import icrc
from inaproto.wire.ina_header import FLAG_LAST, INA_HEADER_BYTES, Dtype, InaHeader, Op
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.packet import HEADER_BYTES, PacketBuilder
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import EXTENSIONS, FlowTemplate
from inaproto_hil.rtl.equivalence.device import REPLAY_FILL_PACKETS_MAX
from inaproto_hil.rtl.equivalence.steps import Arrival

DTYPES: Final = (Dtype.F32, Dtype.I32, Dtype.F16, Dtype.BF16)
OPENING: Final = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)

_EXPONENT_BITS: Final = {Dtype.F32: 8, Dtype.F16: 5, Dtype.BF16: 8}
_PSN_NEAR: Final = 60


@dataclass(frozen=True, slots=True)
class Host:
    port: int
    mac: bytes
    ip: bytes


@dataclass(slots=True)
class Message:
    """One message of all ranks. Packets of a ring are counted from its first one: ``begin`` is that count."""

    serial: int
    begin: int
    packets: int
    bodies: list[bytes]
    """INA header and data of each rank."""

    @property
    def end(self) -> int:
        return self.begin + self.packets


class Sender:
    """A rank's sending side, and what is known of who receives its results. Indices count packets."""

    def __init__(self, rng: Random, ring: Ring, rank: int, qps: tuple[int, int]) -> None:
        self.rng, self.ring, self.rank = rng, ring, rank
        self.host, self.receiver = ring.hosts[rank], ring.hosts[(rank + 1) % len(ring.hosts)]
        self.receive_qp, self.send_qp = qps
        self.psn0 = rng.choice([0, PSN_MASK - rng.randrange(_PSN_NEAR), rng.getrandbits(24)])
        self.next = 0
        self.high = 0
        """All before it were sent, once at least."""
        self.expected = 0
        """All results before it have come to the receiver."""
        self.told = -1
        """Gap of which the receiver has spoken."""
        self.idle = 0
        self.ip_id = rng.choice([0, 0xFFF0, rng.getrandbits(16)])
        self.may_be_marked = True
        """Switches on the way may set a congestion mark."""
        self.by_way_of: bytes = b""
        """Destination and source address of a router in between."""
        self._checksummed = rng.random() < 0.3
        self._dirty_pads = rng.random() < 0.5
        self._odd = rng.random() < 0.2
        self._steady = rng.random() < 0.6
        template = self.template()
        self._builder = PacketBuilder(template)

    @property
    def connection(self) -> tuple[bytes, bytes, int]:
        return self.host.ip, self.receiver.ip, self.receive_qp

    def template(self) -> FlowTemplate:
        return FlowTemplate(
            self.host.mac,
            self.receiver.mac,
            self.host.ip,
            self.receiver.ip,
            0xC000 | self.rng.getrandbits(8),
            self.receive_qp,
            tos=self.rng.choice([0, 2, 0x68]),
        )

    def message(self, index: int) -> Message:
        return self.ring.message(index)

    def may_send(self) -> bool:
        """The window: message m once all results of m - N have come, which the rank before sent for."""
        ring = self.ring
        behind = self.message(self.next).serial - ring.spec.window_messages
        return behind < ring.spec.first_message or ring.before(self).expected >= ring.at(behind).end

    def frame(
        self,
        index: int,
        *,
        body: bytes | None = None,
        payload: bytes | None = None,
        opcode: int | None = None,
        psn: int | None = None,
    ) -> bytes:
        """The packet as it is sent now: its IP id and AckReq are of this transmission. All else can be had
        differently: the message's bytes, the packet's own, its opcode, its place."""
        message, mtu = self.message(index), self.ring.spec.mtu
        offset = index - message.begin
        body = message.bodies[self.rank] if body is None else body
        payload = body[offset * mtu : (offset + 1) * mtu] if payload is None else payload
        opcode = self.ring.opcode(offset, message.packets) if opcode is None else opcode
        with_reth, with_imm, _ = EXTENSIONS[opcode]
        slot = message.serial % self.ring.spec.regions
        reth = 0x10_0000 + slot * self.ring.spec.message_packets * mtu, 0x99, len(body)
        self.ip_id = (self.ip_id + 1) & 0xFFFF
        made = self._builder.build(
            opcode=opcode,
            psn=(self.psn0 + index if psn is None else psn) & PSN_MASK,
            ack_requests=(offset == message.packets - 1 or self.rng.random() < 0.1,),
            ip_id=self.ip_id,
            payload=payload,
            reth=reth if with_reth else None,
            imm=message.serial & 0xFFFF_FFFF if with_imm else None,
        )
        return self._as_sent(bytearray(made), opcode, len(payload))

    def _as_sent(self, frame: bytearray, opcode: int, payload_bytes: int) -> bytes:
        """What senders may do, and networks may change."""
        rng, pad = self.rng, -payload_bytes % 4
        seals = False
        if pad and self._dirty_pads:
            at = HEADER_BYTES[opcode] + payload_bytes
            frame[at : at + pad] = rng.randbytes(pad)
            seals = True
        if self._odd:  # don't-fragment off, solicited, path migrated, another partition, reserved bits
            frame[20] &= 0xBF
            frame[43] |= rng.choice([0, 0x80, 0x40, 0xC0])
            frame[44:46] = b"\x7f\xff"
            frame[50] |= rng.choice([0, 0x01, 0x55])
            seals = True
        if not self._steady:
            mark = rng.choice([0, 0, 1])  # congestion experienced
            frame[15] |= mark if self.may_be_marked or not frame[15] & 2 else 0
            frame[22] = rng.choice([64, 63])
            frame[46] = rng.choice([0, 0, 0x40, 0x80])
        if self._odd or not self._steady:
            frame[24:26] = b"\0\0"
            frame[24:26] = internet_checksum(frame[14:34]).to_bytes(2, "big")
        if self._checksummed:
            frame[40:42] = rng.randbytes(2)
        if seals:
            icrc.seal(frame)
        if self.by_way_of:
            frame[:12] = self.by_way_of
        return bytes(frame)

    def answer(self, psn: int, syndrome: int, *, backwards: bool = False) -> Arrival:
        """An ACK or NAK of its receiver; ``backwards``: one from the sender, where none is due."""
        to, by, qp = self.host, self.receiver, self.send_qp
        if backwards:
            to, by, qp = by, to, self.receive_qp
        template = FlowTemplate(by.mac, to.mac, by.ip, to.ip, 0xC001, qp)
        made = PacketBuilder(template).build(
            opcode=Opcode.RC_ACK,
            psn=psn & PSN_MASK,
            ack_requests=(False,),
            ip_id=self.rng.getrandbits(16),
            payload=b"",
            aeth=(syndrome, self.rng.getrandbits(24)),
        )
        return by.port, made.tobytes()

    def receive(self, psn: int) -> int | None:
        """A result has come; the index to go back to if the receiver asks for it."""
        half = (PSN_MASK + 1) // 2
        ahead = ((psn - self.psn0 - self.expected + half) & PSN_MASK) - half
        if ahead == 0:
            self.expected += 1
            self.idle = 0
        elif ahead > 0 and self.told != self.expected:
            self.told = self.expected
            return self.expected
        return None


class Ring:
    """A ring's ranks and their messages, which are made when they are asked for."""

    def __init__(
        self, rng: Random, number: int, hosts: list[Host], sizes: tuple[int, int, int], first: int
    ) -> None:
        """``sizes``: window, packets of a message, MTU."""
        window, length, mtu = sizes
        self.rng, self.number, self.hosts = rng, number, hosts
        self.is_gone = False
        """It was removed; not all of its hosts know."""
        self.values = np.random.default_rng(rng.getrandbits(64))
        base = 0x100 * (number + 1)
        shares_qps = rng.random() < 0.3  # one queue pair to send and to receive
        self._immediate = rng.random() < 0.6
        self._long = rng.random() < (0.8 if 2 * window * length > REPLAY_FILL_PACKETS_MAX + 3 else 0.3)
        """Nearly all messages are as long as can be."""
        self._op_index = rng.choice([0, 0xFFFF_FFF8, rng.getrandbits(32)])
        self._messages: list[Message] = []
        self._begins: list[int] = []
        knows = rng.random() < 0.7
        size = len(hosts)
        qps = [(base + (rank + 1) % size, base + rank + (0 if shares_qps else 0x20)) for rank in range(size)]
        connections = [(hosts[rank], hosts[(rank + 1) % size], qps[rank][0]) for rank in range(size)]
        self.spec = RingSpec(
            ring_id=rng.choice([number, 0xFFFF_FF00 + number, 0x100 + number]),
            epoch=rng.choice([0, 5, 0xFFFF_FFFF]),
            key=rng.getrandbits(64),
            window_messages=window,
            message_packets=length,
            mtu=mtu,
            first_message=first,
            flows=tuple(
                FlowSpec(rank, a.ip, b.ip, qp, *((a.mac, b.mac) if knows else (b"", b"")))
                for rank, (a, b, qp) in enumerate(connections)
            ),
        )
        self.senders = [Sender(rng, self, rank, pair) for rank, pair in enumerate(qps)]

    def before(self, sender: Sender) -> Sender:
        return self.senders[sender.rank - 1]

    def message(self, index: int) -> Message:
        while not self._messages or index >= self._messages[-1].end:
            self._operate()
        return self._messages[bisect_right(self._begins, index) - 1]

    def at(self, serial: int) -> Message:
        """The message of that number, which is not before the ring's first."""
        while serial - self.spec.first_message >= len(self._messages):
            self._operate()
        return self._messages[serial - self.spec.first_message]

    def opcode(self, offset: int, packets: int) -> Opcode:
        if packets == 1:
            return Opcode.RC_WRITE_ONLY_IMM if self._immediate else Opcode.RC_WRITE_ONLY
        if offset == 0:
            return Opcode.RC_WRITE_FIRST
        if offset < packets - 1:
            return Opcode.RC_WRITE_MIDDLE
        return Opcode.RC_WRITE_LAST_IMM if self._immediate else Opcode.RC_WRITE_LAST

    def _operate(self) -> None:
        """All messages of one more all-reduce; only the last one may be short."""
        rng, spec = self.rng, self.spec
        dtype, op = rng.choice(DTYPES), rng.choice(list(Op))
        capacity = (spec.message_packets * spec.mtu - INA_HEADER_BYTES) // dtype.itemsize
        in_first = (spec.mtu - INA_HEADER_BYTES) // dtype.itemsize
        last = rng.choice([1, in_first, in_first + 1, capacity, rng.randint(1, capacity)])
        last = min(max(1, last), capacity)
        elements = rng.choice([4, 7] if self._long else [0, 0, 0, 1, 2]) * capacity + last
        data = [rank.tobytes() for rank in _draw_values(rng, self.values, dtype, spec.size, elements)]
        digest, step = rng.getrandbits(16), capacity * dtype.itemsize
        for at in range(0, len(data[0]), step):
            parts = [rank[at : at + step] for rank in data]
            self._cut(dtype, op, digest, parts, is_last=at + step >= len(data[0]))
        self._op_index = (self._op_index + 1) & 0xFFFF_FFFF

    def _cut(self, dtype: Dtype, op: Op, digest: int, data: list[bytes], *, is_last: bool) -> None:
        spec = self.spec
        serial = spec.first_message + len(self._messages)
        packets = -(-(INA_HEADER_BYTES + len(data[0])) // spec.mtu)
        header = InaHeader(
            dtype=dtype,
            op=op,
            flags=FLAG_LAST * is_last,
            ring_id=spec.ring_id,
            epoch=spec.epoch,
            op_index=self._op_index,
            msg_id=serial & 0xFFFF_FFFF,
            rank=0,
            ring_size=spec.size,
            msg_len=packets,
            signature=digest,
            key=spec.key,
        ).encode()
        bodies = [header[:24] + struct.pack(">H", rank) + header[26:] + own for rank, own in enumerate(data)]
        begin = self._messages[-1].end if self._messages else 0
        self._messages.append(Message(serial, begin, packets, bodies))
        self._begins.append(begin)


def _draw_values(
    rng: Random, values: np.random.Generator, dtype: Dtype, ranks: int, elements: int
) -> NDArray[np.unsignedinteger]:
    """Bits of what ranks contribute, (ranks, elements): any, special ones, numbers that round or cancel."""
    bits = 8 * dtype.itemsize
    kind: type[np.unsignedinteger] = np.uint32 if bits == 32 else np.uint16
    shape = (ranks, elements)
    style = rng.choice(["any", "special", "near", "mixed", "cancel"])
    any_bits = values.integers(0, 1 << bits, shape, np.uint64).astype(kind)
    if style == "any":
        return any_bits
    special = np.array(_special_values(dtype), kind)[values.integers(0, len(_special_values(dtype)), shape)]
    if style == "special":
        return special
    if dtype is Dtype.I32:
        near = (any_bits >> np.uint32(8)).astype(kind)
    else:
        wide = (values.standard_normal(shape) * 2.0 ** values.integers(-3, 4, shape)).astype(np.float32)
        near = wide.view(np.uint32) if dtype is Dtype.F32 else (wide.view(np.uint32) >> 16).astype(np.uint16)
        near = wide.astype(np.float16).view(np.uint16) if dtype is Dtype.F16 else near
    if style == "near":
        return near
    if style == "cancel":  # each rank takes back what another one gave, but for a bit or two
        near = np.broadcast_to(near[:1], shape).copy()
        near[1::2] ^= kind(1 << (bits - 1))
        near[-1] ^= values.integers(0, 4, elements).astype(kind)
        return near
    return np.where(values.random(shape) < 0.2, special, near).astype(kind)


def _special_values(dtype: Dtype) -> list[int]:
    """Zeros, ones, ends of ranges, subnormals, infinities and NaNs of every kind, with both signs."""
    bits = 8 * dtype.itemsize
    sign = 1 << (bits - 1)
    if dtype is Dtype.I32:
        return [0, 1, 2, sign, sign - 1, sign + 1, 2 * sign - 1, 2 * sign - 2]
    mantissa = bits - 1 - _EXPONENT_BITS[dtype]
    infinity = ((1 << _EXPONENT_BITS[dtype]) - 1) << mantissa
    one = infinity // 2 >> mantissa << mantissa
    quiet = 1 << (mantissa - 1)
    positive = [0, 1, 2, (1 << mantissa) - 1, 1 << mantissa, (1 << mantissa) + 1, one, one + 1, one - 1]
    positive += [infinity - 1, infinity, infinity + 1, infinity | quiet, infinity | quiet | 1, sign - 1]
    return positive + [sign | value for value in positive]
