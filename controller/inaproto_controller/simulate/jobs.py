"""The running jobs of a simulated cluster: which slot each has, and their state in the kernel's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from inaproto_controller.cluster.requests import Request
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.placement.simple import Hosts
from inaproto_controller.planning.trial import kernel
from inaproto_controller.planning.trial.arrays import Kinds, grown, make_slots
from inaproto_controller.planning.trial.kernel import Ints

_ROOM: Final = 64


@dataclass(slots=True)
class RunningJob:
    """A job that has hosts."""

    request: int
    slot: int
    number: int
    asked: Request
    times: StepTimes
    hosts: Hosts
    start: float
    roots: int
    tree: int | None = None
    using: int | None = None
    """The tree that is in effect; ``tree`` too, unless that waits for an operation's end."""
    had_tree: bool = False
    barred: frozenset[int] = frozenset()
    """Roots whose trees have a switch that is down."""
    granted: int = 0
    """The build that gave it its tree."""
    migrations: int = 0
    downtime: float = 0.0


class Jobs:
    """Jobs by slot, in order of placement."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds: Final = kinds
        self.slots = make_slots(_ROOM)
        self._running: dict[int, RunningJob] = {}
        self._free = list(range(_ROOM))[::-1]
        self._entered = 0
        self._order: Ints | None = None
        self.numbers: Ints = np.zeros(_ROOM, np.int64)
        """(slots,): order of placement."""
        self.barred: dict[int, frozenset[int]] = {}
        """Of the slots that have any, roots whose trees have a switch that is down."""

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningJob]:
        return iter(self._running.values())

    def __contains__(self, slot: int) -> bool:
        return slot in self._running

    def __getitem__(self, slot: int) -> RunningJob:
        return self._running[slot]

    @property
    def room(self) -> int:
        """Slots that there are, free ones too."""
        return len(self.slots.at)

    @property
    def order(self) -> Ints:
        """(jobs,): slots in order of placement."""
        if self._order is None:
            self._order = np.fromiter(self._running, np.int64, len(self._running))
        return self._order

    def free_slot(self) -> int:
        """The next; there may be more slots then."""
        if not self._free:
            room = self.room
            self.slots = grown(self.slots)
            self.numbers = np.pad(self.numbers, (0, room))
            self._free = list(range(room, 2 * room))[::-1]
        return self._free.pop()

    def enter(
        self,
        slot: int,
        request: int,
        asked: Request,
        hosts: Hosts,
        roots: int,
        now: float,
        *,
        weight: float,
        seed: int,
    ) -> RunningJob:
        """``slot``: a free one; ``request``: the number of what was ``asked``."""
        kind = self.kinds.number(asked.model, asked.hosts)
        job = RunningJob(request, slot, self._entered, asked, self.kinds.times[kind], hosts, now, roots)
        self._running[slot] = job
        self.numbers[slot] = self._entered
        self._order = None
        self._entered += 1
        slots = self.slots
        for column in slots:
            column[slot] = 0
        slots.kind[slot] = kind
        slots.steps_max[slot] = asked.steps
        slots.weight[slot] = weight
        slots.seed[slot] = np.uint64((seed * 0x9E3779B97F4A7C15 + request * 0xD1B54A32D192ED03) % 2**64)
        kernel.begin_step(self.kinds.tables, slots, slot, now)
        return job

    def bar(self, slot: int, roots: frozenset[int]) -> None:
        """Trees of these roots have a switch that is down; no others have."""
        self._running[slot].barred = roots
        if roots:
            self.barred[slot] = roots
        else:
            self.barred.pop(slot, None)

    def leave(self, slot: int) -> RunningJob:
        self.slots.waits[slot] = False  # a host may fail while an operation runs
        self._free.append(slot)
        self._order = None
        self.barred.pop(slot, None)
        return self._running.pop(slot)
