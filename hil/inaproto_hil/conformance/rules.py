"""The rules, from the plainest on: each is a name, where it is written, and packets with what must leave.

"6.4" is a section of docs/protocol.md, "3.1" one of NetReduce, as the titles say.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from inaproto.units import MS, PSN_MASK
from inaproto.wire import icrc
from inaproto.wire.ethernet import BROADCAST
from inaproto.wire.ina_header import FLAG_RESULT, INA_HEADER_BYTES, Dtype, Op
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.pause import pause_frame
from inaproto.wire.roce import SYNDROME_NAK, Opcode
from inaproto_hil.conformance.bench import Bench
from inaproto_hil.conformance.ring import Ring, mac

FILLED_MAX: Final = 32
_FOR_LINKS: Final = bytes.fromhex("0180c20000")
_STRANGER: Final = b"\x02\x1a\xff\0\0\x01"


@dataclass(frozen=True)
class Rule:
    name: str
    where: str
    """Sections of docs/protocol.md and of NetReduce."""
    check: Callable[[Bench], Awaitable[None]]


RULES: Final[list[Rule]] = []


def rule(where: str) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
    """The name of a rule is the first line of its docstring, without the stop."""

    def added(check: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
        assert check.__doc__ is not None
        RULES.append(Rule(check.__doc__.strip().split("\n")[0].rstrip("."), where, check))
        return check

    return added


# ---- a switch for everything else --------------------------------------------------------------------


@rule("protocol 6.11")
async def foreign_frames_pass_unchanged(b: Bench) -> None:
    """A foreign frame leaves by the port of its destination alone, unchanged."""
    for kind, size in ((b"\x88\xb5", 46), (b"\x08\x06", 60), (b"\x86\xdd", 333)):
        frame = mac(0) + mac(1) + kind + bytes(range(256)) * 2
        await b.frame(1, frame[: 14 + size], [(0, frame[: 14 + size])])


@rule("protocol 6.11")
async def unknown_destinations_are_flooded(b: Bench) -> None:
    """What is for everybody, or for nobody known, leaves by all ports but its own."""
    for target in (BROADCAST, _STRANGER, b"\x01\0\x5e\0\0\x01"):
        frame = target + mac(1) + b"\x88\xb5" + bytes(50)
        await b.frame(1, frame, [(port, frame) for port in range(b.limits.ports) if port != 1])


@rule("protocol 6.11")
async def what_is_for_bridges_stays(b: Bench) -> None:
    """Frames to 01:80:c2:00:00:0x are never forwarded, nor is one back to where it came from."""
    await b.frame(0, bytes.fromhex("0180c200000e") + mac(0) + b"\x88\xcc" + bytes(46))
    await b.frame(0, mac(0) + mac(0) + b"\x88\xb5" + bytes(46))


@rule("protocol 6.11, NetReduce 4")
async def foreign_roce_passes_unchanged(b: Bench) -> None:
    """RoCE packets of other connections pass unchanged, whatever their ICRC is."""
    stranger = Ring(0xF0, ranks=2)
    frames = [stranger.packet(0, 0, offset) for offset in (1, 2, 3)]
    for frame in frames:
        await b.frame(0, frame, [(1, frame)])
    damaged = frames[0][:-1] + bytes([frames[0][-1] ^ 1])
    await b.frame(0, damaged, [(1, damaged)])


@rule("protocol 6.11")
async def answers_pass_unchanged(b: Bench) -> None:
    """ACKs and NAKs of a ring's connections pass unchanged."""
    ring = await b.ring()
    for syndrome in (0x1F, SYNDROME_NAK, 0x20 | 5):
        port, frame = ring.answer(0, syndrome)
        await b.frame(port, frame, [(0, frame)])
    frame = ring.answer_under_its_own_name(0)
    await b.frame(0, frame, [(ring.after(0), frame)])


