"""Orders of an engine on a host with several ranks: their parts are added before they leave it."""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.host.engines.hosts import Combine, Place
from inaproto.core.host.operation_queue import KeptResult, Source
from inaproto.core.host.operations import Operation, PostKept, PostMessage, PostNeutral, TakeResult
from inaproto.core.host.performer import KeptResults, RingOrders
from inaproto.core.plan.accumulators import Accumulators
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.units import MsgId, OpIndex, RingId
from inaproto.wire.ina_header import Dtype, InaHeader, Op
from tests.unit.exact_reference import NUMPY, exact

SLOT_BYTES = 4096
SLOTS = 4
NBYTES = 256
OP_INDEX = OpIndex(6)
DTYPES = list(Dtype)


class Slots:
    """Receive and staging slots; what is posted is listed with its bytes, a tensor as (offset, nbytes)."""

    def __init__(self) -> None:
        self.received = [bytearray(SLOT_BYTES) for _ in range(SLOTS)]
        self.staging = [bytearray(SLOT_BYTES) for _ in range(SLOTS)]
        self.posted: list[tuple[int, int, bytes, bytes | tuple[int, int]]] = []

    def result(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(self.received[slot])[:nbytes]

    def result_at(self, slot: int) -> int:
        raise AssertionError("no journal asks")

    def staged(self, slot: int, nbytes: int) -> memoryview:
        return memoryview(self.staging[slot])[:nbytes]

    def post_message(self, msg_id: int, slot: int, header: bytes, payload: tuple[int, int]) -> None:
        self.posted.append((msg_id, slot, header, payload))

    def post_staged(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self.posted.append((msg_id, slot, header, bytes(self.staged(at, nbytes))))

    def post_received(self, msg_id: int, slot: int, header: bytes, at: int, nbytes: int) -> None:
        self.posted.append((msg_id, slot, header, bytes(self.result(at, nbytes))))


class HostTensors:
    """One operation of ``ranks`` ranks: 1024 random elements' bytes each."""

    def __init__(self, dtype: Dtype, ranks: int) -> None:
        numbers = np.random.default_rng([dtype, ranks])
        self.of = [
            bytearray(np.asarray(numbers.standard_normal(1024) * 1000).astype(NUMPY[dtype]).tobytes())
            for _ in range(ranks)
        ]

    @property
    def ranks(self) -> int:
        return len(self.of)

    def views(self, op_index: int, offset: int, nbytes: int) -> list[memoryview]:
        assert op_index == OP_INDEX
        return [memoryview(tensor)[offset : offset + nbytes] for tensor in self.of]

    def operation(self, op_index: int) -> Operation:
        raise AssertionError("no journal asks")

    def payload(self, op_index: int, offset: int, nbytes: int) -> tuple[int, int]:
        assert (op_index, self.ranks) == (OP_INDEX, 1)
        return offset, nbytes


def operation(dtype: Dtype, op: Op = Op.SUM) -> Operation:
    return Operation(OP_INDEX, dtype, op, 1024 * dtype.itemsize, 0)


def message(dtype: Dtype, op: Op, offset: int, kind: type[PostMessage] = PostMessage) -> PostMessage:
    header = InaHeader(
        dtype=dtype,
        op=op,
        flags=0,
        ring_id=1,
        epoch=1,
        op_index=OP_INDEX,
        msg_id=5,
        rank=0,
        ring_size=2,
        msg_len=1,
        signature=0,
        key=0,
    )
    return kind(MsgId(5), 1, header.encode(), OP_INDEX, offset, NBYTES)


@pytest.mark.parametrize("op", list(Op))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_message_has_the_sum_of_the_host_s_ranks_rounded_once(ranks: int, dtype: Dtype, op: Op) -> None:
    slots, tensors = Slots(), HostTensors(dtype, ranks)
    before = [bytes(tensor) for tensor in tensors.of]
    posted = message(dtype, op, 512)
    RingOrders(slots, KeptResults(), tensors).post(posted)
    expected = exact(dtype, op, [tensor[512 : 512 + NBYTES] for tensor in before])
    assert slots.posted == [(5, 1, posted.header, expected)]
    assert [bytes(tensor) for tensor in tensors.of] == before, "inputs are kept until the result is here"


def test_the_transport_repeats_a_sum_though_the_tensors_have_their_result() -> None:
    slots, tensors = Slots(), HostTensors(Dtype.F32, 2)
    orders = RingOrders(slots, KeptResults(), tensors)
    orders.post(message(Dtype.F32, Op.SUM, 0))
    slots.received[0][:NBYTES] = bytes(range(256))
    orders.take(TakeResult(0, OP_INDEX, 0, NBYTES))
    _, slot, _, sent = slots.posted[0]
    assert bytes(slots.staged(slot, NBYTES)) == sent


def test_a_rank_that_is_alone_is_not_copied() -> None:
    slots = Slots()
    posted = message(Dtype.F16, Op.SUM, 64)
    RingOrders(slots, KeptResults(), HostTensors(Dtype.F16, 1)).post(posted)
    assert slots.posted == [(5, 1, posted.header, (64, NBYTES))]
    assert not any(map(any, slots.staging))


def test_a_result_goes_to_all_ranks_and_nowhere_else() -> None:
    slots, tensors = Slots(), HostTensors(Dtype.I32, 3)
    before = [bytes(tensor) for tensor in tensors.of]
    slots.received[2][:NBYTES] = bytes(range(256))
    RingOrders(slots, KeptResults(), tensors).take(TakeResult(2, OP_INDEX, 128, NBYTES))
    for tensor, old in zip(tensors.of, before, strict=True):
        assert bytes(tensor) == old[:128] + bytes(range(256)) + old[128 + NBYTES :]


@pytest.mark.parametrize("kind", [PostKept, PostNeutral])
def test_what_is_no_rank_s_part_is_sent_once_for_the_host(kind: type[PostMessage]) -> None:
    """Kept results and neutral elements are the host's, not added up over its ranks."""
    slots, tensors, kept = Slots(), HostTensors(Dtype.I32, 3), KeptResults()
    slots.received[0][:NBYTES] = bytes(range(256))
    kept.keep([KeptResult(0, operation(Dtype.I32), False, 0, NBYTES, RingId(1), 0)], slots, 0)
    posted = message(Dtype.I32, Op.SUM, 0, kind)
    RingOrders(slots, kept, tensors).post(posted)
    expected = bytes(range(256)) if kind is PostKept else bytes(NBYTES)
    assert slots.posted == [(5, 1, posted.header, expected)]


@pytest.mark.parametrize("source", list(Source))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_in_a_chain_the_host_adds_its_ranks_sum_to_what_has_come(
    ranks: int, dtype: Dtype, source: Source
) -> None:
    slots, tensors, kept = Slots(), HostTensors(dtype, ranks), KeptResults()
    came, result, *_ = HostTensors(dtype, 4).of
    slots.received[0][:NBYTES] = result[:NBYTES]
    kept.keep([KeptResult(0, operation(dtype), False, 0, NBYTES, RingId(1), 0)], slots, 0)
    slots.received[1][:NBYTES] = came[:NBYTES]
    parts = [bytes(tensor[:NBYTES]) for tensor in tensors.of]
    action = Combine(1, NBYTES, Place.RECEIVED, 3, NBYTES, operation(dtype), source, 0, NBYTES)
    RingOrders(slots, kept, tensors).combine(action, Accumulators(ReductionPlan.flat(2)), 1)
    own = {Source.OWN: exact(dtype, Op.SUM, parts), Source.KEPT: bytes(result[:NBYTES])}
    inputs = [bytes(came[:NBYTES]), *([own[source]] if source in own else [])]
    assert bytes(slots.result(3, NBYTES)) == exact(dtype, Op.SUM, inputs)
    assert [bytes(tensor[:NBYTES]) for tensor in tensors.of] == parts
