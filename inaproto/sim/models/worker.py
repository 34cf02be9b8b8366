"""A worker's process: it makes updates, pushes them, clocks, pulls, and leaves when it has made all of them.

It trains a model of several shards: each update goes to each shard's node on its host, and it goes on when
all of them have answered. After a crash of the host the shards say, each for itself, where it is: it makes
again what a shard lacks, another making with other numbers, and nothing for the shards that have it. Removed
from one shard it leaves the others, so that nobody waits for it there.

Beside what it waits for it may have pulls under way while it goes on, each with a staleness of its own. When
its process goes, another takes its place: what was not finished is made again, and what its nodes had been
asked for that is not dropped (a clock that is held back, or that it leaves) is answered to its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from inaproto.core.models.events import Answer, Clocked, Left, NodeEvent, Pulled, Pushed
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.messages.clocks import FOREVER

if TYPE_CHECKING:
    from inaproto.sim.models.config import WorkerSetup
    from inaproto.sim.models.host import Host, NodeSeat


class Worker:
    """One process: it lives no longer than its host stays up."""

    def __init__(self, host: Host, number: int, setup: WorkerSetup, attempt: int) -> None:
        self.host = host
        self.number = number
        self.setup = setup
        self.attempt = attempt
        self.clocks: dict[int, int] = {}
        """Its clock in each shard that has said so."""
        self.open: dict[int, int] = {}
        """Clocks to be of shards that have a part of the update that it is making."""
        self.is_over = False
        self._requests = 0
        self._waiting: dict[tuple[int, int], NodeEvent] = {}
        self._aside: dict[tuple[int, int], tuple[Pulled, int]] = {}
        """Pulls that it does not wait for, and its clock when it asked."""
        self._inherited: dict[tuple[int, int], NodeEvent] = {}
        """What the process before it had asked for, and is still done."""
        self._then: Callable[[], None] = self._next
        self._is_removed = False
        self._is_asleep = False

    def __str__(self) -> str:
        waits = [f"{type(event).__name__} of shard {shard}" for (shard, _), event in self._waiting.items()]
        return f"worker {self.number} at {self.clocks} waits for {waits}"

    def asked(self, shard: int, request: int) -> tuple[NodeEvent | None, int]:
        """What it asked with that request, if that is not answered, and its clock when it did."""
        if (shard, request) in self._aside:
            return self._aside[shard, request]
        return self._waiting.get((shard, request)), self.clocks.get(shard, 0)

    # --- one process after the other

    def follows(self, before: Worker, sleeps_ns: int) -> None:
        """In place of one that is gone; after that time it is there."""
        self._requests, self._is_removed, self.is_over = before._requests, before._is_removed, before.is_over
        kept = {**before._inherited, **before._waiting}
        self._inherited = {key: asked for key, asked in kept.items() if isinstance(asked, Clocked | Left)}
        pending = {shard for shard, _ in self._inherited}
        self.clocks = {shard: clock for shard, clock in before.clocks.items() if shard not in pending}
        if self._inherited:
            self.host.world.mark("a worker's process was gone while its clock was held back, or it left")
        self._is_asleep = True
        self._after(sleeps_ns, self._wakes)

    def _wakes(self) -> None:
        self._is_asleep = False
        self._maybe_begin()

    def _maybe_begin(self) -> None:
        """Once it knows where it is in all shards."""
        if len(self.clocks) == len(self.host.seats) and not self._is_asleep and not self.is_over:
            self._pause()

    def _after(self, delay_ns: int, act: Callable[[], None]) -> None:
        """If it is still this process."""
        self.host.after(delay_ns, lambda: act() if self.host.worker is self else None)

    # --- what its nodes say

    def resumed(self, seat: NodeSeat, clock: int) -> None:
        if seat.shard in self.clocks:
            raise Violated("a worker resumes once", f"{seat} says it again, of {self}")
        self.clocks[seat.shard] = clock
        if clock >= FOREVER and self.host.world.ledgers[seat.shard].is_removed(self.number):
            self._is_removed = True
        self._maybe_begin()

    def done(self, seat: NodeSeat, request: int, clock: int) -> None:
        if self._inherited.pop((seat.shard, request), None) is not None:
            self.clocks[seat.shard] = clock
            self._maybe_begin()
            return
        asked = self._take(seat, request)
        expected = FOREVER if isinstance(asked, Left) else self.clocks[seat.shard] + 1
        if clock != expected:
            raise Violated("a clock counts updates", f"{seat} says {clock} to {asked}, {expected} is due")
        self.clocks[seat.shard] = clock
        self.open.pop(seat.shard, None)
        self._maybe_on()

    def answered(self, seat: NodeSeat, answer: Answer) -> None:
        if self._aside.pop((seat.shard, answer.request), None) is not None:
            return
        self._take(seat, answer.request)
        self._maybe_on()

    def refused(self, seat: NodeSeat, request: int, reason: str) -> None:
        """It was removed; or it leaves, and does not want to know."""
        key = seat.shard, request
        is_leaving = any(
            isinstance(asked, Left) for (shard, _), asked in self._waiting.items() if shard == key[0]
        )
        if self._aside.pop(key, None) is not None:
            if is_leaving:
                self.host.world.mark("a pull was refused since its worker leaves")
                return
        elif self._inherited.pop(key, None) is None:
            self._take(seat, request)
        if not self.host.world.ledgers[seat.shard].is_removed(self.number):
            raise Violated("nothing is refused without a reason", f"{seat} refuses {self}: {reason}")
        self.host.world.mark("a request of a removed worker was refused")
        self._is_removed = True
        self.clocks[seat.shard] = FOREVER
        if self._inherited or self._is_asleep or len(self.clocks) < len(self.host.seats):
            self._maybe_begin()
        else:
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
        self._after(0, self._then)

    def _pause(self) -> None:
        """Think, then go on."""
        self._after(self.host.draws.below(self.setup.think_ns + 1), self._next)

    def _next(self) -> None:
        clock = min(self.clocks.values())
        if self._is_removed or clock >= self.setup.clocks:
            self._leave()
            return
        self._make(clock + 1)
        if self.setup.leaves_open and clock + 1 >= self.setup.clocks:
            self.host.world.mark("a worker left with an update that had no clock")
            self._leave()
            return
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
        self._then = then
        seats = [seat for seat in self.host.seats if self.clocks[seat.shard] < FOREVER]
        for seat in seats:
            self._pull_aside(seat)
        more = self._spread()
        requests: list[tuple[NodeSeat, NodeEvent]] = []
        for seat in seats:
            self._requests += 1
            requests.append((seat, Pulled(self._requests, self._staleness(seat, more))))
        self._say(requests)

    def _spread(self) -> int:
        """How much more staleness than usual a pull bears, in all shards alike. Less only where all have the
        same: one that waits in a shard withholds in another, for as long, what is not asked for there."""
        spread = self.setup.staleness_spread
        if not spread:
            return 0
        drawn = self.host.draws.below(2 * spread + 1) - spread
        are_alike = len({setup.staleness for setup in self.host.world.config.shards}) == 1
        return drawn if are_alike else abs(drawn)

    def _staleness(self, seat: NodeSeat, more: int) -> int:
        of_shard = self.host.world.config.shards[seat.shard].staleness
        return max(0, of_shard + self.setup.extra_staleness + more)

    def _pull_aside(self, seat: NodeSeat) -> None:
        """Not more than a node lets wait, with the one that is waited for."""
        if not self.setup.side_pulls:
            return
        for _ in range(self.host.draws.below(self.setup.side_pulls + 1)):
            waiting = sum(shard == seat.shard for shard, _ in self._aside)
            if waiting + 1 >= seat.config.shard.ahead_max:
                return
            self._requests += 1
            pulled = Pulled(self._requests, self._staleness(seat, self._spread()))
            self._aside[seat.shard, pulled.request] = pulled, self.clocks[seat.shard]
            seat.step(pulled)
            self.host.world.mark("a worker pulled without waiting for it")

    def _leave(self) -> None:
        seats = [seat for seat in self.host.seats if self.clocks[seat.shard] < FOREVER]
        for seat in seats:
            last = max(self.clocks[seat.shard], self.open.get(seat.shard, 0))
            self.host.world.ledgers[seat.shard].leaving(self.number, last)
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
            self._after(0, self._then)