@rule("protocol 6.11")
async def one_damaged_address_moves_no_host(b: Bench) -> None:
    """A RoCE packet from another Ethernet address than its IP source had teaches nothing, but 4 in a row."""
    if b.limits.ports < 3:
        return
    stranger = Ring(0xF2, ranks=2)
    right, moved = (stranger.packet(0, 0, 1, source=source) for source in (mac(0), mac(2)))
    asks = mac(2) + mac(1) + b"\x88\xb5" + bytes(46)
    for before in (right, moved, moved, moved, right, moved, moved, moved):
        await b.frame(0, before, [(1, before)])
        await b.frame(1, asks, [(2, asks)])
    await b.frame(0, moved, [(1, moved)])
    await b.frame(1, asks, [(0, asks)])
    back = mac(1) + mac(2) + b"\x88\xb5" + bytes(46)
    await b.frame(2, back, [(1, back)])
    for _ in range(4):
        await b.frame(0, right, [(1, right)])


# ---- aggregation -------------------------------------------------------------------------------------


@rule("NetReduce 3.1, protocol 6.5")
async def nothing_leaves_before_all_have_sent(b: Bench) -> None:
    """Nothing of a packet leaves before all ranks have sent theirs."""
    ring = await b.ring()
    for rank in range(ring.ranks - 1):
        await b.send(ring, rank, 0, 0)
    await b.nothing_leaves()


@rule("NetReduce 3.1 and 3.2, protocol 6.6")
async def a_full_slot_answers_all(b: Bench) -> None:
    """The last rank's packet is answered to all: own headers, the sum, RESULT set, a new ICRC."""
    ring = await b.ring(dtype=Dtype.I32)
    for rank in range(ring.ranks):
        await b.send(ring, rank, 0, 0, ring.results(0, 0) if rank == ring.ranks - 1 else ())


@rule("NetReduce 3.1")
async def a_whole_message(b: Bench) -> None:
    """All packets of a message are summed, each with the packets of its offset."""
    ring = await b.ring()
    await b.message(ring, 0)


@rule("NetReduce 3.1")
async def any_order_of_ranks(b: Bench) -> None:
    """The sum is the same bytes in whatever order ranks send."""
    ring = await b.ring()
    order = list(range(ring.ranks))
    for serial, ranks in enumerate((order[::-1], order[1:] + order[:1], order)):
        await b.message(ring, serial, ranks)


@rule("protocol 3.4, 6.5")
async def short_messages(b: Bench) -> None:
    """Messages of fewer packets, of one packet, and whose last packet is short or needs a pad."""
    for immediate in (True, False):
        ring = await b.ring(dtype=Dtype.F16, immediate=immediate)
        for serial, (packets, last) in enumerate(
            ((2, 8), (1, INA_HEADER_BYTES + 2), (3, 6), (1, 64), (4, 2))
        ):
            await b.message(ring, serial, packets=packets, last_bytes=last)
        await b.remove(ring)


@rule("NetReduce 3.1, protocol 6.4")
async def the_array_wraps(b: Bench) -> None:
    """Slots are used again after two windows, with nothing in them of before."""
    ring = await b.ring()
    for serial in range(4 * ring.window + 1):
        await b.message(ring, serial, packets=2 if serial % 3 == 1 else 4)


@rule("NetReduce 3.2")
async def messages_of_a_window_at_once(b: Bench) -> None:
    """Messages of a window are under way together, packet by packet from each."""
    ring = await b.ring()
    for rank in range(ring.ranks - 1):
        for offset in range(ring.packets):
            for serial in range(ring.window):
                await b.send(ring, rank, serial, offset)
    for serial in range(ring.window):
        for offset in range(ring.packets):
            await b.send(ring, ring.ranks - 1, serial, offset, ring.results(serial, offset))


@rule("NetReduce 3.1, protocol 6.2")
async def sequence_numbers_wrap(b: Bench) -> None:
    """PSNs wrap from 2^24 - 1 to 0 inside a message, and between messages."""
    for before in (1, 2, 4):
        ring = await b.ring(psn0=PSN_MASK + 1 - before)
        for serial in range(3):
            await b.message(ring, serial)
        await b.remove(ring)


@rule("protocol 6.3")
async def message_numbers_wrap(b: Bench) -> None:
    """Message numbers go on past 2^32, of which headers have the low bits."""
    ring = await b.ring(first_message=(1 << 32) - 2)
    for serial in range(ring.first_message, ring.first_message + 5):
        await b.message(ring, serial)


