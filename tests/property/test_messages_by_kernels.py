"""Messages at a NIC in bad weather, with compiled kernels and without: byte for byte the same.

Longer: ``INAPROTO_SEEDS=0:2000 pytest tests/property/test_messages_by_kernels.py``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from inaproto.core.rdma.packetiser import GatherList
from inaproto.core.rdma.reliable_connection import packets_of
from inaproto.core.rdma.requester import Message, PostWrite, Transmit
from inaproto.core.rdma.responder import Reply
from inaproto.errors import DecodeError
from inaproto.ports import QpAttributes, Segment
from inaproto.units import PSN_MASK, Frames, Instant
from inaproto.wire.icrc import seal
from inaproto.wire.roce import SYNDROME_NAK
from inaproto.wire.vector import BTH_END
from inaproto_adapters.softnic import SoftNicEngine
from tests.seeds import seeds
from tests.unit.test_softnic_arrivals import at_once, history, in_blocks, rows
from tests.unit.test_softnic_engine import LEFT, RIGHT, T0, Link

USE = Callable[[str], None]
RIGHT_QP = SoftNicEngine(RIGHT).create_qp(psn=0)


@pytest.mark.parametrize("seed", seeds(24))
def test_weather_leaves_the_same_behind(seed: int, use_kernels: USE) -> None:
    """Frames that come out, completions, memory and counters of both sides, after each batch."""
    ack_every = Random(seed).choice([1, 2, 3, 8, 64])
    use_kernels("compiled")
    compiled, _ = history(seed, at_once, ack_every)
    use_kernels("numpy")
    twin, _ = history(seed, at_once, ack_every)
    assert compiled == twin


class Receiver:
    """A NIC with two connections, of one kind of kernels, to whose frames anything may be done."""

    def __init__(self, ack_every: int = 64, *, selective: bool = False) -> None:
        self.sender = SoftNicEngine(replace(LEFT, selective=selective))
        self.nic = SoftNicEngine(replace(RIGHT, selective=selective))
        self.memory = bytearray(8 * 3000)
        self.spare = memoryview(bytes(64))
        self.source = self.sender.register_memory(memoryview(Random(5).randbytes(3000)))
        self.target = self.nic.register_memory(memoryview(self.memory))
        self.readonly = self.nic.register_memory(self.spare)
        attributes = QpAttributes(mtu=256, ack_every=ack_every)
        self.pairs = [(self.sender.create_qp(psn=0xFFFFF0), self.nic.create_qp(psn=1)) for _ in range(2)]
        for here, there in self.pairs:
            self.sender.connect_qp(here.qpn, there, attributes)
            self.nic.connect_qp(there.qpn, here, attributes)

    def message(self, pair: int, slot: int, nbytes: int, *, rkey: int) -> list[bytes]:
        here, _ = self.pairs[pair]
        segment = Segment(self.source.key, self.source.va, nbytes)
        at = {"remote_va": self.target.va + 3000 * slot, "rkey": rkey}
        self.sender.post_write_imm(here.qpn, slot, [segment], imm=slot, now=T0, **at)
        return [row.tobytes() for row in rows(self.sender.take_output())]

    def seen(self) -> object:
        taken = [row.tobytes() for row in rows(self.nic.take_output())]
        return taken, self.nic.take_completions(), self.nic.statistics(), bytes(self.memory)


def forged(rng: Random, frame: bytes) -> bytes:
    """A bit of it is another one, and its ICRC says that this is right."""
    changed = bytearray(frame)
    changed[rng.choice([*range(14), *range(14, 54), rng.randrange(len(frame))])] ^= 1 << rng.randrange(8)
    with contextlib.suppress(DecodeError):  # its headers do not say where it would be
        seal(changed)
    return bytes(changed)


def damaged(rng: Random, frame: bytes) -> bytes:
    """A bit of it is another one."""
    changed = bytearray(frame)
    changed[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("seed", seeds(60))
def test_headers_of_any_kind_are_taken_or_refused_alike(
    seed: int, use_kernels: USE, *, selective: bool
) -> None:
    rng = Random(f"{seed}/forged")
    ack_every = rng.choice([2, 4, 64])
    receivers = []
    for kernels in ("compiled", "numpy"):
        use_kernels(kernels)
        receivers.append(Receiver(ack_every, selective=selective))
    compiled, twin = receivers
    for number in range(12):
        frames: list[bytes] = []
        for pair in rng.choice([(0,), (1,), (0, 1)]):
            nbytes = rng.choice([1, 4, 255, 256, 257, 512, 1100, 2816])
            slot = rng.randrange(8)
            key = twin.target.key if rng.random() < 0.97 else rng.choice([twin.readonly.key, 77])
            sent = [receiver.message(pair, slot, nbytes, rkey=key) for receiver in receivers]
            assert sent[0] == sent[1]
            frames += sent[0]
        if rng.random() < 0.3:
            rng.shuffle(frames)
        frames = [forged(rng, frame) if rng.random() < 0.05 else frame for frame in frames]
        frames += [frame + b"\0" for frame in frames if rng.random() < 0.03]
        frames = [frame for frame in frames if rng.random() > 0.02]
        if rng.random() < 0.9:
            for receiver in receivers:
                for _, there in receiver.pairs:
                    receiver.nic.post_receive(there.qpn, number)
        blocks = in_blocks(frames)
        if rng.random() < 0.3:
            blocks = [gapped(block) for block in blocks]
        for receiver in receivers:
            at_once(receiver.nic, blocks, Instant(number))
        assert compiled.seen() == twin.seen(), f"seed {seed}, batch {number}"


@pytest.mark.parametrize("column", range(BTH_END))
def test_a_bit_of_a_header_parts_packets_of_a_message_for_both_or_for_none(
    column: int, use_kernels: USE
) -> None:
    """The second packet asks for an ACK, the bit is of a later one; how far the answer reaches is the same.

    A bit of the source address, which no ICRC looks at, once parted them for the twin alone.
    """
    for bit in range(8):
        both = []
        for kernels in ("compiled", "numpy"):
            use_kernels(kernels)
            one = Receiver(ack_every=16)
            frames = [bytearray(frame) for frame in one.message(0, 0, 2816, rkey=one.target.key)]
            for packet, frame in enumerate(frames):
                frame[50] = 0x80 * (packet == 1)
            frames[4][column] ^= 1 << bit
            for frame in frames:
                with contextlib.suppress(DecodeError):
                    seal(frame)
            at_once(one.nic, in_blocks(map(bytes, frames[:-1])), T0)
            both.append(one.seen())
        assert both[0] == both[1], f"bit {bit}"


@pytest.mark.parametrize("seed", seeds(60))
def test_acknowledgements_of_any_kind_are_taken_or_refused_alike(seed: int, use_kernels: USE) -> None:
    """Of two connections, in any order, damaged, forged, long, with other packets among them."""
    rng = Random(f"{seed}/acks")
    both = []
    for kernels in ("compiled", "numpy"):
        use_kernels(kernels)
        both.append(Receiver())
    for number in range(20):
        answers: list[list[bytes]] = []
        chosen = [rng.randrange(2) for _ in range(rng.randrange(1, 5))]
        kept = rng.random() < 0.9
        for one in both:
            frames = []
            for pair in chosen:
                one.nic.post_receive(one.pairs[pair][1].qpn, number)
                sent = [frame for frame in one.message(pair, number % 8, 300, rkey=one.target.key) if kept]
                at_once(one.nic, in_blocks(sent), Instant(number))
                frames += [row.tobytes() for row in rows(one.nic.take_output())]
            answers.append(frames)
        assert answers[0] == answers[1]
        frames = [forged(rng, frame) if rng.random() < 0.1 else frame for frame in answers[0]]
        frames = [damaged(rng, frame) if rng.random() < 0.1 else frame for frame in frames]
        frames += [frame + b"\0" for frame in frames if rng.random() < 0.03]
        frames += [rng.randbytes(62) for _ in range(rng.random() < 0.1)]
        if rng.random() < 0.3:
            rng.shuffle(frames)
        for one in both:
            at_once(one.sender, in_blocks(frames), Instant(number))
        seen = [
            (
                one.sender.take_completions(),
                one.sender.statistics(),
                [row.tobytes() for row in rows(one.sender.take_output())],
            )
            for one in both
        ]
        assert seen[0] == seen[1], f"seed {seed}, batch {number}"


def gapped(block: Frames) -> Frames:
    """The same rows, farther apart in memory, as some ports have them."""
    wide = np.zeros((len(block), block.shape[1] + 96), np.uint8)
    wide[:, 7 : 7 + block.shape[1]] = block
    return wide[:, 7 : 7 + block.shape[1]]


def test_most_packets_in_good_weather_go_by_the_kernel(
    use_kernels: USE, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison is worth as much as what goes by it."""
    use_kernels("compiled")
    link = Link(ack_every=64)
    for engine in (link.left, link.right):
        monkeypatch.setattr(engine._receiving, "frames", pytest.fail)
    for number in range(3):
        link.right.post_receive(link.there.qpn, number)
        link.write(90_001)
        link.to_right()
        (received,) = link.right.take_completions()
        assert (received.wr_id, received.nbytes) == (number, 90_001)
        assert link.target[:90_001] == link.source[:90_001]
        link.target[:] = bytes(100_000)
        link.to_left()
    assert link.right.responder_steps == 6  # three receives and three messages


