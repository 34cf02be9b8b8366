"""The collective library of a host daemon, and what it does for one job (docs/protocol.md 9.8).

What is tried, voted and taken is in :mod:`inaproto.core.host.collective`; here are the calls of the library,
which wait, and the memory that is no tensor.

Invariants: an attempt is over, with its memory given back, before the core hears that it is; what a try was
given belongs to it until its attachment is released; every wait has an end: the attempt's, the core's
deadline of a try, or ``RELEASE_S``.
"""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from inaproto.core.grants.places import Attaching
from inaproto.core.host import collective as core
from inaproto.core.host.collective_terms import CollectiveTerms, digest_of
from inaproto.daemon.host.grants import HostGrants
from inaproto.daemon.host.out_of_band import Table
from inaproto.errors import FabricError, Unsupported
from inaproto.ports import Attachment, Collective
from inaproto.units import S
from inaproto.wire.messages.collective import CollectiveWord

RELEASE_S: Final = 10.0
IN_THREAD_BYTES: Final = 1 << 20
"""The digest of more is taken in a thread."""


def terms_of(library: Collective, *, bytes_min: int) -> CollectiveTerms:
    """What it takes. Raises ``LocalMisuse`` for a library whose name no message holds."""
    caps = library.capabilities
    return CollectiveTerms(caps.name, caps.dtypes, caps.ops, bytes_min, caps.operation_bytes_max)


