"""Training processes that are killed, and others that go on without them: real processes, a real SIGKILL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from tests.clusters.loopback import Cluster, open_cluster
from tests.daemon.elastic_rank import ELEMENTS, gradient

PLACES = (0, 0, 1, 1)
STEPS = 400
SCRIPT = Path(__file__).with_name("elastic_rank.py")
TREE = SCRIPT.parents[2]


class Rank:
    """A training process, and what it has said."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.steps = 0
        self.has_lost = trio.Event()
        self.end: list[Any] = []
        self.at_step: dict[int, trio.Event] = {}

    async def listen(self) -> None:
        assert self.process.stdout is not None
        rest = b""
        async with aclosing(aiter(self.process.stdout)) as blocks:
            async for block in blocks:
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    self._said(line.decode())
        await self.process.wait()

    def _said(self, line: str) -> None:
        word, _, value = line.partition(" ")
        if word == "step":
            self.steps = int(value)
            self.at_step.pop(self.steps, trio.Event()).set()
        elif word == "lost":
            self.has_lost.set()
        elif word == "end":
            self.end = json.loads(value)

    async def reach(self, step: int) -> None:
        if self.steps < step:
            await self.at_step.setdefault(step, trio.Event()).wait()


async def start(
    cluster: Cluster, nursery: trio.Nursery, *, steps: int = STEPS, path: str = "auto"
) -> dict[int, Rank]:
    found = {}
    environment = os.environ | {"INAPROTO_PATH": path}
    for number, host in enumerate(PLACES):
        command = [sys.executable, "-m", "tests.daemon.elastic_rank", str(number), str(len(PLACES))]
        command += [str(steps), str(cluster.hosts[host].socket)]
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, cwd=TREE, env=environment)
        found[number] = Rank(process)
        nursery.start_soon(found[number].listen)
    return found


def weights_after(history: list[list[int]], steps: int) -> list[int]:
    """Of a run that had ``size`` ranks from ``step`` on."""
    weights = np.zeros(ELEMENTS, np.int64)
    ends = [step for step, _ in history[1:]] + [steps]
    for (begin, size), end in zip(history, ends, strict=True):
        for step in range(begin, end):
            for rank in range(size):
                weights += gradient(step, rank)
    found: list[int] = weights.tolist()
    return found


def check(ranks: Mapping[int, Rank], dead: set[int], steps: int = STEPS) -> None:
    for number in dead:
        assert ranks[number].process.returncode == -9
    left = {number: rank for number, rank in ranks.items() if number not in dead}
    history = next(iter(left.values())).end[2]
    assert [size for _, size in history][-1] == len(left)
    for number, (_, rank) in enumerate(sorted(left.items())):
        assert rank.process.returncode == 0
        assert rank.end[1:3] == [number, history]
        assert rank.end[3] == weights_after(history, steps), "weights are not those of exact sums"


async def one_is_killed(ranks: Mapping[int, Rank]) -> set[int]:
    await ranks[1].reach(50)
    ranks[1].process.kill()
    return {1}


async def two_are_killed_at_once(ranks: Mapping[int, Rank]) -> set[int]:
    await ranks[0].reach(50)
    for number in (0, 3):
        ranks[number].process.kill()
    return {0, 3}


async def both_of_a_host_are_killed(ranks: Mapping[int, Rank]) -> set[int]:
    await ranks[2].reach(50)
    for number in (2, 3):
        ranks[number].process.kill()
    return {2, 3}


async def one_is_killed_and_another_as_it_hears_of_it(ranks: Mapping[int, Rank]) -> set[int]:
    await ranks[1].reach(50)
    ranks[1].process.kill()
    await ranks[2].has_lost.wait()
    ranks[2].process.kill()
    return {1, 2}


@pytest.mark.parametrize(
    "fate",
    [
        one_is_killed,
        two_are_killed_at_once,
        both_of_a_host_are_killed,
        one_is_killed_and_another_as_it_hears_of_it,
    ],
)
async def test_the_others_end_with_the_weights_of_exact_sums(
    runtime_dir: Path, fate: Callable[[Mapping[int, Rank]], Any]
) -> None:
    async with open_cluster(runtime_dir, 2) as cluster:
        async with trio.open_nursery() as nursery:
            ranks = await start(cluster, nursery)
            dead = await fate(ranks)
        check(ranks, dead)


async def test_a_rank_of_an_overlay_is_killed_and_the_others_go_on_by_a_smaller_one(
    runtime_dir: Path,
) -> None:
    async with open_cluster(runtime_dir, 3) as cluster:
        async with trio.open_nursery() as nursery:
            ranks = await start(cluster, nursery, steps=100, path="overlay")
            dead = await one_is_killed(ranks)
        check(ranks, dead, 100)
