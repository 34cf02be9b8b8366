"""NetReduce section 3.2, connection lookup table: how many messages it must remember for a connection.

Settles the [claim] that one entry per connection, as printed, is enough only with messages of one length
and negative offsets. It is refuted in part: even then a resend that begins with an older message's
first packet takes the entry back, and if the newer message's first packet is not resent after it (it
was acknowledged) or is lost, the connection dies. One entry does hold for messages of one length if
it never goes back as well. ``inaproto.core.switch.lookup_table`` keeps ``2N`` entries, which always hold.
"""

from __future__ import annotations

import numpy as np
import pytest

from inaproto.core.switch.lookup_table import Flow, LookupTable, MessageEntry
from inaproto.core.switch.ring_spec import FlowSpec
from inaproto.sim.explore.ring.paper_switch import Freeing, Lookup
from tests.paper.aggregation_model import Rules, Step, can_finish, explore, replay

EQUAL = (2, 2)
SHORT = (2, 1, 2)


def ring(lookup: Lookup, lengths: tuple[int, ...]) -> Rules:
    """Two ranks, two messages in flight, at most two packets a message."""
    return Rules(2, 2, lengths, 2, 4, lookup, Freeing.TENANT, 1, faulty_flows=(0,))


def test_one_entry_loses_a_resend_inside_the_message_before() -> None:
    """The first packet of message 1 replaces the entry; packet 1 of message 0 can never be placed again."""
    rules = ring(Lookup.ONE, EQUAL)
    state = replay(
        rules,
        [
            ("send", 0),
            ("arrive", 0),
            ("send", 0),
            ("lose input", 0),  # packet 1 of message 0
            ("send", 0),
            ("arrive", 0),  # first packet of message 1 passes
            ("send", 1),
            ("arrive", 1),
            ("receive", 0),
            ("receive", 1),
        ],
        losses=1,
    )
    assert not can_finish(rules, state)


@pytest.mark.parametrize(
    ("lookup", "lengths", "holds"),
    [
        (Lookup.ONE, EQUAL, False),
        (Lookup.ONE, SHORT, False),
        (Lookup.ONE_NEGATIVE, EQUAL, False),
        (Lookup.ONE_NEGATIVE, SHORT, False),
        (Lookup.ONE_LATEST_NEGATIVE, EQUAL, True),
        (Lookup.ONE_LATEST_NEGATIVE, SHORT, False),
        (Lookup.WINDOW, EQUAL, True),
        (Lookup.WINDOW, SHORT, True),
    ],
)
def test_every_run_with_one_loss(lookup: Lookup, lengths: tuple[int, ...], holds: bool) -> None:
    verdict = explore(ring(lookup, lengths), losses=1, duplicates=0)
    assert (verdict.wrong is None and verdict.stuck is None) == holds


def test_one_entry_that_goes_back_loses_a_message_of_equal_length() -> None:
    rules = ring(Lookup.ONE_NEGATIVE, EQUAL)
    run: list[Step] = [
        *[("send", 0), ("arrive", 0)] * 3,  # message 0, and the first packet of message 1
        ("go back", 0),
        *[("send", 0), ("arrive", 0)] * 2,  # message 0 again: the entry is that of message 0 now
        ("send", 0),
        ("lose input", 0),  # the first packet of message 1, which is in its slot already
        *[("send", 1), ("arrive", 1), ("receive", 0)] * 3,  # rank 1 sends: rank 0's flow gets its results
    ]
    state = replay(rules, run, losses=1)
    # Message 1's first packet is acknowledged: the resend begins behind it, with an entry that is too old.
    assert state.received[0] == 3
    assert not can_finish(rules, state)
    kept = ring(Lookup.ONE_LATEST_NEGATIVE, EQUAL)
    assert can_finish(kept, replay(kept, run, losses=1))


def test_negative_offsets_put_a_short_message_in_the_wrong_slot() -> None:
    """Lengths 2, 1, 2: counted back by two packets a message, a resend lands one slot off: a wrong sum."""
    verdict = explore(ring(Lookup.ONE_NEGATIVE, SHORT), losses=0, duplicates=0)
    assert verdict.wrong is not None


def flow_of(lengths: tuple[int, ...], *, psn0: int, window: int = 2) -> Flow:
    table = LookupTable()
    spec = FlowSpec(0, b"\x0a\0\0\x01", b"\x0a\0\0\x02", 0x11)
    flow = table.add(spec, ring_id=1, messages=2 * window, psn_mask=0xFF_FFFF)
    psn = psn0
    for serial, length in enumerate(lengths):
        flow.open_message(MessageEntry(serial, psn & 0xFF_FFFF, length))
        psn += length
    return flow


def test_the_first_packet_fills_the_table_and_later_ones_are_placed_by_psn() -> None:
    flow = flow_of((4, 4), psn0=0xFF_FFFE)
    (entry, rows, offsets), *rest = flow.locate(np.array([0xFF_FFFF, 0, 1]))
    assert not rest
    assert entry.serial == 0
    assert rows == slice(0, 3)
    assert offsets == slice(1, 4)


def test_packets_of_an_unknown_message_are_placed_nowhere() -> None:
    """The paper's computation error (1): their first packet was lost, go-back-N brings them again."""
    flow = flow_of((4,), psn0=100)
    assert list(flow.locate(np.array([104, 105, 99]))) == []


def test_packets_of_several_messages_in_one_vector_are_placed_each() -> None:
    flow = flow_of((3, 2, 3), psn0=10)
    placed = {
        (entry.serial, int(offset)): int(row)
        for entry, rows, offsets in flow.locate(np.array([17, 12, 13, 11]))
        for row, offset in zip(
            range(4)[rows] if isinstance(rows, slice) else rows,
            range(8)[offsets] if isinstance(offsets, slice) else offsets,
            strict=True,
        )
    }
    assert placed == {(2, 2): 0, (0, 2): 1, (1, 0): 2, (0, 1): 3}


def test_the_table_remembers_two_windows_of_messages() -> None:
    flow = flow_of((1,) * 6, psn0=0, window=2)
    remembered = [psn for psn in range(6) if list(flow.locate(np.array([psn])))]
    assert remembered == [2, 3, 4, 5]
