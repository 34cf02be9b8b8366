"""Ring all-reduce, bandwidth-optimal: NetReduce's baseline FR (section 3.4, appendix A equation (1)).

The tensor is cut into as many parts as there are ranks. Each part travels once around the ring to be summed,
and once more to be handed out; all parts travel at the same time. A rank sends ``2 (W-1)/W`` of the tensor.

No reduction plan describes it: each part begins at another rank, so the order of additions differs by block.
Half-precision sums are rounded at every hop, to keep that traffic: what travels is always the element type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inaproto_controller.simulate.schedules.schedule import Schedule, Step, Transfer


def ring(ranks: int, *, machine_of: tuple[int, ...] = ()) -> Schedule:
    """Flat ring of ``ranks`` ranks, in rank order; one block for each."""
    parts = [(block,) for block in range(ranks)]
    steps = ring_steps(range(ranks), parts)
    return Schedule(name="ring", ranks=ranks, blocks=ranks, transfers=tuple(steps), machine_of=machine_of)


def ring_steps(members: Sequence[int], parts: Sequence[Sequence[int]]) -> Iterator[Step]:
    """The ring of ``members``, over as many ``parts``, each a group of blocks.

    Part ``j`` is complete at the member before ``members[j]``, and goes around from there.
    """
    size = len(members)
    for hop in range(size - 1):
        yield from _hop(members, parts, -hop, reduce=True)
    for hop in range(size - 1):
        yield from _hop(members, parts, 1 - hop, reduce=False)


def _hop(
    members: Sequence[int], parts: Sequence[Sequence[int]], offset: int, *, reduce: bool
) -> Iterator[Step]:
    """All members at once: the one at position ``p`` sends part ``p + offset`` to the next."""
    size = len(members)
    for position, member in enumerate(members):
        successor = members[(position + 1) % size]
        for block in parts[(position + offset) % size]:
            yield Transfer(member, successor, block, reduce=reduce, seals=reduce)
