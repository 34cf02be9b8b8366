"""Everything else that a switch sees in a campaign: frames of no ring, and damage.

None has a VLAN tag, or is a whole packet with IP options, and no damage makes one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Final

from inaproto.wire import icrc
from inaproto.wire.ethernet import BROADCAST
from inaproto.wire.ina_header import FLAG_RESULT, INA_HEADER_BYTES
from inaproto.wire.ipv4 import Ipv4Header
from inaproto.wire.packet import PacketBuilder
from inaproto.wire.roce import SYNDROME_ACK, Opcode
from inaproto.wire.vector import EXTENSIONS, FlowTemplate
from inaproto_hil.rtl.equivalence.rings import OPENING, Host, Ring
from inaproto_hil.rtl.equivalence.steps import Arrival

FRAME_BYTES_MAX: Final = 1514
TAGS: Final = (b"\x81\x00", b"\x88\xa8")


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
        opcode = rng.choice([*OPENING, *OPENING, Opcode.RC_SEND_ONLY, Opcode.RC_WRITE_MIDDLE])
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
        frame[16:18] = (len(frame) - 14 - rng.choice([1, 4 * words])).to_bytes(2, "big")
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


def damaged(rng: Random, frame: bytes) -> bytes:
    """One bit flipped, in the headers more often than elsewhere; or the end is missing. Never a VLAN tag."""
    harmed = bytearray(frame)
    if rng.random() < 0.05 and len(frame) > 1:
        return frame[: rng.randrange(1, len(frame))]
    at = rng.randrange(min(len(frame), 54)) if rng.random() < 0.5 else rng.randrange(len(frame))
    harmed[at] ^= 1 << rng.randrange(8)
    return frame if bytes(harmed[12:14]) in TAGS else bytes(harmed)
