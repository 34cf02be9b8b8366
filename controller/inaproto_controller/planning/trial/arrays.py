"""What the kernel advances, as arrays: operations of all kinds of jobs, jobs by slot, and what is noted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from inaproto.core.sharing.model_trace import ModelTrace
from inaproto_controller.cluster.step_times import Speeds, StepTimes
from inaproto_controller.planning.trial.kernel import Bools, Floats, Ints, Log, Slots, Tables


class Kinds:
    """Step times of each model, for many hosts and for one, and where the kernel finds them."""

    def __init__(self, traces: Sequence[ModelTrace], speeds: Speeds, *, suffix_only: bool = False) -> None:
        self._numbers: dict[tuple[str, bool], int] = {}
        self.times: list[StepTimes] = []
        asks: list[int] = []
        for trace in traces:
            for is_alone in (False, True):
                self._numbers[trace.name, is_alone] = len(self.times)
                times = StepTimes(trace, speeds, hosts=1 if is_alone else 2)
                self.times.append(times)
                asks.append(times.suffix if suffix_only else 0)
        self.tables: Final = make_tables(self.times, asks)
        self.least: Final = np.array([min(times.step_ina, times.step_plain) for times in self.times])
        self.least_plain: Final = np.array([times.step_plain for times in self.times])

    def number(self, model: str, hosts: int) -> int:
        return self._numbers[model, hosts == 1]


def make_tables(kinds: Sequence[StepTimes], asks_from: Sequence[int]) -> Tables:
    """``asks_from``: of each kind, the first operation that asks for INA."""
    counts = [times.count for times in kinds]
    return Tables(
        first=np.cumsum([0, *counts[:-1]]).astype(np.int64),
        operations=np.array(counts, np.int64),
        duration=np.array([times.duration for times in kinds]),
        asks_from=np.array(asks_from, np.int64),
        ready=_joined(times.ready for times in kinds),
        plain=_joined(times.plain for times in kinds),
        ina=_joined(times.ina for times in kinds),
        tail=_joined(times.tail_plain for times in kinds),
        floor=_joined(times.floor_plain for times in kinds),
    )


def _joined(columns: Iterable[Sequence[float]]) -> Floats:
    return np.array([value for column in columns for value in column], np.float64)


def make_slots(room: int) -> Slots:
    def ints() -> Ints:
        return np.zeros(room, np.int64)

    def floats() -> Floats:
        return np.zeros(room)

    def bools() -> Bools:
        return np.zeros(room, np.bool_)

    return Slots(
        kind=ints(),
        phase=ints(),
        operation=ints(),
        steps=ints(),
        steps_max=ints(),
        at=floats(),
        began=floats(),
        step_start=floats(),
        uses_ina=bools(),
        has_tree=bools(),
        waits=bools(),
        has_tree_then=bools(),
        switches=ints(),
        switches_then=ints(),
        no_ina_until=floats(),
        downtime_then=floats(),
        weight=floats(),
        ina_seconds=floats(),
        ina_switch_seconds=floats(),
        changed=ints(),
        changed_at=floats(),
        seed=np.zeros(room, np.uint64),
    )


def grown(slots: Slots) -> Slots:
    """Twice as many."""
    return Slots(*(np.concatenate([field, np.zeros_like(field)]) for field in slots))


def make_log(room: int) -> Log:
    return Log(
        noted=np.zeros(1, np.int64),
        slot=np.zeros(room, np.int64),
        step=np.zeros(room, np.int64),
        operation=np.zeros(room, np.int64),
        uses_ina=np.zeros(room, np.bool_),
        begin=np.zeros(room),
        end=np.zeros(room),
    )
