"""How long the training steps of a job take, by the trace of one and by which operations use INA.

MINA, section V-A: a model is the trace of one training step. Operations of a job are serial, each begins when
its gradient is ready and the one before it has ended; a step ends when the framework has waited for the last.
How long an operation takes depends on its bytes and on whether the network sums it, on nothing else.

Seconds, bytes, bytes a second; sizes are integers, times are doubles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inaproto.core.sharing.model_trace import ModelTrace


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of network and processors, for all jobs alike."""

    bandwidth: float
    """Bandwidth of an all-reduce without INA, bytes of the tensor a second."""
    ina_ratio: float
    """How many times the bandwidth is with INA."""
    latency: float
    """Latency of an operation, seconds."""
    gpu_speedup: float = 1.0
    """Divides all times of a trace."""

    def operation(self, nbytes: int, *, hosts: int, ina: bool) -> float:
        """How long an all-reduce takes. One host has nobody to wait for but itself."""
        if hosts == 1:
            return self.latency
        return self.latency + nbytes / (self.bandwidth * (self.ina_ratio if ina else 1.0))


_ROUNDING: Final = 1e-12
"""Rounding of step times, relative."""


class StepTimes:
    """A model's operations at some speeds, and what the rest of a step takes from any of them on.

    All times are from the start of a step. If operations i.. begin at t or later and are all of one kind, the
    step ends at ``max(t + tail[i], floor[i])``: the recurrence of the module's head in max-plus form.
    """

    __slots__ = (
        "_suffix",
        "count",
        "duration",
        "floor_ina",
        "floor_plain",
        "ina",
        "plain",
        "ready",
        "step_ina",
        "step_plain",
        "tail_ina",
        "tail_plain",
    )

    def __init__(self, trace: ModelTrace, speeds: Speeds, *, hosts: int) -> None:
        self.ready: Final = tuple(start / speeds.gpu_speedup for start in trace.ready)
        self.duration: Final = trace.duration / speeds.gpu_speedup
        self.count: Final = len(self.ready)
        self.plain: Final = tuple(speeds.operation(size, hosts=hosts, ina=False) for size in trace.nbytes)
        self.ina: Final = tuple(speeds.operation(size, hosts=hosts, ina=True) for size in trace.nbytes)
        self.tail_plain, self.floor_plain = self._rest(self.plain)
        self.tail_ina, self.floor_ina = self._rest(self.ina)
        self.step_plain: Final = self._isolated(self.plain)
        self.step_ina: Final = self._isolated(self.ina)
        self._suffix: int | None = None
        """Once it was asked for."""

    def _rest(self, times: Sequence[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        tail, floor = [0.0], [self.duration]
        for start, time in zip(reversed(self.ready), reversed(times), strict=True):
            floor.append(max(start + time + tail[-1], floor[-1]))
            tail.append(time + tail[-1])
        return tuple(reversed(tail)), tuple(reversed(floor))

    def _isolated(self, times: Sequence[float]) -> float:
        end = 0.0
        for start, time in zip(self.ready, times, strict=True):
            end = max(end, start) + time
        return max(end, self.duration)

    @property
    def suffix(self) -> int:
        """The first operation of the fewest last ones that need INA for a step to be as short as it can be.

        The short paper's partition; as many as there are operations if INA gains nothing.
        """
        if self._suffix is None:
            end, first = 0.0, 0
            for number in range(self.count + 1):
                step = max(end + self.tail_ina[number], self.floor_ina[number])
                if step > self.step_ina + _ROUNDING * self.step_ina:
                    break
                first = number
                if number < self.count:
                    end = max(end, self.ready[number]) + self.plain[number]
            self._suffix = first
        return self._suffix

    @property
    def gain(self) -> float:
        """Share of a plain step that INA for all its operations saves."""
        return (self.step_plain - self.step_ina) / self.step_plain