@pytest.mark.parametrize("seed", seeds(60))
def test_what_comes_behind_gaps_is_kept_alike(seed: int, use_kernels: USE) -> None:
    """Packets of long messages are lost, come late, twice, in another order, damaged, or all again."""
    rng = Random(f"{seed}/gaps")
    both = []
    for kernels in ("compiled", "numpy"):
        use_kernels(kernels)
        both.append(Receiver(selective=True))
    late: list[bytes] = []
    for number in range(16):
        for one in both:
            one.nic.post_receive(one.pairs[0][1].qpn, number)
        sent = [one.message(0, number % 8, 2816, rkey=one.target.key) for one in both]
        assert sent[0] == sent[1]
        fates = rng.choices(("now", "late", "twice", "damaged"), (80, 15, 3, 2), k=len(sent[0]))
        frames = [frame for frame, fate in zip(sent[0], fates, strict=True) if fate != "late"]
        frames += [frame for frame, fate in zip(sent[0], fates, strict=True) if fate == "twice"]
        frames = [damaged(rng, frame) if rng.random() < 0.02 else frame for frame in frames]
        if rng.random() < 0.2:  # it begins once more
            end = rng.randrange(2, 11)
            parts = [late, sent[0][rng.randrange(2) : end], sent[0][: end + 1]]
            late = sent[0][end + 1 :]
        else:
            parts = [frames + late]
            late = [frame for frame, fate in zip(sent[0], fates, strict=True) if fate != "now"]
        if rng.random() < 0.2:
            rng.shuffle(parts[0])
        for part in parts:
            for one in both:
                at_once(one.nic, in_blocks(part), Instant(number))
            assert both[0].seen() == both[1].seen(), f"seed {seed}, batch {number}"


