"""What a responder keeps (IBTA 9.7.5 and 9.7.7): acknowledgements of what it got, and no more.

An answer names only its own target, the sender's queue pair, which no request shows. Between two hosts may be
connections whose requests were not captured: they took another way, or one direction alone was tapped. So an
answer is judged only if it is known which connection it is about:

- its UDP source port is that of one connection alone: many stacks use one in both directions; or
- its addresses and its PSN fit one connection alone, no more queue pairs are answered than there are
  connections to be answered, and the answers have *agreed* with that connection: they acknowledged ends of
  its messages, and as many as their counts of messages (MSN) grew by. One that ever named what was not
  delivered on it is not of it.

Two connections that do the same at the same time cannot be told apart by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from inaproto.core.rdma.reliable_connection import SyndromeKind, syndrome_kind
from inaproto.units import PSN_MASK, psn_distance
from inaproto.wire.behind_gap import AtSwitch
from inaproto.wire.files.pcapng import Direction
from inaproto_hil.inspect.findings import ACK_BEYOND, MSN, NAK, REFUSED, Books, Broken
from inaproto_hil.inspect.flows import FAR, Flow
from inaproto_hil.inspect.packets import Seen

_WINDOW: Final = 1 << 12
"""How far behind the highest PSN an answer may be that tells which connection it is about."""
AGREED_MIN: Final = 1
"""How often answers have to have agreed with a connection before they are judged as of it."""
_PSN_BYTES: Final = range(51, 54)
_MSN_BYTES: Final = range(55, 58)


@dataclass(slots=True)
class Answers:
    """Those to one queue pair, at one port in one direction."""

    flow: Flow
    acked: int | None = None
    """Highest position acknowledged, with the message count and frame of that answer."""
    msn: int = 0
    frame: int = 0
    is_whole: bool = False
    """The connection was captured from its start."""
    by_port: bool = False
    """The UDP port says that they are of the connection."""
    end: tuple[int, int] | None = None
    """Position and MSN of the last one that acknowledged a whole message of the connection."""
    agreed: int = 0
    """How often such answers fitted each other and the messages in between."""
    is_foreign: bool = False
    """Without such a port, and one was of what had not been delivered: they are of another connection."""

    def agree(self, position: int, msn: int) -> None:
        """Compare with the connection an answer that acknowledges up to ``position``."""
        message = self.flow.message_at(position)
        if message is None or message.end != position + 1:
            return
        if self.end is None or position > self.end[0]:
            before, self.end = self.end, (position, msn)
            if before is not None:
                ended = self.flow.ended(before[0], position)
                self.agreed = self.agreed + 1 if psn_distance(msn, before[1]) == ended else 0


class AnsweredPairs:
    """Queue pairs to which answers came, by the two hosts."""

    def __init__(self, pairs_max: int) -> None:
        self._pairs_max = pairs_max
        self._latest: dict[tuple[bytes, bytes], dict[int, int]] = {}
        """By source and destination of answers, and queue pair: number of the last frame."""

    def answered(self, seen: Seen) -> None:
        source, target, pair_ = seen.connection
        pairs = self._latest.setdefault((source, target), {})
        pairs[pair_] = seen.frame.number
        if len(pairs) > self._pairs_max:
            del pairs[next(iter(pairs))]
        if len(self._latest) > self._pairs_max:
            del self._latest[next(iter(self._latest))]

    def count(self, seen: Seen, since: int) -> int:
        """Those between the hosts of an answer to which one came since that frame."""
        pairs = self._latest.get(seen.connection[:2], {})
        return sum(frame >= since for frame in pairs.values())


def pair(seen: Seen, flows: Iterable[Flow]) -> tuple[Flow | None, bool]:
    """The connection that an answer is about, None if none or several fit; whether its UDP port says so."""
    source, target, _ = seen.connection
    port = udp_port(seen)
    fitting, of_port = [], []
    for flow in flows:
        if flow.connection[:2] == (target, source):
            if flow.udp_port == port:
                of_port.append(flow)
            high = delivered(seen, flow)
            if high is not None and -_WINDOW <= psn_distance(seen.packet.psn, high & PSN_MASK) <= 1:
                fitting.append(flow)
    by_port = len(of_port) == 1
    if by_port or len(fitting) > 1:
        fitting = [flow for flow in fitting if flow.udp_port == port]
    return (fitting[0], by_port) if len(fitting) == 1 else (None, False)


def udp_port(seen: Seen) -> int:
    return int.from_bytes(seen.packet.data[34:36], "big")


def delivered(seen: Seen, flow: Flow) -> int | None:
    """The highest position that went the other way than an answer, at the same port."""
    match seen.frame.direction:
        case Direction.INBOUND:
            return flow.high_at(Direction.OUTBOUND, seen.frame.interface.name)
        case Direction.OUTBOUND:
            return flow.high_at(Direction.INBOUND, seen.frame.interface.name)
        case Direction.UNKNOWN:
            return flow.high


def is_from_the_start(flow: Flow, msn: int) -> bool:
    """Whether all that a connection without a ring has sent was captured, when its first answer comes.

    The answer counts messages from the connection's beginning. Else a capture must have gone on for
    longer than any requester sends ahead.
    """
    if flow.first is None or flow.high is None:
        return False
    begins = flow.first[0] in flow.messages and msn <= len(flow.messages)
    return (begins and flow.ring_id is None) or flow.high - flow.first[0] > _WINDOW


def judge_answer(
    seen: Seen, answers: Answers, books: Books, *, is_whole: bool, is_among_more: bool
) -> Broken | None:
    """The first rule that an answer breaks. ``is_whole``: all that was sent before has been captured;
    ``is_among_more``: more queue pairs are answered between the two hosts than have connections here."""
    flow, high = answers.flow, delivered(seen, answers.flow)
    assert seen.aeth is not None, "an ACK packet has an AETH"
    if AtSwitch.decode(seen.packet.payload()) is not None:  # it acknowledges nothing
        books.note("losses that a switch told its senders of")
        return None
    if high is None:
        return None
    syndrome, msn = seen.aeth
    kind = syndrome_kind(syndrome)
    ahead = psn_distance(seen.packet.psn, high & PSN_MASK)
    if abs(ahead) > FAR:
        books.note("answers that belong to no connection seen")
        return None
    if not answers.by_port and answers.agreed < AGREED_MIN:
        answers.is_foreign |= ahead > 0 or kind is not SyndromeKind.ACK
        answers.agree(high + ahead, msn)
    if not answers.by_port and (answers.is_foreign or is_among_more or answers.agreed < AGREED_MIN):
        books.note("answers that may be to another queue pair, not judged")
        return None
    if not is_whole:
        books.note("answers to what was not captured from the start, not judged")
        return None
    psn = high & PSN_MASK
    books.check(REFUSED, ACK_BEYOND)
    if kind is SyndromeKind.FATAL:
        flow.naks += 1
        return seen.breaks(
            REFUSED, "an ACK", f"syndrome 0x{syndrome:02x} for PSN {seen.packet.psn}", range(54, 55)
        )
    if kind is SyndromeKind.SEQUENCE:
        flow.naks += 1
        books.note("NAKs")
        books.check(NAK)
        if ahead >= 0:
            expected = f"a PSN below {psn}, the highest that was delivered"
            return seen.breaks(NAK, expected, f"NAK of PSN {seen.packet.psn}", _PSN_BYTES)
    elif kind is SyndromeKind.ACK:
        flow.acks += 1
        if ahead > 0:
            expected = f"PSN {psn} at most, the highest that was delivered"
            return seen.breaks(ACK_BEYOND, expected, f"ACK of PSN {seen.packet.psn}", _PSN_BYTES)
    else:
        books.note("answers that the receiver is not ready")
        return None
    return _msn(seen, answers, high + ahead - (kind is SyndromeKind.SEQUENCE), msn, books)


def _msn(seen: Seen, answers: Answers, acked: int, msn: int, books: Books) -> Broken | None:
    """Both counts grow together: this holds for answers in whatever order they come."""
    if answers.acked is None:
        answers.acked, answers.msn, answers.frame = acked, msn, seen.frame.number
        return None
    books.check(MSN)
    behind = psn_distance(msn, answers.msn)
    if acked > answers.acked and behind < 0:
        expected = f"MSN {answers.msn} or more, as in frame {answers.frame} for an earlier PSN"
        return seen.breaks(MSN, expected, f"MSN {msn}", _MSN_BYTES)
    if acked > answers.acked:
        answers.acked, answers.msn, answers.frame = acked, msn, seen.frame.number
    return None
