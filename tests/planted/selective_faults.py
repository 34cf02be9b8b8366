"""Faults of selective connections: what is kept behind a gap."""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.behind_gap import PacketsBehind
from inaproto.core.rdma.selective_responder import SelectiveResponder
from inaproto.core.switch.aggregator import Region
from inaproto.core.switch.tree.selective import SelectiveTreeEmission
from tests.planted.planting import fault
from tests.planted.shapes import across_racks

SELECTIVE: Final = "docs/protocol.md 4.4, selective connections"
OF_TREES: Final = "docs/protocol.md 7.8, selective rings through several switches"

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
        "kept_where_the_gap_is_counted_in",
        SELECTIVE,
        "counts where a kept packet goes from the gap, not from the beginning of its message",
        PacketsBehind.place_of,
        "(distance - begun.at) * self.mtu",
        "distance * self.mtu",
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
