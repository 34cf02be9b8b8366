"""``inaproto bench accelerator``: the accelerator core alone, vectors in and out, against the naive loop.

What is timed: ``Accelerator.step`` on the packets of one worker's message after the other's, as a frame
port hands them over (first, middle and last packets in blocks of one length, in a receive buffer that
was just written). ICRCs are verified on the way in and remade on the way out. What is not timed: making
the packets, copying them into the receive buffer and out again (a port's work). Both contenders get the
same packets, interleaved set by set; every result is compared with a numpy sum.

With several rings every host sends a message of each, and their packets alternate one by one, as those of a
NIC with several busy queue pairs do: first packets, middle ones and last ones are a block each.

A *set* is one message of each worker and ring; a round runs some sets through one contender, then the same
ones through the other, as a switch under load would: with warm caches. Rates count tensor bytes, not
headers, in one direction (as many leave as arrive), over CPU seconds of the thread.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from inaproto.core import kernels
from inaproto.core.switch.accelerator import Accelerator, EmitFrames, FramesArrived, InstallRing, PortUp
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.crc import CRC_IMPLEMENTATION
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto.wire.vector import RoceRun, decode_runs
from inaproto_hil.bench.naive import NaiveAccelerator
from inaproto_hil.bench.traffic import Sender, host_mac, ring_spec
from inaproto_hil.rigs import environment

_NOW = Instant(0)


@dataclass(frozen=True, slots=True)
class Config:
    workers: int
    rings: int
    payload: int
    packets: int
    window: int
    sets: int
    rounds: int
    warmup: int
    seed: int

    @property
    def elements(self) -> int:
        """Of a message."""
        return (self.packets * self.payload - INA_HEADER_BYTES) // 4


class _ReceiveBuffer:
    """Where a port's receive would put the frames of one wake-up."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = np.empty(nbytes, np.uint8)

    def fill(self, blocks: list[Frames]) -> list[Frames]:
        at = 0
        views = []
        for block in blocks:
            view = self._bytes[at : at + block.size].reshape(block.shape)
            view[...] = block
            views.append(view)
            at += block.size
        return views


def specs_of(config: Config) -> list[RingSpec]:
    """The rings, with all hosts in each."""
    return [
        ring_spec(
            config.workers,
            window=config.window,
            packets=config.packets,
            mtu=config.payload,
            ring_id=1 + number,
        )
        for number in range(config.rings)
    ]


def interleaved(messages: list[list[Frames]]) -> list[Frames]:
    """Messages of several rings, packet by packet: of each a packet, then of each the next."""
    if len(messages) == 1:
        return messages[0]
    blocks = []
    for parts in zip(*messages, strict=True):
        mixed = np.empty((len(parts) * len(parts[0]), parts[0].shape[1]), np.uint8)
        for number, part in enumerate(parts):
            mixed[number :: len(parts)] = part
        blocks.append(mixed)
    return blocks


def senders_of(config: Config) -> list[list[Sender]]:
    """Those of each host, one for each ring."""
    specs = specs_of(config)
    return [[Sender(spec, rank, 0x1000 * rank) for spec in specs] for rank in range(config.workers)]


