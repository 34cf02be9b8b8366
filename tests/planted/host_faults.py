"""Faults of hosts with several ranks of a job: what they add, when they post it, who gets the result."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.gathering import Gathering
from inaproto.core.host.local_reduction import Slice, reduce_parts
from inaproto.core.host.performer import RingOrders
from tests.planted.planting import Change, PlantedFault, fault
from tests.planted.shapes import alone, crowded, crowded_bfloat16, crowded_chain

LOCAL: Final = "NetReduce section 3.4, reduce inside the machine; inaproto.core.host.local_reduction"
GATHERING: Final = "NetReduce section 3.4; inaproto.core.host.gathering"

HOST_FAULTS: Final = (
    fault(
        "host_adds_in_another_order",
        LOCAL,
        "adds the parts of a host's ranks from the last to the first",
        RingOrders.post,
        "reduce_parts(*_called(action), parts,",
        "reduce_parts(*_called(action), parts[::-1],",
        shape=crowded,
    ),
    fault(
        "host_posts_its_first_part",
        LOCAL,
        "sends the part of the host's first rank for that of all",
        RingOrders.post,
        "reduce_parts(*_called(action), parts,",
        "reduce_parts(*_called(action), parts[:1],",
        shape=crowded,
    ),
    fault(
        "host_rounds_every_addition",
        LOCAL,
        "adds two parts after two parts, each time rounded",
        reduce_parts,
        "reduce_to_all(dtype, op, inputs, [np.frombuffer(out, np.uint8)])",
        "[reduce_to_all(dtype, op, [np.frombuffer(out, np.uint8).copy() if at else inputs[0], part], "
        "[np.frombuffer(out, np.uint8)]) for at, part in enumerate(inputs[1:])]",
        shape=crowded_bfloat16,
    ),
    fault(
        "result_for_the_first_rank",
        LOCAL,
        "copies a result to the host's first rank alone",
        RingOrders.take,
        "self._tensors.views(op_index, offset, nbytes)",
        "self._tensors.views(op_index, offset, nbytes)[:1]",
        shape=crowded,
    ),
    PlantedFault(
        "posted_before_the_last_rank_called",
        GATHERING,
        "starts an all-reduce as soon as one rank of the host has called it",
        (
            Change(Gathering.take, "not all(calls)", "not any(calls)"),
            Change(
                Gathering.take,
                "each.popleft() for each in calls]",
                "each.popleft() for each in calls if each]",
            ),
        ),
        shape=crowded,
    ),
    PlantedFault(
        "chain_takes_the_first_part",
        LOCAL,
        "adds the part of the host's first rank alone to what a chain brings",
        (Change(RingOrders._own, "if len(parts) == 1:", "if parts:"),),
        shape=crowded_chain,
    ),
    PlantedFault(
        "sum_of_one_host_not_copied",
        LOCAL,
        "adds for ranks of one host, and leaves the sum with the first of them",
        (Change(Slice.block, "operation.op, parts, parts)", "operation.op, parts, parts[:1])"),),
        shape=alone,
    ),
)
