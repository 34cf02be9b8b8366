"""Rules of rings beside one another, and one after another."""

from __future__ import annotations

from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.conformance.bench import Bench
from inaproto_hil.conformance.rules.rule import Rules

rule = Rules()


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
