"""Size, faults and names of the small ring that is explored.

Rank r is host r on port r of the switch. It sends messages on *flow* r, to host r + 1, whose
acknowledgements come back to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.errors import ConfigError
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype, Op, signature
from inaproto.wire.vector import FlowTemplate

MTU: Final = 256
"""The least path MTU that RoCE has."""
RING_ID: Final = 7
EPOCH: Final = 3
KEY: Final = 0xFEED_F00D
RKEY: Final = 5
UDP_SOURCE_PORT: Final = 0xC111
PSN_BITS_MAX: Final = 24
MESSAGES_MAX: Final = 64
RANGES: Final = {
    "ranks": (2, 8),
    "window": (1, 8),
    "length": (1, 8),
    "messages": (1, MESSAGES_MAX),
    "psn_bits": (2, PSN_BITS_MAX),
    "losses": (0, 4),
    "duplicates": (0, 4),
    "early_timers": (0, 4),
}
"""The least and the most of each, by name; what depends on other sizes is not here."""


def check_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} must be {least} to {most}, not {value}")


def mac(host: int) -> bytes:
    return bytes([2, 0, 0, 0, 0, host])


def ip(host: int) -> bytes:
    return bytes([10, 0, 0, host])


def into_qp(rank: int) -> int:
    """The queue pair on which ``rank`` receives."""
    return 0x200 + rank


def out_qp(rank: int) -> int:
    """The queue pair on which ``rank`` sends, and receives acknowledgements."""
    return 0x300 + rank


def _flow(rank: int, successor: int) -> FlowSpec:
    return FlowSpec(rank, ip(rank), ip(successor), into_qp(successor), mac(rank), mac(successor))


@dataclass(frozen=True, kw_only=True)
class RingWorldConfig:
    """Raises ``ConfigError`` for sizes that no ring can have, or that mean nothing."""

    ranks: int = 2
    window: int = 1
    length: int = 1
    """Packets of a message."""
    messages: int = 4
    last_packets: int = 0
    """Packets of the last message; 0: as many as the others have."""
    psn_bits: int = 3
    id_bits: int = 0
    """Bits of ``msg_id``; 0: as few as a ring can have, 32 where packets come late."""
    losses: int = 0
    duplicates: int = 0
    early_timers: int = 0
    """Retransmission timers that expire although all that the rank sent is on its way or waited for."""
    spare_acks: bool = False
    """Losses and duplicates strike data and results only."""
    reorder: bool = False
    """A packet that is duplicated has its copy anywhere and any time later, or comes late itself."""
    in_place: bool = True
    """Results replace the input in its buffer, as the product does it: a resend then carries the sum."""
    held_for_acks: bool = True
    """Message m + N waits for the acknowledgement of m, as the product has it; without, of m + 2N."""
    ack_every: int = 0
    """Packets of an acknowledgement group; 0: as many as the transport's window has."""
    transport_window: int = 0
    """Packets that a sender has unacknowledged at most; 0: as many as PSNs of this width allow."""
    reduced: bool = True
    """Use the reductions that ``ring_world`` argues for."""

    def __post_init__(self) -> None:
        for name, (least, most) in RANGES.items():
            check_range(name, getattr(self, name), least, most)
        check_range("last_packets", self.last_packets, 0, self.length)
        check_range("transport_window", self.transport_window, 0, self.psn_mask >> 1)
        check_range("ack_every", self.ack_every, 0, self.psn_mask >> 1)
        if self.window & (self.window - 1):
            raise ConfigError(f"window must be a power of two, not {self.window}")
        if 2 * self.window * self.length > 1 << (self.psn_bits - 1):
            raise ConfigError(
                f"psn_bits {self.psn_bits} is too narrow: twice the window of {self.window} messages of "
                f"{self.length} packets must fit half of the PSN space"
            )
        if self.reorder and not self.duplicates:
            raise ConfigError("duplicates must be at least 1 with reorder: only those packets come late")
        if self.reorder and self.packets > 1 << (self.psn_bits - 1):
            raise ConfigError(
                f"psn_bits {self.psn_bits} is too narrow for packets that come late: {self.packets} packets "
                "must fit half of the PSN space, or an old one would be taken for a new one"
            )

    @property
    def packets(self) -> int:
        """Packets of each rank."""
        return self.messages * self.length

    @property
    def last_message_packets(self) -> int:
        return self.last_packets or self.length

    @property
    def slots_used_again(self) -> bool:
        return self.messages > 2 * self.window

    @property
    def psns_used_again(self) -> bool:
        return (self.messages - 1) * self.length + self.last_message_packets > 1 << self.psn_bits

    @property
    def psn_mask(self) -> int:
        return (1 << self.psn_bits) - 1

    @property
    def outstanding_packets_max(self) -> int:
        return self.transport_window or self.psn_mask >> 1

    @property
    def initial_psn(self) -> int:
        """The PSN wraps behind the second packet."""
        return self.psn_mask - 1

    @property
    def msg_id_bits(self) -> int:
        narrow = (2 * self.window).bit_length() + 1
        return self.id_bits or (32 if self.reorder else narrow)

    @property
    def message_bytes(self) -> int:
        return self.length * MTU

    @property
    def tensor_bytes(self) -> int:
        """Tensor bytes of a full message."""
        return self.message_bytes - INA_HEADER_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of the one operation that all messages belong to."""
        short = (self.length - self.last_message_packets) * MTU
        return self.messages * self.tensor_bytes - short

    @cached_property
    def spec(self) -> RingSpec:
        flows = tuple(_flow(rank, (rank + 1) % self.ranks) for rank in range(self.ranks))
        return RingSpec(
            ring_id=RING_ID,
            epoch=EPOCH,
            key=KEY,
            window_messages=self.window,
            message_packets=self.length,
            mtu=MTU,
            flows=flows,
            psn_bits=self.psn_bits,
            msg_id_bits=self.msg_id_bits,
        )

    @cached_property
    def signature(self) -> int:
        return signature(Dtype.I32, Op.SUM, (self.nbytes // 4,))

    @cached_property
    def inputs(self) -> tuple[bytes, ...]:
        """What each rank contributes, int32: no two elements of any ranks alike, nor any two sums."""
        count = self.nbytes // 4
        base = np.arange(1, count + 1, dtype=np.int64)
        return tuple(
            ((base * 8 + rank) * 2654435761 % 0x7FFF_FFFF).astype("<i4").tobytes()
            for rank in range(self.ranks)
        )

    @cached_property
    def expected(self) -> bytes:
        """The exact sums, by plain addition and not by the product's functions."""
        total = np.zeros(self.nbytes // 4, np.uint32)
        for contribution in self.inputs:
            total += np.frombuffer(contribution, "<u4")
        return total.tobytes()

    def data_template(self, rank: int) -> FlowTemplate:
        after = (rank + 1) % self.ranks
        return FlowTemplate(mac(rank), mac(after), ip(rank), ip(after), UDP_SOURCE_PORT, into_qp(after))

    def ack_template(self, rank: int) -> FlowTemplate:
        """Template of what ``rank`` answers on the flow that it receives."""
        before = (rank - 1) % self.ranks
        return FlowTemplate(mac(rank), mac(before), ip(rank), ip(before), UDP_SOURCE_PORT, out_qp(before))

    def position(self, ip_id: int) -> tuple[int, int]:
        """(message, packet) of an IP identification; see ``packet_table``."""
        return divmod(ip_id - 1, self.length)
