"""A requester and a responder under random weather: any lengths, windows and PSNs, packets in runs.

First the weather rages, then it heals and the world has to finish within a bounded number of steps.
``RcWorld`` checks every promise of RC at every step of both phases.
"""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.property.rc_world import AckPacket, DataPacket, RcWorld

# 8 bits: initial PSNs anywhere, several turns in one test. 24 bits: the turn that real ones make.
WIDTHS = st.sampled_from([8, 24])


@st.composite
def worlds(draw: st.DrawFn, *, selective: bool = False) -> RcWorld:
    mask = (1 << draw(WIDTHS)) - 1
    mtu = draw(st.sampled_from([1, 4, 256]))
    packets = st.integers(0, 40 * mtu)
    lengths = tuple(draw(st.lists(packets, min_size=1, max_size=12)))
    # A stale packet must not be mistaken for one of the next turn: see test_rc_exhaustive.
    window = draw(st.integers(1, 24))
    return RcWorld.start(
        lengths,
        psn_mask=mask,
        initial_psn=draw(st.integers(0, 40).map(lambda back: (mask - back) & mask)),
        window=window,
        ack_every=draw(st.integers(1, 30)),
        mtu=mtu,
        selective=selective,
    )


def reach(queue: tuple[DataPacket, ...] | tuple[AckPacket, ...]) -> int:
    """How far back in the queue the next to arrive may stand: none is overtaken more than twice."""
    return 1 if queue[0].overtaken >= 2 else min(2, len(queue))


def weather_step(world: RcWorld, random: Random) -> None:
    """One thing happens, good or bad."""
    match random.randrange(9):
        case 0 | 1 if world.data:
            world.deliver_run(random.randint(1, 30))
        case 2 if world.data:
            world.deliver_data(random.randrange(reach(world.data)))
        case 3 | 4 if world.acks:
            world.deliver_ack(random.randrange(reach(world.acks)))
        case 5:
            line = random.choice(["data", "acks"])
            queue = getattr(world, line)
            index = random.randrange(len(queue) + 1)
            copies = random.choice([0, 0, 2])
            setattr(world, line, queue[:index] + queue[index : index + 1] * copies + queue[index + 1 :])
        case 6 if world.writes_posted < len(world.lengths):
            world.post_write()
        case 7 if world.receives_posted < len(world.lengths):
            world.post_receive()
        case 8 if world.requester.deadline is not None and random.random() < 0.2:
            world.expire()


def heal(world: RcWorld) -> int:
    """Everything arrives from now on; returns the steps until all is finished."""
    while world.receives_posted < len(world.lengths):
        world.post_receive()
    steps = 0
    while not (world.finished and world.writes_posted == len(world.lengths)):
        steps += 1
        assert steps < 5_000, f"no end: {world.requester.view()} {world.responder.view()}"
        if world.writes_posted < len(world.lengths):
            world.post_write()
        elif world.data:
            world.deliver_run(30)
        elif world.acks:
            world.deliver_ack(0)
        else:
            world.expire()
    return steps


either = st.booleans().flatmap(lambda selective: worlds(selective=selective))


@given(world=either, random=st.randoms(use_true_random=False), steps=st.integers(0, 300))
def test_everything_is_placed_once_and_delivered_in_order_whatever_the_weather(
    world: RcWorld, random: Random, steps: int
) -> None:
    for _ in range(steps):
        weather_step(world, random)
    heal(world)
    assert world.placed == sum(world.sizes)


@given(world=either)
def test_without_faults_nothing_is_sent_twice(world: RcWorld) -> None:
    heal(world)
    assert world.requester.counters.retransmits == world.requester.counters.timeouts == 0
    assert world.requester.counters.packets == sum(world.sizes)
    assert world.responder.counters.naks == world.responder.counters.duplicates == 0
