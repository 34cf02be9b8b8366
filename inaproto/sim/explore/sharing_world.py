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

*Reductions* (``reduced``; compared with the full search in ``tests/sim/test_explore_sharing.py``):

1. A letter that can have no effect any more (an old term or version) is delivered at once.
2. A vote, or a word that a seat is done, which the coordinator only counts is delivered, or struck by a
   fault, before all else. It commutes with all steps of seats; a wish in between makes of it a vote for a
   round that is over, which is answered as a question is. Not while the coordinator may crash, or a timer
   expire early.

Rules: L1, no operation has two epochs. L2, two jobs never have INA operations under way at once, from the
first seat that starts to the last that has drained. L3, from each state all work can be finished, no seat
locked or in doubt and no turn left standing, without further faults (the engine's search for stuck states).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from inaproto.core.sharing_coordinator import SharingCoordinator
from inaproto.core.sharing_participant import SharingParticipant
from inaproto.core.sharing_types import (
    Closing,
    OperationEnded,
    OperationStarting,
    ParticipantConfig,
    Persisted,
    SeatGone,
    SeatsChanged,
    SharingRecord,
    SharingView,
    Woke,
)
from inaproto.core.sharing_words import (
    Abort,
    Ask,
    AskPeer,
    Commit,
    Done,
    Drained,
    EndTurn,
    Prepare,
    Refusal,
    Rule,
    Seat,
    TellPeerDecision,
    Vote,
)
from inaproto.sim.explore.sharing_config import SharingWorldConfig
from inaproto.sim.explore.sharing_machines import (
    COORDINATOR,
    LATER,
    SOON,
    LetterTable,
    Machine,
    is_void_for_coordinator,
    is_void_for_seat,
    perform_coordinator,
    perform_seat,
)
from inaproto.units import Instant

State = tuple[int, ...]
"""Coordinator, log, extra, letters, seats; all are numbers into tables. Who is down is -1."""
DOWN: Final = -1

DELIVER: Final = "deliver"
REPEAT: Final = "deliver, and keep a copy under way"
LOSE: Final = "lose"
WRITE: Final = "the log is written"
START: Final = "start"
END: Final = "end"
LEASE: Final = "timer of a seat"
LEASE_EARLY: Final = "early timer of a seat"
TIMER: Final = "timer of the coordinator"
TIMER_EARLY: Final = "early timer of the coordinator"
RESEND: Final = "second timer of the coordinator"
WISH: Final = "wish"
CRASH: Final = "crash"
CRASH_WRITTEN: Final = "crash, after the log was written"
RESTART: Final = "restart"
HOST_CRASH: Final = "host crash"
GONE: Final = "gone"
FAULTS: Final = frozenset((REPEAT, LOSE, LEASE_EARLY, TIMER_EARLY, CRASH, CRASH_WRITTEN, HOST_CRASH))


class Step(NamedTuple):
    what: str
    where: int
    """Letter, seat, host or job."""


class Extra(NamedTuple):
    wishes: int
    """Said."""
    losses: int
    duplicates: int
    crashes: int
    host_crashes: int
    early: int
    gone: tuple[int, ...]
    """Seats of whose end the coordinator has heard."""
    left: tuple[int, ...]
    """Jobs that have left."""


class Log(NamedTuple):
    durable: SharingRecord | None
    pending: SharingRecord | None


class Local(NamedTuple):
    """What the world asks of a seat."""

    next: int
    running: int
    """-1: none."""
    is_ina: bool
    epoch: int
    is_held: bool
    is_closed: bool
    phase: str
    version: Any
    floor: int
    owes: bool


class SharingWorld:
    """An ``Explorable``."""

    def __init__(self, config: SharingWorldConfig) -> None:
        self.config = config
        self.seats = config.seats
        self.letters = LetterTable(self.seats)
        self.coordinator: Machine[SharingCoordinator] = Machine(partial(perform_coordinator, self.letters))
        self.participants: list[Machine[SharingParticipant]] = [
            Machine(partial(perform_seat, self.letters, seat)) for seat in self.seats
        ]
        self._views: list[tuple[SharingView, bool]] = []
        self._locals: list[list[Local]] = [[] for _ in self.seats]
        self._of_job = [
            [number for number, seat in enumerate(self.seats) if seat.job == one.job]
            for one in self.seats[:: config.hosts]
        ]
        self._nets: list[tuple[int, ...]] = [()]
        self._net_number: dict[tuple[int, ...], int] = {(): 0}
        self._void: dict[tuple[int, int], bool] = {}
        self._posted: dict[tuple[int, tuple[int, ...]], int] = {}
        self._removed: dict[tuple[int, int], int] = {}
        self._extras: list[Extra] = []
        self._extra_number: dict[Extra, int] = {}
        self._logs: list[Log] = []
        self._log_number: dict[Log, int] = {}

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
        down = (DOWN, self._log(Log(None, None)), self._extra(extra), 0, *seats)
        yield self._restarted(down)

    def is_fault(self, step: Step) -> bool:
        return step.what in FAULTS

    def canonical(self, state: State) -> State:
        """Letters that can have no effect any more are delivered."""
        net = state[3]
        if not net or not self.config.reduced:
            return state
        crashes = self._extras[state[2]].crashes
        kept = tuple(one for one in self._nets[net] if not self._is_void(one, state, crashes))
        return state if len(kept) == len(self._nets[net]) else (*state[:3], self._net(kept), *state[4:])

    def _is_void(self, number: int, state: State, crashes: int) -> bool:
        to = self.letters[number].to
        if to == COORDINATOR and (state[0] == DOWN or crashes):
            return False
        key = (number, state[0] if to == COORDINATOR else state[4 + to])
        void = self._void.get(key)
        if void is None:
            message = self.letters[number].event.message
            if to == COORDINATOR:
                void = is_void_for_coordinator(self.coordinator.cores[state[0]], message)
            else:
                void = is_void_for_seat(self.participants[to].cores[state[4 + to]], message)
            self._void[key] = void
        return void

    def is_finished(self, state: State) -> bool:
        if state[0] == DOWN or self.view(state).turns:
            return False
        alive = [self.local(seat, one) for seat, one in enumerate(state[4:]) if one != DOWN]
        return all(local.is_closed and local.phase == "free" for local in alive)

    def violation(self, state: State) -> str | None:
        broken = self.coordinator.violations.get(state[0])
        if broken is not None:
            return broken
        using: dict[str, int] = {}
        for job, numbers in enumerate(self._of_job):
            epochs: dict[int, set[int]] = {}
            for seat in numbers:
                at = state[4 + seat]
                if at == DOWN:
                    continue
                if at in self.participants[seat].violations:
                    return self.participants[seat].violations[at]
                local = self.local(seat, at)
                if local.is_ina:
                    epochs.setdefault(local.running, set()).add(local.epoch)
            for index, found in epochs.items():
                if len(found) > 1:
                    return f"L1: operation {index} of job {self._job(job)} runs under epochs {sorted(found)}"
            if epochs:
                using[self._job(job)] = next(iter(next(iter(epochs.values())))) % self.config.capacity
        if len(using) > self.config.capacity:
            return f"L2: jobs {' and '.join(using)} use the pool at once"
        if len(set(using.values())) < len(using):
            return f"L2: of jobs {' and '.join(using)} two use one place of the pool at once"
        return None

    def successors(self, state: State) -> list[tuple[Step, State]]:
        found: list[tuple[Step, State]] = []
        if self.is_finished(state):
            return found
        extra = self._extras[state[2]]
        if self.config.reduced and state[0] != DOWN and not extra.early and not extra.crashes:
            for number in self._nets[state[3]]:
                if self._is_quiet(state, number):
                    self._letter(found, state, extra, number)
                    return found
        for number in self._nets[state[3]]:
            self._letter(found, state, extra, number)
        self._operations(found, state)
        self._seat_timers(found, state, extra)
        if state[0] == DOWN:
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
        without = (*state[:3], self._without(state[3], number), *state[4:])
        if letter.to == COORDINATOR:
            if state[0] != DOWN:
                found.append((Step(DELIVER, number), self._to_coordinator(without, number, letter.event)))
        else:
            found.append((Step(DELIVER, number), self._to_seat(without, letter.to, number, letter.event)))
        if extra.losses:
            less = self._extra(extra._replace(losses=extra.losses - 1))
            found.append((Step(LOSE, number), (*without[:2], less, *without[3:])))
        if extra.duplicates and (letter.to != COORDINATOR or state[0] != DOWN):
            less = self._extra(extra._replace(duplicates=extra.duplicates - 1))
            kept = (*state[:2], less, *state[3:])
            if letter.to == COORDINATOR:
                after = self._to_coordinator(kept, number, letter.event)
            else:
                after = self._to_seat(kept, letter.to, number, letter.event)
            found.append((Step(REPEAT, number), after))

    def _is_quiet(self, state: State, number: int) -> bool:
        """Whether the coordinator only counts it."""
        letter = self.letters[number]
        if letter.to != COORDINATOR or not isinstance(letter.event.message, Vote | Done):
            return False
        local, (sent, persist) = self.coordinator.step(state[0], number, letter.event)
        before, after = self.view(state), self._viewed((local,))[0]
        return not sent and persist is None and after.phase == before.phase

    def _to_seat(self, state: State, seat: int, key: Any, event: object, now: Instant = SOON) -> State:
        local, sent = self.participants[seat].step(state[4 + seat], key, event, now)
        after = list(state)
        after[4 + seat] = local
        after[3] = self._post(state, sent)
        return tuple(after)

    def _to_coordinator(self, state: State, key: Any, event: object, now: Instant = SOON) -> State:
        local, (sent, persist) = self.coordinator.step(state[0], key, event, now)
        log = state[1]
        if persist is not None:
            before = self._logs[log]
            # One that was being written, and is not waited for any more, is written by then.
            durable = before.durable if before.pending is None else before.pending
            log = self._log(Log(durable, persist.record))
        after = (local, log, state[2], self._post(state, sent), *state[4:])
        if persist is not None and not self.config.waits_for_log:
            return self._to_coordinator(after, "persisted", Persisted(1))
        return after

    def _post(self, state: State, sent: tuple[int, ...]) -> int:
        if not sent:
            return state[3]
        alive = tuple(
            one for one in sent if self.letters[one].to < 0 or state[4 + self.letters[one].to] != DOWN
        )
        key = (state[3], alive)
        net = self._posted.get(key)
        if net is None:
            net = self._posted[key] = self._net(tuple(sorted({*self._nets[state[3]], *alive})))
        return net

    def _without(self, net: int, number: int) -> int:
        key = (net, number)
        after = self._removed.get(key)
        if after is None:
            rest = tuple(one for one in self._nets[net] if one != number)
            after = self._removed[key] = self._net(rest)
        return after

    # -- seats ---------------------------------------------------------------------------------

    def _operations(self, found: list[tuple[Step, State]], state: State) -> None:
        for numbers in self._of_job:
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
        extra = self._extras[state[2]]
        numbers = [seat for seat in self._of_job[job] if state[4 + seat] != DOWN]
        locals_ = [self.local(seat, state[4 + seat]) for seat in numbers]
        is_over = all(one.next == self.config.operations and one.running < 0 for one in locals_)
        if job in extra.left or not is_over:
            return state
        for seat in numbers:
            state = self._to_seat(state, seat, "close", Closing())
        left = extra._replace(left=tuple(sorted((*extra.left, job))))
        after = (*state[:2], self._extra(left), *state[3:])
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
                if not self._is_answer_due(state, seat, local):
                    found.append((Step(LEASE, seat), self._to_seat(state, seat, "woke", Woke())))
            elif not self._may_be_decided(state, seat, local):
                found.append((Step(LEASE, seat), self._to_seat(state, seat, "woke", Woke())))
            elif extra.early:
                less = (*state[:2], self._extra(extra._replace(early=extra.early - 1)), *state[3:])
                found.append((Step(LEASE_EARLY, seat), self._to_seat(less, seat, "woke", Woke())))

    def _is_answer_due(self, state: State, seat: int, local: Local) -> bool:
        for number in self._nets[state[3]]:
            letter = self.letters[number]
            message = letter.event.message
            if getattr(message, "version", None) != local.version:
                continue
            if letter.to == seat and isinstance(message, Commit | Abort | TellPeerDecision):
                return True
            if isinstance(message, Ask) and message.seat == self.seats[seat] and state[0] != DOWN:
                return True
            if isinstance(message, AskPeer) and message.sender == self.seats[seat]:
                return True
        return False

    def _may_be_decided(self, state: State, seat: int, local: Local) -> bool:
        """Whether the seat, which has voted, need only wait."""
        if state[0] != DOWN:
            view = self.view(state)
            if view.version == local.version and view.phase in ("preparing", "deciding"):
                return True
        return any(
            self.letters[number].to == seat
            and isinstance(self.letters[number].event.message, Commit | Abort)
            and self.letters[number].event.message.version == local.version  # type: ignore[union-attr]
            for number in self._nets[state[3]]
        )

    # -- coordinator ---------------------------------------------------------------------------

    def _coordinator_steps(self, found: list[tuple[Step, State]], state: State, extra: Extra) -> None:
        log = self._logs[state[1]]
        view, is_armed = self._viewed(state)
        phase = view.phase
        if log.pending is not None:
            written = (state[0], self._log(Log(log.pending, None)), *state[2:])
            if self.config.waits_for_log or phase == "starting":
                written = self._to_coordinator(written, "persisted", Persisted(1))
            found.append((Step(WRITE, 0), written))
        if phase in ("preparing", "backing off"):
            self._soon(found, state, extra, view)
        elif is_armed and self._helps_to_repeat(state, view):
            after = self._to_coordinator(state, "later", Woke(), LATER)
            found.append((Step(RESEND, 0), after))
        if extra.wishes < self.config.turns and (phase == "idle" or self.config.hasty):
            wish = self.config.wishes[extra.wishes]
            told = (*state[:2], self._extra(extra._replace(wishes=extra.wishes + 1)), *state[3:])
            after = self._to_coordinator(told, ("wish", extra.wishes), wish)
            found.append((Step(WISH, extra.wishes), after))
        self._memberships(found, state, extra)
        if extra.crashes:
            fewer = self._extra(extra._replace(crashes=extra.crashes - 1))
            lost = self._log(Log(log.durable, None))
            found.append((Step(CRASH, 0), (DOWN, lost, fewer, *state[3:])))
            if log.pending is not None:
                written_log = self._log(Log(log.pending, None))
                found.append((Step(CRASH_WRITTEN, 0), (DOWN, written_log, fewer, *state[3:])))

    def _soon(self, found: list[tuple[Step, State]], state: State, extra: Extra, view: SharingView) -> None:
        version = view.version
        is_retry = view.phase == "backing off" and version.number >= self.config.rounds
        if is_retry and not self._may_succeed(state):
            return
        is_coming = any(
            isinstance(message, Prepare | Vote | Refusal | Abort) and message.version == version
            for message in (self.letters[number].event.message for number in self._nets[state[3]])
        )
        if not is_coming:
            found.append((Step(TIMER, 0), self._to_coordinator(state, "soon", Woke())))
        elif extra.early:
            less = (*state[:2], self._extra(extra._replace(early=extra.early - 1)), *state[3:])
            found.append((Step(TIMER_EARLY, 0), self._to_coordinator(less, "soon", Woke())))

    def _may_succeed(self, state: State) -> bool:
        """Whether a round would be committed if nothing else happened."""
        round_ = vars(self.coordinator.cores[state[0]])["_rounds"].round
        asked = [self.seats.index(seat) for seat in round_.change.seats]
        if any(state[4 + seat] == DOWN for seat in asked):
            return False
        locals_ = {seat: self.local(seat, state[4 + seat]) for seat in asked}
        if any(local.is_closed or local.phase != "free" for local in locals_.values()):
            return False
        if self.config.rule is Rule.BY_INDEX:
            return True
        indices: dict[str, set[int]] = {}
        for seat, local in locals_.items():
            indices.setdefault(self.seats[seat].job, set()).add(local.next)
        is_used = any(local.is_ina for local in locals_.values())
        return not is_used and all(len(found) == 1 for found in indices.values())

    def _helps_to_repeat(self, state: State, view: SharingView) -> bool:
        """Whether something that is waited for is no longer under way."""
        messages = [self.letters[number].event.message for number in self._nets[state[3]]]
        if view.phase == "committing":
            coming = {one.seat for one in messages if isinstance(one, Commit | Done)}
            return any(seat not in coming for seat in view.missing)
        coming = {one.seat for one in messages if isinstance(one, EndTurn | Drained)}
        for turn in view.turns:
            for seat in turn.undrained:
                number = self.seats.index(seat)
                at = state[4 + number]
                if at == DOWN or seat in coming:
                    continue
                local = self.local(number, at)
                if not local.owes and turn.turn.until is not None and local.floor > turn.turn.epoch:
                    return True
                stands = self.participants[number].cores[at].view().turn
                if stands is not None and stands.until != turn.turn.until:
                    return True
        return False

    def _memberships(self, found: list[tuple[Step, State]], state: State, extra: Extra) -> None:
        for seat, at in enumerate(state[4:]):
            if at == DOWN and seat not in extra.gone:
                told = self._extra(extra._replace(gone=tuple(sorted((*extra.gone, seat)))))
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
        extra = self._extras[state[2]]
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
            for number in self._nets[state[3]]
            if self.letters[number].to < 0 or seats[self.letters[number].to] != DOWN
        )
        less = self._extra(extra._replace(host_crashes=extra.host_crashes - 1))
        after = (*state[:2], less, self._net(rest), *seats)
        for job in range(self.config.jobs):
            after = self._left(after, job)
        return after

    # -- tables --------------------------------------------------------------------------------

    def local(self, seat: int, at: int) -> Local:
        known = self._locals[seat]
        while len(known) <= at:
            known.append(_local_of(self.participants[seat].cores[len(known)]))
        return known[at]

    def view(self, state: State) -> SharingView:
        return self._viewed(state)[0]

    def _viewed(self, state: State) -> tuple[SharingView, bool]:
        """(view, whether a timer is armed) of a coordinator that is up."""
        known, cores = self._views, self.coordinator.cores
        while len(known) <= state[0]:
            core = cores[len(known)]
            known.append((core.view(), core.deadline is not None))
        return known[state[0]]

    def net(self, state: State) -> tuple[int, ...]:
        return self._nets[state[3]]

    def log_of(self, state: State) -> Log:
        return self._logs[state[1]]

    def _job(self, job: int) -> str:
        return self.seats[self._of_job[job][0]].job

    def _net(self, letters: tuple[int, ...]) -> int:
        number = self._net_number.get(letters)
        if number is None:
            number = self._net_number[letters] = len(self._nets)
            self._nets.append(letters)
        return number

    def _extra(self, extra: Extra) -> int:
        number = self._extra_number.get(extra)
        if number is None:
            number = self._extra_number[extra] = len(self._extras)
            self._extras.append(extra)
        return number

    def _log(self, log: Log) -> int:
        number = self._log_number.get(log)
        if number is None:
            number = self._log_number[log] = len(self._logs)
            self._logs.append(log)
        return number

    def describe(self, run: Sequence[tuple[State, Step]]) -> list[str]:
        from inaproto.sim.explore.sharing_text import describe

        return describe(self, run)


def _local_of(core: SharingParticipant) -> Local:
    view, state = core.view(), vars(core)
    running = next(iter(state["_running"].items()), (-1, None))
    return Local(
        next=view.next_operation,
        running=running[0],
        is_ina=running[1] is not None,
        epoch=0 if running[1] is None else running[1],
        is_held=view.is_held,
        is_closed=state["_is_closed"],
        phase=view.phase,
        version=view.version,
        floor=state["_floor"],
        owes=state["_owed"] is not None,
    )
