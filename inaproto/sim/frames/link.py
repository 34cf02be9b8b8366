"""One direction of a link: it takes time, has a bounded queue, and its weather decides each frame's fate.

Invariant (checked by the ledger): every frame that was sent, and every copy that the weather made, was
delivered, is under way, or was dropped under a name.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from inaproto.core.rdma.dcqcn import Marking
from inaproto.faults.streams import Draws
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.sim.kernel.fates import Fate, FateSource
from inaproto.units import Frames
from inaproto.wire.cnp import mark

if TYPE_CHECKING:
    from inaproto.sim.frames.world import World

WEATHER = "weather"
QUEUE_FULL = "link queue full"
PARTITION = "partition"
RESET = "link was reset"
_UNMARKED = Marking(p_max_ppm=0)
_size = attrgetter("size")


class SimLink:
    """``deliver`` gets blocks of frames that arrive at once, one frame or more of one length in each.

    ``lost`` is told of each frame that never leaves."""

    def __init__(
        self,
        world: World,
        name: str,
        config: LinkConfig,
        fates: FateSource,
        deliver: Callable[[list[Frames]], None],
        lost: Callable[[Frames], None] | None = None,
    ) -> None:
        self.name = name
        self.fates = fates
        self.weather = config.weather
        """Its own, which bursts replace."""
        self.tap: Callable[[str, Frames], None] | None = None
        """Told of each frame that is sent, with the link's name."""
        self.is_cut = False
        self.sent = 0
        self.copies = 0
        self.delivered = 0
        self.under_way = 0
        self.dropped: dict[str, int] = {}
        self.marked = 0
        """Frames that were given a congestion mark."""
        self.queue_bytes_max = 0
        """That a frame has found before it."""
        self._marking = config.marking or _UNMARKED
        self._mark_draws = None if config.marking is None else Draws(world.config.seed, f"marks/{name}")
        self._world = world
        self._agenda = world.agenda
        self._ps_per_byte = max(1, 8 * 10**12 // config.rate_bps)
        self._delay_ns = config.delay_ns
        self._queue_ns_max = config.queue_frames_max * 400 * self._ps_per_byte // 1000
        self._free_at = 0
        self._deliver = deliver
        self._told_of_loss = lost
        self._generation = 0
        self._coalesce_ns = world.config.coalesce_ns
        self._together: list[Frames] = []
        self._recorder = world.recorder

    def put_before_delivery(
        self, wrap: Callable[[Callable[[list[Frames]], None]], Callable[[list[Frames]], None]]
    ) -> None:
        """What arrives goes through that first."""
        self._deliver = wrap(self._deliver)

    def reset(self) -> None:
        """What is under way is lost."""
        self._generation += 1
        self._free_at = 0
        if self._together:
            self._drop(RESET, len(self._together))
            self.under_way -= len(self._together)
            if self._recorder is not None:
                for frame in self._together:
                    self._recorder.lost_under_way(frame, RESET)
            self._together = []

    def begin_here(self, frame: Frames) -> None:
        """A frame comes from something on the way, not from who sends on this link, and arrives at once."""
        self.sent += 1
        if self.is_cut:
            self._lose(PARTITION, frame)
        else:
            self.delivered += 1
            self._deliver([frame])

    def send(self, frames: Frames) -> None:
        """Send each row; ``frames`` may be overwritten afterwards."""
        if len(frames) == 1:
            self._send_one(frames.copy())
            return
        for row in range(len(frames)):
            self._send_one(frames[row : row + 1].copy())

    def _send_one(self, frame: Frames) -> None:
        self.sent += 1
        if self.tap is not None:
            self.tap(self.name, frame)
        nbytes = frame.size
        fate = self.fates.next(nbytes)
        now = self._agenda.now
        if self._recorder is not None:
            self._recorder.sent(self.name, self.sent - 1, frame, now)
        start = self._free_at
        if start < now:
            start = now
        elif start - now > self._queue_ns_max:
            self._lose(QUEUE_FULL, frame)
            return
        elif self._mark_draws is not None:
            self._queue_behind(self.queue_bytes, frame, self._mark_draws)
        self._free_at = free_at = start + nbytes * self._ps_per_byte // 1000 + 1
        if self.is_cut:
            self._lose(PARTITION, frame)
        elif fate is None:
            self._fly(frame, free_at + self._delay_ns)
        else:
            self._suffer(fate, frame, free_at + self._delay_ns)

    @property
    def queue_bytes(self) -> int:
        """That have not left yet."""
        return max(0, self._free_at - self._agenda.now) * 1000 // self._ps_per_byte

    def _queue_behind(self, queue_bytes: int, frame: Frames, draws: Draws) -> None:
        """The frame finds so many bytes before it, and is marked or not."""
        self.queue_bytes_max = max(self.queue_bytes_max, queue_bytes)
        chance_ppm = self._marking.chance_ppm(queue_bytes)
        if chance_ppm and draws.chance(chance_ppm, 1_000_000):
            self.marked += mark(frame)

    def _suffer(self, fate: Fate, frame: Frames, arrival: int) -> None:
        self._world.fate_befell(self, fate)
        if fate.drop:
            self._lose(WEATHER, frame)
            return
        if 0 <= fate.cut_bytes < frame.size:
            frame = frame[:, : fate.cut_bytes]
        if fate.corrupt_bit >= 0:
            bit = fate.corrupt_bit % (8 * frame.size)
            frame[0, bit >> 3] ^= 1 << (bit & 7)
        self._fly(frame, arrival + fate.delay_ns)
        if fate.copy_delay_ns >= 0:
            self.copies += 1
            self._fly(frame.copy(), arrival + fate.copy_delay_ns)

    def _fly(self, frame: Frames, arrival: int) -> None:
        self.under_way += 1
        self._agenda.at(arrival, self._arrive, (self._generation, frame))
        if self._recorder is not None:
            self._recorder.under_way(frame, arrival)

    def _arrive(self, flight: tuple[int, Frames]) -> None:
        generation, frame = flight
        if generation != self._generation:
            self.under_way -= 1
            self._drop(RESET)
            if self._recorder is not None:
                self._recorder.lost_under_way(frame, RESET)
        elif self._coalesce_ns:
            if not self._together:
                self._agenda.after(self._coalesce_ns, self._hand_over)
            self._together.append(frame)
        else:
            self.under_way -= 1
            self.delivered += 1
            if self._recorder is not None:
                self._recorder.arrived(frame)
            self._deliver([frame])

    def _hand_over(self, _: Any) -> None:
        blocks, self._together = self._together, []
        if blocks:
            if len(blocks) > 1:
                self._world.mark("frames arrived together")
            self.under_way -= len(blocks)
            self.delivered += len(blocks)
            if self._recorder is not None:
                for frame in blocks:
                    self._recorder.arrived(frame)
            runs = [list(alike) for _, alike in groupby(blocks, _size)] if len(blocks) > 1 else [blocks]
            self._deliver([np.concatenate(run) if len(run) > 1 else run[0] for run in runs])

    def _lose(self, rule: str, frame: Frames) -> None:
        self._drop(rule)
        if self._told_of_loss is not None:
            self._told_of_loss(frame)
        if self._recorder is not None:
            self._recorder.lost(rule)

    def _drop(self, rule: str, frames: int = 1) -> None:
        self.dropped[rule] = self.dropped.get(rule, 0) + frames
