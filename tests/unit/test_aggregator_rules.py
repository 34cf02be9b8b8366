"""Regions of the aggregator array: packets in any order and number, what is counted, edges of messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from inaproto.core.plan.aggregation_tree import TreeSwitch
from inaproto.core.switch.aggregator import AggregatorArray, bytes_needed
from inaproto.core.switch.lookup_table import LookupTable
from inaproto.core.switch.message_packets import packet_fault, without_rank
from inaproto.core.switch.packet_memory import OutputArena, PayloadPool
from inaproto.core.switch.region import Region
from inaproto.core.switch.region_kernels import LastPacket
from inaproto.core.switch.tree.region import TreeRegion
from inaproto.core.switch.tree.ring import install_tree
from inaproto.wire import icrc
from inaproto.wire.ina_header import Dtype, InaHeader, Op
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import FlowTemplate, RoceRun, decode_runs
from inaproto_hil.bench.traffic import Sender, ring_spec
from tests.unit.exact_reference import exact
from tests.unit.switched_tree import SwitchedTree

PACKETS, MTU = 10, 64
SPEC = ring_spec(3, window=2, packets=PACKETS, mtu=MTU)


def ina(serial: int = 0, packets: int = PACKETS) -> InaHeader:
    return Sender(SPEC, 0, 0).header(serial, packets, Dtype.I32, Op.SUM, 0, True)


def message(rank: int) -> list[RoceRun]:
    """First, middles and last packet of message 0, as runs."""
    data = np.random.default_rng(rank).integers(0, 256, PACKETS * MTU - 40, np.uint8)
    found = []
    for block in Sender(SPEC, rank, 100 * rank).message(0, data, dtype=Dtype.I32):
        for run in decode_runs(block):
            assert isinstance(run, RoceRun)
            found.append(run)
    assert [len(run.frames) for run in found] == [1, PACKETS - 2, 1]
    return found


MESSAGES = [message(rank) for rank in range(3)]


def fresh_region() -> Region:
    region = Region(3, PACKETS, MTU, PayloadPool(3, PACKETS, MTU))
    region.take_over(0, ina())
    last = MESSAGES[0][2]
    region.last = LastPacket(last.opcode, last.header_bytes, last.payload_bytes, last.pad)
    return region


def middles(rank: int, offsets: list[int]) -> RoceRun:
    """These middle packets as one run, in the order given."""
    (run,) = decode_runs(MESSAGES[rank][1].frames[[offset - 1 for offset in offsets]])
    assert isinstance(run, RoceRun)
    return run


def is_consistent(region: Region) -> bool:
    """What is counted is what the bitmaps say."""
    used = region.seen[:, : region.packets]
    return (
        region.missing == int((~used).sum())
        and region.pending == region.packets - int(region.done.sum())
        and region.silent == {rank for rank in range(3) if not used[rank].any()}
    )


def results(region: Region) -> list[bytes]:
    """Payloads of the finished middle packets, by offset."""
    return [region.result[offset].tobytes() for offset in range(1, PACKETS - 1) if region.done[offset]]


def expected(offset: int) -> bytes:
    payloads = [MESSAGES[rank][1].payload()[offset - 1].tobytes() for rank in range(3)]
    return exact(Dtype.I32, Op.SUM, payloads)


OFFSETS = st.lists(st.integers(1, PACKETS - 2), min_size=1, max_size=6, unique=True)


@given(st.lists(st.tuples(st.integers(0, 2), OFFSETS, st.booleans()), min_size=1, max_size=14))
def test_packets_in_any_order_and_again_leave_the_sum_of_all(
    arrivals: list[tuple[int, list[int], bool]],
) -> None:
    """``finish`` is asked after some arrivals only; packets that were finished may come again."""
    region = fresh_region()
    sent: list[set[int]] = [set(), set(), set()]
    for rank, offsets, ask in arrivals:
        run = middles(rank, offsets)
        done = region.done[np.array(offsets)].copy()
        answered = region.store(rank, run, slice(0, len(offsets)), np.array(offsets, np.intp))
        assert (answered is None) == (not done.any())
        assert answered is None or answered.tolist() == done.tolist()
        sent[rank] |= set(offsets)
        assert is_consistent(region)
        if ask:
            before = int(region.done.sum())
            assert region.finish() == int(region.done.sum()) - before
            assert is_consistent(region)
            assert {int(at) for at in np.flatnonzero(region.done)} == set.intersection(*sent)
    region.finish()
    finished = sorted(set.intersection(*sent))
    assert [int(at) for at in np.flatnonzero(region.done)] == finished
    assert results(region) == [expected(offset) for offset in finished]


def test_the_payload_that_fills_a_slot_is_the_last_one_in_it() -> None:
    """Also where nobody has added up yet: kernels do at once, and both ways must say the same."""
    region = fresh_region()
    for rank in range(3):
        region.store(rank, middles(rank, [1, 2]), slice(0, 2), slice(1, 3))
    assert region.store(0, middles(0, [5, 6]), slice(0, 2), slice(1, 3)) is None
    assert region.finish() == 2
    assert results(region) == [expected(1), expected(2)]


@pytest.mark.parametrize("scattered", [False, True])
def test_a_block_of_which_some_is_finished_already(scattered: bool) -> None:
    """Only what is not finished is stored: a later payload must not change a result, nor miss its slot."""
    region = fresh_region()
    every = list(range(1, PACKETS - 1))
    for rank in (1, 2):
        region.store(rank, middles(rank, every), slice(0, 8), slice(1, 9))
    region.store(0, middles(0, [1, 2, 3]), slice(0, 3), slice(1, 4))
    assert region.finish() == 3
    offsets = [5, 2, 6, 3] if scattered else [2, 3, 4, 5]
    where = np.array(offsets, np.intp) if scattered else slice(2, 6)
    done = region.store(0, middles(0, offsets), slice(0, 4), where)
    assert np.asarray(done).tolist() == [offset <= 3 for offset in offsets]
    assert is_consistent(region)
    assert region.finish() == 2
    assert region.finished_last == max(offsets)
    finished = sorted({1, 2, 3, *offsets})
    assert results(region) == [expected(offset) for offset in finished]


def test_a_block_of_which_nothing_is_finished_although_others_are() -> None:
    region = fresh_region()
    every = list(range(1, PACKETS - 1))
    for rank in (1, 2):
        region.store(rank, middles(rank, every), slice(0, 8), slice(1, 9))
    region.store(0, middles(0, [1, 2]), slice(0, 2), slice(1, 3))
    assert region.finish() == 2
    assert region.store(0, middles(0, [5, 6]), slice(0, 2), slice(5, 7)) is None
    assert is_consistent(region)
    assert region.finish() == 2
    assert results(region) == [expected(offset) for offset in (1, 2, 5, 6)]


def test_fresh_packets_below_the_highest_may_fill_a_hole() -> None:
    region = fresh_region()
    for offsets in ([4, 5], [1, 2]):
        run = middles(1, offsets)
        where = slice(offsets[0], offsets[-1] + 1)
        stored = region.store_fresh(1, where, run.payload(), run.headers_view, run.header_crc, run.icrc)
        assert stored == 2
        assert is_consistent(region)
    run = middles(1, [2, 3])
    stored = region.store_fresh(1, slice(2, 4), run.payload(), run.headers_view, run.header_crc, run.icrc)
    assert stored is None, "one of them was there"
    assert is_consistent(region)


def test_a_message_of_two_packets_has_no_middle() -> None:
    region = Region(2, PACKETS, MTU, PayloadPool(2, PACKETS, MTU))
    region.take_over(0, ina(packets=2))
    data = np.ones(2 * MTU - 40, np.uint8)
    for rank in (0, 1):
        for offset, block in enumerate(Sender(SPEC, rank, 0).message(0, data, dtype=Dtype.I32)):
            (run,) = decode_runs(block)
            assert isinstance(run, RoceRun)
            region.last = LastPacket(run.opcode, run.header_bytes, run.payload_bytes, run.pad)
            region.store(rank, run, slice(0, 1), slice(offset, offset + 1))
    assert region.finish() == 2
    blocks = region.packets_out(slice(0, 2), 0, 2, OutputArena(1 << 20))
    assert [block.shape[:2] for block in blocks] == [(2, 1), (2, 1)]
    assert all(icrc.verify(row.tobytes()) for block in blocks for row in block[:, 0])


def test_the_first_slot_without_a_result_is_looked_for_from_where_one_says() -> None:
    region = fresh_region()
    assert region.done_until(0) == 0
    region.done[2:5] = True
    assert [region.done_until(begin) for begin in (0, 1, 2, 3, 4, 5)] == [0, 1, 5, 5, 5, 5]
    region.done[5:] = True
    assert region.done_until(2) == PACKETS
    region.take_over(4, ina(4, packets=3))
    region.done[:3] = True
    assert region.done_until(1) == 3, "the message's length, not the region's"


def test_packets_alone_and_in_runs_are_counted_alike() -> None:
    region = fresh_region()
    for offset in (1, 4, 6):
        run = middles(1, [offset])
        frame = run.frames[0].tobytes()
        share = int(run.header_crc[0])
        assert region.store_single(1, offset, frame[:54], memoryview(frame)[54:-4], share)
        assert is_consistent(region)
    region.store(1, middles(1, [3, 4, 5]), slice(0, 3), slice(3, 6))
    assert is_consistent(region)
    assert region.seen[1].tolist() == [offset in {1, 3, 4, 5, 6} for offset in range(PACKETS)]


def taken_by(regions: Sequence[Region]) -> int:
    """Bytes; 200 for each row that is cut. The marked headers of first packets are left out, being few."""
    taken = 0
    for region in regions:
        assert region.payload is not None
        arrays: list[NDArray[Any]] = [region.header, region.share, region.seen, region.payload.array]
        arrays += [region.result, region.result_crc, region.done]
        if isinstance(region, TreeRegion):
            arrays += [region.asked, region.passed, region.final]
        taken += sum(part.nbytes for part in arrays)
        taken += 200 * (sum(map(len, region.payload.cuts)) + len(region.result_cuts))
    return taken


def test_memory_needed_is_what_the_arrays_take() -> None:
    array = AggregatorArray(SPEC)
    for serial, region in enumerate(array.regions):
        region.take_over(serial, ina(serial))
    assert bytes_needed(SPEC) == taken_by(array.regions)


def test_memory_needed_in_the_middle_of_a_tree_is_what_the_arrays_take() -> None:
    """Two inputs, one more connection that is delivered there, a switch below and one above: five rows."""
    tree = SwitchedTree(TreeSwitch("S", (TreeSwitch("M", (0, TreeSwitch("L", (1, 2)))), 3)))
    spec = tree.specs()["M"]
    assert spec.role is not None
    assert (spec.role.ranks, spec.role.learns, len(spec.role.children)) == ((0,), (3,), 1)
    regions = install_tree(spec, spec.role, LookupTable()).tree_array.regions
    for serial, region in enumerate(regions):
        region.take_over(serial, tree.hosts.header(0, serial, spec.message_packets))
    assert bytes_needed(spec) == taken_by(regions)


# -- positions


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_message_ids_reach_half_of_their_numbers_back_and_forth(bits: int) -> None:
    array = AggregatorArray(dataclasses.replace(SPEC, window_messages=1, msg_id_bits=bits))
    half = 1 << (bits - 1)
    for array.next_serial in (0, 5, half, 3 * half + 1):
        for distance in (-half, 1 - half, -half // 2 - 1, -1, 0, 1, half // 2, half - 1):
            serial = array.next_serial + distance
            assert array.serial_of(serial % (1 << bits)) == serial


def test_the_position_after_the_last_packet_of_a_short_message_begins_the_next() -> None:
    array = AggregatorArray(SPEC)
    array.region_of(1).take_over(1, ina(1, packets=3))
    array.region_of(2).take_over(2, ina(2))
    assert [array.after(PACKETS + offset) for offset in (0, 1, 2)] == [11, 12, 20]
    assert [array.after(2 * PACKETS + offset) for offset in (0, 8, 9)] == [21, 29, 30]


def test_spans_never_are_empty() -> None:
    array = AggregatorArray(SPEC)
    for serial, packets in ((0, 3), (1, 5), (2, PACKETS)):
        array.region_of(serial).take_over(serial, ina(serial, packets=packets))

    def spans(begin: int, end: int) -> list[tuple[int, int, int]]:
        return [(region.serial, low, high) for region, low, high in array.spans_from(begin, end)]

    assert spans(3, 10) == []
    assert spans(2, 10) == [(0, 2, 3)]
    assert spans(3, 12) == [(1, 0, 2)]
    assert spans(3, 20) == [(1, 0, 5)]
    assert spans(14, 21) == [(1, 4, 5), (2, 0, 1)]
    assert spans(15, 20) == []


def test_what_ranks_must_agree_on_is_all_of_the_header_but_the_rank() -> None:
    header = bytes(range(40))
    assert without_rank(header) == bytes([*range(24), *range(26, 40)])


# -- layouts


def last_packet(nbytes: int) -> RoceRun:
    flow = FlowTemplate(b"\2" * 6, b"\4" * 6, b"\1" * 4, b"\3" * 4, 1, 2)
    frames = flow.build(
        opcode=Opcode.RC_WRITE_LAST,
        psns=np.array([1]),
        ack_request=np.array([False]),
        ip_id=0,
        payload=np.zeros((1, nbytes), np.uint8),
    )
    (run,) = decode_runs(frames)
    assert isinstance(run, RoceRun)
    return run


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 61, 62, 63, 64])
def test_last_packets_of_any_length_up_to_the_mtu(nbytes: int) -> None:
    assert packet_fault(last_packet(nbytes), slice(3, 4), 4, MTU) is None


def test_pads_that_are_wrong_are_named() -> None:
    run = last_packet(61)
    run.pad = 1
    assert packet_fault(run, slice(3, 4), 4, MTU) == "1 pad bytes behind 61"
    assert packet_fault(last_packet(65), slice(3, 4), 4, MTU) == "65 payload bytes; the MTU is 64"
    assert packet_fault(last_packet(0), slice(3, 4), 4, MTU) == "0 payload bytes; the MTU is 64"
