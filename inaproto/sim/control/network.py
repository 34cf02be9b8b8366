"""Messages between nodes: late, lost, repeated, overtaken, or cut off, as drawn or as a log has it.

A message that arrives at a node that is down is lost; one that arrives at the next incarnation of its
receiver is taken in, as a datagram would be: the cores have terms and versions for that. Each direction
between two nodes has a stream of fates of its own (:mod:`inaproto.sim.kernel.fates`), so that a log can
replay a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inaproto.sim.kernel.fates import LinkFates
from inaproto.sim.kernel.network import Cuts, Way, Ways

if TYPE_CHECKING:
    from inaproto.sim.control.node import Node
    from inaproto.sim.control.world import ControlWorld


class Network(Ways["ControlWorld"]):
    def __init__(self, world: ControlWorld, fates: LinkFates | None) -> None:
        super().__init__(world, fates)
        self._cuts = Cuts()
        self.cut = self._cuts.cut
        self.join = self._cuts.join
        self._silent: dict[tuple[int, type], int] = {}
        """How many faults keep that kind of message of a host from getting through."""

    def silence(self, host: Node, what: type) -> None:
        self._silent[host.number, what] = self._silent.get((host.number, what), 0) + 1

    def unsilence(self, host: Node, what: type) -> None:
        self._silent[host.number, what] -= 1

    def _is_silenced(self, source: Node, target: Node, message: Any) -> bool:
        if not self._silent:
            return False
        kind = type(message)
        return any(self._silent.get((node.number, kind), 0) > 0 for node in (source, target))

    def is_cut(self, source: Node, target: Node) -> bool:
        return self._cuts.between(source.number, target.number)

    def delay_between(self, source: Node, target: Node) -> int:
        """Draw the delay of something on its way, without weather."""
        return self.delay(self._path(source, target))

    def send(self, source: Node, target: Node, message: Any) -> None:
        world = self._world
        self.words += 1
        path = self._path(source, target)
        delay, fate = self.delay(path), path.next_fate()
        is_cut = self.is_cut(source, target) or self._is_silenced(source, target, message)
        lost = "lost" if fate.drop else "cut off" if is_cut else ""
        world.hooks.said(message)
        world.sent(path.name, message, fate, lost)
        if lost:
            world.mark("a message was lost" if fate.drop else "a message was cut off")
            return
        if fate.delay_ns:
            world.mark("a message was late")
        world.agenda.after(delay + fate.delay_ns, self._arrive, (source, target, message))
        if fate.copy_delay_ns >= 0:
            world.mark("a message came twice")
            world.agenda.after(delay + fate.copy_delay_ns, self._arrive, (source, target, message))

    def _arrive(self, what: tuple[Node, Node, Any]) -> None:
        source, target, message = what
        world = self._world
        if not target.is_up or self.is_cut(source, target):
            world.mark("a message found nobody")
            return
        world.note(target, "message", message)
        world.hooks.heard(message)
        target.received(source, message)

    def _path(self, source: Node, target: Node) -> Way:
        return self.way(f"{source.name}>{target.name}")
