"""What must hold in every control world, checked right after each fact (the laws of the design).

As in :mod:`inaproto.sim.frames.checkers`, a checker keeps an account of its own, of what several nodes show,
and never asks a core whether it is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from inaproto.core.sharing.events import Path
from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.checkers.group_checkers import PlannedWhole, StopsExplained, WaitsEnd
from inaproto.sim.control.checkers.wish_checker import WishesServed
from inaproto.sim.control.checkers.word_checkers import DecisionsKept, TurnsObeyed
from inaproto.sim.frames.recorder import say_time
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.messages.sharing import AT_ONCE, Seat, Version
from inaproto.wire.messages.slots import Lease, Order, SlotRequest

if TYPE_CHECKING:
    from inaproto.sim.control.seat import SimSeat
    from inaproto.sim.control.switch import ControlSwitch
    from inaproto.sim.control.world import ControlWorld


class _Use(NamedTuple):
    """One operation's use of a pool."""

    epoch: int
    by: Seat | None
    """Seat whose turn it was; a seat has one while it begins an operation by the switches."""


class OneDecision(ControlChecker):
    """No operation runs by the switches under two epochs, and all seats have the same sum."""

    name = "one decision"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._epochs: dict[tuple[str, int], tuple[int, Lease, str]] = {}
        self._paths: dict[tuple[str, int], Path] = {}
        self._mixed: dict[tuple[str, int], None] = {}

    def began(self, seat: SimSeat, index: int, path: Path, epoch: int | None, lease: Lease | None) -> None:
        key = seat.job.name, index
        if self._paths.setdefault(key, path) is not path and key not in self._mixed:
            self._mixed[key] = None
            self.world.mark("seats bound an operation differently")
        if epoch is None or lease is None:
            return
        before = self._epochs.setdefault(key, (epoch, lease, str(seat)))
        if before[:2] != (epoch, lease):
            raise Violated(
                self.name,
                f"operation {index}: {seat} began it under epoch {epoch} of {lease}, "
                f"{before[2]} under epoch {before[0]} of {before[1]}",
            )

    def rescued(self, seat: SimSeat, index: int) -> None:
        if (seat.job.name, index) in self._mixed:
            self.world.mark("an operation of two bindings was rescued")

    def ended(self, seat: SimSeat, index: int, total: int) -> None:
        if total != seat.job.total(index):
            raise Violated(
                self.name, f"operation {index}: {seat} has {total}, not the sum {seat.job.total(index)}"
            )


class PoolApart(ControlChecker):
    """Never more jobs use a pool at once than it is for, from a first operation to its drain or give-up."""

    name = "pool never shared"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._using: dict[int, dict[Lease, dict[tuple[SimSeat, int], _Use]]] = {}
        """Leases by tree, with the operations that have not drained."""
        self._given_up: dict[Seat | None, int] = {}
        """Up to which epoch: what they put into the pool is stale, once another turn is there."""

    def began(self, seat: SimSeat, index: int, path: Path, epoch: int | None, lease: Lease | None) -> None:
        if lease is None or epoch is None or not self._is_installed(lease):
            return
        use = _Use(epoch, seat.id)
        if epoch <= self._given_up.get(use.by, -1):
            self.world.mark("a seat that was given up used the pool")
            return
        users = self._using.setdefault(lease.tree, {})
        users.setdefault(lease, {})[seat, index] = use
        jobs = {user.job: None for user in users}
        if len(jobs) > self.world.config.pools[lease.tree]:
            others = "; ".join(
                f"{of} of {user}" for user, uses in users.items() for of, _ in uses if user.job != lease.job
            )
            raise Violated(
                self.name,
                f"{seat} began operation {index} under epoch {epoch} in the pool of tree {lease.tree}, "
                f"while these have not drained: {others}",
            )
        if len(jobs) > 1:
            self.world.mark("two jobs used a pool for two at once")

    def drained(self, seat: SimSeat, index: int) -> None:
        for users in self._using.values():
            for lease in list(users):
                users[lease].pop((seat, index), None)
                self._tidy(users, lease)

    def seat_gone(self, seat: SimSeat) -> None:
        for users in self._using.values():
            for lease in list(users):
                for use in [use for use in users[lease] if use[0] is seat]:
                    del users[lease][use]
                self._tidy(users, lease)

    def given_up(self, seat: Seat, epoch: int, version: Version) -> None:
        self._given_up[seat] = epoch
        for users in self._using.values():
            for lease in list(users):
                uses = users[lease]
                for key in [key for key, use in uses.items() if use.by == seat and use.epoch <= epoch]:
                    del uses[key]
                self._tidy(users, lease)

    def ring_removed(self, switch: ControlSwitch, lease: Lease) -> None:
        if not self._is_installed(lease, without=switch):
            self._using.get(lease.tree, {}).pop(lease, None)

    def _is_installed(self, lease: Lease, *, without: ControlSwitch | None = None) -> bool:
        """Whether any switch of the tree takes in what the job sends."""
        world = self.world
        switches = [world.switches[index] for index in world.config.trees[lease.tree]]
        return any(lease in switch.rings for switch in switches if switch is not without)

    @staticmethod
    def _tidy(users: dict[Lease, dict[tuple[SimSeat, int], _Use]], lease: Lease) -> None:
        if not users[lease]:
            del users[lease]


