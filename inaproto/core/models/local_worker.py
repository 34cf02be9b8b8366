"""A node's own worker: the update that it makes, those that it has finished, its pulls (MLNet section 3.1).

Finished updates are kept until the root has them durably. So whatever happens to the nodes between, this one
can make its part of every sum again. Invariant: ``kept`` has all updates after the root's clock for the
worker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inaproto.core.models.cache import Cache
from inaproto.core.models.events import Answer, Done, Mark, NodeAction, Noted, Pulled, Refuse, ShardSpec
from inaproto.core.models.fixed_point import dequantised, quantised
from inaproto.core.models.staleness import model_clock, needed
from inaproto.core.models.updates import Update, added
from inaproto.errors import LocalMisuse
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import FOREVER, REMOVED, Clocks, WorkerId

GONE = "the worker has left the model, in an earlier life, or was removed from it"


@dataclass(frozen=True, slots=True)
class Pull:
    request: int
    needed: int
    clock: int
    staleness: int


class LocalWorker:
    def __init__(self, worker: WorkerId, shard: ShardSpec) -> None:
        self.worker = worker
        self._shard = shard
        self.clock: int | None = None
        """None: it must not push yet."""
        self.kept: list[Update] = []
        self.pulls: list[Pull] = []
        self._open: Numbers | None = None
        self._held: int | None = None
        self._leaving: int | None = None
        self.is_removed = False
        self.is_abandoned = False
        """Its process is gone, and none has come in its place: what it has finished is not withheld."""

    # --- what it says; each raises ``LocalMisuse`` and changes nothing if it may not

    def push(self, gradients: Numbers) -> None:
        self._check_free("push")
        spec = self._shard
        dtype = np.dtype(np.float64) if spec.fraction_bits is not None else spec.numpy_dtype
        if gradients.shape != (spec.elements,) or gradients.dtype != dtype:
            got = f"{gradients.shape} of {gradients.dtype}"
            raise LocalMisuse(f"worker {self.worker} pushes ({spec.elements},) of {dtype}, not {got}")
        if spec.fraction_bits is None:
            numbers = gradients.copy()
        else:
            numbers = quantised(gradients, spec.fraction_bits, spec.numpy_dtype)
        if not self.is_removed:
            numbers.setflags(write=False)
            self._open = added(self._open, numbers)

    def clocks(self, request: int) -> None:
        self._check_free("clock")
        self._held = request

    def pulls_for(self, said: Pulled) -> Pull:
        self._check_free("pull")
        if said.staleness < 0 or any(pull.request == said.request for pull in self.pulls):
            raise LocalMisuse(f"worker {self.worker}: staleness {said.staleness} < 0, or a request twice")
        if len(self.pulls) >= self._shard.ahead_max:
            raise LocalMisuse(f"worker {self.worker} waits for {len(self.pulls)} pulls already")
        assert self.clock is not None, "it has resumed"
        pull = Pull(said.request, needed(self.clock, said.staleness), self.clock, said.staleness)
        self.pulls.append(pull)
        return pull

    def leaves(self, request: int) -> tuple[Update | None, list[NodeAction]]:
        """Its last update; None if it is removed. Pulls that wait are refused."""
        self._check_free("leave")
        if self.is_removed:
            return None, [Refuse(request, GONE)]
        assert self.clock is not None, "it has resumed"
        refused: list[NodeAction] = [Refuse(pull.request, "the worker leaves") for pull in self.pulls]
        self.pulls, self._leaving = [], request
        return self._finish(FOREVER), refused

    def abandons(self) -> None:
        """Its process is gone: what it did since its last clock is dropped."""
        if self._held is None:
            self._open = None
        self.pulls = []
        self.is_abandoned = True

    @property
    def is_to_be_flushed(self) -> bool:
        return self.is_abandoned and bool(self.kept)

    def _check_free(self, what: str) -> None:
        if self.clock is None:
            raise LocalMisuse(
                f"worker {self.worker} cannot {what} before it has resumed: its clock is not known"
            )
        if self._held is not None:
            raise LocalMisuse(f"worker {self.worker} cannot {what} before its clock is done: it is far ahead")
        if self.clock >= FOREVER and not self.is_removed:
            raise LocalMisuse(f"worker {self.worker} cannot {what}: it has left")
        self.is_abandoned = False

    # --- what comes of it

    @property
    def is_holding(self) -> bool:
        """A clock is held back."""
        return self._held is not None

    def finish(self, root: int) -> tuple[Update, Done] | None:
        """The update of a clock, once the root's clock for the worker is near enough."""
        if self._held is None or self.clock is None or self.clock - root >= self._shard.ahead_max:
            return None
        request, self._held = self._held, None
        update = self._finish(self.clock + 1)
        return update, Done(request, self.clock)

    def _finish(self, clock: int) -> Update:
        assert self.clock is not None, "it has resumed"
        before, after = Clocks({self.worker: self.clock}), Clocks({self.worker: clock})
        update = Update(self.clock + 1, before, after, self._open)
        self.clock, self._open = clock, None
        self.kept.append(update)
        return update

    def prune(self, root: Clocks) -> list[NodeAction]:
        """The root has this durably."""
        self.kept = [update for update in self.kept if not root.covers(update.after)]
        end = root.get(self.worker) or 0
        if end < FOREVER:
            return []
        if self._leaving is not None:
            request, self._leaving = self._leaving, None
            return [Done(request, FOREVER) if end == FOREVER else Refuse(request, GONE)]
        if self.clock is None or self.clock >= FOREVER:
            return []
        return [Noted(Mark.WORKER_REMOVED), *self._remove()]

    def _remove(self) -> list[NodeAction]:
        self.kept, self._open = [], None
        self.is_removed, self.clock = True, REMOVED
        return self.refuse()

    def refuse(self) -> list[NodeAction]:
        """All that a removed worker has asked for."""
        requests = [pull.request for pull in self.pulls]
        if self._held is not None:
            requests.append(self._held)
        self.pulls, self._held = [], None
        return [Refuse(request, GONE) for request in requests]

    def resume(self, clock: int) -> None:
        self.clock = clock
        self.is_removed = clock >= FOREVER

    def answers(self, cache: Cache) -> list[NodeAction]:
        """Answers to the pulls for which these weights are legal."""
        legal = [pull for pull in self.pulls if cache.is_legal(pull.needed)]
        if not legal:
            return []
        self.pulls = [pull for pull in self.pulls if pull not in legal]
        weights = cache.weights if self._shard.staleness == 0 else added(cache.weights, self._open)
        assert weights is not None, "the cache has weights"
        if self._shard.fraction_bits is not None:
            weights = dequantised(weights, self._shard.fraction_bits)
        clock = model_clock(cache.root)
        return [Answer(p.request, weights, p.clock, p.staleness, clock, cache.included) for p in legal]
