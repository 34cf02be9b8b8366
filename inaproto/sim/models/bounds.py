"""What must not grow, and who must not be removed, in any overlay world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from inaproto.core.models.events import (
    ChildView,
    Mark,
    NodeAction,
    NodeEvent,
    Noted,
    Persist,
    Remove,
    RootAction,
    RootEvent,
    ShardSpec,
)
from inaproto.core.models.requests import requests_max
from inaproto.sim.kernel.violated import Violated
from inaproto.sim.models.checking import OverlayChecker
from inaproto.wire.messages.clocks import FOREVER, REMOVED, Clocks, WorkerId

if TYPE_CHECKING:
    from inaproto.sim.models.host import NodeSeat
    from inaproto.sim.models.server import Server
    from inaproto.sim.models.world import OverlayWorld


class Bounds(OverlayChecker):
    """Logs, queues and tables keep within what the configuration allows."""

    name = "bounded"

    def stepped(self, seat: NodeSeat, event: NodeEvent, actions: Sequence[NodeAction]) -> None:
        view, spec = seat.core.view(), seat.config.shard
        ahead = spec.ahead_max
        over = {
            "updates kept": view.kept > ahead + 1,  # the last may be of one that leaves
            "pushes logged": view.logged > len(view.merged) * (ahead + 1),
            "pulls": len(view.waiting) > ahead,
            "requests": len(view.asked) > requests_max(spec, self.world.config.workers_all),
            "children": len(view.children) > seat.config.children_max,
            "ahead": _is_ahead(view.merged, view.root, ahead),
            "sent what it has not": not view.merged.covers(view.forwarded),
            "dead": not set(view.dead) <= set(seat.config.nodes or ()),
            "requests of a child": _asks_too_much(view.children, spec),
        }
        self._judge(str(seat), over, view)

    def root_stepped(self, server: Server, event: RootEvent, actions: Sequence[RootAction]) -> None:
        view, spec = server.core.view(), server.config.shard
        steps = server.unwritten + sum(isinstance(action, Persist) for action in actions)
        over = {
            "steps that wait for the disk": steps > 1,
            "children": len(view.children) > server.config.children_max,
            "ahead": _is_ahead(view.merged, view.clocks, spec.ahead_max),
            "shows what is not durable": not view.merged.covers(view.clocks),
            "requests of a child": _asks_too_much(view.children, spec),
        }
        self._judge(str(server), over, view)

    def _judge(self, who: str, over: dict[str, bool], view: object) -> None:
        found = [what for what, is_over in over.items() if is_over]
        if found:
            raise Violated(self.name, f"{who}: {', '.join(found)}: {view}")


def _is_ahead(merged: Clocks, root: Clocks, most: int) -> bool:
    """Whether it is ahead of somebody who has not left, and of whom it is known here what the root has: a
    node forgets that of those whom it no longer speaks for, while their last sums may still be with it."""
    return any(clock < FOREVER and clock - root[w] > most for w, clock in merged.items() if w in root)


def _asks_too_much(children: Sequence[ChildView], spec: ShardSpec) -> bool:
    return any(len(child.waiting) > requests_max(spec, child.workers) for child in children)


class Removals(OverlayChecker):
    """No worker is removed of its own accord that is below the root, with every node between attached."""

    name = "nobody is removed who is there"

    def begin(self, world: OverlayWorld) -> None:
        super().begin(world)
        self._removed: set[tuple[int, WorkerId]] = set()

    def root_stepped(self, server: Server, event: RootEvent, actions: Sequence[RootAction]) -> None:
        if not any(isinstance(one, Noted) and one.mark is Mark.WORKER_REMOVED for one in actions):
            return
        for worker, clock in server.core.view().merged.items():
            if clock != REMOVED or (server.shard, worker) in self._removed:
                continue
            self._removed.add((server.shard, worker))
            if not isinstance(event, Remove) and self._is_there(server, worker):
                raise Violated(self.name, f"{server} removes worker {worker}: {server.core.view()}")

    def _is_there(self, server: Server, worker: WorkerId) -> bool:
        """Whether it is there, by what both ends of every edge take for true."""
        number = self.world.config.workers[worker].host
        seat = self._seat(server.shard, number)
        for _ in self.world.hosts:
            if not seat.host.is_up:
                return False
            view = seat.core.view()
            above = self.world.seat(server.shard, view.parent)
            if not above.machine.is_up or not view.is_attached:
                return False
            parent = server if above is server else self._seat(server.shard, view.parent)
            if not any(c.node == seat.node and c.is_attached for c in parent.core.view().children):
                return False
            if above is server:
                return True
            seat = self._seat(server.shard, view.parent)
        return False

    def _seat(self, shard: int, node: int) -> NodeSeat:
        return next(host for host in self.world.hosts if host.number == node).seats[shard]
