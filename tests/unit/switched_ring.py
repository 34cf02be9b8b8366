"""A ring on a switch, packet by packet: what a test says is sent, and what the accelerator makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Action,
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortUp,
)
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.units import Frames, Instant, PortId, S
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
from inaproto.wire.roce import Aeth, Bth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.udp import UdpHeader
from tests.accelerators import make_accelerator
from tests.unit.exact_reference import exact

NOW: Final = Instant(0)
LATER: Final = Instant(S)
MTU: Final = 64


def mac(host: int) -> bytes:
    return bytes([2, 0, 0, 0, 0, host])


def ip(host: int) -> bytes:
    return bytes([10, 0, 0, host])


def into_qp(rank: int) -> int:
    return 0x200 + rank


def flow_of(rank: int, successor: int) -> FlowSpec:
    return FlowSpec(rank, ip(rank), ip(successor), into_qp(successor), mac(rank), mac(successor))


def ring_of(ranks: int = 3, **changes: Any) -> RingSpec:
    """Rank r is host r on port r; window 2, 4 packets a message, MTU 64."""
    flows = tuple(flow_of(rank, (rank + 1) % ranks) for rank in range(ranks))
    spec = RingSpec(
        ring_id=7,
        epoch=3,
        key=0xFEED,
        window_messages=2,
        message_packets=4,
        mtu=MTU,
        flows=flows,
    )
    return replace(spec, **changes)


def nameless(spec: RingSpec) -> tuple[FlowSpec, ...]:
    """The flows of a ring whose hosts' Ethernet addresses nobody knows."""
    return tuple(replace(flow, src_mac=b"", dst_mac=b"") for flow in spec.flows)


def block(*frames: bytes) -> Frames:
    """Frames of one length as a port hands them over."""
    return np.frombuffer(b"".join(frames), np.uint8).reshape(len(frames), -1)


def emitted(actions: Sequence[Action]) -> list[tuple[int, bytes]]:
    """(port, frame) in the order of sending."""
    return [
        (int(action.port), row.tobytes())
        for action in actions
        if isinstance(action, EmitFrames)
        for row in action.frames
    ]


def others(actions: Sequence[Action]) -> list[Action]:
    """What was said beside frames."""
    return [action for action in actions if not isinstance(action, EmitFrames)]


