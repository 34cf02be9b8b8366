"""RC requester: packets, PSNs, window, acknowledgements, go-back-N and retries of one queue pair.

NetReduce §3.2 ("Reliability", "Connection Preservation") relies on reliable connections as they are:
a lost packet or result comes again by go-back-N. This core decides *what* is sent *when*; it holds no
payload. A message of ``n`` bytes takes ``ceil(n / mtu)`` packets with PSNs contiguous over messages.

Sequence numbers are unbounded integers inside and become PSNs (``psn_mask`` wide) only in actions and
when an acknowledgement is placed, so the wrap is exact at any width.

ACK groups. A message is cut into groups of at most ``ack_every`` packets; the last packet of a group
asks for an ACK, and a group is sent only when all of it fits in the window. Hence the last packet
before the window closes always asks for an ACK, a resent packet carries the AckReq of its original (or more),
and the window never degrades into single packets.

Go-back-N. NAK(k) acknowledges all before k and goes back to k: everything from there is sent again, as the
window allows. One gap may bring several NAKs of one PSN: duplicates in the network, or an accelerator and
the receiver both. A NAK that acknowledges nothing new is therefore ignored while the last go-back to that
PSN is younger than half the smoothed round trip, since no answer to the resent packets can be back by then.
Later it is taken for an answer to them (the head was lost again) and honoured. Before a first round trip
has been measured, one retransmission timer takes the place of that half. So NAKs cause at most two go-backs
per round trip, however many come; a wrong estimate costs time, never correctness, and the timer stands
behind it all.

Timeout. A timer proves no loss: an accelerator holds packets until the slowest rank has sent, and on a busy
machine nobody may have run. So a timeout asks where the receiver is, and sends no more than the first
unacknowledged packet, with AckReq, a probe. Whoever has it answers with the newest PSN that is there.
Whoever lacked it may be silent, for an accelerator repeats its sum under the header that came first: so a
probe that did not ask for an ACK at first goes twice, and the second copy is answered. From the second
timeout without an answer on, the first packet of each message behind it goes too: about messages that all
have received an accelerator is silent for ever, as it has forgotten them, but of the first that it
remembers the receiver has all before, so that one is answered. An ACK of the probe alone says that nothing
behind it is there, and all of that goes as after a NAK. If packets behind it are acknowledged too, the
timeout was needless (F-RTO, RFC 5682) or all others were there before: the next probe goes, and the rest is
left alone. From the third long timer in a row on, the first packet of the probe's own message goes as well,
though it is acknowledged. It has the ring's key, by which an accelerator knows where the rank is, if its
packets have had another way since the middle of the message.

Timer. It has the length of ``timeout`` whatever round trips were measured. A round trip lasts until the
slowest rank has sent, and if that waits for a packet that another rank lost, it includes the other's timer.
A timer made of round trips (RFC 6298, or of their minimum) feeds on the timers of all others and they on
it, up to any bound, and a needless timeout costs a few packets only. A timer that is served late by more
than an eighth of itself shows that this process did not run: it is set again, once, by as much as it was
late, and only then taken for a timeout. Who serves it takes in first what has been received. While the link
is paused it stands still (``LinkWasSilent``): what was sent meanwhile has not left.

Window. What a go-back costs is what the window let out. So each go-back halves the window, not below
one ACK group, and each window's worth of acknowledged packets lets it grow by one group, up to
``outstanding_packets_max``. At a loss rate of 3 % this takes four fifths of the retransmissions away. A
probe is no go-back and leaves the window as it is.

Rest. While messages queue on the way, to look less often at what has come costs no time and saves work:
``rest_ns`` says for how long its owner may leave all that comes alone. What queues is the difference of the
smoothed round trip and the shortest one; a part of that is rested, in which no more than ``REST_BYTES_MAX``
come, and no longer than ``REST_NS_MAX``; where nothing queues nothing is: a link that waits for its ends does
not wait longer. Few messages on the way may be the last ones, which somebody waits for, so there is no rest
then, nor while something is missing.

Rate. Whoever owns it may give it a rate (``RateChanged``; :mod:`inaproto.core.rdma.dcqcn` makes them). Then
packets leave as :class:`~inaproto.core.rdma.pacing.Pace` says, also out of the middle of an ACK group, and
while the rest of a group is held back the timer waits for it, since nobody was asked for an ACK. Probes, and
on selective connections what was lost, leave at once, and what comes next leaves later. Until it is given a
rate nothing is held back.

Invariants:
1. ``una <= cursor <= sent <= posted`` and ``sent - una <= outstanding_packets_max < (psn_mask+1)/2``;
   between steps ``cursor < sent`` only while window, rate, a probe or an RNR wait holds a resend back.
2. The last packet of ``[una, cursor)`` has asked for an ACK, and so has the one before ``sent``, unless the
   rate holds the rest of its group back.
3. Messages end once each, in the order of posting; with SUCCESS only when every packet is acknowledged.
4. A deadline is armed exactly while packets are outstanding (unless ``timeout`` is 0), an RNR wait runs or
   the rate holds packets back.
5. A packet is sent again at most ``retry_count`` times without progress (``retry_count`` 7: no limit), not
   counting the second copy of a probe.

Departures. The retransmission timer doubles with every timeout up to ``retransmit_ns_max``, where
hardware repeats it: an accelerator holds packets until the last rank has sent, and waiting ranks
should not fill the switch with repeats. From the third timeout in a row the timers of several requesters
also differ (``spread``): in lock step they would overrun one queue again and again, and the same packets be
lost each time (phase effects: Floyd and Jacobson, 1992). Soft-RoCE ignores a second NAK until an ACK made
progress, and its window is a constant.
"""

