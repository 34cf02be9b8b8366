"""Valid records of every decoder, few and small, chosen to differ in shape: the seeds of the fuzzers."""

from __future__ import annotations

from typing import Final

import numpy as np

from inaproto.units import PortId
from inaproto.wire.control import LENGTH_BYTES, encode_control
from inaproto.wire.control_messages import (
    AskCalls,
    Calls,
    Error,
    Failed,
    Hello,
    IntoAddress,
    JobStatus,
    Member,
    OutAddress,
    Ping,
    RankRefused,
    Ring,
    StatusReply,
    Welcome,
    encode_message,
)
from inaproto.wire.files.log_entries import encode_entry
from inaproto.wire.files.pcapng import CaptureWriter, Direction, Interface
from inaproto.wire.ina_header import FLAG_LAST, Dtype, InaHeader, Op, signature
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.messages.array_frames import encode_frame
from inaproto.wire.messages.client import AllReduce, Done, Filled, Join, Joined, Leave, Taken
from inaproto.wire.messages.clocks import Clocks, WorkerId
from inaproto.wire.messages.controller import (
    AgentHello,
    AgentPlacement,
    AgentReport,
    AgentWhere,
    AgentWishes,
    GrantRecord,
    HoldRecord,
    SlotRecord,
)
from inaproto.wire.messages.ina import InaPark, InaParked, InaStands
from inaproto.wire.messages.model_connections import (
    ModelJoin,
    ModelPulled,
    OverlayHello,
    OverlayNoQueuePair,
    OverlayQueuePair,
    OverlayState,
)
from inaproto.wire.messages.models import Attach, Epoch, Push, Reshaped, ShardState
from inaproto.wire.messages.probe import LinkProbe, LinkProbed, LinkProbeWord
from inaproto.wire.messages.slots import Lease, Order, Outcome, SlotAnswer, SlotRequest
from inaproto.wire.messages.switch import (
    FlowRecord,
    PoolSpec,
    RingFaulted,
    RingInstall,
    Role,
    SwitchHello,
    TrunkReport,
    VirtualConnection,
)
from inaproto.wire.messages.trees import (
    FabricTree,
    TreeReport,
    TreeState,
    TreeWished,
    TreeWishes,
)
from inaproto.wire.roce import SYNDROME_ACK, SYNDROME_NAK, Aeth, Bth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.tree_note import NoteKind, TreeNote
from inaproto.wire.trunk_hello import TrunkHello
from inaproto.wire.udp import UdpHeader
from inaproto.wire.vector import FlowTemplate

MAC_A, MAC_B = bytes.fromhex("525400000001"), bytes.fromhex("525400000002")
IP_A, IP_B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])

INA_HEADERS: Final = tuple(
    InaHeader(
        dtype=dtype,
        op=op,
        flags=flags,
        ring_id=3,
        epoch=1,
        op_index=9,
        msg_id=msg_id,
        rank=1,
        ring_size=4,
        msg_len=170,
        signature=signature(dtype, op, (64, 10)),
        key=0x0123456789ABCDEF,
    ).encode()
    for dtype, op, flags, msg_id in (
        (Dtype.F32, Op.SUM, 0, 0),
        (Dtype.BF16, Op.MAX, FLAG_LAST, 0xFFFFFFFF),
        (Dtype.I64, Op.MIN, FLAG_LAST, 77),
    )
)


def _frame(opcode: Opcode, payload: bytes = b"", aeth: Aeth | None = None) -> bytes:
    with_reth = opcode in {Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM}
    with_imm = opcode in {
        Opcode.RC_WRITE_LAST_IMM,
        Opcode.RC_WRITE_ONLY_IMM,
        Opcode.RC_SEND_LAST_IMM,
        Opcode.RC_SEND_ONLY_IMM,
    }
    return RocePacket.build(
        src_mac=MAC_A,
        dst_mac=MAC_B,
        src_ip=IP_A,
        dst_ip=IP_B,
        udp_source_port=0xC121,
        ip_id=5,
        bth=Bth(opcode=opcode, dest_qp=17, psn=0xFFFFFE, ack_request=with_imm),
        reth=Reth(va=1 << 40, rkey=7, dma_length=len(payload)) if with_reth else None,
        imm=Imm(3) if with_imm else None,
        aeth=aeth,
        payload=payload,
    ).encode_frame()


