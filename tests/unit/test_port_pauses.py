"""A port of a switch is silent where its far end asks for that, and loses nothing that it has room for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inaproto.core.switch import port_pauses
from inaproto.core.switch.accelerator import Accelerator, ForLink, FramesArrived, PortUp
from inaproto.core.switch.port_pauses import (
    BLOCK_BYTES,
    HELD_TOO_MUCH,
    PausedPorts,
    PortPauses,
    silences_asked,
)
from inaproto.ports import PortCounters
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.pause import pauses_of
from tests.accelerators import software_only
from tests.unit.switched_ring import block
from tests.unit.test_softnic_edge import pause

T0 = Instant(0)
QUANTUM_NS = 51.2
PLAIN = bytes(12) + b"\x08\x00" + bytes(50)


def tagged(priority: int, number: int = 0) -> bytes:
    return bytes(12) + bytes([0x81, 0, priority << 5, 7]) + b"\x08\x00" + bytes([number]) + bytes(45)


class Port:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.counters = PortCounters()
        self.pauses = PortPauses(self.send, self.counters.drop)

    def send(self, blocks: Sequence[Frames]) -> int:
        self.sent += [row.tobytes() for frames in blocks for row in frames]
        return 0

    def heard(self, frames: Frames, now: Instant) -> None:
        self.pauses.ask(silences_asked(frames), len(frames), now)

    def push(self, *frames: bytes) -> None:
        assert self.pauses.push([block(*frames)]) == 0


def test_a_pause_holds_everything_back_in_order_until_it_is_over() -> None:
    port = Port()
    port.heard(pause(100), T0)
    assert port.pauses.until == 5120
    port.push(tagged(3, 1), tagged(3, 2))
    port.push(PLAIN)
    port.pauses.release(Instant(5119))
    assert port.sent == []
    port.pauses.release(Instant(5120))
    assert port.sent == [tagged(3, 1), tagged(3, 2), PLAIN]
    assert port.pauses.status(Instant(9999)) == {"pauses": 1, "paused_ms": 0.005}


def test_a_priority_alone_is_silent_where_that_was_asked() -> None:
    port = Port()
    port.heard(pause(100, 3), T0)
    port.push(tagged(3, 1), tagged(4), tagged(3, 2))
    port.push(PLAIN)
    assert port.sent == [tagged(4), PLAIN]
    port.pauses.release(Instant(5120))
    assert port.sent == [tagged(4), PLAIN, tagged(3, 1), tagged(3, 2)]


@pytest.mark.parametrize("end", [pause(0), pause(0, 3)])
def test_who_paused_a_port_may_end_that_sooner(end: Frames) -> None:
    port = Port()
    port.heard(pause(0xFFFF, 3), T0)
    port.push(tagged(3))
    port.heard(end, Instant(1000))
    assert port.sent == [tagged(3)]
    assert port.pauses.until is None


def test_a_pause_that_is_asked_for_again_lasts_on() -> None:
    port = Port()
    port.heard(pause(100), T0)
    port.push(PLAIN)
    port.heard(pause(100), Instant(5000))
    port.pauses.release(Instant(5120))
    assert (port.sent, port.pauses.until) == ([], 10120)
    assert port.pauses.status(Instant(8_000_000)) == {"pauses": 2, "paused_ms": 8.0}


def test_what_is_held_for_too_long_is_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_pauses, "HELD_BYTES_MAX", 2 * (len(PLAIN) + BLOCK_BYTES))
    port = Port()
    port.heard(pause(100), T0)
    assert port.pauses.push([block(PLAIN), block(PLAIN), block(PLAIN), block(PLAIN, PLAIN)]) == 3
    assert port.counters.drops == {HELD_TOO_MUCH: 3}
    port.pauses.release(Instant(5120))
    assert port.sent == [PLAIN, PLAIN]
    port.heard(pause(100), Instant(6000))
    port.push(PLAIN)


def test_what_the_port_itself_does_not_take_is_lost_too() -> None:
    port = Port()
    pauses = PortPauses(lambda blocks: sum(map(len, blocks)), port.counters.drop)
    assert pauses.push([block(PLAIN), block(PLAIN, PLAIN)]) == 3


def test_the_time_of_all_pauses_is_told() -> None:
    port = Port()
    for begin in (1_000_000, 7_000_000):
        port.heard(pause(0xFFFF), Instant(begin))
        assert port.pauses.status(Instant(begin + 2_000_000))["paused_ms"] == begin // 7_000_000 * 3 + 2
        port.heard(pause(0), Instant(begin + 3_000_000))
    assert port.pauses.status(Instant(99_000_000)) == {"pauses": 4, "paused_ms": 6.0}


@pytest.mark.parametrize(
    "frame",
    [
        bytes(11) + b"\1\x08\x00\x45" + bytes(45),
        bytes(11) + b"\0\x81\x37\xff" + bytes(45),
        bytes(14),
        bytes(12) + b"\x08\x06",
    ],
    ids=["IPv4", "another type", "short", "short ARP"],
)
def test_what_has_no_tag_has_priority_0(frame: bytes) -> None:
    port = Port()
    port.heard(pause(100, 0), T0)
    port.push(frame)
    assert port.sent == []
    port.pauses.release(Instant(5120))
    assert port.sent == [frame]


def silent(ports: PausedPorts) -> tuple[list[int], Instant | None]:
    return [int(port) for port in sorted(ports.silent)], ports.until


def test_the_ports_of_a_switch_are_silent_each_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ports, one, other = PausedPorts(), Port(), Port()

    def asks(number: int, port: Port, frames: Frames, at: int = 0) -> None:
        said = silences_asked(frames)
        ports.ask(PortId(number), said, len(frames), Instant(at), port.send, port.counters.drop)

    assert silent(ports) == ([], None)
    ports.forget(PortId(1))
    asks(1, one, pause(100))
    asks(2, other, pause(200))
    asks(3, Port(), pause(0))
    assert silent(ports) == ([1, 2], 5120)
    ports.silent[PortId(1)].push([block(PLAIN)])
    monkeypatch.setattr(port_pauses, "HELD_BYTES_MAX", 0)
    ports.silent[PortId(2)].push([block(PLAIN)])
    assert (one.sent, other.counters.drops) == ([], {HELD_TOO_MUCH: 1})
    assert ports.release(Instant(5120)) == [1, 2]
    assert one.sent == [PLAIN]
    assert silent(ports) == ([2], 10240)
    asks(1, one, pause(100), 6000)
    assert ports.status(PortId(1), Instant(6000)) == {"pauses": 2, "paused_ms": 0.005}
    ports.forget(PortId(1))
    ports.forget(PortId(2))
    assert silent(ports) == ([], None)
    assert ports.status(PortId(1), Instant(9999)) == {"pauses": 0, "paused_ms": 0}


def test_other_frames_of_a_link_are_no_pauses() -> None:
    assert silences_asked(block(bytes.fromhex("0180c200000e") + bytes(54))) == {}
    for at, value in ((12, 0x08), (13, 0x09), (15, 2)):
        other = pause(9).copy()
        other[0, at] = value
        assert pauses_of(other) == []


def test_a_pause_of_everything_needs_no_padding() -> None:
    assert silences_asked(pause(100)[:, :34]) == dict.fromkeys(range(8), 5120)


def test_frames_that_came_together_say_what_the_last_ones_say_of_each_priority() -> None:
    other = block(bytes.fromhex("0180c200000e") + bytes(pause(9).shape[1] - 6))
    frames = np.concatenate([other, pause(100, 3), pause(7, 5), pause(9, 3)])
    assert len(pauses_of(frames)) == 3
    assert silences_asked(frames) == {3: 460, 5: 358}


@software_only("a board's ports are its own")
def test_the_accelerator_tells_of_frames_for_a_link_and_passes_none_on() -> None:
    accelerator = Accelerator()
    for port in range(2):
        accelerator.step(PortUp(PortId(port)), T0)
    frames = pause(100)
    (action,) = accelerator.step(FramesArrived(PortId(1), (frames,)), T0)
    assert isinstance(action, ForLink)
    assert (action.port, action.frames.tobytes()) == (1, frames.tobytes())
    assert accelerator.counters.bridged == 1, "each frame is in one of the counters, whoever it was for"


def test_priorities_that_go_on_later_are_held_until_then() -> None:
    port = Port()
    port.heard(pause(100, 3), T0)
    port.heard(pause(200, 4), T0)
    port.push(tagged(3), tagged(4))
    port.pauses.release(Instant(5120))
    assert port.sent == [tagged(3)]
    port.pauses.release(Instant(10240))
    assert port.sent == [tagged(3), tagged(4)]
