"""Traffic of rings that share slots by turns (docs/protocol.md 6.10): orderly turns, and all that disturbs
them.

Turns follow each other as agreed, in each of them some messages of one ring, with losses and resends.
Between that come packets of turns that are over, or are another ring's, or come too soon; in some campaigns
a turn is taken away amid messages, which stops the ring that had it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import PSN_MASK
from inaproto.wire.ina_header import Dtype
from inaproto.wire.messages.switch import PoolSpec
from inaproto_hil.conformance.ring import Ring
from inaproto_hil.rtl.equivalence.device import Output
from inaproto_hil.rtl.equivalence.steps import Arrival
from inaproto_hil.rtl.parameters import Parameters

SIZES: Final = Parameters(ports=3, words=2, rings=4, children=3, window=2, slots=128, mtu=64)
PACKETS: Final = 3
HISTORY: Final = 60


class TurnTraffic:
    """``frames`` of seed ``seed``, for an accelerator of :data:`SIZES`."""

    def __init__(self, seed: int, frames: int) -> None:
        self.seed = seed
        self._frames = frames
        self._rng = rng = Random(f"turns/{seed}")
        self._capacity = rng.choice([1, 1, 2])
        self._begins = rng.choice([0, 0, (1 << 32) - 3])
        self._noise = rng.choice([0.0, 0.05, 0.3])
        self._lost = rng.choice([0.0, 0.1])
        self._hasty = rng.choice([0.0, 0.0, 0.15])
        """How often a turn is taken away before its end."""
        self._rings = [
            Ring(
                number,
                ranks=rng.choice([2, 3]),
                window=rng.choice([1, 2]) if number else 2,
                packets=PACKETS,
                dtype=rng.choice([Dtype.I32, Dtype.F32]),
                first_message=self._begins,
                psn0=rng.choice([5, PSN_MASK - 4]),
            )
            for number in range(4)
        ]
        self._alone = self._rings[3]
        self._next = {ring.number: self._begins for ring in self._rings}
        """The next message of each."""
        self._sent: list[tuple[Ring, int, int, int, int]] = []

    @property
    def specs(self) -> tuple[RingSpec, ...]:
        pool = PoolSpec("shared", self._capacity)
        return tuple(_with(ring.spec, pool) if ring is not self._alone else ring.spec for ring in self._rings)

    def heard(self, out: Output) -> None:
        """It goes on as it is."""

    def __iter__(self) -> Iterator[Arrival]:
        made = self._make()
        for _ in range(self._frames):
            yield next(made)

    def _make(self) -> Iterator[Arrival]:
        rng, epoch = self._rng, 0
        running: list[Iterator[Arrival]] = []
        while True:
            epoch += rng.choice([1, 1, 1, 2, 5])
            ring = rng.choice(self._rings[:3])
            running = running[-(self._capacity - 1) :] if self._capacity > 1 else []
            running.append(self._turn(ring, epoch))
            beside = self._turn(self._alone, 3)
            while running:
                if rng.random() < self._noise and self._sent:
                    yield self._disturbance(epoch)
                if rng.random() < 0.2:
                    frame = next(beside, None)
                    if frame is not None:
                        yield frame
                one = rng.choice(running)
                frame = next(one, None)
                if frame is None:
                    running.remove(one)
                else:
                    yield frame
                if rng.random() < self._hasty / 10 or (self._capacity > 1 and rng.random() < 0.02):
                    break

    def _turn(self, ring: Ring, epoch: int) -> Iterator[Arrival]:
        """Some messages of a ring, until all ranks have all results."""
        rng = self._rng
        for _ in range(rng.choice([1, 2, 4])):
            serial = self._next[ring.number]
            self._next[ring.number] = serial + 1
            left = {rank: list(range(PACKETS)) for rank in range(ring.ranks)}
            while any(left.values()):
                rank = rng.choice([rank for rank, offsets in left.items() if offsets])
                offset = left[rank].pop(0)
                if rng.random() >= self._lost:
                    yield self._packet(ring, epoch, rank, serial, offset)
            for rank in rng.sample(range(ring.ranks), ring.ranks):
                if self._lost or rng.random() < 0.1:
                    for offset in range(PACKETS):
                        yield self._packet(ring, epoch, rank, serial, offset)

    def _packet(self, ring: Ring, epoch: int, rank: int, serial: int, offset: int) -> Arrival:
        self._sent = [*self._sent[-HISTORY:], (ring, epoch, rank, serial, offset)]
        return rank, ring.packet(rank, serial, offset, ina={"epoch": epoch})

    def _disturbance(self, epoch: int) -> Arrival:
        """A packet from before, as it was, or of another turn, message or rank."""
        rng = self._rng
        ring, its, rank, serial, offset = rng.choice(self._sent)
        kind = rng.choice(["again", "again", "first", "turn", "stranger", "future"])
        if kind == "first":
            offset = 0
        elif kind == "turn":
            its, offset = epoch - rng.choice([0, 1, 2]), 0
        elif kind == "stranger":  # this turn, of a ring whose turn it is not
            ring, its, offset = rng.choice(self._rings[:3]), epoch, 0
            rank, serial = rank % ring.ranks, self._next[ring.number]
        elif kind == "future":
            serial, offset = serial + rng.choice([1, 2, 5]), 0
        return rank, ring.packet(rank, max(0, serial), offset, ina={"epoch": max(0, its)})


def _with(spec: RingSpec, pool: PoolSpec) -> RingSpec:
    from dataclasses import replace

    return replace(spec, pool=pool)