class CollectiveHost:
    """The library of a daemon, and the tasks that call it; :meth:`run` it as long as the daemon serves."""

    def __init__(
        self, library: Collective, terms: CollectiveTerms, grants: HostGrants, *, attach_ns: int
    ) -> None:
        self.library = library
        self.terms = terms
        self.places = grants.places
        self._changed = grants.changed
        self.attach_s = attach_ns / S
        self.held: dict[Attachment, None] = {}
        """Attachments that are to be released."""
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve jobs until cancelled; then leave all that is still attached."""
        try:
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
                for attachment in list(self.held):
                    await attachment.release()
                await self.library.aclose()

    def attached(self, attaching: Attaching) -> None:
        """It is had."""
        self.places.attached(attaching)
        self._changed()

    def ends(self, attaching: Attaching) -> None:
        """It is given back, or was never had; may be said again."""
        if self.places.ends(attaching):
            self._changed()

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """A daemon that ends starts nothing."""
        if self._nursery is not None:
            self._nursery.start_soon(task)


@dataclass(eq=False, slots=True)
class _Memory:
    """Of one attachment: what it reads, and where its result is to lie."""

    nbytes: int
    source: memoryview = field(init=False)
    into: memoryview = field(init=False)
    keys: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.source, self.into = (memoryview(mmap.mmap(-1, self.nbytes)) for _ in range(2))


@dataclass(eq=False, slots=True)
class _Attempt:
    number: int
    table: Table
    in_place: Attaching
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    """Of its attaching, then of the operation that it tries."""
    attachment: Attachment | None = None
    memory: _Memory | None = None
    is_idle: trio.Event = field(default_factory=trio.Event)
    """Nothing of it is under way."""


class CollectiveSeat:
    """One job's. ``feed`` tells its core, ``tell`` the other hosts; ``hosts`` says who these are, and which
    of them this one is."""

    def __init__(
        self,
        job: str,
        host: CollectiveHost,
        *,
        feed: Callable[[core.FromShell], None],
        tell: Callable[[CollectiveWord], None],
        hosts: Callable[[], tuple[tuple[str, ...], int]],
    ) -> None:
        self._job, self._host = job, host
        self._feed, self._tell, self._hosts = feed, tell, hosts
        self._attempt: _Attempt | None = None
        self._early: list[CollectiveWord] = []
        """Words of the latest attempt that others have begun and this host has not."""

    def heard(self, word: CollectiveWord) -> None:
        """Another host of the job says that."""
        present = 0 if self._attempt is None else self._attempt.number
        if self._attempt is not None and word.attempt == present:
            self._attempt.table.heard(word)
        elif word.attempt > present:
            latest = self._early[0].attempt if self._early else 0
            if word.attempt > latest:
                self._early.clear()
            if word.attempt >= latest and len(self._early) < 2 * len(self._hosts()[0]):
                self._early.append(word)
            if self._attempt is not None:
                self._attempt.table.give_up(f"host {word.host} has begun attempt {word.attempt}")
            self._feed(core.Superseded(word.attempt))

    def perform(self, action: core.Attach | core.Release) -> None:
        """As the core orders."""
        if isinstance(action, core.Attach):
            hosts, position = self._hosts()
            table = Table(self._job, hosts, position, action.attempt, self._tell)
            self._attempt = _Attempt(action.attempt, table, self._host.places.begins(self._job))
            for word in self._early:
                if word.attempt == action.attempt:
                    table.heard(word)
            self._early = [word for word in self._early if word.attempt > action.attempt]
            self._host.start(partial(self._attach, self._attempt))
        elif self._attempt is not None and self._attempt.number == action.attempt:
            self._attempt.table.give_up("it was given up")
            self._attempt.scope.cancel()
            self._host.start(partial(self._release, self._attempt))

    async def _attach(self, attempt: _Attempt) -> None:
        failed = ""
        table, limit_s = attempt.table, self._host.attach_s
        try:
            with attempt.scope, trio.move_on_after(limit_s) as waited:
                await trio.lowlevel.checkpoint_if_cancelled()  # given up before it began: says nothing
                try:
                    attempt.attachment = await self._host.library.attach(self._job, attempt.number, table)
                    self._host.held[attempt.attachment] = None
                except FabricError as error:
                    failed = error.cause
                except Unsupported as error:  # seen at last; the job has other paths
                    failed = error.why
                failed = await table.end(failed)
            if waited.cancelled_caught:
                failed = await table.end(f"not all hosts came within {limit_s:g} s")
            elif attempt.scope.cancelled_caught:
                failed = "it was given up"
        finally:
            if failed or attempt.attachment is None:
                await self._leave(attempt)
            attempt.is_idle.set()
        done = core.AttachFailed(attempt.number, failed) if failed else core.Attached(attempt.number)
        if not failed:
            self._host.attached(attempt.in_place)
        self._feed(done)

    async def _release(self, attempt: _Attempt) -> None:
        await attempt.is_idle.wait()
        await self._leave(attempt)
        self._feed(core.Released(attempt.number))

    async def _leave(self, attempt: _Attempt) -> None:
        attachment, attempt.attachment = attempt.attachment, None
        if attachment is not None:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
                await attachment.release()
            self._host.held.pop(attachment, None)
        self._host.ends(attempt.in_place)

    # --- operations

    def memory_to_try(self, nbytes: int) -> tuple[memoryview, memoryview]:
        """As long as the operation; memory that has to grow is another, of which the library hears."""
        attempt = self._attempt
        assert attempt is not None
        if attempt.memory is None or attempt.memory.nbytes < nbytes:
            attempt.memory = _Memory(max(mmap.PAGESIZE, 1 << (nbytes - 1).bit_length()))
        return attempt.memory.source[:nbytes], attempt.memory.into[:nbytes]

    def try_it(self, order: core.Try) -> None:
        """The memory is filled."""
        if self._attempt is not None and self._attempt.number == order.attempt:
            self._attempt.is_idle = trio.Event()
            self._attempt.scope = trio.CancelScope()
            self._host.start(partial(self._try, order, self._attempt))

    async def _try(self, order: core.Try, attempt: _Attempt) -> None:
        operation, memory, attachment = order.operation, attempt.memory, attempt.attachment
        index, done = operation.index, None
        try:
            with attempt.scope:
                if attachment is None or memory is None:
                    raise FabricError("collective", "the other hosts", "adding", "released", retryable=False)
                if memory.keys is None:
                    memory.keys = (
                        await attachment.register(memory.source),
                        await attachment.register(memory.into),
                    )
                nbytes = operation.nbytes
                await attachment.all_reduce(*memory.keys, nbytes, operation.dtype, operation.op)
                digest = await self._digest(memory.into[:nbytes])
                done = core.Tried(index, attempt.number, digest)
        except FabricError as error:
            self._ended(attempt, core.TryFailed(index, attempt.number, error.cause, not error.retryable))
        except Unsupported as error:
            self._ended(attempt, core.TryFailed(index, attempt.number, error.why, is_lost=True))
        else:
            self._ended(attempt, done)
        finally:
            attempt.is_idle.set()

    def _ended(self, attempt: _Attempt, event: core.FromShell | None) -> None:
        """Nobody waits for what was given up."""
        attempt.is_idle.set()
        if event is not None:
            self._feed(event)

    async def _digest(self, result: memoryview) -> int:
        if len(result) < IN_THREAD_BYTES:
            return digest_of(result)
        return await trio.to_thread.run_sync(digest_of, result)
