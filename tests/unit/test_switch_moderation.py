"""How long a switch may leave its ports alone: by what comes, and by what is sure to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.switch.accelerator import RingFault
from inaproto.core.switch.moderation import (
    FADING,
    MEASURE_NS_MAX,
    MEASURE_NS_MIN,
    REST_BYTES_MAX,
    REST_NS_MAX,
    REST_NS_MIN,
    REST_PARTS,
    Moderation,
)
from inaproto.units import MS, Instant, PortId, S
from inaproto.wire.messages.switch import Role
from tests.unit.switched_ring import SwitchedRing, others

WINDOW = 2 * 4 * 64
"""Bytes that each rank of ``SwitchedRing`` may have on the way."""
PERIOD = MEASURE_NS_MIN + 1
"""No round number, so that each rounding shows."""
MORE = {"flags": 0}
"""A message that does not end its operation."""


def measured(ring: SwitchedRing, nbytes: int, *, periods: int = 1) -> tuple[Moderation, Instant]:
    """After periods in each of which so many bytes came at port 1, and half as many at port 0."""
    moderation = Moderation(ring.accelerator.rings)
    now = Instant(S)
    moderation.rest_ns(now)
    for _ in range(periods):
        moderation.came(PortId(0), nbytes // 2)
        moderation.came(PortId(1), nbytes // 2)
        moderation.came(PortId(1), nbytes - nbytes // 2)
        now = Instant(now + PERIOD)
        moderation.rest_ns(now)
    return moderation, now


def beside(ring: SwitchedRing, **changes: Any) -> SwitchedRing:
    """Another ring of the same hosts."""
    flows = tuple(replace(flow, dst_qp=flow.dst_qp + 16) for flow in ring.spec.flows)
    return SwitchedRing(beside=ring, ring_id=8, flows=flows, **changes)


def test_a_rest_is_the_time_in_which_a_part_of_a_window_comes_at_the_busiest_port() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, 1, **MORE)
    moderation, now = measured(ring, 40)
    rest = moderation.rest_ns(now)
    assert rest == (WINDOW // REST_PARTS) * S // (40 * S // PERIOD)
    assert isinstance(rest, int)


def test_there_is_no_rest_before_anything_was_measured() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, 1, **MORE)
    moderation = Moderation(ring.accelerator.rings)
    moderation.came(PortId(0), 100)
    assert moderation.rest_ns(Instant(S)) == 0
    moderation.came(PortId(0), 40)
    assert moderation.rest_ns(Instant(S + MEASURE_NS_MIN - 1)) == 0
    assert moderation.rest_ns(Instant(S + MEASURE_NS_MIN)) == 64 * MEASURE_NS_MIN // 40


def test_the_first_time_is_measured_from_the_begin_of_the_clock() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, 1, **MORE)
    moderation = Moderation(ring.accelerator.rings)
    assert moderation.rest_ns(Instant(MEASURE_NS_MIN - 1)) == 0
    moderation.came(PortId(0), 40)
    assert moderation.rest_ns(Instant(MEASURE_NS_MIN)) == 64 * MEASURE_NS_MIN // 40
    assert Moderation(ring.accelerator.rings).rest_ns(Instant(MEASURE_NS_MIN)) == 0, "nothing came"


def test_no_message_that_began_is_no_rest() -> None:
    ring = SwitchedRing()
    moderation, now = measured(ring, 40)
    assert moderation.rest_ns(now) == 0
    ring.finish(0, **MORE)
    assert moderation.rest_ns(now) == 0
    ring.send(2, 1, 0, **MORE)
    assert moderation.rest_ns(now)


def test_nothing_rests_while_an_operation_ends_until_it_has_ended() -> None:
    ring = SwitchedRing()
    moderation, now = measured(ring, 40)
    ring.send(0, 0, **MORE)
    assert moderation.rest_ns(now)
    ring.send(0, 1, 0)  # one of its ranks has begun the last message
    assert moderation.rest_ns(now) == 0
    for rank in (1, 2):
        ring.send(rank, 0, **MORE)
    assert moderation.rest_ns(now) == 0
    ring.finish(1)
    ring.send(0, 2, 0, **MORE)
    assert moderation.rest_ns(now)


def test_the_end_of_one_ring_s_operation_keeps_all_others_from_resting() -> None:
    ring = SwitchedRing()
    other = beside(ring)
    moderation, now = measured(ring, 40)
    ring.send(0, 0, 0, **MORE)
    assert moderation.rest_ns(now)
    other.send(1, 0, 0)
    assert moderation.rest_ns(now) == 0
    for rank in range(3):
        other.send(rank, 0)
    assert moderation.rest_ns(now)


@pytest.mark.parametrize(("window", "part"), [(1, 2), (4, 1)])
def test_the_smallest_window_decides(window: int, part: int) -> None:
    ring = SwitchedRing()
    other = beside(ring, window_messages=window)
    moderation, now = measured(ring, 20)
    ring.send(0, 0, 0, **MORE)
    whole = moderation.rest_ns(now)
    other.send(1, 0, 0, **MORE)
    assert moderation.rest_ns(now) == whole // part


def test_a_ring_that_failed_and_one_of_several_switches_are_no_reason_to_rest() -> None:
    ring = SwitchedRing()
    moderation, now = measured(ring, 40)
    ring.send(0, 0, 0, **MORE)
    said = ring.send(1, 0, 0, op=1, **MORE)
    assert any(isinstance(one, RingFault) for one in others(said))
    assert moderation.rest_ns(now) == 0

    tree = SwitchedRing()
    moderation, now = measured(tree, 40)
    tree.send(0, 0, 0, **MORE)
    assert moderation.rest_ns(now)
    state = tree.accelerator.rings[tree.spec.ring_id]
    state.spec = replace(state.spec, role=Role(inputs=(0, 1, 2), delivers=(0, 1, 2)))
    assert moderation.rest_ns(now) == 0


def test_bounds() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, **MORE)
    quick = 64 * PERIOD // REST_NS_MIN
    moderation, now = measured(ring, quick)
    assert REST_NS_MIN <= moderation.rest_ns(now) < 1.001 * REST_NS_MIN
    moderation, now = measured(ring, quick + 1)
    assert moderation.rest_ns(now) == 0
    slow = 64 * PERIOD // REST_NS_MAX
    moderation, now = measured(ring, slow)
    assert moderation.rest_ns(now) == REST_NS_MAX
    moderation, now = measured(ring, slow // 2)
    assert moderation.rest_ns(now) == REST_NS_MAX

    wide = SwitchedRing(window_messages=1024, message_packets=64)
    wide.send(0, 0, 0, 1, **MORE)
    assert 1024 * 64 * 64 // REST_PARTS > REST_BYTES_MAX
    moderation, now = measured(wide, 100_000)
    assert moderation.rest_ns(now) == REST_BYTES_MAX * S // (100_000 * S // PERIOD)


def test_the_highest_rate_fades_and_is_forgotten_after_a_pause() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, **MORE)
    moderation, now = measured(ring, 80)
    first = moderation.rest_ns(now)
    moderation.came(PortId(1), 20)
    now = Instant(now + PERIOD)
    peak = 80 * S // PERIOD
    assert moderation.rest_ns(now) == 64 * S // (peak - peak // FADING) > first
    moderation.came(PortId(1), 80)
    now = Instant(now + PERIOD)
    assert moderation.rest_ns(now) == first
    moderation.came(PortId(1), 80)
    now = Instant(now + MEASURE_NS_MAX)
    assert moderation.rest_ns(now) > first
    moderation.came(PortId(1), 80 * MS)
    now = Instant(now + MEASURE_NS_MAX + 1)
    assert moderation.rest_ns(now) == 0
