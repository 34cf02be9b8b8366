"""Two kernel RoCE hosts and a faulty wire: what each fault makes them do.

The counts are those of the Soft-RoCE of Linux 6.1, measured: what our NIC and accelerator get along with.
Where no timer has a part the sender has none. Where one has, a machine that stands still makes it go off more
often: what is judged is where each resend begins, and how each packet is answered.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.transfer import FIRST_PSN, TransferPlan
from tests.hil import HANG_S
from tests.hil.softroce import faults
from tests.hil.softroce.pair import Pair, Transferred, open_pair
from tests.hil.softroce.wire import Count, Seen

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]

PACKETS, MESSAGE_PACKETS = 256, 64
OUTSTANDING_MAX = 129
"""Packets that are sent before one is acknowledged."""
LAST = PACKETS - 1
TIMER = 17
"""0.54 s, soon enough for a test that waits for it."""
SHORT = 14
"""67 ms: goes off without a fault too."""


def whole(found: Transferred) -> None:
    """All arrived as it was sent, and every ICRC is what we compute, but of frames that the wire damaged."""
    assert found.ends["content"]
    assert set(found.ends["statuses"]) == {"success"}
    assert found.ends["imms"] == [0xABC0 + number for number in range(len(found.ends["imms"]))]
    assert all(seen.is_intact for seen in found.wire.seen)


def runs(wire: Count) -> list[range]:
    """Data packets by number, in the order in which they came: what was sent, then each resend."""
    found: list[range] = []
    for seen in wire.seen:
        if not seen.is_data:
            continue
        if found and seen.number == found[-1].stop:
            found[-1] = range(found[-1].start, seen.number + 1)
        else:
            found.append(range(seen.number, seen.number + 1))
    return found


def check_go_back(wire: Count) -> None:
    """Each resend begins where an acknowledgement ended, and goes on from there without a gap."""
    ends = {0}
    sent = runs(wire)
    begins = iter(sent)
    before = -2
    for seen in wire.seen:
        if not seen.is_data:
            ends.add(seen.psn - FIRST_PSN + (0 if seen.is_nak else 1))
        elif seen.number != before + 1:
            assert next(begins).start in ends
        before = seen.number if seen.is_data else before
    assert sent[0].start == 0
    assert {number for run in sent for number in run} == set(range(max(run.stop for run in sent)))


def answers_owed(arrived: Iterable[Seen]) -> tuple[int, int]:
    """ACKs for packets that came in order and want one; and ACKs for duplicates, one each, up to the last."""
    newest, wanted, duplicates = -1, 0, 0
    for seen in arrived:
        if seen.number <= newest:
            duplicates += 1
        else:
            assert seen.number == newest + 1
            newest = seen.number
            wanted += seen.packet.ack_request
        if newest == LAST:
            break
    return wanted, duplicates


def check_answers(wire: Count, *, lost: int | None = None) -> int:
    """Up to the first ACK of the last packet each is owed and none is missing; those of duplicates.

    ``lost``: the packet whose first copy did not arrive.
    """
    arrived = (seen for seen in wire.seen if seen.is_data and (seen.is_again or seen.number != lost))
    wanted, duplicates = answers_owed(arrived)
    acks = [seen.psn for seen in wire.seen if not seen.is_data]
    assert acks.index(FIRST_PSN + LAST) + 1 == wanted + duplicates
    return duplicates


async def test_what_kernel_hosts_do(softroce: Image) -> None:
    """One guest for all faults: it takes longer to boot than to try one of them."""
    async with open_pair(softroce) as pair:
        await _without_loss(pair)
        await _asked_for_again(pair)
        await _what_needs_no_resend(pair)
        await _ends_are_lost(pair)
        await _longer_than_the_timer(pair)
        await _given_up(pair)


async def _without_loss(pair: Pair) -> None:
    clear = await pair.transfer(TransferPlan())
    whole(clear)
    assert (clear.wire.data, clear.wire.acks, clear.wire.naks, clear.wire.again) == (256, 4, 0, 0)

    many = await pair.transfer(TransferPlan(messages=200, nbytes=512))
    whole(many)
    assert (many.wire.data, many.wire.acks) == (200, 200)

    padded = await pair.transfer(TransferPlan(nbytes=1021))
    whole(padded)
    assert {seen.packet.pad for seen in padded.wire.seen if seen.is_data} == {3}

    small = await pair.transfer(TransferPlan(nbytes=4096, mtu=256))
    whole(small)
    assert (small.wire.data, small.wire.acks) == (64, 4)

    summed = await pair.transfer(TransferPlan(expect_added=1), faults.add_one)
    whole(summed)
    assert (summed.wire.naks, summed.wire.again) == (0, 0)

    rewritten = await pair.transfer(TransferPlan(), faults.rewrite_unprotected)
    whole(rewritten)
    assert (rewritten.wire.naks, rewritten.wire.again) == (0, 0)

    # Marked packets are taken like others, and nobody is told of congestion; who is told does not mind.
    marked = await pair.transfer(TransferPlan(), faults.mark(0, 10, 63, LAST))
    whole(marked)
    assert (marked.wire.data, marked.wire.acks, marked.wire.notifications) == (256, 4, 0)

    notified = await pair.transfer(TransferPlan(), faults.notify)
    whole(notified)
    assert (notified.wire.data, notified.wire.acks, notified.wire.again) == (256, 4, 0)


async def _asked_for_again(pair: Pair) -> None:
    # A packet whose ICRC is wrong is dropped in silence: only the next one is a gap.
    for fault, number in ((faults.corrupt(10), 10), (faults.drop(10), 10), (faults.drop(63), 63)):
        gap = await pair.transfer(TransferPlan(), fault)
        whole(gap)
        assert [seen.psn for seen in gap.wire.seen if seen.is_nak] == [FIRST_PSN + number]
        assert [run.start for run in runs(gap.wire)] == [0, number]
        assert runs(gap.wire)[-1].stop == PACKETS
        assert gap.ends["counters"][0]["naks_received"] == 1
        assert gap.ends["counters"][0]["timeouts"] == 0

    late = await pair.transfer(TransferPlan(), faults.overtake(20))
    whole(late)
    assert late.wire.naks == 1
    assert [run.start for run in runs(late.wire)] == [0, 20]
    assert late.ends["counters"][1]["duplicates"] == 1


async def _what_needs_no_resend(pair: Pair) -> None:
    twice = await pair.transfer(TransferPlan(), faults.duplicate(5))
    whole(twice)
    assert (twice.wire.data, twice.wire.acks, twice.wire.naks) == (256, 5, 0)

    first_ack = await pair.transfer(TransferPlan(), faults.drop(0, data=False))
    whole(first_ack)
    assert (first_ack.wire.data, first_ack.wire.again) == (256, 0)

    patient = await pair.transfer(TransferPlan(), faults.hold(0.2, data=True))
    whole(patient)
    assert (patient.wire.data, patient.wire.again) == (256, 0)


async def _ends_are_lost(pair: Pair) -> None:
    """No later packet shows a gap: only the sender's timer helps."""
    last = await pair.transfer(TransferPlan(timeout=TIMER), faults.drop(LAST))
    whole(last)
    assert last.wire.naks == 0
    assert last.ends["counters"][0]["timeouts"] >= 1
    check_go_back(last.wire)
    assert sum(LAST in run for run in runs(last.wire)) >= 2
    assert check_answers(last.wire, lost=LAST) >= 1

    fault = faults.drop_acks_until_resent(FIRST_PSN + LAST)
    last_ack = await pair.transfer(TransferPlan(timeout=TIMER), fault)
    whole(last_ack)
    assert last_ack.wire.naks == 0
    assert last_ack.ends["counters"][0]["timeouts"] >= 1
    assert last_ack.ends["counters"][1]["duplicates"] >= 1
    check_go_back(last_ack.wire)
    check_answers(last_ack.wire)


