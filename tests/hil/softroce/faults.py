"""Faults of the wire, each a function of one frame: see :mod:`~tests.hil.softroce.wire`.

Those that depend on what the hosts do wait for it, and not for a time: an emulated host may stand still.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inaproto.wire.icrc import seal
from tests.hil.softroce.congestion import marked, notification
from tests.hil.softroce.wire import Fault, Seen, Sent

_ETHERNET, _IP = 14, 34
_ICRC_BYTES = 4


def drop(*numbers: int, data: bool = True) -> Fault:
    """Data packets, or acknowledgements, of these numbers; what is sent again passes."""

    def fault(seen: Seen) -> Sequence[Sent]:
        is_chosen = seen.is_data is data and not seen.is_again and seen.number in numbers
        return [] if is_chosen else [Sent(seen.packet.data)]

    return fault


def drop_acks_until_resent(psn: int) -> Fault:
    """Acknowledgements of ``psn``, until the sender sends something again for want of one."""
    is_dropped = is_over = False

    def fault(seen: Seen) -> Sequence[Sent]:
        nonlocal is_dropped, is_over
        is_over = is_over or (is_dropped and seen.is_again)
        if is_over or seen.is_data or seen.psn != psn:
            return [Sent(seen.packet.data)]
        is_dropped = True
        return []

    return fault


def drop_acks(seen: Seen) -> Sequence[Sent]:
    return [Sent(seen.packet.data)] if seen.is_data else []


def duplicate(number: int) -> Fault:
    def fault(seen: Seen) -> Sequence[Sent]:
        is_chosen = seen.is_data and not seen.is_again and seen.number == number
        return [Sent(seen.packet.data)] * (2 if is_chosen else 1)

    return fault


def overtake(number: int) -> Fault:
    """A data packet comes behind its own resend, for which those that overtook it made the receiver ask."""
    late: list[Sent] = []

    def fault(seen: Seen) -> Sequence[Sent]:
        if not (seen.is_data and seen.number == number):
            return [Sent(seen.packet.data)]
        if not seen.is_again:
            late.append(Sent(seen.packet.data))
            return []
        sent = [Sent(seen.packet.data), *late]
        late.clear()
        return sent

    return fault


def hold(seconds: float, *, data: bool) -> Fault:
    """All data packets, or all acknowledgements: a longer path."""
    return lambda seen: [Sent(seen.packet.data, seconds if seen.is_data is data else 0.0)]


def hold_until_resent(times: int, *, data: bool) -> Fault:
    """All data packets, or all acknowledgements, until the first data packet was sent again ``times`` times.

    A path longer than the sender's timer, however late that goes off. What was held goes on in order.
    """
    held: list[Sent] = []
    left = times

    def fault(seen: Seen) -> Sequence[Sent]:
        nonlocal left
        left -= seen.is_again and seen.number == 0
        if left > 0 and seen.is_data is data:
            held.append(Sent(seen.packet.data))
            return []
        sent = [*(held if left <= 0 else []), Sent(seen.packet.data)]
        if left <= 0:
            held.clear()
        return sent

    return fault


def corrupt(number: int) -> Fault:
    """A bit of the payload, without a new ICRC."""

    def fault(seen: Seen) -> Sequence[Sent]:
        if not seen.is_data or seen.is_again or seen.number != number:
            return [Sent(seen.packet.data)]
        frame = bytearray(seen.packet.data)
        frame[seen.packet.header_bytes] ^= 1
        return [Sent(bytes(frame))]

    return fault


def add_one(seen: Seen) -> Sequence[Sent]:
    """Add one to each 32-bit word of data, with a new ICRC: what an accelerator may do to a payload."""
    if not seen.is_data:
        return [Sent(seen.packet.data)]
    frame = bytearray(seen.packet.data)
    begin = seen.packet.header_bytes
    words = np.frombuffer(frame, np.uint32, seen.packet.payload_bytes // 4, begin)
    words += np.uint32(1)
    del words
    seal(frame)
    return [Sent(bytes(frame))]


def mark(*numbers: int) -> Fault:
    """A switch on the way was congested when these data packets came by."""

    def fault(seen: Seen) -> Sequence[Sent]:
        is_chosen = seen.is_data and seen.number in numbers
        return [Sent(marked(seen.packet.data) if is_chosen else seen.packet.data)]

    return fault


def notify(seen: Seen) -> Sequence[Sent]:
    """With each acknowledgement a notification of congestion, as a receiver of marked packets sends it."""
    return [Sent(seen.packet.data), *([] if seen.is_data else [Sent(notification(seen.packet))])]


def rewrite_unprotected(seen: Seen) -> Sequence[Sent]:
    """What the ICRC does not cover: TOS, TTL with the IP checksum that belongs to them, and FECN."""
    frame = bytearray(seen.packet.data)
    frame[_ETHERNET + 1] = 3
    frame[_ETHERNET + 8] -= 1
    frame[_ETHERNET + 10 : _ETHERNET + 12] = b"\0\0"
    words = np.frombuffer(frame, ">u2", 10, _ETHERNET).astype(np.uint32).sum()
    folded = (int(words) & 0xFFFF) + (int(words) >> 16)
    frame[_ETHERNET + 10 : _ETHERNET + 12] = (~((folded & 0xFFFF) + (folded >> 16)) & 0xFFFF).to_bytes(
        2, "big"
    )
    frame[_IP + 8 + 4] |= 0x80
    return [Sent(bytes(frame))]
