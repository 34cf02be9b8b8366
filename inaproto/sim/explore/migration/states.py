"""The states of the world of tree migration, and what two of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, assert_never

from inaproto.core.migration.coordinator import TreeMigration
from inaproto.core.migration.events import DrainJob, MigrationConfig, MigrationRecord, TreeStands
from inaproto.core.migration.ledger import SlotLedger
from inaproto.sim.explore.machine import Numbers
from inaproto.sim.explore.migration.config import MigrationWorldConfig
from inaproto.sim.explore.migration.cores import Coordinators, Ledgers
from inaproto.wire.messages.slots import Lease, SlotAnswer, SlotRequest, SlotsChanged

State = tuple[int, ...]
Message = SlotRequest | SlotAnswer | SlotsChanged

DOWN: Final = -1
GONE: Final = -2
"""State of the coordinator that is gone for ever."""
COORDINATOR: Final = 0
DISK: Final = 1
WRITING: Final = 2
"""The record under way to the disk, 0: none."""
PLANS: Final = 3
"""Plans that the planner has made."""
BUDGET: Final = 4
BROKEN: Final = 5
PARTS: Final = 6
"""Before the parts of the switches, of the jobs, and the bags of messages."""


class Step(NamedTuple):
    what: str
    where: int = 0
    """Index of a switch or a job."""
    which: int = 0
    """Number of a message, ..."""
    faults: tuple[str, ...] = ()


class Seat(NamedTuple):
    """The hosts of a job, as one."""

    is_alive: bool = True
    uses: TreeStands | None = None
    order: DrainJob | TreeStands | None = None
    """Not carried out yet."""
    is_old: bool = False
    """The order is of a coordinator that is no more."""
    drained: int = 0
    """The epoch, until the coordinator hears it."""


class Budget(NamedTuple):
    losses: int
    duplicates: int
    crashes: int
    reboots: int
    outages: int
    run_outs: int
    deaths: int
    no_return: int
    faults: int

    def has(self, name: str) -> bool:
        return bool(self.faults and getattr(self, name))

    def less(self, name: str) -> Budget:
        return self._replace(**{name: getattr(self, name) - 1, "faults": self.faults - 1})


class MigrationStates:
    """Tables of all that states are made of; what can be read off a state; states that are alike."""

    def __init__(
        self,
        config: MigrationWorldConfig,
        coordinator: Callable[[MigrationConfig, MigrationRecord | None], TreeMigration],
        ledger: type[SlotLedger],
    ) -> None:
        self.config = config
        self.switches = config.scenario.switches
        self.jobs = config.scenario.jobs
        self.plans = len(config.scenario.plans)
        self.coordinators = Coordinators(
            MigrationConfig(self.switches, (config.capacity,) * len(self.switches), tries_max=2), coordinator
        )
        self.ledgers = [Ledgers(name, config.capacity, ledger) for name in self.switches]
        self.records: Numbers[MigrationRecord | None] = Numbers(None)
        self.seats: Numbers[Seat] = Numbers(Seat())
        self.messages: Numbers[Message] = Numbers()
        self.bags: Numbers[tuple[int, ...]] = Numbers(())
        self.words: Numbers[str] = Numbers("")
        full = Budget(*(getattr(config, name) for name in Budget._fields))
        self.budgets: Numbers[Budget] = Numbers(full)
        self._at_switch = PARTS
        self._at_job = PARTS + len(self.switches)
        self._at_bag = self._at_job + len(self.jobs)

    def ledger(self, state: Sequence[int], at: int) -> SlotLedger:
        return self.ledgers[at].cores[state[self._at_switch + at]]

    def core(self, state: Sequence[int]) -> TreeMigration | None:
        return self.coordinators.cores[state[COORDINATOR]] if state[COORDINATOR] >= 0 else None

    def bag(self, state: Sequence[int], at: int) -> tuple[int, ...]:
        return self.bags[state[self._at_bag + at]]

    def job_seats(self, state: Sequence[int]) -> dict[str, Seat]:
        return {job: self.seats[state[self._at_job + at]] for at, job in enumerate(self.jobs)}

    def is_at_rest(self, state: Sequence[int], plans: int) -> bool:
        """Every living job has what the first ``plans`` plans give it, and nothing else goes on."""
        core = self.core(state)
        if core is None or state[WRITING] or state[PLANS] != plans or core._plan != plans:
            return False
        if any(state[self._at_bag :]) or not core._is_settled:
            return False
        claims: dict[str, set[Lease]] = {name: set() for name in self.switches}
        for name, job in core._jobs.items():
            for where in job.tree.switches if job.tree else ():
                claims[where].add(Lease(name, job.tree.tree_id if job.tree else 0, job.epoch))
        for at, name in enumerate(self.switches):
            if set(self.ledger(state, at)._held) != claims[name]:
                return False
        for name, seat in self.job_seats(state).items():
            epoch = core._jobs[name].epoch if name in core._jobs else 0
            used = 0 if seat.uses is None else seat.uses.epoch
            if (used != epoch) if seat.is_alive else name in core._jobs:
                return False
            if seat.order is not None or seat.drained:
                return False
        return True

    def used(self, state: Sequence[int]) -> set[tuple[str, int]]:
        """(job, epoch) of the leases that a living job uses."""
        seats = self.job_seats(state).items()
        return {(job, seat.uses.epoch) for job, seat in seats if seat.uses is not None}

    @staticmethod
    def put(state: Sequence[int], place: int, value: int) -> State:
        """The state with another part."""
        return (*state[:place], value, *state[place + 1 :])

    def tidy(self, state: list[int]) -> State:
        """One of all states that are alike but for the numbers of requests, and for late messages."""
        for at, name in enumerate(self.switches):
            self._tidy_switch(state, at, name)
        return tuple(state)

    def _tidy_switch(self, state: list[int], at: int, name: str) -> None:
        core = self.core(state)
        bag = [self.messages[number] for number in self.bag(state, at)]
        last = self.ledger(state, at)._last
        if self.config.reduced and bag:
            bag = [message for message in bag if self._matters(message, core, last, name)]
        if core is not None:
            term, known = core._term, core._switches[name]
            seen = {known.number, *(key_of(its)[1] for its in bag if _term(its) == term)}
            if last is not None and last.term == term:
                seen.add(last.number)
            numbers = {old: new for new, old in enumerate(sorted(seen - {0}), 1)} | {0: 0}
            if any(old != new for old, new in numbers.items()):
                state[COORDINATOR] = self.coordinators.renumbered(state[COORDINATOR], name, numbers)
                if last is not None and last.term == term:
                    place = self._at_switch + at
                    state[place] = self.ledgers[at].renumbered(state[place], numbers)
                bag = [_renumbered(its, numbers) if _term(its) == term else its for its in bag]
        hints = list(dict.fromkeys(its for its in bag if isinstance(its, SlotsChanged)))
        bag = [its for its in bag if not isinstance(its, SlotsChanged)] + hints
        state[self._at_bag + at] = self.bags.of(tuple(sorted(map(self.messages.of, bag))))

    @staticmethod
    def _matters(message: Message, core: TreeMigration | None, last: SlotRequest | None, name: str) -> bool:
        match message:
            case SlotRequest():
                return last is None or (message.term, message.number) >= (last.term, last.number)
            case SlotAnswer():
                asked = core._switches[name].asked if core is not None else None
                return asked is not None and (asked.term, asked.number) == (message.term, message.number)
            case SlotsChanged():
                return True
            case _:
                assert_never(message)


def key_of(message: Message) -> tuple[int, int]:
    """(term, number); a hint has none."""
    return (0, 0) if isinstance(message, SlotsChanged) else (message.term, message.number)


def _term(message: Message) -> int:
    return key_of(message)[0]


def _renumbered(message: Message, numbers: Mapping[int, int]) -> Message:
    if isinstance(message, SlotsChanged):
        return message
    return replace(message, number=numbers[message.number])
