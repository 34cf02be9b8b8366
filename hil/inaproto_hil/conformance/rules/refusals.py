"""Rules of what is refused, and of what stops a ring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from inaproto.units import MS, PSN_MASK
from inaproto.wire import icrc
from inaproto.wire.ina_header import FLAG_RESULT, Dtype, Op
from inaproto.wire.ipv4 import internet_checksum
from inaproto.wire.pause import pause_frame
from inaproto.wire.roce import Opcode
from inaproto_hil.conformance.bench import Bench
from inaproto_hil.conformance.ring import Ring, mac
from inaproto_hil.conformance.rules.rule import Rules

rule = Rules()

_FOR_LINKS: Final = bytes.fromhex("0180c20000")
_STRANGER: Final = b"\x02\x1a\xff\0\0\x01"


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
