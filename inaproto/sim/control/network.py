"""Messages between nodes: late, lost, repeated, overtaken, or cut off, as drawn or as a log has it.

A message that arrives at a node that is down is lost; one that arrives at the next incarnation of its
receiver is taken in, as a datagram would be: the cores have terms and versions for that. Each direction
between two nodes has a stream of fates of its own (:mod:`inaproto.sim.kernel.fates`), so that a log can
replay a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inaproto.faults.weather import Weather
from inaproto.sim.kernel.fates import Fate, LinkFates
from inaproto.sim.kernel.words import Cuts, Way

if TYPE_CHECKING:
    from inaproto.sim.control.node import Node
    from inaproto.sim.control.world import ControlWorld

_MESSAGE_BYTES: Final = 256
_HARMLESS: Final = Fate()


class Path(Way):
    """One direction between two nodes."""

    def __init__(self, world: ControlWorld, source: Node, target: Node, fates: LinkFates | None) -> None:
        super().__init__(f"{source.name}>{target.name}", world.config.seed, world.weather, fates)
        self.source, self.target = source, target


class Network:
    def __init__(self, world: ControlWorld, fates: LinkFates | None) -> None:
        self._world = world
        self._given = fates
        self._paths: dict[tuple[int, int], Path] = {}
        self._cuts = Cuts()
        self.cut = self._cuts.cut
        self.join = self._cuts.join
        self._silent: dict[tuple[int, type], int] = {}
        """How many faults keep that kind of message of a host from getting through."""
        self.messages = 0

    @property
    def fates(self) -> LinkFates:
        """All that were not harmless."""
        return {path.name: path.fates.recorded for path in self._paths.values() if path.fates.recorded}

    def set_weather(self, weather: Weather) -> None:
        for path in self._paths.values():
            path.fates.set_weather(weather)

    def silence(self, host: Node, what: type) -> None:
        self._silent[host.number, what] = self._silent.get((host.number, what), 0) + 1

    def unsilence(self, host: Node, what: type) -> None:
        self._silent[host.number, what] -= 1

    def _is_silenced(self, source: Node, target: Node, message: Any) -> bool:
        kind = type(message)
        return any(self._silent.get((node.number, kind), 0) > 0 for node in (source, target))

    def is_cut(self, source: Node, target: Node) -> bool:
        return self._cuts.between(source.number, target.number)

    def delay(self, source: Node, target: Node) -> int:
        """Delay of something on its way, without weather."""
        config = self._world.config
        return self._path(source, target).delays.between(config.delay_min_ns, config.delay_max_ns)

    def send(self, source: Node, target: Node, message: Any) -> None:
        world = self._world
        self.messages += 1
        path = self._path(source, target)
        delay = path.delays.between(world.config.delay_min_ns, world.config.delay_max_ns)
        fate = path.fates.next(_MESSAGE_BYTES) or _HARMLESS
        is_cut = self.is_cut(source, target) or self._is_silenced(source, target, message)
        lost = "lost" if fate.drop else "cut off" if is_cut else ""
        world.sent(path, message, fate, lost)
        if lost:
            world.mark("a message was lost" if fate.drop else "a message was cut off")
            return
        if fate.delay_ns:
            world.mark("a message was late")
        world.agenda.after(delay + fate.delay_ns, self._arrive, (path, message))
        if fate.copy_delay_ns >= 0:
            world.mark("a message came twice")
            world.agenda.after(delay + fate.copy_delay_ns, self._arrive, (path, message))

    def _arrive(self, what: tuple[Path, Any]) -> None:
        path, message = what
        world = self._world
        if not path.target.is_up or self.is_cut(path.source, path.target):
            world.mark("a message found nobody")
            return
        world.note(path.target, "message", message)
        world.heard(message)
        path.target.received(path.source, message)

    def _path(self, source: Node, target: Node) -> Path:
        key = source.number, target.number
        found = self._paths.get(key)
        if found is None:
            found = self._paths[key] = Path(self._world, source, target, self._given)
        return found
