"""Packets that come alone are taken as in vectors (docs/protocol.md 6.2, 6.14), resends and NAKs, too."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from inaproto.core.switch.accelerator import Accelerator, Action
from inaproto.core.switch.ingest import Ingest
from inaproto.units import PSN_MASK
from inaproto.wire.vlan import with_tag
from tests.unit.switched_ring import SwitchedRing, block, dropped, emitted, nameless, others
from tests.unit.test_repairs import NAK, PACKETS, RNR_NAK, TAG, nak, psn, repaired

RANKS = 3
STEPS = 150
SEEDS = 20


class GeneralIngest(Ingest):
    """It takes each packet for a vector of one."""

    def single(self, *_: Any) -> None:
        return None


class GeneralAccelerator(Accelerator):
    """The same."""

    def _nak(self, *_: Any) -> bool:
        return False


def drawn_ring(rng: Random) -> SwitchedRing:
    kind = rng.choice(("repaired", "repaired", "selective", "ordered", "nameless"))
    if kind in ("repaired", "nameless"):
        ring = repaired(RANKS)
        return ring if kind == "repaired" else repaired(RANKS, flows=nameless(ring.spec))
    return SwitchedRing(RANKS, selective=kind == "selective")


def generally(ring: SwitchedRing) -> SwitchedRing:
    ring.accelerator.__class__ = GeneralAccelerator
    ring.accelerator._ingest.__class__ = GeneralIngest
    return ring


def drawn_frame(rng: Random, ring: SwitchedRing, step: int) -> tuple[int, bytes]:
    """A port, and what comes there: mostly a packet of one of the messages that are under way."""
    rank = rng.randrange(RANKS)
    serial = max(0, step * 4 // STEPS + rng.randrange(-2, 2))
    if rng.random() < 0.2:
        missing = psn(ring, serial, rng.randrange(PACKETS)) if rng.random() < 0.9 else rng.randrange(PSN_MASK)
        reach = rng.randrange(1, 2 * PACKETS)
        there = rng.randrange(1 << reach) if rng.random() < 0.9 else 1 << reach
        syndrome = rng.choice((NAK, NAK, NAK, RNR_NAK))
        port = (rank + 1) % RANKS
        frame = nak(ring, rank, missing, reach=reach, there=there, syndrome=syndrome)
    else:
        claimed_rank = 1 if rng.random() < 0.02 else None
        last_bytes = 60 if rng.random() < 0.02 else 64
        port = rank
        offset = rng.randrange(PACKETS)
        frame = ring.packet(
            rank, serial, offset, ip_id=step, last_bytes=last_bytes, claimed_rank=claimed_rank
        )
    if rng.random() < 0.05:
        damaged = bytearray(frame)
        damaged[rng.randrange(6, len(frame))] ^= 1 << rng.randrange(8)
        frame = bytes(damaged)
    return (port if rng.random() < 0.97 else RANKS), frame


def said(actions: list[Action]) -> tuple[list[tuple[int, bytes]], list[Action]]:
    return emitted(actions), others(actions)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_packet_alone_is_taken_as_a_vector_of_one(seed: int) -> None:
    alone = drawn_ring(Random(seed))
    vectors = generally(drawn_ring(Random(seed)))
    rng = Random(f"{seed}/frames")
    for step in range(STEPS):
        port, frame = drawn_frame(rng, alone, step)
        frames = block(frame)
        if rng.random() < 0.03:
            frames = with_tag(frames, TAG)
        found, expected = (said(ring.arrive_blocks(port, frames)) for ring in (alone, vectors))
        assert found == expected, f"step {step}"
        assert alone.accelerator.counters == vectors.accelerator.counters, f"step {step}"
    assert dropped(alone) == dropped(vectors)


def test_the_seeds_meet_what_is_to_be_met() -> None:
    replayed = naks = results = tagged = 0
    for seed in range(SEEDS):
        ring, rng = drawn_ring(Random(seed)), Random(f"{seed}/frames")
        for step in range(STEPS):
            port, frame = drawn_frame(rng, ring, step)
            tagged += rng.random() < 0.03
            ring.arrive(port, frame)
        counters = ring.accelerator.counters
        replayed, naks = replayed + counters.replayed, naks + counters.naks_in
        results += counters.results_out
    assert min(replayed, naks, results, tagged) > 50
