"""What hosts and switches were told by controllers that are killed, and told them: is it one story?

Fed with every message that passed between a controller and its agents (:mod:`inaproto_hil.crashes.relay`),
and with nothing that a controller says of itself. It holds that over all lives of all controllers

- a term has one life, and a later life a higher term; revisions of what agents shall hold never go back;
- a round has one decision: what was told to one seat as committed is told to no other as something else, nor
  to one that has not applied it as aborted, what was told as aborted is never committed, and no round begins
  while a seat has not heard of it;
- an epoch is one turn, of one job from one operation on, and a new one is higher than all before; a pool has
  no more turns at once than places;
- a grant is of one job for ever, and no slot is of two jobs at once, in the eyes of its agent;
- an epoch of a lease is of one job for ever, no switch lends more slots than it has, and what a job is told
  to have for a tree does not go back.

A seat is rid of its turn when it says so, when its host has the seat no more, when its ring has ended at
another host, or when its host was without a controller for the lease: then it was given up, and the epoch of
the next turn takes the slots from it (:mod:`inaproto.core.switch.slot_pools`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from inaproto.units import JobId
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentReport, AgentWelcome, AgentWishes, GrantRecord
from inaproto.wire.messages.sharing import (
    Abort,
    Ask,
    Commit,
    Decision,
    Done,
    Drained,
    Prepare,
    Seat,
    SeatHold,
    SharingSeats,
    Turn,
    Version,
)
from inaproto.wire.messages.slots import Lease, SlotAnswer
from inaproto.wire.messages.trees import TreeWishes
from inaproto_hil.crashes.leases import Leases


@dataclass(slots=True)
class _Round:
    seats: tuple[Seat, ...] = ()
    """Seats that were asked."""
    decision: Decision | None = None
    told: dict[Seat, None] = field(default_factory=dict)
    aborted: dict[Seat, None] = field(default_factory=dict)
    """Seats that were told that it never will be committed, before it was."""
    jobs: dict[str, None] = field(default_factory=dict)
    """Jobs whose seats were asked."""
    done: dict[Seat, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Turn:
    pool: str
    grant: Turn
    undrained: dict[Seat, None]


@dataclass(slots=True)
class _Agent:
    revision: int = 0
    wanted: dict[int, GrantRecord] = field(default_factory=dict)
    held: dict[int, GrantRecord] = field(default_factory=dict)
    """Wanted, or not yet known to be given up."""
    slots: int = 0
    """Slots that a switch may lend."""
    lent: tuple[Lease, ...] = ()
    sessions: int = 0
    away_since: float = -inf
    """While it has none."""


class Witness:
    """``lease_s``: of the controllers. ``capacity``: places of a pool. Times: of any one clock."""

    def __init__(self, *, lease_s: float, capacity: int = 1) -> None:
        self._lease_s = lease_s
        self._capacity = capacity
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        """Counts of what it has seen, by kind: a story of nothing is no proof."""
        self.leases = Leases()
        """Leases that seats were told with the rounds."""
        self._lives: dict[int, int] = {}
        """Lives by term."""
        self._revision = 0
        """The highest that was told to any agent, and in which life."""
        self._revision_life = 0
        self._rounds: dict[Version, _Round] = {}
        self._open: dict[Version, None] = {}
        """Rounds that were committed, as far as it was told, and that seats have not all applied."""
        self._holds: dict[Seat, SeatHold] = {}
        self._pools: dict[Seat, str] = {}
        """For ever."""
        self._gone: dict[Seat, None] = {}
        self._turns: dict[tuple[str, int], _Turn] = {}
        """Not over, by pool and epoch."""
        self._epochs: dict[tuple[str, int], Turn] = {}
        self._agents: dict[str, _Agent] = {}
        self._jobs: dict[int, int] = {}
        """Jobs of grants, for ever."""
        self._leases: dict[int, str] = {}
        """Jobs, by epoch, for ever."""
        self._tree_epochs: dict[str, int] = {}

    # --- sessions

    def disconnected(self, agent: str, now: float) -> None:
        """A session that had been welcomed is over."""
        its = self._agent(agent)
        its.sessions, its.away_since = its.sessions - 1, now

    def _agent(self, name: str) -> _Agent:
        return self._agents.setdefault(name, _Agent())

    # --- what a controller says

    def told(self, agent: str, life: int, message: Message, now: float) -> None:
        """``life``: of the process that says it; later ones are higher."""
        match message:
            case AgentWelcome():
                self._agent(agent).sessions += 1
                self._agent(agent).slots = message.slots
                self._welcomed(life, message.term)
            case AgentWishes():
                self._wished(agent, life, message)
            case TreeWishes():
                self._wished_trees(message)
            case Prepare():
                self._prepared(message, now)
            case Commit():
                self._committed(message, now)
            case Abort():
                self._aborted(message)
            case _:
                pass

    def _welcomed(self, life: int, term: int) -> None:
        owner = self._lives.setdefault(term, life)
        if owner != life:
            self._fault(f"term {term} is of two lives of controllers, {owner} and {life}")
        later = [one for one, its in self._lives.items() if its < life and one >= term]
        if later:
            self._fault(f"life {life} has term {term}, and one before it had {max(later)}")
        self.counts["welcomes"] += 1

    def _prepared(self, said: Prepare, now: float) -> None:
        version = said.version
        if version not in self._rounds:
            self.counts["rounds"] += 1
            self._no_open_round(version, now)
        one = self._rounds.setdefault(version, _Round())
        one.seats = tuple(dict.fromkeys((*one.seats, *said.peers))) if said.seats else said.peers
        if said.seat.job not in one.jobs:
            one.jobs[said.seat.job] = None
            self.leases.told(said.seat.job, now, said.lease_ns / 1e9)

    def _no_open_round(self, next_one: Version, now: float) -> None:
        for version in list(self._open):
            one = self._rounds[version]
            missing = [seat for seat in one.seats if seat not in one.done and not self._is_rid(seat, now)]
            if missing:
                self._fault(
                    f"round {next_one} begins, and {_names(missing)} has not applied what round {version} "
                    f"has decided, and was told to {_names(one.told)}"
                )
            del self._open[version]

    def _committed(self, said: Commit, now: float) -> None:
        version = said.version
        one = self._rounds.setdefault(version, _Round())
        if one.decision is None:
            one.decision = said.decision
            if one.aborted:
                self._fault(
                    f"round {version} is committed for {_names([said.seat])}, and was aborted for "
                    f"{_names(one.aborted)}"
                )
            self._open[version] = None
            self.counts["decisions"] += 1
            if said.decision.granted is not None:
                self._granted(said.decision.granted, one, said.seat, now)
        elif one.decision != said.decision:
            self._fault(f"round {version} has two decisions: {one.decision} and {said.decision}")
        one.told[said.seat] = None

    def _granted(self, grant: Turn, one: _Round, seat: Seat, now: float) -> None:
        pool = self._pools.get(seat, "?")
        newest = max((epoch for its, epoch in self._epochs if its == pool), default=0)
        if grant.epoch <= newest:
            self._fault(f"pool {pool}: epoch {grant.epoch} of job {grant.job} after epoch {newest}")
        self._epochs[pool, grant.epoch] = grant
        standing = [turn for turn in self._turns.values() if turn.pool == pool and self._stands(turn, now)]
        if len(standing) >= self._capacity:
            others = "; ".join(
                f"epoch {turn.grant.epoch} of job {turn.grant.job} is not drained at {_names(turn.undrained)}"
                for turn in standing
            )
            self._fault(f"pool {pool}: epoch {grant.epoch} is given to job {grant.job}, but {others}")
        seats = [its for its in (*one.seats, seat) if its.job == grant.job and its not in self._gone]
        self._turns[pool, grant.epoch] = _Turn(pool, grant, dict.fromkeys(seats))
        self.counts["turns"] += 1

    def _stands(self, turn: _Turn, now: float) -> bool:
        return any(not self._is_rid(seat, now) for seat in turn.undrained)

    def _is_rid(self, seat: Seat, now: float) -> bool:
        """Whether it is rid of whatever it has had: it is no more, or was given up."""
        if seat in self._gone:
            return True
        host = self._agent(seat.host)
        return host.sessions == 0 and now - host.away_since >= self._lease_s

    def _aborted(self, said: Abort) -> None:
        version = said.version
        one = self._rounds.setdefault(version, _Round())
        self.counts["aborts"] += 1
        if one.decision is None:
            one.aborted[said.seat] = None
        elif said.seat not in one.done and said.seat in one.seats:
            self._fault(
                f"round {version} is aborted for {_names([said.seat])}, and was committed for "
                f"{_names(one.told)}"
            )

    # --- what agents hold

    def _wished(self, agent: str, life: int, said: AgentWishes) -> None:
        its = self._agent(agent)
        if said.revision < its.revision:
            self._fault(f"{agent}: revision {said.revision} after {its.revision}")
        if life > self._revision_life and said.revision < self._revision:
            self._fault(
                f"{agent}: life {life} tells revision {said.revision}, one before it told {self._revision}"
            )
        its.revision = max(its.revision, said.revision)
        if said.revision >= self._revision:
            self._revision, self._revision_life = said.revision, max(life, self._revision_life)
        its.wanted = {grant.grant: grant for grant in said.grants}
        for grant in said.grants:
            if grant.grant not in its.held:
                self.counts["grants"] += 1
            job = self._jobs.setdefault(grant.grant, grant.job)
            if job != grant.job:
                self._fault(f"{agent}: grant {grant.grant} of job {job} is of job {grant.job} now")
            its.held[grant.grant] = grant
        owner: dict[tuple[str, int], GrantRecord] = {}
        for grant in its.held.values():
            for slot in grant.slots:
                other = owner.setdefault((slot.port, slot.number), grant)
                if other.job != grant.job:
                    self._fault(
                        f"{agent}: slot {slot.port}/{slot.number} is of {other.name} and {grant.name}"
                    )

    def _reported(self, agent: str, report: AgentReport) -> None:
        its, holds = self._agent(agent), {one.grant for one in report.holds}
        its.held = {
            number: grant for number, grant in its.held.items() if number in holds or number in its.wanted
        }

    # --- trees, and what switches lend for them

    def _wished_trees(self, said: TreeWishes) -> None:
        for wish in said.trees:
            newest = self._tree_epochs.get(wish.job, 0)
            if wish.epoch < newest:
                self._fault(f"job {wish.job}: a tree of epoch {wish.epoch} is wished after one of {newest}")
            self._tree_epochs[wish.job] = max(newest, wish.epoch)
            if wish.tree is not None:
                self._leased(wish.epoch, wish.job)
                self.counts["wishes of trees"] += 1

    def _lends(self, switch: str, report: SlotAnswer) -> None:
        its = self._agent(switch)
        its.lent = report.held
        for lease in report.held:
            self._leased(lease.epoch, lease.job)
        if len(report.held) > its.slots:
            jobs = ", ".join(lease.job for lease in report.held)
            self._fault(f"{switch}: lends {len(report.held)} slots, and has {its.slots}: {jobs}")

    def _leased(self, epoch: int, job: str) -> None:
        if epoch not in self._leases:
            self.counts["leases"] += 1
        owner = self._leases.setdefault(epoch, job)
        if owner != job:
            self._fault(f"a lease's epoch {epoch} was of job {owner}, and is of job {job}")

    # --- what agents say

    def heard(self, agent: str, message: Message) -> None:
        match message:
            case AgentReport():
                self._reported(agent, message)
            case SlotAnswer():
                self._lends(agent, message)
            case SharingSeats():
                self._seated(agent, message.seats)
            case Done():
                self._rounds.setdefault(message.version, _Round()).done[message.seat] = None
            case Drained():
                self._drained(message.seat, message.epoch)
            case Ask():
                self.counts["doubts"] += 1
            case _:
                pass

    def _seated(self, host: str, holds: Iterable[SeatHold]) -> None:
        here = {Seat(JobId(one.job), host, one.life): one for one in holds}
        for seat in [seat for seat in self._holds if seat.host == host and seat not in here]:
            ring = _ring(self._holds[seat])
            for other in [one for one, hold in self._holds.items() if _ring(hold) == ring]:
                del self._holds[other]
                self._gone[other] = None
        for seat, hold in here.items():
            if seat not in self._gone:
                self._holds[seat] = hold
                self._pools[seat] = hold.pool
        self._forget_turns()

    def _drained(self, seat: Seat, epoch: int) -> None:
        for turn in self._turns.values():
            if turn.grant.job == seat.job and turn.grant.epoch <= epoch:
                turn.undrained.pop(seat, None)
        self._forget_turns()

    def _forget_turns(self) -> None:
        for key, turn in list(self._turns.items()):
            turn.undrained = {seat: None for seat in turn.undrained if seat not in self._gone}
            if not turn.undrained:
                del self._turns[key]

    def _fault(self, text: str) -> None:
        self.faults.append(text)

    # --- at the end

    def left(self) -> list[str]:
        """What is still somebody's."""
        found = [
            f"{name} has {grant.kind} of job {grant.name}"
            for name, agent in self._agents.items()
            for grant in agent.held.values()
        ]
        found += [
            f"{name} lends a slot to job {lease.job}"
            for name, agent in self._agents.items()
            for lease in agent.lent
        ]
        found += [f"epoch {turn.grant.epoch} of job {turn.grant.job}" for turn in self._turns.values()]
        return [*found, *(f"seat {_names([seat])}" for seat in self._holds)]


def _ring(hold: SeatHold) -> tuple[int, int]:
    """The seat's ring and where it stands: one that moves to other switches gets seats anew."""
    return hold.ring_id, hold.stand


def _names(seats: Iterable[Seat]) -> str:
    return ", ".join(f"{seat.job}@{seat.host}" for seat in seats)
