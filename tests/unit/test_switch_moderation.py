"""How long a switch may leave its ports alone: by what comes, and by what is sure to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from inaproto.core.switch.accelerator import RemoveRing, RingFault
from inaproto.core.switch.moderation import (
    FADING,
    MEASURE_NS_MAX,
    MEASURE_NS_MIN,
    OPERATION_PARTS,
    REST_BYTES_MAX,
    REST_NS_MAX,
    REST_NS_MIN,
    REST_PARTS,
    SHAPES_MAX,
    Moderation,
)
from inaproto.units import Instant, PortId, S
from inaproto.wire.messages.switch import Role
from tests.unit.switched_ring import LATER, SwitchedRing, others

MESSAGE = 4 * 64
SHARE = 2 * MESSAGE // REST_PARTS
"""Of the window of ``SwitchedRing``."""
PERIOD = MEASURE_NS_MIN + 1
"""No round number, so that each rounding shows."""
MORE = {"flags": 0}
"""A message that does not end its operation."""
RATE = 400
SLOW = 8
"""So slowly that even one byte more would be a rest."""


def part(messages: int) -> int:
    """Of an operation of so many messages."""
    return messages * MESSAGE // OPERATION_PARTS


class Measured:
    """In each period so many bytes come at port 1, and half as many at port 0."""

    def __init__(self, ring: SwitchedRing, nbytes: int = RATE) -> None:
        self.moderation = Moderation(ring.accelerator.rings)
        self.now = Instant(S)
        self.nbytes = nbytes
        self.moderation.rest_ns(self.now)

    def rest(self, periods: int = 2) -> int:
        """After so many periods more."""
        half, found = self.nbytes // 2, 0
        for _ in range(periods):
            for port, nbytes in ((0, half), (1, half), (1, self.nbytes - half)):
                self.moderation.came(PortId(port), nbytes)
            self.now = Instant(self.now + PERIOD)
            found = self.moderation.rest_ns(self.now)
        return found

    def share(self) -> int:
        """Bytes that come in a rest, but for what rounding takes away."""
        rate = self.nbytes * S // PERIOD
        return -(-self.rest() * rate // S)


def beside(ring: SwitchedRing, **changes: Any) -> SwitchedRing:
    """Another ring of the same hosts."""
    flows = tuple(replace(flow, dst_qp=flow.dst_qp + 16) for flow in ring.spec.flows)
    return SwitchedRing(beside=ring, ring_id=8, flows=flows, **changes)


def begin(ring: SwitchedRing, *serials: int, rank: int = 0, **changes: Any) -> None:
    """The first packets of messages come."""
    for serial in serials:
        ring.send(rank, serial, 0, **changes)


def amid(ring: SwitchedRing, first: int = 0) -> None:
    """Messages come of an operation so long that its window decides."""
    for serial in (first, first + 1):
        ring.finish(serial, **MORE)
    begin(ring, first + 2, first + 3, **MORE)
    assert part(5) > SHARE


def wide() -> SwitchedRing:
    """With a window of which no part is less than that of the operations of these tests."""
    return SwitchedRing(window_messages=16)


# ---- how long --------------------------------------------------------------------------------------------


def test_a_rest_is_the_time_in_which_a_part_of_a_window_comes_at_the_busiest_port() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    amid(ring)
    rest = at.rest()
    assert rest == SHARE * S // (RATE * S // PERIOD)
    assert isinstance(rest, int)


def test_a_rest_is_no_longer_than_a_part_of_what_the_operation_has_for_sure() -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, 0, **MORE)
    rest = at.rest()
    assert rest == part(2) * S // (RATE * S // PERIOD)
    assert isinstance(rest, int)
    for serial in range(1, 5):
        begin(ring, serial, **MORE)
        assert at.share() == part(serial + 2)


def test_an_operation_has_as_many_messages_as_the_one_before_it_of_the_same_shape() -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, 0, 1, 2, 3, **MORE)
    begin(ring, 4)
    assert at.share() == part(5)
    for serial in range(5):
        ring.finish(serial, flags=int(serial == 4))
    begin(ring, 5, **MORE)
    assert at.share() == part(5)
    begin(ring, 6, 7, 8, 9, **MORE)
    assert at.share() == part(6), "it has more, for some reason"


@pytest.mark.parametrize(
    "changes", [{"signature": 0x5152}, {"signature": 0x5251}, {"dtype": 0}, {"op": 1}], ids=str
)
def test_of_another_shape_nothing_is_known(changes: dict[str, Any]) -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, 0, 1, 2, **MORE)
    begin(ring, 3)
    assert at.share() == part(4)
    for serial in range(4):
        ring.finish(serial, flags=int(serial == 3))
    begin(ring, 4, **MORE, **changes)
    assert at.share() == part(2)
    ring.finish(4, **MORE, **changes)
    begin(ring, 5, **changes)
    assert at.share() == part(2)
    ring.finish(5, **changes)
    begin(ring, 6, **MORE)
    assert at.share() == part(4), "the other shape took nothing away"


def test_what_is_known_of_a_shape_is_of_one_ring() -> None:
    ring = wide()
    other = beside(ring, window_messages=16)
    at = Measured(ring)
    begin(ring, 0, 1, 2, **MORE)
    begin(ring, 3)
    assert at.share() == part(4)
    for serial in range(4):
        ring.finish(serial, flags=int(serial == 3))
    begin(other, 0, **MORE)
    assert at.share() == part(2)


def test_so_many_shapes_are_remembered() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    for number in range(SHAPES_MAX):
        ring.finish(number, signature=number)
        at.rest(1)
    assert len(at.moderation._messages) == SHAPES_MAX
    ring.finish(SHAPES_MAX, signature=SHAPES_MAX)
    at.rest(1)
    assert len(at.moderation._messages) == 1


def test_rings_that_are_gone_are_forgotten() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    for ring_id in range(8, 12):
        beside(ring)
        at.rest(1)
        ring.accelerator.step(RemoveRing(8), LATER)
        assert len(at.moderation._operations) == 2, ring_id


# ---- the last message ------------------------------------------------------------------------------------


def test_the_last_message_tells_how_many_there_are() -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, 0, 1, **MORE)
    assert at.share() == part(3)
    begin(ring, 2)
    assert at.share() == part(3)
    for serial in (0, 1):
        ring.finish(serial, **MORE)
    assert at.share() == part(3)


def test_a_rest_is_over_when_the_last_packet_can_be_there() -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, *range(6), **MORE)
    begin(ring, 6)
    assert at.share() == part(7) > 64
    for serial in range(6):
        ring.finish(serial, **MORE)
    for rank in (0, 1):
        ring.send(rank, 6)
    ring.send(2, 6, 0, 1)
    assert at.share() == min(part(7), 2 * 64)
    ring.send(2, 6, 2)
    assert at.share() == 64


def test_there_is_no_rest_when_all_came_and_something_is_missing() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    begin(ring, 0, **MORE)
    begin(ring, 1)
    for rank in range(3):
        ring.send(rank, 0, **MORE)
        ring.send(rank, 1, 0, 3)
    assert at.rest() == 0


def test_a_last_message_may_be_short() -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, *range(6), **MORE)
    begin(ring, 6, packets=2)
    for serial in range(6):
        ring.finish(serial, **MORE)
    for rank in range(3):
        begin(ring, 6, rank=rank, packets=2)
    assert at.share() == 64


# ---- when not --------------------------------------------------------------------------------------------


def test_nothing_is_known_of_rates_before_something_came() -> None:
    ring = SwitchedRing()
    begin(ring, 0, 1, **MORE)
    moderation = Moderation(ring.accelerator.rings)
    for i in range(20):
        assert moderation.rest_ns(Instant(i * MEASURE_NS_MIN)) == 0
    moderation.came(PortId(0), RATE)
    assert moderation.rest_ns(Instant(20 * MEASURE_NS_MIN - 1)) == 0
    assert moderation.rest_ns(Instant(20 * MEASURE_NS_MIN)) > 0


def test_what_came_before_it_was_asked_first_came_in_a_time_that_nobody_knows() -> None:
    ring = SwitchedRing()
    begin(ring, 0, 1, **MORE)
    moderation = Moderation(ring.accelerator.rings)
    moderation.came(PortId(0), RATE)
    assert moderation.rest_ns(Instant(MEASURE_NS_MIN)) == 0


def test_no_message_that_began_is_no_rest() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    assert at.rest() == 0
    ring.finish(0, **MORE)
    assert at.rest() == 0
    begin(ring, 1, rank=2, **MORE)
    assert at.rest()


def test_an_operation_of_one_message_keeps_all_from_resting() -> None:
    ring = SwitchedRing()
    other = beside(ring)
    at = Measured(ring)
    begin(ring, 0, **MORE)
    assert at.rest()
    begin(other, 0, rank=1)
    assert at.rest() == 0
    at.nbytes = SLOW
    assert at.rest(30) == 0
    at.nbytes = RATE
    other.finish(0)
    assert at.rest()
    begin(other, 1, **MORE)
    begin(other, 2)
    assert at.rest()


def test_of_operations_one_behind_the_other_the_shortest_decides() -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, 0, 1, 2, **MORE)
    begin(ring, 3)
    begin(ring, 4, **MORE, signature=9)
    assert at.share() == part(2), "the second one"
    begin(ring, 5, 6, 7, 8, **MORE, signature=9)
    assert at.share() == part(4), "the first one"
    begin(ring, 9, signature=9)
    begin(ring, 10, signature=10)
    assert at.rest() == 0, "the third one"
    for serial in range(4):
        ring.finish(serial, flags=int(serial == 3))
    assert at.rest() == 0
    for serial in range(4, 11):
        ring.finish(serial, flags=int(serial >= 9), signature=10 if serial == 10 else 9)
    begin(ring, 11, **MORE, signature=9)
    assert at.share() == part(6)


def test_the_end_that_comes_first_ends_a_rest() -> None:
    ring = wide()
    at = Measured(ring)
    begin(ring, *range(6), **MORE)
    begin(ring, 6)
    for serial in range(6):
        ring.finish(serial, **MORE)
    for rank in range(3):
        ring.send(rank, 6, *range(3 if rank else 4))
    assert at.share() == 64
    ring.send(0, 7, 0, signature=9, **MORE)
    ring.send(0, 8, 0, signature=9, **MORE)
    assert at.share() == min(64, part(3))


@pytest.mark.parametrize(("window", "part"), [(1, 2), (4, 1)])
def test_the_smallest_window_decides(window: int, part: int) -> None:
    ring = SwitchedRing()
    other = beside(ring, window_messages=window)
    at = Measured(ring, 200)
    amid(ring)
    whole = at.rest()
    amid(other)
    assert at.rest() == whole // part


def test_a_ring_that_failed_is_no_reason_to_rest() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    begin(ring, 0, **MORE)
    said = ring.send(1, 0, 0, op=1, **MORE)
    assert any(isinstance(one, RingFault) for one in others(said))
    assert at.rest() == 0


def test_with_a_ring_of_several_switches_there_is_no_rest() -> None:
    tree = SwitchedRing()
    other = beside(tree)
    at = Measured(tree)
    begin(tree, 0, **MORE)
    begin(other, 0, **MORE)
    assert at.rest()
    state = tree.accelerator.rings[tree.spec.ring_id]
    state.spec = replace(state.spec, role=Role(inputs=(0, 1, 2), delivers=(0, 1, 2)))
    assert at.rest() == 0
    at.nbytes = SLOW
    assert at.rest(30) == 0


def test_who_has_not_looked_for_long_begins_anew() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    begin(ring, 0, **MORE)
    assert at.rest()
    for serial in range(9):
        ring.finish(serial, **MORE)
    begin(ring, 9, **MORE)
    assert at.rest(1) == part(2) * S // (RATE * S // PERIOD), "at once"
    ring.finish(9, **MORE)
    begin(ring, 10)
    assert at.share() == part(2)


# ---- bounds, and rates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("nbytes", "rest"), [(0, REST_NS_MIN), (1, 0)])
def test_a_short_rest_is_none(nbytes: int, rest: int) -> None:
    ring = SwitchedRing()
    moderation, found = Moderation(ring.accelerator.rings), 0
    moderation.rest_ns(Instant(0))
    amid(ring)
    quick = SHARE * MEASURE_NS_MIN // REST_NS_MIN + nbytes
    for i in range(1, 10):
        moderation.came(PortId(0), quick)
        found = moderation.rest_ns(Instant(i * MEASURE_NS_MIN))
    assert found == rest


def test_bounds() -> None:
    ring = SwitchedRing()
    slow = SHARE * PERIOD // REST_NS_MAX
    at = Measured(ring, slow)
    amid(ring)
    assert at.rest() == REST_NS_MAX
    at.nbytes = slow // 2
    assert at.rest() == REST_NS_MAX

    long = SwitchedRing(window_messages=16, message_packets=64, mtu=4096)
    begin(long, *range(15), **MORE)
    assert min(16 * 64 * 4096 // REST_PARTS, 16 * 64 * 4096 // OPERATION_PARTS) > REST_BYTES_MAX
    at = Measured(long, 1_000_000)
    assert at.rest() == REST_BYTES_MAX * S // (1_000_000 * S // PERIOD)


def test_the_highest_rate_fades_and_is_forgotten_after_a_pause() -> None:
    ring = SwitchedRing()
    at = Measured(ring, 80)
    amid(ring)
    first = at.rest()
    at.nbytes = 20
    peak = 80 * S // PERIOD
    assert at.rest(1) == SHARE * S // (peak - peak // FADING) > first
    at.nbytes = 80
    assert at.rest(1) == first
    at.moderation.came(PortId(1), 80)
    at.now = Instant(at.now + MEASURE_NS_MAX)
    assert at.moderation.rest_ns(at.now) == SHARE * S // (peak - peak // FADING)
    at.moderation.came(PortId(1), 80)
    at.now = Instant(at.now + MEASURE_NS_MAX + 1)
    assert at.moderation.rest_ns(at.now) == 0
    assert at.rest(1) == first


def test_pauses_between_operations_say_nothing_of_a_rate() -> None:
    ring = SwitchedRing()
    at = Measured(ring)
    amid(ring)
    rest = at.rest()
    for serial in (2, 3):
        ring.finish(serial, **MORE)
    at.moderation.came(PortId(1), 7)
    assert at.moderation.rest_ns(Instant(at.now + PERIOD)) == 0
    begin(ring, 4, 5, **MORE)
    at.moderation.came(PortId(1), 10 * RATE)  # what was held back while the link was idle
    assert at.moderation.rest_ns(Instant(at.now + 2 * PERIOD)) == rest
    at.now = Instant(at.now + 2 * PERIOD)
    assert at.rest(1) == rest
