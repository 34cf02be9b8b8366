"""Faults of the accelerator: lookup, aggregators, order of results, integrity, bridge, book-keeping."""

from __future__ import annotations

from typing import Final

from inaproto.core.plan import reduce
from inaproto.core.switch import ingest
from inaproto.core.switch.accelerator import Accelerator
from inaproto.core.switch.bridge import Bridge
from inaproto.core.switch.emission import Emission
from inaproto.core.switch.ingest import Ingest
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.region import Region
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.wire.ina_header import Dtype
from tests.planted.planting import CRASHES, Change, PlantedFault, fault
from tests.planted.shapes import (
    late_copies,
    slowly_told,
    sums_of,
    together,
    two_message_window,
    with_mismatch,
)

LOOKUP: Final = "NetReduce 3.2, connection lookup table"
FREEING: Final = "NetReduce 3.2, freeing"
AGGREGATION: Final = "NetReduce 3.1, aggregation"
ORDER: Final = "docs/protocol.md 6.6, order"
INTEGRITY: Final = "docs/protocol.md 6.8, integrity"
KEPT: Final = "NetReduce 3.2, kept results"
ARITHMETIC: Final = "docs/concepts.md, exactness"
SWITCHING: Final = "docs/protocol.md 6.11, everything else"

_WHOLE_SLOT: Final = """\
opened = flow.open_message(MessageEntry(serial, psn, region.packets))
    other = array.region_of(serial + ring.spec.window_messages)
    if other.serial == serial - ring.spec.window_messages and other.ina is not None:
        other.take_over(other.serial, other.ina)
        array.done_high = min(array.done_high, array.frontier - 1)
    if not opened:"""

_STORED_AGAIN: Final = """\
if done.all():
        self.payload.array[rank, offsets, :length] = tail[rows]
        self.done[offsets] = False
        self.pending += len(done)
        self.stored(rank, 0, low, past)
        self.finish()
        return done
    if not had.any():"""