# ---- sums --------------------------------------------------------------------------------------------


async def _reduce(b: Bench, dtype: Dtype) -> None:
    mtu = min(256, b.limits.mtu)
    for op in Op:
        ring = await b.ring(dtype=dtype, op=op, mtu=mtu)
        for serial in range(3):
            await b.message(ring, serial)
        await b.remove(ring)
        ring = await b.ring(dtype=dtype, op=op, mtu=mtu, packets=1, values=_special(dtype, b.ranks, mtu))
        await b.message(ring, 0)
        await b.remove(ring)


_SPECIAL: Final = {
    Dtype.F32: (
        "<I",
        (0, 1 << 31, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000),
    ),
    Dtype.I32: ("<I", (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x40000000)),
    Dtype.F16: ("<H", (0, 0x8000, 1, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0xFC00, 0x7E01, 0x3C00, 0x3C01)),
    Dtype.BF16: ("<H", (0, 0x8000, 1, 0x7F, 0x80, 0x7F7F, 0x7F80, 0xFF80, 0x7FC1, 0x3F80, 0x3F81)),
}
"""Zeros, subnormals, the largest, infinities, NaN, one and its neighbour."""


def _special(dtype: Dtype, ranks: int, mtu: int) -> tuple[tuple[bytes, ...], ...]:
    """Each special value with each other one at the first two ranks, as many as fit; others turn them."""
    form, values = _SPECIAL[dtype]
    room = (mtu - INA_HEADER_BYTES) // struct.calcsize(form)
    pairs = ([(one, other) for one in values for other in values] * room)[:room]
    data = []
    for rank in range(ranks):
        turned = pairs if rank < 2 else [pairs[(at + rank) % room] for at in range(room)]
        data.append((b"".join(struct.pack(form, pair[rank % 2]) for pair in turned),))
    return tuple(data)


@rule("protocol 8.1")
async def sums_of_f32(b: Bench) -> None:
    """float32: sum, max and min, in the order of ranks, NaN canonical."""
    await _reduce(b, Dtype.F32)


@rule("protocol 8.1")
async def sums_of_i32(b: Bench) -> None:
    """int32: sum, which wraps, max and min."""
    await _reduce(b, Dtype.I32)


@rule("protocol 8.1")
async def sums_of_f16(b: Bench) -> None:
    """float16: sums are added as float32 and rounded once; max and min."""
    await _reduce(b, Dtype.F16)


@rule("protocol 8.1")
async def sums_of_bf16(b: Bench) -> None:
    """bfloat16: sums are added as float32 and rounded once; max and min."""
    await _reduce(b, Dtype.BF16)


@rule("protocol 6.6")
async def pads_and_checksums_are_zero(b: Bench) -> None:
    """Pad bytes and UDP checksum of a result are zero, whatever they were."""
    ring = await b.ring(dtype=Dtype.F16)
    last: dict[str, Any] = {"packets": 1, "last_bytes": INA_HEADER_BYTES + 2}
    for rank in range(ring.ranks):
        frame = bytearray(ring.packet(rank, 0, 0, **last))
        frame[-6:-4] = b"\xab\xcd"
        frame[40:42] = b"\x12\x34"
        icrc.seal(frame)
        await b.frame(rank, bytes(frame), ring.results(0, 0, **last) if rank == ring.ranks - 1 else ())


# ---- losses ------------------------------------------------------------------------------------------


@rule("NetReduce 3.2, protocol 6.4")
async def repeats_add_nothing(b: Bench) -> None:
    """A packet that comes again while others are missing adds nothing; its newest headers count."""
    ring = await b.ring()
    for again in range(3):
        await b.send(ring, 0, 0, 0, ip_id=10 + again)
    for rank in range(1, ring.ranks):
        due = [(ring.after(0), ring.result(0, 0, 0, ip_id=12)), *ring.results(0, 0, range(1, ring.ranks))]
        await b.send(ring, rank, 0, 0, due if rank == ring.ranks - 1 else ())


