"""Congestion control of one queue pair: what it says of marks that come, and the rate of what it sends.

The rules are those of :mod:`inaproto.core.rdma.dcqcn`; here they have one deadline. Data packets alone count:
an acknowledgement that was marked says that the way back is congested, which the sender of acknowledgements
cannot help.
"""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.dcqcn import (
    BytesSent,
    CnpArrived,
    DcqcnConfig,
    MarkedArrived,
    NotificationPoint,
    ReactionPoint,
    SetRate,
    TimerExpired,
)
from inaproto.core.rdma.pacing import FRAME_OVERHEAD_BYTES
from inaproto.units import Instant


class FlowCongestion:
    """Both directions of a queue pair, each with the end that is here."""

    def __init__(self, config: DcqcnConfig, mtu: int, quantum_ns: int = 0) -> None:
        """``quantum_ns``: the clock does not wake more often to let rates grow; what was due has then passed
        all the same."""
        self._frame_bytes = mtu + FRAME_OVERHEAD_BYTES
        self._quantum_ns = quantum_ns
        self._asleep_until = Instant(0)
        self.reaction: Final = ReactionPoint(config)
        self._notification = NotificationPoint(config)

    def earliest(self, at: Instant | None) -> Instant | None:
        """The first of ``at`` and of what is to be done here."""
        grows = self.reaction.deadline
        if grows is not None:
            grows = max(grows, self._asleep_until)
        for other in (grows, self._notification.deadline):
            if other is not None and (at is None or other < at):
                at = other
        return at

    def marked(self, now: Instant) -> bool:
        """Marked packets came; whether their sender is told now."""
        return bool(self._notification.step(MarkedArrived(), now))

    def owes(self, now: Instant) -> bool:
        """Whether it is told now of those that came before."""
        return bool(self._notification.step(TimerExpired(), now))

    def notified(self, now: Instant) -> list[SetRate]:
        """What was due before is not lost: a CNP sets the timer anew, and this clock is late."""
        grown = self.reaction.step(TimerExpired(), now)
        return self.reaction.step(CnpArrived(), now) or grown  # the last word alone

    def sent(self, packets: int, now: Instant) -> list[SetRate]:
        return self.reaction.step(BytesSent(packets * self._frame_bytes), now)

    def woke(self, now: Instant) -> list[SetRate]:
        self._asleep_until = Instant(now + self._quantum_ns)
        return self.reaction.step(TimerExpired(), now)