from __future__ import annotations

from collections import deque
from typing import Final, assert_never

from inaproto.core.rdma.pacing import Pace, PaceConfig
from inaproto.core.rdma.reliable_connection import (
    FATAL_NAKS,
    MESSAGE_BYTES_MAX,
    RETRY_FOREVER,
    RNR_TIMER_NS,
    TIMEOUT_UNIT_NS,
    Outcome,
    SyndromeKind,
    packets_of,
    syndrome_kind,
)
from inaproto.core.rdma.requester_events import (
    AckArrived,
    Closing,
    Complete,
    Failed,
    LinkWasSilent,
    Message,
    PostWrite,
    RateChanged,
    RequesterAction,
    RequesterConfig,
    RequesterCounters,
    RequesterEvent,
    RequesterState,
    RequesterView,
    TimerExpired,
    Transmit,
)
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Instant
from inaproto.wire.behind_gap import AtSwitch, BehindGap
from inaproto.wire.crc import crc32

__all__ = [
    "AckArrived",
    "Closing",
    "Complete",
    "Failed",
    "LinkWasSilent",
    "Message",
    "PostWrite",
    "RateChanged",
    "RcRequester",
    "RequesterAction",
    "RequesterConfig",
    "RequesterCounters",
    "RequesterEvent",
    "RequesterState",
    "RequesterView",
    "TimerExpired",
    "Transmit",
]

SPREAD_DOUBLINGS: Final = 3
"""From so many timeouts in a row on, timers are spread, and a message's first packet is shown again."""
LATE_PARTS: Final = 8
"""A timer that is served later than by this part of itself says that the process did not run."""


REST_MESSAGES_MIN: Final = 4
"""Rest while at least so many messages are not acknowledged: the end of an operation is not near."""
REST_PARTS: Final = 4
"""This part of the time for which packets queue is rested: that of two messages with eight on the way."""
REST_NS_MIN: Final = MS // 2
"""A shorter rest costs more than it saves."""
REST_BYTES_MAX: Final = 384 << 10
"""A rest is no longer than so many bytes take to come: two messages of 170 KB, with a margin."""
REST_NS_MAX: Final = 6 * MS
"""On a slow link, where messages come this seldom, longer rests save little, and results that wait for their
end at several hosts in turn let the window run dry."""
REST_TIMER_PARTS: Final = 5
"""A rest is no longer than this part of the retransmission timer, for the peer's timer is alike."""


