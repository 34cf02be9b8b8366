"""What a host needs to know of itself and of a job, to be in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inaproto.core.host.collective_terms import CollectiveTerms
from inaproto.core.host.operations import RingConfig
from inaproto.errors import LocalMisuse
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
    """Packets of a full message, of that MTU."""
    window_messages: int
    stall_ns: int
    timeout_ns: int
    """An all-reduce that has not ended this long after its start is given up; 0: never."""
    recover_ns: int
    """How long ranks wait for a switch that is lost; 0: a job ends with its first ring."""
    mtu_fits: bool = False
    """It is the largest that this host can: a ring may have a smaller one, and messages of as many bytes."""
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

    def with_mtu(self, mtu: int) -> HostConfig:
        """On a path that carries ``mtu``; 0: on the one before. Messages have as many bytes."""
        if not mtu or not self.mtu_fits:
            return self
        return replace(self, mtu=mtu, message_packets=self.message_bytes // mtu)

    def mtu_of(self, ring: Ring) -> int:
        """MTU of that ring. Raises ``LocalMisuse`` for one that messages here cannot have."""
        if ring.mtu and (self.message_bytes % ring.mtu or (ring.mtu != self.mtu and not self.mtu_fits)):
            raise LocalMisuse(f"MTU {ring.mtu} with messages of {self.message_bytes} bytes")
        return ring.mtu or self.mtu

    def ring(self, ring: Ring, ring_id: int | None = None) -> RingConfig:
        """Configuration of the engine on ``ring``, or on the one beside it, ``ring_id``.

        Raises ``LocalMisuse`` for one that cannot be.
        """
        mtu = self.mtu_of(ring)
        return RingConfig(
            ring_id=RingId(ring.ring_id if ring_id is None else ring_id),
            epoch=Epoch(ring.epoch),
            key=ring.ring_key,
            rank=Rank(ring.position),
            ring_size=len(ring.peers),
            mtu=mtu,
            message_packets=self.message_bytes // mtu,
            window_messages=self.window_messages,
            stall_ns=self.stall_ns,
            operations_max=self.operations_max,
            timeout_ns=self.timeout_ns,
            outlived=self.recover_ns > 0,
        )
