"""Rules of losses: what is sent again, and what is told."""

from __future__ import annotations

from typing import Final

from inaproto_hil.conformance.bench import Bench
from inaproto_hil.conformance.rules.rule import Rules

rule = Rules()

FILLED_MAX: Final = 32


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
