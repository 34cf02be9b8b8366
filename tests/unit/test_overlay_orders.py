"""Orders of an overlay's engine: what children have passed up is added, and results are sent down to them."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.host.engines.host_tree import Came, Fold, PostDown
from inaproto.core.host.engines.hosts import Place, PostSlot
from inaproto.core.host.operation_queue import KeptResult, Source
from inaproto.core.host.performer import KeptResults
from inaproto.core.host.tree_performer import OverlayOrders
from inaproto.core.plan.host_tree import OverlayTree
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.units import MsgId, RingId
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.exact_reference import exact
from tests.unit.test_ring_orders_hosts import NBYTES, HostTensors, Slots, operation

STAR = OverlayTree(ReductionPlan.flat(3), 2)
"""0 is the root, with children 1 and 2."""
CHAIN = OverlayTree(ReductionPlan.flat(3), 1)
"""What goes from the first to the second is not complete, hence wide."""
HEADER = bytes(40)


class TreeSlots(Slots):
    """Beside those of a ring, what each of two children has passed up, in slots of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.of_children = [Slots(), Slots()]
        self.down: list[tuple[object, ...]] = []

    def came(self, child: int, slot: int, nbytes: int) -> memoryview:
        return self.of_children[child].result(slot, nbytes)

    def post_down(self, *fields: object) -> None:
        self.down.append(fields)


def orders(slots: TreeSlots, tensors: HostTensors, kept: KeptResults | None = None) -> OverlayOrders[object]:
    return OverlayOrders(slots, kept or KeptResults(), tensors)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_host_adds_its_own_part_to_that_of_each_child_in_the_order_of_the_plan(
    ranks: int, place: Place
) -> None:
    """Floating-point sums tell any other order."""
    slots, tensors = TreeSlots(), HostTensors(Dtype.F32, ranks)
    parts = [bytes(tensor) for tensor in HostTensors(Dtype.F32, 7).of[5:]]
    for child, part in enumerate(parts):
        slots.of_children[child].received[child + 1][:NBYTES] = part[:NBYTES]
    own = exact(Dtype.F32, Op.SUM, [bytes(tensor[64 : 64 + NBYTES]) for tensor in tensors.of])
    came = (Came(0, 1, NBYTES), Came(1, 2, NBYTES))
    fold = Fold(came, place, 3, NBYTES, operation(Dtype.F32), Source.OWN, 64, NBYTES)
    orders(slots, tensors).fold(fold, STAR, 0)
    total = exact(Dtype.F32, Op.SUM, [own, *(part[:NBYTES] for part in parts)])
    written, other = (slots.received, slots.staging)[:: 1 if place is Place.RECEIVED else -1]
    assert bytes(written[3][:NBYTES]) == total
    written[3][:NBYTES] = bytes(NBYTES)
    assert not any(map(any, written + other)), "nothing else is written"


def test_a_sum_that_is_not_complete_is_wide() -> None:
    """The second of a chain of three adds to what the first has sent, as it does in its place."""
    slots, tensors = TreeSlots(), HostTensors(Dtype.F16, 1)
    (rank,) = (rank for rank in range(3) if rank != CHAIN.root and CHAIN.children(rank))
    part = bytes(HostTensors(Dtype.F16, 4).of[3][:NBYTES])
    slots.of_children[0].received[0][:NBYTES] = part
    wide = CHAIN.up_bytes(rank, Dtype.F16, Op.SUM, NBYTES)
    fold = Fold((Came(0, 0, NBYTES),), Place.STAGED, 1, wide, operation(Dtype.F16), Source.OWN, 0, NBYTES)
    orders(slots, tensors).fold(fold, CHAIN, rank)
    expected = exact(Dtype.F32, Op.SUM, [_widened(part), _widened(bytes(tensors.of[0][:NBYTES]))])
    assert (wide, bytes(slots.staged(1, wide))) == (2 * NBYTES, expected)


def _widened(half: bytes) -> bytes:
    return np.frombuffer(half, np.float16).astype(np.float32).tobytes()


@pytest.mark.parametrize("source", [Source.KEPT, Source.NEUTRAL])
def test_a_message_that_is_gone_through_again_is_folded_with_the_result_or_with_nothing(
    source: Source,
) -> None:
    slots, tensors, kept = TreeSlots(), HostTensors(Dtype.I32, 1), KeptResults()
    slots.received[0][:NBYTES] = bytes(range(256))
    kept.keep([KeptResult(0, operation(Dtype.I32), False, 32, NBYTES, RingId(1), 0)], slots, 0)
    came = (Came(0, 0, NBYTES), Came(1, 0, NBYTES))
    fold = Fold(came, Place.STAGED, 1, NBYTES, operation(Dtype.I32), source, 32, NBYTES)
    orders(slots, tensors, kept).fold(fold, STAR, 0)
    expected = bytes(range(256)) if source is Source.KEPT else bytes(NBYTES)
    assert bytes(slots.staged(1, NBYTES)) == expected


def test_a_result_goes_down_to_the_child_that_it_is_for_and_what_goes_up_is_as_on_other_rings() -> None:
    slots = TreeSlots()
    of_host = orders(slots, HostTensors(Dtype.I32, 1))
    of_host.post_down(PostDown(1, MsgId(5), 3, HEADER, 7, NBYTES))
    assert slots.down == [(1, 5, 3, HEADER, 7, NBYTES)]
    slots.staging[2][:NBYTES] = bytes(range(256))
    of_host.post_slot(PostSlot(MsgId(6), 1, HEADER, Place.STAGED, 2, NBYTES))
    assert slots.posted == [(6, 1, HEADER, bytes(range(256)))]
