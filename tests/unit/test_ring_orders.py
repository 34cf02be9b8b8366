"""Orders of a rank's engine on memory: which bytes are sent, added, taken and kept, and where they lie."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from inaproto.core.host.engines.hosts import Combine, Place, PostSlot
from inaproto.core.host.operation_queue import KeptResult, Source
from inaproto.core.host.operations import Operation, PostKept, PostMessage, PostNeutral, TakeResult
from inaproto.core.host.performer import KeptResults, RingOrders
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.neutral import neutral_bytes
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import InvariantBroken
from inaproto.units import MsgId, OpIndex, RingId
from inaproto.wire.host_header import HostHeader, Kind
from inaproto.wire.ina_header import Dtype, InaHeader, Op
from tests.unit.exact_reference import exact

SLOT_BYTES = 64
SLOTS = 4
STAGING = 100
"""First of the staging slots' numbers here, so that none is taken for a receive slot."""
HEADER = b"header of 40 bytes ".ljust(40, b".")


class Span(NamedTuple):
    """Tensor bytes as a NIC is given them: where they are, not what they are."""

    op_index: int
    offset: int
    nbytes: int


class MemorySlots:
    """A rank's slots in memory, every one with bytes of its own; what it posts is listed with its bytes."""

    def __init__(self, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.received = {slot: bytearray(draw.bytes(SLOT_BYTES)) for slot in range(SLOTS)}
        self.staging = {STAGING + slot: bytearray(draw.bytes(SLOT_BYTES)) for slot in range(SLOTS)}
        self.posted: list[tuple[int, int, bytes, Span | bytes]] = []

    def result(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(self.received[slot])[:nbytes]

    def result_at(self, slot: int) -> int:
        raise AssertionError("no journal asks")

    def staged(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(self.staging[slot])[:nbytes]

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: Span) -> None:
        self.posted.append((msg_id, slot, header, payload))

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self.posted.append((msg_id, slot, header, bytes(self.staged(at, nbytes))))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self.posted.append((msg_id, slot, header, bytes(self.result(at, nbytes))))

    def changed_since(self, before: MemorySlots) -> set[int]:
        """Slots, of either kind, that hold other bytes."""
        now = {**self.received, **self.staging}
        return {slot for slot, old in {**before.received, **before.staging}.items() if now[slot] != old}


class MemoryTensors:
    """Of a rank alone on its host: of the operations 0 to 9, every one with bytes of its own."""

    def __init__(self) -> None:
        draw = np.random.default_rng(9)
        self.bytes = {index: bytearray(draw.bytes(200)) for index in range(10)}

    @property
    def ranks(self) -> int:
        return 1

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        return [memoryview(self.bytes[op_index])[offset : offset + nbytes]]

    def operation(self, op_index: int) -> Operation:
        raise AssertionError("no journal asks")

    def payload(self, op_index: int, offset: int, nbytes: int) -> Span:
        return Span(op_index, offset, nbytes)


class Rank:
    """The orders of one rank, and all that they work on."""

    def __init__(self) -> None:
        self.slots, self.tensors, self.kept = MemorySlots(), MemoryTensors(), KeptResults()
        self.orders = RingOrders[Span](self.slots, self.kept, self.tensors)

    def keep(self, op_index: int, offset: int, nbytes: int) -> bytes:
        """Let the result of this part be kept, from an earlier ring; returns its bytes."""
        earlier = MemorySlots(seed=1)
        self.kept.keep([kept_result(5, op_index, offset, nbytes, slot=3)], earlier, since=0)
        return bytes(earlier.received[3][:nbytes])


def operation(index: int, dtype: Dtype = Dtype.I32, op: Op = Op.SUM) -> Operation:
    return Operation(OpIndex(index), dtype, op, 200, 0x51)


def kept_result(serial: int, op_index: int, offset: int, nbytes: int, *, slot: int) -> KeptResult:
    return KeptResult(serial, operation(op_index), False, offset, nbytes, RingId(1), slot)


@pytest.fixture
def rank() -> Rank:
    return Rank()


# --- posting


def test_tensor_bytes_are_sent_from_where_they_are(rank: Rank) -> None:
    rank.orders.post(PostMessage(MsgId(21), 1, HEADER, OpIndex(4), 16, 24))
    assert rank.slots.posted == [(21, 1, HEADER, Span(4, 16, 24))]
    assert rank.slots.changed_since(MemorySlots()) == set(), "nothing is copied"


def test_a_kept_result_is_sent_by_way_of_the_staging_slot_of_its_header(rank: Rank) -> None:
    kept = rank.keep(op_index=4, offset=16, nbytes=24)
    rank.orders.post(PostKept(MsgId(21), STAGING + 2, HEADER, OpIndex(4), 16, 24))
    assert rank.slots.posted == [(21, STAGING + 2, HEADER, kept)]
    assert rank.slots.changed_since(MemorySlots()) == {STAGING + 2}


def ina_header(dtype: Dtype, op: Op) -> InaHeader:
    return InaHeader(
        dtype=dtype,
        op=op,
        flags=0,
        ring_id=1,
        epoch=1,
        op_index=4,
        msg_id=21,
        rank=1,
        ring_size=3,
        msg_len=1,
        signature=0x51,
        key=0xFEED,
    )


@pytest.mark.parametrize("host_header", [False, True])
def test_neutral_elements_are_those_of_the_reduction_that_the_header_names(
    rank: Rank, *, host_header: bool
) -> None:
    for dtype, op in itertools.product(Dtype, Op):
        fields = ina_header(dtype, op)
        header = HostHeader(Kind.ACCUMULATOR, fields).encode() if host_header else fields.encode()
        rank.orders.post(PostNeutral(MsgId(21), STAGING + 1, header, OpIndex(4), 16, 24))
        assert rank.slots.posted.pop() == (21, STAGING + 1, header, neutral_bytes(dtype, op, 24))
    assert rank.slots.changed_since(MemorySlots()) == {STAGING + 1}


@pytest.mark.parametrize("place", Place)
def test_a_slot_is_sent_from_the_place_that_the_order_names(rank: Rank, place: Place) -> None:
    at = STAGING + 3 if place is Place.STAGED else 3
    holds = rank.slots.staging[at] if place is Place.STAGED else rank.slots.received[at]
    rank.orders.post_slot(PostSlot(MsgId(6), 2, HEADER, place, at, 24))
    assert rank.slots.posted == [(6, 2, HEADER, bytes(holds[:24]))]
    assert rank.slots.changed_since(MemorySlots()) == set()


# --- combining and taking

PLAN = ReductionPlan.flat(4)
CAME, OUT, OFFSET, NBYTES = 1, 2, 16, 24


def combined(rank: Rank, seat: int, place: Place, source: Source) -> tuple[bytes, bytes]:
    """The largest int32, by rank ``seat`` of four: (what lies in the slot named then, what came to it)."""
    out = OUT + (STAGING if place is Place.STAGED else 0)
    named = operation(4, Dtype.I32, Op.MAX)
    order = Combine(CAME, NBYTES, place, out, NBYTES, named, source, OFFSET, NBYTES)
    rank.orders.combine(order, Accumulators(PLAN), seat)
    before = MemorySlots()
    assert rank.slots.changed_since(before) == {out}
    slot = rank.slots.staging[out] if place is Place.STAGED else rank.slots.received[out]
    assert slot[NBYTES:] == {**before.received, **before.staging}[out][NBYTES:], "nothing is written behind"
    return bytes(slot[:NBYTES]), bytes(rank.slots.received[CAME][:NBYTES])


@pytest.mark.parametrize("place", Place)
@pytest.mark.parametrize("source", Source)
def test_the_part_that_the_order_names_is_added_to_what_came(
    rank: Rank, source: Source, place: Place
) -> None:
    kept = rank.keep(op_index=4, offset=OFFSET, nbytes=NBYTES)
    own = {
        Source.OWN: bytes(rank.tensors.bytes[4][OFFSET : OFFSET + NBYTES]),
        Source.KEPT: kept,
        Source.NEUTRAL: neutral_bytes(Dtype.I32, Op.MAX, NBYTES),
    }[source]
    seat = 1 if place is Place.STAGED else 3
    outcome, came = combined(rank, seat, place, source)
    assert outcome == exact(Dtype.I32, Op.MAX, [came, own])


def test_accumulators_that_are_wider_than_the_tensor_have_room(rank: Rank) -> None:
    """A sum of two float16 travels as float32; the last rank rounds it to what the tensor is of."""
    half = np.arange(12, dtype=np.float16)
    rank.tensors.bytes[4][OFFSET : OFFSET + NBYTES] = half.tobytes()
    rank.slots.received[CAME][:NBYTES] = (half * 2).tobytes()
    chain = Accumulators(PLAN)
    order = Combine(CAME, 24, Place.STAGED, STAGING, 48, operation(4, Dtype.F16), Source.OWN, OFFSET, NBYTES)
    rank.orders.combine(order, chain, 1)
    assert rank.slots.staging[STAGING][:48] == (half * 3).astype(np.float32).tobytes()
    rank.slots.received[CAME][:48] = (half * 3).astype(np.float32).tobytes()
    last = Combine(CAME, 48, Place.RECEIVED, OUT, 24, operation(4, Dtype.F16), Source.OWN, OFFSET, NBYTES)
    rank.orders.combine(last, chain, 3)
    assert rank.slots.received[OUT][:24] == (half * 4).tobytes()


def test_a_result_is_copied_into_its_place_in_the_tensor(rank: Rank) -> None:
    before = bytes(rank.tensors.bytes[4])
    rank.orders.take(TakeResult(3, OpIndex(4), 16, 24))
    result = bytes(rank.slots.received[3][:24])
    assert bytes(rank.tensors.bytes[4]) == before[:16] + result + before[40:]
    assert rank.slots.changed_since(MemorySlots()) == set()


# --- keeping


def test_results_of_the_ring_that_ends_are_copied_out_of_its_slots() -> None:
    kept, link = KeptResults(), MemorySlots()
    kept.keep([kept_result(7, 2, 0, 24, slot=1), kept_result(8, 2, 24, 8, slot=2)], link, since=7)
    first, second = bytes(link.received[1][:24]), bytes(link.received[2][:8])
    for slot in link.received.values():
        slot[:] = bytes(SLOT_BYTES)
    assert (kept.get(2, 0), kept.get(2, 24), len(kept)) == (first, second, 2)


def test_results_of_earlier_rings_stay_though_their_slots_hold_others_now() -> None:
    """The ring id does not tell: a switch that has restarted uses it again."""
    kept, earlier, later = KeptResults(), MemorySlots(seed=1), MemorySlots(seed=2)
    old, new = kept_result(7, 2, 0, 24, slot=1), kept_result(8, 2, 24, 24, slot=1)
    kept.keep([old], earlier, since=7)
    kept.keep([old, new], later, since=8)
    assert kept.get(2, 0) == bytes(earlier.received[1][:24])
    assert kept.get(2, 24) == bytes(later.received[1][:24])


def of_ring(ring_id: int, kept: KeptResult) -> KeptResult:
    return kept._replace(ring_id=RingId(ring_id))


def test_results_of_a_ring_that_stood_beside_are_in_the_slots_of_that_one() -> None:
    kept, link, other = KeptResults(), MemorySlots(seed=1), MemorySlots(seed=2)
    results = [kept_result(7, 2, 0, 24, slot=1), of_ring(9, kept_result(8, 2, 24, 24, slot=1))]
    kept.keep(results, link, since=7, beside={9: other})
    assert kept.get(2, 0) == bytes(link.received[1][:24])
    assert kept.get(2, 24) == bytes(other.received[1][:24])


def test_what_is_not_among_the_last_results_is_not_kept_any_longer() -> None:
    kept, link = KeptResults(), MemorySlots()
    assert len(kept) == 0
    kept.keep([kept_result(7, 2, 0, 24, slot=1), kept_result(8, 2, 24, 24, slot=2)], link, since=7)
    kept.keep([kept_result(8, 2, 24, 24, slot=2)], link, since=9)
    assert len(kept) == 1
    with pytest.raises(InvariantBroken, match=r"^result at 0 of all-reduce 2 was not kept$"):
        kept.get(2, 0)


def test_a_result_that_ought_to_have_been_kept_before_is_missed_at_once() -> None:
    kept, link = KeptResults(), MemorySlots()
    kept.keep([kept_result(7, 2, 0, 24, slot=1)], link, since=7)
    with pytest.raises(InvariantBroken, match=r"^result at 24 of all-reduce 2 was not kept$"):
        kept.keep([kept_result(8, 2, 24, 24, slot=2)], link, since=9)
    assert kept.get(2, 0) == bytes(link.received[1][:24]), "and nothing is forgotten"
