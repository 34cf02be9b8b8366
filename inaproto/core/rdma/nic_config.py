"""What a userspace NIC is: its addresses, its limits, and what it may do beyond Soft-RoCE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inaproto.core.rdma.dcqcn import DcqcnConfig
from inaproto.core.rdma.pacing import PACKET_BY_PACKET, PaceConfig
from inaproto.errors import ConfigError
from inaproto.units import PSN_MASK
from inaproto.wire.outer import IPV6_ADDRESS_BYTES
from inaproto.wire.vlan import TAG_BYTES

OVERHEAD_BYTES_MAX: Final = 14 + 20 + 8 + 12 + 16 + 4 + 4
"""Ethernet, IPv4, UDP, BTH, RETH, IMM and ICRC around the payload of a WRITE_ONLY_IMM."""
IPV6_BYTES_MORE: Final = 20
"""Bytes by which a header of IPv6 is longer."""
VLAN_END: Final = 4095
"""Number of the first VLAN that there is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftNicConfig:
    mac: bytes
    ip: bytes
    """4 bytes, or 16 of IPv6."""
    vlan: int = 0
    """In which its frames are; 0: in none."""
    priority: int = 0
    """PCP of its frames; without a VLAN they have a priority tag if it is not 0."""
    mtu_max: int = 4096
    qps_max: int = 1024
    regions_max: int = 4096
    send_queue_max: int = 1024
    """Writes of one queue pair that are not completed."""
    receive_queue_max: int = 1024
    completions_max: int = 65_536
    outstanding_packets_max: int = 16_384
    """Widest window of a queue pair in PSNs, whatever its attributes; losses narrow it."""
    output_frames_max: int = 16_384
    first_qpn: int = 17
    first_key: int = 1
    selective: bool = False
    """Keep what comes behind a gap, and send again what was lost alone, to peers that can do so, too."""
    repaired: bool = True
    """Let switches say what was lost before them, on selective connections (docs/protocol.md 6.14)."""
    congestion: DcqcnConfig | None = None
    """Rates by DCQCN (docs/protocol.md 4.5); None: its packets say that they bear no congestion marks."""
    pace: PaceConfig = PACKET_BY_PACKET
    """How packets leave that have a rate."""

    @property
    def overhead_bytes(self) -> int:
        """Most bytes of a frame around the payload of its packet."""
        is_ipv6 = len(self.ip) == IPV6_ADDRESS_BYTES
        return OVERHEAD_BYTES_MAX + IPV6_BYTES_MORE * is_ipv6 + TAG_BYTES * bool(self.vlan or self.priority)

    def __post_init__(self) -> None:
        if len(self.mac) != 6 or self.mac[0] & 1:
            raise ConfigError(f"mac must be 6 bytes of a unicast address, not {self.mac.hex(':')!r}")
        if len(self.ip) not in (4, IPV6_ADDRESS_BYTES):
            raise ConfigError(f"ip must be the 4 bytes of an IPv4 address or 16 of IPv6, not {self.ip!r}")
        if not 0 <= self.vlan < VLAN_END or not 0 <= self.priority < 8:
            raise ConfigError(f"vlan must be 0 to {VLAN_END - 1} and priority 0 to 7")
        for name in ("qps_max", "regions_max", "send_queue_max", "receive_queue_max", "completions_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 1 <= self.outstanding_packets_max <= PSN_MASK >> 1:
            raise ConfigError(f"outstanding_packets_max must be 1 to {PSN_MASK >> 1}")
        if not 2 <= self.first_qpn <= PSN_MASK:
            raise ConfigError("first_qpn must be 2 to 0xffffff (0 and 1 are reserved)")
