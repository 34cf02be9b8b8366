"""The shells around the cores of a shard: a host's node, and the parameter server's root.

A shell steps its core with what happens and does at once what the core orders, which is only ever to queue
something; what comes of that are further events, which wait their turn. The root's records are written by a
thread, one batch after the other, and what depends on them is said when they are on disk.

Invariants: no step begins within a step; a record is on disk before its ``Persisted``; when a core is found
broken, or the disk fails, the process ends, and what is on disk is what counts.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, assert_never

import trio

from inaproto.core.models.events import (
    Answer,
    Connect,
    Connected,
    Disconnect,
    Disconnected,
    Done,
    Heard,
    Loaded,
    NodeAction,
    NodeEvent,
    Noted,
    Persist,
    Persisted,
    Refuse,
    Resumed,
    RootAction,
    RootEvent,
    Stirred,
    Tell,
    Woke,
)
from inaproto.core.models.node import ShardNode
from inaproto.core.models.shard import ShardRoot
from inaproto.core.steps import Steps
from inaproto.daemon.models.degree_choice import DegreeChoice, LinkLoad
from inaproto.daemon.models.links import Links
from inaproto.daemon.models.shard_records import change_of, state_of
from inaproto.daemon.models.store.durable_log import DurableLog
from inaproto.daemon.settings.models_file import Shard
from inaproto.daemon.shell import Alarm, current_instant
from inaproto.errors import Blame, FabricError
from inaproto.units import MS, Instant
from inaproto.wire.control_messages import encode_with_arrays
from inaproto.wire.messages.model_connections import OverlayState
from inaproto.wire.messages.models import NodeId, Word

log = logging.getLogger("inaproto.overlay")

NOTES_KEPT: Final = 64
SPACE_RETRY_S: Final = 1.0
SNAPSHOT_RETRY_S: Final = 30.0
"""A log may go on growing for so long where there is no space for a snapshot."""


class WorkerSide(Protocol):
    """What the worker's side of a node hears: of shard ``shard``."""

    def state(self) -> OverlayState:
        """State of the worker, for those who wait for it."""
        ...

    def resumed(self, shard: Shard, clock: int) -> None: ...
    def done(self, shard: Shard, request: int, clock: int) -> None: ...
    def answered(self, shard: Shard, answer: Answer) -> None: ...
    def refused(self, shard: Shard, request: int, reason: str) -> None: ...


class _Shell:
    """What both kinds share: the order of events, the timer, neighbours, notes."""

    def __init__(self, shard: Shard, links: Links) -> None:
        self.shard = shard
        self._links = links
        self._steps = Steps[Any](self._step)
        self._alarm = Alarm(self._deadline, partial(self.post, Woke()))
        self._stepped = trio.Event()
        self.marks: Counter[str] = Counter()
        self.notes: deque[str] = deque(maxlen=NOTES_KEPT)
        """The newest, for people."""
        links.seat(shard, self)

    # --- Seat

    def connected(self, peer: NodeId) -> None:
        self.post(Connected(peer))

    def disconnected(self, peer: NodeId, why: str) -> None:
        self.post(Disconnected(peer))

    def heard(self, peer: NodeId, word: Word) -> None:
        self.post(Heard(peer, word))

    def stirred(self, peer: NodeId) -> None:
        self.post(Stirred(peer))

    # --- stepping

    def post(self, event: Any) -> None:
        """Step now, or after the step under way."""
        if self._steps.post(event):
            self._alarm.look()
            self._stepped.set()
            self._stepped = trio.Event()

    def state(self) -> OverlayState:
        raise NotImplementedError

    def _step(self, event: Any) -> None:
        raise NotImplementedError

    def _deadline(self) -> Instant | None:
        raise NotImplementedError

    async def keep_time(self) -> None:
        """Wake the core when it wants to be, until cancelled."""
        await self._alarm.run()

    def note(self, text: str) -> None:
        """For people, with the time, as the log has it."""
        self.notes.append(f"{time.strftime('%m-%d %H:%M:%S')} {text}")

    def _note(self, noted: Noted) -> None:
        peer = "" if noted.peer is None else f" ({self.shard.model.process_of(noted.peer)})"
        text = f"{noted.mark.value}{peer}{': ' if noted.why else ''}{noted.why}"
        self.marks[noted.mark.name.lower()] += 1
        level = logging.INFO if noted.mark.name in _REMARKABLE else logging.DEBUG
        log.log(level, "%s: %s", self.shard, text)
        if noted.mark.name in _REMARKABLE:
            self.note(text)

    def _blame(self, blame: Blame) -> None:
        """It is said, and the connection ends: both sides begin anew."""
        peer = NodeId(int(blame.peer))
        text = f"{self.shard.model.process_of(peer)} is blamed: {blame.rule}: {blame.evidence}"
        self.marks["blamed"] += 1
        self.note(text)
        log.warning("%s: %s; its connection is closed", self.shard, text)
        self._links.break_off(self.shard, peer, f"closed on this side: {blame.rule}")


