"""Path probes: a switch answers a frame as long as it came, and a NIC believes what it asked alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inaproto.core.rdma.nic import SoftNicConfig, SoftNicEngine
from inaproto.core.switch.accelerator import Accelerator, EmitFrames, FramesArrived, PortUp
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.path_probe import (
    OF_SWITCHES,
    TO_SWITCHES,
    answers_to,
    question,
    token_answered,
    way_at,
)
from inaproto.wire.vlan import TAG_BEGIN, TAG_BYTES, with_tag
from tests.accelerators import software_only

T0 = Instant(0)
MAC = b"\x02\x00\x0a\x00\x00\x01"
FOUR, SIX = bytes([10, 0, 0, 1]), bytes.fromhex("fd00") + bytes(13) + b"\1"
MTUS = [256, 1024, 4096]


def nic(ip: bytes = FOUR, **config: Any) -> SoftNicEngine:
    return SoftNicEngine(SoftNicConfig(mac=MAC, ip=ip, first_key=77, **config))


def asked(engine: SoftNicEngine) -> list[Frames]:
    engine.path.ask(MTUS)
    return [frames.copy() for frames in engine.take_output()]


def switch() -> Accelerator:
    found = Accelerator()
    for port in range(3):
        found.step(PortUp(PortId(port)), T0)
    return found


def answered(accelerator: Accelerator, port: int, *blocks: Frames) -> list[tuple[int, Frames]]:
    actions = accelerator.step(FramesArrived(PortId(port), blocks), T0)
    return [(action.port, action.frames) for action in actions if isinstance(action, EmitFrames)]


@software_only("a board answers no probes")
@pytest.mark.parametrize("ip", [FOUR, SIX], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("config", [{}, {"vlan": 7, "priority": 3}, {"priority": 5}], ids=str)
def test_a_nic_learns_what_comes_back_from_its_switch(config: dict[str, Any], ip: bytes) -> None:
    engine = nic(ip, **config)
    questions = asked(engine)
    assert [frames.shape[1] for frames in questions] == [mtu + engine.config.overhead_bytes for mtu in MTUS]
    found = answered(switch(), 1, *questions[:2])
    assert [(port, len(frames), frames.shape[1]) for port, frames in found] == [
        (1, 1, frames.shape[1]) for frames in questions[:2]
    ]
    assert all(frames[0, :12].tobytes() == MAC + OF_SWITCHES for _, frames in found)
    assert engine.path.mtu == 0
    engine.handle_frames([found[0][1]], T0)
    assert engine.path.mtu == 256
    engine.handle_frames([found[1][1], found[0][1]], T0)
    assert engine.path.mtu == 1024
    assert engine.statistics()["other_frames"] == 0


def test_a_tag_that_is_lost_on_the_way_back_does_not_matter() -> None:
    engine = nic(priority=5)
    answer = answers_to(asked(engine)[1])
    assert answer is not None
    untagged = np.delete(answer, slice(TAG_BEGIN, TAG_BEGIN + TAG_BYTES), axis=1)
    engine.handle_frames([untagged], T0)
    assert engine.path.mtu == 1024


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[:, :-8],  # cut on its way
        lambda frame: question(mac=MAC, token=77 << 32 | 1024, nbytes=frame.shape[1]),  # no answer
    ],
)
def test_what_is_no_whole_answer_teaches_nothing(change: Any) -> None:
    engine = nic()
    answer = answers_to(asked(engine)[1])
    assert answer is not None
    engine.handle_frames([np.ascontiguousarray(change(answer))], T0)
    assert engine.path.mtu == 0


def test_another_round_forgets_what_came_back_before() -> None:
    """The path may carry less than it did."""
    engine = nic()
    early = answers_to(asked(engine)[2])
    assert early is not None
    engine.handle_frames([early], T0)
    assert engine.path.mtu == 4096
    engine.path.begin(1)
    assert engine.path.mtu == 0
    now = answers_to(asked(engine)[1])
    assert now is not None
    engine.handle_frames([now, early], T0)
    assert engine.path.mtu == 1024


def test_of_several_links_all_must_carry_it() -> None:
    engine = nic()
    engine.path.begin(3)
    questions = asked(engine)
    assert sorted(frames.shape[1] for frames in questions) == sorted(
        3 * [mtu + engine.config.overhead_bytes for mtu in MTUS]
    )
    answers = [answers_to(frames) for frames in questions]
    for answer in (*answers[:3], *answers[3:5], answers[4]):  # of the second size, one is missing
        assert answer is not None
        engine.handle_frames([answer], T0)
    assert engine.path.mtu == MTUS[0]
    assert answers[5] is not None
    engine.handle_frames([answers[5]], T0)
    assert engine.path.mtu == MTUS[1]


def test_of_more_links_than_a_byte_counts_as_many_are_asked() -> None:
    engine = nic()
    engine.path.begin(300)
    assert len(asked(engine)) == 256 * len(MTUS)


def test_an_answer_by_a_link_that_was_not_asked_by_teaches_nothing() -> None:
    engine = nic()
    engine.path.begin(1)
    answer = answers_to(asked(engine)[1])
    assert answer is not None
    at = way_at(answer[0].tobytes())
    assert at is not None
    answer[0, at] = 1
    engine.handle_frames([answer], T0)
    assert engine.path.mtu == 0


@pytest.mark.parametrize("first_key", [76, (1 << 32) - 1])
def test_answers_to_an_earlier_life_or_another_nic_teach_nothing(first_key: int) -> None:
    answer = answers_to(asked(SoftNicEngine(SoftNicConfig(mac=MAC, ip=FOUR, first_key=first_key)))[1])
    assert answer is not None
    engine = nic()
    engine.handle_frames([answer], T0)
    assert engine.path.mtu == 0


def test_other_frames_are_no_answers() -> None:
    assert not nic().path.heard(question(mac=MAC, token=77 << 32 | 1024, nbytes=100))
    answer = answers_to(question(mac=MAC, token=1, nbytes=100))
    assert answer is not None
    answer[0, 14] ^= 1  # another protocol of that EtherType
    assert token_answered(answer[0].tobytes()) is None
    assert token_answered(bytes(20)) is None


@pytest.mark.parametrize("tag", [b"", b"\x81\0\0\1"])
def test_a_probe_says_by_which_link_it_is(tag: bytes) -> None:
    frames = question(mac=MAC, token=77 << 32 | 5 << 16 | 1024, nbytes=100)
    head = (with_tag(frames, tag) if tag else frames)[0].tobytes()
    at = way_at(head)
    assert at is not None
    assert head[at] == 5
    assert way_at(TO_SWITCHES + MAC + bytes(50)) is None


@software_only("a board answers no probes")
def test_a_switch_answers_each_question_where_it_came_and_passes_none_on() -> None:
    accelerator = switch()
    block = np.concatenate([question(mac=MAC, token=token, nbytes=100) for token in (5, 6)])
    found = answered(accelerator, 2, block)
    assert {port for port, _ in found} == {2}
    assert [token_answered(frame.tobytes()) for _, frames in found for frame in frames] == [5, 6]
    assert accelerator.counters.path_probes == 2
    assert accelerator.addresses[MAC] == 2


@software_only("a board answers no probes")
@pytest.mark.parametrize(
    "frame",
    [
        np.frombuffer(TO_SWITCHES + MAC + b"\x88\xb5" + bytes(50), np.uint8).reshape(1, -1),
        question(mac=b"\x03" + MAC[1:], token=1, nbytes=100),  # nobody is to be told at a group's address
        with_tag(with_tag(question(mac=MAC, token=1, nbytes=100), b"\x81\0\0\1"), b"\x81\0\0\2"),
    ],
    ids=["another frame", "a group asks", "two tags"],
)
def test_what_is_no_question_passes_as_any_frame(frame: Frames) -> None:
    found = answered(switch(), 0, frame)
    assert [(port, frames.tobytes()) for port, frames in found] == [
        (1, frame.tobytes()),
        (2, frame.tobytes()),
    ]
