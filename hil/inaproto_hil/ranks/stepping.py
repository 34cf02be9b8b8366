"""The loop of every rank: arrays are filled, reduced when all ranks are ready, then compared with their sums.

A *turn* is some all-reduces of one size, one after the other, or in groups that are started together. Before
those that are timed there is a small one, which wakes all processes and lets them begin together. The bench
steps all ranks through a turn over a UNIX socket, one JSON object a line:

    bench: prepare   rank: ready          arrays hold what this rank adds
    bench: go        rank: done           all-reduces; seconds and CPU
    bench: check     rank: checked        every element of every result

Each all-reduce is in place and has other data: a window of one long array of predictable integers, whose
sums are exact in float32 in any order. So a result of an earlier all-reduce in the place of this one is seen.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from inaproto_hil.ranks.predictable import Pattern, differing

Floats = NDArray[np.float32]

SHIFT: Final = 1021
"""Elements from the data of one all-reduce to that of the next: no multiple of a packet's."""
SHIFTS: Final = 1 << 16
"""Elements by which data is shifted, at most."""
LEAD_IN_MAX: Final = 16 << 10
"""Elements of the small all-reduce, at most."""


@dataclass(frozen=True, slots=True)
class RankPlan:
    """What a rank is told on its command line."""

    socket: str
    """Where the bench listens."""
    ranks: int
    elements_max: int
    """Elements of the largest all-reduce."""
    pool: int
    """Elements of the arrays of a turn together, at most."""
    timeout_s: float
    """For one all-reduce."""
    extra: dict[str, Any]
    """What is the contender's own."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> RankPlan:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """What all ranks do in a turn."""

    elements: int
    """Of each all-reduce."""
    operations: int
    group: int
    """All-reduces that are started before the first of them is waited for."""
    first: int
    """How many all-reduces were before this turn, of all sizes."""

    @property
    def lead_in(self) -> int:
        """Elements of the small all-reduce before."""
        return min(self.elements, LEAD_IN_MAX)


class Collective(Protocol):
    """What adds up, as one rank sees it; it is connected."""

    version: str

    def memory(self, elements: int) -> Floats:
        """The array of which parts are reduced; asked for once."""

    def all_reduce(self, parts: Sequence[slice]) -> None:
        """Sum each of these parts of the memory over all ranks, in place."""

    def path(self) -> str:
        """By which way the last one went; empty if there is but one."""

    def close(self) -> None: ...


class Data:
    """What this rank adds, and what comes out."""

    def __init__(self, *, elements_max: int, ranks: int, rank: int) -> None:
        pattern = Pattern(count=elements_max + SHIFTS, ranks=ranks)
        self._sums = np.zeros(elements_max + SHIFTS, np.float32)
        for other in range(ranks):
            values = pattern.values(rank=other, iteration=0)
            self._sums += values
            if other == rank:
                self._mine = values.astype(np.float32)

    def mine(self, number: int, elements: int) -> Floats:
        at = self._at(number)
        return self._mine[at : at + elements]

    def sums(self, number: int, elements: int) -> Floats:
        at = self._at(number)
        return self._sums[at : at + elements]

    @staticmethod
    def _at(number: int) -> int:
        return number * SHIFT % SHIFTS


class Turn:
    """One rank's part of a turn. Its small all-reduce has the number before the first."""

    def __init__(self, plan: TurnPlan, memory: Floats, data: Data) -> None:
        self._memory, self._data = memory, data
        self._plan = plan
        lengths = [plan.lead_in, *[plan.elements] * plan.operations]
        self._parts: list[slice] = []
        at = 0
        for length in lengths:
            self._parts.append(slice(at, at + length))
            at += length

    def prepare(self) -> None:
        for part, number in self._numbered():
            self._memory[part] = self._data.mine(number, part.stop - part.start)

    def go(self, collective: Collective) -> dict[str, Any]:
        lead_in, *parts = self._parts
        group = self._plan.group
        groups = [parts[at : at + group] for at in range(0, len(parts), group)]
        cpu_before = time.process_time()
        collective.all_reduce([lead_in])
        began = time.perf_counter()
        for together in groups:
            collective.all_reduce(together)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "cpu_s": time.process_time() - cpu_before}

    def check(self, collective: Collective) -> dict[str, Any]:
        """Elements that are wrong, and the first of them in words."""
        wrong, example = 0, ""
        for part, number in self._numbered():
            bad, words = differing(self._memory[part], self._data.sums(number, part.stop - part.start))
            wrong += bad
            example = example or (words and f"all-reduce {number}: {words}")
        return {"wrong": wrong, "example": example, "path": collective.path()}

    def _numbered(self) -> list[tuple[slice, int]]:
        return [(part, self._plan.first + nth) for nth, part in enumerate(self._parts)]


def serve(plan: RankPlan, rank: int, collective: Collective) -> None:
    """Take part in turns until the bench closes the connection."""
    data = Data(elements_max=plan.elements_max, ranks=plan.ranks, rank=rank)
    memory = collective.memory(plan.pool + LEAD_IN_MAX)
    turn: Turn | None = None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(plan.socket)
        lines = connection.makefile("r")

        def say(**fields: Any) -> None:
            connection.sendall(json.dumps(fields).encode() + b"\n")

        say(rank=rank, version=collective.version)
        for line in lines:
            word, fields = json.loads(line)
            if word == "prepare":
                turn = Turn(TurnPlan(**fields), memory, data)
                turn.prepare()
                say(ready=True)
                continue
            assert turn is not None, "a turn begins with prepare"
            if word == "go":
                say(done=turn.go(collective))
            else:
                say(checked=turn.check(collective))
    collective.close()