async def _longer_than_the_timer(pair: Pair) -> None:
    """Whole windows come again, from the first packet on, and each packet of them is answered."""
    for times, data in ((3, True), (2, False)):
        held = await pair.transfer(TransferPlan(timeout=SHORT), faults.hold_until_resent(times, data=data))
        whole(held)
        assert held.wire.naks == 0
        windows = runs(held.wire)[:times]
        assert [(window.start, len(window) <= OUTSTANDING_MAX) for window in windows] == [(0, True)] * times
        check_go_back(held.wire)
        assert check_answers(held.wire) >= times


async def _given_up(pair: Pair) -> None:
    lost = await pair.transfer(TransferPlan(messages=1, timeout=SHORT, retry_count=3), faults.drop_acks)
    assert lost.ends["statuses"] == ["transport retry counter exceeded"]
    sent = runs(lost.wire)
    assert [(run.start, len(run) <= MESSAGE_PACKETS) for run in sent] == [(0, True)] * 4
    assert lost.ends["counters"][0]["timeouts"] == 3


async def test_who_is_written_to_is_connected_first(softroce: Image) -> None:
    """Who has yet to ask for its peer's address is not ready: what came would be lost, and not answered."""
    async with open_pair(softroce) as pair:
        for host in (0, 1, 1):
            await pair.forget_peer(host)
            found = await pair.transfer(TransferPlan())
            whole(found)
            assert (found.wire.data, found.wire.acks, found.wire.again) == (256, 4, 0)


async def test_a_long_transfer_at_a_large_mtu(softroce: Image) -> None:
    async with open_pair(softroce, mtu=4096) as pair:
        long = await pair.transfer(TransferPlan(messages=16, nbytes=1 << 20))
        whole(long)
        assert (long.wire.data, long.wire.again) == (16 << 10, 0)
        large = await pair.transfer(TransferPlan(messages=4, nbytes=1 << 18, mtu=4096))
        whole(large)
        assert (large.wire.data, large.wire.acks, large.wire.again) == (256, 4, 0)