class SwitchedRing:
    """The accelerator with a port per host up, the hosts' addresses learnt and the ring installed.

    Packets of message m have PSN ``psn0 + m * message_packets + offset``: as if every message were full.
    """

    def __init__(
        self,
        ranks: int = 3,
        *,
        config: AcceleratorConfig | None = None,
        extra_ports: int = 1,
        psn0: int = 0xFF_FFFA,
        beside: SwitchedRing | None = None,
        **changes: Any,
    ) -> None:
        """``beside``: at the accelerator of that ring."""
        self.spec = ring_of(ranks, **changes)
        self.psn0 = psn0
        self.epoch = self.spec.epoch
        """Of its headers."""
        self.accelerator: Accelerator = make_accelerator(config) if beside is None else beside.accelerator
        for port in range(ranks + extra_ports):
            self.accelerator.step(PortUp(PortId(port)), NOW)
            self.arrive(port, b"\xff" * 6 + mac(port) + bytes(48))
        assert self.accelerator.step(InstallRing(self.spec), NOW) == []

    # -- packets

    def header(self, rank: int, serial: int, packets: int, **changes: Any) -> InaHeader:
        header = InaHeader(
            dtype=Dtype.I32,
            op=Op.SUM,
            flags=FLAG_LAST,
            ring_id=self.spec.ring_id,
            epoch=self.epoch,
            op_index=serial,
            msg_id=serial & 0xFFFF_FFFF,
            rank=rank,
            ring_size=self.spec.size,
            msg_len=packets,
            signature=0x5151,
            key=self.spec.key,
        )
        return replace(header, **changes)

    def data(self, rank: int, serial: int, offset: int, nbytes: int) -> bytes:
        """What ``rank`` contributes at that place."""
        return np.random.default_rng((self.spec.ring_id, rank, serial, offset)).bytes(nbytes)

    def packet(
        self,
        rank: int,
        serial: int,
        offset: int,
        *,
        packets: int | None = None,
        payload: bytes | None = None,
        opcode: int | None = None,
        psn: int | None = None,
        ip_id: int = 1,
        immediate: bool = True,
        va: int | None = None,
        dest_qp: int | None = None,
        last_bytes: int = MTU,
        claimed_rank: int | None = None,
        **ina: Any,
    ) -> bytes:
        """One packet as the NIC of ``rank`` sends it; keywords change what they name."""
        packets = self.spec.message_packets if packets is None else packets
        final = offset == packets - 1
        if opcode is None:
            opcode = self._opcode(offset, packets, immediate=immediate)
        if payload is None:
            size = last_bytes if final else self.spec.mtu
            claimed = rank if claimed_rank is None else claimed_rank
            head = b"" if offset else self.header(claimed, serial, packets, **ina).encode()
            payload = head + self.data(rank, serial, offset, size - len(head))
        successor = (rank + 1) % self.spec.size
        wide = self.spec.message_packets
        if psn is None:
            psn = (self.psn0 + serial * wide + offset) & 0xFF_FFFF
        with_reth = opcode in (0x06, 0x0A, 0x0B)
        return RocePacket(
            eth=EthernetHeader(dst=mac(successor), src=mac(rank)),
            ip=Ipv4Header(src=ip(rank), dst=ip(successor), total_length=0, identification=ip_id),
            udp=UdpHeader(src_port=0xC111, length=0),
            bth=Bth(
                opcode=opcode, dest_qp=self.spec.flows[rank].dst_qp if dest_qp is None else dest_qp, psn=psn
            ),
            reth=Reth(va=0x1000 * serial if va is None else va, rkey=5, dma_length=packets * MTU)
            if with_reth
            else None,
            imm=Imm(serial & 0xFFFF_FFFF) if opcode in (0x03, 0x05, 0x09, 0x0B) else None,
            payload=payload,
        ).encode_frame()

    @staticmethod
    def _opcode(offset: int, packets: int, *, immediate: bool) -> Opcode:
        if packets == 1:
            return Opcode.RC_WRITE_ONLY_IMM if immediate else Opcode.RC_WRITE_ONLY
        if offset == 0:
            return Opcode.RC_WRITE_FIRST
        if offset < packets - 1:
            return Opcode.RC_WRITE_MIDDLE
        return Opcode.RC_WRITE_LAST_IMM if immediate else Opcode.RC_WRITE_LAST

    def message(self, rank: int, serial: int, **changes: Any) -> list[bytes]:
        packets = changes.get("packets", self.spec.message_packets)
        return [self.packet(rank, serial, offset, **changes) for offset in range(packets)]

    def ack(self, rank: int) -> bytes:
        """Of the receiver on ``rank``'s connection, to its sender."""
        successor = (rank + 1) % self.spec.size
        return RocePacket.build(
            src_mac=mac(successor),
            dst_mac=mac(rank),
            src_ip=ip(successor),
            dst_ip=ip(rank),
            udp_source_port=0xC111,
            bth=Bth(opcode=Opcode.RC_ACK, dest_qp=0x300 + rank, psn=self.psn0),
            aeth=Aeth(syndrome=0x1F, msn=1),
        ).encode_frame()

    # -- arrivals

    def arrive(self, port: int, *frames: bytes) -> list[Action]:
        """In one step, each frame a block of its own."""
        return self.arrive_blocks(port, *(block(frame) for frame in frames))

    def arrive_blocks(self, port: int, *blocks: Frames) -> list[Action]:
        return self.accelerator.step(FramesArrived(PortId(port), blocks), NOW)

    def send(self, rank: int, serial: int, *offsets: int, **changes: Any) -> list[Action]:
        """Packets of a message in one step, by offset; all of them if none are named."""
        frames = self.message(rank, serial, **changes)
        return self.arrive(rank, *(frames[offset] for offset in offsets or range(len(frames))))

    def finish(self, serial: int, **changes: Any) -> list[Action]:
        """The message from every rank; the last one's actions."""
        actions: list[Action] = []
        for rank in range(self.spec.size):
            actions = self.send(rank, serial, **changes)
        return actions

    # -- what should come out

    def result(self, rank: int, serial: int, offset: int, **changes: Any) -> bytes:
        """What the receiver on ``rank``'s connection gets, if all contributed as ``packet`` says."""
        packets = changes.get("packets", self.spec.message_packets)
        final = offset == packets - 1
        skip = 0 if offset else INA_HEADER_BYTES
        size = (changes.get("last_bytes", MTU) if final else self.spec.mtu) - skip
        parts = [self.data(other, serial, offset, size) for other in range(self.spec.size)]
        own = RocePacket.decode_frame(self.packet(rank, serial, offset, **changes))
        dtype, op = changes.get("dtype", Dtype.I32), changes.get("op", Op.SUM)
        header = bytearray(own.payload[:skip])
        if header:
            header[FLAGS_OFFSET] |= FLAG_RESULT
        return replace(own, payload=bytes(header) + exact(dtype, op, parts)).encode_frame()

    def results(self, serial: int, *offsets: int, **changes: Any) -> dict[int, list[bytes]]:
        """By port: the results of a message, all of them if no offsets are named."""
        packets = changes.get("packets", self.spec.message_packets)
        return {
            (rank + 1) % self.spec.size: [
                self.result(rank, serial, offset, **changes) for offset in offsets or range(packets)
            ]
            for rank in range(self.spec.size)
        }


def by_port(actions: Sequence[Action]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for port, frame in emitted(actions):
        found.setdefault(port, []).append(frame)
    return found


def dropped(ring: SwitchedRing) -> dict[str, int]:
    """By rule, when what waits for the first packet of its message has waited in vain."""
    ring.accelerator.step(FramesArrived(PortId(0), ()), LATER)
    return ring.accelerator.view().counters.dropped
