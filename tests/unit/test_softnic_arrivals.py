"""Frames that arrive alone at the softnic engine, and the same frames in vectors: nothing may differ.

A frame alone is taken in without arrays; with a byte of Ethernet padding behind it, which no receiver
minds, it goes the way of the vectors. So the two ways can be compared frame by frame, and blocks of many
frames with blocks of one in the same call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import numpy as np
import pytest

from inaproto.ports import Completion, QpAttributes, Segment
from inaproto.units import Frames, Instant
from inaproto_adapters.softnic import SoftNicEngine
from tests.unit.test_softnic_engine import LEFT, RIGHT, T0, Link

Deliver = Callable[[SoftNicEngine, Sequence[Frames], Instant], None]
ARRIVALS = ("packets_received", "icrc_errors", "not_for_us", "unknown_qp", "wrong_source", "other_frames")
ARP_REQUEST = b"\xff" * 6 + LEFT.mac + bytes.fromhex("08060001080006040001") + LEFT.mac + LEFT.ip + bytes(6)


def at_once(engine: SoftNicEngine, blocks: Sequence[Frames], now: Instant) -> None:
    engine.handle_frames(blocks, now)


def rows(blocks: Iterable[Frames]) -> list[Frames]:
    return [block[row : row + 1] for block in blocks for row in range(len(block))]


def one_row_blocks(engine: SoftNicEngine, blocks: Sequence[Frames], now: Instant) -> None:
    engine.handle_frames(rows(blocks), now)


def one_by_one(engine: SoftNicEngine, blocks: Sequence[Frames], now: Instant) -> None:
    for row in rows(blocks):
        engine.handle_frames([row], now)


def one_by_one_padded(engine: SoftNicEngine, blocks: Sequence[Frames], now: Instant) -> None:
    for row in rows(blocks):
        engine.handle_frames([np.pad(row, ((0, 0), (0, 1)))], now)


def weathered(rng: Random, blocks: Sequence[Frames]) -> list[Frames]:
    """Frames lost, damaged, repeated, overtaken, and others between; neighbours of one length in a block."""
    frames = [row.tobytes() for row in rows(blocks)]
    out: list[bytes] = []
    for frame in frames:
        kind = rng.randrange(24)
        if kind == 0:
            continue
        if kind == 1:
            harmed = bytearray(frame)
            harmed[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            frame = bytes(harmed)
        out.append(frame)
        if kind == 2:
            out.append(frame)
        elif kind == 3:
            out.append(rng.choice(frames))
        elif kind == 4 and len(out) > 2:
            out.insert(len(out) - 3, out.pop())
        elif kind == 5:
            out.append(rng.choice([b"", ARP_REQUEST + RIGHT.ip, rng.randbytes(80), frame[:60]]))
    return in_blocks(out)


def in_blocks(frames: Iterable[bytes]) -> list[Frames]:
    """Neighbours of one length in a block, as a port gives them."""
    grouped: list[list[bytes]] = []
    for frame in frames:
        if grouped and len(grouped[-1][0]) == len(frame):
            grouped[-1].append(frame)
        else:
            grouped.append([frame])
    return [np.frombuffer(b"".join(group), np.uint8).reshape(len(group), -1) for group in grouped]


def history(seed: int, deliver: Deliver, ack_every: int = 2) -> tuple[list[object], Link]:
    """Everything that can be seen of two engines while writes go through bad weather."""
    rng = Random(f"{seed}/nic")
    link = Link(mtu=256, ack_every=ack_every)
    seen: list[object] = []
    arrived = {link.left: 0, link.right: 0}
    now = T0
    link.write(6000)
    for number in range(200):
        for _ in range(rng.choice([0, 1, 2]) if number < 25 else 0):
            link.write(rng.choice([1, 255, 256, 700, 1024, 6000]), wr_id=number, imm=number, now=now)
        if rng.random() < 0.8:
            link.right.post_receive(link.there.qpn, number)
        for source, target in ((link.left, link.right), (link.right, link.left)):
            blocks = source.take_output()
            seen.append([row.tobytes() for row in rows(blocks)])
            blocks = weathered(rng, blocks) if number < 40 else blocks
            arrived[target] += sum(len(block) for block in blocks)
            deliver(target, blocks, now)
            statistics = target.statistics()
            assert sum(statistics[name] for name in ARRIVALS) == arrived[target], f"seed {seed}: {statistics}"
            completed: list[Completion] = target.take_completions()
            seen += [completed, statistics, target.deadline, bytes(link.target[:6000])]
        deadline = link.left.deadline
        now = Instant(now + 1000)
        if deadline is not None and rng.random() < 0.3:
            now = max(now, deadline)
            link.left.handle_timer(now)
    return seen, link


@pytest.mark.parametrize("seed", range(12))
def test_frames_alone_are_taken_in_as_vectors_are(seed: int) -> None:
    """Byte for byte what comes out, every completion, the memory, every counter."""
    alone, link = history(seed, one_by_one)
    padded, _ = history(seed, one_by_one_padded)
    assert alone == padded
    assert link.target[:6000] == link.source[:6000]
    assert link.left.deadline is None


@pytest.mark.parametrize("seed", range(12))
def test_blocks_of_one_frame_are_taken_in_as_blocks_of_many(seed: int) -> None:
    """Only last packets ask for ACKs here: the answer to one inside a vector may cover what is behind it."""
    many, link = history(seed, at_once, ack_every=64)
    single, _ = history(seed, one_row_blocks, ack_every=64)
    assert many == single
    assert link.target[:6000] == link.source[:6000]


class Links:
    """Two engines with three connected queue pairs each; a message of each goes to a place of its own."""

    def __init__(self) -> None:
        self.left, self.right = SoftNicEngine(LEFT), SoftNicEngine(RIGHT)
        self.source, self.target = bytearray(Random(3).randbytes(90_000)), bytearray(90_000)
        self._from = self.left.register_memory(memoryview(self.source))
        self._to = self.right.register_memory(memoryview(self.target))
        self.pairs = [(self.left.create_qp(psn=9 * i), self.right.create_qp(psn=7 * i)) for i in range(3)]
        for here, there in self.pairs:
            self.left.connect_qp(here.qpn, there, QpAttributes(mtu=256))
            self.right.connect_qp(there.qpn, here, QpAttributes(mtu=256))

    def write(self, pair: int, number: int, nbytes: int) -> list[bytes]:
        """The packets of the message."""
        here, there = self.pairs[pair]
        self.right.post_receive(there.qpn, number)
        at = 30_000 * pair
        segment = Segment(self._from.key, self._from.va + at, nbytes)
        target = {"remote_va": self._to.va + at, "rkey": self._to.key}
        self.left.post_write_imm(here.qpn, number, [segment], imm=number, now=T0, **target)
        return [row.tobytes() for row in rows(self.left.take_output())]

    def outcome(self) -> object:
        """Completions and last answers by queue pair, for between them no order is promised; the memory."""
        completed: dict[int, list[Completion]] = {}
        for completion in self.right.take_completions():
            completed.setdefault(completion.qpn, []).append(completion)
        answers = {
            row[0, 46:50].tobytes(): row[0, 50:].tobytes()[:8] for row in rows(self.right.take_output())
        }
        statistics = self.right.statistics()
        counted = {name: n for name, n in statistics.items() if name not in ("acks_sent", "packets_sent")}
        return completed, answers, counted, bytes(self.target)


@pytest.mark.parametrize("seed", range(20))
def test_connections_whose_packets_alternate_are_taken_as_packets_one_by_one(seed: int) -> None:
    rng = Random(f"{seed}/alternating")
    together, alone = Links(), Links()
    for number in range(6):
        lengths = [rng.choice([12, 256, 2560, 9000]) for _ in range(3)]
        sent = [together.write(pair, number, nbytes) for pair, nbytes in enumerate(lengths)]
        assert sent == [alone.write(pair, number, nbytes) for pair, nbytes in enumerate(lengths)]
        flows = [iter(frames) for frames in sent]
        mixed: list[bytes] = []
        while flows:
            flow = rng.choice(flows)
            frame = next(flow, None)
            if frame is None:
                flows.remove(flow)
            elif rng.random() > 0.01:
                mixed.append(frame)
        blocks = in_blocks(mixed)
        at_once(together.right, blocks, T0)
        one_by_one(alone.right, blocks, T0)
        assert together.outcome() == alone.outcome()


def test_acknowledgements_of_one_receive_are_taken_connection_by_connection() -> None:
    links = Links()
    acks: list[bytes] = []
    for number, pair in enumerate((0, 2, 0, 1, 2)):
        at_once(links.right, in_blocks(links.write(pair, number, 600)), T0)
        acks += [row.tobytes() for row in rows(links.right.take_output())]
    damaged = acks[2][:55] + b"\x55" + acks[2][56:]
    (block,) = in_blocks([*acks[:2], damaged, *acks[2:]])
    at_once(links.left, [block], T0)
    pairs = [here.qpn for here, _ in links.pairs]
    completed = [(pairs.index(done.qpn), done.wr_id) for done in links.left.take_completions()]
    assert completed == [(0, 0), (0, 2), (2, 1), (2, 4), (1, 3)]
    statistics = links.left.statistics()
    assert (statistics["packets_received"], statistics["icrc_errors"]) == (5, 1)


def test_the_weather_reaches_every_counter_of_arrivals() -> None:
    """The comparison is worth as much as what happens in it."""
    total = dict.fromkeys((*ARRIVALS, "duplicates", "out_of_sequence", "naks_sent", "rnr_naks_sent"), 0)
    for seed in range(12):
        _, link = history(seed, one_by_one)
        for engine in (link.left, link.right):
            for name in total:
                total[name] += engine.statistics()[name]
    assert all(total.values()), total
