"""The message-level sliding window of a rank (NetReduce section 3.2, "Flow Control").

Messages form one FIFO. At most ``N`` of them are in flight: sent, and their *result* not yet here.
The window advances when the result message has arrived whole from the predecessor; the transport's
own window and its acknowledgements have no say in that.

A message's slot is ``msg_id mod 2N``: the same number names the aggregators in the switch, the
receive slot at the successor, and the header slot on this host.

Invariants (``received``, ``completed``, ``sent``, ``offered`` count messages since the ring began):
``received <= sent <= received + N``, ``completed <= sent <= completed + N``, ``sent <= offered``.

Two additions to the paper:

- ``N`` is a power of two, so that ``msg_id mod 2N`` runs on without a jump when ``msg_id`` wraps;
- message m+N is not sent before the *send* of m is complete, though its result may be here. The successor has
  then all of m; so what the transport may still send again are the N messages behind it. The accelerator
  has a place for these until m+2N and what follows come, which no rank sends without a result of m+N.
  If more were sent, a rank whose acknowledgements were lost could begin its resends with messages that
  the accelerator holds no more, and drops: the successor, which has them, would never say so, and where
  a resend is cut short, by a full queue or a narrow window of the transport, all ranks would wait for ever.
  It follows that a header slot is not written again while its message may be sent again: that would bring
  the header of m+2N under a PSN of m, and the accelerator would place a whole message wrongly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from inaproto.errors import Blame, LocalMisuse
from inaproto.units import Instant, MsgId, S


def window_messages_for(*, rtt_ns: int, rate_bps: int, message_bytes: int) -> int:
    """The smallest window that fills the path: ``N * MsgLen * pktSize >= RTT * rate``.

    At least 2, so that one message travels while the result of another does; a power of two.
    """
    if rtt_ns < 0 or rate_bps < 1 or message_bytes < 1:
        raise LocalMisuse(f"window for {rtt_ns} ns, {rate_bps} bit/s, messages of {message_bytes} bytes")
    least = -(-rtt_ns * rate_bps // (8 * S * message_bytes))
    return max(2, 1 << (least - 1).bit_length())


@dataclass(frozen=True, slots=True)
class WindowConfig:
    window_messages: int = 2
    """N: messages in flight at most."""
    id_bits: int = 32
    """Width of ``msg_id`` on the wire; narrow in exhaustive tests."""
    unacknowledged_messages: int = 0
    """Messages whose send is not complete, at most; 0: N. More, up to 2N, in explorations of the paper, which
    bounds them by nothing."""

    def __post_init__(self) -> None:
        n = self.window_messages
        if n < 1 or n & (n - 1):
            raise LocalMisuse(f"window_messages {n}: must be a power of two, msg_id mod 2N outlives its wrap")
        if 2 * n > 1 << self.id_bits:
            raise LocalMisuse(f"a window of {n} messages does not fit message ids of {self.id_bits} bits")
        if self.unacknowledged_messages and not n <= self.unacknowledged_messages <= 2 * n:
            raise LocalMisuse(
                f"{self.unacknowledged_messages} messages without an acknowledgement, window {n}"
            )


class Offered(NamedTuple):
    """The application has ``messages`` more to send, behind all earlier ones."""

    messages: int


class ResultArrived(NamedTuple):
    """The result message ``msg_id`` is here, whole."""

    msg_id: int


class SendCompleted(NamedTuple):
    """The transport says that the successor has all of the oldest incomplete message, ``msg_id``."""

    msg_id: int


WindowEvent = Offered | ResultArrived | SendCompleted


class SendMessage(NamedTuple):
    """Hand message ``msg_id`` to the transport; its header lies in ``slot``."""

    msg_id: MsgId
    slot: int


class ResultAccepted(NamedTuple):
    """The result ``msg_id`` in receive slot ``slot`` is the one that was due: take it before sending on."""

    msg_id: MsgId
    slot: int


WindowAction = SendMessage | ResultAccepted | Blame


@dataclass(frozen=True, slots=True)
class WindowView:
    offered: int
    sent: int
    received: int
    completed: int

    @property
    def in_flight(self) -> int:
        """Messages sent whose result is not here."""
        return self.sent - self.received

    @property
    def unacknowledged(self) -> int:
        """Messages sent that the transport may still resend."""
        return self.sent - self.completed


class MessageWindow:
    """One rank's window; see the module for its invariants."""

    def __init__(self, config: WindowConfig) -> None:
        self._config = config
        self._id_mask = (1 << config.id_bits) - 1
        self._slots = 2 * config.window_messages
        self._unacknowledged_max = config.unacknowledged_messages or config.window_messages
        self._offered = 0
        self._sent = 0
        self._received = 0
        self._completed = 0

    @property
    def deadline(self) -> Instant | None:
        """Never: stragglers are waited for, and the owner watches for stalls."""
        return None

    def view(self) -> WindowView:
        return WindowView(self._offered, self._sent, self._received, self._completed)

    @property
    def unsent(self) -> int:
        """Messages offered that have to wait."""
        return self._offered - self._sent

    def step(self, event: WindowEvent, now: Instant) -> list[WindowAction]:
        """Account for ``event``; a ``ResultAccepted`` comes before the sends that it makes room for."""
        match event:
            case Offered(messages):
                self.offer(messages)
                return self._let_out()
            case ResultArrived(msg_id):
                wrong = self.accept(msg_id)
                if wrong is not None:
                    return [wrong]
                return [ResultAccepted(MsgId(msg_id), msg_id % self._slots), *self._let_out()]
            case SendCompleted(msg_id):
                wrong = self.complete((msg_id,))
                return self._let_out() if wrong is None else [*self._let_out(), wrong]
            case _:
                assert_never(event)

    def _let_out(self) -> list[WindowAction]:
        mask, slots = self._id_mask, self._slots
        return [SendMessage(MsgId(serial & mask), (serial & mask) % slots) for serial in self.sendable()]

    # --- the same without a record for each message, for whoever has many of them

    def offer(self, messages: int) -> None:
        """``Offered``. Raises ``LocalMisuse``."""
        if messages < 0:
            raise LocalMisuse(f"{messages} messages offered")
        self._offered += messages

    def accept(self, msg_id: int) -> Blame | None:
        """``ResultArrived``: it counts as received; or what is wrong with it."""
        due = self._received & self._id_mask
        if self._received == self._sent or msg_id != due:
            rule = "result of a message not sent" if self._received == self._sent else "result out of order"
            return Blame("predecessor", rule, f"result {msg_id} where {due} is due")
        self._received += 1
        return None

    def complete(self, msg_ids: Sequence[int]) -> Blame | None:
        """``SendCompleted`` of one after the other, up to the first that is wrong."""
        for msg_id in msg_ids:
            due = self._completed & self._id_mask
            if self._completed == self._sent or msg_id != due:
                evidence = f"message {msg_id} where {due} is due"
                return Blame("transport", "send completed out of order", evidence)
            self._completed += 1
        return None

    def sendable(self) -> range:
        """Serials of the messages that may be sent now; they count as sent. A message has its serial for an
        id, as far as the id is wide."""
        first = self._sent
        until = min(
            self._offered,
            self._received + self._config.window_messages,
            self._completed + self._unacknowledged_max,
        )
        if until > first:
            self._sent = until
        return range(first, until)
