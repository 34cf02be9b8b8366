"""Where protocol cores of the controller run: a core's records in the store, its token when they are there.

This is the place for sharing by two-phase commit and for live migration of trees: one runner for each sharing
group and one for migration. A core is built from the record that its owner left, if any; ``step`` gives
actions; those that make something durable are written before the core hears so (durable before visible), in
the order in which they came; all others go to ``perform`` at once, which may only enqueue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import trio

from inaproto.units import Instant

E = TypeVar("E")
A = TypeVar("A")
E_contra = TypeVar("E_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)

EVENTS_MAX: Final = 1 << 12


class Core(Protocol[E_contra, A_co]):
    def step(self, event: E_contra, now: Instant) -> Sequence[A_co]: ...

    @property
    def deadline(self) -> Instant | None: ...


class PutRecord(Protocol):
    async def __call__(self, owner: str, body: bytes | None) -> None: ...


@dataclass(frozen=True, slots=True)
class ToPersist:
    """An action that must be on disk before ``token`` is given back. ``body``: None forgets the record."""

    body: bytes | None
    token: int


class CoreRunner(Generic[E, A]):
    """One task for one core. ``owner``: of its record in the store, such as "sharing/7".

    ``persistence`` says which actions are to be persisted; ``persisted`` makes the event of a token;
    ``woke`` is the event of a deadline. ``put_record``: :meth:`Controller.put_record`.
    """

    def __init__(
        self,
        owner: str,
        core: Core[E, A],
        *,
        put_record: PutRecord,
        persistence: Callable[[A], ToPersist | None],
        persisted: Callable[[int], E],
        woke: E,
        perform: Callable[[A], None],
        now: Callable[[], Instant],
    ) -> None:
        self._owner = owner
        self._core = core
        self._put_record = put_record
        self._persistence = persistence
        self._persisted = persisted
        self._woke = woke
        self._perform = perform
        self._now = now
        self._send, self._receive = trio.open_memory_channel[E](EVENTS_MAX)
        self._untold = 0
        """Events that the core has not heard, or not done with."""

    @property
    def is_idle(self) -> bool:
        """The core has heard of all that it was told, and what follows from that is done."""
        return self._untold == 0

    def tell(self, event: E) -> None:
        """Raises ``trio.WouldBlock`` when so many events wait that one more would be growth without bound."""
        self._send.send_nowait(event)
        self._untold += 1

    async def run(self) -> None:
        """Until cancelled. Errors of the store go on to the caller: this controller leads no more."""
        while True:
            event = await self._next()
            await self._step(self._woke if event is None else event)
            self._untold -= event is not None

    async def _next(self) -> E | None:
        """None: the core's deadline has come."""
        deadline = self._core.deadline
        if deadline is None:
            return await self._receive.receive()
        with trio.move_on_after(max(0, deadline - self._now()) / 1e9):
            return await self._receive.receive()
        return None

    async def _step(self, event: E) -> None:
        events = [event]
        while events:
            for action in self._core.step(events.pop(0), self._now()):
                wanted = self._persistence(action)
                if wanted is None:
                    self._perform(action)
                    continue
                await self._put_record(self._owner, wanted.body)
                events.append(self._persisted(wanted.token))
