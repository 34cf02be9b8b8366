"""That a coordinator forgets nothing of what it is to do; beside what it says (``word_checkers``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.frames.recorder import say_time
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.messages.sharing import Seat, Version

if TYPE_CHECKING:
    from inaproto.core.sharing.events import SharingView
    from inaproto.sim.control.group import Group
    from inaproto.sim.control.world import ControlWorld


class WishesServed(ControlChecker):
    """A coordinator does what is wished for, or waits for a seat that has something to do."""

    name = "no wish is forgotten"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._committing: dict[int, tuple[int, Version, int]] = {}
        """The term and the round whose end is waited for, by tree, and since when."""
        self._idle: dict[tuple[int, int, Seat], int] = {}
        """Seats for which a turn stands (by tree and epoch) that they are past, and since when."""

    def sample(self) -> None:
        controller = self.world.controller
        if not (controller.is_up and controller.is_ready):
            self._committing.clear()
            self._idle.clear()
            return
        idle, self._idle = self._idle, {}
        for group in controller.groups:
            view = group.view()
            if view.phase in _BUSY and group.core.deadline is None:
                raise Violated(self.name, f"a round is {view.phase} for ever: {view}")
            self._look_for_end(group, view)
            self._look_for_drained(group, view, idle)
            if view.phase == "idle" and group.may_have_turn(view.wanted):
                self._look_at_wish(group, view)

    def _look_for_end(self, group: Group, view: SharingView) -> None:
        """Where nothing is lost any more, all seats have soon done what was decided."""
        if view.phase != "committing" or not self.world.faults.healed:
            self._committing.pop(group.tree, None)
            return
        key, now = (view.term, view.version), self.world.agenda.now
        known = self._committing.get(group.tree)
        if known is None or known[:2] != key:
            self._committing[group.tree] = (*key, now)
        elif now - known[2] > self._soon(group):
            raise Violated(self.name, f"a decision is not done after {say_time(now - known[2])}: {view}")

    def _soon(self, group: Group) -> int:
        return 8 * group.resend_ns + 4 * self.world.config.heartbeat_ns

    def _look_for_drained(
        self, group: Group, view: SharingView, before: dict[tuple[int, int, Seat], int]
    ) -> None:
        """A turn goes, too, when all seats are past its end, whoever has not been heard."""
        now = self.world.agenda.now
        if not self.world.faults.healed:
            return
        for one in view.turns:
            for seat in one.undrained:
                here = self.world.host_named(seat.host).seats.get(seat.job)
                until = one.turn.until
                if here is None or here.in_ina or until is None or until > here.operation + 1:
                    continue
                key = group.tree, one.turn.epoch, seat
                since = self._idle[key] = before.get(key, now)
                if now - since > self._soon(group):
                    raise Violated(self.name, f"{seat} is past a turn that stands: {view}")

    def _look_at_wish(self, group: Group, view: SharingView) -> None:
        turns = [one.turn for one in view.turns]
        if any(one.job == view.wanted for one in turns):
            return
        has_room = len(turns) < self.world.config.pools[group.tree]
        if has_room or all(one.until is None for one in turns):
            raise Violated(self.name, f"nothing is done for {view.wanted}: {view}")


_BUSY = ("preparing", "committing", "backing off")
