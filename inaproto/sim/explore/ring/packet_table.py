"""Packets of the explored ring as small numbers: real frames, each kept and decoded once.

The IP identification of a data packet is not a counter here but the packet's place among all packets of
its rank, so that a resend is the same packet as the original unless its bytes matter; nothing in switch or
hosts reads the field. The accelerator keeps it in results, which is how a checker knows for certain which
packet a result stands for, whatever its PSN says.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from inaproto.core.rdma.reliable_connection import NAK_SEQUENCE
from inaproto.errors import InvariantBroken
from inaproto.sim.explore.ring.config import RingWorldConfig
from inaproto.units import Frames
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import RoceRun, decode_runs


class Path(IntEnum):
    """The three stretches of a flow."""

    DATA = 0
    """From its sender to the switch."""
    RESULT = 1
    """From the switch to its receiver."""
    ACK = 2
    """From its receiver to its sender, through the switch."""


PATHS: Final = len(Path)
Channel = int
"""``flow * PATHS + path``"""
Sent = tuple[tuple[Channel, int], ...]
"""(channel, packet number) in the order of sending."""


class KnownPacket(NamedTuple):
    frames: Frames
    """uint8 (1, n)"""
    run: RoceRun
    flow: int
    message: int
    offset: int
    """Its place in the message; -1 for an acknowledgement."""
    is_nak: bool


class PacketTable:
    """Numbers for frames; equal frames have one number."""

    def __init__(self, config: RingWorldConfig) -> None:
        self._config = config
        self._number: dict[bytes, int] = {}
        self._packets: list[KnownPacket] = []

    def __getitem__(self, number: int) -> KnownPacket:
        return self._packets[number]

    def __len__(self) -> int:
        return len(self._packets)

    def number(self, frame: bytes) -> int:
        known = self._number.get(frame)
        if known is None:
            known = self._number[frame] = len(self._packets)
            self._packets.append(self._decode(frame))
        return known

    def _decode(self, frame: bytes) -> KnownPacket:
        frames = np.frombuffer(frame, np.uint8)[None]
        run = next(iter(decode_runs(frames)))
        if not isinstance(run, RoceRun) or not run.intact():
            raise InvariantBroken("a frame of the ring is no sealed RoCEv2 packet")
        if run.opcode == Opcode.RC_ACK:
            assert run.aeth is not None, "an ACK has an AETH"
            return KnownPacket(frames, run, run.dst_ip[3], -1, -1, run.aeth[0] == NAK_SEQUENCE)
        message, offset = self._config.position(int.from_bytes(frame[18:20], "big"))
        return KnownPacket(frames, run, run.src_ip[3], message, offset, False)

    def describe(self, number: int) -> str:
        packet = self._packets[number]
        psn = int(packet.run.psn[0])
        if packet.offset >= 0:
            return f"packet {packet.offset} of message {packet.message} (PSN {psn})"
        return f"NAK of PSN {psn}" if packet.is_nak else f"ACK up to PSN {psn}"