FRAMES: Final = (
    *(_frame(opcode, bytes(range(16))) for opcode in Opcode if opcode != Opcode.RC_ACK),
    _frame(Opcode.RC_WRITE_FIRST, INA_HEADERS[0] + bytes(24)),
    _frame(Opcode.RC_WRITE_ONLY_IMM, bytes(5)),
    _frame(Opcode.RC_WRITE_LAST),
    _frame(Opcode.RC_ACK, aeth=Aeth(syndrome=SYNDROME_ACK, msn=1)),
    _frame(Opcode.RC_ACK, aeth=Aeth(syndrome=SYNDROME_NAK, msn=0xFFFFFF)) + bytes(6),
    MAC_B + MAC_A + b"\x08\x06" + bytes(46),
)
TREE_NOTES: Final = tuple(
    TreeNote(
        kind=kind, rank=1, ring_id=7, epoch=3, msg_id=9, offset=offset, count=count, key=5, header=header
    ).encode()
    for kind, offset, count, header in (
        (NoteKind.OPENS, 0, 0, _frame(Opcode.RC_WRITE_FIRST)[:70]),
        (NoteKind.REPEATS, 2, 5, b""),
        (NoteKind.GAP, 4, 0, b""),
    )
)

TRUNK_HELLOS: Final = (
    TrunkHello(mac=MAC_A, switch="leaf0", peer="spine", boot_id="0123456789abcdef").encode(),
    TrunkHello(mac=MAC_B, switch="s", peer="p", boot_id="b").encode(),
    TrunkHello(mac=MAC_A, switch="\N{SNOWMAN}" * 20, peer="p" * 128, boot_id="b").encode(),
)

IPV4_DATAGRAMS: Final = (
    *(frame[14:] for frame in FRAMES[:4]),
    Ipv4Header(src=IP_A, dst=IP_B, total_length=32, protocol=1, options=b"\x07\x07\x04" + bytes(5)).encode()
    + bytes(10),
)
UDP_DATAGRAMS: Final = (
    *(frame[34:] for frame in FRAMES[:4]),
    UdpHeader(src_port=1, dst_port=2, length=8).encode(),
)
BTHS: Final = tuple(frame[42:54] for frame in FRAMES[:-1])
RETHS: Final = (Reth(va=1 << 40, rkey=7, dma_length=4096).encode(),)
IMMS: Final = (Imm(3).encode(),)
AETHS: Final = (Aeth(syndrome=SYNDROME_ACK, msn=1).encode(), Aeth(syndrome=SYNDROME_NAK, msn=2).encode())

_FLOW: Final = FlowTemplate(MAC_A, MAC_B, IP_A, IP_B, udp_source_port=0xC121, dest_qp=17)


def _run(opcode: Opcode, n: int, payload_bytes: int) -> bytes:
    frames = _FLOW.build(
        opcode=opcode,
        psns=np.arange(0xFFFFFE, 0xFFFFFE + n),
        ack_request=np.arange(n) % 2 == 1,
        ip_id=0xFFFF,
        payload=np.arange(n * payload_bytes, dtype=np.uint8).reshape(n, payload_bytes),
        aeth=(SYNDROME_ACK, 1) if opcode == Opcode.RC_ACK else None,
    )
    return len(frames[0]).to_bytes(2, "big") + frames.tobytes()


RUNS: Final = (
    _run(Opcode.RC_WRITE_MIDDLE, 4, 32),
    _run(Opcode.RC_WRITE_LAST, 2, 13),
    _run(Opcode.RC_SEND_ONLY, 3, 0),
    _run(Opcode.RC_ACK, 3, 0),
    *(len(frame).to_bytes(2, "big") + frame for frame in FRAMES),
)


def _framed(*frames: bytes) -> bytes:
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


FRAME_STREAMS: Final = (
    b"\xff" + _framed(*FRAMES),
    b"\x07" + _framed(*FRAMES[:3] * 2),
    b"\xff" + _framed(*[FRAMES[-2]] * 12, *[FRAMES[0]] * 3),
    b"\x1f" + _framed(b"runt", FRAMES[-1], b"\x00", FRAMES[-2]),
)

