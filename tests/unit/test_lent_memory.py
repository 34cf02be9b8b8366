"""Results are built in the memory of the port by which they leave: the same frames, without a copy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import pytest

from inaproto.core.switch.accelerator import (
    Accelerator,
    EmitFrames,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
)
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto_adapters.frames.shared_ring import (
    DATA_BYTES_MIN,
    LendingWriter,
    RingBroken,
    RingShape,
    open_reader,
    open_writer,
)
from inaproto_hil.bench.traffic import Sender, host_mac, ring_spec

RANKS = 3
PACKETS = 40
NOW = Instant(0)


@pytest.fixture(autouse=True)
def _compiled(use_kernels: Callable[[str], None]) -> None:
    use_kernels("compiled")


class Port:
    """Lends from ``nbytes`` of memory, from the start again once settled."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.zeros(nbytes, np.uint8)
        self.used = self.settled = 0

    def lent_memory(self) -> Frames:
        return self.memory

    def lend(self, nbytes: int) -> int:
        if self.used + nbytes > len(self.memory):
            return -1
        self.used += nbytes
        return self.used - nbytes

    def settle(self) -> None:
        self.used = 0
        self.settled += 1


class Rig:
    """A ring with a port for each rank, and what left by each."""

    def __init__(self, lenders: list[Port | None], payload: int = 1024) -> None:
        self.accelerator = Accelerator()
        self.lenders, self.packets = lenders, PACKETS
        spec = ring_spec(RANKS, packets=PACKETS, mtu=payload)
        self.senders = [Sender(spec, rank, 0x1000 * rank + 1) for rank in range(RANKS)]
        for rank, lender in enumerate(lenders):
            self.accelerator.step(PortUp(PortId(rank), lender), NOW)
        assert self.accelerator.step(InstallRing(spec), NOW) == []
        for rank in range(RANKS):
            hello = np.zeros((1, 60), np.uint8)
            hello[0, :6] = 0xFF
            hello[0, 6:12] = np.frombuffer(host_mac(rank), np.uint8)
            self.accelerator.step(FramesArrived(PortId(rank), [hello]), NOW)

    def messages(self, serials: range) -> list[EmitFrames]:
        """Results of some messages, of which each rank sends all together."""
        sent = []
        for rank, sender in enumerate(self.senders):
            blocks = []
            for serial in serials:
                data = np.arange(PACKETS * 1024 - INA_HEADER_BYTES) * (rank + serial + 1) % 64
                blocks += sender.message(serial, data.astype(np.uint8))
            sent += self.accelerator.step(FramesArrived(PortId(rank), blocks), NOW)
        return [one for one in sent if isinstance(one, EmitFrames)]


