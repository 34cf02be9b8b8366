"""What is true of a shard: which updates were made, and which are on its server's disk. Kept by the world.

Everything the cores say is held against it. It reads the weights on the disk, not the clocks beside them.
"""

from __future__ import annotations

import numpy as np

from inaproto.core.models.events import RootRecord, RootSnapshot
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.models.values import Values
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import FOREVER, REMOVED, Clocks
from inaproto.wire.messages.models import FIRST_EPOCH

ONCE = "exactly once"
DURABLE = "acknowledged is durable"


class Ledger:
    def __init__(self, values: Values, clocks: list[int]) -> None:
        self._values = values
        self._full = clocks
        """Updates that each worker is to make."""
        self.made: dict[tuple[int, int], int] = {}
        """Newest attempt by worker and clock."""
        self.clocks: dict[int, int] = dict.fromkeys(range(len(clocks)), 0)
        """On disk."""
        self.extent = [0] * len(clocks)
        """Updates of each worker on disk; of one that is gone these are all there will be."""
        self.settled: dict[tuple[int, int], int] = {}
        """Updates on disk, and which attempt it was."""
        self.left: dict[int, int] = {}
        """Workers that said that they leave: after which update."""
        self.removed: dict[int, None] = {}
        self.epochs = [FIRST_EPOCH]
        """On disk, the newest last."""
        begin = values.initial()
        self.weights: Numbers = np.zeros(values.spec.elements, values.dtype) if begin is None else begin

    def tree_of(self, clock: int) -> int:
        """In whose order the window of this clock is to be added: each epoch says so of its clocks."""
        return [epoch.tree for epoch in self.epochs if epoch.first <= clock][-1]

    @property
    def model_clock(self) -> int:
        return min(self.clocks.values())

    def is_removed(self, worker: int) -> bool:
        """What it said after that does not count."""
        return worker in self.removed

    def is_over(self) -> bool:
        """All have left or were removed."""
        return all(clock >= FOREVER for clock in self.clocks.values())

    # --- what workers do

    def making(self, worker: int, clock: int, attempt: int) -> bool:
        """Whether it is on the disk already: made before a crash of the host, and then on its way by another
        path when the worker was told where it is. The one that comes first counts, the other does not."""
        self.made[worker, clock] = attempt
        return (worker, clock) in self.settled

    def leaving(self, worker: int, clock: int) -> None:
        self.left[worker] = clock

    # --- the disk

    def written(self, record: RootRecord) -> None:
        """Checks that the weights have exactly what the clocks say, each once."""
        if record.epoch is not None:
            self.epochs.append(record.epoch)
        if record.delta is not None:
            self.weights = self.weights + record.delta
        codes = self._values.codes(self.weights)
        for worker, clock in record.clocks.items():
            before = self.clocks[worker]
            if clock <= before:
                raise Violated(
                    ONCE, f"a record has clock {clock} of worker {worker}, that before it {before}"
                )
            self.clocks[worker] = clock
            last = self._last(worker, codes[worker]) if clock >= FOREVER else clock
            for new in range(self.extent[worker] + 1, last + 1):
                self._settle(worker, new, codes[worker][new - 1])
            self.extent[worker] = last
            if clock == REMOVED:
                self.removed[worker] = None
            elif clock == FOREVER and self.left.get(worker) != last:
                said = f"worker {worker} left after update {self.left.get(worker)}, on disk are {last}"
                raise Violated(ONCE, said)
        for number, of in enumerate(codes):
            for clock, code in enumerate(of, 1):
                attempt = self.settled.get((number, clock))
                expected = 0 if attempt is None else self._values.code(number, clock, attempt)
                if code != expected:
                    raise Violated(
                        ONCE, f"on disk update {clock} of worker {number} reads {code:g}, {expected} is due"
                    )
        self.check_sum(self.weights, [(w, c, a) for (w, c), a in self.settled.items()], "on disk")

    def _last(self, worker: int, codes: list[float]) -> int:
        """The last update of one that is gone; empty ones count if it said that it leaves after them."""
        last = max([self.extent[worker], *(clock for clock, code in enumerate(codes, 1) if code)])
        left = self.left.get(worker, 0)
        while last < left and self._values.code(worker, last + 1, 0) == 0:
            last += 1
        return last

    def _settle(self, worker: int, clock: int, code: float) -> None:
        made = self.made.get((worker, clock))
        if made is None:
            raise Violated(ONCE, f"a record has update {clock} of worker {worker}, which was never made")
        attempt = self.attempt_of(worker, clock, code)
        if attempt is None:
            raise Violated(ONCE, f"a record has update {clock} of worker {worker}, the weights read {code:g}")
        self.settled[worker, clock] = attempt

    def attempt_of(self, worker: int, clock: int, code: float) -> int | None:
        """Attempt whose update weights with that code have; None: none, or not once."""
        newest = self.made.get((worker, clock))
        if newest is None:
            return None
        return next((a for a in range(newest, -1, -1) if self._values.code(worker, clock, a) == code), None)

    def check_sum(self, weights: Numbers, updates: list[tuple[int, int, int]], where: str) -> None:
        """Check that weights are the first ones and these updates: exactly, or as near as additions can
        be."""
        total, size = self._values.total(updates)
        if self._values.is_exact:
            is_right = weights.tobytes() == total.tobytes()
        else:
            bound = 2 * (len(updates) + 2) * float(np.finfo(weights.dtype).eps) * size
            is_right = bool(np.all(np.abs(weights.astype(np.float64) - total.astype(np.float64)) <= bound))
        if not is_right:
            raise Violated(ONCE, f"{where} the sum of {updates} is {total}, not {weights}")

    def restarted(self, snapshot: RootSnapshot) -> None:
        """A server has read its disk."""
        if (
            snapshot.weights.tobytes() != self.weights.tobytes()
            or dict(snapshot.clocks.items()) != self.clocks
            or snapshot.epoch != self.epochs[-1]
        ):
            raise Violated(
                DURABLE, f"the server reads {snapshot.clocks} from its disk, {self.clocks} is there"
            )

    def check_durable(self, vector: Clocks, who: str) -> None:
        """A vector that is said to be the root's."""
        for worker, clock in vector.items():
            if clock > self.clocks[worker]:
                raise Violated(DURABLE, f"{who}: {vector} of the root, on disk is {self.clocks}")
