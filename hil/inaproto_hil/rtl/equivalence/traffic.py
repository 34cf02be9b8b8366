"""Seeded campaigns: rings of go-back-N senders in bad weather, forgeries, and all else that a switch sees.

A campaign draws rings, hosts and weather from its seed, and makes one frame after the other. It is told what
the golden device sent, so its hosts know which results there are (NetReduce section 3.2: a message may begin
once the results of the one a window before it have come). So a campaign is a function of its seed and of what
the golden device does, and both devices get the same frames.

What a campaign keeps from:

- frames with a VLAN tag, and damage that makes one;
- 64-bit elements, which the RTL does not add up;
- packets of a ring with Ethernet padding, or whose length is not 2 mod 4, unless they were damaged;
- frames longer than Ethernet's 1,514 bytes.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.units import PSN_MASK
from inaproto.wire import icrc
from inaproto.wire.ethernet import BROADCAST
from inaproto.wire.ina_header import FLAG_LAST, FLAG_RESULT, INA_HEADER_BYTES, Dtype, InaHeader, Op
from inaproto.wire.ipv4 import Ipv4Header, internet_checksum
from inaproto.wire.packet import HEADER_BYTES, PacketBuilder
from inaproto.wire.roce import SYNDROME_ACK, SYNDROME_NAK, SYNDROME_RNR, Opcode
from inaproto.wire.vector import EXTENSIONS, FlowTemplate
from inaproto_hil.rtl.equivalence.device import REPLAY_FILL_PACKETS_MAX, Output
from inaproto_hil.rtl.parameters import Parameters

Arrival = tuple[int, bytes]
"""Port and frame."""

WINDOWS: Final = (1, 2, 4)
LENGTHS: Final = (1, 2, 3, 5, 8)
MTUS: Final = (64, 128, 256)
DTYPES: Final = (Dtype.F32, Dtype.I32, Dtype.F16, Dtype.BF16)
FRAME_BYTES_MAX: Final = 1514
TAGS: Final = (b"\x81\x00", b"\x88\xa8")
_OPENING: Final = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)
WRITES: Final = tuple(range(Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY_IMM + 1))
PATIENCE: Final = 12
"""Turns without a new result after which a sender's timer expires."""
ROUTERS: Final = tuple(b"\x02\x55\0\0\0" + bytes([number]) for number in range(7))
"""More Ethernet addresses than a flow remembers."""

_EXPONENT_BITS: Final = {Dtype.F32: 8, Dtype.F16: 5, Dtype.BF16: 8}
_PSN_NEAR: Final = 60


class Traffic(Protocol):
    """Frames for devices, and the rings that they need before."""

    @property
    def seed(self) -> int | None: ...

    @property
    def specs(self) -> tuple[RingSpec, ...]: ...

    def __iter__(self) -> Iterator[Arrival]: ...

    def heard(self, out: Output) -> None:
        """What left the golden device because of the latest frame."""
        ...


