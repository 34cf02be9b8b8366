"""How long a switch may leave its ports alone: by what comes, and by what is sure to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.switch.accelerator import RingFault
from inaproto.core.switch.moderation import (
    FADING,
    LASTED_PARTS,
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
SHARE = WINDOW // REST_PARTS
PERIOD = MEASURE_NS_MIN + 1
"""No round number, so that each rounding shows."""
MORE = {"flags": 0}
"""A message that does not end its operation."""


class Measured:
    """In each period so many bytes come at port 1, and half as many at port 0."""

    def __init__(self, ring: SwitchedRing, nbytes: int) -> None:
        self.moderation = Moderation(ring.accelerator.rings)
        self.now = Instant(S)
        self.nbytes = nbytes
        self.moderation.rest_ns(self.now)

    def rest(self, periods: int = LASTED_PARTS * REST_NS_MAX // PERIOD + 2) -> int:
        """After so many periods more; by default the operation has lasted for long then."""
        half, found = self.nbytes // 2, 0
        for _ in range(periods):
            for port, nbytes in ((0, half), (1, half), (1, self.nbytes - half)):
                self.moderation.came(PortId(port), nbytes)
            self.now = Instant(self.now + PERIOD)
            found = self.moderation.rest_ns(self.now)
        return found


def beside(ring: SwitchedRing, **changes: Any) -> SwitchedRing:
    """Another ring of the same hosts."""
    flows = tuple(replace(flow, dst_qp=flow.dst_qp + 16) for flow in ring.spec.flows)
    return SwitchedRing(beside=ring, ring_id=8, flows=flows, **changes)


def test_a_rest_is_the_time_in_which_a_part_of_a_window_comes_at_the_busiest_port() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, 1, **MORE)
    at = Measured(ring, 40)
    rest = at.rest()
    assert rest == SHARE * S // (40 * S // PERIOD)
    assert isinstance(rest, int)


def test_a_rest_is_no_longer_than_a_part_of_the_time_for_which_the_operation_lasts() -> None:
    ring = SwitchedRing()
    at = Measured(ring, 40)
    assert at.rest() == 0
    ring.send(0, 0, 0, 1, **MORE)
    assert at.rest(1) == 0
    assert at.rest(1) == 0, "it would be too short"
    assert at.rest(4) == 5 * PERIOD // LASTED_PARTS
    for rank in range(3):  # the next message is that of another operation
        ring.send(rank, 0, **MORE)
    assert at.rest(1) == 0, "nothing is on the way"
    ring.send(0, 1, 0, **MORE)
    assert at.rest(1) == 7 * PERIOD // LASTED_PARTS
    ring.finish(1, **MORE)
    ring.finish(2)
    ring.send(0, 3, 0, **MORE)
    assert at.rest(6) == 0, "the message before it was the last one of its operation"
    ring.finish(3, **MORE)
    ring.send(0, 4, 0, **MORE)
    assert at.rest(6) == 6 * PERIOD // LASTED_PARTS
    ring.send(1, 4, **MORE)
    ring.send(1, 5, 0)
    assert at.rest(6) == 0
    for rank in (0, 2):
        ring.send(rank, 4, **MORE)
    for rank in range(3):
        ring.send(rank, 5)
    ring.finish(6, **MORE)
    ring.send(0, 7, 0, **MORE)
    assert at.rest(6) == 5 * PERIOD // LASTED_PARTS, "a new one"


def test_nothing_is_known_of_rates_before_something_came() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, 1, **MORE)
    moderation = Moderation(ring.accelerator.rings)
    for i in range(40):
        assert moderation.rest_ns(Instant(i * MEASURE_NS_MIN)) == 0
    moderation.came(PortId(0), 40)
    assert moderation.rest_ns(Instant(40 * MEASURE_NS_MIN - 1)) == 0
    assert moderation.rest_ns(Instant(40 * MEASURE_NS_MIN)) == 0, "the operation begins to be seen"
    assert moderation.rest_ns(Instant(40 * MEASURE_NS_MIN + LASTED_PARTS * MS)) > 0


def test_a_time_is_measured_as_soon_as_it_is_long_enough() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, 1, **MORE)
    moderation = Moderation(ring.accelerator.rings)
    moderation.came(PortId(0), 40)
    assert moderation.rest_ns(Instant(MEASURE_NS_MIN)) == 0, "the operation begins to be seen"
    assert moderation.rest_ns(Instant(MEASURE_NS_MIN + LASTED_PARTS * MS)) > 0


def test_no_message_that_began_is_no_rest() -> None:
    ring = SwitchedRing()
    at = Measured(ring, 40)
    assert at.rest() == 0
    ring.finish(0, **MORE)
    assert at.rest() == 0
    ring.send(2, 1, 0, **MORE)
    assert at.rest()


def test_nothing_rests_while_an_operation_ends_until_it_has_ended() -> None:
    ring = SwitchedRing()
    at = Measured(ring, 40)
    ring.send(0, 0, **MORE)
    assert at.rest()
    ring.send(0, 1, 0)  # one of its ranks has begun the last message
    assert at.rest() == 0
    for rank in (1, 2):
        ring.send(rank, 0, **MORE)
    assert at.rest() == 0
    ring.finish(1)
    ring.finish(2, **MORE)
    ring.send(0, 3, 0, **MORE)
    assert at.rest()


def test_the_end_of_one_ring_s_operation_keeps_all_others_from_resting() -> None:
    ring = SwitchedRing()
    other = beside(ring)
    at = Measured(ring, 40)
    ring.send(0, 0, 0, **MORE)
    assert at.rest()
    other.send(1, 0, 0)
    assert at.rest() == 0
    for rank in range(3):
        other.send(rank, 0)
    assert at.rest()


@pytest.mark.parametrize(("window", "part"), [(1, 2), (4, 1)])
def test_the_smallest_window_decides(window: int, part: int) -> None:
    ring = SwitchedRing()
    other = beside(ring, window_messages=window)
    at = Measured(ring, 20)
    ring.send(0, 0, 0, **MORE)
    whole = at.rest()
    other.send(1, 0, 0, **MORE)
    assert at.rest() == whole // part


def test_a_ring_that_failed_and_one_of_several_switches_are_no_reason_to_rest() -> None:
    ring = SwitchedRing()
    at = Measured(ring, 40)
    ring.send(0, 0, 0, **MORE)
    said = ring.send(1, 0, 0, op=1, **MORE)
    assert any(isinstance(one, RingFault) for one in others(said))
    assert at.rest() == 0

    tree = SwitchedRing()
    at = Measured(tree, 40)
    tree.send(0, 0, 0, **MORE)
    assert at.rest()
    state = tree.accelerator.rings[tree.spec.ring_id]
    state.spec = replace(state.spec, role=Role(inputs=(0, 1, 2), delivers=(0, 1, 2)))
    assert at.rest() == 0


def test_bounds() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, **MORE)
    for quick, rest in ((4 * SHARE, REST_NS_MIN), (4 * SHARE + 1, 0)):
        moderation, found = Moderation(ring.accelerator.rings), 0
        for i in range(1, 40):
            moderation.came(PortId(0), quick)
            found = moderation.rest_ns(Instant(i * MEASURE_NS_MIN))
        assert found == rest
    slow = SHARE * PERIOD // REST_NS_MAX
    at = Measured(ring, slow)
    assert at.rest() == REST_NS_MAX
    at = Measured(ring, slow // 2)
    assert at.rest() == REST_NS_MAX

    wide = SwitchedRing(window_messages=1024, message_packets=64)
    wide.send(0, 0, 0, 1, **MORE)
    assert 1024 * 64 * 64 // REST_PARTS > REST_BYTES_MAX
    at = Measured(wide, 100_000)
    assert at.rest() == REST_BYTES_MAX * S // (100_000 * S // PERIOD)


def test_the_highest_rate_fades_and_is_forgotten_after_a_pause() -> None:
    ring = SwitchedRing()
    ring.send(0, 0, 0, **MORE)
    at = Measured(ring, 80)
    first = at.rest()
    at.nbytes = 20
    peak = 80 * S // PERIOD
    assert at.rest(1) == SHARE * S // (peak - peak // FADING) > first
    at.nbytes = 80
    assert at.rest(1) == first
    at.moderation.came(PortId(1), 80)
    at.now = Instant(at.now + MEASURE_NS_MAX)
    assert at.moderation.rest_ns(at.now) > first
    at.moderation.came(PortId(1), 80)
    at.now = Instant(at.now + MEASURE_NS_MAX + 1)
    assert at.moderation.rest_ns(at.now) == 0
