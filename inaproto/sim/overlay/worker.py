"""A worker: it makes updates, pushes them, clocks, pulls, and leaves when it has made all of them.

It trains a model of several shards: each update goes to each shard's node on its host, and it goes on when
all of them have answered. After a crash of the host the shards say, each for itself, where it is: it makes
again what a shard lacks, another making with other numbers, and nothing for the shards that have it. Removed
from one shard it leaves the others, so that nobody waits for it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inaproto.core.push_pull.clocks import FOREVER
from inaproto.core.push_pull.types import Answer, Clocked, Left, NodeEvent, Pulled, Pushed
from inaproto.sim.checkers.checker import Violated

if TYPE_CHECKING:
    from inaproto.sim.overlay.config import WorkerSetup
    from inaproto.sim.overlay.host import Host, NodeSeat


class Worker:
    """One incarnation: it lives as long as its host stays up."""

    def __init__(self, host: Host, number: int, setup: WorkerSetup) -> None:
        self.host = host
        self.number = number
        self.setup = setup
        self.attempt = host.incarnation - 1
        self.clocks: dict[int, int] = {}
        """Its clock in each shard that has said so."""
        self.open: dict[int, int] = {}
        """Of shards that have a part of the update that it is making: its clock to be."""
        self.is_over = False
        self._requests = 0
        self._waiting: dict[tuple[int, int], NodeEvent] = {}
        self._then: Callable[[], None] = self._next
        self._is_removed = False

    def __str__(self) -> str:
        waits = [f"{type(event).__name__} of shard {shard}" for (shard, _), event in self._waiting.items()]
        return f"worker {self.number} at {self.clocks} waits for {waits}"

    def asked(self, shard: int, request: int) -> NodeEvent | None:
        """What it asked with that request, if it waits for it."""
        return self._waiting.get((shard, request))

    # --- what its nodes say

    def resumed(self, seat: NodeSeat, clock: int) -> None:
        if seat.shard in self.clocks:
            raise Violated("a worker resumes once", f"{seat} says it again, of {self}")
        self.clocks[seat.shard] = clock
        if clock >= FOREVER and self.host.world.ledgers[seat.shard].is_removed(self.number):
            self._is_removed = True
        if len(self.clocks) == len(self.host.seats):
            self._pause()

    def done(self, seat: NodeSeat, request: int, clock: int) -> None:
        asked = self._take(seat, request)
        expected = FOREVER if isinstance(asked, Left) else self.clocks[seat.shard] + 1
        if clock != expected:
            raise Violated("a clock counts updates", f"{seat} says {clock} to {asked}, {expected} is due")
        self.clocks[seat.shard] = clock
        self.open.pop(seat.shard, None)
        self._maybe_on()

    def answered(self, seat: NodeSeat, answer: Answer) -> None:
        self._take(seat, answer.request)
        self._maybe_on()

    def refused(self, seat: NodeSeat, request: int, reason: str) -> None:
        """It was removed."""
        self._take(seat, request)
        if not self.host.world.ledgers[seat.shard].is_removed(self.number):
            raise Violated("nothing is refused without a reason", f"{seat} refuses {self}: {reason}")
        self.host.world.mark("a request of a removed worker was refused")
        self._is_removed = True
        self.clocks[seat.shard] = FOREVER
        self._maybe_on()

    def _take(self, seat: NodeSeat, request: int) -> NodeEvent:
        asked = self._waiting.pop((seat.shard, request), None)
        if asked is None:
            raise Violated("a request is answered once", f"{seat} answers {request}, which nobody asks")
        return asked

    # --- what it does

    def _maybe_on(self) -> None:
        if self._waiting:
            return
        if self._is_removed:
            self._then = self._leave
        self.host.after(0, self._then)

    def _pause(self) -> None:
        """Think, then go on."""
        self.host.after(self.host.draws.below(self.setup.think_ns + 1), self._next)

    def _next(self) -> None:
        clock = min(self.clocks.values())
        if self._is_removed or clock >= self.setup.clocks:
            self._leave()
            return
        self._make(clock + 1)
        between = self.host.draws.chance(1, 6)
        if between:
            self.host.world.mark("a worker pulled in the middle of an update")
            self._pull(self._clock)
        else:
            self._clock()

    def _make(self, clock: int) -> None:
        """Update ``clock``, for the shards that lack it."""
        world = self.host.world
        for seat in self.host.seats:
            if self.clocks[seat.shard] >= clock:
                continue
            if world.ledgers[seat.shard].making(self.number, clock, self.attempt):
                world.mark("an update was made again that was on its way")
            self.open[seat.shard] = clock
            for gradients in world.values[seat.shard].pushes(self.number, clock, self.attempt):
                seat.step(Pushed(gradients))

    def _clock(self) -> None:
        seats = [seat for seat in self.host.seats if seat.shard in self.open]
        self._ask(seats, Clocked, self._clocked)

    def _clocked(self) -> None:
        clock = min(self.clocks.values())
        if clock % self.setup.pull_every == 0 or clock >= self.setup.clocks:
            self._pull(self._pause)
        else:
            self._pause()

    def _pull(self, then: Callable[[], None]) -> None:
        shards = self.host.world.config.shards

        def pulled(request: int, shard: int) -> NodeEvent:
            return Pulled(request, max(0, shards[shard].staleness + self.setup.extra_staleness))

        self._then = then
        seats = [seat for seat in self.host.seats if self.clocks[seat.shard] < FOREVER]
        requests = []
        for seat in seats:
            self._requests += 1
            requests.append((seat, pulled(self._requests, seat.shard)))
        self._say(requests)

    def _leave(self) -> None:
        seats = [seat for seat in self.host.seats if self.clocks[seat.shard] < FOREVER]
        for seat in seats:
            self.host.world.ledgers[seat.shard].leaving(self.number, self.clocks[seat.shard])
        if seats:
            self._ask(seats, Left, self._leave)
            return
        self.is_over = True
        self.host.world.mark("a worker was finished")

    def _ask(
        self, seats: Sequence[NodeSeat], event: Callable[[int], NodeEvent], then: Callable[[], None]
    ) -> None:
        self._then = then
        requests = []
        for seat in seats:
            self._requests += 1
            requests.append((seat, event(self._requests)))
        self._say(requests)

    def _say(self, requests: list[tuple[NodeSeat, NodeEvent]]) -> None:
        """All at once, so that an answer to the first does not end the waiting."""
        for seat, event in requests:
            assert isinstance(event, Clocked | Pulled | Left)
            self._waiting[seat.shard, event.request] = event
        for seat, event in requests:
            seat.step(event)
        if not requests:
            self.host.after(0, self._then)
