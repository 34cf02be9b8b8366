"""Nothing waits without a deadline: who has work under way has a timer that will look after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.kernel.violated import Violated

if TYPE_CHECKING:
    from inaproto.sim.frames.world import World


class Deadlines(Checker):
    name = "no wait without deadline"

    def sample(self, world: World) -> None:
        for host in world.hosts:
            if not host.is_up:
                continue
            for ring in host.rings:
                engine = ring.engine
                if engine is not None and engine.view().running is not None and engine.deadline is None:
                    raise Violated(self.name, f"{ring}: there is a running all-reduce and no deadline")
                if ring.waits_here and ring.deadline is None:
                    raise Violated(self.name, f"{ring} wait for one another and have no deadline")
            is_waiting = host.nic.resources["unacknowledged"] > 0
            if is_waiting and host.nic.deadline is None:
                raise Violated(self.name, f"{host}: its NIC waits for an ACK and has no timer")
            # Rates grow and senders are told by timers, too, and pauses of links end.
            may_have_one = world.config.congestion is not None or host.nic.is_silent
            if host.nic.deadline is not None and not is_waiting and not may_have_one:
                raise Violated(
                    "no deadline without work", f"{host}: its NIC waits for nothing and has a timer"
                )