class LocksEnd(ControlChecker):
    """No seat holds its lock longer than its lease, and none at all where operations are decided by index."""

    name = "no lock for ever"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._since: dict[SimSeat, tuple[Version, int]] = {}
        """Seats that are locked, for which round, and since when."""

    def participant_stepped(self, seat: SimSeat) -> None:
        view = seat.core.view().participant
        if view is not None and view.phase != "free" and seat.core.deadline is None:
            raise Violated("no wait without deadline", f"{seat} waits for ever: {view}")
        if view is None or not view.is_locked:
            self._since.pop(seat, None)
            return
        world = self.world
        if world.config.rule == "by-index":
            raise Violated(self.name, f"{seat} is locked, though decisions are by index")
        before = self._since.get(seat)
        if before is None or before[0] != view.version:
            if before is not None:
                world.mark("a lock went over to the next round")
            self._since[seat] = view.version, world.agenda.now
        self._check(seat)

    def seat_gone(self, seat: SimSeat) -> None:
        self._since.pop(seat, None)

    def sample(self) -> None:
        for seat in self._since:
            self._check(seat)

    def _check(self, seat: SimSeat) -> None:
        locked = self.world.agenda.now - self._since[seat][1]
        if locked > self.world.config.by_slowest(self.world.config.lease_ns) + 1:
            raise Violated(self.name, f"{seat} has been locked for {say_time(locked)}")

    def end(self, world: ControlWorld) -> None:
        self.sample()


class SlotsKept(ControlChecker):
    """A switch's slots are never lent beyond their number nor twice for one lease; none outlasts its job."""

    name = "slots kept"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._held: dict[int, dict[Lease, None]] = {}
        self._epochs: dict[int, Lease] = {}
        self._stood: dict[Lease, None] = {}
        """Leases whose trees have stood: what is lost of one is never acquired again, but another is."""
        self._asked: dict[Lease, None] = {}
        """Leases that were on disk when they were asked for first: a job may end while the answer is
        awaited."""

    def said(self, message: Any) -> None:
        if not isinstance(message, SlotRequest) or message.lease is None or message.lease in self._asked:
            return
        if message.order is Order.ACQUIRE:
            record = self.world.store.disk.get("migration")
            known = () if record is None else record.jobs
            leases = [Lease(one.job, one.tree.tree_id, one.epoch) for one in known if one.tree is not None]
            if message.lease not in leases:
                raise Violated(self.name, f"{message.lease} is asked for, and on disk are {leases}")
            self._asked[message.lease] = None

    def tree_stands(self, lease: Lease) -> None:
        self._stood[lease] = None

    def slot_taken(self, switch: ControlSwitch, lease: Lease) -> None:
        if self._epochs.setdefault(lease.epoch, lease) != lease:
            raise Violated(self.name, f"{lease} has the epoch of {self._epochs[lease.epoch]}")
        if lease in self._stood:
            raise Violated(self.name, f"{switch.name} lends {lease} again, whose tree has stood")
        held = self._held.setdefault(switch.index, {})
        held[lease] = None
        if len(held) > switch.capacity:
            raise Violated(self.name, f"{switch.name} has {switch.capacity} slots and lent {list(held)}")
        for other in held:
            if other != lease and other.job == lease.job:
                raise Violated(self.name, f"{switch.name} lent {lease} beside {other}")

    def slot_freed(self, switch: ControlSwitch, lease: Lease, *, has_run_out: bool) -> None:
        if lease not in self._held.get(switch.index, {}):
            raise Violated(self.name, f"{switch.name} freed {lease}, which it had not lent")

    def ring_removed(self, switch: ControlSwitch, lease: Lease) -> None:
        self._held.get(switch.index, {}).pop(lease, None)

    def end(self, world: ControlWorld) -> None:
        for index, held in self._held.items():
            if held:
                raise Violated(self.name, f"switch{index} still lends {list(held)}, and all jobs are over")