@dataclass(frozen=True)
class Script:
    """Frames that are there already."""

    specs: tuple[RingSpec, ...]
    arrivals: Sequence[Arrival]
    seed: int | None = None

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self.arrivals)

    def heard(self, out: Output) -> None:
        """It goes on as it is."""


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities: the first ones a packet, the last ones a turn."""

    lost: float
    twice: float
    late: float
    damaged: float
    back: float
    result_lost: float
    rerouted: float
    stale: float
    forged: float
    answer: float
    foreign: float

    @classmethod
    def draw(cls, rng: Random) -> Weather:
        strength = rng.choice([0.0, 0.02, 0.1, 0.2])
        return cls(
            lost=strength * rng.random(),
            twice=strength * rng.random(),
            late=strength * rng.random(),
            damaged=strength * rng.random(),
            back=strength * rng.random(),
            result_lost=strength * rng.random(),
            rerouted=rng.choice([0.0, 0.003, 0.003, 0.1]),
            stale=rng.choice([0.0, 0.01, 0.06]),
            forged=rng.choice([0.0, 0.03, 0.12]),
            answer=rng.choice([0.0, 0.05, 0.15]),
            foreign=rng.choice([0.0, 0.05, 0.25]),
        )


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
            frame[15] |= rng.choice([0, 0, 1])  # congestion experienced
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
        self.rng, self.hosts = rng, hosts
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


# ---- everything else that a switch sees ------------------------------------------------------------------


class Foreign:
    """Frames of no ring."""

    def __init__(self, rng: Random, rings: list[Ring], strangers: list[Host]) -> None:
        self.rng, self.rings = rng, rings
        self.members = list(dict.fromkeys(host for ring in rings for host in ring.hosts))
        self.strangers = strangers
        self._moved: list[Host] = []
        """What the next RoCE packets come from: a host whose Ethernet address has changed."""
        self._kinds: list[Callable[[Host, Host], bytes]] = [
            self._arp,
            self._ip,
            self._ipv6,
            self._roce,
            self._roce,
            self._stray,
            self._stray,
            self._group,
            self._runt,
            self._odd_ip,
        ]

    def draw(self) -> Arrival:
        rng = self.rng
        by = rng.choice(self.strangers if rng.random() < 0.7 else self.members)
        to = rng.choice(self.strangers if rng.random() < 0.5 else self.members)
        if rng.random() < 0.05:  # plugged in elsewhere
            by = Host(rng.choice(self.members).port, by.mac, by.ip)
        make = rng.choice(self._kinds)
        if self._moved and rng.random() < 0.5:
            by, make = self._moved.pop(), self._roce
        elif rng.random() < 0.04:
            changed = Host(by.port, b"\x02\x77" + rng.randbytes(4), by.ip)
            self._moved = [changed] * rng.randint(2, 6)
        return by.port, _no_tag(make(by, to))[:FRAME_BYTES_MAX]

    def _arp(self, by: Host, to: Host) -> bytes:
        rng = self.rng
        sender = by.mac if rng.random() < 0.8 else to.mac
        dst = rng.choice([BROADCAST, to.mac])
        operation = rng.choice([b"\0\1", b"\0\2"])
        head = dst + by.mac + bytes.fromhex("0806000108000604") + operation
        return head + sender + by.ip + bytes(6) + to.ip + bytes(rng.choice([0, 18]))

    def _ip(self, by: Host, to: Host) -> bytes:
        """TCP, or UDP to another port; with RoCE's port in TCP sometimes, where it means nothing."""
        rng = self.rng
        protocol, ports = rng.choice([(6, (4000, 4791)), (17, (4791, 53)), (17, (53, 4790)), (1, (0, 4791))])
        body = struct.pack(">HHHH", *ports, 8 + 24, 0) + rng.randbytes(rng.choice([0, 24, 100, 1460]))
        ip = Ipv4Header(src=by.ip, dst=to.ip, total_length=20 + len(body), protocol=protocol)
        return to.mac + by.mac + b"\x08\x00" + ip.encode() + body

    def _ipv6(self, by: Host, to: Host) -> bytes:
        body = self.rng.randbytes(self.rng.choice([40, 64, 200]))
        return to.mac + by.mac + b"\x86\xdd\x60" + bytes(3) + struct.pack(">HBB", len(body), 17, 64) + body

    def _roce(self, by: Host, to: Host) -> bytes:
        """Of a connection of no ring: SEND, WRITE or an acknowledgement."""
        rng = self.rng
        payload = rng.randbytes(rng.choice([0, 1, 6, 64, 201]))
        return self._packet(by, to, rng.choice(list(EXTENSIONS)), payload)

    def _packet(self, by: Host, to: Host, opcode: int, payload: bytes) -> bytes:
        rng = self.rng
        with_reth, with_imm, with_aeth = EXTENSIONS[opcode]
        flow = FlowTemplate(by.mac, to.mac, by.ip, to.ip, 0xC777, rng.choice([0x7777, 3]))
        frame = PacketBuilder(flow).build(
            opcode=opcode,
            psn=rng.getrandbits(24),
            ack_requests=(False,),
            ip_id=rng.getrandbits(16),
            payload=b"" if with_aeth else payload,
            reth=(rng.getrandbits(64), 7, len(payload)) if with_reth else None,
            imm=1 if with_imm else None,
            aeth=(SYNDROME_ACK, 1) if with_aeth else None,
        )
        padding = rng.choice([0, 0, max(0, 60 - frame.shape[1]), 3])
        return frame.tobytes() + rng.choice([bytes(padding), rng.randbytes(padding)])

    def _stray(self, by: Host, to: Host) -> bytes:
        """An INA header where no ring has registered the connection."""
        rng, ring = self.rng, self.rng.choice(self.rings)
        header = bytearray(ring.at(ring.spec.first_message).bodies[0][:INA_HEADER_BYTES])
        kind = rng.choice(["known", "known", "unknown", "result", "broken", "short"])
        if kind == "unknown":
            header[8:12] = rng.randbytes(4)
        elif kind == "result":
            header[7] |= FLAG_RESULT
        elif kind == "broken":
            header[rng.choice([0, 3, 4, 5, 6, 7])] ^= 0x80
        payload = bytes(header) + rng.randbytes(rng.choice([0, 8, 65]))
        payload = payload[: rng.choice([39, 8])] if kind == "short" else payload
        opcode = rng.choice([*_OPENING, *_OPENING, Opcode.RC_SEND_ONLY, Opcode.RC_WRITE_MIDDLE])
        return self._packet(by, to, opcode, payload)

    def _group(self, by: Host, to: Host) -> bytes:
        """To everybody, to a group, to the far end of the link, to nobody known; or from a group."""
        rng = self.rng
        link = b"\x01\x80\xc2\0\0" + bytes([rng.choice([0, 14, 15, 16, 255])])
        dst = rng.choice([BROADCAST, b"\x01\0\x5e\0\0\x05", link, link, b"\x02\x99" + rng.randbytes(4)])
        src = b"\x03" + by.mac[1:] if rng.random() < 0.2 else by.mac
        return dst + src + b"\x88\xb5" + rng.randbytes(rng.choice([46, 300]))

    def _runt(self, by: Host, to: Host) -> bytes:
        rng = self.rng
        whole = to.mac + by.mac + rng.choice([b"\x08\x00\x45", b"\x08\x06", b"\x88\xb5"]) + rng.randbytes(44)
        return whole[: rng.choice([1, 6, 11, 12, 13, 14, 15, rng.randint(1, len(whole))])]

    def _odd_ip(self, by: Host, to: Host) -> bytes:
        """RoCE of no ring that no NIC emits."""
        frame = self._packet(by, to, Opcode.RC_WRITE_MIDDLE, self.rng.randbytes(64))
        return disfigured(self.rng, bytearray(frame))


