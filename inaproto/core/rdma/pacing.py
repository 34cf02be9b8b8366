"""How many packets of a flow may leave now, where the flow has a rate.

A bucket fills with the flow's rate, and each packet takes what its frame has; one that is sent all the same
(what was lost and goes again) leaves a debt. The bucket holds ``burst_bytes``, or two packets if that is
more, so a flow that was silent sends no more than that at once. A clock that cannot wake for each packet
takes ``quantum_ns``: packets wait until those of so much time may leave together, and the bucket holds two of
these.

Integers throughout: the bucket counts billionths of bits, so that no rate and no time is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from inaproto.errors import ConfigError
from inaproto.units import Instant

FRAME_OVERHEAD_BYTES: Final = 14 + 20 + 8 + 12 + 4
"""Ethernet, IPv4, UDP, BTH and ICRC around the payload of a packet in the middle of a message."""
_PER_BYTE: Final = 8 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceConfig:
    burst_bytes: int = 0
    quantum_ns: int = 0

    def __post_init__(self) -> None:
        if self.burst_bytes < 0 or self.quantum_ns < 0:
            raise ConfigError(f"pacing: burst_bytes and quantum_ns must be at least 0: {self}")


PACKET_BY_PACKET: Final = PaceConfig()


class Pace:
    def __init__(self, config: PaceConfig, packet_bytes: int, rate_bps: int, now: Instant) -> None:
        """``packet_bytes``: of the payload of a packet. A flow begins with an empty bucket."""
        self._config = config
        self._cost = (packet_bytes + FRAME_OVERHEAD_BYTES) * _PER_BYTE
        self._filled = 0
        self._at = now
        self._take_rate(rate_bps)

    @property
    def rate_bps(self) -> int:
        return self._rate

    def set_rate(self, rate_bps: int, now: Instant) -> None:
        """From now on; what was filled before was filled at the rate before."""
        self._fill(now)
        self._take_rate(rate_bps)

    def packets(self, now: Instant) -> int:
        """How many may leave now."""
        self._fill(now)
        return self._filled // self._cost if self._filled >= self._enough else 0

    def spend(self, packets: int) -> None:
        """So many have left."""
        self._filled -= packets * self._cost

    def ready_at(self) -> Instant:
        """When packets may leave again."""
        missing = self._enough - self._filled
        return self._at if missing <= 0 else Instant(self._at - (-missing // self._rate))

    def _take_rate(self, rate_bps: int) -> None:
        config = self._config
        self._rate = rate_bps
        self._enough = max(self._cost, rate_bps * config.quantum_ns)
        """So much is filled before any packet leaves."""
        self._most = max(config.burst_bytes * _PER_BYTE, 2 * self._enough)
        self._filled = min(self._filled, self._most)

    def _fill(self, now: Instant) -> None:
        if now > self._at:
            self._filled = min(self._most, self._filled + self._rate * (now - self._at))
            self._at = now
