"""RC requester that sends again what was lost, and nothing else (docs/protocol.md 4.4).

Messages, window, ACK groups, timers and retries are as in :mod:`inaproto.core.rdma.requester`. What differs
is what is sent again, and when:

* A NAK says which packets behind the missing one are there. A packet was lost if one that was sent later,
  and once only, is there: one with a higher PSN; and if it was sent again, one that was to be sent next then,
  or a later one. So no clock decides, and each copy is given up for lost once. A copy that is there proves
  nothing of others: behind an accelerator a packet may be missing because another rank's was lost, and what
  brings it is that rank's copy, in no order with those of this one.
* A timeout asks with the first unacknowledged packet, as ever. While the answers show what was sent to ask
  and nothing else that was not known to be there, more and more of what is missing goes again: 2 packets, 4,
  8 and so on (as TCP's slow start, RFC 5681). For they may all be lost; or they wait, at an accelerator, for
  a rank that is late. If more has come, nothing was lost that is not known by other signs.
* Where packets were lost in the latest ``LOSSY_MESSAGES`` messages, the first timer is shorter: twice the
  least time of late until an answer, doubled with each timeout, up to ``timeout`` (a tail loss probe,
  RFC 8985 section 7). A copy that is lost, and the last packet of all, show themselves by nothing else.
  Elsewhere a rank that is late would bring needless probes.
* A switch that repairs (docs/protocol.md 6.14) says itself what has come to it, and no NAK of the receiver
  gets here: whether a packet is there is then said of the switch. It acknowledges nothing by that. What is
  there is answered for by the switch, which has results to send again; so when a timeout asks for more, that
  is all that is not acknowledged.
* Where one message alone is on its way nothing follows its last packet, nor what is sent again of it, that
  would show soon that it was lost as well. To a switch that repairs these go twice, few packets of them,
  while losses are expected: a frame costs less than a timer.
* The window bounds what is not known to be there, and a loss leaves it as it is. So a missing packet stops
  nobody before ``behind_max`` others are there behind it, which is as many as the responder keeps.

Invariants: those of :mod:`~inaproto.core.rdma.requester`, but for the window (1), and ``cursor == sent``
between steps.
"""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.reliable_connection import TIMEOUT_UNIT_NS, Outcome
from inaproto.core.rdma.requester import Complete, RcRequester, RequesterAction, RequesterConfig, Transmit
from inaproto.units import Instant
from inaproto.wire.behind_gap import AtSwitch, BehindGap

LOSSY_MESSAGES: Final = 64
"""So many messages after a loss, losses are expected."""
TWICE_PACKETS_MAX: Final = 8
"""So many packets that a switch asks for go twice; of more, the last one does."""
SHORTEST_NS: Final = TIMEOUT_UNIT_NS << 6
"""No short timer is shorter than these 0.26 ms: daemons take their turns at the processor."""
_FORGETTING: Final = 8
"""With each longer answer the least time grows by this part of the difference, as paths change."""