def _no_tag(frame: bytes) -> bytes:
    return frame[:12] + b"\x88\xb6" + frame[14:] if frame[12:14] in TAGS else frame


def disfigured(rng: Random, frame: bytearray) -> bytes:
    """No well-formed packet any more: other opcodes, IP options, a fragment, lengths that make no sense. Some
    stack might still take it for one of its connection."""
    kind = rng.choice(["opcode", "options", "fragment", "longer", "shorter", "udp length", "type", "cut"])
    if kind == "opcode":
        frame[42] = rng.choice([0x0C, 0x10, 0x12, 0x17, 0x64, 0x81])
        icrc.seal(frame)
    elif kind == "options":
        words = rng.randint(1, 10)
        frame[14] += words
        frame[34:34] = rng.choice([bytes(4 * words), rng.randbytes(4 * words)])
        frame[16:18] = (len(frame) - 14).to_bytes(2, "big")
    elif kind == "fragment":
        frame[20:22] = rng.choice([b"\x20\x00", b"\x00\x05", b"\x20\x05", b"\x01\x00"])
    elif kind == "longer":
        frame[16:18] = (len(frame) + rng.choice([4, 100])).to_bytes(2, "big")
    elif kind == "shorter":
        frame[16:18] = max(0, len(frame) - 14 - rng.choice([1, 4, 40])).to_bytes(2, "big")
    elif kind == "udp length":
        frame[38:40] = max(0, len(frame) - 34 + rng.choice([-4, 4, -30])).to_bytes(2, "big")
    elif kind == "type":
        frame[12:14] = rng.choice([b"\x08\x06", b"\x86\xdd", b"\x00\x00"])
    else:
        del frame[rng.choice([36, 42, 49, 50, 51, 53, 54, 57, len(frame) - 1, len(frame) - 4]) :]
    return bytes(frame)