def by_port(sent: list[EmitFrames]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for one in sent:
        found.setdefault(one.port, []).extend(row.tobytes() for row in one.frames)
    return found


def is_in(frames: Frames, port: Port) -> bool:
    return np.shares_memory(frames, port.memory)


@pytest.mark.parametrize("has", [(True, True, True), (True, False, True), (False, False, True)])
def test_the_same_frames_leave_by_each_port(has: tuple[bool, ...]) -> None:
    ports = [Port(1 << 20) if one else None for one in has]
    lending, plain = Rig(list(ports)), Rig([None] * RANKS)
    for first in range(0, 8, 2):
        sent = lending.messages(range(first, first + 2))
        assert by_port(sent) == by_port(plain.messages(range(first, first + 2)))
        for port, lender in enumerate(ports):
            frames = [one.frames for one in sent if one.port == port]
            assert sum(map(len, frames)) == 2 * PACKETS
            assert all(lender is not None and is_in(one, lender) for one in frames) is has[port]
        # Rank 1 and 2 come behind the step of rank 0: what was lent in the last one is given back later.
        assert [port.settled for port in ports if port is not None] == [first // 2] * sum(has)


def test_what_a_port_has_no_room_for_is_built_elsewhere() -> None:
    small = Port(60 << 10)
    lending, plain = Rig([small, None, Port(0)]), Rig([None] * RANKS)
    sent = lending.messages(range(2))
    assert by_port(sent) == by_port(plain.messages(range(2)))
    there = [is_in(one.frames, small) for one in sent if one.port == 0]
    assert any(there), "one message"
    assert not all(there), "of two"


def test_nothing_is_built_in_the_memory_of_a_port_that_went_down() -> None:
    port = Port(1 << 20)
    rig = Rig([port, None, None])
    rig.messages(range(1))
    assert port.used
    rig.accelerator.step(PortDown(PortId(0)), NOW)
    assert port.settled == 1
    rig.accelerator.step(PortUp(PortId(0)), NOW)
    rig.messages(range(1, 2))
    assert not port.used


def test_small_results_are_copied() -> None:
    """Each port would cost a call."""
    port = Port(1 << 20)
    rig = Rig([port] * RANKS)
    sender = [s.message(0, np.zeros(100, np.uint8)) for s in rig.senders]
    for rank, blocks in enumerate(sender):
        rig.accelerator.step(FramesArrived(PortId(rank), blocks), NOW)
    assert not port.used


# ---- a ring's memory

SHAPE = RingShape(64, DATA_BYTES_MIN)
_ROWS_MAX = 9


def ring() -> tuple[LendingWriter, Frames]:
    memory = np.zeros(SHAPE.nbytes, np.uint8)
    writer = open_writer(memory, SHAPE)
    assert isinstance(writer, LendingWriter)
    return writer, memory


class Walk:
    """Frames at random, in lent memory and elsewhere, and a reader that looks now and then."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.writer, memory = ring()
        self.reader = open_reader(memory, SHAPE, 1 << 14)
        self.sent: deque[bytes] = deque()
        self.held: list[tuple[Frames, bytes]] = []
        self.refused = self.stayed = 0

    def block(self) -> Frames:
        rows, length = int(self.rng.integers(1, _ROWS_MAX)), int(self.rng.integers(60, 1500))
        if self.rng.random() < 0.7:
            at = self.writer.lend(rows * length)
            if at >= 0:
                self.stayed += 1
                frames = self.writer.data[at : at + rows * length].reshape(rows, length)
                frames[:] = self.rng.integers(0, 256, (rows, length), np.uint8)
                return frames
            self.refused += 1
        return self.rng.integers(0, 256, (rows, length), np.uint8)

    def send(self) -> None:
        self.writer.settle()
        blocks = [self.block() for _ in range(int(self.rng.integers(0, 6)))]
        if blocks and self.rng.random() < 0.2:
            blocks.pop()  # which never is sent
        whole = [row.tobytes() for block in blocks for row in block]
        self.sent.extend(whole[: self.writer.push(blocks).frames])

    def look(self) -> None:
        for row, data in self.held:
            assert row.tobytes() == data, "until the next look"
        blocks, _, _ = self.reader.take()
        rows = [row for block in blocks for row in block]
        for row in rows:
            assert row.tobytes() == self.sent.popleft()
        self.held = [(row, row.tobytes()) for row in rows]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_sent_comes_whole_and_stays_until_the_next_look(seed: int) -> None:
    walk = Walk(seed)
    often = walk.rng.random()
    for _ in range(400):
        walk.send()
        if walk.rng.random() < often:
            walk.look()
    while walk.sent:
        walk.look()
    assert walk.stayed
    assert walk.refused or often > 0.3, "a reader that is slow leaves no memory to lend"


def test_memory_is_used_again_once_the_reader_has_done_with_it() -> None:
    """The cache still holds it."""
    writer, memory = ring()
    reader = open_reader(memory, SHAPE, 1 << 14)
    places = set()
    for _ in range(50):
        writer.settle()
        at = writer.lend(1000)
        places.add(at)
        assert writer.push([writer.data[at : at + 1000].reshape(1, 1000)]).frames == 1
        assert reader.take()[1] == 1
        assert reader.take()[1] == 0
    assert len(places) == 1


def test_no_more_is_lent_than_a_chunk_and_not_the_last_ones() -> None:
    writer, _ = ring()
    assert writer.lend(SHAPE.chunk_bytes + 1) == -1
    places = [writer.lend(SHAPE.chunk_bytes) for _ in range(SHAPE.chunks)]
    lent = [at for at in places if at >= 0]
    assert len(set(lent)) == len(lent) == SHAPE.chunks - 2, "one is for copies, and a spare"
    assert writer.push([np.zeros((1, 60), np.uint8)]).frames == 1


def test_a_reader_that_says_what_cannot_be_is_found_out_when_frames_are_sent() -> None:
    writer, memory = ring()
    memory[64:72] = 0xFF
    at = writer.lend(60)
    with pytest.raises(RingBroken):
        writer.push([writer.data[at : at + 60].reshape(1, 60)])