_REMARKABLE: Final = frozenset(
    [
        "ATTACHED",
        "ADOPTED",
        "PARENT_DEAD",
        "CHILD_DEAD",
        "RETURNED",
        "RESENT",
        "RESET",
        "WORKER_RESUMED",
        "WORKER_REMOVED",
        "TORN_DOWN",
        "BUILT_UP",
        "AWAY",
        "RESHAPED",
        "NOT_RESHAPED",
    ]
)
"""Marks of failovers and fallbacks, which people are to see."""


class NodeShell(_Shell):
    """Shell of a host's node."""

    def __init__(self, shard: Shard, links: Links, core: ShardNode, worker: WorkerSide | None) -> None:
        super().__init__(shard, links)
        self.core = core
        self._worker = worker
        is_tuned = len(shard.trees) > 1
        self._load = LinkLoad(links.rate, current_instant(), links.carried) if is_tuned else None
        self._told_at = current_instant()
        """The core, how full the link is."""

    def start(self) -> None:
        """Once connections can be made."""
        self.post(Woke())

    def merged_of_worker(self) -> int:
        """Its clock on the server's disk, as far as that is known here."""
        view = self.core.view()
        return 0 if view.worker is None else view.root.get(view.worker) or 0

    async def merged(self, clock: int) -> None:
        """Until the server has the worker's updates up to this one on its disk."""
        while self.merged_of_worker() < clock:
            await self._stepped.wait()

    def state(self) -> OverlayState:
        return OverlayState() if self._worker is None else self._worker.state()

    def _deadline(self) -> Instant | None:
        return self.core.deadline

    def _step(self, event: NodeEvent) -> None:
        for action in self.core.step(event, current_instant()):
            self._perform(action)
        if self._load is not None:
            self._measure(self._load)

    def _measure(self, load: LinkLoad) -> None:
        """Once for each heartbeat, which tells it."""
        at, carried = current_instant(), self._links.carried
        load.goes_on(self.core.is_waited_for, at, carried)
        if at >= self._told_at + self.shard.model.settings.heartbeat_ms * MS:
            self._told_at = at
            self.post(Loaded(load.look(at, carried)[1]))

    def _perform(self, action: NodeAction) -> None:
        match action:
            case Tell(peer, word):
                self._links.tell(self.shard, peer, word)
            case Connect(peer):
                self._links.connect(self.shard, peer)
            case Disconnect(peer):
                self._links.disconnect(self.shard, peer)
            case Resumed(_, clock):
                if self._worker is not None:
                    self._worker.resumed(self.shard, clock)
            case Done(request, clock):
                if self._worker is not None:
                    self._worker.done(self.shard, request, clock)
            case Answer():
                if self._worker is not None:
                    self._worker.answered(self.shard, action)
            case Refuse(request, reason):
                if self._worker is not None:
                    self._worker.refused(self.shard, request, reason)
            case Noted():
                self._note(action)
            case Blame():
                self._blame(action)
            case _:
                assert_never(action)


