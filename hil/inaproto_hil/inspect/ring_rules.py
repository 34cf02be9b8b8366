"""What the ranks of a ring keep: identity, message ids, agreement (NetReduce sections 3.1 and 3.2).

The state is that of the connection lookup table and of the aggregator array, rebuilt from first packets and
from what came in, without the accelerator's code.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from inaproto.wire.ina_header import InaHeader
from inaproto_hil.inspect.findings import (
    INA_HEADER,
    RANK,
    RANKS_DISAGREE,
    STALE_FIRST,
    WRONG_KEY,
    WRONG_RING,
    Books,
    Broken,
    Rule,
)
from inaproto_hil.inspect.flows import Flow
from inaproto_hil.inspect.packets import Connection, Seen, connection_text

MESSAGES_MAX: Final = 64
"""Most messages of a ring whose packets are kept."""
BYTES_MAX: Final = 256 << 20
"""Most bytes of their payloads."""
RINGS_MAX: Final = 256
IN_FLIGHT_MAX: Final = 64
"""Messages that may be in flight at once, at most: twice the widest window that anyone uses."""
_ID_MASK: Final = 0xFFFF_FFFF
_ID_HALF: Final = 1 << 31
_FIELDS: Final = {
    "ring_id": (8, 4),
    "epoch": (12, 4),
    "op_index": (16, 4),
    "msg_id": (20, 4),
    "rank": (24, 2),
    "ring_size": (26, 2),
    "msg_len": (28, 2),
    "signature": (30, 2),
    "key": (32, 8),
    "dtype": (5, 1),
    "op": (6, 1),
    "flags": (7, 1),
}
"""Offset and bytes in the header."""
_AGREED: Final = ("op_index", "dtype", "op", "msg_len", "flags", "signature")


@dataclass(slots=True)
class RingMessage:
    """What came in of one message, by rank and offset: payloads less the header."""

    ina: InaHeader
    frame: int
    came: dict[int, dict[int, bytes]] = field(default_factory=dict)
    last: tuple[int, int, int] | None = None
    """Payload bytes of the last packet, the rank and the frame that said so first."""
    results: set[int] = field(default_factory=set)
    """Offsets whose results have been seen, on any connection."""


@dataclass(slots=True)
class Ring:
    ina: InaHeader
    """The first header seen of it."""
    frame: int
    ranks: dict[int, Connection] = field(default_factory=dict)
    messages: dict[int, RingMessage] = field(default_factory=dict)
    targets: set[bytes] = field(default_factory=set)
    """IP addresses to which results were seen to go."""
    nbytes: int = 0
    """Bytes of all payloads that are kept."""
    inputs: set[int] = field(default_factory=set)
    """Ranks whose packets come in here."""
    latest: int = 0
    """Message id seen last."""
    unseen_until: int | None = None
    """Messages up to this one may have been sent, in part, where this capture does not show it."""

    def lose_sight(self) -> None:
        """Something is missing from the capture: what was in flight cannot be judged by its inputs."""
        self.unseen_until = (self.latest + IN_FLIGHT_MAX) & _ID_MASK

    def is_seen(self, msg_id: int) -> bool:
        """Whether all that was ever sent of a message has been captured."""
        return self.unseen_until is None or ahead(msg_id, self.unseen_until) > 0

    def message(self, ina: InaHeader, frame: int) -> RingMessage:
        found = self.messages.get(ina.msg_id)
        if found is None:
            found = self.messages[ina.msg_id] = RingMessage(ina, frame)
            if len(self.messages) > MESSAGES_MAX:
                self._forget_oldest()
        return found

    def keep(self, message: RingMessage, rank: int, offset: int, payload: bytes) -> None:
        """What came in, the first time that it did."""
        came = message.came.setdefault(rank, {})
        if offset in came:
            return
        came[offset] = payload
        self.nbytes += len(payload)
        while self.nbytes > BYTES_MAX and len(self.messages) > 1:
            self._forget_oldest()
            self.lose_sight()  # it may have been in flight

    def _forget_oldest(self) -> None:
        oldest = self.messages.pop(next(iter(self.messages)))
        self.nbytes -= sum(len(one) for came in oldest.came.values() for one in came.values())


def judge_first(seen: Seen, flow: Flow, rings: dict[int, Ring], position: int, books: Books) -> Broken | None:
    """The first of these rules that a first packet breaks; any other packet breaks none."""
    if seen.ina_fault is not None:
        books.check(INA_HEADER)
        at = seen.packet.header_bytes + seen.ina_fault.offset
        return seen.breaks(INA_HEADER, INA_HEADER.states, seen.ina_fault.reason, range(at, at + 1))
    if seen.ina is None:
        return None
    books.check(INA_HEADER, WRONG_RING, STALE_FIRST)
    ina, ring = seen.ina, rings.get(seen.ina.ring_id)
    if flow.ring_id not in (None, ina.ring_id):
        return _field(seen, WRONG_RING, "ring_id", flow.ring_id, f"the connection's since frame {flow.since}")
    if ring is not None:
        books.check(WRONG_KEY, RANK)
        broken = _identity(seen, flow, ring)
        if broken is not None:
            return broken
    return _stale(seen, flow, position)


def judge_agreement(seen: Seen, rings: dict[int, Ring], books: Books) -> Broken | None:
    """A first packet that differs from what another rank sent for the same message."""
    ina = seen.ina
    ring = None if ina is None else rings.get(ina.ring_id)
    if ina is None or ring is None:
        return None
    known = ring.messages.get(ina.msg_id)
    if known is not None and known.ina.rank != ina.rank:
        books.check(RANKS_DISAGREE)
        for name in _AGREED:
            if getattr(known.ina, name) != getattr(ina, name):
                who = f"rank {known.ina.rank}'s in frame {known.frame}"
                return _field(seen, RANKS_DISAGREE, name, getattr(known.ina, name), who)
    return None


def judge_last(seen: Seen, ring: Ring, message: RingMessage, rank: int, books: Books) -> Broken | None:
    """The last packets of a message have one length at all ranks."""
    payload = seen.packet.payload_bytes
    if message.last is None:
        message.last = payload, rank, seen.frame.number
    books.check(RANKS_DISAGREE)
    nbytes, other, frame = message.last
    if payload == nbytes:
        return None
    expected = f"{nbytes} payload bytes in the last packet, as rank {other} sent in frame {frame}"
    return seen.breaks(RANKS_DISAGREE, expected, f"{payload}")


def _identity(seen: Seen, flow: Flow, ring: Ring) -> Broken | None:
    ina = seen.ina
    assert ina is not None, "only first packets of INA messages are judged"
    since = f"the ring's since frame {ring.frame}"
    for name in ("epoch", "ring_size"):
        if getattr(ina, name) != getattr(ring.ina, name):
            return _field(seen, WRONG_RING, name, getattr(ring.ina, name), since)
    if ina.key != ring.ina.key:  # a secret: say that it differs, not what it is
        at = seen.packet.header_bytes + _FIELDS["key"][0]
        return seen.breaks(WRONG_KEY, f"the key of ring {ina.ring_id}", "another", range(at, at + 8))
    if flow.rank is not None and ina.rank != flow.rank:
        return _field(seen, RANK, "rank", flow.rank, f"the connection's since frame {flow.since}")
    owner = ring.ranks.get(ina.rank)
    if owner is not None and owner != seen.connection:
        who = f"rank {ina.rank} is that of {connection_text(owner)}"
        return _field(seen, RANK, "rank", "of no other connection", who)
    return None


def _stale(seen: Seen, flow: Flow, position: int) -> Broken | None:
    ina = seen.ina
    assert ina is not None, "only first packets of INA messages are judged"
    at, known = flow.message_at(position), flow.by_id.get(ina.msg_id)
    if at is not None and at.begin == position and at.ina is not None and at.ina != ina:
        differ = next(name for name in _FIELDS if getattr(at.ina, name) != getattr(ina, name))
        who = f"that of PSN {seen.packet.psn} since frame {at.frame}"
        return _field(seen, STALE_FIRST, differ, getattr(at.ina, differ), who)
    if known is not None and known.begin != position:
        psn = known.begin & 0xFF_FFFF
        expected = f"PSN {psn}, that of message {ina.msg_id} since frame {known.frame}"
        return seen.breaks(STALE_FIRST, expected, f"PSN {seen.packet.psn}", range(51, 54))
    if known is not None or not flow.by_id:
        return None
    earlier = [one for one in flow.by_id.values() if one.begin < position]
    newer = [one for one in earlier if one.ina is not None and ahead(one.ina.msg_id, ina.msg_id) > 0]
    if newer:
        latest = newer[-1].ina
        assert latest is not None, "only INA messages have an id"
        who = f"message {latest.msg_id} went before it, in frame {newer[-1].frame}"
        return _field(seen, STALE_FIRST, "msg_id", f"{(latest.msg_id + 1) & _ID_MASK} or later", who)
    return None


def _field(seen: Seen, rule: Rule, name: str, expected: object, who: str) -> Broken:
    at, nbytes = _FIELDS[name]
    at += seen.packet.header_bytes
    return seen.breaks(
        rule,
        f"{name} {_value(expected)} ({who})",
        f"{name} {_value(getattr(seen.ina, name))}",
        range(at, at + nbytes),
    )


def _value(value: object) -> str:
    name = getattr(value, "name", None)
    return str(name).lower() if name is not None else str(value)


def ahead(later: int, earlier: int) -> int:
    """How many messages lie between two ids."""
    return ((later - earlier + _ID_HALF) & _ID_MASK) - _ID_HALF
