"""Faults of collectives, which are carried out as all-reduces: what is added, and what tells two apart."""

from __future__ import annotations

from typing import Final

from inaproto.client import collectives
from inaproto.client.collectives import Collective
from inaproto.client.communicator import AnyCommunicator
from inaproto.core.rendezvous.disputes import Dispute
from tests.planted.planting import PlantedFault, fault

MOVED: Final = "docs/protocol.md 11, call; inaproto.client.collectives"
NAMED: Final = "docs/protocol.md 11, named"
DISPUTES: Final = "docs/protocol.md 12.6, different calls"
TESTS: Final = "tests/unit/test_collectives.py"
RENDEZVOUS: Final = "tests/unit/test_rendezvous_disputes.py"

COLLECTIVE_FAULTS: Final[tuple[PlantedFault, ...]] = (
    fault(
        "broadcast_adds_all",
        MOVED,
        "broadcasts by a sum to which every rank adds what it has",
        collectives.broadcast,
        "source if rank == root else source.nbytes for",
        "source for",
        test=f"{TESTS}::test_a_list_is_broadcast_as_one_vector",
    ),
    fault(
        "moved_as_floats",
        MOVED,
        "moves bytes as a sum of floats and zeros, which loses the sign of zero and what NaNs carry",
        collectives._moved,
        "Dtype.I32",
        "Dtype.F32",
        test=f"{TESTS}::test_moved_bytes_are_those_that_were_given",
        arguments=("f4", 3),
    ),
    fault(
        "broadcast_in_place_keeps_the_old",
        MOVED,
        "adds, in place, to what the others had",
        collectives.broadcast,
        "results: list[Array | int] = [nbytes] if keeps else",
        "results: list[Array | int] = [nbytes] if in_place else",
        test=f"{TESTS}::test_a_broadcast_in_place_replaces_what_others_had_and_leaves_the_root_alone",
    ),
    fault(
        "empty_barrier",
        MOVED,
        "sums nothing in a barrier, which no rank has to wait for",
        collectives.barrier,
        '_moved("barrier", _WORD, [_WORD], [_WORD])',
        '_moved("barrier", 0, [0], [0])',
        test=f"{TESTS}::test_a_barrier_is_one_word_and_no_result",
    ),
    fault(
        "root_left_out_of_the_call",
        MOVED,
        "leaves the root out of what is compared, so that two broadcasts from different ranks are added up",
        collectives.broadcast,
        " from rank {root}",
        "",
        test=f"{TESTS}::test_every_two_calls_have_different_digests",
    ),
    fault(
        "averages_of_a_list_forgotten",
        MOVED,
        "returns the sums of a list as its averages",
        Collective.end,
        "for array in self.averages:",
        "for array in self.averages[:1]:",
        test=f"{TESTS}::test_a_list_of_several_types_is_averaged_array_by_array",
    ),
    fault(
        "collective_at_an_older_daemon",
        NAMED,
        "asks a daemon for a broadcast that takes it for a sum, whatever others call",
        AnyCommunicator._require_named,
        "joined is not None and not joined.named",
        "joined is None",
        test=f"{TESTS}::test_a_daemon_that_knows_no_names_of_calls_is_asked_for_all_reduces_alone",
    ),
    fault(
        "last_difference_told",
        DISPUTES,
        "names the last all-reduce that differs, which differs only because an earlier one did",
        Dispute.difference,
        "in self._calls() if",
        "in reversed(self._calls()) if",
        test=f"{RENDEZVOUS}::test_a_mismatch_is_told_in_the_words_of_all_ranks",
        arguments=("host",),
    ),
    fault(
        "calls_counted_from_0",
        DISPUTES,
        "takes the first call that a rank tells of for the first one of the job",
        Dispute._calls,
        "enumerate(told.calls, told.first)",
        "enumerate(told.calls)",
        test=f"{RENDEZVOUS}::test_a_mismatch_is_told_in_the_words_of_all_ranks",
        arguments=("host",),
    ),
    fault(
        "words_of_the_others_left_out",
        DISPUTES,
        "says of a mismatch with an older host no more than that there is one",
        Dispute.explain,
        "self._calls()[:1]",
        "self._calls()[:0]",
        test=f"{RENDEZVOUS}::test_a_mismatch_with_a_host_of_an_older_release_has_the_words_of_the_others",
    ),
)