@rule("protocol 6.4")
async def the_first_payload_stays(b: Bench) -> None:
    """A repeat with other bytes in its payload changes no sum: the payload that came first stays."""
    ring = await b.ring()
    await b.send(ring, 0, 0, 0)
    await b.send(ring, 0, 0, 1)
    await b.send(ring, 0, 0, 1, payload=b"\x11" * ring.mtu)
    for rank in range(1, ring.ranks):
        for offset in (0, 1):
            await b.send(ring, rank, 0, offset, ring.results(0, offset) if rank == ring.ranks - 1 else ())


@rule("NetReduce 3.2, protocol 6.7")
async def a_lost_packet_comes_again(b: Bench) -> None:
    """A lost packet holds results back until it comes; then all leave, in PSN order."""
    ring = await b.ring()
    for rank in range(1, ring.ranks):
        for offset in range(ring.packets):
            await b.send(ring, rank, 0, offset)
    await b.send(ring, 0, 0, 0, ring.results(0, 0))
    await b.send(ring, 0, 0, 1, ring.results(0, 1))
    await b.send(ring, 0, 0, 2, ring.results(0, 2))
    await b.nothing_leaves()
    await b.send(ring, 0, 0, 3, ring.results(0, 3))


@rule("protocol 6.6.2")
async def a_gap_is_told_once(b: Bench) -> None:
    """A rank whose packet is missing before a finished result gets that result, alone and once."""
    ring = await b.ring()
    for rank in range(1, ring.ranks):
        for offset in range(ring.packets):
            await b.send(ring, rank, 0, offset)
    await b.send(ring, 0, 0, 0, ring.results(0, 0))
    await b.send(ring, 0, 0, 2, ring.results(0, 2, [0]))  # packet 1 is lost
    await b.send(ring, 0, 0, 3)
    await b.send(ring, 0, 0, 0, ring.results(0, 0, [0]))  # it goes back, and packet 1 is lost again
    for offset in (2, 3):
        await b.send(ring, 0, 0, offset)
    due = [each for offset in (1, 2, 3) for each in ring.results(0, offset)]
    await b.send(ring, 0, 0, 1, due)


@rule("protocol 6.6.2")
async def who_went_back_is_told_nothing(b: Bench) -> None:
    """A sender that went back, and is not past the hole again, is told nothing."""
    ring = await b.ring()
    for rank in range(1, ring.ranks):
        await b.send(ring, rank, 0, 0)
    await b.send(ring, 0, 0, 0, ring.results(0, 0))
    for offset in (2, 3):
        await b.send(ring, 0, 0, offset)  # packet 1 is lost
    await b.send(ring, 0, 0, 0, ring.results(0, 0, [0]))  # it goes back, farther than it must
    for rank in range(1, ring.ranks):
        for offset in range(1, 4):
            await b.send(ring, rank, 0, offset)
    due = [each for offset in (1, 2, 3) for each in ring.results(0, offset)]
    await b.send(ring, 0, 0, 1, due)


@rule("NetReduce 3.2, protocol 6.6.3")
async def lost_results_are_sent_again(b: Bench) -> None:
    """A packet whose result has left is answered with it again, on its own connection alone."""
    ring = await b.ring()
    await b.message(ring, 0)
    for offset in range(ring.packets):
        await b.send(ring, 0, 0, offset, ring.results(0, offset, [0]))
    await b.send(ring, 1, 0, 3, ring.results(0, 3, [1]))


@rule("protocol 6.6.3")
async def holes_of_a_resend_are_filled(b: Bench) -> None:
    """What is missing in a resend, at most 32 packets, is filled from what was kept."""
    ring = await b.ring()
    await b.message(ring, 0)
    await b.send(ring, 0, 0, 0, ring.results(0, 0, [0]))
    due = [each for offset in (1, 2, 3) for each in ring.results(0, offset, [0])]
    await b.send(ring, 0, 0, 3, due)


