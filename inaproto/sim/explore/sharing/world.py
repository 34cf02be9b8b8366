"""The world of a sharing group for the exhaustive search: coordinator, seats, log, and a bad network.

The real cores of MINA section IV-B (``inaproto.core.sharing_*``) as tables of local steps, so a state is a
short tuple of numbers: coordinator, log, what is left of the budgets, the letters under way, each seat.

*Operations.* A job runs its all-reduces one after the other. Each seat starts one when it likes, on the path
that its core says, and ends it once all seats of the job have started it: an operation whose seats differ in
path is finished by the fallback on all (the rescue). After the last one the job leaves.

*Network.* Letters under way are a set: any order; a letter equal to one that is under way is lost in it.
Losses and duplicates have budgets. The coordinator crashes and restarts from its log, of which the entry
that is being written is there or not. A host crashes and takes a seat of each job along; the coordinator
hears of it any time later.

*Timers* expire when what they wait for can no longer come, a back-off when nothing of the round that was
aborted is under way; earlier ones have a budget. Once ``rounds`` have begun one is tried again only when its
seats agree, so that versions stay few. The planner has another wish only when no round is under way, unless
it is ``hasty``.

*Reductions*: :mod:`inaproto.sim.explore.sharing.reductions`.

Rules: L1, no operation has two epochs. L2, two jobs never have INA operations under way at once, from the
first seat that starts to the last that has drained. L3, from each state all work can be finished, no seat
locked or in doubt and no turn left standing, without further faults (the engine's search for stuck states).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from inaproto.core.sharing.coordinator import SharingCoordinator
from inaproto.core.sharing.events import (
    Closing,
    CoordinatorLost,
    OperationEnded,
    OperationStarting,
    ParticipantConfig,
    Persisted,
    SeatGone,
    SeatsChanged,
    SharingView,
    Woke,
)
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.sim.explore.machine import Numbers
from inaproto.sim.explore.sharing.config import SharingWorldConfig
from inaproto.sim.explore.sharing.laws import broken_law
from inaproto.sim.explore.sharing.machines import (
    COORDINATOR,
    LATER,
    SOON,
    LetterTable,
    SharingMachine,
    perform_coordinator,
    perform_seat,
)
from inaproto.sim.explore.sharing.reductions import Reductions
from inaproto.sim.explore.sharing.states import (
    CRASH,
    CRASH_WRITTEN,
    DELIVER,
    DOWN,
    END,
    FAULTS,
    GONE,
    HOST_CRASH,
    LEASE,
    LEASE_EARLY,
    LOSE,
    LOST,
    REPEAT,
    RESEND,
    RESTART,
    START,
    TIMER,
    TIMER_EARLY,
    WISH,
    WRITE,
    Extra,
    Local,
    Log,
    Nets,
    State,
    Step,
    local_of,
)
from inaproto.sim.explore.sharing.waits import helps_to_repeat, is_answer_due, may_be_decided, may_succeed
from inaproto.units import Instant
from inaproto.wire.messages.sharing import Abort, Prepare, Refusal, Seat, Vote


class SharingWorld:
    """An ``Explorable``."""

    def __init__(self, config: SharingWorldConfig) -> None:
        self.config = config
        self.seats = config.seats
        self.letters = LetterTable(self.seats)
        self.coordinator: SharingMachine[SharingCoordinator] = SharingMachine(
            partial(perform_coordinator, self.letters)
        )
        self.participants: list[SharingMachine[SharingParticipant]] = [
            SharingMachine(partial(perform_seat, self.letters, seat)) for seat in self.seats
        ]
        self._views: list[tuple[SharingView, bool]] = []
        self._locals: list[list[Local]] = [[] for _ in self.seats]
        self.of_job = [
            [number for number, seat in enumerate(self.seats) if seat.job == one.job]
            for one in self.seats[:: config.hosts]
        ]
        self.nets = Nets(self.letters)
        self._reductions = Reductions(self)
        self.extras: Numbers[Extra] = Numbers()
        self._logs: Numbers[Log] = Numbers()

    # -- the Explorable ------------------------------------------------------------------------

    def initial(self) -> Iterable[State]:
        config = self.config
        extra = Extra(
            1,
            config.losses,
            config.duplicates,
            config.crashes,
            config.host_crashes,
            config.early_timers,
            (),
            (),
        )
        seats = [
            machine.enter(config.participant(ParticipantConfig(seat, ask_ns=0)))
            for machine, seat in zip(self.participants, self.seats, strict=True)
        ]
        down = (DOWN, self._logs.of(Log(None, None)), self.extras.of(extra), 0, *seats)
        yield self._restarted(down)

    def is_fault(self, step: Step) -> bool:
        return step.what in FAULTS

    def canonical(self, state: State) -> State:
        return self._reductions.canonical(state)

    def is_finished(self, state: State) -> bool:
        if state[0] == DOWN or self.view(state).turns:
            return False
        alive = [self.local(seat, one) for seat, one in enumerate(state[4:]) if one != DOWN]
        return all(local.is_closed and local.phase == "free" for local in alive)

    def violation(self, state: State) -> str | None:
        return broken_law(self, state)

    def successors(self, state: State) -> list[tuple[Step, State]]:
        found: list[tuple[Step, State]] = []
        if self.is_finished(state):
            return found
        extra = self.extras[state[2]]
        if self.config.reduced and state[0] != DOWN and not extra.early and not extra.crashes:
            for number in self.nets[state[3]]:
                if self._reductions.is_quiet(state, number):
                    self._letter(found, state, extra, number)
                    return found
        for number in self.nets[state[3]]:
            self._letter(found, state, extra, number)
        self._operations(found, state)
        self._seat_timers(found, state, extra)
        if state[0] == DOWN:
            found += [
                (Step(LOST, seat), self._to_seat(state, seat, "lost", CoordinatorLost()))
                for seat, at in enumerate(state[4:])
                if at != DOWN and self.local(seat, at).phase in ("voted", "locked")
            ]
            found.append((Step(RESTART, 0), self._restarted(state)))
        else:
            self._coordinator_steps(found, state, extra)
        if extra.host_crashes:
            hosts = self.config.hosts
            found += [
                (Step(HOST_CRASH, host), self._host_crashed(state, extra, host))
                for host in range(hosts)
                if any(state[4 + seat] != DOWN for seat in range(host, len(self.seats), hosts))
            ]
        return found

    # -- letters -------------------------------------------------------------------------------

    def _letter(self, found: list[tuple[Step, State]], state: State, extra: Extra, number: int) -> None:
        letter = self.letters[number]
        without = (*state[:3], self.nets.without(state[3], number), *state[4:])
        if letter.to == COORDINATOR:
            if state[0] != DOWN:
                found.append((Step(DELIVER, number), self._to_coordinator(without, number, letter.event)))
        else:
            found.append((Step(DELIVER, number), self._to_seat(without, letter.to, number, letter.event)))
        if extra.losses:
            less = self.extras.of(extra._replace(losses=extra.losses - 1))
            found.append((Step(LOSE, number), (*without[:2], less, *without[3:])))
        if extra.duplicates and (letter.to != COORDINATOR or state[0] != DOWN):
            less = self.extras.of(extra._replace(duplicates=extra.duplicates - 1))
            kept = (*state[:2], less, *state[3:])
            if letter.to == COORDINATOR:
                after = self._to_coordinator(kept, number, letter.event)
            else:
                after = self._to_seat(kept, letter.to, number, letter.event)
            found.append((Step(REPEAT, number), after))

    def _to_seat(self, state: State, seat: int, key: Any, event: object, now: Instant = SOON) -> State:
        local, sent = self.participants[seat].step(state[4 + seat], key, event, now)
        after = list(state)
        after[4 + seat] = local
        after[3] = self.nets.post(state, sent)
        return tuple(after)

    def _to_coordinator(self, state: State, key: Any, event: object, now: Instant = SOON) -> State:
        local, (sent, persist) = self.coordinator.step(state[0], key, event, now)
        log = state[1]
        if persist is not None:
            before = self._logs[log]
            # One that was being written, and is not waited for any more, is written by then.
            durable = before.durable if before.pending is None else before.pending
            log = self._logs.of(Log(durable, persist.record))
        after = (local, log, state[2], self.nets.post(state, sent), *state[4:])
        if persist is not None and not self.config.waits_for_log:
            return self._to_coordinator(after, "persisted", Persisted(1))
        return after

    # -- seats ---------------------------------------------------------------------------------

    def _operations(self, found: list[tuple[Step, State]], state: State) -> None:
        for numbers in self.of_job:
            alive = [(seat, self.local(seat, state[4 + seat])) for seat in numbers if state[4 + seat] != DOWN]
            started = min((local.next for _, local in alive), default=0)
            for seat, local in alive:
                if 0 <= local.running < started:
                    found.append((Step(END, seat), self._end(state, seat, local)))
                elif local.running < 0 and not local.is_held and local.next < self.config.operations:
                    event = OperationStarting(local.next)  # type: ignore[arg-type]
                    found.append((Step(START, seat), self._to_seat(state, seat, "start", event)))

    def _end(self, state: State, seat: int, local: Local) -> State:
        after = self._to_seat(state, seat, "end", OperationEnded(local.running))  # type: ignore[arg-type]
        if local.next < self.config.operations:
            return after
        return self._left(after, seat // self.config.hosts)

    def _left(self, state: State, job: int) -> State:
        """After its last operation a job leaves, and the planner says so."""
        extra = self.extras[state[2]]
        numbers = [seat for seat in self.of_job[job] if state[4 + seat] != DOWN]
        locals_ = [self.local(seat, state[4 + seat]) for seat in numbers]
        is_over = all(one.next == self.config.operations and one.running < 0 for one in locals_)
        if job in extra.left or not is_over:
            return state
        for seat in numbers:
            state = self._to_seat(state, seat, "close", Closing())
        left = extra._replace(left=tuple(sorted((*extra.left, job))))
        after = (*state[:2], self.extras.of(left), *state[3:])
        if state[0] == DOWN:
            return after
        seats = self._members(state, left)
        return self._to_coordinator(after, ("seats", seats), SeatsChanged(seats))

    def _seat_timers(self, found: list[tuple[Step, State]], state: State, extra: Extra) -> None:
        for seat, at in enumerate(state[4:]):
            if at == DOWN:
                continue
            local = self.local(seat, at)
            if local.phase == "free" or self.participants[seat].cores[at].deadline is None:
                continue
            if local.phase == "in doubt":
                if not is_answer_due(self, state, seat, local):
                    found.append((Step(LEASE, seat), self._to_seat(state, seat, "woke", Woke())))
            elif not may_be_decided(self, state, seat, local):
                found.append((Step(LEASE, seat), self._to_seat(state, seat, "woke", Woke())))
            elif extra.early:
                less = (*state[:2], self.extras.of(extra._replace(early=extra.early - 1)), *state[3:])
                found.append((Step(LEASE_EARLY, seat), self._to_seat(less, seat, "woke", Woke())))

    # -- coordinator ---------------------------------------------------------------------------

    def _coordinator_steps(self, found: list[tuple[Step, State]], state: State, extra: Extra) -> None:
        log = self._logs[state[1]]
        view, is_armed = self.viewed(state)
        phase = view.phase
        if log.pending is not None:
            written = (state[0], self._logs.of(Log(log.pending, None)), *state[2:])
            if self.config.waits_for_log or phase == "starting":
                written = self._to_coordinator(written, "persisted", Persisted(1))
            found.append((Step(WRITE, 0), written))
        if phase in ("preparing", "backing off"):
            self._soon(found, state, extra, view)
        elif is_armed and helps_to_repeat(self, state, view):
            after = self._to_coordinator(state, "later", Woke(), LATER)
            found.append((Step(RESEND, 0), after))
        if extra.wishes < self.config.turns and (phase == "idle" or self.config.hasty):
            wish = self.config.wishes[extra.wishes]
            told = (*state[:2], self.extras.of(extra._replace(wishes=extra.wishes + 1)), *state[3:])
            after = self._to_coordinator(told, ("wish", extra.wishes), wish)
            found.append((Step(WISH, extra.wishes), after))
        self._memberships(found, state, extra)
        if extra.crashes:
            fewer = self.extras.of(extra._replace(crashes=extra.crashes - 1))
            lost = self._logs.of(Log(log.durable, None))
            found.append((Step(CRASH, 0), (DOWN, lost, fewer, *state[3:])))
            if log.pending is not None:
                written_log = self._logs.of(Log(log.pending, None))
                found.append((Step(CRASH_WRITTEN, 0), (DOWN, written_log, fewer, *state[3:])))

    def _soon(self, found: list[tuple[Step, State]], state: State, extra: Extra, view: SharingView) -> None:
        version = view.version
        is_retry = view.phase == "backing off" and version.number >= self.config.rounds
        if is_retry and not may_succeed(self, state):
            return
        is_coming = any(
            isinstance(message, Prepare | Vote | Refusal | Abort) and message.version == version
            for message in (self.letters[number].event.message for number in self.nets[state[3]])
        )
        if not is_coming:
            found.append((Step(TIMER, 0), self._to_coordinator(state, "soon", Woke())))
        elif extra.early:
            less = (*state[:2], self.extras.of(extra._replace(early=extra.early - 1)), *state[3:])
            found.append((Step(TIMER_EARLY, 0), self._to_coordinator(less, "soon", Woke())))

    def _memberships(self, found: list[tuple[Step, State]], state: State, extra: Extra) -> None:
        for seat, at in enumerate(state[4:]):
            if at == DOWN and seat not in extra.gone:
                told = self.extras.of(extra._replace(gone=tuple(sorted((*extra.gone, seat)))))
                event = SeatGone(self.seats[seat], "its host crashed")
                after = self._to_coordinator((*state[:2], told, *state[3:]), ("gone", seat), event)
                found.append((Step(GONE, seat), after))

    def _members(self, state: State, extra: Extra) -> tuple[Seat, ...]:
        """All that the planner knows of."""
        return tuple(
            seat
            for number, seat in enumerate(self.seats)
            if number not in extra.gone and number // self.config.hosts not in extra.left
        )

    def _restarted(self, state: State) -> State:
        """From its log; then it hears at once what the planner and the connections know."""
        extra = self.extras[state[2]]
        core = self.config.coordinator(self.config.sharing, self._logs[state[1]].durable)
        after = (self.coordinator.enter(core), *state[1:])
        after = self._to_coordinator(after, "new", Woke())
        seats = self._members(state, extra)
        after = self._to_coordinator(after, ("seats", seats), SeatsChanged(seats))
        for seat in extra.gone:
            gone = SeatGone(self.seats[seat], "its host crashed")
            after = self._to_coordinator(after, ("gone", seat), gone)
        number = extra.wishes - 1
        return self._to_coordinator(after, ("wish", number), self.config.wishes[number])

    def _host_crashed(self, state: State, extra: Extra, host: int) -> State:
        seats = list(state[4:])
        for seat in range(host, len(seats), self.config.hosts):
            seats[seat] = DOWN
        rest = tuple(
            number
            for number in self.nets[state[3]]
            if self.letters[number].to < 0 or seats[self.letters[number].to] != DOWN
        )
        less = self.extras.of(extra._replace(host_crashes=extra.host_crashes - 1))
        after = (*state[:2], less, self.nets.of(rest), *seats)
        for job in range(self.config.jobs):
            after = self._left(after, job)
        return after

    # -- tables --------------------------------------------------------------------------------

    def local(self, seat: int, at: int) -> Local:
        known = self._locals[seat]
        while len(known) <= at:
            known.append(local_of(self.participants[seat].cores[len(known)]))
        return known[at]

    def view(self, state: State) -> SharingView:
        return self.viewed(state)[0]

    def viewed(self, state: State) -> tuple[SharingView, bool]:
        """(view, whether a timer is armed) of a coordinator that is up."""
        known, cores = self._views, self.coordinator.cores
        while len(known) <= state[0]:
            core = cores[len(known)]
            known.append((core.view(), core.deadline is not None))
        return known[state[0]]

    def net(self, state: State) -> tuple[int, ...]:
        return self.nets[state[3]]

    def job_name(self, job: int) -> str:
        return self.seats[self.of_job[job][0]].job

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        from inaproto.sim.explore.sharing.text import describe

        return describe(self, run)