_OUT: Final = OutAddress(mac=MAC_A, ip=IP_A, qpn=17, psn=0x100)
_INTO: Final = IntoAddress(
    mac=MAC_B, ip=IP_B, qpn=18, psn=0x200, va=1 << 40, rkey=3, slots=4, slot_bytes=1 << 18
)
_LINK: Final = VirtualConnection(
    peer="spine",
    port=PortId(1),
    here_mac=MAC_A,
    here_ip=IP_A,
    there_mac=MAC_B,
    there_ip=IP_B,
    qp=0x80_0007,
    rank=0,
)
_LEASE: Final = Lease(job="digits", tree=3, epoch=7)
_MESSAGES: Final = (
    Join(id=1, job="digits", rank=0, size=4, key="secret", pid=4711),
    Joined(id=1, ring_id=1, rank=0, size=4),
    AllReduce(id=2, op_index=0, segment=0, offset=64, nbytes=2560, dtype=0, op=0, shape=(64, 10)),
    AllReduce(id=3, op_index=1, segment=0, offset=0, nbytes=8, dtype=0, op=0, shape=(2,), whole=(3,)),
    AllReduce(id=3, op_index=2, segment=0, offset=0, nbytes=8, dtype=0, op=0, shape=(2,), filled=4),
    Filled(id=4, op_index=2, nbytes=8),
    Taken(op_index=2, nbytes=4),
    Leave(id=4, reason="ring 1 of 2 failed"),
    Done(id=2, op_index=0, path="switch", ns=123456),
    StatusReply(id=3, body={"rings": [{"job": "digits", "ranks": [0, 1]}], "load": 0.5, "up": True}),
    Error(id=4, code="rank_lost", message="rank 3 is gone", of=2, op_index=0),
    Hello(id=1, host="h1", mac=MAC_A, ip=IP_A),
    Welcome(id=1, boot_id="b", port_path="/run/ports.sock", mtu_max=4096),
    Member(
        id=5,
        job="digits",
        rank=1,
        size=4,
        key="secret",
        pid=4711,
        host="h1",
        mtu=1024,
        window_messages=4,
        message_packets=170,
        out=_OUT,
        into=_INTO,
    ),
    Ring(
        id=5,
        job="digits",
        ring_id=1,
        epoch=0,
        ring_key=99,
        position=1,
        successor=_INTO,
        predecessor=_OUT,
        peers=("h1", "h2"),
        ranks=((0, 2), (1,)),
    ),
    JobStatus(id=6, job="digits", waiting_for=(1, 2)),
    JobStatus(id=6, job="digits", waiting_for=(1,), refused="rank 1 (h1, pid 7) was refused: wrong key"),
    AskCalls(job="digits"),
    Calls(job="digits", rank=1, first=5, calls=("sum of float32 (30,)", "max of int32 (1,)")),
    RankRefused(id=6, job="digits", rank=1, pid=7, reason="the rank is held by process 8"),
    Failed(id=7, job="digits", code="tensor_mismatch", message="rank 2 has shape (3,)"),
    Ping(id=8),
    SwitchHello(id=1, switch="leaf0", boot_id="b", fabric="0123"),
    InaPark(job="digits", ring_id=7, epoch=3),
    InaParked(job="digits", rank=1, ring_id=7, epoch=3, messages=1 << 40),
    InaStands(job="digits", ring_id=7, epoch=4, pool="shared@spine1"),
    RingInstall(
        id=9,
        ring_id=7,
        epoch=1,
        ring_key=99,
        window_messages=2,
        message_packets=4,
        mtu=256,
        flows=(
            FlowRecord(src_ip=IP_A, dst_ip=IP_B, dst_qp=17),
            FlowRecord(src_ip=IP_B, dst_ip=IP_A, dst_qp=18),
        ),
        role=Role(
            inputs=(0, _LINK),
            parent=_LINK,
            delivers=(0,),
            notes=((1, _LINK),),
            steered=(),
            passes=(_LINK,),
            below=(PortId(2), PortId(3)),
        ),
        pool=PoolSpec(name="group 3", capacity=2),
    ),
    TrunkReport(error="cannot connect to /run/trunk-leaf1.sock: there is no such socket"),
    TrunkReport(error="lost", above="spine1"),
    RingFaulted(id=10, ring_id=7, rank=1, rule="operations differ", evidence="rank 1 has another shape"),
    AgentHello(id=1, role="switch", agent="leaf0", boot_id="b"),
    AgentWishes(
        term=2,
        revision=7,
        grants=(
            GrantRecord(
                grant=5, job=1, name="digits", kind="tree", slots=(SlotRecord(port="l - s", number=0),)
            ),
            GrantRecord(
                grant=6, job=1, name="digits", kind="seats", slots=(), ranks=2, size=8, token_hash="00"
            ),
            GrantRecord(grant=7, job=2, name="letters", kind="seats", slots=(), ranks=2, elastic=True),
        ),
    ),
    AgentWhere(job="digits"),
    AgentPlacement(job="digits", hosts=("h2", "h3"), ranks_per_host=4),
    AgentReport(revision=7, holds=(HoldRecord(grant=6, phase="failed", reason="rank 1 is gone"),)),
    SlotRequest(id=11, term=1, number=2, boot="b", order=Order.ACQUIRE, lease=_LEASE),
    SlotAnswer(
        id=12,
        switch="leaf0",
        boot="b",
        term=1,
        number=2,
        outcome=Outcome.GRANTED,
        held=(_LEASE,),
        newest_term=1,
    ),
    TreeWishes(
        id=14,
        term=2,
        revision=3,
        trees=(
            TreeWished(
                job="a",
                epoch=4,
                tree=FabricTree(
                    "spine1",
                    (("leaf0", "spine1"),),
                    passing=("leaf0",),
                ),
            ),
            TreeWished(job="b", epoch=2),
        ),
    ),
    TreeReport(
        id=15,
        term=2,
        revision=3,
        trees=(TreeState(job="a", hosts=("h0", "h1"), epoch=4, phase="standing", pool="shared@spine1"),),
    ),
    ModelJoin(id=16, model="digits", pid=4711),
    ModelPulled(id=17, clock=4, model_clock=3, oldest=3, newest=5, staleness=1),
    OverlayHello(process="h1", model="digits", shard=1, digest="0123", life=1 << 60, no_nic="gone"),
    OverlayState(
        clocks=Clocks({WorkerId(0): 7, WorkerId(1): 3}),
        absent=((1, 20_000),),
        fault="No space left on device",
    ),
    OverlayQueuePair(
        mac=b"\2\0\12\0\0\1", ip=b"\12\0\0\1", qpn=17, psn=0, va=1 << 40, rkey=7, nbytes=1 << 20, mtu=4096
    ),
    LinkProbe(id=7, peer="h1", nbytes=1 << 20),
    LinkProbeWord(id=7, kind="answer", mac=b"\2\0\12\0\0\1", qpn=17, va=1 << 40, rkey=7, nbytes=1 << 20),
    LinkProbed(id=7, latency_ns=20_000, rate_bps=10**10),
    OverlayNoQueuePair(why="nothing comes by the NIC within 5 s"),
    Attach(3, (WorkerId(0), WorkerId(4)), Clocks({WorkerId(0): 7, WorkerId(4): (1 << 63) - 1})),
    Push(
        3,
        7,
        Clocks({WorkerId(0): 6, WorkerId(4): 6}),
        Clocks({WorkerId(0): 7, WorkerId(4): 7}),
        np.zeros(9, np.int64),
    ),
    Reshaped(Epoch(3, 0, 2, 1 << 40)),
    ShardState(
        model="digits",
        shard=0,
        first=0,
        elements=9,
        dtype="int64",
        clocks=Clocks({WorkerId(0): 7}),
        weights=np.zeros(9, np.int64),
    ),
)
_FRAMED: Final = (
    *map(encode_message, _MESSAGES),
    encode_control("teleport", 9, to={"planet": ["mars", None, -1, b"\x00", 1e300]}),
)
CONTROL_RECORDS: Final = tuple(message[LENGTH_BYTES:] for message in _FRAMED)
CONTROL_STREAMS: Final = (
    b"\xff" + b"".join(_FRAMED),
    b"\x00" + _FRAMED[0] + _FRAMED[-2],
    b"\x06" + b"".join(_FRAMED[3:6]),
)
_ARRAYS: Final = (np.arange(6, dtype=np.int32).data, np.arange(3.0).data)
_FRAMES_OF_ARRAYS: Final = tuple(
    b"".join(encode_frame(message, _ARRAYS[: index % 3])) for index, message in enumerate(_FRAMED[:6])
)
ARRAY_STREAMS: Final = (
    b"\xff" + b"".join(_FRAMES_OF_ARRAYS),
    b"\x00" + _FRAMES_OF_ARRAYS[2],
    b"\x10" + _FRAMES_OF_ARRAYS[0] + _FRAMES_OF_ARRAYS[4],
)