@rule("protocol 6.6.3")
async def long_holes_of_a_resend_are_not(b: Bench) -> None:
    """A hole of more than 32 packets in a resend is not filled."""
    packets = FILLED_MAX + 6
    if 4 * packets > b.limits.slots or b.limits.window < 2:
        return
    ring = await b.ring(packets=packets)
    await b.message(ring, 0)
    await b.send(ring, 0, 0, 0, ring.results(0, 0, [0]))
    await b.send(ring, 0, 0, FILLED_MAX + 2, ring.results(0, FILLED_MAX + 2, [0]))
    last = FILLED_MAX + 5
    due = [each for offset in range(FILLED_MAX + 3, last + 1) for each in ring.results(0, offset, [0])]
    await b.send(ring, 0, 0, last, due)


@rule("protocol 6.6.3")
async def a_resend_ends_where_new_packets_begin(b: Bench) -> None:
    """A resend goes on into what is new: the first new packet has the hole before it filled, too."""
    ring = await b.ring()
    if ring.window < 2:
        return
    await b.message(ring, 0)
    for rank in range(ring.ranks):
        await b.send(ring, rank, 1, 0, ring.results(1, 0) if rank == ring.ranks - 1 else ())
    await b.send(ring, 0, 0, 3, ring.results(0, 3, [0]))  # it goes back, and then loses packet 0 of message 1
    await b.send(ring, 0, 1, 1, ring.results(1, 0, [0]))
    await b.send(ring, 0, 1, 2)
    for rank in range(1, ring.ranks):
        await b.send(ring, rank, 1, 1, ring.results(1, 1) if rank == ring.ranks - 1 else ())


@rule("NetReduce 3.2, protocol 6.4")
async def results_are_kept_for_two_windows(b: Bench) -> None:
    """A lost result is sent again while messages a window on, and nearly two, are under way."""
    for windows in (1, 2):
        ring = await b.ring()
        latest = windows * ring.window - windows // 2  # that may be under way at the same time as message 0
        for serial in range(latest):
            await b.message(ring, serial)
        for rank in range(ring.ranks - 1):
            await b.send(ring, rank, latest, 0)
        for offset in range(ring.packets):
            await b.send(ring, 0, 0, offset, ring.results(0, offset, [0]))
        await b.remove(ring)


@rule("NetReduce 3.2, protocol 6.4")
async def late_duplicates_are_nobodys(b: Bench) -> None:
    """A late duplicate of an old message changes nothing in the message that has its slot now."""
    ring = await b.ring()
    old = 2 * ring.window
    for serial in range(old):
        await b.message(ring, serial)
    for rank in range(ring.ranks - 1):
        await b.send(ring, rank, old, 0)
    await b.send(ring, ring.ranks - 1, 0, 0)  # of message 0, in whose region that is
    await b.send(ring, ring.ranks - 1, 0, 1)
    await b.nothing_leaves()
    await b.send(ring, ring.ranks - 1, old, 0, ring.results(old, 0))


@rule("NetReduce 3.2, protocol 6.7")
async def a_lost_first_packet(b: Bench) -> None:
    """Packets of a message whose first packet was lost do no harm; after a resend all is summed."""
    ring = await b.ring()
    for offset in (1, 2, 3):
        await b.send(ring, 0, 0, offset)
    await b.nothing_leaves()
    for offset in range(ring.packets):
        await b.send(ring, 0, 0, offset)
    for rank in range(1, ring.ranks):
        for offset in range(ring.packets):
            await b.send(ring, rank, 0, offset, ring.results(0, offset) if rank == ring.ranks - 1 else ())


@rule("NetReduce 3.2, protocol 6.2")
async def a_resend_into_an_older_message(b: Bench) -> None:
    """A resend that begins in an older message finds its place, though newer ones have begun."""
    ring = await b.ring()
    if ring.window < 2:
        return
    begin = 2 * ring.window - 1  # the last one of those that are remembered, and the first
    for serial in range(begin):
        await b.message(ring, serial)
    await b.send(ring, 0, begin, 0)
    for offset in range(ring.packets):
        await b.send(ring, 0, begin + 1, offset)
    for offset in (1, 2, 3):
        await b.send(ring, 0, begin, offset)
    for serial in (begin, begin + 1):
        for rank in range(1, ring.ranks):
            for offset in range(ring.packets):
                due = ring.results(serial, offset) if rank == ring.ranks - 1 else ()
                await b.send(ring, rank, serial, offset, due)


