"""Faults of selective connections: what is kept behind a gap."""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.behind_gap import PacketsBehind
from inaproto.core.rdma.requester import RcRequester
from inaproto.core.rdma.responder import RcResponder
from inaproto.core.rdma.selective_requester import SelectiveRequester
from inaproto.core.rdma.selective_responder import SelectiveResponder
from inaproto.core.switch.emission import Emission
from inaproto.core.switch.region import Region
from inaproto.core.switch.repairs import Repairs, newest_of
from inaproto.core.switch.tree.selective import SelectiveTreeEmission
from tests.conftest import choose_kernels
from tests.planted.planting import fault
from tests.planted.shapes import across_racks

SELECTIVE: Final = "docs/protocol.md 4.4, selective connections"
REPAIRS: Final = "docs/protocol.md 6.14, losses of selective rings"
OF_TREES: Final = "docs/protocol.md 7.8, selective rings through several switches"
BY_KERNELS: Final = "tests/property/test_messages_by_kernels.py"

SELECTIVE_FAULTS: Final = (
    fault(
        "one_too_many_kept_behind_a_gap",
        SELECTIVE,
        "remembers one packet more than those that it has placed behind a gap",
        SelectiveResponder._keep,
        "behind.mark(distance, rows)",
        "behind.mark(distance, rows + 1)",
    ),
    fault(
        "what_closes_a_gap_is_answered_alone",
        SELECTIVE,
        "answers the packet that closes a gap before it looks at those that follow it and came with it",
        RcResponder._run,
        "leading(ahead == np.arange(n - row))",
        "1",
        test=f"{BY_KERNELS}::test_packets_that_close_a_gap_together_have_one_answer_for_all",
        arguments=((), lambda _: None),
    ),
    fault(
        "kept_where_the_gap_is_counted_in",
        SELECTIVE,
        "counts where a kept packet goes from the gap, not from the beginning of its message",
        PacketsBehind.place_of,
        "(distance - begun.at) * self.mtu",
        "distance * self.mtu",
        seeds_max=120,
    ),
    fault(
        "all_asked_for_at_once",
        SELECTIVE,
        "sends all that is missing again when the answer to a timeout shows nothing else",
        SelectiveRequester._lost,
        "self._missing(self._sent)[: self._asking]",
        "self._missing(self._sent)",
    ),
    fault(
        "asking_four_times_as_much",
        SELECTIVE,
        "asks with 4, 16, 64 packets where 2, 4, 8 were meant",
        SelectiveRequester._lost,
        "2 * self._asking",
        "4 * self._asking",
    ),
    fault(
        "asks_with_what_is_acknowledged",
        SELECTIVE,
        "asks with the first packet of each message that is on its way, also if that is acknowledged",
        RcRequester._heads,
        "if self._una < message.first_seq < self._sent:",
        "if message.first_seq < self._sent and message.first_seq != self._una:",
    ),
    fault(
        "short_timer_not_doubled",
        SELECTIVE,
        "sets the short timer as short again when it has passed in vain",
        SelectiveRequester._short_ns,
        " << self._hurried",
        "",
    ),
    fault(
        "short_timer_too_short",
        SELECTIVE,
        "asks after twice the time of an answer, however short that is",
        SelectiveRequester._short_ns,
        "max(SHORTEST_NS, 2 * self._answer_ns)",
        "2 * self._answer_ns",
    ),
    fault(
        "copy_given_up_too_early",
        SELECTIVE,
        "sends a copy again while nothing that was sent after it is there",
        SelectiveRequester._send_again,
        "dict.fromkeys(seqs, self._sent)",
        "dict.fromkeys(seqs, 0)",
    ),
    fault(
        "word_of_a_switch_taken_for_an_acknowledgement",
        REPAIRS,
        "takes what a switch says has come there for acknowledged",
        SelectiveRequester._sequence_nak,
        "return self._transmit(now)",
        "return self._acknowledge(seq, now) + self._transmit(now)",
    ),
    fault(
        "later_word_of_a_switch_only_adds",
        REPAIRS,
        "keeps what a switch has said of a packet when it says that it is missing after all",
        SelectiveRequester._learn,
        "self._arrived & ~said | there",
        "self._arrived | there",
        test="tests/unit/test_rc_selective.py::test_the_latest_word_counts",
    ),
    fault(
        "end_of_the_newest_message_missing",
        REPAIRS,
        "says that packets are missing that its rank has not sent yet",
        Repairs._of_message,
        "region.top[flow.row] if is_newest else region.packets",
        "region.packets",
        test="tests/unit/test_repairs.py::test_the_end_of_a_message_is_missing_when_a_later_one_has_begun",
    ),
    fault(
        "damaged_packet_counts_as_the_newest",
        REPAIRS,
        "takes the last of several packets for the newest that came, though its ICRC is wrong",
        Region.store_fresh,
        "if right < past - offsets.start:",
        "if not right:",
        test="tests/unit/test_aggregator.py::test_of_fresh_packets_the_newest_is_the_last_right_one",
        arguments=((1,), 2),
    ),
    fault(
        "message_that_was_sent_to_last_counts_as_the_newest",
        REPAIRS,
        "takes the message of the packet that came last for the newest of its rank",
        newest_of,
        "flow.entries[repair.place]",
        "flow.entries[flow.latest]",
        test="tests/unit/test_repairs.py::test_the_newest_message_is_not_the_one_whose_packets_came_last",
    ),
    fault(
        "gap_as_long_as_a_sender_says",
        REPAIRS,
        "takes whatever PSNs are between two messages for those of the one between them",
        Repairs._of_message,
        "not 0 < packets <= ring.spec.message_packets",
        "packets < 0",
        test="tests/unit/test_repairs.py"
        "::test_between_messages_whose_psns_leave_no_place_for_another_the_gap_is_unknown",
        arguments=((3, 1),),
    ),
    fault(
        "last_packet_before_a_gap_told_as_there",
        REPAIRS,
        "says with reach 0 that the last packet before a gap of unknown length is missing",
        Repairs.look,
        "end += 1",
        "pass",
        test="tests/unit/test_repairs.py"
        "::test_of_a_last_packet_before_a_gap_of_unknown_length_it_is_said_that_it_is_missing",
    ),
    fault(
        "each_nak_answered_anew",
        REPAIRS,
        "sends lost results again at each NAK that names them",
        Repairs._nak,
        "came >= copies.get(position, position)",
        "came >= position",
        test="tests/unit/test_repairs.py::test_a_copy_is_given_up_when_a_result_that_left_after_it_has_come",
    ),
    fault(
        "twice_at_once_taken_for_asking",
        REPAIRS,
        "takes a packet that came again for one that asks, though its result has yet to leave",
        Emission.one_came_again,
        "if region.is_told(offset):\n        _sender_asks(flow)\n",
        "_sender_asks(flow)\n    if region.is_told(offset):\n",
        test="tests/unit/test_repairs.py::test_a_packet_that_came_twice_at_once_does_not_ask",
        arguments=((), "compiled", choose_kernels),
    ),
    fault(
        "twice_where_no_switch_repairs",
        REPAIRS,
        "sends what was lost twice whoever said so",
        SelectiveRequester._transmit,
        "self._is_repaired and not asks",
        "not asks",
        test="tests/unit/test_rc_selective.py::test_where_no_switch_repairs_nothing_goes_twice",
    ),
    fault(
        "asked_for_more_twice",
        REPAIRS,
        "sends twice what may wait at the switch for a rank that is late",
        SelectiveRequester._transmit,
        "self._is_repaired and not asks",
        "self._is_repaired",
    ),
    fault(
        "many_lost_packets_twice",
        REPAIRS,
        "sends all that was lost twice, however much that is",
        SelectiveRequester._transmit,
        "lost if len(lost) <= TWICE_PACKETS_MAX else lost[-1:]",
        "lost",
        test="tests/unit/test_rc_selective.py"
        "::test_of_many_packets_that_are_lost_the_last_one_alone_goes_twice",
    ),
    fault(
        "last_packet_twice_while_others_are_on_their_way",
        REPAIRS,
        "sends the last packet of each message twice, and not of the only one alone",
        SelectiveRequester._last_again,
        "len(self._messages) == 1 and ",
        "",
        test="tests/unit/test_rc_selective.py::test_while_losses_are_expected_the_last_packet_of_all_goes_twice",
    ),
    fault(
        "first_packet_told_as_there",
        REPAIRS,
        "says of a first packet that is missing that it has come, and that the one behind it is missing",
        Repairs._next_opening,
        "newest.psn0 + newest.packets, 0",
        "newest.psn0 + newest.packets + 1, 0",
        test="tests/unit/test_repairs.py::test_a_rank_is_told_of_a_first_packet_when_others_wait_for_it",
    ),
    fault(
        "acknowledgement_of_a_nak_kept",
        REPAIRS,
        "answers a receiver's NAK and does not tell the sender what it acknowledges",
        Repairs._answer,
        "self._send(ring",
        "psn < 0 and self._send(ring",
    ),
    fault(
        "acknowledgement_of_the_missing_packet",
        REPAIRS,
        "acknowledges to the sender the packet that its receiver misses",
        Repairs._answer,
        "repair, psn - 1, (",
        "repair, psn, (",
    ),
    fault(
        "sum_of_a_rack_sent_as_result",
        OF_TREES,
        "sends what is done at a switch that is not the root, though it is the sum of those below it",
        Region.untold,
        "self._final_bytes",
        "self._done_bytes",
        shape=across_racks,
    ),
    fault(
        "sum_of_a_rack_answered",
        OF_TREES,
        "answers what comes again with the sum of a rack while the result is not here",
        SelectiveTreeEmission._answer,
        "_told(region, begin, end)",
        "[(begin, end)]",
        shape=across_racks,
    ),
    fault(
        "lost_sum_not_sent_up_again",
        OF_TREES,
        "leaves it to later results to bring a sum up again, and the last one has none behind it",
        SelectiveTreeEmission._answer,
        "self.ask_above(ring, region, region.to_ask_again(flow.row, begin, end), actions)",
        "pass",
        shape=across_racks,
    ),
    fault(
        "lost_result_not_sent_down_again",
        OF_TREES,
        "takes a sum that comes up again for one that is told already",
        SelectiveTreeEmission._answer,
        "self._counters.results_down_again += self.send(ring, [flow.link], region, spans, actions)",
        "pass",
        shape=across_racks,
    ),
    fault(
        "repeat_told_nobody",
        OF_TREES,
        "does not tell the switch where a connection ends that its packets came again",
        SelectiveTreeEmission._answer,
        "self.tell(ring, flow, NoteKind.REPEATS, base + begin, end - begin, actions)",
        "pass",
        shape=across_racks,
    ),
    fault(
        "opening_that_waits_forgotten",
        OF_TREES,
        "sends nothing of a message on a connection from elsewhere that was not open there when it was done",
        SelectiveTreeEmission.opened,
        "self._on_learnt(flow, region, consecutive(np.flatnonzero(told)), actions)",
        "pass",
        test="tests/paper/test_protocol_7_8_selective_rings.py"
        "::test_7_8_1_results_wait_until_their_message_opens_where_they_leave",
    ),
)