class RootShell(_Shell):
    """Shell of a parameter server's root; ``store`` is its own."""

    def __init__(self, shard: Shard, links: Links, core: ShardRoot, store: DurableLog) -> None:
        super().__init__(shard, links)
        self.core = core
        self._store = store
        self._unwritten: deque[Persist] = deque()
        self._wake_writer = trio.Event()
        self._full = ""
        self._full_since: float | None = None
        """When the disk was found to be full, and how that was said."""
        self._snapshot_at = -math.inf
        self.records = 0
        """Written since the start."""
        self.choice: DegreeChoice | None = None
        """Where the in-degree is tuned."""
        self._load = LinkLoad(links.rate, current_instant(), links.carried)
        if len(shard.trees) > 1:
            tree = core.view().epoch.tree
            self.choice = DegreeChoice(str(shard), shard.model.degrees, self._load, tree)

    @property
    def store(self) -> DurableLog:
        return self._store

    def start(self) -> None:
        self.post(Woke())

    def _deadline(self) -> Instant | None:
        return self.core.deadline

    def _step(self, event: RootEvent) -> None:
        for action in self.core.step(event, current_instant()):
            self._perform(action)
        if self.choice is not None:
            self._tune(self.choice, event)

    def _tune(self, choice: DegreeChoice, event: RootEvent) -> None:
        at, carried = current_instant(), self._links.carried
        self._load.goes_on(self.core.is_waited_for, at, carried)
        if isinstance(event, Persisted):  # the model's clock may be a later one
            reshape = choice.stepped(self.core.view(), at, carried)
            if reshape is not None:
                self.post(reshape)

    def _perform(self, action: RootAction) -> None:
        match action:
            case Tell(peer, word):
                self._links.tell(self.shard, peer, word)
            case Persist():
                self._unwritten.append(action)
                self._wake_writer.set()
            case Noted():
                self._note(action)
            case Blame():
                self._blame(action)
            case _:
                assert_never(action)

    def state(self) -> OverlayState:
        view, at = self.core.view(), current_instant()
        absent = [(worker, self.core.absent_since(worker)) for worker in view.lost]
        return OverlayState(
            clocks=view.clocks,
            absent=tuple((int(w), max(0, at - since) // MS) for w, since in absent if since is not None),
            fault=self.fault,
        )

    @property
    def fault(self) -> str:
        """Why nothing becomes durable now; empty: it does."""
        if self._full_since is None:
            return ""
        return f"{self._full}, for {trio.current_time() - self._full_since:.0f} s"

    async def write(self) -> None:
        """Records to disk, until cancelled; where that is full, as soon as there is space.

        Raises ``FabricError`` when the disk fails otherwise.
        """
        while True:
            await self._wake_writer.wait()
            self._wake_writer = trio.Event()
            while self._unwritten:
                batch = list(self._unwritten)
                self._unwritten.clear()
                bodies = [encode_with_arrays(change_of(one.record)) for one in batch]
                append = partial(self._store.append, bodies)
                while not await self._is_written(append):  # noqa: ASYNC110  nobody tells when there is space
                    await trio.sleep(SPACE_RETRY_S)
                self.records += len(batch)
                for one in batch:
                    self.post(Persisted(one.token))
                if self._store.wants_snapshot and trio.current_time() >= self._snapshot_at:
                    body = encode_with_arrays(state_of(self.core.snapshot(), self.shard))
                    if not await self._is_written(partial(self._store.snapshot, body)):
                        self._snapshot_at = trio.current_time() + SNAPSHOT_RETRY_S

    async def _is_written(self, write: Callable[[], None]) -> bool:
        """False: the disk has no space for it."""
        try:
            await _in_thread(write)
        except FabricError as error:
            if not error.retryable:
                raise
            if self._full_since is None:
                self._full_since, self._full = trio.current_time(), str(error)
                self.marks["disk_full"] += 1
                self.note(f"{self._full}; goes on when there is space")
                log.error("%s: %s; goes on when there is space", self.shard, error)
            return False
        if self._full_since is not None:
            self.note(f"there is space again, after {trio.current_time() - self._full_since:.0f} s")
            log.warning("%s: there is space again, after %s", self.shard, self.fault.rpartition(", for ")[2])
            self._full_since = None
        return True


async def _in_thread(work: Callable[[], None]) -> None:
    """Not to be cancelled in the middle: the store is in use until it returns."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(work)
