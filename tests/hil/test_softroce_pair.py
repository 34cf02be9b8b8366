"""Two kernel RoCE hosts and a faulty wire: what each fault makes them do.

The counts are those of the Soft-RoCE of Linux 6.1, measured: what our NIC and accelerator get along with.
"""

from __future__ import annotations

import pytest

from inaproto_hil.softroce import faults
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.pair import Transferred, open_pair
from inaproto_hil.softroce.transfer import FIRST_PSN, TransferPlan

pytestmark = [pytest.mark.hil, pytest.mark.timeout(600)]


def whole(found: Transferred) -> None:
    """All arrived as it was sent, and every ICRC is what we compute, but of frames that the wire damaged."""
    assert found.ends["content"]
    assert set(found.ends["statuses"]) == {"success"}
    assert found.ends["imms"] == [0xABC0 + number for number in range(len(found.ends["imms"]))]
    assert all(seen.is_intact for seen in found.wire.seen)


async def test_what_kernel_hosts_do(softroce: Image) -> None:
    """One guest for all faults: it takes longer to boot than to try one of them."""
    async with open_pair(softroce) as pair:
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

        # A packet whose ICRC is wrong is dropped in silence: only the next one is a gap.
        for fault, psn in ((faults.corrupt(10), 10), (faults.drop(10), 10), (faults.drop(63), 63)):
            gap = await pair.transfer(TransferPlan(), fault)
            whole(gap)
            assert [seen.psn for seen in gap.wire.seen if seen.is_nak] == [FIRST_PSN + psn]
            assert gap.ends["counters"][0]["naks_received"] == 1
            assert gap.ends["counters"][0]["timeouts"] == 0

        last = await pair.transfer(TransferPlan(), faults.drop(255))
        whole(last)
        assert (last.wire.naks, last.wire.again) == (0, 64)
        assert last.ends["counters"][0]["timeouts"] == 1
        again = [seen.psn for seen in last.wire.seen if seen.is_again]
        assert again == list(range(FIRST_PSN + 192, FIRST_PSN + 256))
        assert last.wire.acks == 3 + 63 + 1

        twice = await pair.transfer(TransferPlan(), faults.duplicate(5))
        whole(twice)
        assert (twice.wire.data, twice.wire.acks, twice.wire.naks) == (256, 5, 0)

        late = await pair.transfer(TransferPlan(), faults.delay(20, 0.03))
        whole(late)
        assert late.wire.naks == 1
        assert late.wire.again > 0  # the late copy itself may come when all is done

        first_ack = await pair.transfer(TransferPlan(), faults.drop(0, data=False))
        whole(first_ack)
        assert (first_ack.wire.data, first_ack.wire.again) == (256, 0)

        last_ack = await pair.transfer(TransferPlan(), faults.drop_last_ack(4))
        whole(last_ack)
        assert (last_ack.wire.again, last_ack.ends["counters"][1]["duplicates"]) == (64, 64)

        # Longer than the timer of 62 ms: whole windows come again; with a longer timer none does.
        held = await pair.transfer(TransferPlan(timeout=14), faults.hold(0.2, data=True))
        whole(held)
        assert held.wire.again > 0
        assert held.wire.naks == 0
        patient = await pair.transfer(TransferPlan(timeout=18), faults.hold(0.2, data=True))
        whole(patient)
        assert (patient.wire.data, patient.wire.again) == (256, 0)
        held_acks = await pair.transfer(TransferPlan(timeout=14), faults.hold(0.15, data=False))
        whole(held_acks)
        assert held_acks.wire.again > 0

        lost = await pair.transfer(TransferPlan(messages=1, timeout=14, retry_count=3), faults.drop_acks)
        assert lost.ends["statuses"] == ["transport retry counter exceeded"]
        assert lost.wire.data == 4 * 64
        assert lost.ends["counters"][0]["timeouts"] == 3


async def test_a_long_transfer_at_a_large_mtu(softroce: Image) -> None:
    async with open_pair(softroce, mtu=4096) as pair:
        long = await pair.transfer(TransferPlan(messages=16, nbytes=1 << 20, timeout=17, seconds=60))
        whole(long)
        assert (long.wire.data, long.wire.again) == (16 << 10, 0)
        large = await pair.transfer(TransferPlan(messages=4, nbytes=1 << 18, mtu=4096, timeout=17))
        whole(large)
        assert (large.wire.data, large.wire.acks, large.wire.again) == (256, 4, 0)