def sums_of(data: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """The rings' sums of ``data``: by host, ring and element."""
    return [functools.reduce(np.add, data[:, ring]) for ring in range(data.shape[1])]


Sets = list[tuple[list[list[Frames]], list[NDArray[np.float32]]]]
"""Messages of each host, and what their sums have to be."""


class Packets:
    """What the hosts send, one set after the other: a message of each ring from each of them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._senders = senders_of(config)
        self._rng = np.random.default_rng(config.seed)
        self._serial = 0

    def prepared(self, sets: int) -> Sets:
        """The next ``sets``."""
        config, batch = self._config, []
        for serial in range(self._serial, self._serial + sets):
            data = self._rng.standard_normal((config.workers, config.rings, config.elements), np.float32)
            messages = [
                interleaved(
                    [
                        sender.message(serial, block.view(np.uint8))
                        for sender, block in zip(of_host, blocks, strict=True)
                    ]
                )
                for of_host, blocks in zip(self._senders, data, strict=True)
            ]
            batch.append((messages, sums_of(data)))
        self._serial += sets
        return batch


def hello(rank: int) -> Frames:
    """Frame of a broadcast, uint8 (1, 60), from which a bridge learns where the host of ``rank`` is."""
    hello = np.zeros((1, 60), np.uint8)
    hello[0, :6] = 0xFF
    hello[0, 6:12] = np.frombuffer(host_mac(rank), np.uint8)
    return hello


class Core:
    """The real accelerator, with its ports up and its bridge taught where the hosts are."""

    def __init__(self, config: Config) -> None:
        self.accelerator = Accelerator()
        for rank in range(config.workers):
            self.accelerator.step(PortUp(PortId(rank)), _NOW)
        for spec in specs_of(config):
            refused = self.accelerator.step(InstallRing(spec), _NOW)
            if refused:
                raise click.ClickException(str(refused[0]))
        for rank in range(config.workers):
            self.accelerator.step(FramesArrived(PortId(rank), [hello(rank)]), _NOW)
        self._buffer = _ReceiveBuffer(config.rings * config.packets * (config.payload + 128))

    def run(self, messages: list[list[Frames]]) -> tuple[float, dict[int, list[Frames]]]:
        """One set: CPU seconds, and the frames that left by port."""
        out: dict[int, list[Frames]] = {}
        seconds = 0.0
        for rank, blocks in enumerate(messages):
            received = self._buffer.fill(blocks)
            begin = time.thread_time()
            actions = self.accelerator.step(FramesArrived(PortId(rank), received), _NOW)
            seconds += time.thread_time() - begin
            for action in actions:
                assert isinstance(action, EmitFrames), action
                out.setdefault(action.port, []).append(action.frames.copy())
        return seconds, out

    def sum(self, messages: list[list[Frames]]) -> None:
        """One set, whose results nobody looks at."""
        for rank, blocks in enumerate(messages):
            self.accelerator.step(FramesArrived(PortId(rank), self._buffer.fill(blocks)), _NOW)


class _Naive:
    """The per-packet accelerator, set up alike; it takes and gives frames as ``bytes``."""

    def __init__(self, config: Config) -> None:
        self.accelerator = NaiveAccelerator(specs_of(config))
        for rank in range(config.workers):
            self.accelerator.port_up(rank)
        for rank in range(config.workers):
            self.accelerator.receive(rank, hello(rank).tobytes())

    def run(self, messages: list[list[Frames]]) -> tuple[float, dict[int, list[Frames]]]:
        """One set: CPU seconds, and the frames that left by port."""
        out: dict[int, list[Frames]] = {}
        seconds = 0.0
        for rank, blocks in enumerate(messages):
            received = [row.tobytes() for block in blocks for row in block]
            begin = time.thread_time()
            answers = self.accelerator.receive_batch(rank, received)
            seconds += time.thread_time() - begin
            for port, frame in answers:
                out.setdefault(port, []).append(np.frombuffer(frame, np.uint8)[None])
        return seconds, out


def wrong_in(out: dict[int, list[Frames]], sums: list[NDArray[np.float32]], config: Config) -> int:
    """Elements that differ from the rings' ``sums`` over all ports; a bad ICRC spoils its whole flow."""
    parts: dict[int, list[NDArray[np.uint8]]] = {}
    for port in range(config.workers):
        for frames in out.get(port, []):
            for run in decode_runs(frames):
                if isinstance(run, RoceRun) and run.intact():
                    parts.setdefault(run.dest_qp, []).append(run.payload().ravel())
    wrong = 0
    for spec, expected in zip(specs_of(config), sums, strict=True):
        for flow in spec.flows:
            body = np.concatenate(parts.get(flow.dst_qp, [np.empty(0, np.uint8)]))
            got = body[INA_HEADER_BYTES:].view(np.float32)
            if got.shape != expected.shape:
                wrong += expected.size
            else:
                wrong += int(np.count_nonzero(got.view(np.uint32) != expected.view(np.uint32)))
    return wrong


def measure(config: Config, progress: Callable[[range], Any] = iter) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command."""
    core = Core(config)
    naive = _Naive(config)
    packets = Packets(config)
    elements = config.elements
    vector_s: list[float] = []
    naive_s: list[float] = []
    wrong = 0
    for turn in progress(range(config.warmup + config.rounds)):
        batch = packets.prepared(config.sets)
        vectors = [core.run(messages) for messages, _ in batch]
        loops = [naive.run(messages) for messages, _ in batch]
        for results in (vectors, loops):
            for (_, out), (_, sums) in zip(results, batch, strict=True):
                wrong += wrong_in(out, sums, config)
        if turn >= config.warmup:
            vector_s.append(sum(seconds for seconds, _ in vectors))
            naive_s.append(sum(seconds for seconds, _ in loops))
    flows = config.workers * config.rings * config.sets
    bits = 8 * 4 * elements * flows
    gbps = [bits / seconds / 1e9 for seconds in vector_s]
    naive_gbps = [bits / seconds / 1e9 for seconds in naive_s]
    ratios = [slow / fast for slow, fast in zip(naive_s, vector_s, strict=True)]
    return {
        "version": 1,
        "benchmark": "accelerator",
        "config": asdict(config)
        | {
            "dtype": "float32",
            "op": "sum",
            "crc": CRC_IMPLEMENTATION,
            "naive_crc": "zlib",
            "kernels": kernels.description(),
        },
        "env": environment.describe(),
        "gbps_per_core": statistics.median(gbps),
        "gbps_per_core_spread": [min(gbps), max(gbps)],
        "naive_gbps_per_core": statistics.median(naive_gbps),
        "naive_gbps_per_core_spread": [min(naive_gbps), max(naive_gbps)],
        "ratio_to_naive": statistics.median(ratios),
        "ratio_to_naive_spread": [min(ratios), max(ratios)],
        "packets_per_second": config.packets * flows / statistics.median(vector_s),
        "wrong": wrong,
        "samples_us": [seconds * 1e6 for seconds in vector_s],
        "naive_samples_us": [seconds * 1e6 for seconds in naive_s],
    }