@pytest.mark.parametrize("between", [(), (5,), (9,)], ids=["nothing", "early", "damaged"])
def test_packets_that_close_a_gap_together_have_one_answer_for_all(
    between: tuple[int, ...], use_kernels: USE
) -> None:
    """4.4.2: without the first packet of their message none of them could be kept when they came first."""
    for kernels in ("compiled", "numpy"):
        use_kernels(kernels)
        one = Receiver(selective=True)
        frames = one.message(0, 0, 2816, rkey=one.target.key)
        damaged = bytearray(frames[9])
        damaged[-7] ^= 4
        frames[9] = bytes(damaged)
        at_once(one.nic, in_blocks(frames[1:4]), T0)
        [told] = one.nic.take_output()
        assert told[0, BTH_END] == SYNDROME_NAK
        order = (1, *between, 2, 3)
        at_once(one.nic, in_blocks([frames[0], *(frames[at] for at in order)]), T0)
        [[answer]] = one.nic.take_output()
        newest = int.from_bytes(answer[51:54].tobytes(), "big") - 0xFFFFF0
        assert (newest, answer[BTH_END]) == ((4, SYNDROME_NAK) if between == (5,) else (3, 0x1F)), kernels


@pytest.mark.parametrize("seed", seeds(200))
def test_packets_of_any_part_of_a_message_are_built_alike(seed: int, use_kernels: USE) -> None:
    """Pieces of any length, numbers that wrap, pads, with an immediate and without, parts and probes."""
    rng = Random(f"{seed}/build")
    mtu = rng.choice([256, 1024])
    sizes = [rng.choice([0, 1, 40, 256, 3000, rng.randrange(5000)]) for _ in range(rng.randrange(1, 6))]
    memory = Random(seed).randbytes(sum(sizes) or 1)
    imm = rng.choice([None, 0, rng.randrange(1 << 32)])
    write = PostWrite(1, sum(sizes), rng.randrange(1 << 64), rng.randrange(1 << 32), imm)
    message = Message(write, 0, 0, packets_of(write.nbytes, mtu))
    first = rng.choice([0, rng.randrange(message.packets)])
    count = rng.choice([1, message.packets - first, rng.randrange(message.packets - first) + 1])
    every = rng.choice([1, 2, 7, 256])
    asking = rng.choice([range(first, first + 1), range(first // every * every, first + count, every)])
    order = Transmit(message, first, count, rng.choice([5, 0xFFFFF0]), asking)
    segments = []
    built = []
    for kernels in ("compiled", "numpy"):
        use_kernels(kernels)
        engine = SoftNicEngine(LEFT, reuses_output=seed % 2 == 0)
        region = engine.register_memory(memoryview(memory))
        qpn = engine.create_qp(psn=0).qpn
        engine.connect_qp(qpn, RIGHT_QP, QpAttributes(mtu=mtu, traffic_class=seed % 256))
        ends = list(itertools.accumulate(sizes))
        segments = [Segment(region.key, region.va + end - n, n) for end, n in zip(ends, sizes, strict=True)]
        connection = engine._qps[qpn].connection
        assert connection is not None
        connection.gathers[0] = GatherList(*engine._memory.sources(segments))
        engine._output._ip_id = 0xFFFF - seed % 300
        for _ in range(3):  # in the same memory, if it is used again
            for _ in range(2):
                engine._output.transmit(connection, order)
            built.append([block.tolist() for block in engine.take_output()])
    assert built[:3] == built[3:]


@pytest.mark.parametrize("seed", seeds(60))
def test_acknowledgements_are_built_alike(seed: int, use_kernels: USE) -> None:
    rng = Random(f"{seed}/acknowledge")
    replies = [
        Reply(rng.choice([0, PSN_MASK, rng.randrange(1 << 24)]), rng.randrange(256), rng.randrange(1 << 24))
        for _ in range(rng.randrange(1, 5))
    ]
    first_id = rng.choice([0, 0xFFFE, rng.randrange(1 << 16)])
    built = []
    for kernels in ("compiled", "numpy"):
        use_kernels(kernels)
        engine = SoftNicEngine(LEFT, reuses_output=seed % 2 == 0)
        qpn = engine.create_qp(psn=0).qpn
        engine.connect_qp(qpn, RIGHT_QP, QpAttributes(traffic_class=seed % 256, udp_source_port=seed << 8))
        connection = engine._qps[qpn].connection
        assert connection is not None
        engine._output._ip_id = first_id
        for _ in range(2):
            connection.replies += replies
            engine._output.acknowledge(connection)
            assert not connection.replies
            built.append([block.tolist() for block in engine.take_output()])
    assert built[:2] == built[2:]