class DrainedFirst(ControlChecker):
    """A slot that is taken back from a job has no operation of it: who was not given up has drained."""

    name = "drained before released"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._released: dict[Lease, None] = {}
        self._uses: dict[tuple[SimSeat, int], _Use] = {}
        """Operations by the switches."""
        self._given_up: dict[Seat | None, int] = {}

    def given_up(self, seat: Seat, epoch: int, version: Version) -> None:
        self._given_up[seat] = epoch

    def _is_given_up(self, seat: SimSeat, index: int) -> bool:
        use = self._uses.get((seat, index))
        return use is not None and use.epoch <= self._given_up.get(use.by, -1)

    def slot_taken(self, switch: ControlSwitch, lease: Lease) -> None:
        self._released.pop(lease, None)  # what was given back because another switch refused, tried again

    def slot_freed(self, switch: ControlSwitch, lease: Lease, *, has_run_out: bool) -> None:
        job = self.world.jobs[lease.job]
        if has_run_out or job.is_over:
            return
        self._released[lease] = None
        for seat in job.seats.values():
            running = [
                index
                for index, of in seat.in_ina.items()
                if of == lease and not self._is_given_up(seat, index)
            ]
            if running:
                raise Violated(self.name, f"{switch.name} loses {lease}, {seat} runs {running} there")

    def began(self, seat: SimSeat, index: int, path: Path, epoch: int | None, lease: Lease | None) -> None:
        if lease is None or epoch is None:
            return
        self._uses[seat, index] = _Use(epoch, seat.id)
        if lease in self._released and not self._is_given_up(seat, index):
            raise Violated(self.name, f"{seat} begins operation {index} by {lease}, which was released")


class NoPoolForEver(ControlChecker):
    """What seats owe is waited for no longer than a controller that is up has patience."""

    name = "no pool for ever"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._since: dict[tuple[object, ...], int] = {}
        """Since when rounds are not done, and turns have not drained."""

    def sample(self) -> None:
        world, before, self._since = self.world, self._since, {}
        controller = world.controller
        if world.config.mute_ns < 0 or not (controller.is_up and controller.is_ready):
            return
        for group in controller.groups:
            view = group.view()
            owed: list[tuple[object, ...]] = [
                (group.tree, view.term, turn.turn.epoch) for turn in view.turns if turn.turn.until == AT_ONCE
            ]
            if view.phase == "committing":
                owed.append((group.tree, view.version))
            for one in owed:
                since = self._since[one] = before.get(one, world.agenda.now)
                if world.agenda.now - since > world.config.by_slowest(world.config.mute_ns):
                    waited = say_time(world.agenda.now - since)
                    raise Violated(self.name, f"{group.name} has waited for {waited}: {view}")


def all_checkers() -> list[ControlChecker]:
    """Fresh ones, for one world."""
    return [
        OneDecision(),
        PoolApart(),
        LocksEnd(),
        SlotsKept(),
        DrainedFirst(),
        DecisionsKept(),
        TurnsObeyed(),
        WishesServed(),
        NoPoolForEver(),
        WaitsEnd(),
        PlannedWhole(),
        StopsExplained(),
    ]
