"""Bursts of a ring in which packets are cut off, damaged, lengthened, twice there, missing or out of order.

Whatever comes, the accelerator goes on, and does the same with compiled kernels and without. Longer:
``INAPROTO_SEEDS=0:2000 pytest tests/property/test_harmed_bursts.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from inaproto.errors import DecodeError
from inaproto.units import PSN_MASK
from inaproto.wire import icrc
from tests.seeds import seeds
from tests.unit.switched_ring import ring_of
from tests.unit.test_bursts import PACKETS, Both
from tests.unit.test_repairs import nak

MESSAGES = 6
REPAIRED: dict[str, Any] = {
    "selective": True,
    "flows": tuple(replace(flow, src_qp=0x300 + flow.rank) for flow in ring_of(2).flows),
}
"""A ring whose losses the switch finds: what it says of them is part of what leaves."""


def harmed(rng: Random, frames: list[bytes]) -> Iterator[bytes]:
    for frame in frames:
        fate = rng.random()
        if fate < 0.1:
            yield frame[: rng.randrange(len(frame) + 1)]
        elif fate < 0.2:
            damaged = bytearray(frame)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            if rng.random() < 0.6:
                with contextlib.suppress(DecodeError):  # its headers do not say where it would be
                    icrc.seal(damaged)
            yield bytes(damaged)
        elif fate < 0.25:
            yield frame + bytes(rng.randrange(40))
        elif fate < 0.3:
            yield from (frame, frame)
        elif fate < 0.97:
            yield frame


def a_layout(rng: Random) -> dict[str, Any]:
    """How long a message is."""
    return {"packets": rng.choice([2, 5, PACKETS]), "last_bytes": rng.choice([4, 24, 60, 64])}


def twice(rng: Random, frames: list[bytes]) -> Iterator[bytes]:
    """All of them, some two times."""
    for frame in frames:
        yield from [frame] * rng.choice([1, 1, 1, 2])


@pytest.mark.parametrize("changes", [{}, REPAIRED], ids=["plain", "repaired"])
@pytest.mark.parametrize("seed", seeds(24))
def test_whatever_comes_both_ways_do_the_same(
    seed: int, changes: dict[str, Any], use_kernels: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    both = Both(use_kernels, monkeypatch, **changes)
    late: list[list[bytes]] = [[], []]
    for serial in range(1, MESSAGES):
        layout = a_layout(rng)
        for rank in range(2):
            if rng.random() < 0.03:  # it fails the ring
                layout = a_layout(rng)
            whole = both.ring.message(rank, serial, **layout)
            frames = list(harmed(rng, whole) if rng.random() < 0.7 else twice(rng, whole))
            if rng.random() < 0.2:
                rng.shuffle(frames)
            frames += late[rank]  # behind what was sent after it
            late[rank] = [frames.pop() for _ in range(rng.choice([0, 0, 1, 2])) if frames]
            lacks: list[bytes] = []
            if changes and rng.random() < 0.5:  # what is sent again for it says which copies count as lost
                missing = both.ring.psn0 + (serial - 1) * PACKETS + rng.randrange(4) & PSN_MASK
                reach = rng.randrange(1, 4)
                lacks = [nak(both.ring, rank, missing, reach=reach, there=rng.getrandbits(reach))]
                both.arrive(1 - rank, lacks)
            if frames:
                both.arrive(rank, frames)
            if lacks:
                both.arrive(1 - rank, lacks)
            if rng.random() < 0.3:
                both.arrive(rank, whole)