# ---- the campaign ---------------------------------------------------------------------------------------


class Campaign:
    """``frames`` frames of ``seed`` for a device of ``limits``. ``heard`` is told what left because of each.

    ``first_messages``: some rings begin with a message that is not their first, close to the end of message
    numbers sometimes.
    """

    def __init__(
        self, seed: int, limits: Parameters | None = None, frames: int = 2000, *, first_messages: bool = True
    ) -> None:
        self.seed = seed
        self.frames = frames
        self._limits = limits or Parameters()
        self._rng = rng = Random(f"equivalence/{seed}")
        self._hosts = 0
        self._rings = self._draw_rings(first_messages=first_messages)
        self.specs = tuple(ring.spec for ring in self._rings)
        self._senders = [sender for ring in self._rings for sender in ring.senders]
        self._weights = [1.0] * len(self._senders)
        self._receiving = {_key(*sender.connection): sender for sender in self._senders}
        strangers = [self._new_host(rng.randrange(self._limits.ports)) for _ in range(rng.choice([1, 4, 24]))]
        self._foreign = Foreign(rng, self._rings, strangers)
        self.weather = Weather.draw(rng)
        w = self.weather
        others = [w.stale, w.forged, w.answer, w.foreign]
        makers = [self._stale, self._forged, self._answer, self._foreign.draw, self._next_of_ring]
        self._turns: list[tuple[float, Callable[[], Arrival | None]]] = []
        total = 0.0
        for weight, maker in zip([*others, 1 - sum(others)], makers, strict=True):
            total += weight
            self._turns.append((total, maker))
        self._step = 0
        self._late: list[tuple[int, int, Arrival]] = []
        """What comes when, and in what order at once."""
        self._asked: list[tuple[Sender, int]] = []
        """NAKs that wait to be sent: where each asks its sender to go back to."""
        self._burst: tuple[Sender, int] | None = None
        quarrels = range(int(0.6 * frames), frames) if rng.random() < 0.5 else ()
        self._quarrels = sorted(rng.sample(quarrels, min(6, len(quarrels))), reverse=True)
        self._quarrelsome = rng.choice(self._rings).senders

    def __iter__(self) -> Iterator[Arrival]:
        for step in range(self.frames):
            self._step = step
            yield self._next()

    def heard(self, out: Output) -> None:
        for port, frame in out:
            sender = self._receiving.get(frame[26:34] + frame[47:50])
            if sender is None or frame[42] not in WRITES or frame[12:14] != b"\x08\x00":
                continue
            if port != sender.receiver.port and not sender.by_way_of:
                continue
            if self._rng.random() >= self.weather.result_lost:
                missing = sender.receive(int.from_bytes(frame[51:54], "big"))
                if missing is not None:
                    self._asked.append((sender, missing))

    # ---- sizes

    def _draw_rings(self, *, first_messages: bool) -> list[Ring]:
        rng, limits = self._rng, self._limits
        rings: list[Ring] = []
        slots = limits.slots
        for number in range(rng.randint(1, min(2, limits.rings))):
            shapes = [(n, m) for n in WINDOWS for m in LENGTHS if n <= limits.window and 2 * n * m <= slots]
            if not shapes:
                break
            window, length = rng.choice([*shapes, shapes[-1], shapes[-1]])
            slots -= 2 * window * length
            mtu = rng.choice([mtu for mtu in MTUS if mtu <= limits.mtu])
            first = rng.choice([0, 0, 0, 7, 0xFFFF_FFFD]) if first_messages else 0
            known = [host for ring in rings for host in ring.hosts]
            hosts = self._draw_hosts(rng.randint(2, limits.children), known)
            rings.append(Ring(rng, number, hosts, (window, length, mtu), first))
        return rings

    def _draw_hosts(self, size: int, known: list[Host]) -> list[Host]:
        """One for each rank, at another port than the one before: no result leaves where it is from.

        Rarely two are at one port, and that ring comes to a stop.
        """
        rng, ports = self._rng, self._limits.ports
        hosts: list[Host] = []
        for rank in range(size):
            beside = {hosts[-1].port} if hosts else set()
            if rank == size - 1:
                beside.add(hosts[0].port)
            free = [port for port in range(ports) if port not in beside] or list(range(ports))
            port = rng.choice(free) if rng.random() < 0.99 else rng.randrange(ports)
            there = [host for host in known if host.port == port and host not in hosts]
            hosts.append(rng.choice(there) if there and rng.random() < 0.5 else self._new_host(port))
        return hosts

    def _new_host(self, port: int) -> Host:
        self._hosts += 1
        number = self._hosts.to_bytes(2, "big")
        return Host(port, b"\x02\0\0\0" + number, b"\x0a\0" + number)

    # ---- turns

    def _next(self) -> Arrival:
        rng = self._rng
        if self._late and self._late[0][0] <= self._step:
            return heapq.heappop(self._late)[2]
        if self._step % 40 == 0:  # some ranks are slow for a while
            self._weights = [rng.choice([1.0, 1.0, 0.1, 0.02]) for _ in self._senders]
        for _ in range(60):
            if self._quarrels and self._step >= self._quarrels[-1]:
                self._quarrels.pop()
                arrival = self._quarrel()
            else:
                drawn = rng.random()
                arrival = next((maker for share, maker in self._turns if drawn < share), self._next_of_ring)()
            if arrival is not None:
                arrival = self._on_its_way(arrival)
            if arrival is not None:
                return arrival
        return self._foreign.draw()

    def _on_its_way(self, arrival: Arrival) -> Arrival | None:
        """What comes of it now."""
        rng, weather = self._rng, self.weather
        port, frame = arrival
        if rng.random() < weather.lost:
            return None
        if rng.random() < weather.damaged:
            arrival = port, damaged(rng, frame)
        if rng.random() < weather.twice:
            self._put_off(arrival)
        if rng.random() < weather.late:
            self._put_off(arrival)
            return None
        return arrival

    def _put_off(self, arrival: Arrival) -> None:
        until = self._step + self._rng.choice([1, 2, 3, 8, 60])
        heapq.heappush(self._late, (until, self._rng.getrandbits(30), arrival))

    def _pick(self) -> Sender:
        return self._rng.choices(self._senders, self._weights)[0]

    def _next_of_ring(self) -> Arrival | None:
        """The next packet of some rank, or of the one whose turn it was; now and then it goes back before."""
        rng = self._rng
        if self._burst is None:
            self._burst = self._pick(), rng.choice([1, 1, 1, 2, 5, 12])
        sender, left = self._burst
        self._burst = (sender, left - 1) if left > 1 else None
        sender.idle += 1
        if rng.random() < self.weather.back and sender.high:
            spec, message = sender.ring.spec, sender.message(sender.next)
            first = max(spec.first_message, message.serial - spec.window_messages)
            low = max(0, sender.next - rng.randint(1, 4))
            low = sender.ring.at(first).begin if rng.random() < 0.4 else low
            sender.next = rng.randint(low, max(low, sender.next))
        elif sender.idle > PATIENCE:
            sender.idle = 0  # its timer has expired
            at = min(sender.expected, sender.next)
            sender.next = sender.message(at).begin if rng.random() < 0.3 else at
        if rng.random() < self.weather.rerouted:
            to = rng.choice([sender.receiver.mac, sender.receiver.mac, rng.choice(ROUTERS)])
            sender.by_way_of = rng.choice([b"", to + rng.choice(ROUTERS)])
        if not sender.may_send():
            self._burst = None
            return None
        index = sender.next
        sender.next += 1
        is_resend, sender.high = index < sender.high, max(sender.high, sender.next)
        if is_resend and rng.random() < 0.1:
            return sender.host.port, sender.frame(index, payload=self._reused(sender, index))
        return sender.host.port, sender.frame(index)

    def _reused(self, sender: Sender, index: int) -> bytes:
        """The packet's payload after its sender has reused the buffer: of a result that it has already."""
        message = sender.message(index)
        at = (index - message.begin) * sender.ring.spec.mtu
        payload = bytearray(message.bodies[sender.rank][at : at + sender.ring.spec.mtu])
        keep = INA_HEADER_BYTES if index == message.begin else 0
        payload[keep:] = self._rng.randbytes(len(payload) - keep)
        return bytes(payload)

    def _stale(self) -> Arrival | None:
        """An old packet comes late: of a message that is two windows back, or of any."""
        rng, sender = self._rng, self._rng.choice(self._senders)
        spec = sender.ring.spec
        if not sender.high:
            return None
        index = rng.randrange(sender.high)
        newest = max(other.high for other in sender.ring.senders)
        serial = sender.message(newest).serial - 2 * spec.window_messages - rng.choice([0, 0, 1, 2])
        if rng.random() < 0.25 and sender.next > REPLAY_FILL_PACKETS_MAX + 3:
            # What was left out, when the next one comes, is just short enough to be filled, or just too long.
            index = sender.next - REPLAY_FILL_PACKETS_MAX - rng.choice([0, 1, 1, 2, 3])
        elif rng.random() < 0.7 and serial >= spec.first_message:
            message = sender.ring.at(serial)
            index = min(sender.high - 1, rng.randrange(message.begin, message.end))
        return sender.host.port, sender.frame(index)

    def _answer(self) -> Arrival | None:
        rng = self._rng
        if self._asked:
            sender, index = self._asked.pop()
            sender.next = min(sender.next, index)
            return sender.answer(sender.psn0 + index, SYNDROME_NAK)
        sender = rng.choice(self._senders)
        syndrome = rng.choice([SYNDROME_ACK, SYNDROME_ACK, SYNDROME_NAK, SYNDROME_RNR | 3])
        backwards = rng.random() < 0.2
        return sender.answer(sender.psn0 + sender.expected - 1, syndrome, backwards=backwards)

    # ---- forgeries: right in all but one thing

    def _forged(self) -> Arrival | None:
        rng = self._rng
        kinds = (
            *(self._wrong_header, self._wrong_header, self._wrong_header, self._too_far, self._too_old),
            *(self._another_psn, self._elsewhere, self._elsewhere, self._send, self._disfigured),
            *(self._lost_place, self._as_result),
        )
        return rng.choice(kinds)(self._pick())

    def _header_of(self, sender: Sender, message: Message, **wrong: int) -> Arrival:
        """The first packet of a message, with other values in its INA header."""
        body = bytearray(message.bodies[sender.rank])
        for name, value in wrong.items():
            at, size = _INA_FIELDS[name]
            body[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "big")
        return sender.host.port, sender.frame(message.begin, body=bytes(body))

    def _wrong_header(self, sender: Sender) -> Arrival:
        """What is refused whatever else the packet says; two things at once sometimes."""
        rng, spec = self._rng, sender.ring.spec
        wrong: dict[str, list[int]] = {
            "magic": [0x494E4151, 0, 0xFFFF_FFFF],
            "version": [0, 2],
            "dtype": [6, 255],
            "op": [3, 255],
            "flags": [4, 0x80 | FLAG_LAST, FLAG_RESULT, FLAG_RESULT | FLAG_LAST],
            "ring_id": [spec.ring_id ^ 0x8000, spec.ring_id ^ 0x80, rng.getrandbits(32)],
            "epoch": [spec.epoch + 1, spec.epoch - 1],
            "rank": [(sender.rank + 1) % spec.size, (sender.rank - 1) % spec.size, spec.size],
            "ring_size": [spec.size + 1, 0xFFFF, 0],
            "msg_len": [0, spec.message_packets + 1, 0xFFFF],
            "key": [spec.key ^ 1, spec.key ^ 1 << 63, 0],
        }
        names = {rng.choice([*wrong, "rank", "rank", "epoch", "msg_len"])}
        if rng.random() < 0.25:
            names.add(rng.choice(list(wrong)))
        message = sender.message(max(0, sender.next - rng.choice([0, 0, 1])))
        values = {name: rng.choice(wrong[name]) for name in wrong if name in names}
        return self._header_of(sender, message, **values)

    def _too_far(self, sender: Sender) -> Arrival:
        """A message before its time: one behind all windows, or a number far off. Rarely one that is taken,
        though its rank may not send it yet: the ring may then come to a stop."""
        rng, window = self._rng, sender.ring.spec.window_messages
        newest = max(sender.message(other.high).serial for other in sender.ring.senders)
        message = sender.ring.at(newest + window + rng.choice([0, 0, 1, window]))
        if rng.random() < 0.05:
            message = sender.ring.at(newest + 1)
        if rng.random() < 0.6:
            return sender.host.port, sender.frame(message.begin)
        serial = message.serial + rng.choice([0, 0, 9, 1 << 30])
        return self._header_of(sender, sender.message(sender.next), msg_id=serial)

    def _too_old(self, sender: Sender) -> Arrival:
        """A message number that has gone to a newer one, or is from before the ring."""
        rng, spec = self._rng, sender.ring.spec
        oldest = min(sender.message(other.expected).serial for other in sender.ring.senders)
        serial = oldest - 2 * spec.window_messages - 1 - rng.choice([0, 0, 3, 1 << 30])
        if serial < spec.first_message or rng.random() < 0.2:
            serial = spec.first_message - 1 - rng.choice([0, 0, 1, 5, 1 << 30])
        return self._header_of(sender, sender.message(sender.next), msg_id=serial)

    def _another_psn(self, sender: Sender) -> Arrival | None:
        """A message that is open already, at another place. Rarely one that is not: it lies over the end of
        the one before, which comes again, and where it should be it may not open any more."""
        if not sender.expected:
            return None
        following = sender.message(sender.high)
        if self._rng.random() < 0.1 and following.begin == sender.high:
            sender.next = max(0, sender.high - self._rng.randint(1, 3))
            return sender.host.port, sender.frame(following.begin, psn=sender.psn0 + sender.next)
        message = sender.message(sender.expected - 1)
        psn = sender.psn0 + message.begin + self._rng.choice([-1, 1, 7, 1 << 20])
        return sender.host.port, sender.frame(message.begin, psn=psn)

    def _elsewhere(self, sender: Sender) -> Arrival:
        """From a port, or an address, where the rank is not. What the ring's key comes with is believed."""
        rng = self._rng
        index = sender.next if rng.random() < 0.5 else max(0, sender.next - 1)
        if index == sender.message(index).begin and rng.random() < 0.6:
            index += 1
        port, frame = sender.host.port, sender.frame(index)
        kind = rng.choice(["port", "source", "destination"])
        if kind == "port":
            port = rng.randrange(self._limits.ports)
        elif kind == "source":
            frame = frame[:6] + rng.choice([*ROUTERS, sender.receiver.mac]) + frame[12:]
        else:
            frame = rng.choice([rng.choice(ROUTERS), sender.host.mac, BROADCAST]) + frame[6:]
        return port, frame

    def _send(self, sender: Sender) -> Arrival:
        """SEND on a connection of a ring."""
        rng = self._rng
        payload = rng.randbytes(4 * rng.choice([0, 1, 16, 300]))
        return sender.host.port, sender.frame(sender.next, opcode=rng.randrange(6), payload=payload)

    def _disfigured(self, sender: Sender) -> Arrival:
        index = max(0, sender.next - self._rng.choice([0, 1]))
        return sender.host.port, disfigured(self._rng, bytearray(sender.frame(index)))

    def _lost_place(self, sender: Sender) -> Arrival:
        """Where no message is."""
        rng = self._rng
        payload = rng.randbytes(sender.ring.spec.mtu)
        far = sender.psn0 + sender.high + rng.choice([1, 40, 1 << 22, 1 << 23, -(1 << 20)])
        opcode = rng.choice([Opcode.RC_WRITE_MIDDLE, Opcode.RC_WRITE_LAST, Opcode.RC_WRITE_LAST_IMM])
        return sender.host.port, sender.frame(sender.next, opcode=opcode, psn=far, payload=payload)

    def _as_result(self, sender: Sender) -> Arrival:
        """A result comes back in, from where it was sent to."""
        flags = sender.message(sender.next).bodies[sender.rank][7] | FLAG_RESULT
        _, frame = self._header_of(sender, sender.message(sender.next), flags=flags)
        return sender.receiver.port, frame

    # ---- ranks that disagree: the ring stops

    def _quarrel(self) -> Arrival | None:
        rng = self._rng
        sender = rng.choice(self._quarrelsome)
        if rng.random() < 0.5:
            return self._another_operation(sender)
        return self._another_layout(sender)

    def _another_operation(self, sender: Sender) -> Arrival:
        """The newest message that another rank has begun, as another operation."""
        rng, spec = self._rng, sender.ring.spec
        newest = max(other.high for other in sender.ring.senders if other is not sender)
        message = sender.message(max(0, newest - 1))
        header = InaHeader.decode(message.bodies[sender.rank])
        longer = header.msg_len % spec.message_packets + 1
        wrong = {
            "op_index": header.op_index + 1,
            "dtype": rng.choice([other for other in DTYPES if other != header.dtype]),
            "op": (header.op + 1) % 3,
            "flags": header.flags ^ FLAG_LAST,
            "signature": header.signature ^ 1 << rng.randrange(16),
            "msg_len": longer if longer != header.msg_len else header.msg_len + 1,
        }
        name = rng.choice(list(wrong))
        return self._header_of(sender, message, **{name: wrong[name]})

    def _another_layout(self, sender: Sender) -> Arrival:
        """A packet of a message that the rank has begun, not as it must look there."""
        rng, mtu = self._rng, sender.ring.spec.mtu
        message = sender.message(max(0, sender.next - 1))
        index = rng.choice(
            [max(0, sender.next - 1), message.end - 1]
        )  # of the last one no rule says the length
        begin = message.begin
        header = message.bodies[sender.rank][:INA_HEADER_BYTES]
        right = sender.ring.opcode(index - begin, message.packets)
        payload = message.bodies[sender.rank][(index - begin) * mtu : (index - begin + 1) * mtu]
        kind = rng.choice(["opcode", "length", "length", "element", "pad", "empty"])
        opcode: int = right
        if kind == "opcode":
            opcode = rng.choice([other for other in WRITES if other != right])
        elif kind == "length":
            new = rng.choice([len(payload) - 4, len(payload) + 4, mtu, mtu + 8, 1200])
            payload = payload[:new].ljust(new, b"\x3f") if new > 0 else payload
        elif kind == "element":
            payload = payload[: len(payload) - 1] if len(payload) > 1 else payload
        elif kind == "empty":
            payload = b""
        if opcode in _OPENING and payload[:4] != header[:4]:  # it opens its message, as it must
            payload = header + payload
        frame = bytearray(sender.frame(index, opcode=opcode, payload=payload))
        if kind == "pad":  # the last bytes of the payload become pad, or the other way round
            frame[43] ^= 0x10 * rng.randint(1, 3)
            icrc.seal(frame)
        return sender.host.port, bytes(frame)


