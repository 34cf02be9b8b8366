"""Faults of hosts whose daemon is replaced: what is written when, and copied again."""

from __future__ import annotations

from typing import Final

from inaproto.core.host.holdings import Holdings
from inaproto.core.host.journal import Journal
from inaproto.core.host.performer import RingOrders
from tests.planted.planting import SMALL, fault
from tests.planted.shapes import replaced_daemons

JOURNAL: Final = "docs/protocol.md 13.8; inaproto.core.host.journal"
STORES: Final = "tests/unit/test_host_journal.py::test_whichever_store_was_the_last_a_successor_goes_on"

SUCCESSOR_FAULTS: Final = (
    fault(
        "torn_result_not_copied_again",
        JOURNAL,
        "goes on behind a result that a daemon had died over, without copying it again",
        Holdings.restore,
        "if past.torn is not None:",
        "if past.torn is not None and self.tensors is None:",
        shape=replaced_daemons,
        swarm=SMALL,
        seeds_max=300,
    ),
    fault(
        "taken_before_it_is_copied",
        JOURNAL,
        "counts a result before it is copied into the tensors",
        RingOrders.take,
        "journal.taking(operation, offset, nbytes, at, self._path)",
        "journal.taking(operation, offset, nbytes, at, self._path); journal.taken(); journal = None",
        test=STORES,
        arguments=(2, 4),
    ),
    fault(
        "mended_before_it_is_copied",
        JOURNAL,
        "counts what was torn before it is whole: a second death in between leaves half of it",
        Holdings.restore,
        "if past.torn is not None:",
        "self.journal and self.journal.mended()\n    if past.torn is not None:",
        test="tests/unit/test_host_journal.py::test_the_successor_may_be_stopped_as_well",
        arguments=(1,),
    ),
    fault(
        "kept_where_the_slots_were",
        JOURNAL,
        "copies what a ring leaves, and leaves the journal pointing at its receive slots",
        Journal.keep,
        "self._store(where + _WHERE * _WORD.size, new)",
        "pass",
        test=STORES,
        arguments=(2, 4),
    ),
    fault(
        "a_word_is_zero_in_between",
        JOURNAL,
        "zeroes the count before it writes it, as a structure that is packed does",
        Journal.taken,
        "self._words[_TAKEN_WORD] = taken",
        "self._words[_TAKEN_WORD] = 0; self._words[_TAKEN_WORD] = taken",
        test="tests/unit/test_host_journal.py::test_a_word_is_stored_once_and_whole",
    ),
)
