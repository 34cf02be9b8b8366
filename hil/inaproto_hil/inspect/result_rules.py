"""What the accelerator keeps: sums, their order and their connections (NetReduce sections 3.1 and 3.2).

Applied to what leaves a switch on connections of results, with what came in on the same switch. A ring that
spans several switches is left out: a switch of it sees a part of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from inaproto.wire.ina_header import INA_HEADER_BYTES, InaHeader
from inaproto_hil.inspect.findings import (
    NOT_A_RESULT,
    RESULT_ORDER,
    TOO_EARLY,
    WRONG_CONNECTION,
    WRONG_SUM,
    Books,
    Broken,
)
from inaproto_hil.inspect.flows import Flow, Stream
from inaproto_hil.inspect.packets import Seen, connection_text
from inaproto_hil.inspect.ring_rules import Ring
from inaproto_hil.inspect.sums import elements, reduction


def judge_mark(seen: Seen, stream: Stream, books: Books) -> Broken | None:
    """A stream of results stays one."""
    if seen.ina is None or stream.is_mixed or stream.is_result is None:
        return None
    books.check(NOT_A_RESULT)
    if seen.is_result == stream.is_result:
        return None
    at = seen.packet.header_bytes + 7
    kinds = {True: "a result", False: "a rank's own payload"}
    return seen.breaks(
        NOT_A_RESULT,
        f"{kinds[stream.is_result]}, as before at this port",
        kinds[seen.is_result],
        range(at, at + 1),
    )


def judge_result(
    seen: Seen, flow: Flow, ring: Ring, position: int, *, is_whole: bool, books: Books
) -> Broken | None:
    """A result that leaves the switch. ``is_whole``: all that came in for the ring has been captured."""
    message = flow.message_at(position)
    if message is None or message.ina is None:
        books.note("results of messages whose first packet was not seen, not checked")
        return None
    offset = position - message.begin
    came = _came(ring, message.ina.msg_id)
    missing = _missing(ring, message.ina.msg_id, offset)
    if not is_whole:
        books.note("results whose inputs were not captured, not checked")
        return None
    if missing:
        if flow.due is None or position < flow.due:  # it has left before, long ago
            return None
        books.check(TOO_EARLY)
        names = ", ".join(map(str, missing))
        got = f"nothing of rank {names} for message {message.ina.msg_id}, packet {offset}"
        return seen.breaks(TOO_EARLY, "packets of all ranks before it", got, range(51, 54))
    books.check(TOO_EARLY, WRONG_SUM, WRONG_CONNECTION)
    broken = _sum(seen, message.ina, [came[rank][offset] for rank in range(ring.ina.ring_size)], offset)
    if broken is None:
        broken = _order(seen, flow, ring, position, books)
    return broken


def _came(ring: Ring, msg_id: int) -> dict[int, dict[int, bytes]]:
    """Payloads of a message, by rank and place."""
    store = ring.messages.get(msg_id)
    return {} if store is None else store.came


def _missing(ring: Ring, msg_id: int, offset: int) -> list[int]:
    """Ranks whose packet has not come."""
    came = _came(ring, msg_id)
    return [rank for rank in range(ring.ina.ring_size) if offset not in came.get(rank, {})]


def _sum(seen: Seen, ina: InaHeader, inputs: list[bytes], offset: int) -> Broken | None:
    begin = seen.packet.header_bytes + (INA_HEADER_BYTES if offset == 0 else 0)
    got = seen.packet.data[begin : seen.packet.header_bytes + seen.packet.payload_bytes]
    if len({len(got), *map(len, inputs)}) > 1:
        expected = f"{len(inputs[0])} bytes, as the ranks sent"
        return seen.breaks(WRONG_SUM, expected, f"{len(got)} bytes")
    right = reduction(ina.dtype, ina.op, inputs)
    if got == right:
        return None
    size = ina.dtype.itemsize
    words = np.frombuffer(got, np.uint8).reshape(-1, size) != np.frombuffer(right, np.uint8).reshape(-1, size)
    wrong = np.flatnonzero(words.any(axis=1))
    at = int(wrong[0])
    cut = slice(at * size, (at + 1) * size)
    parts = ", ".join(_number(ina, part[cut]) for part in inputs)
    where = f"element {at} of packet {offset} of message {ina.msg_id}"
    return seen.breaks(
        WRONG_SUM,
        f"{where}: {_number(ina, right[cut])}, the {ina.op.name.lower()} of {parts}",
        f"{_number(ina, got[cut])}; {len(wrong)} of {len(words)} elements are wrong",
        range(begin + cut.start, begin + cut.stop),
    )


def _number(ina: InaHeader, data: bytes) -> str:
    return f"{elements(ina.dtype, data)[0]} (0x{data[::-1].hex()})"


def _order(seen: Seen, flow: Flow, ring: Ring, position: int, books: Books) -> Broken | None:
    if flow.due is None or position < flow.due:
        return None
    books.check(RESULT_ORDER)
    if position == flow.due:
        return None
    if any(between not in flow.placed for between in range(flow.due, position)):
        books.note("results let past a hole in what their rank sent")
        return None
    due = flow.message_at(flow.due)
    if due is None or due.ina is None or _missing(ring, due.ina.msg_id, flow.due - due.begin):
        # No packet says which rings are selective, before something is lost (docs/protocol.md 4.4, 6.6).
        books.note("results let past one that was not complete, as selective rings do")
        return None
    expected = f"PSN {flow.due & 0xFF_FFFF}: its rank's packets are all here"
    return seen.breaks(RESULT_ORDER, expected, f"PSN {seen.packet.psn}", range(51, 54))


def judge_connection(seen: Seen, flows: Iterable[Flow], books: Books) -> Broken | None:
    """What leaves on a connection on which nothing came in, where another waits for that very PSN."""
    books.check(WRONG_CONNECTION)
    for flow in flows:
        if flow.connection[:2] != seen.connection[:2] or flow.due is None:
            continue
        if flow.due & 0xFF_FFFF == seen.packet.psn:
            expected = connection_text(flow.connection)
            return seen.breaks(WRONG_CONNECTION, expected, seen.name(), range(46, 50))
    return None
