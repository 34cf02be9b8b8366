"""Nothing is sent again on a selective connection without a reason (docs/protocol.md 4.4).

What a NIC may know is what acknowledgements told it that reached it. What is acknowledged is not sent again,
but for the first packet of the message that it stands in, once with what asks for the third time or later.
Any other packet may be, by what is known:

- *lost*: a packet that was sent once, after it and after its last copy, is there. So each packet comes again
  at most once for each packet of its connection that is sent later, and a packet that nothing overtook and
  that was not lost, never: what comes again for one loss is at most one copy from each rank, and one more for
  each round trip that the repair takes. Of acknowledgements that come at once each counts by itself: all are
  here before the first packet leaves for any of them, and what one of them shows to be lost may go again,
  though the next one shows that it is there.
- *asking*: the first unacknowledged packet, when a timer may have passed. The k-th time without progress it
  is ``min(SHORTEST_NS << k, T)`` after the timer was set, ``T`` being the first one of go-back-N; so in a
  silence of t there are at most log2(t / SHORTEST_NS) + t / T of them. It goes out twice at most, and from
  the second time on with the first packet of each message.
- *twice*: what a switch that repairs has made known as lost, if it is few packets, else the last of them; and
  the last packet of all. The second copy goes with the first, at once: before anything else is heard, and
  before what asks.
- *asking more*: until other packets are heard of, 2 ** a packets, when that packet and what followed it were
  acknowledged a times.

A bound of copies for a loss that depends on nothing else there is not: a rank whose link is a hundred times
slower lets the others see a hole for a hundred of their round trips.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from inaproto.core.rdma.requester import SPREAD_DOUBLINGS
from inaproto.core.rdma.selective_requester import SHORTEST_NS, TWICE_PACKETS_MAX
from inaproto.sim.frames.checkers.checker import Checker, each_frame, is_intact
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.behind_gap import AtSwitch, BehindGap, decode_behind
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.pause import pauses_of

if TYPE_CHECKING:
    from inaproto.core.switch.ring_spec import RingSpec
    from inaproto.sim.frames.host.host import SimHost
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World
    from inaproto.units import Frames

_HALF: Final = 1 << 23
_MASK: Final = (1 << 24) - 1
_OPENING: Final = (0x06, 0x0A, 0x0B)
_ACK: Final = 0x11
_ACK_BYTES: Final = 62
"""An acknowledge packet without a bitmap: the payload of another lies behind its AETH, before the ICRC."""
_PAYLOAD: Final = slice(58, -4)
_ROUNDS_MAX: Final = 12


@dataclass(slots=True)
class Sender:
    """What the NIC of one rank has heard on one connection, and what it has sent.

    Positions count the packets of a connection from 0 on.
    """

    name: str
    first_psn: int
    timer_ns: int
    messages: int
    """That may be on the way at once."""
    una: int = 0
    sent: int = 0
    newest: int = -1
    """The highest position that is there and was sent once."""
    there: set[int] = field(default_factory=set)
    copies: dict[int, int] = field(default_factory=dict)
    """What goes again and is not known to be there: the position that was to be sent next by then."""
    heard_at: int = -1
    lost: list[set[int]] = field(default_factory=list)
    """What each acknowledgement of that instant showed to be lost, and all earlier ones together, until it
    has left again."""
    timer_at: int = 0
    """Since when the timer runs."""
    asked: int = 0
    """Times without progress that it was asked."""
    answers: int = -1
    """Acknowledgements with progress since it was asked last; below 0: nothing more may be asked for."""
    highest: int = -1
    """Highest position that was sent again since then."""
    is_known: bool = True
    """All that its NIC has heard has been seen here, too."""
    excused: bool = False
    """Its receiver had no room."""
    is_repaired: bool = False
    """A switch says what is there."""
    said_to: int = -1
    """The newest position of which it spoke."""
    may_ask: tuple[int, int] = (-1, 0)
    """An instant, and how many packets may be sent then without having been lost."""
    shown_at: int = -1
    """When the first packet of a message left again that was acknowledged."""
    heads: int = 0
    """How many first packets of messages, too."""
    leaving_at: int = -1
    leaving: list[int] = field(default_factory=list)
    """What left together at that instant, once: what was lost, or the newest packet."""
    leaving_of: set[int] | None = None
    """To which of ``lost`` that belonged."""
    seconds: int = 0
    """Of how many of these a second copy has left."""

    def position_of(self, psn: int) -> int:
        ahead = (psn - self.first_psn - self.una + _HALF) & _MASK
        return self.una + ahead - _HALF

    def heard(self, frame: bytes, now: int) -> None:
        """An acknowledge packet came."""
        at, syndrome = self.position_of(int.from_bytes(frame[51:54], "big")), frame[54]
        if not self.una <= at < self.sent:
            return
        self.leaving, self.seconds = [], 0
        if now != self.heard_at:
            self.heard_at = now
            rest = {at for at in set[int]().union(*self.lost) if at >= self.una and at not in self.there}
            self.lost = [rest] if rest else []
        if syndrome >> 5 == 0:
            self._acknowledged(at + 1, now)
        elif syndrome >> 5 == 1:
            self._acknowledged(at, now)
            self.excused = True
        elif syndrome == 0x60:
            behind = decode_behind(frame[_PAYLOAD]) or BehindGap(1, 0)
            if isinstance(behind, AtSwitch):
                self._told_by_switch(at, behind)
            else:
                self._acknowledged(at, now)
                self._told({self.una}, {*_behind(self.una, behind.arrived << 1)}, self.una + behind.reach)
        self._lose()

    def _lose(self) -> None:
        """What is lost by what has been heard until now may go again, once."""
        missing = (at for at in range(self.una, min(self.newest + 1, self.sent)) if at not in self.there)
        lost = {at for at in missing if self.copies.get(at, at + 1) <= self.newest}
        if lost:
            self.lost.append(lost)
            self.copies |= dict.fromkeys(lost, self.sent)

    def _acknowledged(self, end: int, now: int) -> None:
        if end == self.una:
            return
        known = set() if self.is_repaired else self.there
        news = any(at not in known and at not in self.copies for at in range(self.una, end))
        # Of those that come at once the NIC answers each before it takes the next; that is seen later.
        is_first = self.may_ask[0] != now
        if is_first:
            self.may_ask, self.heads = (now, 0), 0
        if end > self.highest and news and is_first:
            self.answers = -1
        elif self.answers >= 0:
            self.answers += 1
            self.may_ask = now, self.may_ask[1] + (1 << min(self.answers, _ROUNDS_MAX))
        if end - 1 not in self.copies:
            self.newest = max(self.newest, end - 1)
        self.una, self.timer_at, self.asked, self.excused = end, now, 0, False
        self.there = {at for at in self.there if at >= end}
        self.copies = {at: due for at, due in self.copies.items() if at >= end}

    def _told_by_switch(self, at: int, behind: AtSwitch) -> None:
        """Everything before ``at`` is there, and this behind it. Nothing is acknowledged by that."""
        self.is_repaired = True
        newest = at + behind.reach
        if newest < self.said_to:
            return
        said = range(self.una, min(newest + 1, self.sent))
        there = {*range(self.una, at), *_behind(at, behind.arrived)} if behind.reach else {*said}
        there &= {*said}
        missing = {*said} - there if newest > self.said_to else set()
        self.said_to = newest
        self._told(missing, there, newest)

    def _told(self, missing: set[int], there: set[int], reach: int) -> None:
        self.there -= missing
        fresh = [at for at in sorted(there) if at < self.sent and at not in self.there]
        self.there.update(fresh)
        once = [at for at in fresh if at not in self.copies]
        reach = min(reach, self.sent - 1)
        if reach not in self.copies and reach not in self.there:
            once.append(reach)
        self.newest = max(self.newest, *once, -1)
        for at in fresh:
            self.copies.pop(at, None)

    def sends(self, frame: bytes, now: int) -> str:
        """A packet leaves; returns what is wrong with that, if anything is."""
        at = self.position_of(int.from_bytes(frame[51:54], "big"))
        if self._is_second(at, now):
            if at == self.una and self.may_ask[0] == now:  # it may as well ask: nobody could tell
                self.copies[at], self.highest = self.sent, max(self.highest, at)
            return ""
        if at >= self.sent:
            self.leaving, self.leaving_of = [at], None
            if self.una == self.sent:
                self.timer_at = now
            self.sent = at + 1
            return ""
        if at < self.una and self._shows(now, opens=frame[42] in _OPENING):
            return ""
        if at < self.una:  # of answers that came at once a later one may have acknowledged it
            return "" if now == self.heard_at else "it was acknowledged before"
        lost = next((lost for lost in self.lost if at in lost), None)
        if lost is not None:
            lost.remove(at)
            if lost is not self.leaving_of:
                self.leaving, self.leaving_of = [], lost
            self.leaving.append(at)
        else:
            if not self.excused:
                wrong = self._asks(at, now, opens=frame[42] in _OPENING)
                if wrong is None:  # the first packet of a message, beside the one that asks
                    return ""
                if wrong:
                    return wrong
            self.leaving = []
            self.there.discard(at)
        if at not in self.there:
            self.copies[at] = self.sent
        self.highest = max(self.highest, at)
        self.timer_at = now
        return ""

    def _shows(self, now: int, *, opens: bool) -> bool:
        """Whether the first packet of the present message may leave, though it was acknowledged."""
        may = opens and self.may_ask[0] == now != self.shown_at and self.asked >= SPREAD_DOUBLINGS
        if may:
            self.shown_at = now
        return may

    def _is_second(self, at: int, now: int) -> bool:
        """Whether it is a second copy that may leave."""
        if now != self.leaving_at:
            self.leaving_at, self.leaving, self.seconds = now, [], 0
        firsts = self.leaving[-1:] if len(self.leaving) > TWICE_PACKETS_MAX else self.leaving
        if self.is_repaired and self.seconds < len(firsts) and at == firsts[self.seconds]:
            self.seconds += 1
            return True
        if self.seconds:
            self.leaving, self.seconds = [], 0
        return False

    def _asks(self, at: int, now: int, *, opens: bool) -> str | None:
        if self.may_ask[0] != now:
            wait = min(SHORTEST_NS << self.asked, self.timer_ns)
            if at != self.una or now - self.timer_at < wait:
                late = f"{now - self.timer_at} ns after the timer was set, which runs for {wait} at least"
                return f"asked {self.asked} times, {late if at == self.una else 'and heard nothing since'}"
            self.asked += 1
            self.answers, self.highest = 0, at
            self.may_ask, self.heads = (now, 2), self.messages if self.asked > 1 else 0
        if opens and at != self.una and self.heads:
            self.heads -= 1
            return None
        self.may_ask = now, self.may_ask[1] - 1
        return "" if self.may_ask[1] >= 0 else f"more than may be asked for after {self.answers} answers"


def _behind(at: int, bits: int) -> Iterator[int]:
    """Positions of the bits that are set, the lowest of which is that of ``at``."""
    while bits:
        lowest = bits & -bits
        bits ^= lowest
        yield at + lowest.bit_length() - 1


class ReasonToResend(Checker):
    name = "nothing sent again without reason"

    def begin(self, world: World) -> None:
        self._world = world
        self._senders: dict[tuple[int, bytes], Sender] = {}
        """By the host's number, and addresses and queue pair of what they send."""
        self._answers: dict[tuple[int, bytes], Sender] = {}
        """By those of what they are answered with."""
        self._rings: dict[bytes, int] = {}
        self._paused: set[int] = set()
        """Hosts whose links have been paused: what they send leaves later than it was decided."""

    def ring_installed(self, switch: SimSwitch, spec: RingSpec) -> None:
        if not spec.selective:
            return
        for flow in spec.flows:
            key = flow.src_ip + flow.dst_ip + flow.dst_qp.to_bytes(3, "big")
            found = self._world.sender_of(flow)
            if found is None or found[0].host.number in self._paused or self._rings.get(key) == spec.ring_id:
                continue
            ring, out = found
            name = f"rank {flow.rank} in ring {spec.ring_id}"
            timer_ns = 4096 << ring.job.transport_timeout
            sender, number = Sender(name, out.psn, timer_ns, spec.window_messages), ring.host.number
            self._rings[key], self._senders[number, key] = spec.ring_id, sender
            self._answers[number, flow.dst_ip + flow.src_ip + out.qpn.to_bytes(3, "big")] = sender

    def nic_received(self, host: SimHost, blocks: list[Frames]) -> None:
        if any(pauses_of(block) for block in blocks if block.shape[1] < _ACK_BYTES):
            self._paused.add(host.number)
        if not self._answers:
            return
        for block in blocks:
            if block.shape[1] < _ACK_BYTES:
                continue
            for frame in each_frame(block):
                if frame[42] == _ACK and frame[:6] == host.mac:
                    key = host.number, frame[26:34] + frame[47:50]
                    sender = self._answers.get(key)
                    if sender is None or not is_intact(frame):
                        continue
                    if _is_as_sent(frame):
                        sender.heard(frame, host.now)
                    else:  # its NIC may drop it or not
                        del self._answers[key]
                        sender.is_known = False

    def nic_sent(self, host: SimHost, frames: Frames) -> None:
        if not self._senders or host.number in self._paused:
            return
        for frame in each_frame(frames):
            sender = self._senders.get((host.number, frame[26:34] + frame[47:50]))
            if sender is not None and sender.is_known and frame[42] != _ACK:
                wrong = sender.sends(frame, host.now)
                if wrong:
                    psn = int.from_bytes(frame[51:54], "big")
                    raise Violated(self.name, f"{sender.name}: PSN {psn} was sent again: {wrong}")


def _is_as_sent(frame: bytes) -> bool:
    """Whether nothing that no ICRC covers was damaged, as far as it shows."""
    plain = frame[12:15] == b"\x08\x00\x45" and not internet_checksum(frame[14:34])
    return plain and not any(frame[40:42]) and not frame[46]