# ---- what is refused ---------------------------------------------------------------------------------


@rule("protocol 6.8, NetReduce 4")
async def damaged_packets_are_dropped(b: Bench) -> None:
    """A packet of a ring with a wrong ICRC is dropped, wherever it was damaged."""
    ring = await b.ring()
    await b.send(ring, 0, 0, 0)
    good = ring.packet(0, 0, 1)
    for at in (50, 54, 60, len(good) - 1):
        await b.frame(0, good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
    for rank in range(1, ring.ranks):
        for offset in (0, 1):
            done = rank == ring.ranks - 1 and offset == 0
            await b.send(ring, rank, 0, offset, ring.results(0, 0) if done else ())
    await b.frame(0, good, ring.results(0, 1))


@rule("protocol 3.3")
async def what_routers_change_is_no_damage(b: Bench) -> None:
    """TTL, TOS, checksums and the congestion byte may change on the way: the ICRC leaves them out."""
    ring = await b.ring()
    for rank in range(ring.ranks - 1):
        await b.send(ring, rank, 0, 0)
    frame = bytearray(ring.packet(ring.ranks - 1, 0, 0))
    frame[15] |= 0x03
    frame[22] -= 1
    frame[24:26] = b"\0\0"
    frame[24:26] = internet_checksum(bytes(frame[14:34])).to_bytes(2, "big")
    frame[46] = 0x40
    result = bytearray(ring.result(ring.ranks - 1, 0, 0))
    result[15], result[22], result[24:26], result[46] = frame[15], frame[22], frame[24:26], frame[46]
    due = [*ring.results(0, 0, range(ring.ranks - 1)), (ring.after(ring.ranks - 1), bytes(result))]
    await b.frame(ring.ranks - 1, bytes(frame), due)


@rule("protocol 6.3")
async def wrong_first_packets_are_dropped(b: Bench) -> None:
    """A first packet of another ring, key, epoch, rank, size or length, or marked as a result, is dropped."""
    ring = await b.ring()
    wrongs: tuple[dict[str, Any], ...] = (
        {"ring_id": ring.spec.ring_id + 1},
        {"key": ring.spec.key ^ 1},
        {"key": ring.spec.key ^ 1 << 63},
        {"epoch": ring.spec.epoch + 1},
        {"rank": 1},
        {"ring_size": ring.ranks + 1},
        {"msg_len": ring.packets + 1},
        {"flags": FLAG_RESULT},
    )
    for rank in range(1, ring.ranks):
        await b.send(ring, rank, 0, 0)
    for wrong in wrongs:  # whichever of them is taken completes the slot
        header = replace(ring.header(0, 0, ring.packets), **wrong)
        await b.send(ring, 0, 0, 0, payload=header.encode().ljust(ring.mtu, b"\x33"))
        await b.nothing_leaves()
    await b.send(ring, 0, 0, 0, ring.results(0, 0))


@rule("protocol 6.3")
async def nothing_beyond_the_window(b: Bench) -> None:
    """A message a window ahead of the first unfinished one is dropped, as is one before the ring's first."""
    ring = await b.ring(first_message=100)
    await b.send(ring, 0, 100 + ring.window, 0)
    await b.send(ring, 0, 99, 0)
    await b.nothing_leaves()
    await b.message(ring, 100)
    for rank in range(1, ring.ranks):
        await b.send(ring, rank, 100 + ring.window, 0)
    await b.nothing_leaves()
    # Nobody has sent the message before it: all are told of that gap.
    await b.send(ring, 0, 100 + ring.window, 0, ring.results(100 + ring.window, 0))


@rule("protocol 6.3")
async def a_message_keeps_its_sequence_number(b: Bench) -> None:
    """A first packet that comes again with another PSN is dropped."""
    ring = await b.ring()
    await b.send(ring, 0, 0, 0)
    await b.send(ring, 0, 0, 0, psn=(ring.psn(0, 0, 0) + 1) & PSN_MASK)
    for rank in range(1, ring.ranks):
        await b.send(ring, rank, 0, 0, ring.results(0, 0) if rank == ring.ranks - 1 else ())


@rule("protocol 6.5, 6.8")
async def only_writes_on_a_ring(b: Bench) -> None:
    """SEND on a ring's connection is dropped, and so is a packet that is in no message."""
    ring = await b.ring()
    await b.send(ring, 0, 0, 0)
    for opcode in (0x00, 0x01, Opcode.RC_SEND_ONLY):
        await b.send(ring, 0, 0, 1, opcode=opcode, payload=bytes(16))
    await b.send(ring, 0, 0, 1, psn=(ring.psn(0, 0, 0) + 1000) & PSN_MASK)
    await b.nothing_leaves()
    for rank in range(1, ring.ranks):
        await b.send(ring, rank, 0, 0, ring.results(0, 0) if rank == ring.ranks - 1 else ())


@rule("protocol 6.5")
async def packets_from_elsewhere_are_dropped(b: Bench) -> None:
    """Later packets come from where the first one came from: another port, or a stranger, is dropped."""
    ring = await b.ring()
    await b.send(ring, 0, 0, 0)
    await b.frame(1, ring.packet(0, 0, 1))
    await b.send(ring, 0, 0, 1, source=_STRANGER)
    for rank in range(1, ring.ranks):
        for offset in (0, 1):
            done = rank == ring.ranks - 1 and offset == 0
            await b.send(ring, rank, 0, offset, ring.results(0, 0) if done else ())
    await b.send(ring, 0, 0, 1, ring.results(0, 1))


@rule("protocol 6.11")
async def gradients_of_no_ring_do_not_pass(b: Bench) -> None:
    """A first packet with an INA header on a connection of no ring is dropped: it is no sum."""
    stranger = Ring(0xF1, ranks=2)
    await b.frame(0, stranger.packet(0, 0, 0))
    ring = await b.ring()
    moved = bytearray(ring.packet(0, 0, 0))
    moved[47:50] = (0x123456).to_bytes(3, "big")
    icrc.seal(moved)
    await b.frame(0, bytes(moved))
    await b.nothing_leaves()


@rule("protocol 6.11, IEEE 802.3 31B, 802.1Q 8.6.3")
async def what_neighbours_say_ends_at_the_port(b: Bench) -> None:
    """Pauses, PFC, LACP, LLDP and spanning trees end at their port, and no job ends by them."""
    ring = await b.ring()
    kinds = ((0x00, b"\0\x26"), (0x02, b"\x88\x09"), (0x03, b"\x88\x8e"), (0x0E, b"\x88\xcc"))
    for rank in range(ring.ranks):
        said = [pause_frame(mac(rank), 3 * MS, of)[0].tobytes() for of in ((), (0, 3))]
        for last, kind in kinds:
            said.append(_FOR_LINKS + bytes([last]) + mac(rank) + kind + bytes(range(46)))
        for offset in range(ring.packets):
            for frame in said:
                await b.frame(rank, frame)
            leaves = ring.results(0, offset) if rank == ring.ranks - 1 else ()
            await b.send(ring, rank, 0, offset, leaves)
    await b.message(ring, 1)


@rule("protocol 6.8")
async def malformed_packets_of_a_ring_are_dropped(b: Bench) -> None:
    """What only a lenient stack would take for a packet of a ring is dropped, not bridged."""
    ring = await b.ring()
    good = bytearray(ring.packet(0, 0, 1))
    with_options = good[:14] + bytes([0x46]) + good[15:34] + bytes(4) + good[34:]
    wrong_length = bytearray(good)
    wrong_length[16:18] = (int.from_bytes(good[16:18], "big") - 4).to_bytes(2, "big")
    for frame in (with_options, wrong_length):
        frame[24:26] = b"\0\0"
        end = 14 + 4 * (frame[14] & 0xF)
        frame[24:26] = internet_checksum(bytes(frame[14:end])).to_bytes(2, "big")
        await b.frame(0, bytes(frame))
    await b.nothing_leaves()


@rule("protocol 6.9")
async def ranks_that_disagree_stop_their_ring(b: Bench) -> None:
    """Ranks that call different all-reduces stop their ring: nothing of it leaves any more."""
    for wrong in ({"op": Op.MAX}, {"dtype": Dtype.I32}, {"op_index": 77}, {"signature": 1}):
        ring = await b.ring()
        await b.send(ring, 0, 0, 0)
        await b.send(ring, 1, 0, 0, ina=wrong)
        await b.fails(ring, "operations differ", [1])
        for rank in range(ring.ranks):
            await b.send(ring, rank, 0, 0)
        await b.nothing_leaves()
        await b.remove(ring)


@rule("protocol 6.5, 6.9")
async def a_wrong_layout_stops_the_ring(b: Bench) -> None:
    """A packet of another size or kind than its place asks for stops the ring."""
    for offset, wrong in (
        (1, {"payload": bytes(8)}),
        (1, {"opcode": Opcode.RC_WRITE_LAST}),
        (3, {"opcode": Opcode.RC_WRITE_MIDDLE}),
    ):
        ring = await b.ring()
        await b.send(ring, 0, 0, 0)
        await b.send(ring, 0, 0, offset, **wrong)
        await b.fails(ring, "packet layout", [0])
        await b.remove(ring)


# ---- several rings -----------------------------------------------------------------------------------


@rule("protocol 6.4, NetReduce 6")
async def two_rings_side_by_side(b: Bench) -> None:
    """Two rings of the same hosts go their ways, packet by packet between each other."""
    if b.limits.rings < 2:
        return
    one, other = await b.ring(), await b.ring(dtype=Dtype.I32)
    for serial in range(5):
        for rank in range(one.ranks):
            for offset in range(one.packets):
                for ring in (one, other):
                    last = rank == one.ranks - 1
                    await b.send(ring, rank, serial, offset, ring.results(serial, offset) if last else ())


@rule("protocol 6.9, 6.4")
async def a_ring_that_stops_disturbs_no_other(b: Bench) -> None:
    """A ring that stops, and is removed amid its messages, disturbs no other."""
    if b.limits.rings < 2:
        return
    one, other = await b.ring(), await b.ring()
    for ring in (one, other):
        for rank in range(ring.ranks - 1):
            await b.send(ring, rank, 0, 0)
    await b.send(one, one.ranks - 1, 0, 0, ina={"op": Op.MIN})
    await b.fails(one, "operations differ", [one.ranks - 1])
    await b.send(other, other.ranks - 1, 0, 0, other.results(0, 0))
    await b.remove(one)
    await b.send(one, 0, 0, 0)
    await b.nothing_leaves()
    for rank in range(other.ranks):
        await b.send(other, rank, 0, 1, other.results(0, 1) if rank == other.ranks - 1 else ())


@rule("protocol 6.11")
async def packets_of_a_removed_ring_are_dropped(b: Bench) -> None:
    """What still comes for a ring that was removed is dropped."""
    ring = await b.ring()
    for rank in range(ring.ranks - 1):
        await b.send(ring, rank, 0, 0)
    await b.remove(ring)
    for rank in range(ring.ranks):
        for offset in range(2):
            await b.send(ring, rank, 0, offset)
    await b.nothing_leaves()


@rule("protocol 6.1, 6.4")
async def a_new_ring_finds_nothing_of_an_old_one(b: Bench) -> None:
    """A ring in the place of another one finds nothing of it in its slots."""
    for number in range(2 * b.limits.rings):
        ring = await b.ring(dtype=Dtype.I32 if number % 2 else Dtype.F32)
        await b.message(ring, 0)
        for rank in range(ring.ranks - 1):
            for offset in range(ring.packets):
                await b.send(ring, rank, 1, offset)
        await b.remove(ring)


@rule("NetReduce 3.2, 5.1")
async def the_largest_ring(b: Bench) -> None:
    """The largest ring that there can be: all ports, the largest packets and window."""
    limits = b.limits
    window = limits.window
    while window > 1 and 4 * window > limits.slots:
        window //= 2
    packets = min(limits.slots // (2 * window), 170)
    ring = await b.ring(
        ranks=min(limits.children, limits.ports), window=window, packets=packets, mtu=limits.mtu
    )
    for serial in range(2):
        await b.message(ring, serial, packets=min(packets, 3))
    await b.message(ring, 2)
