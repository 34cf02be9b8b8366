"""A host's worker of one model: it sees one parameter server, whatever the number of shards.

An update is cut over the shards, and a pull is answered when all of them have. Shards are asked in parallel
and go on by themselves; so after this host died they may know different numbers of the worker's updates. The
worker then resumes at the least of these, and makes the updates after it again; a shard that has one of them
already does not get it twice.

Invariants: one process at a time is the worker; an update is given to the shards whole, when it is finished,
so that nothing is left of one whose process died over it; each update is in each shard once; a shard is given
nothing more of the worker until it has taken the last update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import trio

from inaproto.core.models.events import Abandoned, Answer, Clocked, Left, NodeView, Pulled, Pushed, Urged
from inaproto.core.models.fixed_point import is_quantisable
from inaproto.core.models.tuning import StalenessTuning
from inaproto.daemon.models.core_configs import pulls_max
from inaproto.daemon.models.shells import NodeShell
from inaproto.daemon.models.staleness_choice import StalenessChoice
from inaproto.daemon.settings.models_file import PlacedModel, Shard
from inaproto.daemon.shell import current_instant
from inaproto.errors import JobError
from inaproto.wire.messages.arrays import Numbers
from inaproto.wire.messages.clocks import FOREVER, NO_CLOCKS, Clocks, WorkerId
from inaproto.wire.messages.model_connections import OverlayState

URGE_S: Final = 1.0


class Owner(Protocol):
    """The connection of the process that is the worker."""

    def is_gone(self) -> bool:
        """Whether its process has closed the connection, even if that is not read yet."""
        ...

    def model_ready(self, clock: int) -> None:
        """The worker may go on after ``clock``."""
        ...

    def model_done(self, request: int, clock: int) -> None: ...
    def model_pulled(self, request: int, pulled: PulledWeights) -> None: ...
    def model_refused(self, request: int, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class PulledWeights:
    parts: tuple[tuple[Shard, Numbers], ...]
    clock: int
    model_clock: int
    oldest: int
    newest: int
    staleness: int


class Waited(NamedTuple):
    """What the worker waits for at a server."""

    shard: Shard
    clock: int
    """Whoever has not come to it may be who is waited for."""


@dataclass(slots=True)
class _Request:
    number: int
    """Number that the process gave."""
    clock: int
    staleness: int = 0
    """Staleness of a pull."""
    waiting: dict[Shard, int] = field(default_factory=dict)
    """Shards that have not answered, and the numbers that they were asked by."""
    answers: list[tuple[Shard, Answer]] = field(default_factory=list)
    since: float = field(default_factory=trio.current_time)
    is_pull: bool = False


class ModelSeat:
    """The worker of one model on this host; :class:`inaproto.daemon.models.shells.WorkerSide` of its
    shards."""

    def __init__(self, model: PlacedModel, worker: int) -> None:
        self.model = model
        self.worker = worker
        self._shells: dict[Shard, NodeShell] = {}
        self._clocks: dict[Shard, int] = {}
        """Clocks of the worker in each shard that has resumed."""
        self._clock: int | None = None
        """Clock of the worker, while there is a process."""
        self._owner: Owner | None = None
        self._owner_since = trio.current_time()
        """Or without one."""
        self._is_ready = False
        self._requests: dict[int, _Request] = {}
        """Requests by the number that a shard was asked by."""
        self._saves: list[_Request] = []
        self._wake_saver = trio.Event()
        self._next = 1
        self._taking: set[Shard] = set()
        """Shards that were given an update, or told that the worker leaves, and have not said so."""
        self.pulls = 0
        self.why_it_waits = ""
        """For people, once it has waited for some time:"""
        self.why_at = 0.0
        self.is_asked_why = False
        """Since then somebody has asked."""
        settings = model.settings
        self._choice: StalenessChoice | None = None
        if settings.tune_staleness:
            tuning = StalenessTuning(
                staleness_max=settings.staleness, drift_ppm_max=max(1, int(settings.drift_max * 1e6))
            )
            self._choice = StalenessChoice(model.name, tuning, settings.staleness)

    def add(self, shard: Shard, shell: NodeShell) -> None:
        self._shells[shard] = shell

    # --- the process

    @property
    def is_taken(self) -> bool:
        return self._owner is not None

    @property
    def clock(self) -> int | None:
        return self._clock

    def take(self, owner: Owner) -> None:
        """Raises ``JobError`` where another process is the worker."""
        if self._owner is not None and self._owner.is_gone():
            self.give_up(self._owner)
        if self._owner is not None:
            raise JobError(
                f"model {self.model.name!r}: another process of this host is its worker {self.worker}"
            )
        self._owner, self._owner_since = owner, trio.current_time()
        self._say_ready()

    def is_owner(self, owner: Owner) -> bool:
        return self._owner is owner

    def give_up(self, owner: Owner) -> None:
        """Its process has ended: what that had finished goes up, the rest died with it."""
        if self._owner is owner:
            self._owner, self._clock, self._is_ready = None, None, False
            self._owner_since = trio.current_time()
            self._requests.clear()
            self._saves.clear()
            for shell in self._shells.values():
                shell.post(Abandoned())

    @property
    def finished(self) -> Mapping[Shard, int]:
        """The worker's clock in each shard that has told it."""
        return self._clocks

    def clocked(self, request: int, clock: int, update: Numbers | None) -> None:
        """Update ``clock`` of the worker; copied. Raises ``JobError`` for one that is not the next."""
        self._require_next(clock)
        bits, dtype = self.model.settings.fraction_bits, self.model.dtype
        is_fit = update is None or bits is None or is_quantisable(update, bits, dtype)
        if not is_fit and self._owner is not None:
            self._owner.model_refused(
                request,
                f"model {self.model.name!r}: fixed point with {bits} fraction bits in {dtype}: a value is "
                "not finite or too great; the update is dropped",
            )
            return
        self._clock = clock
        asked = _Request(request, clock)
        taking = [
            (shard, shell, self._ask(asked, shard))
            for shard, shell in self._shells.items()
            if self._clocks[shard] < clock
        ]
        self._taking.update(asked.waiting)
        for shard, shell, number in taking:  # one may answer at once, and must not be taken for all
            self._clocks[shard] = clock
            if update is not None:
                shell.post(Pushed(update[shard.first : shard.end]))
            shell.post(Clocked(number))
        if not taking:
            self._finish(asked)

    def pull(self, request: int, staleness: int | None) -> None:
        """None: the model's, or, where that is tuned, what was chosen."""
        self._require_next(None)
        if staleness is None:
            staleness = self.staleness
        waiting = {asked.number for asked in self._requests.values() if asked.is_pull}
        if len(waiting) >= pulls_max(self.model) and self._owner is not None:
            self._owner.model_refused(
                request,
                f"model {self.model.name!r}: {len(waiting)} pulls of this worker wait already; wait for one "
                "of them",
            )
            return
        asked = _Request(request, self._clock or 0, staleness, is_pull=True)
        if self._choice is not None:
            self._choice.asked(current_instant())
        clock = asked.clock
        shells = [
            (shell, self._ask(asked, shard), max(0, self._clocks[shard] - clock))
            for shard, shell in self._shells.items()
        ]
        for shell, number, ahead in shells:  # nobody need be where a shard has the worker already
            shell.post(Pulled(number, staleness + ahead))

    def save(self, request: int) -> None:
        """Done when all servers have the worker's updates on their disks."""
        self._require_next(None)
        if len(self._saves) >= pulls_max(self.model) and self._owner is not None:
            text = f"model {self.model.name!r}: {len(self._saves)} calls of make_durable() wait already"
            self._owner.model_refused(request, text)
            return
        asked = _Request(request, self._clock or 0)
        asked.waiting = dict.fromkeys(self._shells, 0)
        self._saves.append(asked)
        self._wake_saver.set()

    async def keep_saving(self) -> None:
        """For :meth:`save`, until cancelled."""
        while True:
            await self._wake_saver.wait()
            self._wake_saver = trio.Event()
            while self._saves:
                asked = self._saves[0]
                for shard, shell in self._shells.items():
                    while asked in self._saves and shell.merged_of_worker() < asked.clock:
                        shell.post(Urged())  # again, if who withheld it has died since
                        with trio.move_on_after(URGE_S):
                            await shell.merged(asked.clock)
                    asked.waiting.pop(shard)
                if asked in self._saves:
                    self._saves.remove(asked)
                    self._finish(asked)

    def leave(self, request: int) -> None:
        self._require_next(None)
        self._clock = FOREVER
        asked = _Request(request, FOREVER)
        shells = [
            (shell, self._ask(asked, shard))
            for shard, shell in self._shells.items()
            if self._clocks[shard] < FOREVER
        ]
        self._taking.update(asked.waiting)
        for shell, number in shells:
            shell.post(Left(number))
        self._finish(asked)

    def waited_for(self) -> list[Waited]:
        """What the worker's requests, or its start, wait for."""
        if self._owner is not None and not self._is_ready:
            known = self._clocks
            return [
                Waited(shard, known.get(shard, FOREVER))
                for shard in self._shells
                if shard not in known or shard in self._taking
            ]
        found: dict[Shard, int] = {}
        for request in (*self._requests.values(), *self._saves):
            clock = min(request.clock, FOREVER) - request.staleness
            for shard in request.waiting:
                found[shard] = max(clock, found.get(shard, 0))
        return [Waited(shard, clock) for shard, clock in sorted(found.items(), key=lambda one: one[0].number)]

    def waits_for(self) -> Sequence[str]:
        """Names of servers."""
        return sorted({waited.shard.server for waited in self.waited_for()})

    @property
    def waits_since(self) -> float | None:
        """None: it does not wait."""
        if self._owner is not None and not self._is_ready:
            return self._owner_since
        requests = (*self._requests.values(), *self._saves)
        return min((request.since for request in requests), default=None)

    def _require_next(self, clock: int | None) -> None:
        if not self._is_ready or self._clock is None:
            raise JobError(f"model {self.model.name!r}: a request before the answer to the join")
        if self._clock >= FOREVER:
            raise JobError(f"model {self.model.name!r}: worker {self.worker} has left")
        if self._taking:
            raise JobError(f"model {self.model.name!r}: a request before the last update was taken")
        if clock is not None and clock != self._clock + 1:
            raise JobError(f"model {self.model.name!r}: update {clock} after update {self._clock}")

    def _ask(self, request: _Request, shard: Shard) -> int:
        number, self._next = self._next, self._next + 1
        request.waiting[shard] = number
        self._requests[number] = request
        return number

    def _say_ready(self) -> None:
        if self._owner is None or self._is_ready or self._taking:
            return
        if len(self._clocks) < len(self._shells):
            return
        self._is_ready = True
        self._clock = min(self._clocks.values())
        self._owner.model_ready(self._clock)

    # --- what shards say

    def resumed(self, shard: Shard, clock: int) -> None:
        self._clocks[shard] = clock
        self._say_ready()

    def done(self, shard: Shard, request: int, clock: int) -> None:
        self._clocks[shard] = clock
        self._taking.discard(shard)
        asked = self._answered(shard, request)
        if asked is not None:
            self._finish(asked)
        self._say_ready()

    def answered(self, shard: Shard, answer: Answer) -> None:
        asked = self._answered(shard, answer.request)
        if asked is None or self._owner is None:
            return
        asked.answers.append((shard, answer))
        if not asked.waiting:
            self.pulls += 1
            if self._choice is not None:
                in_order = sorted(asked.answers, key=lambda one: one[0].number)
                self._choice.answered(
                    asked.clock, [answer.weights for _, answer in in_order], current_instant()
                )
            self._owner.model_pulled(asked.number, _joined(asked))

    def refused(self, shard: Shard, request: int, reason: str) -> None:
        self._taking.discard(shard)
        asked = self._answered(shard, request)
        if asked is None or self._owner is None:
            return
        for number in asked.waiting.values():
            self._requests.pop(number, None)
        self._owner.model_refused(asked.number, f"model {self.model.name!r}, server {shard.server}: {reason}")

    def _answered(self, shard: Shard, number: int) -> _Request | None:
        """None: the process that had asked is gone."""
        asked = self._requests.pop(number, None)
        if asked is not None:
            asked.waiting.pop(shard, None)
        return asked

    def _finish(self, asked: _Request) -> None:
        if not asked.waiting and self._owner is not None:
            self._owner.model_done(asked.number, asked.clock)

    # --- for people, and for those who wait for this worker

    def state(self) -> OverlayState:
        since_ms = int(1000 * (trio.current_time() - self._owner_since))
        clocks = NO_CLOCKS
        if len(self._clocks) == len(self._shells):
            clocks = Clocks({WorkerId(self.worker): min(self._clocks.values())})
        return OverlayState(clocks=clocks, has_process=self.is_taken, since_ms=since_ms)

    def view(self, shard: Shard) -> NodeView:
        """State of this host's node in the shard's tree."""
        return self._shells[shard].core.view()

    @property
    def staleness(self) -> int:
        """Staleness of a pull that names none."""
        return self.model.settings.staleness if self._choice is None else self._choice.staleness

    def status(self) -> dict[str, Any]:
        self.is_asked_why = self.waits_since is not None
        tuned = {} if self._choice is None else {"tuned": self._choice.status()}
        return {
            **tuned,
            "worker": self.worker,
            "has_process": self.is_taken,
            "since_s": trio.current_time() - self._owner_since,
            "clock": None if self._clock is None or self._clock >= FOREVER else self._clock,
            "has_left": (self._clock or 0) >= FOREVER
            or (bool(self._clocks) and min(self._clocks.values()) >= FOREVER),
            "pulls": self.pulls,
            "waits_for": list(self.waits_for()),
            "why": self.why_it_waits,
            "why_age_s": trio.current_time() - self.why_at,
        }


def _joined(asked: _Request) -> PulledWeights:
    """Answer once all shards have; they agree on nothing but what they were asked for."""
    answers = [answer for _, answer in asked.answers]
    included = [clock for answer in answers for _, clock in answer.included.items()]
    return PulledWeights(
        parts=tuple((shard, answer.weights) for shard, answer in asked.answers),
        clock=asked.clock,
        model_clock=min(answer.model_clock for answer in answers),
        oldest=min(included, default=0),
        newest=max((clock for clock in included if clock < FOREVER), default=0),
        staleness=asked.staleness,
    )
