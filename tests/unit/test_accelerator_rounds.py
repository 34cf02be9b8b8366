"""What came at several ports and is taken in together, as one step."""

from __future__ import annotations

import pytest

from inaproto.core.switch.accelerator import EmitFrames, FramesArrived, RingFault, RoundArrived
from inaproto.units import PortId
from tests.accelerators import EACH_ACCELERATOR, ONE_BY_ONE, software_only
from tests.unit.switched_ring import NOW, SwitchedRing, block, by_port, mac, others

pytestmark = EACH_ACCELERATOR

SELECTIVE = pytest.mark.parametrize("selective", [False, True], ids=["in order", "selective"])


def arrived(ring: SwitchedRing, rank: int, *messages: tuple[int, int]) -> FramesArrived:
    """So many packets of each of these messages, of one rank."""
    frames = [frame for serial, packets in messages for frame in ring.message(rank, serial)[:packets]]
    return FramesArrived(PortId(rank), [block(frame) for frame in frames])


@SELECTIVE
def test_a_round_sends_what_its_ports_would_one_after_the_other(selective: bool) -> None:
    together, apart = SwitchedRing(selective=selective), SwitchedRing(selective=selective)
    came = [arrived(together, rank, (0, 4), (1, packets)) for rank, packets in ((0, 3), (1, 1), (2, 4))]
    sent = together.accelerator.step(RoundArrived(came), NOW)
    one_by_one = [action for each in came for action in apart.accelerator.step(each, NOW)]
    assert by_port(sent) == by_port(one_by_one)
    assert by_port(sent)[1] == together.results(0)[1] + together.results(1, 0)[1]
    assert together.accelerator.view().counters == apart.accelerator.view().counters


@software_only(ONE_BY_ONE)
def test_results_leave_once_whichever_port_makes_them_whole() -> None:
    ring = SwitchedRing()
    for rank, packets in ((0, 1), (1, 2), (2, 3)):
        ring.accelerator.step(arrived(ring, rank, (0, packets)), NOW)
    rest = [
        FramesArrived(PortId(rank), [block(frame) for frame in ring.message(rank, 0)[packets:]])
        for rank, packets in ((2, 3), (1, 2), (0, 1))
    ]
    sent = ring.accelerator.step(RoundArrived(rest), NOW)
    blocks = [action for action in sent if isinstance(action, EmitFrames) and action.port == 1]
    assert [len(action.frames) for action in blocks] == [2, 1], "those of full length, and the last one"
    assert by_port(sent)[1] == ring.results(0, 1, 2, 3)[1]


def test_each_port_s_other_frames_pass_as_ever() -> None:
    ring = SwitchedRing()
    frames = [mac(1 - rank) + mac(rank) + bytes([rank]) * 48 for rank in (0, 1)]
    came = [FramesArrived(PortId(rank), [block(frames[rank])]) for rank in (0, 1)]
    assert by_port(ring.accelerator.step(RoundArrived(came), NOW)) == {1: [frames[0]], 0: [frames[1]]}


def test_a_ring_that_fails_in_a_round_sends_nothing_in_it() -> None:
    ring = SwitchedRing()
    came = [arrived(ring, rank, (0, 4)) for rank in (0, 1)]
    wrong = [block(frame) for frame in ring.message(2, 0, op=1)]
    sent = ring.accelerator.step(RoundArrived([*came, FramesArrived(PortId(2), wrong)]), NOW)
    assert by_port(sent) == {}
    assert [type(action) for action in others(sent) if isinstance(action, RingFault)] == [RingFault]


def test_nothing_came_in_a_round() -> None:
    assert SwitchedRing().accelerator.step(RoundArrived([]), NOW) == []
