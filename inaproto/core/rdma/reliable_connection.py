"""Vocabulary of RoCE reliable connections (RC): AETH syndromes, outcomes, limits.

Shared by ``requester`` and ``responder``. NetReduce §3.2 keeps
RC transport whole and puts only payload sums between its two ends, so these rules are those of the
InfiniBand Architecture Specification, volume 1, chapter 9, as docs/protocol.md 4 has
them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

ACK: Final = 0x1F
"""AETH syndrome of a plain acknowledgement without credit limit."""
RNR_NAK: Final = 0x20
"""Receiver not ready; the low five bits index :data:`RNR_TIMER_NS`."""
NAK_SEQUENCE: Final = 0x60
NAK_INVALID_REQUEST: Final = 0x61
NAK_REMOTE_ACCESS: Final = 0x62
NAK_REMOTE_OPERATION: Final = 0x63

RETRY_FOREVER: Final = 7
"""A retry count that never runs out, as Soft-RoCE and verbs' ``rnr_retry`` read it."""
TIMEOUT_UNIT_NS: Final = 4_096
TIMEOUT_EXPONENT_MAX: Final = 31
MESSAGE_BYTES_MAX: Final = 1 << 31
"""Longest RC message (the RETH's DMA length could say more, the specification does not allow it)."""
MTUS: Final = (256, 512, 1024, 2048, 4096)

RNR_TIMER_NS: Final = tuple(
    10_000 * centi_ms
    for centi_ms in (
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
        256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    )
)  # fmt: skip
"""Wait that an RNR NAK's timer code asks for (code 0 is the longest)."""


class Outcome(Enum):
    """How a work request ended; the names are those of ``ports.Status``, which no core may import."""

    SUCCESS = "success"
    RETRY_EXCEEDED = "transport retry counter exceeded"
    RNR_RETRY_EXCEEDED = "receiver-not-ready retry counter exceeded"
    REMOTE_ACCESS = "remote access error"
    REMOTE_INVALID_REQUEST = "remote invalid request"
    REMOTE_OPERATION = "remote operational error"
    FLUSHED = "work request flushed"


FATAL_NAKS: Final = {
    NAK_INVALID_REQUEST: Outcome.REMOTE_INVALID_REQUEST,
    NAK_REMOTE_ACCESS: Outcome.REMOTE_ACCESS,
    NAK_REMOTE_OPERATION: Outcome.REMOTE_OPERATION,
}


class SyndromeKind(Enum):
    ACK = "ack"
    RNR = "receiver not ready"
    SEQUENCE = "sequence error"
    FATAL = "fatal"
    RESERVED = "reserved"


def syndrome_kind(syndrome: int) -> SyndromeKind:
    """What an AETH syndrome asks of the requester. The top bit is reserved, ``0b10x`` too."""
    match syndrome >> 5:
        case 0b000:
            return SyndromeKind.ACK
        case 0b001:
            return SyndromeKind.RNR
        case 0b011 if syndrome == NAK_SEQUENCE:
            return SyndromeKind.SEQUENCE
        case 0b011 if syndrome in FATAL_NAKS:
            return SyndromeKind.FATAL
        case _:
            return SyndromeKind.RESERVED


def packets_of(nbytes: int, mtu: int) -> int:
    """Packets of a message; an empty one still needs the packet that carries its headers."""
    return max(1, -(-nbytes // mtu))
