"""RC requester that sends again what was lost, and nothing else (docs/protocol.md 4.4).

Messages, window, ACK groups, timers and retries are as in :mod:`inaproto.core.rdma.requester`. What differs
is what is sent again, and when:

* A NAK says which packets behind the missing one are there. A packet was lost if one that was sent later,
  and once only, is there: one with a higher PSN; and if it was sent again, one that was to be sent next then,
  or a later one. So no clock decides, and each copy is given up for lost once. A copy that is there proves
  nothing of others: behind an accelerator a packet may be missing because another rank's was lost, and what
  brings it is that rank's copy, in no order with those of this one.
* A timeout asks with the first unacknowledged packet, as ever. If the answer shows that packet and nothing
  else that was not known to be there, all that is missing was lost. If more has come, it was needless.
* The window bounds what is not known to be there, and a loss leaves it as it is. So a missing packet stops
  nobody before ``behind_max`` others are there behind it, which is as many as the responder keeps.

Invariants: those of :mod:`~inaproto.core.rdma.requester`, but for the window (1), and ``cursor == sent``
between steps.
"""

from __future__ import annotations

from inaproto.core.rdma.reliable_connection import Outcome
from inaproto.core.rdma.requester import RcRequester, RequesterAction, RequesterConfig, Transmit
from inaproto.units import Instant
from inaproto.wire.behind_gap import BehindGap


class SelectiveRequester(RcRequester):
    """The state machine; see the module's text for its rules."""

    def __init__(self, config: RequesterConfig) -> None:
        super().__init__(config)
        self._arrived = 0  # bit d: the packet ``una + d`` is there
        self._copies: dict[int, int] = {}  # sent again and not known to be there: what was to be sent next
        self._newest = -1  # highest sequence number that is there and was sent once
        self._asked_with: int | None = None  # what a timeout sent
        self._all_lost = False  # and so is all that is missing

    @property
    def _is_mending(self) -> bool:
        return bool(self._arrived or self._copies) or super()._is_mending

    # ---- acknowledgement -------------------------------------------------------------------------

    def _acknowledge(self, seq: int, now: Instant) -> list[RequesterAction]:
        passed, arrived = seq - self._una, self._arrived
        done = super()._acknowledge(seq, now)
        if passed <= 0:
            return done
        if seq - 1 not in self._copies:
            self._newest = max(self._newest, seq - 1)
        self._arrived >>= passed
        for copy in [copy for copy in self._copies if copy < seq]:
            del self._copies[copy]
        if self._asked_with is not None and self._asked_with < seq:
            others = arrived >> 1 | ~0 << passed - 1
            self._asked_with = None
            if others == ~0:  # nothing has come that was not known
                self._all_lost = True
        return done

    def _sequence_nak(self, seq: int, behind: BehindGap | None, now: Instant) -> list[RequesterAction]:
        self.counters.naks += 1
        self._asked = False
        done = self._acknowledge(seq, now)
        self._arrived &= ~1
        if behind is None:  # something came behind it
            behind = BehindGap(1, 0)
        self._learn(behind)
        return done + self._transmit(now)

    def _learn(self, behind: BehindGap) -> None:
        outstanding = self._sent - self._una
        fresh = behind.arrived << 1 & (1 << outstanding) - 1 & ~self._arrived
        self._arrived |= fresh
        left = fresh
        while left:
            highest = left.bit_length() - 1
            if self._una + highest not in self._copies:
                self._newest = max(self._newest, self._una + highest)
                break
            left ^= 1 << highest
        reach = min(behind.reach, outstanding - 1)
        if self._una + reach not in self._copies and not self._arrived >> reach & 1:
            self._newest = max(self._newest, self._una + reach)  # it came, and could not be kept
        for seq in [seq for seq in self._copies if fresh >> seq - self._una & 1]:
            del self._copies[seq]

    def _rnr_nak(self, seq: int, timer_code: int, now: Instant) -> list[RequesterAction]:
        done = super()._rnr_nak(seq, timer_code, now)
        self._arrived &= ~1
        return done

    # ---- sending ---------------------------------------------------------------------------------

    def _to_una(self) -> None:
        """What was sent stays sent."""

    def _transmit(self, now: Instant) -> list[RequesterAction]:
        # What is there already is not under way any more, so the window goes on beyond it.
        self._beyond = min(self._arrived.bit_count(), self.config.behind_max + 1 - self._window)
        nothing = self._newest <= self._una and not self._copies and not self._all_lost
        if nothing or self._rnr_until is not None:
            return super()._transmit(now)
        lost = self._lost()
        if not lost:
            return super()._transmit(now)
        if lost[0] == self._una and self._is_exhausted():
            return self._fail(Outcome.RETRY_EXCEEDED)
        return self._send_again(lost, now) + super()._transmit(now)

    def _lost(self) -> list[int]:
        """Packets of which something that was sent later is there, in order."""
        end = self._sent if self._all_lost else min(self._newest, self._sent)
        missing = ~self._arrived & (1 << max(0, end - self._una)) - 1
        lost = [seq for seq, due in self._copies.items() if self._all_lost or due <= self._newest]
        self._all_lost = False
        while missing:
            lowest = missing & -missing
            missing ^= lowest
            seq = self._una + lowest.bit_length() - 1
            if seq not in self._copies:
                lost.append(seq)
        lost.sort()
        return lost

    def _send_again(self, seqs: list[int], now: Instant) -> list[RequesterAction]:
        self._copies |= dict.fromkeys(seqs, self._sent)
        self._timing = self._timer = None
        orders: list[RequesterAction] = []
        at, every = 0, self._ack_every
        for message in self._messages:
            end = message.first_seq + message.packets
            while at < len(seqs) and seqs[at] < end:
                begin = at
                while at < len(seqs) and seqs[at] - seqs[begin] == at - begin and seqs[at] < end:
                    at += 1
                self._account(seqs[begin], seqs[begin] + at - begin, now)
                first = seqs[begin] - message.first_seq
                acks = range((first // every + 1) * every - 1, first + at - begin, every)
                orders.append(Transmit(message, first, at - begin, self._psn(seqs[begin]), acks))
            if at == len(seqs):
                break
        self._arm(now)
        return orders

    def _after_rnr(self, now: Instant) -> list[RequesterAction]:
        return self._send_again([self._una], now) + self._transmit(now)

    def _ask(self, now: Instant) -> list[RequesterAction]:
        if self._is_exhausted():
            return self._fail(Outcome.RETRY_EXCEEDED)
        self._timing = self._timer = None
        self._copies[self._una] = self._sent
        self._asked_with = self._una
        probes = self._probes(now)
        self._arm(now)
        return probes

    def _flush(self) -> list[RequesterAction]:
        self._arrived = 0
        self._copies.clear()
        self._asked_with, self._all_lost = None, False
        return super()._flush()
