"""Frames of every kind that a port may bring, as seeds draw them, and what the golden functions read in them.

``golden`` is built from the functions of :mod:`inaproto.wire` alone; nothing of the RTL is in it but names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

import numpy as np

from inaproto.core.switch.message_packets import OPENING_OPCODES
from inaproto.errors import DecodeError
from inaproto.wire.connection import contradicts_itself, is_plainly_other, lenient_connection
from inaproto.wire.ethernet import EthernetHeader
from inaproto.wire.ina_header import INA_HEADER_BYTES, MAGIC, Dtype, InaHeader, Op
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.roce import Aeth, Bth, Imm, Opcode, Reth, RocePacket
from inaproto.wire.udp import UdpHeader
from inaproto.wire.vector import RoceRun, decode_runs

LENIENT_BYTES: Final = 160
"""The accelerator gives the lenient reading no more of a frame (:mod:`inaproto.core.switch.accelerator`)."""

_RETH: Final = frozenset({Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM})
_IMM: Final = frozenset(
    {Opcode.RC_SEND_LAST_IMM, Opcode.RC_SEND_ONLY_IMM, Opcode.RC_WRITE_LAST_IMM, Opcode.RC_WRITE_ONLY_IMM}
)


# ---- what the golden functions read --------------------------------------------------------------


def golden(frame: bytes) -> dict[str, int]:
    """The fields of ``SEEN`` that hold for this frame."""
    head = frame[:LENIENT_BYTES]
    too_short = len(frame) < 14
    fields = {"too_short": int(too_short), "contradicts": int(contradicts_itself(frame))}
    if not too_short:
        fields |= {"dst_mac": _number(frame[0:6]), "src_mac": _number(frame[6:12])}

    found = None if is_plainly_other(head) or _is_ipv6(head) else lenient_connection(head)
    fields["lenient"] = int(found is not None)
    if found is not None:
        source, target, qp, opcode = found
        fields |= {"lenient_src_ip": _number(source), "lenient_dst_ip": _number(target)}
        fields |= {"lenient_qp": qp, "lenient_opcode": opcode}

    (run,) = decode_runs(np.frombuffer(frame, np.uint8)[np.newaxis])
    fields |= {"roce": 0, "whole": 0, "magic": 0, "ina_fault": 1}
    if isinstance(run, RoceRun):
        fields |= _packet(run)
    return fields


def _is_ipv6(head: bytes) -> bool:
    """The RTL has no rings of hosts with IPv6 addresses, and passes all of it on."""
    at = 12
    while head[at : at + 2] in (b"\x81\x00", b"\x88\xa8") and at < 24:
        at += 4
    return head[at : at + 2] == b"\x86\xdd" and head[at + 2 : at + 3] >= b"\x60"


def _packet(run: RoceRun) -> dict[str, int]:
    fields = {
        "roce": 1,
        "src_ip": _number(run.src_ip),
        "dst_ip": _number(run.dst_ip),
        "opcode": run.opcode,
        "dest_qp": run.dest_qp,
        "psn": int(run.psn[0]),
        "header_bytes": run.header_bytes,
        "payload_bytes": run.payload_bytes,
        "pad": run.pad,
        "whole": int((run.payload_bytes + run.pad) % 4 == 0),
    }
    if run.opcode not in OPENING_OPCODES:
        return fields
    payload = run.payload()[0, :INA_HEADER_BYTES].tobytes()
    fields["magic"] = int(len(payload) == INA_HEADER_BYTES and _number(payload[:4]) == MAGIC)
    try:
        ina = InaHeader.decode(payload)
    except DecodeError:
        return fields
    fields |= {name: getattr(ina, name) for name in INA_FIELDS}
    return fields | {"ina_fault": 0, "ina_last": int(ina.is_last), "ina_result": int(ina.is_result)}


INA_FIELDS: Final = (
    "dtype",
    "op",
    "flags",
    "ring_id",
    "epoch",
    "op_index",
    "msg_id",
    "rank",
    "ring_size",
    "msg_len",
    "signature",
    "key",
)


def _number(data: bytes | bytearray) -> int:
    return int.from_bytes(data, "big")


# ---- frames on a bus -----------------------------------------------------------------------------


def aligned(frame: bytes) -> bytes:
    """The frame as it is inside the accelerator."""
    return bytes(2) + frame


def beats(frame: bytes, words: int) -> list[dict[str, int]]:
    """The frame, aligned or plain, as beats of a bus of so many words."""
    size = 4 * words
    parts = [frame[at : at + size] for at in range(0, len(frame), size)]
    return [
        {
            "data": int.from_bytes(part, "little"),
            "bytes": len(part),
            "first": int(index == 0),
            "last": int(index == len(parts) - 1),
        }
        for index, part in enumerate(parts)
    ]


# ---- random frames -------------------------------------------------------------------------------


def ina_header(rng: Random) -> InaHeader:
    """A right one."""
    ring_size = rng.choice((1, 2, 4, 0x100, 0xFFFF))
    return InaHeader(
        dtype=rng.choice(list(Dtype)),
        op=rng.choice(list(Op)),
        flags=rng.getrandbits(2),
        ring_id=rng.getrandbits(32),
        epoch=rng.getrandbits(32),
        op_index=rng.getrandbits(32),
        msg_id=rng.getrandbits(32),
        rank=rng.choice((0, ring_size - 1, rng.randrange(ring_size))),
        ring_size=ring_size,
        msg_len=rng.choice((1, 0x100, rng.randint(1, 0xFFFF))),
        signature=rng.getrandbits(16),
        key=rng.getrandbits(64),
    )


def damaged_ina_header(rng: Random) -> bytes:
    """A right one with one fault, as a rule: in one case the change may still be a right one."""
    header = bytearray(ina_header(rng).encode())
    match rng.randrange(8):
        case 0:
            header[rng.randrange(4)] ^= 1 << rng.randrange(8)
        case 1:
            header[4] = rng.choice((0, 2, 0x81, 0xFF))
        case 2:
            header[5] = rng.choice((6, 7, 8, 0x10, 0x80, 0xFF))
        case 3:
            header[6] = rng.choice((3, 4, 0x80, 0xFF))
        case 4:
            header[7] ^= 1 << rng.randrange(2, 8)
        case 5:
            header[24:26] = header[26:28]
        case 6:
            header[28:30] = bytes(2)
        case _:
            header[rng.randrange(40)] ^= 1 << rng.randrange(8)
    return bytes(header)


def packet(
    rng: Random,
    opcode: Opcode | None = None,
    payload: bytes | None = None,
) -> RocePacket:
    """A well-formed packet; one that opens a message mostly has an INA header."""
    if opcode is None:
        opcode = rng.choice(list(Opcode))
    if payload is None:
        payload = rng.randbytes(rng.choice((0, 1, 4, 39, 40, 64, rng.randrange(300))))
        if opcode in _RETH:
            wanted = rng.random()
            if wanted < 0.45:
                payload = ina_header(rng).encode() + payload
            elif wanted < 0.8:
                payload = damaged_ina_header(rng) + payload
    return RocePacket(
        eth=EthernetHeader(dst=rng.randbytes(6), src=rng.randbytes(6)),
        ip=Ipv4Header(
            src=rng.randbytes(4),
            dst=rng.randbytes(4),
            total_length=0,
            identification=rng.getrandbits(16),
            flags=rng.choice((0, 2, 4, 6)),
            ttl=rng.getrandbits(8),
            tos=rng.getrandbits(8),
        ),
        udp=UdpHeader(src_port=rng.getrandbits(16), length=0, checksum=rng.choice((0, rng.getrandbits(16)))),
        bth=Bth(
            opcode=opcode,
            dest_qp=rng.getrandbits(24),
            psn=rng.getrandbits(24),
            ack_request=rng.random() < 0.5,
            solicited=rng.random() < 0.5,
            migration=rng.random() < 0.5,
            version=rng.getrandbits(4),
            pkey=rng.getrandbits(16),
            congestion=rng.getrandbits(8),
            reserved=rng.getrandbits(7),
        ),
        reth=Reth(va=rng.getrandbits(64), rkey=rng.getrandbits(32), dma_length=rng.getrandbits(32))
        if opcode in _RETH
        else None,
        imm=Imm(rng.getrandbits(32)) if opcode in _IMM else None,
        aeth=Aeth(syndrome=rng.getrandbits(8), msn=rng.getrandbits(24)) if opcode == Opcode.RC_ACK else None,
        payload=payload,
    )


def roce(rng: Random) -> bytes:
    return packet(rng).encode_frame()


def foreign(rng: Random) -> bytes:
    """What is no RoCEv2: ARP, IPv6, TCP, UDP to other ports, anything."""
    match rng.randrange(6):
        case 0:
            return arp(rng)
        case 1:
            payload = b"\x60" + rng.randbytes(5) + b"\x11" + rng.randbytes(33 + rng.randrange(100))
            return rng.randbytes(12) + b"\x86\xdd" + payload
        case 2:
            frame = bytearray(roce(rng))
            frame[23] = rng.choice((6, 1, 16, 0x91, 0))
            return bytes(frame)
        case 3:
            frame = bytearray(roce(rng))
            frame[36:38] = rng.choice((4790, 4789, 53, 0xB712, 4791 ^ 0x8000)).to_bytes(2, "big")
            return bytes(frame)
        case 4:
            return (
                rng.randbytes(12)
                + rng.choice((b"\x08\x00", b"\x81\x00", b""))
                + rng.randbytes(rng.randrange(120))
            )
        case _:
            return rng.randbytes(rng.randint(1, 40))


def arp(rng: Random) -> bytes:
    """A reply or request, every second one of another sender than its frame."""
    sender = rng.randbytes(5) + rng.choice((b"\0", rng.randbytes(1)))
    inside = sender
    if rng.random() < 0.5:
        at = rng.randrange(6)
        inside = sender[:at] + bytes([sender[at] ^ 1 << rng.randrange(8)]) + sender[at + 1 :]
    body = bytes.fromhex("0806000108000604") + rng.choice((b"\0\1", b"\0\2")) + inside
    return rng.randbytes(6) + sender + body + rng.randbytes(14)


# ---- damage --------------------------------------------------------------------------------------


def tagged(rng: Random, frame: bytes) -> bytes:
    """One to four VLAN tags, a few of a type that is none."""
    types = (b"\x81\x00", b"\x81\x00", b"\x88\xa8", b"\x88\xa8", b"\x91\x00", b"\x81\x01")
    tags = b"".join(rng.choice(types) + rng.randbytes(2) for _ in range(rng.choice((1, 1, 2, 2, 3, 3, 4))))
    return frame[:12] + tags + frame[12:]


def with_options(rng: Random, frame: bytes) -> bytes:
    """IP options, with lengths that follow or do not; also header lengths below 5 words."""
    words = rng.randint(0, 10)
    out = bytearray(frame)
    if len(out) < 34:
        return frame
    out[14] = out[14] & 0xF0 | (5 + words if rng.random() < 0.9 else rng.randrange(16))
    if rng.random() < 0.5:
        total = (_number(out[16:18]) + 4 * words) & 0xFFFF
        out[16:18] = total.to_bytes(2, "big")
    return bytes(out[:34]) + rng.randbytes(4 * words) + bytes(out[34:])


def fragmented(rng: Random, frame: bytes) -> bytes:
    bits = rng.choice((0x2000, 0x0001, 0x1000, 0x00FF, 0x8000, 0x4000, rng.getrandbits(16)))
    return _changed(frame, 20, bits)


def truncated(rng: Random, frame: bytes) -> bytes:
    return frame[: rng.randint(1, len(frame))]


def cut_short(rng: Random, frame: bytes) -> bytes:
    """A few bytes less."""
    return frame[: max(1, len(frame) - rng.randint(1, 8))]


def wrong_lengths(rng: Random, frame: bytes) -> bytes:
    """IP length, UDP length or both are other ones: by the same amount, or not."""
    if len(frame) < 40:
        return frame
    by = rng.choice((rng.randint(-100, 8), rng.randint(-8, 8), rng.getrandbits(16)))
    other = by if rng.random() < 0.7 else rng.choice((0, by + 1, -by))
    out = bytearray(frame)
    for at, change in (16, by), (38, other):
        out[at : at + 2] = ((_number(out[at : at + 2]) + change) & 0xFFFF).to_bytes(2, "big")
    return bytes(out)


def padded(rng: Random, frame: bytes) -> bytes:
    """Ethernet padding behind the datagram, zero or not."""
    size = rng.choice((1, 2, 3, 4, 18, rng.randrange(64)))
    return frame + (bytes(size) if rng.random() < 0.5 else rng.randbytes(size))


def other_opcode(rng: Random, frame: bytes) -> bytes:
    """Any opcode, and any pad."""
    if len(frame) < 44:
        return frame
    out = bytearray(frame)
    out[42] = rng.choice((*(int(opcode) for opcode in Opcode), 0x0C, 0x10, 0x12, 0x81, rng.getrandbits(8)))
    out[43] = rng.getrandbits(8)
    return bytes(out)


def bit_flipped(rng: Random, frame: bytes) -> bytes:
    at = rng.randrange(min(len(frame), 120))
    return frame[:at] + bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]


def byte_changed(rng: Random, frame: bytes) -> bytes:
    at = rng.randrange(min(len(frame), 120))
    return frame[:at] + rng.choice((b"\0", b"\xff", rng.randbytes(1))) + frame[at + 1 :]


def other_type(rng: Random, frame: bytes) -> bytes:
    """Another Ethernet type, with all behind it as it was."""
    return frame[:12] + rng.choice((b"\x08\x06", b"\x86\xdd", b"\x00\x00", b"\x08\x01")) + frame[14:]


DAMAGE: Final[tuple[Callable[[Random, bytes], bytes], ...]] = (
    tagged,
    with_options,
    fragmented,
    truncated,
    cut_short,
    wrong_lengths,
    padded,
    other_opcode,
    bit_flipped,
    byte_changed,
    other_type,
)


def _changed(frame: bytes, at: int, bits: int) -> bytes:
    """The frame with the 16-bit number at ``at`` XORed."""
    if len(frame) < at + 2:
        return frame
    return frame[:at] + (_number(frame[at : at + 2]) ^ bits).to_bytes(2, "big") + frame[at + 2 :]


def frames(seed: int, count: int) -> Iterator[bytes]:
    """Random frames: a third as they should be, the others with one to three kinds of damage."""
    rng = Random(seed)
    for _ in range(count):
        frame = roce(rng) if rng.random() < 0.75 else foreign(rng)
        for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
            frame = rng.choice(DAMAGE)(rng, frame)
        yield frame
