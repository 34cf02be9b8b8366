"""What a requester keeps on its own, with or without a ring (IBTA 9.4, 9.5, 9.7; NetReduce section 3.1)."""

from __future__ import annotations

from typing import Final

from inaproto.wire.files.pcapng import Direction
from inaproto.wire.roce import Opcode, opcode_name
from inaproto_hil.inspect.findings import (
    MESSAGE_LENGTH,
    OPCODE_ORDER,
    PSN_GAP,
    RETRANSMISSION,
    RKEY,
    Books,
    Broken,
)
from inaproto_hil.inspect.flows import Flow, Gap, Message, Stream, digest, is_opening, is_write, message_of
from inaproto_hil.inspect.packets import ENDING, OPENING, Seen

_OPCODE_BYTES: Final = range(42, 43)
_PSN_BYTES: Final = range(51, 54)
_RKEY_BYTES: Final = range(62, 66)
_LENGTH_BYTES: Final = range(66, 70)
_LASTS: Final = ENDING - OPENING


def judge_request(
    seen: Seen, flow: Flow, stream: Stream, position: int, books: Books, *, may_change: bool
) -> Broken | None:
    """The first of these rules that a request breaks.

    ``may_change``: its result has been seen, or could not have been. A rank may take a result into the very
    buffer that it sent from: what it sends again matters to nobody.
    """
    if not is_write(seen):
        return _retransmission(seen, stream, position, books, may_change=may_change)
    broken = (
        _first(seen, flow, position, books)
        if is_opening(seen)
        else _later(seen, flow, stream, position, books)
    )
    return broken or _retransmission(seen, stream, position, books, may_change=may_change)


def _first(seen: Seen, flow: Flow, position: int, books: Books) -> Broken | None:
    """A packet that opens a message."""
    books.check(OPCODE_ORDER, MESSAGE_LENGTH)
    known = flow.message_at(position)
    if known is not None and known.begin != position:
        return seen.breaks(OPCODE_ORDER, _due(known, position), _is(seen), _OPCODE_BYTES)
    message, reth = message_of(position, seen), seen.reth
    assert reth is not None, "an opening packet has a RETH"
    payload = seen.packet.payload_bytes
    is_only = seen.packet.opcode in ENDING
    if (reth[2] != payload) if is_only else (reth[2] <= payload):
        expected = (
            f"DMA length {payload}" if is_only else f"DMA length above the {payload} bytes of this packet"
        )
        return seen.breaks(MESSAGE_LENGTH, expected, f"{reth[2]}", _LENGTH_BYTES)
    if seen.ina is not None and seen.ina.msg_len != message.packets:
        expected = f"{message.packets} packets, from DMA length {reth[2]} and {message.mtu} bytes a packet"
        at = seen.packet.header_bytes + 28
        return seen.breaks(
            MESSAGE_LENGTH, expected, f"INA message length {seen.ina.msg_len}", range(at, at + 2)
        )
    if seen.ina is not None and flow.rkey is not None:
        books.check(RKEY)
        if reth[1] != flow.rkey:
            return seen.breaks(RKEY, f"rkey 0x{flow.rkey:08x}", f"rkey 0x{reth[1]:08x}", _RKEY_BYTES)
    return _contiguous(seen, flow, position, books)


def _contiguous(seen: Seen, flow: Flow, position: int, books: Books) -> Broken | None:
    """Message ids of a ring leave no room for a message between two that follow one another."""
    if seen.ina is None:
        return None
    before = flow.by_id.get((seen.ina.msg_id - 1) & 0xFFFF_FFFF)
    if before is None or before.end == position or position in flow.messages:
        return None
    if any(before.end <= begin < position for begin in flow.messages):  # of another path, in between
        return None
    books.check(PSN_GAP)
    expected = f"PSN {before.end & 0xFF_FFFF}, behind message {seen.ina.msg_id - 1} (frame {before.frame})"
    return seen.breaks(PSN_GAP, expected, f"PSN {seen.packet.psn}", _PSN_BYTES)


def _later(seen: Seen, flow: Flow, stream: Stream, position: int, books: Books) -> Broken | None:
    message = flow.message_at(position)
    if message is None:
        before = flow.message_at(position - 1)
        gap = None if before is None else stream.gap_in(before.begin, position)
        if gap is None or before is None:
            books.note("packets of messages whose first packet was not seen")
            return None
        return _skipped(seen, stream, gap, before)
    books.check(OPCODE_ORDER, MESSAGE_LENGTH, PSN_GAP)
    offset, opcode = position - message.begin, seen.packet.opcode
    is_last = offset == message.packets - 1
    if offset == 0 or (opcode in _LASTS) is not is_last:
        gap = stream.gap_in(message.begin, position)
        if gap is not None:
            return _skipped(seen, stream, gap, message)
        return seen.breaks(OPCODE_ORDER, _due(message, position), _is(seen), _OPCODE_BYTES)
    expected = message.payload_bytes(offset)
    if seen.packet.payload_bytes != expected:
        got = f"{seen.packet.payload_bytes} payload bytes"
        return seen.breaks(MESSAGE_LENGTH, f"{expected} payload bytes at packet {offset}", got)
    return None


def _skipped(seen: Seen, stream: Stream, gap: Gap, message: Message) -> Broken:
    """The message has all its packets, and a gap: the gap was no loss. It is told once."""
    stream.gaps.remove(gap)
    span = f"{gap.begin & 0xFF_FFFF}"
    if gap.end - gap.begin > 1:
        span += f" to {(gap.end - 1) & 0xFF_FFFF}"
    expected = f"PSN {gap.begin & 0xFF_FFFF}: the message of {message.packets} packets needs no more"
    got = f"PSN {gap.end & 0xFF_FFFF}; {span} left out"
    return Broken(
        PSN_GAP, gap.frame, seen.name(), gap.end & 0xFF_FFFF, expected, got, seen.frame.number, _PSN_BYTES
    )


def _retransmission(
    seen: Seen, stream: Stream, position: int, books: Books, *, may_change: bool
) -> Broken | None:
    before = stream.carried.get(position)
    if before is None:
        return None
    if before.is_result != seen.is_result and stream.direction is Direction.UNKNOWN:
        stream.is_mixed = True
    if stream.is_mixed:
        return None
    if before.digest == digest(seen):
        books.check(RETRANSMISSION)
        return None
    if may_change and is_write(seen) and seen.packet.opcode == before.frame.data[_OPCODE_BYTES.start]:
        books.note("packets sent again with other bytes, whose sum may be done")
        return None
    books.check(RETRANSMISSION)
    old, new = before.frame.data[42:], seen.packet.data[42:]
    same = (1, 2, 3, 4, 8, 9, 10, 11)  # of the BTH, which may differ
    end = min(len(old), len(new)) - 4
    at = next((i for i in range(end) if old[i] != new[i] and i not in same), end)
    expected = f"as in frame {before.frame.number}: {opcode_name(old[0])}, byte {42 + at} is 0x{old[at]:02x}"
    got = f"{opcode_name(new[0])}, byte {42 + at} is 0x{new[at]:02x}"
    return seen.breaks(RETRANSMISSION, expected, got, range(42 + at, 43 + at))


def _due(message: Message, position: int) -> str:
    offset = position - message.begin
    what = "a LAST" if offset == message.packets - 1 else "RC_WRITE_MIDDLE"
    if offset == 0:
        what = "a first packet"
    return f"{what}: packet {offset} of {message.packets} of the message that frame {message.frame} opened"


def _is(seen: Seen) -> str:
    return opcode_name(Opcode(seen.packet.opcode))
