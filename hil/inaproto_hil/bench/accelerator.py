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
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from inaproto.core import kernels
from inaproto.core.switch.accelerator import Accelerator, EmitFrames, FramesArrived, InstallRing, PortUp
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.option_types import write_report
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


def _specs(config: Config) -> list[RingSpec]:
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


def _interleaved(messages: list[list[Frames]]) -> list[Frames]:
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


def _hello(rank: int) -> Frames:
    """A broadcast from which a bridge learns where the host of ``rank`` is."""
    hello = np.zeros((1, 60), np.uint8)
    hello[0, :6] = 0xFF
    hello[0, 6:12] = np.frombuffer(host_mac(rank), np.uint8)
    return hello


class _Core:
    """The real accelerator, with its ports up and its bridge taught where the hosts are."""

    def __init__(self, config: Config) -> None:
        self.accelerator = Accelerator()
        for rank in range(config.workers):
            self.accelerator.step(PortUp(PortId(rank)), _NOW)
        for spec in _specs(config):
            refused = self.accelerator.step(InstallRing(spec), _NOW)
            if refused:
                raise click.ClickException(str(refused[0]))
        for rank in range(config.workers):
            self.accelerator.step(FramesArrived(PortId(rank), [_hello(rank)]), _NOW)
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


class _Naive:
    """The per-packet accelerator, set up alike; it takes and gives frames as ``bytes``."""

    def __init__(self, config: Config) -> None:
        self.accelerator = NaiveAccelerator(_specs(config))
        for rank in range(config.workers):
            self.accelerator.port_up(rank)
        for rank in range(config.workers):
            self.accelerator.receive(rank, _hello(rank).tobytes())

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


def _wrong(out: dict[int, list[Frames]], sums: list[NDArray[np.float32]], config: Config) -> int:
    """Elements that differ from the rings' ``sums`` over all ports; a bad ICRC spoils its whole flow."""
    parts: dict[int, list[NDArray[np.uint8]]] = {}
    for port in range(config.workers):
        for frames in out.get(port, []):
            for run in decode_runs(frames):
                if isinstance(run, RoceRun) and run.intact():
                    parts.setdefault(run.dest_qp, []).append(run.payload().ravel())
    wrong = 0
    for spec, expected in zip(_specs(config), sums, strict=True):
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
    core = _Core(config)
    naive = _Naive(config)
    senders = [
        [Sender(spec, rank, 0x1000 * rank) for spec in _specs(config)] for rank in range(config.workers)
    ]
    rng = np.random.default_rng(config.seed)
    elements = (config.packets * config.payload - INA_HEADER_BYTES) // 4
    vector_s: list[float] = []
    naive_s: list[float] = []
    wrong = 0
    for turn in progress(range(config.warmup + config.rounds)):
        batch = []
        for serial in range(turn * config.sets, (turn + 1) * config.sets):
            data = rng.standard_normal((config.workers, config.rings, elements), np.float32)
            sums = [functools.reduce(np.add, data[:, ring]) for ring in range(config.rings)]
            messages = [
                _interleaved(
                    [
                        sender.message(serial, block.view(np.uint8))
                        for sender, block in zip(of_host, blocks, strict=True)
                    ]
                )
                for of_host, blocks in zip(senders, data, strict=True)
            ]
            batch.append((messages, sums))
        vectors = [core.run(messages) for messages, _ in batch]
        loops = [naive.run(messages) for messages, _ in batch]
        for results in (vectors, loops):
            for (_, out), (_, sums) in zip(results, batch, strict=True):
                wrong += _wrong(out, sums, config)
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


@click.command()
@click.option(
    "--workers", default=4, show_default=True, type=click.IntRange(2, 64), help="Ranks in the ring."
)
@click.option(
    "--rings",
    default=1,
    show_default=True,
    type=click.IntRange(1, 16),
    help="Rings whose packets alternate one by one on every port.",
)
@click.option(
    "--payload", default=1024, show_default=True, type=click.IntRange(64, 4096), help="Path MTU in bytes."
)
@click.option(
    "--packets", default=170, show_default=True, type=click.IntRange(2, 4096), help="Packets a message."
)
@click.option(
    "--window", default=2, show_default=True, type=click.IntRange(1, 64), help="Messages in flight."
)
@click.option("--sets", default=10, show_default=True, type=click.IntRange(1, 1000), help="Sets a round.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(3, 1000), help="Timed rounds.")
@click.option("--warmup", default=2, show_default=True, type=click.IntRange(0, 100), help="Rounds not timed.")
@click.option("--seed", default=1, show_default=True, help="Of the tensor data.")
@click.option(
    "--json", "json_at", type=click.Path(dir_okay=False, allow_dash=True), help="Report file; - is stdout."
)
def accelerator(
    workers: int,
    rings: int,
    payload: int,
    packets: int,
    window: int,
    sets: int,
    rounds: int,
    warmup: int,
    seed: int,
    json_at: str | None,
) -> None:
    """Time the accelerator core alone against a per-packet loop.

    Example: inaproto bench accelerator --workers 4 --rings 2 --payload 1024 --json -

    Prints the payload rate of one core in each direction (ICRC verified and remade) and its ratio to
    the naive loop, medians over interleaved rounds with their spread. With several rings the packets of
    all of them alternate on each port: that should cost about as much a packet as one ring does. Exits 1
    if any sum was wrong.
    """
    console = Console(stderr=True)
    if payload % 8 or window & (window - 1):
        raise click.BadParameter("--payload must be a multiple of 8 and --window a power of two")
    config = Config(workers, rings, payload, packets, window, sets, rounds, warmup, seed)
    report = measure(
        config, lambda steps: track(steps, "accelerator", console=console, disable=not console.is_terminal)
    )
    low, high = report["gbps_per_core_spread"]
    console.print(
        f"kernels {report['config']['kernels']}: {report['gbps_per_core']:.2f} Gb/s each way per core "
        f"({low:.2f} to {high:.2f}), "
        f"naive {report['naive_gbps_per_core']:.2f}, ratio {report['ratio_to_naive']:.1f}, "
        f"wrong {report['wrong']}",
        highlight=False,
    )
    write_report(report, json_at)
    if report["wrong"]:
        sys.exit(1)
