"""Rules of sums without losses: which packets are added, and when results leave."""

from __future__ import annotations

from inaproto.units import PSN_MASK
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype
from inaproto_hil.conformance.bench import Bench
from inaproto_hil.conformance.rules.rule import Rules

rule = Rules()


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