SWITCH_FAULTS: Final = (
    PlantedFault(
        "single_lookup_entry",
        LOOKUP,
        "keeps one message for each connection, as printed",
        (Change(Flow.open_message, "index = entry.serial % len(self.entries)", "index = 0"),),
        shape=two_message_window,
    ),
    PlantedFault(
        "lookup_psn_compared_without_wrap",
        LOOKUP,
        "places packets by the plain difference of PSNs",
        (
            Change(
                Flow.find,
                "(psn - entry.psn0) & self.psn_mask >= entry.packets",
                "not 0 <= psn - entry.psn0 < entry.packets",
            ),
            Change(
                Flow._find,
                "(psn - entry.psn0) & self.psn_mask < entry.packets",
                "0 <= psn - entry.psn0 < entry.packets",
            ),
            Change(
                Flow.locate,
                "(first - entry.psn0) & self.psn_mask >= entry.packets",
                "not 0 <= first - entry.psn0 < entry.packets",
            ),
            Change(
                Flow.locate,
                "left & (offsets < candidate.packets)",
                "left & (psns >= candidate.psn0) & (offsets < candidate.packets)",
            ),
        ),
    ),
    fault(
        "whole_slot_freed",
        FREEING,
        "the first packet of a message frees the slots one window away for all ranks",
        Ingest.opens,
        "if not flow.open_message(MessageEntry(serial, psn, region.packets)):",
        _WHOLE_SLOT,
    ),
    fault(
        "taken_over_from_newer_tenant",
        FREEING,
        "a region goes to whichever message a packet of comes, also to an older one",
        Ingest._open,
        "serial < max(region.serial, array.first_serial)",
        "serial < array.first_serial",
        shape=late_copies,
    ),
    PlantedFault(
        "bitmap_not_cleared",
        FREEING,
        "a message that takes a region over finds the bits of the one before it",
        (Change(Region.take_over, "self._seen_bytes[:] = self._nobody", "pass"),),
    ),
    PlantedFault(
        "done_bits_not_cleared",
        FREEING,
        "a message that takes a region over finds the results of the one before it",
        (Change(Region.take_over, "self._done_bytes[:] = self._nothing", "pass"),),
    ),
    PlantedFault(
        "one_window_of_regions",
        AGGREGATION,
        "holds as many messages as may be in flight, N instead of 2N",
        (Change(RingSpec.regions, "2 * self.window_messages", "self.window_messages"),),
    ),
    fault(
        "buffer_given_back_and_kept",
        AGGREGATION,
        "gives the payload buffer of a finished message back and goes on using it",
        Region.finish,
        "self.pool.give_back(self.payload)\n        self.payload = None",
        "self.pool.give_back(self.payload)",
        shape=two_message_window,
    ),
    PlantedFault(
        "kept_result_recomputed",
        KEPT,
        "stores whatever comes and sums again, though the sender has its result and has reused the buffer",
        (
            Change(
                Region.store,
                "if not had.any():",
                _STORED_AGAIN,
            ),
            Change(
                Region.finish,
                "if self.pending == 0:\n        self.pool.give_back",
                "if False:\n        self.pool.give_back",
            ),
        ),
    ),
    fault(
        "replay_on_all_flows",
        KEPT,
        "answers a resend on the flows of all ranks",
        Emission.replay,
        "self._emit(flow, block[0], actions)",
        "self._emit(flow, block[0], actions)\n"
        "            for other in ring.flows:\n"
        "                if other is not flow:\n"
        "                    one = slice(other.spec.rank, other.spec.rank + 1)\n"
        "                    for more in region.packets_out(one, first, past, self._arena):\n"
        "                        self._emit(other, more[0], actions)",
        test="tests/paper/test_netreduce_3_2_transparency.py::"
        "test_a_lost_result_comes_back_from_the_kept_one_on_its_own_flow_only",
    ),
    fault(
        "replay_sealed_for_first_header",
        KEPT,
        "answers a resend under its own header with the checksum made for the header that came first",
        Region.store,
        "self.share[rank, offsets] = run.header_crc[rows]",
        "if self.payload is not None:\n        self.share[rank, offsets] = run.header_crc[rows]",
    ),
    PlantedFault(
        "result_sent_when_complete",
        ORDER,
        "sends each result as soon as it is complete",
        (
            Change(
                Emission.advance,
                "if touched.serial == serial and not touched.silent and touched.finish():",
                "before = touched.done.copy()\n"
                "        if touched.serial == serial and not touched.silent and touched.finish():\n"
                "            fresh = (touched.done & ~before).nonzero()[0].tolist()\n"
                "            self._results(ring, [(touched, at, at + 1) for at in fresh], actions)",
            ),
            Change(
                Emission.advance,
                "self._results(ring, array.advance(), actions)",
                "array.advance()",
            ),
        ),
    ),
    PlantedFault(
        "gap_signalled_for_every_packet",
        ORDER,
        "lets every later result through while a flow's own packet is missing",
        (Change(Emission._signal_gaps, "if flow.gap_signalled != hole:", "if True:"),),
    ),
    PlantedFault(
        "gap_signalled_on_whole_flows",
        ORDER,
        "lets a later result through on flows whose own packets are all there, too",
        (Change(Emission._signal_gaps, "if not missing.any():", "if False:"),),
    ),
    fault(
        "ack_not_forwarded",
        "docs/protocol.md 6.11, everything else",
        "counts every tenth frame that it switches and forgets to send it",
        Accelerator._pass,
        "for out in self._bridge.egress(dst_mac, port):",
        "for out in self._bridge.egress(dst_mac, port) if self._counters.bridged % 10 else ():",
    ),
    PlantedFault(
        "gap_never_signalled",
        ORDER,
        "holds all that is finished beyond a gap, so only the timer brings the packet again",
        (Change(Emission._signal_gaps, "if flow.gap_signalled != hole:", "if False:"),),
        test="tests/paper/test_netreduce_3_2_transparency.py::"
        "test_a_gap_lets_one_later_result_through_on_its_own_flow_once",
    ),
    PlantedFault(
        "gap_signalled_during_resend",
        ORDER,
        "takes the gap that moves on while a resend comes in for a new one each time",
        (Change(Emission._signal_gaps, "if flow.reached < hole:", "if False:"),),
        test="tests/unit/test_emission.py::"
        "test_a_resend_signals_nothing_though_packets_came_behind_the_gap_after_its_signal",
    ),
    fault(
        "gap_signalled_again_after_resend",
        ORDER,
        "tells a sender that went back, and lost the same packet again, of the same hole once more",
        Emission.replay,
        "flow.replay_next = following",
        "flow.gap_signalled = -1\n    flow.replay_next = following",
        test="tests/unit/test_emission.py::test_a_hole_that_a_resend_leaves_open_is_signalled_no_second_time",
    ),
    PlantedFault(
        "icrc_not_verified_by_switch",
        INTEGRITY,
        "sums what comes in without a look at its checksum",
        (Change(Ingest.general, "if not run.intact():", "if False:"),),
    ),
    PlantedFault(
        "result_icrc_not_recomputed",
        INTEGRITY,
        "sends a first packet's result with the checksum of its payload before its header was marked",
        (Change(Region._packet, "crc = crc32(body[INA_HEADER_BYTES:], crc32(ina))", "pass"),),
    ),
    fault(
        "unplaced_packets_forwarded",
        INTEGRITY,
        "forwards packets that belong to no known message, as a switch does",
        Ingest.general,
        "self._keep_early(ring, flow, port, run)",
        "self._counters.bridged += len(run.frames) - placed\n"
        "        if not placed:\n"
        "            self._emission._emit(flow, run.frames, actions)",
    ),
    PlantedFault(
        "result_not_marked",
        "inaproto.core.switch.accelerator: results are marked",
        "sends results without the flag that tells them from raw payloads",
        (Change(Region.keep_header, "self.ina_bytes[rank, FLAGS_OFFSET] |= FLAG_RESULT", "pass"),),
    ),
    PlantedFault(
        "mismatch_not_detected",
        "docs/protocol.md 6.3, operations that differ",
        "sums messages of one number whatever operations they belong to",
        (Change(ingest._disagreement, "if all(getattr", "if True or all(getattr"),),
        shape=with_mismatch,
    ),
    PlantedFault(
        "sum_in_reverse_order",
        ARITHMETIC,
        "begins the sum with the last rank",
        (Change(reduce.reduce_into, "shape = out.shape", "shape = out.shape\n    inputs = inputs[::-1]"),),
    ),
    fault(
        "sum_in_order_of_arrival",
        ARITHMETIC,
        "begins the sum with the rank whose packet came first",
        Region.finish,
        "array, ina = self.payload.array, self.ina",
        "array, ina = np.roll(self.payload.array, -self.ina.rank, axis=0), self.ina",
    ),
    fault(
        "stale_epoch_accepted",
        LOOKUP,
        "does not compare the epoch of a first packet with its ring's",
        ingest.foreign_field,
        "ina.epoch, ina.rank, ina.ring_size) == (",
        "epoch, ina.rank, ina.ring_size) == (",
        test="tests/paper/test_netreduce_3_2_reliability.py::test_the_switch_sums_for_the_ring_and_its_epoch_alone",
        arguments=("epoch", 4, "wrong epoch"),
    ),
    PlantedFault(
        "wrong_key_accepted",
        LOOKUP,
        "does not compare the key of a first packet with its ring's",
        (Change(ingest.foreign_field, "(ina.ring_id, ina.key,", "(ina.ring_id, spec.key,"),),
        test="tests/paper/test_netreduce_3_2_reliability.py::test_the_switch_sums_for_the_ring_and_its_epoch_alone",
        arguments=("key", 0xBAD, "wrong key"),
    ),
    PlantedFault(
        "bridge_sends_back",
        SWITCHING,
        "floods a frame to all ports, also to the one that it came from",
        (Change(Bridge.egress, "if other != ingress and other not in", "if other not in"),),
        test="tests/paper/test_netreduce_3_2_transparency.py::test_broadcasts_go_to_every_other_port",
    ),
    PlantedFault(
        "half_sums_not_widened",
        ARITHMETIC,
        "adds float16 in float16, rounding after each rank",
        (
            Change(
                reduce._float_sum,
                "total = inputs[0].view(np.float16).astype(np.float32)",
                "total = inputs[0].view(np.float16).copy()",
            ),
            Change(
                reduce._float_sum,
                "_canonical_nan(Dtype.F32, total)\n        out.view(np.float16)",
                "_canonical_nan(Dtype.F16, total)\n        out.view(np.float16)",
            ),
        ),
        shape=sums_of(Dtype.F16),
    ),
    PlantedFault(
        "bf16_truncated",
        ARITHMETIC,
        "cuts the low half of a float32 off instead of rounding to nearest even",
        (Change(reduce._float_sum, "odd += 0x7FFF", "odd[...] = 0"),),
        shape=sums_of(Dtype.BF16),
    ),
    PlantedFault(
        "port_down_forgotten",
        SWITCHING,
        "keeps a port, and the addresses behind it, when its link goes down",
        (Change(Bridge.port_down, "self._ports.pop(port, None)", "return"),),
        swarm=CRASHES,
        shape=slowly_told,
    ),
    PlantedFault(
        "memory_not_given_back",
        "inaproto.core.switch.accelerator: memory is bounded",
        "counts a ring's memory when it comes, not when it goes",
        (Change(Accelerator._remove, "self._memory_bytes -= bytes_needed(ring.spec)", "pass"),),
    ),
    PlantedFault(
        "lookup_entries_left",
        LOOKUP,
        "removes a ring without its connections",
        (Change(Accelerator._remove, "self._table.remove(flow.spec)", "pass"),),
    ),
    fault(
        "removed_connections_bridged",
        "inaproto.core.switch.accelerator: raw payloads of a removed ring",
        "forgets the connections of a ring at once; what its ranks still send passes raw",
        Accelerator._remove,
        "self._retired[flow.spec.connection] = Instant(now + self._config.retired_ns)",
        "pass",
        test="tests/unit/test_accelerator_hard_cases.py::"
        "test_packets_in_flight_of_a_removed_ring_never_reach_a_receiver",
    ),
    PlantedFault(
        "template_outlives_ring",
        "inaproto.core.switch.ingest: the quick way",
        "goes on recognising middle packets of a ring that was removed",
        (Change(Ingest.forget, "if known[0] is not flow", "if True or flow"),),
        swarm=CRASHES,
        shape=together,
    ),
    fault(
        "drop_not_counted",
        "the ledger: every frame is accounted for",
        "drops packets with a wrong checksum without a trace",
        Ingest.general,
        'self._counters.drop("wrong ICRC", int(len(right) - right.sum()))',
        "pass",
    ),
)