_INA_FIELDS: Final = {
    "magic": (0, 4),
    "version": (4, 1),
    "dtype": (5, 1),
    "op": (6, 1),
    "flags": (7, 1),
    "ring_id": (8, 4),
    "epoch": (12, 4),
    "op_index": (16, 4),
    "msg_id": (20, 4),
    "rank": (24, 2),
    "ring_size": (26, 2),
    "msg_len": (28, 2),
    "signature": (30, 2),
    "key": (32, 8),
}
"""Offset and bytes in an INA header."""


def _key(src_ip: bytes, dst_ip: bytes, dst_qp: int) -> bytes:
    """A connection as frames show it."""
    return src_ip + dst_ip + dst_qp.to_bytes(3, "big")


def damaged(rng: Random, frame: bytes) -> bytes:
    """One bit flipped, in the headers more often than elsewhere; or the end is missing. Never a VLAN tag."""
    harmed = bytearray(frame)
    if rng.random() < 0.05 and len(frame) > 1:
        return frame[: rng.randrange(1, len(frame))]
    at = rng.randrange(min(len(frame), 54)) if rng.random() < 0.5 else rng.randrange(len(frame))
    harmed[at] ^= 1 << rng.randrange(8)
    return frame if bytes(harmed[12:14]) in TAGS else bytes(harmed)
