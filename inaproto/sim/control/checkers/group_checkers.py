"""What a sharing group owes those who wait: nobody keeps a pool who does not use it, or is not heard of.

The account is of the heartbeats that the controller has heard; what a host does in truth it cannot know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inaproto.sim.control.checkers.checker import ControlChecker
from inaproto.sim.control.stops import NO_CAUSE
from inaproto.sim.control.words import Heartbeat
from inaproto.sim.frames.recorder import say_time
from inaproto.sim.kernel.violated import Violated
from inaproto.wire.messages.sharing import AT_ONCE

if TYPE_CHECKING:
    from inaproto.core.sharing.events import TurnView
    from inaproto.core.sharing.group import Plan
    from inaproto.sim.control.group import Group
    from inaproto.sim.control.world import ControlWorld


_NEAR: Final = 7
"""Quarters of a heartbeat within which a host is surely connected."""


class WaitsEnd(ControlChecker):
    """A turn whose seats do not go on ends where others wait for it, and so does the wait for a lost host."""

    name = "no pool for a seat that stands still"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._incarnation = 0
        self._began = 0
        """When the controller did."""
        self._heard: dict[str, int] = {}
        """When each host was heard of last."""
        self._places: dict[tuple[str, str], tuple[tuple[int, int, bool], int]] = {}
        """Where each seat is, by job and host, and when that was heard first."""
        self._stuck: dict[tuple[int, int], int] = {}
        """Since when others wait for a turn that might end, by tree and epoch."""

    def _forget(self) -> None:
        """The controller has started anew."""
        self._incarnation, self._began = self.world.controller.incarnation, self.world.agenda.now
        self._heard.clear()
        self._places.clear()
        self._stuck.clear()

    def heard(self, message: Any) -> None:
        if not isinstance(message, Heartbeat) or not self._is_ready():
            return
        now, host = self.world.agenda.now, self.world.hosts[message.host].name
        self._heard[host] = now
        for seen in message.seats:
            place = seen.life, seen.operation, seen.is_running
            before = self._places.get((seen.job, host))
            if before is None or before[0] != place:
                self._places[seen.job, host] = place, now

    def _is_ready(self) -> bool:
        controller = self.world.controller
        if controller.incarnation != self._incarnation:
            self._forget()
        return controller.is_up and controller.is_ready

    def sample(self) -> None:
        if not self._is_ready():
            self._began = self.world.agenda.now
            return
        before, self._stuck = self._stuck, {}
        for group in self.world.controller.groups:
            self._look_at_hosts(group)
            for one in group.view().turns:
                if self.world.config.stuck_ns >= 0 and one.turn.until != AT_ONCE:
                    self._look_at(group, one, before)

    def _look_at_hosts(self, group: Group) -> None:
        config, now, view = self.world.config, self.world.agenda.now, group.view()
        waited_for = [*view.missing, *(seat for one in view.turns for seat in one.undrained)]
        for seat in waited_for:
            silent = now - max(self._began, self._heard.get(seat.host, 0))
            if silent > config.host_lease_ns + 4 * config.heartbeat_ns:
                raise Violated(
                    self.name, f"{seat} is waited for, not heard of for {say_time(silent)}: {view}"
                )

    def _look_at(self, group: Group, one: TurnView, before: dict[tuple[int, int], int]) -> None:
        config, now, key = self.world.config, self.world.agenda.now, (group.tree, one.turn.epoch)
        places = [self._places.get((seat.job, seat.host)) for seat in one.undrained]
        near = now - _NEAR * config.heartbeat_ns // 4
        is_heard = all(self._heard.get(seat.host, -1) > near for seat in one.undrained)
        if not is_heard or None in places or not self._others_wait(group):
            return
        since = self._stuck[key] = before.get(key, now)
        still = now - max([since, *(place[1] for place in places if place is not None)])
        if still > config.stands_still_ns + config.heartbeat_ns:
            raise Violated(self.name, f"{one} does not go on for {say_time(still)}: {group.view()}")

    def _others_wait(self, group: Group) -> bool:
        view = group.core.view()
        standing = {one.turn.job for one in view.sharing.turns}
        config, now = self.world.config, self.world.agenda.now
        near, goes_on = (
            now - _NEAR * config.heartbeat_ns // 4,
            now - config.stands_still_ns + config.heartbeat_ns,
        )
        waiting = [
            job
            for job, seats in view.jobs.items()
            if job not in standing
            and group.may_have_turn(job)
            and all(self._heard.get(seat.host, -1) > near for seat in seats)
            and any(self._moved(job, seat.host) > goes_on for seat in seats)
        ]
        return bool(waiting) and len(standing) >= config.pools[group.tree]

    def _moved(self, job: str, host: str) -> int:
        place = self._places.get((job, host))
        return -1 if place is None else place[1]


class PlannedWhole(ControlChecker):
    """Turns are planned for whole rings, and once each seat that may use the pool is heard of, or lost"""

    name = "only whole rings get turns"

    def begin(self, world: ControlWorld) -> None:
        super().begin(world)
        self._heard: dict[tuple[int, str], None] = {}
        """Hosts that each incarnation of the controller has heard of."""

    def heard(self, message: Any) -> None:
        controller = self.world.controller
        if isinstance(message, Heartbeat) and controller.is_up and controller.is_ready:
            self._heard[controller.incarnation, self.world.hosts[message.host].name] = None

    def planned(self, group: Group, plan: Plan) -> None:
        for job, seats in plan.jobs:
            hosts = [self.world.hosts[host].name for host in self.world.jobs[job].config.hosts]
            if sorted(seat.host for seat in seats) != sorted(hosts):
                raise Violated(self.name, f"job {job} is on {hosts}, planned are {seats}")
        for one in plan.turns:
            for seat in one.undrained:
                if (self.world.controller.incarnation, seat.host) not in self._heard:
                    raise Violated(self.name, f"{seat} may use the pool, and is not heard of: {group.view()}")


class StopsExplained(ControlChecker):
    """A job stops for longer than it may only where something befell it, or the controller."""

    name = "no stop without a cause"

    def end(self, world: ControlWorld) -> None:
        limit = world.config.stop_ns
        for stop in world.stops.longest():
            if 0 <= limit < stop.stopped_ns and stop.kind == NO_CAUSE:
                raise Violated(self.name, f"{stop}; it may stop for {say_time(limit)}")
