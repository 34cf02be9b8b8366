"""How long all-reduces take that jobs run side by side, each by its path: the world's part of a job.

An all-reduce begins when all hosts of its job have bound it, and ends at all of them at once. Hosts that have
bound one to different paths are *rescued*, as the product's are: after the stall time their rings end, it
goes by the base ring, and a ring through the switches stands again a while later.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import trio

from inaproto.core.host.engines.two_paths import Binding
from inaproto.core.host.operations import BASE, INA
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_hil.evaluation.shared_pool.pool import SwitchPool


class Operation(NamedTuple):
    """Seconds of the world's clock."""

    job: int
    step: int
    number: int
    """In the step."""
    epoch: int | None
    """Epoch of the turn; None: by the base ring."""
    begin: float
    end: float

    @property
    def uses_ina(self) -> bool:
        return self.epoch is not None


class JobFabric:
    """``end_rings`` and ``begin_rings`` take all hosts' rings through the switches away, and give others.
    ``error``: of what an all-reduce takes, relative, drawn anew for each."""

    def __init__(
        self,
        number: int,
        times: StepTimes,
        hosts: int,
        pool: SwitchPool,
        *,
        stall_s: float,
        error: float,
        draws: Random,
        record: Callable[[Operation], None],
    ) -> None:
        self._number, self._times, self._hosts, self._pool = number, times, hosts, pool
        self._stall_s, self._error, self._draws, self._record = stall_s, error, draws, record
        self._arrived: list[Binding] = []
        """Bindings of the all-reduce that is next to begin."""
        self._over = trio.Event()
        self.ring_id = number + 1
        """Id of the ring through the switches; another for each that stands."""
        self._was_ina = False
        self.rescued = 0
        self.end_rings: Callable[[], None]
        self.begin_rings: Callable[[], None]

    async def run(self, index: int, binding: Binding) -> bool:
        """One host's part of the all-reduce; whether it went through the switches."""
        self._arrived.append(binding)
        over = self._over
        if len(self._arrived) < self._hosts:
            await over.wait()
            return self._was_ina
        bindings, self._arrived = self._arrived, []
        await self._carry(index, bindings)
        self._over = trio.Event()
        over.set()
        return self._was_ina

    async def _carry(self, index: int, bindings: list[Binding]) -> None:
        times, begin = self._times, trio.current_time()
        number = index % times.count
        binding = bindings[0]
        if any(one != binding for one in bindings):
            self.rescued += 1
            await trio.sleep(self._stall_s)
            self.end_rings()
            binding = Binding(BASE)
        self._was_ina = binding.path == INA
        seconds = (times.ina if self._was_ina else times.plain)[number]
        seconds *= 1 + self._draws.uniform(-self._error, self._error)
        if binding.epoch is not None:
            self._pool.begin(self.ring_id, binding.epoch)
        await trio.sleep(seconds)
        if binding.epoch is not None:
            self._pool.end(self.ring_id)
        if any(one != bindings[0] for one in bindings):
            self.begin_rings()
        step = index // times.count
        self._record(Operation(self._number, step, number, binding.epoch, begin, trio.current_time()))