class RcRequester:
    """The state machine; see the module's text for its rules and invariants."""

    def __init__(self, config: RequesterConfig) -> None:
        self.config: Final = config
        self.counters: Final = RequesterCounters()
        self._ack_every = min(config.ack_every, config.outstanding_packets_max)
        self._window = config.outstanding_packets_max
        self._beyond = 0  # by so much the window is wider than what is under way may be
        self._window_credit = 0  # packets acknowledged towards the window's next growth
        self._state = RequesterState.READY
        self._messages: deque[Message] = deque()
        self._serial = 0
        self._una = 0  # first unacknowledged
        self._cursor = 0  # next to send
        self._cursor_index = 0  # its message in the queue
        self._sent = 0  # one past the highest ever sent
        self._posted = 0  # one past the last packet of the last message
        self._retries = 0
        self._rnr_retries = 0
        self._doublings = 0
        self._probing = False  # one packet is sent again until an answer comes
        self._asked = False  # a timeout has had no answer yet
        self._timer: Instant | None = None
        self._timer_ns = 0  # how long it runs
        self._first_ns = TIMEOUT_UNIT_NS << config.timeout if config.timeout else 0
        self._excused = False  # it was late and has been set again
        self._rnr_until: Instant | None = None
        self._pace: Pace | None = None
        self._pace_config = PaceConfig(burst_bytes=config.pace_burst_bytes, quantum_ns=config.pace_quantum_ns)
        self._held_until: Instant | None = None  # the rate holds packets back
        self._went_back: tuple[int, Instant] | None = None  # to which sequence number, when
        self._timing: tuple[int, Instant] | None = None  # packet whose round trip is being measured
        self._round_trip_ns: int | None = None
        self._shortest_ns: int | None = None  # of all round trips

    @property
    def deadline(self) -> Instant | None:
        at = self._timer if self._rnr_until is None else self._rnr_until
        held = self._held_until
        return at if held is None or (at is not None and at < held) else held

    @property
    def next_serial(self) -> int:
        """What the next write that is accepted will have as ``Message.serial``."""
        return self._serial

    @property
    def rest_ns(self) -> int:
        """For how long what comes may be left alone; 0: not at all."""
        mean_ns, shortest_ns = self._round_trip_ns, self._shortest_ns
        if len(self._messages) < REST_MESSAGES_MIN or mean_ns is None or shortest_ns is None:
            return 0
        if self._is_mending:
            return 0
        queued_ns = mean_ns - shortest_ns
        # What comes in a rest waits in a receive buffer, which must hold it, as a cache should.
        under_way = max(1, (self._sent - self._una) * self.config.mtu)
        share_ns = min(queued_ns // REST_PARTS, queued_ns * REST_BYTES_MAX // under_way)
        rest = min(share_ns, self._first_ns // REST_TIMER_PARTS, REST_NS_MAX)
        return rest if rest >= REST_NS_MIN else 0

    @property
    def _is_mending(self) -> bool:
        """Something was lost, or may have been."""
        return self._cursor < self._sent or self._rnr_until is not None

    def view(self) -> RequesterView:
        return RequesterView(
            state=self._state,
            una_psn=self._psn(self._una),
            next_psn=self._psn(self._cursor),
            outstanding=self._sent - self._una,
            window=self._window,
            messages=len(self._messages),
            retries=self._retries,
            rnr_waiting=self._rnr_until is not None,
            round_trip_ns=self._round_trip_ns,
        )

    def step(self, event: RequesterEvent, now: Instant) -> list[RequesterAction]:
        """Raises ``LocalMisuse`` for a write that can never be sent or does not fit the send queue."""
        match event:
            case PostWrite():
                return self._post(event, now)
            case AckArrived():
                return self._ack_arrived(event, now)
            case TimerExpired():
                return self._timer_expired(now)
            case RateChanged(rate_bps):
                return self._change_rate(rate_bps, now)
            case LinkWasSilent(since):
                return self._leaves_now(since, now)
            case Closing():
                return self._close()
            case _:
                assert_never(event)

    # ---- events ----------------------------------------------------------------------------------

    def _post(self, write: PostWrite, now: Instant) -> list[RequesterAction]:
        if not 0 <= write.nbytes <= MESSAGE_BYTES_MAX:
            raise LocalMisuse(f"a write of {write.nbytes} bytes: RC messages have 0 to {MESSAGE_BYTES_MAX}")
        if self._state is RequesterState.CLOSED:
            raise LocalMisuse("write posted to a closed queue pair")
        if self._state is RequesterState.ERROR:
            return [Complete(write.wr_id, Outcome.FLUSHED, None)]
        if len(self._messages) >= self.config.messages_max:
            raise LocalMisuse(f"send queue full: {self.config.messages_max} writes are not completed yet")
        message = Message(write, self._serial, self._posted, packets_of(write.nbytes, self.config.mtu))
        self._serial += 1
        self._posted += message.packets
        self._messages.append(message)
        return self._transmit(now)

    def _ack_arrived(self, ack: AckArrived, now: Instant) -> list[RequesterAction]:
        offset = (ack.psn - self._psn(self._una)) & self.config.psn_mask
        kind = syndrome_kind(ack.syndrome)
        if kind is SyndromeKind.RESERVED:
            self.counters.acks_ignored += 1
            return [Blame("responder", "reserved AETH syndrome", f"0x{ack.syndrome:02x} at PSN {ack.psn}")]
        if self._state is not RequesterState.READY or offset >= self._sent - self._una:
            self.counters.acks_ignored += 1
            return []
        seq = self._una + offset
        match kind:
            case SyndromeKind.ACK:
                return self._acknowledge(seq + 1, now) + self._transmit(now)
            case SyndromeKind.SEQUENCE:
                return self._sequence_nak(seq, ack.behind, now)
            case SyndromeKind.RNR:
                return self._rnr_nak(seq, ack.syndrome & 0x1F, now)
            case SyndromeKind.FATAL:
                self.counters.naks += 1
                return self._acknowledge(seq, now) + self._fail(FATAL_NAKS[ack.syndrome])
            case _:
                assert_never(kind)

    def _timer_expired(self, now: Instant) -> list[RequesterAction]:
        if self.deadline is None or now < self.deadline:
            return []
        if self._held_until is not None and self._held_until <= now:
            return self._transmit(now)
        if self._rnr_until is not None:
            self._rnr_until = None
            return self._after_rnr(now)
        if self._did_not_run(now):
            return []
        self.counters.timeouts += 1
        self._back_off()
        asked, self._asked = self._asked, True
        again = self._ask(now)
        return again + self._heads(now) if asked else again

    def _change_rate(self, rate_bps: int | None, now: Instant) -> list[RequesterAction]:
        if self._state is not RequesterState.READY:
            return []
        if rate_bps is None:
            self._pace = None
        elif self._pace is None:
            self._pace = Pace(self._pace_config, self.config.mtu, rate_bps, now)
        else:
            self._pace.set_rate(rate_bps, now)
        return self._transmit(now)

    def _leaves_now(self, since: Instant, now: Instant) -> list[RequesterAction]:
        """Times that ran while the link was silent begin now, or go on."""
        if self._timer is not None:
            began = max(since, self._timer - self._timer_ns)
            self._timer = Instant(self._timer + now - began)
        if self._timing is not None and self._timing[1] >= since:
            self._timing = (self._timing[0], now)
        if self._went_back is not None and self._went_back[1] >= since:
            self._went_back = (self._went_back[0], now)
        return []

    def _back_off(self) -> None:
        """The next timer is a longer one."""
        self._doublings = min(self._doublings + 1, self.config.backoff_doublings_max)

    def _after_rnr(self, now: Instant) -> list[RequesterAction]:
        """The wait that the receiver asked for is over."""
        return self._transmit(now)

    def _ask(self, now: Instant) -> list[RequesterAction]:
        """A timer has passed: where is the receiver?"""
        self._probing = True
        return self._retry(now)

    def _did_not_run(self, now: Instant) -> bool:
        """The timer is served so late that it says nothing of the peer; it is set again, once."""
        late_ns = 0 if self._timer is None else now - self._timer
        if self._excused or late_ns * LATE_PARTS <= self._timer_ns:
            return False
        self._excused = True
        self.counters.timers_late += 1
        self._timer = Instant(now + min(late_ns, self._timer_ns))
        return True

    def _close(self) -> list[RequesterAction]:
        actions = self._flush()
        self._state = RequesterState.CLOSED
        return actions

    # ---- acknowledgement -------------------------------------------------------------------------

    def _acknowledge(self, seq: int, now: Instant) -> list[RequesterAction]:
        """All packets before ``seq`` have arrived."""
        if seq == self._una:
            return []
        self._grow_window(seq - self._una)
        self._una = seq
        if self._timing is not None and self._timing[0] < seq:
            self._measure(now - self._timing[1])
            self._timing = None
        done: list[RequesterAction] = []
        while self._messages and self._messages[0].first_seq + self._messages[0].packets <= seq:
            message = self._messages.popleft()
            self._cursor_index -= 1
            done.append(Complete(message.write.wr_id, Outcome.SUCCESS, message))
        if self._cursor < seq:
            self._to_una()
        elif self._probing and seq < self._sent:  # the probe was missing, and nothing behind it is there
            self._probing = False
            self._go_back(now)
        if self._cursor >= self._sent:
            self._probing = False
        self._retries = self._rnr_retries = self._doublings = 0
        self._asked = False
        self._rnr_until = None
        self._timer = None
        self._arm(now)
        return done

    def _grow_window(self, acknowledged: int) -> None:
        self._window_credit += acknowledged
        if self._window_credit >= self._window:
            self._window_credit = 0
            self._window = min(self._window + self._ack_every, self.config.outstanding_packets_max)

    def _measure(self, took_ns: int) -> None:
        before = self._round_trip_ns
        self._round_trip_ns = took_ns if before is None else before + (took_ns - before) // 8
        if self._shortest_ns is None or took_ns < self._shortest_ns:
            self._shortest_ns = took_ns

    def _sequence_nak(
        self, seq: int, behind: BehindGap | AtSwitch | None, now: Instant
    ) -> list[RequesterAction]:
        self.counters.naks += 1
        self._probing = self._asked = False  # what is missing is known now
        done = self._acknowledge(seq, now)
        if self._rnr_until is not None or self._answers_old_round(now):
            self.counters.naks_ignored += 1
            return done
        return done + self._retry(now)

    def _answers_old_round(self, now: Instant) -> bool:
        """No progress since a go-back to this very PSN that is too young to have been answered."""
        if self._went_back is None or self._went_back[0] != self._una:
            return False
        if self._round_trip_ns is None:
            return not self._first_ns or now - self._went_back[1] < self._first_ns
        return now - self._went_back[1] < self._round_trip_ns // 2

    def _rnr_nak(self, seq: int, timer_code: int, now: Instant) -> list[RequesterAction]:
        self.counters.rnr_naks += 1
        self._probing = self._asked = False
        done = self._acknowledge(seq, now)
        if self._rnr_until is not None:
            return done
        if self.config.rnr_retry != RETRY_FOREVER:
            if self._rnr_retries >= self.config.rnr_retry:
                return done + self._fail(Outcome.RNR_RETRY_EXCEEDED)
            self._rnr_retries += 1
        self._to_una()
        self._timing = None
        self._timer = None
        self._rnr_until = Instant(now + RNR_TIMER_NS[timer_code])
        return done

    # ---- sending ---------------------------------------------------------------------------------

    def _is_exhausted(self) -> bool:
        """The first unacknowledged packet was sent again often enough; if not, this is once more."""
        if self.config.retry_count == RETRY_FOREVER:
            return False
        self._retries += 1
        return self._retries > self.config.retry_count

    def _retry(self, now: Instant) -> list[RequesterAction]:
        if self._is_exhausted():
            return self._fail(Outcome.RETRY_EXCEEDED)
        self._to_una()
        self._timing = None  # an ACK might answer either transmission
        self._timer = None
        if not self._probing:
            self._go_back(now)
        return self._transmit(now)

    def _go_back(self, now: Instant) -> None:
        """All from the first unacknowledged packet on is sent again, as a narrower window allows."""
        self._window = max(self._window // 2, self._ack_every)
        self._window_credit = 0
        self._went_back = (self._una, now)

    def _to_una(self) -> None:
        """Whole messages before ``una`` have left the queue, so ``una`` lies in the first one."""
        self._cursor = self._una
        self._cursor_index = 0

    def _transmit(self, now: Instant) -> list[RequesterAction]:
        """Send whole ACK groups as far as the window reaches."""
        self._held_until = None
        if self._rnr_until is not None:
            return []
        if self._cursor_index >= len(self._messages):  # what most acknowledgements find
            self._arm(now)
            return []
        if self._probing:
            return self._probe(now)
        actions: list[RequesterAction] = []
        begin = self._cursor
        limit = self._una + self._window + self._beyond
        paced = None if self._pace is None else begin + self._pace.packets(now)
        every, is_held = self._ack_every, False
        while self._cursor_index < len(self._messages):
            message = self._messages[self._cursor_index]
            first = self._cursor - message.first_seq
            room = limit - message.first_seq
            end = message.packets if room >= message.packets else room // every * every
            if paced is not None and first < end and paced - message.first_seq < end:
                is_held, end = True, paced - message.first_seq
            if end <= first:
                break
            acks = range((first // every + 1) * every - 1, end, every)
            actions.append(Transmit(message, first, end - first, self._psn(self._cursor), acks))
            self._cursor = message.first_seq + end
            if end < message.packets:
                break
            self._cursor_index += 1
        self._account(begin, self._cursor, now)
        if is_held and self._hold():
            self._timer = None
        else:
            self._arm(now)
        return actions

    def _hold(self) -> bool:
        """Go on when the rate lets packets leave. Whether the timer waits for that: nobody was asked yet for
        what is on its way, as it is the beginning of one ACK group, sent for the first time."""
        assert self._pace is not None
        self._held_until = self._pace.ready_at()
        left = (self._cursor - self._messages[self._cursor_index].first_seq) % self._ack_every
        return left > 0 and self._cursor - left <= self._una and not self._has_sent_again

    @property
    def _has_sent_again(self) -> bool:
        """Whether some of what is not acknowledged was sent before."""
        return self._cursor < self._sent

    def _probe(self, now: Instant) -> list[RequesterAction]:
        """Send the first unacknowledged packet, unless it was sent and nobody has answered."""
        if self._cursor > self._una:
            self._arm(now)
            return []
        message = self._messages[0]
        self._cursor += 1
        if self._cursor - message.first_seq == message.packets:
            self._cursor_index = 1
        probes = self._probes(now)
        if self._cursor >= self._sent:
            self._probing = False
        self._arm(now)
        return probes

    def _probes(self, now: Instant) -> list[RequesterAction]:
        """The first unacknowledged packet, asking for an ACK; twice, if it did not at first."""
        message = self._messages[0]
        first = self._una - message.first_seq
        asks = first + 1 == message.packets or (first + 1) % self._ack_every == 0
        probes: list[RequesterAction] = []
        for _ in range(1 if asks else 2):
            self._account(self._una, self._una + 1, now)
            probes.append(Transmit(message, first, 1, self._psn(self._una), range(first, first + 1)))
        return probes

    def _heads(self, now: Instant) -> list[RequesterAction]:
        """The first packet of each message behind the probe.

        After several timeouts also of the message that the probe is of, though it is acknowledged: it shows
        an accelerator by which way the others come now, if that is another one than before.
        """
        heads: list[RequesterAction] = []
        for message in self._messages:
            if message.first_seq < self._una and self._doublings >= SPREAD_DOUBLINGS:
                heads.append(self._head(message, now))
            if self._una < message.first_seq < self._sent:
                heads.append(self._head(message, now))
        return heads

    def _head(self, message: Message, now: Instant) -> Transmit:
        self._account(message.first_seq, message.first_seq + 1, now)
        return Transmit(message, 0, 1, self._psn(message.first_seq), range(1))

    def _account(self, begin: int, end: int, now: Instant) -> None:
        """The packets of ``[begin, end)`` are sent."""
        if self._pace is not None:
            self._pace.spend(end - begin)
        self.counters.packets += end - begin
        self.counters.retransmits += max(0, min(end, self._sent) - begin)
        if end > self._sent:
            self._sent = end
            if self._timing is None:
                self._timing = (self._sent - 1, now)

    def _arm(self, now: Instant) -> None:
        """Arm the timer if packets are outstanding and it does not run yet."""
        if self._timer is not None or self._una == self._sent or self._rnr_until is not None:
            return
        wait = self._wait_ns()
        if not wait:
            return
        self._timer = Instant(now + wait)
        self._timer_ns = wait
        self._excused = False

    def _wait_ns(self) -> int:
        """How long the timer runs that is armed now; 0: there is none."""
        return self._first_ns if not self._doublings else self._doubled_ns()

    def _doubled_ns(self) -> int:
        """The timer after timeouts in a row."""
        wait = min(self._first_ns << self._doublings, self.config.retransmit_ns_max)
        if self.config.spread and self._doublings >= SPREAD_DOUBLINGS:
            drawn = crc32(self.config.spread.to_bytes(4, "big") + self.counters.timeouts.to_bytes(8, "big"))
            wait -= (wait >> 10) * (drawn & 0xFF)
        return max(self._first_ns, wait)

    def _psn(self, seq: int) -> int:
        return (self.config.initial_psn + seq) & self.config.psn_mask

    # ---- the end ---------------------------------------------------------------------------------

    def _fail(self, outcome: Outcome) -> list[RequesterAction]:
        head = self._messages.popleft()
        actions: list[RequesterAction] = [Complete(head.write.wr_id, outcome, head)]
        actions += self._flush()
        self._state = RequesterState.ERROR
        actions.append(Failed(outcome))
        return actions

    def _flush(self) -> list[RequesterAction]:
        flushed: list[RequesterAction] = [
            Complete(message.write.wr_id, Outcome.FLUSHED, message) for message in self._messages
        ]
        self._messages.clear()
        self._una = self._cursor = self._sent = self._posted
        self._cursor_index = 0
        self._probing = self._asked = False
        self._timer = self._rnr_until = self._held_until = self._timing = self._went_back = None
        return flushed
