"""NetReduce section 3.2, freeing: "a gradient packet deallocates an aggregator one window away".

Settles the [claim] about its readings. Scripted runs show each fault in a few steps; exhaustive search
over small rings shows that freeing by tenant, which ``inaproto.core.switch.aggregator`` implements, holds
under losses and late duplicates together, and that clearing the whole slot does not.

That clearing the sender's own bit holds while every path is FIFO is refuted in part. It does for two ranks
whose acknowledgements arrive. With three, one lost result stops the ring for ever: the ranks that had it
have freed their bits, and the one rank that resends completes nothing. And where an acknowledgement can be
lost, a resend of a message that all ranks have passed leaves a stale bit: a wrong sum
(``tests/sim/test_explore_ring.py``, with real hosts).
"""

from __future__ import annotations

import pytest

from inaproto.sim.explore.ring.paper_switch import Freeing, Lookup
from tests.paper.aggregation_model import Rules, Step, can_finish, explore, replay


def ring(freeing: Freeing, *, messages: int = 4, queue_max: int = 1) -> Rules:
    """Two ranks, a window of one message of one packet."""
    return Rules(2, 1, (1,) * messages, 1, 4, Lookup.WINDOW, freeing, queue_max)


LOSE_RESULT_0_THEN_GO_ON: list[Step] = [
    ("send", 0),
    ("arrive", 0),
    ("send", 1),
    ("arrive", 1),  # both are in: result 0 goes out on both flows
    ("receive", 0),  # rank 1 has it
    ("lose result", 1),  # rank 0 has not
    ("send", 1),  # so rank 1 goes on to message 1 ...
    ("arrive", 1),  # ... which frees the aggregator one window away: that of message 0
]

LATE_DUPLICATE_OF_0: list[Step] = [
    ("send", 0),
    ("arrive", 0),
    ("send", 1),
    ("duplicate", 1),  # a copy of rank 1's message 0 stays somewhere in the network
    ("arrive", 1),
    ("receive", 0),
    ("receive", 1),
    ("send", 0),
    ("arrive", 0),
    ("send", 1),
    ("arrive", 1),
    ("receive", 0),
    ("receive", 1),
    ("late", 0),  # the copy arrives: its bit is set in the slot that message 2 will use
    ("send", 0),
    ("arrive", 0),
    ("receive", 0),
]


def test_clearing_the_whole_slot_stops_the_ring_for_ever() -> None:
    rules = ring(Freeing.CLEAR_SLOT)
    state = replay(rules, LOSE_RESULT_0_THEN_GO_ON, losses=1)
    assert not can_finish(rules, state)
    resent = replay(rules, [*LOSE_RESULT_0_THEN_GO_ON, ("go back", 1), ("send", 1), ("arrive", 1)], losses=1)
    assert not can_finish(rules, resent)


@pytest.mark.parametrize("freeing", [Freeing.CLEAR_OWN_BIT, Freeing.TENANT])
def test_the_same_loss_is_survived_by_the_other_readings(freeing: Freeing) -> None:
    rules = ring(freeing)
    assert can_finish(rules, replay(rules, LOSE_RESULT_0_THEN_GO_ON, losses=1))


@pytest.mark.parametrize("freeing", [Freeing.CLEAR_SLOT, Freeing.CLEAR_OWN_BIT])
def test_a_late_duplicate_gives_a_wrong_sum_without_an_error(freeing: Freeing) -> None:
    assert replay(ring(freeing), LATE_DUPLICATE_OF_0, duplicates=1).wrong


def test_a_late_duplicate_is_older_than_the_tenant() -> None:
    rules = ring(Freeing.TENANT)
    state = replay(rules, LATE_DUPLICATE_OF_0[:-1], duplicates=1)
    assert not state.wrong
    assert state.outputs[0] == ()  # message 2 waits for rank 1; the stale copy did not complete it
    assert can_finish(rules, state)


@pytest.mark.parametrize("losses", [1, 2])
@pytest.mark.parametrize(
    ("freeing", "stuck"),
    [(Freeing.CLEAR_SLOT, True), (Freeing.CLEAR_OWN_BIT, False), (Freeing.TENANT, False)],
)
def test_every_run_with_losses_on_fifo_paths(freeing: Freeing, stuck: bool, losses: int) -> None:
    verdict = explore(ring(freeing, messages=3), losses=losses, duplicates=0)
    assert verdict.wrong is None
    assert (verdict.stuck is not None) == stuck


@pytest.mark.parametrize("losses", [0, 1])
@pytest.mark.parametrize(
    ("freeing", "wrong"),
    [(Freeing.CLEAR_SLOT, True), (Freeing.CLEAR_OWN_BIT, True), (Freeing.TENANT, False)],
)
def test_every_run_with_a_late_duplicate(freeing: Freeing, wrong: bool, losses: int) -> None:
    verdict = explore(ring(freeing), losses=losses, duplicates=1)
    assert (verdict.wrong is not None) == wrong
    if not wrong:
        assert verdict.stuck is None


@pytest.mark.parametrize(("freeing", "stuck"), [(Freeing.CLEAR_OWN_BIT, True), (Freeing.TENANT, False)])
def test_three_ranks_and_one_loss_on_fifo_paths(freeing: Freeing, stuck: bool) -> None:
    rules = Rules(3, 1, (1, 1, 1), 1, 4, Lookup.WINDOW, freeing, 1)
    verdict = explore(rules, losses=1, duplicates=0)
    assert verdict.wrong is None
    assert (verdict.stuck is not None) == stuck


def test_tenants_hold_when_psns_wrap() -> None:
    """Eight messages of one packet in a 3-bit PSN space: every PSN is used again."""
    rules = Rules(2, 1, (1,) * 9, 1, 3, Lookup.WINDOW, Freeing.TENANT, 1)
    verdict = explore(rules, losses=1, duplicates=0)
    assert verdict.wrong is None
    assert verdict.stuck is None
