"""What a host needs to know of itself and of a job, to be in it."""

from __future__ import annotations

from dataclasses import dataclass

from inaproto.core.host.collective_terms import CollectiveTerms
from inaproto.core.host.operations import RingConfig
from inaproto.units import Epoch, Rank, RingId, S
from inaproto.wire.control_messages import Ring
from inaproto.wire.ina_header import INA_HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """What holds for one job on one host."""

    job: str
    host: str
    """Its name."""
    mtu: int
    message_packets: int
    window_messages: int
    stall_ns: int
    timeout_ns: int
    """An all-reduce that has not ended this long after its start is given up; 0: never."""
    recover_ns: int
    """How long ranks wait for a switch that is lost; 0: a job ends with its first ring."""
    operations_max: int = 4096
    """All-reduces of a rank that have not ended."""
    collective: CollectiveTerms | None = None
    """What the collective library of this host takes, if it has one."""
    try_ns: int = 10 * S
    """How long the collective may take for one operation, the lateness of other hosts included."""

    @property
    def message_bytes(self) -> int:
        return self.message_packets * self.mtu

    @property
    def tensor_bytes(self) -> int:
        """Tensor bytes of a message, at most."""
        return self.message_bytes - INA_HEADER_BYTES

    def ring(self, ring: Ring, ring_id: int | None = None) -> RingConfig:
        """Configuration of the engine on ``ring``, or on the one beside it, ``ring_id``."""
        return RingConfig(
            ring_id=RingId(ring.ring_id if ring_id is None else ring_id),
            epoch=Epoch(ring.epoch),
            key=ring.ring_key,
            rank=Rank(ring.position),
            ring_size=len(ring.peers),
            mtu=self.mtu,
            message_packets=self.message_packets,
            window_messages=self.window_messages,
            stall_ns=self.stall_ns,
            operations_max=self.operations_max,
            timeout_ns=self.timeout_ns,
            outlived=self.recover_ns > 0,
        )
