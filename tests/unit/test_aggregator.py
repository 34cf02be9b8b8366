"""Aggregator array: spans, output memory, payload pool, regions and their tenants, the frontier."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.switch.aggregator import AggregatorArray, bytes_needed
from inaproto.core.switch.message_packets import packet_fault
from inaproto.core.switch.packet_memory import OutputArena, PayloadPool
from inaproto.core.switch.region import Region, spans_of
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.wire import icrc
from inaproto.wire.ina_header import FLAG_RESULT, FLAGS_OFFSET, Dtype, InaHeader, Op
from inaproto.wire.vector import RoceRun, decode_runs
from inaproto_hil.bench.traffic import Sender, ring_spec
from tests.unit.exact_reference import exact

SPEC = ring_spec(3, window=2, packets=4, mtu=64)


def ina(serial: int = 0, packets: int = 4) -> InaHeader:
    return Sender(SPEC, 0, 0).header(serial, packets, Dtype.I32, Op.SUM, 0, True)


def runs(rank: int, serial: int = 0, nbytes: int = 4 * 64 - 40) -> list[RoceRun]:
    """The packets of a message of ``rank`` as runs: first, middles, last."""
    data = np.random.default_rng((serial, rank)).integers(0, 256, nbytes, np.uint8)
    blocks = Sender(SPEC, rank, 100 * rank).message(serial, data, dtype=Dtype.I32)
    found = [run for block in blocks for run in decode_runs(block)]
    assert all(isinstance(run, RoceRun) for run in found)
    return [run for run in found if isinstance(run, RoceRun)]


# -- spans


@given(st.lists(st.booleans(), max_size=40))
def test_spans_are_the_maximal_runs_of_true(mask: list[bool]) -> None:
    spans = spans_of(np.array(mask, np.bool_))
    rebuilt = [False] * len(mask)
    for begin, end in spans:
        assert begin < end
        rebuilt[begin:end] = [True] * (end - begin)
    assert rebuilt == mask
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


# -- output memory


def test_output_of_one_step_never_overlaps() -> None:
    arena = OutputArena(1 << 20)
    arena.reset()
    taken = [arena.take(2, 3, size) for size in (70, 58, 1000, 62, 9000)]
    for number, block in enumerate(taken):
        assert block.shape[:2] == (2, 3)
        block[...] = number
    assert all((block == number).all() for number, block in enumerate(taken))


def test_output_memory_is_used_again_and_grows_to_what_a_step_needed() -> None:
    arena = OutputArena(1 << 20)
    arena.reset()
    small = arena.take(1, 1, 100)
    large = arena.take(1, 1, 200_000)
    assert not np.shares_memory(small, large), "a request beyond the buffer gets memory of its own"
    arena.reset()
    first, second = arena.take(1, 1, 100), arena.take(1, 1, 200_000)
    assert first.base is not None
    assert first.base is second.base
    arena.reset()
    assert np.shares_memory(arena.take(1, 1, 100), first)


def test_output_memory_does_not_grow_beyond_its_limit() -> None:
    arena = OutputArena(100_000)
    for _ in range(3):
        arena.reset()
        kept = arena.take(1, 1, 60_000)
        extra = arena.take(1, 1, 150_000)
        assert not np.shares_memory(kept, extra)
        assert extra.shape == (1, 1, 150_000)


# -- payload pool


def test_the_pool_hands_out_what_came_back_last() -> None:
    pool = PayloadPool(2, 3, 64)
    one, two = pool.take(), pool.take()
    assert one.array.shape == (2, 3, 64)
    assert not np.shares_memory(one.array, two.array)
    pool.give_back(one)
    pool.give_back(two)
    assert pool.take() is two
    assert pool.take() is one
    assert [len(cuts) for cuts in one.cuts] == [3, 3]
    one.array[1, 2] = 9
    assert bytes(one.cuts[1][2]) == bytes([9]) * 64


def test_an_array_holds_payloads_only_for_messages_in_progress() -> None:
    pool = PayloadPool(3, 4, 64)
    region = Region(3, 4, 64, pool)
    for serial in (0, 4):
        region.take_over(serial, ina(serial))
        held = region.payload
        assert held is not None
        fill(region, serial)
        assert region.finish() == 4
        assert region.payload is None
        assert pool.take() is held
        pool.give_back(held)


# -- regions


def fill(region: Region, serial: int, ranks: tuple[int, ...] = (0, 1, 2)) -> None:
    for rank in ranks:
        first, middle, last = runs(rank, serial)
        store(region, rank, first, slice(0, 1))
        store(region, rank, middle, slice(1, 3))
        store(region, rank, last, slice(3, 4))


def store(region: Region, rank: int, run: RoceRun, offsets: slice) -> object:
    if offsets.stop == region.packets and region.last is None:
        region.last = LastPacket(run.opcode, run.header_bytes, run.payload_bytes, run.pad)
    return region.store(rank, run, slice(0, len(run.frames)), offsets)


def fresh_region(serial: int = 0) -> Region:
    region = Region(3, 4, 64, PayloadPool(3, 4, 64))
    region.take_over(serial, ina(serial))
    return region


def out(region: Region, rank: int, begin: int = 0, end: int = 4) -> list[bytes]:
    arena = OutputArena(1 << 20)
    blocks = region.packets_out(slice(rank, rank + 1), begin, end, arena)
    return [row.tobytes() for block in blocks for row in block[0]]


def test_nothing_is_finished_until_every_rank_has_sent() -> None:
    region = fresh_region()
    fill(region, 0, (0, 2))
    assert region.finish() == 0
    first, middle, last = runs(1)
    store(region, 1, middle, slice(1, 3))
    assert region.finish() == 2
    assert region.finished_last == 2
    assert region.done.tolist() == [False, True, True, False]
    store(region, 1, first, slice(0, 1))
    store(region, 1, last, slice(3, 4))
    assert region.finish() == 2
    assert region.finished_last == 3


def test_results_go_out_under_each_rank_s_headers_sealed_and_exact() -> None:
    region = fresh_region()
    fill(region, 0)
    region.finish()
    inputs = [[row.tobytes() for run in runs(rank) for row in run.frames] for rank in range(3)]
    begins = [70 + 40, 54, 54, 58]
    for rank in range(3):
        for offset, frame in enumerate(out(region, rank)):
            begin = begins[offset]
            payloads = [inputs[other][offset][begin:-4] for other in range(3)]
            head = bytearray(inputs[rank][offset][:begin])
            if offset == 0:
                head[70 + FLAGS_OFFSET] |= FLAG_RESULT
            assert frame[:begin] == bytes(head)
            assert frame[begin:-4] == exact(Dtype.I32, Op.SUM, payloads)
            assert icrc.verify(frame)


def test_packets_one_at_a_time_finish_as_all_at_once() -> None:
    whole, single = fresh_region(), fresh_region()
    fill(whole, 0)
    assert whole.finish() == 4
    finished = []
    for offset, rank in zip(
        (2, 2, 0, 3, 2, 0, 1, 0, 1, 3, 3, 1), (0, 1, 2, 1, 2, 0, 2, 1, 1, 0, 2, 0), strict=True
    ):
        run = runs(rank)[(0, 1, 1, 2)[offset]]
        frame = run.frames[1 if offset == 2 else 0].tobytes()
        if offset == 3:
            single.last = LastPacket(run.opcode, run.header_bytes, run.payload_bytes, run.pad)
        share = int(run.header_crc[1 if offset == 2 else 0])
        arguments = (rank, offset, frame[: run.header_bytes], memoryview(frame)[run.header_bytes : -4], share)
        assert single.store_single(*arguments)
        assert not single.store_single(*arguments), "a slot is filled once"
        if offset == 0:
            single.keep_header(rank, np.frombuffer(frame, np.uint8)[run.header_bytes :][:40])
        if single.finish():
            finished.append(single.finished_last)
        assert single.finish() == 0
    assert finished == [2, 0, 3, 1]
    for rank in range(3):
        apart = [packet for offset in range(4) for packet in out(single, rank, offset, offset + 1)]
        assert apart == out(single, rank) == out(whole, rank)


def test_a_packet_that_comes_again_changes_headers_but_not_the_result() -> None:
    region = fresh_region()
    fill(region, 0)
    region.finish()
    before = out(region, 1)
    sender = Sender(SPEC, 1, 100)
    sender.message(0, np.zeros(4 * 64 - 40, np.uint8), dtype=Dtype.I32)
    sender.psn = 100
    blocks = sender.message(0, np.zeros(4 * 64 - 40, np.uint8), dtype=Dtype.I32)
    (again,) = decode_runs(blocks[1])
    assert isinstance(again, RoceRun)
    done = store(region, 1, again, slice(1, 3))
    assert np.asarray(done).tolist() == [True, True]
    after = out(region, 1)
    assert [frame[54:-4] for frame in after] == [frame[54:-4] for frame in before]
    assert after[1][18:20] != before[1][18:20], "the IP id is that of the latest packet"
    assert all(icrc.verify(frame) for frame in after)


def test_a_new_tenant_starts_empty() -> None:
    region = fresh_region()
    fill(region, 0)
    region.finish()
    region.take_over(4, ina(4, packets=2))
    assert (region.serial, region.packets, region.last) == (4, 2, None)
    assert not region.seen.any()
    assert not region.done.any()
    assert region.finish() == 0


def store_fresh(region: Region, rank: int, run: RoceRun, offsets: slice) -> int | None:
    return region.store_fresh(rank, offsets, run.payload(), run.headers_view, run.header_crc, run.icrc)


def test_fresh_packets_with_a_wrong_icrc_are_as_if_they_never_came() -> None:
    region = fresh_region()
    _, middle, _ = runs(1)
    middle.frames[1, 60] ^= 1
    (damaged,) = decode_runs(middle.frames)
    assert isinstance(damaged, RoceRun)
    assert store_fresh(region, 1, damaged, slice(1, 3)) == 1
    assert region.seen[1].tolist() == [False, True, False, False]
    _, whole, _ = runs(1)
    assert store_fresh(region, 1, whole, slice(1, 3)) is None, "one slot was filled before"


@pytest.mark.parametrize(("harmed", "top"), [((), 3), ((0,), 3), ((1,), 2), ((0, 1), 0)])
def test_of_fresh_packets_the_newest_is_the_last_right_one(harmed: tuple[int, ...], top: int) -> None:
    region = fresh_region()
    _, middle, _ = runs(1)
    for row in harmed:
        middle.frames[row, 60] ^= 1
    (run,) = decode_runs(middle.frames)
    assert isinstance(run, RoceRun)
    assert store_fresh(region, 1, run, slice(1, 3)) == 2 - len(harmed)
    assert region.top == [0, top, 0]
    assert (1 in region.silent) is (top == 0)


# -- layouts


@pytest.mark.parametrize(
    ("opcode", "low", "high", "packets", "payload", "right"),
    [
        (0x06, 0, 0, 4, 64, True),
        (0x06, 1, 1, 4, 64, False),
        (0x06, 0, 0, 1, 64, False),
        (0x06, 0, 0, 4, 60, False),
        (0x07, 1, 2, 4, 64, True),
        (0x07, 0, 1, 4, 64, False),
        (0x07, 2, 3, 4, 64, False),
        (0x07, 1, 2, 4, 32, False),
        (0x08, 3, 3, 4, 64, True),
        (0x09, 3, 3, 4, 4, True),
        (0x09, 3, 3, 4, 0, False),
        (0x09, 3, 3, 4, 68, False),
        (0x09, 2, 2, 4, 64, False),
        (0x08, 0, 0, 1, 64, False),
        (0x0A, 0, 0, 1, 48, True),
        (0x0B, 0, 0, 1, 64, True),
        (0x0B, 0, 0, 2, 64, False),
    ],
)
def test_where_a_packet_may_stand(
    opcode: int, low: int, high: int, packets: int, payload: int, right: bool
) -> None:
    run = dataclasses.replace(runs(0)[1], opcode=opcode, payload_bytes=payload)
    for offsets in (slice(low, high + 1), np.arange(low, high + 1)):
        assert (packet_fault(run, offsets, packets, 64) is None) == right


# -- the array


def test_memory_needed_grows_with_ranks_and_slots() -> None:
    assert bytes_needed(ring_spec(4, window=2, packets=4, mtu=64)) > bytes_needed(SPEC)
    array = AggregatorArray(SPEC)
    held = sum(
        part.nbytes
        for region in array.regions
        for part in (region.header, region.share, region.seen, region.done, region.result, region.result_crc)
    )
    payloads = SPEC.regions * SPEC.size * SPEC.message_packets * SPEC.mtu
    ina_headers = SPEC.regions * SPEC.size * 40
    assert held + payloads <= bytes_needed(SPEC) + ina_headers


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_message_ids_unwrap_to_the_serial_nearest_to_the_frontier(bits: int) -> None:
    array = AggregatorArray(dataclasses.replace(SPEC, msg_id_bits=bits))
    span = 1 << bits
    for frontier in (0, 3, span - 1, span, 5 * span + 2):
        array.next_serial = frontier
        for serial in range(frontier - 2 * SPEC.window_messages, frontier + SPEC.window_messages + 1):
            assert array.serial_of(serial % span) == serial


def test_the_frontier_passes_finished_packets_across_messages_and_stops_at_a_hole() -> None:
    array = AggregatorArray(SPEC)
    for serial in (0, 1):
        region = array.region_of(serial)
        region.take_over(serial, ina(serial))
        fill(region, serial)
        region.finish()
    array.region_of(1).done[2] = False
    assert [(r.serial, a, b) for r, a, b in array.advance()] == [(0, 0, 4), (1, 0, 2)]
    assert array.frontier == 4 + 2
    assert array.advance() == []
    array.region_of(1).done[2] = True
    assert [(r.serial, a, b) for r, a, b in array.advance()] == [(1, 2, 4)]
    assert (array.next_serial, array.next_offset) == (2, 0)


def test_the_frontier_does_not_pass_an_older_tenant() -> None:
    array = AggregatorArray(SPEC)
    region = array.region_of(4)
    region.take_over(4, ina(4))
    fill(region, 4)
    region.finish()
    assert array.advance() == []


def test_spans_are_what_the_array_still_holds() -> None:
    array = AggregatorArray(SPEC)
    array.region_of(0).take_over(0, ina(0, packets=2))
    array.region_of(2).take_over(2, ina(2))
    assert [(r.serial, a, b) for r, a, b in array.spans_from(1, 11)] == [(0, 1, 2), (2, 0, 3)]
    array.region_of(4).take_over(4, ina(4))
    assert [(r.serial, a, b) for r, a, b in array.spans_from(0, 17)] == [(2, 0, 4), (4, 0, 1)]
