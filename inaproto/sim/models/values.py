"""Gradients that reveal themselves in weights, and what weights must be.

Every update of every worker has an element of its own. It adds ``1 + 256 * attempt`` there, where attempt is
how often its worker had lost its host before: so that element of any weights says whether the update is in
them, how often, and which making of it. Behind these come some elements of arbitrary numbers.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.models.tree.trees import OverlayTree
from inaproto.faults.streams import named_bits
from inaproto.sim.models.config import NOISE, OverlayConfig
from inaproto.wire.messages.models import NodeId

Numbers = NDArray[Any]
ATTEMPT: Final = 256


class Values:
    """Values of one shard."""

    def __init__(self, config: OverlayConfig, shard: int) -> None:
        self._config = config
        self._shard = shard
        self.spec = config.spec(shard)
        self._first: list[int] = []
        at = 0
        for worker in config.workers:
            self._first.append(at)
            at += worker.clocks
        self._codes = at
        self._update = lru_cache(maxsize=4096)(self._make_update)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of what travels."""
        return self.spec.numpy_dtype

    @property
    def is_exact(self) -> bool:
        """Sums do not depend on their order."""
        return self.dtype.kind == "i"

    def initial(self) -> Numbers | None:
        """The first weights, of the travelling dtype; None: zeros."""
        if not self._config.shards[self._shard].begins_trained:
            return None
        weights = np.zeros(self.spec.elements, self.dtype)
        weights[self._codes :] = self._noise("initial")
        return weights

    def pushes(self, worker: int, clock: int, attempt: int) -> list[Numbers]:
        """The gradients of an update, as its worker pushes them one after the other."""
        found: list[Numbers] = []
        if self._is_empty(worker, clock):
            return found
        for part in range(self._config.workers[worker].pushes):
            gradients = np.zeros(self.spec.elements, self.dtype)
            if part == 0:
                gradients[self._first[worker] + clock - 1] = self.code(worker, clock, attempt) << self._shift
            gradients[self._codes :] = self._noise(f"{worker}/{clock}/{attempt}/{part}")
            found.append(self.shown(gradients))
        return found

    def update(self, worker: int, clock: int, attempt: int) -> Numbers:
        """The whole of an update, as it travels."""
        made: Numbers = self._update(worker, clock, attempt)
        return made

    def _make_update(self, worker: int, clock: int, attempt: int) -> Numbers:
        total = np.zeros(self.spec.elements, self.dtype)
        for gradients in self.pushes(worker, clock, attempt):
            with np.errstate(over="ignore"):
                total += self.travelling(gradients)
        return total

    @property
    def _shift(self) -> int:
        return self.spec.fraction_bits or 0

    def shown(self, numbers: Numbers) -> Numbers:
        """What a worker sees of what travels: float64 with fixed point."""
        if self.spec.fraction_bits is None:
            return numbers
        real: Numbers = numbers.astype(np.float64) / (1 << self.spec.fraction_bits)
        return real

    def travelling(self, numbers: Numbers) -> Numbers:
        """The reverse."""
        if self.spec.fraction_bits is None:
            return numbers
        whole: Numbers = np.rint(numbers * (1 << self.spec.fraction_bits)).astype(self.dtype)
        return whole

    def _noise(self, purpose: str) -> Numbers:
        bits = named_bits(self._config.seed, f"values/{self._shard}/{purpose}").random_raw(NOISE)
        if self.dtype.kind == "f":
            # 20 bits around zero with exponents far apart: every addition rounds.
            small = (bits >> np.uint64(44)).astype(np.int64) - (1 << 19)
            found = (small * 2.0 ** -(bits & np.uint64(31)).astype(np.float64)).astype(self.dtype)
        elif self.spec.fraction_bits is not None:
            found = ((bits >> np.uint64(44)).astype(np.int64) - (1 << 19)).astype(self.dtype)
        else:
            found = bits.astype(self.dtype)
        return np.asarray(found)

    # --- what is in weights

    def codes(self, weights: Numbers) -> list[list[float]]:
        """What each worker's element says, by worker and clock less 1. ``weights`` as they travel."""
        found: list[float] = (weights[: self._codes].astype(np.float64) / (1 << self._shift)).tolist()
        return [
            found[at : at + its.clocks] for at, its in zip(self._first, self._config.workers, strict=True)
        ]

    def code(self, worker: int, clock: int, attempt: int) -> int:
        """What weights with that update say."""
        return 0 if self._is_empty(worker, clock) else 1 + ATTEMPT * attempt

    def _is_empty(self, worker: int, clock: int) -> bool:
        every = self._config.workers[worker].empty_every
        return every > 0 and clock % every == 0

    def total(self, updates: list[tuple[int, int, int]]) -> tuple[Numbers, NDArray[np.float64]]:
        """(the sum of the first weights and these updates, for each element all magnitudes added up)."""
        begin = self.initial()
        total = np.zeros(self.spec.elements, self.dtype) if begin is None else begin
        size = np.abs(total.astype(np.float64))
        for update in updates:
            one = self.update(*update)
            total = total + one
            size += np.abs(one.astype(np.float64))
        return total, size

    def windows(
        self, tree_of: Callable[[int], OverlayTree], clock: int, attempts: Mapping[tuple[int, int], int]
    ) -> Numbers:
        """Serial training to ``clock``: window after window, each added up in the order of its tree.

        ``attempts``: by worker and clock which making counts; what is not in it was never finished.
        """
        begin = self.initial()
        total = np.zeros(self.spec.elements, self.dtype) if begin is None else begin
        workers = {NodeId(its.host): number for number, its in enumerate(self._config.workers)}
        for one in range(1, clock + 1):
            tree = tree_of(one)
            window = self._window(tree, tree.root, workers, one, attempts)
            if window is not None:
                total = total + window
        return total

    def _window(
        self,
        tree: OverlayTree,
        node: NodeId,
        workers: dict[NodeId, int],
        clock: int,
        attempts: Mapping[tuple[int, int], int],
    ) -> Numbers | None:
        parts = []
        own = workers.get(node)
        if own is not None and (own, clock) in attempts:
            parts.append(self.update(own, clock, attempts[own, clock]))
        parts += [
            part
            for child in tree.children(node)
            if (part := self._window(tree, child, workers, clock, attempts)) is not None
        ]
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def say(self, numbers: Numbers | None) -> str:
        """Say which updates are in, and a checksum; for logs and the digest."""
        if numbers is None:
            return "nothing"
        travels = self.travelling(numbers) if numbers.dtype != self.dtype else numbers
        said = []
        for worker, codes in enumerate(self.codes(travels)):
            inside = [
                f"{clock}" if code == 1 else f"{clock}({code:g})"
                for clock, code in enumerate(codes, 1)
                if code
            ]
            if inside:
                said.append(f"{worker}:{'+'.join(inside)}")
        return f"[{' '.join(said)} #{zlib.crc32(travels.tobytes()):08x}]"
