"""What the accelerator does for kernel hosts when one packet is lost: softroce-bench's ring rows, one by one.

A ring of three, each all-reduce 256 packets of each host. PSNs number them, resent or not, so each loss is
of one all-reduce and one packet of it. The timers are long (8.6 s): who waits for one is counted, and a
machine that stands still is not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import pytest

from inaproto.units import PSN_MASK
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.switched import Switched, SwitchedConfig, run_switched
from tests.hil import HANG_S
from tests.hil.softroce.watched_ports import Crossing, WatchedPorts
from tests.hil.softroce.wire import Seen

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]

HOSTS = 3
MTU = 1024
MESSAGES, MESSAGE_PACKETS = 4, 64
PACKETS = MESSAGES * MESSAGE_PACKETS
NBYTES = MESSAGES * (MESSAGE_PACKETS * MTU - INA_HEADER_BYTES)
IP_ID, BTH, BTH_END = slice(18, 20), 42, 54

Loss = tuple[int, int, bool]
"""Host (1..3) whose flow it is of, packet of the all-reduce, and whether the result is lost, or the input."""


class Losses:
    """Of each all-reduce, in order: what is lost of it, the first time that it comes."""

    def __init__(self, operations: Mapping[int, list[Loss]]) -> None:
        self._left = {(operation, *loss) for operation, losses in operations.items() for loss in losses}
        self._first: dict[int, int] = {}

    def place(self, seen: Seen) -> tuple[int, int, int]:
        """Host of the flow, all-reduce, packet."""
        to_sender = not seen.is_data
        host = (seen.packet.dst_ip if to_sender else seen.packet.src_ip)[-1]
        first = self._first.setdefault(host, seen.psn)
        return (host, *divmod((seen.psn - first) & PSN_MASK, PACKETS))

    def __call__(self, seen: Seen, is_result: bool) -> bool:
        host, operation, packet = self.place(seen)
        loss = (operation, host, packet, is_result)
        if not seen.is_data or loss not in self._left:
            return False
        self._left.remove(loss)
        return True

    def check_all_happened(self) -> None:
        assert not self._left


async def run_with(
    image: Image, losses: Losses, *, rows: int, iterations: int, timeout: int
) -> tuple[Switched, dict[int, list[Crossing]]]:
    """What was found, and the crossings of each all-reduce."""
    watched = WatchedPorts(losses)
    config = SwitchedConfig(
        hosts=HOSTS,
        mtu=MTU,
        rows=[("float32", NBYTES)] * rows,
        iterations=iterations,
        timeout=timeout,
        message_packets=MESSAGE_PACKETS,
    )
    found = await run_switched(image, config, watched.wrap)
    losses.check_all_happened()
    assert [row["wrong"] for row in found.rows] == [0] * rows
    operations = defaultdict(list)
    for crossing in watched.crossings:
        _, operation, _ = losses.place(crossing.seen)
        operations[operation].append(crossing)
    assert list(operations) == list(range(rows * iterations))
    check_order(watched.crossings, losses)
    check_headers(watched.crossings)
    return found, operations


def check_order(crossings: list[Crossing], losses: Losses) -> None:
    """Rule 1: the PSNs of a flow's results grow by one, however late and often some are sent again.

    Rule 2: where its own packet is missing, one result past the gap shows it to the receiver, who asks. What
    comes before the first packet of its message says nothing to the switch, and is as good as missing.
    """
    came: dict[int, set[int]] = defaultdict(set)
    newest: dict[int, int] = defaultdict(lambda: -1)
    for one in crossings:
        if not one.seen.is_data or (one.is_lost and not one.is_result):
            continue
        host, operation, packet = losses.place(one.seen)
        at = operation * PACKETS + packet
        if not one.is_result:
            if at % MESSAGE_PACKETS == 0 or at // MESSAGE_PACKETS * MESSAGE_PACKETS in came[host]:
                came[host].add(at)
        elif at == newest[host] + 1:
            newest[host] = at
        elif at > newest[host]:
            assert newest[host] + 1 not in came[host], f"host {host}: {at} overtakes {newest[host] + 1}"


def check_headers(crossings: list[Crossing]) -> None:
    """Rule 5: a result has the IP ID and the BTH of the latest packet of its flow and PSN."""
    latest: dict[tuple[bytes, bytes, int], bytes] = {}
    for one in crossings:
        packet = one.seen.packet
        key = (packet.src_ip, packet.dst_ip, one.seen.psn)
        if not one.seen.is_data or (one.is_lost and not one.is_result):
            continue
        if one.is_result:
            assert packet.data[IP_ID] == latest[key][IP_ID]
            assert packet.data[BTH:BTH_END] == latest[key][BTH:BTH_END]
        else:
            latest[key] = packet.data


def asked_again(crossings: list[Crossing]) -> list[int]:
    """Hosts (1..3) that got a NAK, ascending, all of them from their receivers: the switch makes none.

    Each is for a hole of its own, behind those before it.
    """
    naks = [one for one in crossings if one.seen.is_nak]
    made, passed = ([one.seen.packet.data for one in naks if one.is_result is out] for out in (False, True))
    assert made == passed
    holes: dict[int, list[int]] = defaultdict(list)
    for one in naks:
        if one.is_result:
            holes[one.seen.packet.dst_ip[-1]].append(one.seen.psn)
    for host, psns in holes.items():
        grows = [(later - sooner) & PSN_MASK for sooner, later in pairwise(psns)]
        assert all(0 < step < PACKETS for step in grows), f"host {host} is asked for {psns}"
    return sorted(host for host, psns in holes.items() for _ in psns)


def sent_again(crossings: list[Crossing], *, results: bool) -> set[int]:
    """Hosts (1..3) in whose flows packets were sent again."""
    return {
        one.seen.packet.src_ip[-1]
        for one in crossings
        if one.seen.is_data and one.is_result is results and one.seen.is_again
    }


async def test_one_lost_packet_stalls_nobody(softroce: Image) -> None:
    """Section 7, "lose one input packet" and "lose one result packet"; section 5, rules 1, 2, 3 and 5."""
    losses = Losses(
        {
            1: [(2, 10, False)],
            2: [(2, 63, False)],
            3: [(3, 64, False)],
            4: [(1, 30, False), (3, 30, False)],
            5: [(1, 100, True)],
            6: [(3, 127, True)],
            7: [(2, 10, False), (1, 100, True)],
        }
    )
    found, of = await run_with(softroce, losses, rows=1, iterations=9, timeout=21)
    (row,) = found.rows
    naks = [host for crossings in of.values() for host in asked_again(crossings)]
    assert [one["retransmits"] for one in row["devices"]] == [naks.count(1), naks.count(2), naks.count(3)], (
        "who went back was asked to, not by its timer"
    )

    for clean in (of[0], of[8]):
        for results in (False, True):
            data = [one for one in clean if one.seen.is_data and one.is_result is results]
            assert len(data) == HOSTS * PACKETS
            assert len([one for one in clean if not one.seen.is_data and one.is_result is results]) == 12

    # An input: its receiver sees a gap and asks the loser at once; the others send nothing again.
    for operation, losers in ((1, {2}), (2, {2}), (3, {3}), (4, {1, 3})):
        assert asked_again(of[operation]) == sorted(losers), "each once"
        assert sent_again(of[operation], results=False) == losers

    # A result: its receiver asks, its sender goes back, and the switch answers that flow alone: it kept it.
    # What others are slow to send is summed meanwhile: where such a result comes between two that were kept,
    # its receiver asks for the next hole, too (tests/unit/test_accelerator.py has the order of both).
    for operation, host in ((5, 1), (6, 3)):
        assert set(asked_again(of[operation])) == {host}
        assert sent_again(of[operation], results=False) == {host}
        assert sent_again(of[operation], results=True) == {host}


async def test_the_very_last_packet_waits_for_a_timer(softroce: Image) -> None:
    """Section 7, "lose the very last result packet": no later packet shows a gap to anybody."""
    losses = Losses({0: [(2, PACKETS - 1, True)], 1: [(1, PACKETS - 1, False)]})
    found, of = await run_with(softroce, losses, rows=2, iterations=1, timeout=21)
    after_result, after_input = found.rows
    assert [one["timeouts"] for one in after_result["devices"]] == [0, 1, 0]
    # The last message goes again, and is answered by what the switch kept, to that flow alone.
    for results in (False, True):
        again = [one for one in of[0] if one.seen.is_again and one.is_result is results]
        assert len(again) == MESSAGE_PACKETS
    assert sent_again(of[0], results=True) == {2}
    assert asked_again(of[0]) == []
    # Of an input all wait, and who lost it is the one whose timer matters.
    assert 1 <= sum(one["timeouts"] for one in after_input["devices"]) - 1 <= HOSTS
    assert 1 in sent_again(of[1], results=False)