class SelectiveRequester(RcRequester):
    """The state machine; see the module's text for its rules."""

    def __init__(self, config: RequesterConfig) -> None:
        super().__init__(config)
        self._arrived = 0  # bit d: the packet ``una + d`` is there
        self._copies: dict[int, int] = {}  # sent again and not known to be there: what was to be sent next
        self._newest = -1  # highest sequence number that is there and was sent once
        self._asked_with: int | None = None  # the last packet that was sent to ask
        self._asking = 0  # how many packets ask
        self._ask_more = False  # they alone have arrived
        self._timed: tuple[int, Instant] | None = None  # the packet whose answer is awaited, and when it left
        self._answer_ns = 0  # until it or a later one is known to be there, about the least; 0: unknown
        self._lossy = 0  # messages until losses are not expected any more
        self._hurried = 0  # short timers that have passed without progress
        self._is_short = False  # of the timer that runs
        self._is_repaired = False  # a switch says what is there
        self._said_to = -1  # the newest packet of which it spoke

    @property
    def _has_sent_again(self) -> bool:
        return bool(self._copies)

    @property
    def _is_mending(self) -> bool:
        return bool(self._arrived or self._copies) or super()._is_mending

    # ---- acknowledgement -------------------------------------------------------------------------

    def _acknowledge(self, seq: int, now: Instant) -> list[RequesterAction]:
        passed = seq - self._una
        if passed > 0:
            self._hurried = 0
            if self._asked_with is not None and self._asked_with < seq:
                self._asked_with = None
                self._ask_more = not self._is_news(passed)
            if seq - 1 not in self._copies:
                self._newest = max(self._newest, seq - 1)
                self._answered(seq - 1, now)
        done = super()._acknowledge(seq, now)
        if passed <= 0:
            return done
        ended = sum(type(action) is Complete for action in done)
        self._lossy = max(0, self._lossy - ended)
        self._arrived >>= passed
        for copy in [copy for copy in self._copies if copy < seq]:
            del self._copies[copy]
        return done

    def _answered(self, newest: int, now: Instant) -> None:
        """A receiver has packets up to ``newest``, which was sent once."""
        if self._timed is None or newest < self._timed[0]:
            return
        took, self._timed = now - self._timed[1], None
        least = self._answer_ns
        self._answer_ns = took if not least or took < least else least + (took - least) // _FORGETTING

    def _is_news(self, passed: int) -> bool:
        """Whether any of the first ``passed`` packets is there that was sent once and not known to be."""
        known = 0 if self._is_repaired else self._arrived
        news = ~known & (1 << passed) - 1
        for copy in self._copies:
            news &= ~(1 << copy - self._una)
        return bool(news)

    def _sequence_nak(
        self, seq: int, behind: BehindGap | AtSwitch | None, now: Instant
    ) -> list[RequesterAction]:
        self.counters.naks += 1
        self._asked = False
        if isinstance(behind, AtSwitch):
            self._switch_said(seq, behind, now)
            return self._transmit(now)
        done = self._acknowledge(seq, now)
        if behind is None:  # something came behind it
            behind = BehindGap(1, 0)
        there = behind.arrived << 1 & (1 << self._sent - self._una) - 1
        self._learn(there | 1, there, behind.reach)
        self._answered(self._newest, now)
        return done + self._transmit(now)

    def _switch_said(self, seq: int, behind: AtSwitch, now: Instant) -> None:
        self._is_repaired = True
        was_lossy, self._lossy = self._lossy, LOSSY_MESSAGES
        if not was_lossy and not self._doublings and self._rnr_until is None:
            self._timer = None  # a shorter one takes its place
            self._arm(now)
        newest, at = seq + behind.reach, seq - self._una
        if newest < self._said_to:  # it was overtaken
            return
        said = (1 << min(at + behind.reach + 1, self._sent - self._una)) - 1
        there = (1 << at) - 1 | behind.arrived << at if behind.reach else said
        # Of two that say as much it is not known which one is older, and more comes with time.
        missing = said if newest > self._said_to else 0
        self._said_to = newest
        self._learn(missing, there & said, at + behind.reach)

    def _learn(self, said: int, there: int, reach: int) -> None:
        """Bits from the first unacknowledged packet on: of which is told, and which of those are there."""
        outstanding = self._sent - self._una
        fresh = there & ~self._arrived
        self._arrived = self._arrived & ~said | there
        left = fresh
        while left:
            highest = left.bit_length() - 1
            if self._una + highest not in self._copies:
                self._newest = max(self._newest, self._una + highest)
                self._asked_with = None  # more has come than what asked
                break
            left ^= 1 << highest
        reach = min(reach, outstanding - 1)
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
        nothing = self._newest <= self._una and not self._copies and not self._ask_more
        if nothing or self._rnr_until is not None:
            return self._go_on(now)
        asks = self._ask_more
        lost = self._lost()
        if not lost:
            return self._go_on(now)
        if lost[0] == self._una and self._is_exhausted():
            return self._fail(Outcome.RETRY_EXCEEDED)
        again = self._send_again(lost, now, asks=asks)
        if len(self._messages) == 1 and self._is_repaired and not asks:
            again += self._orders(lost if len(lost) <= TWICE_PACKETS_MAX else lost[-1:], now)
        return again + self._go_on(now)

    def _go_on(self, now: Instant) -> list[RequesterAction]:
        """Send what was not sent before."""
        before = self._sent
        return super()._transmit(now) + self._last_again(before, now)

    def _last_again(self, before: int, now: Instant) -> list[RequesterAction]:
        """Send the last packet of all twice, unless it was sent before: only a timer would show its loss."""
        is_alone = len(self._messages) == 1 and before < self._sent == self._posted
        if is_alone and self._lossy and self._is_repaired:
            return self._orders([self._sent - 1], now)
        return []

    def _lost(self) -> list[int]:
        """Packets of which something that was sent later is there, and those that ask, in order."""
        missing = self._missing(min(self._newest, self._sent))
        lost = {seq for seq in missing if seq not in self._copies}
        lost.update(seq for seq, due in self._copies.items() if due <= self._newest)
        if self._ask_more:
            self._ask_more = False
            self._asking = min(2 * self._asking, self.config.outstanding_packets_max)
            if self._is_repaired:
                self._arrived &= ~((1 << self._asking) - 1)
            asking = self._missing(self._sent)[: self._asking]
            if asking:
                self._asked_with = asking[-1]
                lost.update(asking)
        return sorted(lost)

    def _missing(self, end: int) -> list[int]:
        """Packets before ``end`` that are not known to be there, in order."""
        missing = ~self._arrived & (1 << max(0, end - self._una)) - 1
        found = []
        while missing:
            lowest = missing & -missing
            missing ^= lowest
            found.append(self._una + lowest.bit_length() - 1)
        return found

    def _send_again(self, seqs: list[int], now: Instant, *, asks: bool = False) -> list[RequesterAction]:
        """``asks``: behind the last one nothing may be there, so it has to ask for an answer itself."""
        self._copies |= dict.fromkeys(seqs, self._sent)
        self._lossy = LOSSY_MESSAGES
        self._timing = self._timer = None
        orders = self._orders(seqs, now, asks=asks)
        self._arm(now)
        return orders

    def _orders(self, seqs: list[int], now: Instant, *, asks: bool = False) -> list[RequesterAction]:
        """Orders to send packets that were sent before, in rising order; the last one may have to ask."""
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
                last = first + at - begin - 1
                acks = range((first // every + 1) * every - 1, last + 1, every)
                if asks and at == len(seqs) and last + 1 < message.packets and last not in acks:
                    if last > first:
                        orders.append(Transmit(message, first, last - first, self._psn(seqs[begin]), acks))
                    first, acks = last, range(last, last + 1)
                psn = self._psn(message.first_seq + first)
                orders.append(Transmit(message, first, last + 1 - first, psn, acks))
            if at == len(seqs):
                break
        return orders

    def _after_rnr(self, now: Instant) -> list[RequesterAction]:
        return self._send_again([self._una], now) + self._transmit(now)

    def _leaves_now(self, since: Instant, now: Instant) -> list[RequesterAction]:
        if self._timed is not None and self._timed[1] >= since:
            self._timed = (self._timed[0], now)
        return super()._leaves_now(since, now)

    def _ask(self, now: Instant) -> list[RequesterAction]:
        if self._is_exhausted():
            return self._fail(Outcome.RETRY_EXCEEDED)
        self._timing = self._timer = None
        self._arrived &= ~1
        self._copies[self._una] = self._sent
        self._asked_with, self._asking = self._una, 1
        probes = self._probes(now)
        self._arm(now)
        return probes

    def _account(self, begin: int, end: int, now: Instant) -> None:
        timed = -1 if self._timed is None else self._timed[0]
        # Karn's rule: what was sent again, or acknowledged with that, is measured no more.
        if end > self._sent and (timed < self._una or timed in self._copies):
            self._timed = max(begin, self._sent), now
        super()._account(begin, end, now)

    def _wait_ns(self) -> int:
        wait, short = super()._wait_ns(), self._short_ns()
        self._is_short = bool(self._lossy and self._answer_ns and short < wait and not self._doublings)
        return short if self._is_short else wait

    def _short_ns(self) -> int:
        return max(SHORTEST_NS, 2 * self._answer_ns) << self._hurried

    def _back_off(self) -> None:
        if self._is_short:
            self._hurried += 1
        else:
            super()._back_off()