def _log(bodies: tuple[bytes, ...]) -> bytes:
    """Each entry knows those before it to be on disk."""
    data = b""
    for body in bodies:
        data += b"".join(encode_entry([memoryview(body)], len(data)))
    return data


LOGS: Final = (_log(_FRAMES_OF_ARRAYS), _log((b"", bytes(9), b"iPLe")), _log(_FRAMES_OF_ARRAYS[:1]))


def _captures() -> tuple[bytes, ...]:
    writer = CaptureWriter([Interface("h0"), Interface("uplink", snaplen=30)])
    frames = np.arange(120, dtype=np.uint8).reshape(2, 60)
    pcapng = writer.header() + writer.packets(0, 1, frames, Direction.INBOUND, dropped=3).tobytes()
    pcapng += writer.packets(1, 2, frames[:1]).tobytes() + writer.statistics(0, 3, received=2, dropped=3)
    pcap = bytes.fromhex("a1b2c3d4 0002 0004 00000000 00000000 0000ffff 00000001")
    pcap += bytes.fromhex("00000001 00000002 00000004 0000003c 01020304")
    return tuple(bytes([step]) + data for data in (pcapng, pcap) for step in (2, 255))


CAPTURES: Final = _captures()
"""One byte that says how the stream is cut, then the stream."""
