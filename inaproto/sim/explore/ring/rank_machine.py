"""One rank of the explored ring: the real ring engine, requester and responder, as a finite machine.

Events are packets and timers. What makes a local state is all that the cores hold, less what has no
influence on any later step:

- counters, and configurations, which never change;
- absolute times. The ring engine's clock stands still (its deadlines only report stalls). In the requester,
  time decides two things: when the timer may expire, which here is an event of its own; and whether a NAK
  without progress comes too soon after a go-back to be an answer to it. There both answers are explored,
  each as an event of its own, so round-trip estimate, its sample, the length and the doubling
  of the timer are overwritten with constants, and the times of timer and go-back are zero. A timer that is
  set again because it was served late sends nothing: the event is the timeout after it. A go-back to a PSN
  before the first unacknowledged one can never be compared with it again: it is forgotten;
- the credit towards a wider window, where one group is the whole window, which then never changes;
- a receive slot's bytes once its result was taken: they are overwritten with zeros.

Because these are overwritten in the state that the next step starts from, merging states is exact for the
machine that is explored; ``tests/sim/test_explore_machines.py`` compares it, along random walks, with cores
whose state is never touched.

Abstractions: NIC and host daemon are one step, so a rank acts on a result at once (a slow daemon looks like
packets that are longer on their way); receives are posted ahead, as the daemon does.
"""

from __future__ import annotations

from inaproto.sim.explore.machine import Machine
from inaproto.sim.explore.ring import live_rank
from inaproto.sim.explore.ring.config import RingWorldConfig
from inaproto.sim.explore.ring.live_rank import LiveRank
from inaproto.sim.explore.ring.packet_table import PacketTable, Sent


class RankMachine(Machine[LiveRank]):
    """The table of one rank."""

    def __init__(self, config: RingWorldConfig, packets: PacketTable, rank: int) -> None:
        super().__init__(live_rank.LEFT_OUT, LiveRank.normalise)
        self.violations: dict[int, str] = {}
        self.progress: list[tuple[int, int, int]] = []
        self.done: list[bool] = []
        self.armed: list[bool] = []
        """Whether the retransmission timer runs."""
        self.enter(LiveRank(config, packets, rank))

    def unacknowledged(self, state: int) -> tuple[tuple[int, int], ...]:
        return self.cores[state].unacknowledged

    def step(self, state: int, event: int) -> tuple[int, Sent]:
        return self.known(state, event, lambda live: live.step(event))

    def enter(self, core: LiveRank) -> int:
        number = super().enter(core)
        if number == len(self.done):
            self.progress.append(core.progress)
            self.done.append(core.is_done)
            self.armed.append(core.requester.deadline is not None)
            if core.violation is not None:
                self.violations[number] = core.violation
        return number
