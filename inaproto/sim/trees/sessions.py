"""Sessions of switches with the controller: streams, in order while they last, late, broken, made anew.

A switch dials, again and again. A session loses nothing and overtakes nothing while it lasts; it may break at
any message (weather), with either end, or by a partition, and each end hears of that at a time of its own:
until then it may hear what had been said before. A new session with a switch ends the one before. Each
direction has a stream of fates of its own, so that a log can replay a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inaproto.faults.streams import Draws
from inaproto.sim.kernel.fates import LinkFates
from inaproto.sim.kernel.network import Ways

if TYPE_CHECKING:
    from inaproto.sim.trees.switch import TreesSwitch
    from inaproto.sim.trees.world import TreesWorld


@dataclass(eq=False)
class Session:
    switch: TreesSwitch
    is_broken: bool = False
    arrival: dict[str, int] = field(default_factory=dict)
    """When the last message on its way arrives, by direction."""


class Sessions(Ways["TreesWorld"]):
    def __init__(self, world: TreesWorld, fates: LinkFates | None) -> None:
        super().__init__(world, fates)
        self._cuts: dict[int, int] = {}
        """How many partitions keep a switch from the controller now."""
        self._draws = Draws(world.config.seed, "sessions")

    # --- dialling

    def dial(self, switch: TreesSwitch) -> None:
        """Dials soon, and again until it has a session."""
        switch.after(self._draws.below(self._world.config.redial_ns + 1), lambda: self._try(switch))

    def _try(self, switch: TreesSwitch) -> None:
        world = self._world
        if switch.session is not None:
            return
        fate = self.way(f"{switch.name}>controller").next_fate()
        if fate.drop or self._cuts.get(switch.index, 0) or not world.controller.is_ready:
            self.dial(switch)
            return
        session = Session(switch)
        old = world.controller.sessions.get(switch.name)
        if old is not None:
            world.mark("a session took the place of one that was not known to be over")
            old.is_broken = True
            world.controller.departed(switch)
        switch.session = world.controller.sessions[switch.name] = session
        world.controller.welcomes(session)

    # --- messages

    def say(self, session: Session, message: Any, *, to_switch: bool) -> None:
        world, switch = self._world, session.switch
        self.words += 1
        way = self.way(f"controller>{switch.name}" if to_switch else f"{switch.name}>controller")
        delay, fate = self.delay(way), way.next_fate()
        lost = "session over" if session.is_broken else "breaks the session" if fate.drop else ""
        world.sent(way.name, message, fate, lost)
        if lost:
            world.mark("a message was lost with its session")
            if not session.is_broken:
                self.break_(session)
            return
        if fate.delay_ns:
            world.mark("a message was late")
        at = max(world.agenda.now + delay + fate.delay_ns, session.arrival.get(way.name, 0))
        session.arrival[way.name] = at
        target = switch if to_switch else world.controller
        target.after(at - world.agenda.now, lambda: self._arrive(session, message, to_switch=to_switch))

    def _arrive(self, session: Session, message: Any, *, to_switch: bool) -> None:
        world, switch = self._world, session.switch
        if to_switch and switch.session is session:
            world.note(switch, "message", message)
            switch.heard(message)
        elif not to_switch and world.controller.sessions.get(switch.name) is session:
            world.note(world.controller, "message", f"{switch.name} {message}")
            world.controller.heard(switch, message)

    # --- breaking

    def break_(self, session: Session, *, notice: int | None = None) -> None:
        """Both ends hear of it, each at a time of its own, at most ``notice`` from now."""
        session.is_broken = True
        world, switch = self._world, session.switch
        most = world.config.delay_max_ns * 4 if notice is None else notice
        switch.after(self._draws.below(most + 1), lambda: self._ended_at_switch(session))
        world.controller.after(self._draws.below(most + 1), lambda: self._ended_at_controller(session))

    def _ended_at_switch(self, session: Session) -> None:
        if session.switch.session is session:
            session.switch.session = None
            session.switch.disconnected()
            self.dial(session.switch)

    def _ended_at_controller(self, session: Session) -> None:
        sessions, name = self._world.controller.sessions, session.switch.name
        if sessions.get(name) is session:
            del sessions[name]
            self._world.controller.departed(session.switch)

    def lost_controller(self) -> None:
        """It has crashed; switches hear of that soon, or late."""
        for switch in self._world.switches:
            if switch.session is not None and not switch.session.is_broken:
                self.break_(switch.session, notice=self._notice())

    def lost_switch(self, session: Session) -> None:
        self.break_(session, notice=self._notice())

    def _notice(self) -> int | None:
        """A machine may be gone without a word."""
        return None if self._draws.chance(2, 3) else self._world.config.silent_ns

    def cut(self, switch: TreesSwitch) -> None:
        self._cuts[switch.index] = self._cuts.get(switch.index, 0) + 1
        if switch.session is not None and not switch.session.is_broken:
            self.break_(switch.session, notice=self._world.config.silent_ns)

    def join(self, switch: TreesSwitch) -> None:
        self._cuts[switch.index] -= 1
