"""Every interleaving of a small RC connection with 3-bit PSNs, by breadth-first search.

The channel may lose, duplicate and reorder packets and acknowledgements, and the timer may expire too
early, ``faults`` times in all; a packet is overtaken at most ``overtakings`` times (a PSN space of 8
cannot outlive older packets: with a window W, a stale packet is W + overtakings behind what is
expected, a stale ACK 1 + W * overtakings behind what is acknowledged, and both must stay clear of a
whole turn). An expiry is free when nothing is in flight, so that progress needs no luck.

Proved for the parameters below: no step breaks a promise (``RcWorld`` checks); no state but the
finished ones is without successor; the graph of states has no cycle. So *every* interleaving ends,
with everything delivered once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.property.rc_world import RcWorld

MASK = 7


def successors(world: RcWorld, faults: int, overtakings: int) -> Iterator[tuple[RcWorld, int]]:
    def after(step: str, *arguments: int) -> RcWorld:
        twin = world.fork()
        getattr(twin, step)(*arguments)
        return twin

    if world.writes_posted < len(world.sizes):
        yield after("post_write"), faults
        return  # posting later is explored by what the window holds back
    if world.receives_posted < len(world.sizes):
        yield after("post_receive"), faults
    for line, deliver in (("data", "deliver_data"), ("acks", "deliver_ack")):
        queue = getattr(world, line)
        for index in range(len(queue)):
            if index and (not faults or any(other.overtaken >= overtakings for other in queue[:index])):
                break
            yield after(deliver, index), faults - (index > 0)
        if queue and faults:
            for index in range(len(queue)):
                lost = world.fork()
                setattr(lost, line, queue[:index] + queue[index + 1 :])
                yield lost, faults - 1
                doubled = world.fork()
                setattr(doubled, line, queue[: index + 1] + queue[index:])
                yield doubled, faults - 1
    view = world.requester.view()
    if view.rnr_waiting:
        # Repeating the message is of use only after a receive was posted; posting is always possible.
        if world.receives_posted > world.completed:
            yield after("expire"), faults
    elif view.outstanding and not world.data and not world.acks:
        yield after("expire"), faults
    elif view.outstanding and faults:
        yield after("expire"), faults - 1


def explore(world: RcWorld, faults: int, overtakings: int) -> tuple[list[list[int]], int]:
    """Edges by state number, and how many states are finished."""
    numbers = {(world.key(), faults): 0}
    edges: list[list[int]] = []
    queue = [(world, faults)]
    finished = 0
    for at, left in queue:
        out = []
        for following, remaining in successors(at, left, overtakings):
            key = (following.key(), remaining)
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = len(queue)
                queue.append((following, remaining))
            out.append(number)
        finished += at.finished
        assert out or at.finished, f"stuck: {at}"
        edges.append(out)
        # The world is not needed any more; its number is.
        queue[len(edges) - 1] = (world, 0)
    return edges, finished


def acyclic(edges: list[list[int]]) -> bool:
    """Kahn: every state can be taken away once nothing leads to it."""
    incoming = [0] * len(edges)
    for out in edges:
        for number in out:
            incoming[number] += 1
    free = [number for number, count in enumerate(incoming) if not count]
    taken = 0
    while free:
        taken += 1
        for number in edges[free.pop()]:
            incoming[number] -= 1
            if not incoming[number]:
                free.append(number)
    return taken == len(edges)


@pytest.mark.parametrize(
    ("sizes", "window", "ack_every", "overtakings", "faults", "receives_first", "selective"),
    [
        ((2, 1, 3, 1, 2), 3, 2, 1, 2, True, False),
        ((3, 3, 3), 2, 1, 2, 3, True, False),
        ((1, 2, 1), 3, 1, 1, 3, True, False),
        ((2, 1, 1), 3, 2, 1, 2, False, False),
        ((2, 1, 3), 3, 2, 1, 2, True, True),
        ((3, 2), 3, 1, 1, 2, True, True),
        ((2, 1, 1), 3, 2, 1, 1, False, True),
    ],
)
def test_every_interleaving_completes_and_places_once(
    sizes: tuple[int, ...],
    window: int,
    ack_every: int,
    overtakings: int,
    faults: int,
    receives_first: bool,
    selective: bool,
) -> None:
    world = RcWorld.start(
        sizes, psn_mask=MASK, initial_psn=6, window=window, ack_every=ack_every, selective=selective
    )
    if receives_first:
        for _ in sizes:
            world.post_receive()
    edges, finished = explore(world, faults, overtakings)
    print(f"{len(edges)} states, {sum(map(len, edges))} steps, {finished} finished")
    assert finished
    assert acyclic(edges), "a livelock: the same state comes back without any fault"
