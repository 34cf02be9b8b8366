"""Shards of a simulated switch: accelerators that live and die by themselves, each with the packets that come
from its UDP source port.

:class:`ShardedAccelerator` stands where a switch has its accelerator, and looks like one: with all rings, and
counters of all that there are and were. :class:`SimShard` is the process of a shard: it has a session with
the control plane, and takes packets from when it is admitted to its death.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inaproto.core.rendezvous.fabric.events import Admit
from inaproto.core.rendezvous.fabric.shards import shard_name
from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorView,
    Action,
    Counters,
    Event,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RoundArrived,
)
from inaproto.core.switch.early_packets import FIRST_NOT_SEEN
from inaproto.core.switch.events import RingState
from inaproto.sim.frames.control_plane import SwitchSession
from inaproto.units import Frames, Instant, PortId
from inaproto.wire.udp import ROCE_PORT, SHARDS_MAX, shard_port

if TYPE_CHECKING:
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World

_HEADERS_BYTES: Final = 42
_NOT_ROCE: Final = 0
_SHARDS: Final = np.arange(SHARDS_MAX + 1)


def shards_of(frames: Frames, shards: int) -> NDArray[np.int64]:
    """For which of so many shards each of the frames (n, bytes) is; 0: for the switch's own process.

    The numpy twin of the filter that the kernel runs (``inaproto_adapters.frames.steering``).
    """
    n, length = frames.shape
    if length < _HEADERS_BYTES:
        return np.zeros(n, np.int64)
    words = frames[:, :_HEADERS_BYTES].astype(np.int64)
    pairs = (words[:, :-1] << 8) + words[:, 1:]
    is_roce = (pairs[:, 12] == 0x0800) & (words[:, 14] == 0x45) & (words[:, 23] == 17)
    is_roce &= (pairs[:, 20] & 0x1FFF == 0) & (pairs[:, 36] == ROCE_PORT)
    shard = pairs[:, 34] - shard_port(0)
    return np.where(is_roce & (shard >= 1) & (shard <= shards), shard, _NOT_ROCE)


class ShardedAccelerator:
    """Number 0 is that of the switch's own process, which is always there."""

    def __init__(self, own: Accelerator, shards: int) -> None:
        self._shards = shards
        self._there: dict[int, Accelerator] = {0: own}
        self._ports: dict[PortId, None] = {}
        self._gone = Counters()

    def enter(self, number: int, accelerator: Accelerator, now: Instant) -> None:
        """A shard opens its ports."""
        for port in self._ports:
            accelerator.step(PortUp(port), now)
        self._there[number] = accelerator

    def leave(self, number: int) -> None:
        """A shard is gone."""
        accelerator = self._there.pop(number, None)
        if accelerator is not None:
            _add(self._gone, accelerator.counters)
            if accelerator.waiting:
                self._gone.drop(FIRST_NOT_SEEN, accelerator.waiting)

    def step(self, event: Event, now: Instant) -> list[Action]:
        """Orders are for the accelerator of the switch's own process."""
        match event:
            case FramesArrived(port, blocks):
                return self._frames(port, blocks, now)
            case RoundArrived(arrivals):
                return [action for port, blocks in arrivals for action in self._frames(port, blocks, now)]
            case PortUp(port):
                self._ports[port] = None
            case PortDown(port):
                self._ports.pop(port, None)
            case InstallRing() | RemoveRing():
                return self._there[0].step(event, now)
        return [action for one in self._there.values() for action in one.step(event, now)]

    def takes(self, ring_id: int, frame: bytes) -> bool:
        """Whether the accelerator to which the frame is given has that ring."""
        (number,) = shards_of(np.frombuffer(frame, np.uint8)[None], self._shards).tolist()
        return number in self._there and ring_id in self._there[number].rings

    def taken(self, blocks: list[Frames]) -> tuple[list[Frames], int]:
        """Without the packets that nobody takes, for their shard is not there; and how many these are."""
        kept = [
            block[np.isin(shards_of(block, self._shards), list(self._there))] if len(block) else block
            for block in blocks
        ]
        return [block for block in kept if len(block)], sum(map(len, blocks)) - sum(map(len, kept))

    def _frames(self, port: PortId, blocks: Any, now: Instant) -> list[Action]:
        parts: dict[int, list[Frames]] = {}
        for block in blocks:
            shards = shards_of(block, self._shards)
            for number in _SHARDS[np.unique(shards)]:
                parts.setdefault(int(number), []).append(block[shards == number])
        return [
            action
            for number, its_blocks in parts.items()
            for action in self._there[number].step(FramesArrived(port, its_blocks), now)
        ]

    # --- as an accelerator looks

    @property
    def rings(self) -> Mapping[int, RingState]:
        return {ring_id: ring for one in self._there.values() for ring_id, ring in one.rings.items()}

    @property
    def counters(self) -> Counters:
        found = Counters()
        for counters in (self._gone, *(one.counters for one in self._there.values())):
            _add(found, counters)
        return found

    @property
    def waiting(self) -> int:
        return sum(one.waiting for one in self._there.values())

    @property
    def addresses(self) -> Mapping[bytes, int]:
        return self._there[0].addresses

    def view(self) -> AcceleratorView:
        views = [one.view() for one in self._there.values()]
        rings = {ring_id: ring for view in views for ring_id, ring in view.rings.items()}
        memory = sum(view.memory_bytes for view in views)
        connections = sum(view.connections for view in views)
        return AcceleratorView(rings, self.counters, memory, connections, views[0].pools, self.waiting)


def _add(to: Counters, more: Counters) -> None:
    for one in fields(Counters):
        if one.name != "dropped":
            setattr(to, one.name, getattr(to, one.name) + getattr(more, one.name))
    for rule, packets in more.dropped.items():
        to.drop(rule, packets)


class SimShard:
    """The process of shard ``number``; the control plane speaks with it as with another switch."""

    def __init__(self, world: World, switch: SimSwitch, number: int) -> None:
        self._world = world
        self._switch = switch
        self._number = number
        self.name = shard_name(number)
        self.session: SwitchSession | None = None
        self._accelerator: Accelerator | None = None
        """That of the process which there is, also before its ports open."""

    def __str__(self) -> str:
        return self.name

    @property
    def accelerator(self) -> Accelerator:
        """While it lives."""
        assert self._accelerator is not None
        return self._accelerator

    @property
    def rings(self) -> Mapping[int, RingState]:
        """Those that it has."""
        return {} if self._accelerator is None else self._accelerator.rings

    def boot(self, _: Any = None) -> None:
        """Started by the switch, if that is there and the shard is not."""
        if self._accelerator is None and self._switch.is_up:
            self._accelerator = self._switch.new_accelerator()
            self.session = self._world.control.open_switch_session(self)

    def die(self) -> bool:
        """Whether there was one to die."""
        if self._accelerator is None:
            return False
        sharded = self._switch.sharded
        for ring_id in self._accelerator.rings:
            for removed in self._world.hooks.ring_removed:
                removed(self._switch, ring_id)
        sharded.leave(self._number)
        self._accelerator = None
        self._switch.lost_with(self)
        if self.session is not None:
            self.session.break_off("killed")
            self.session = None
        return True

    def session_ended(self, session: SwitchSession) -> None:
        """It has died, or the switch has."""

    def ordered(self, order: InstallRing | RemoveRing | Admit) -> bool:
        """Performs an order of the control plane. Whether the accelerator has not refused."""
        if self._accelerator is None:
            return False
        if isinstance(order, Admit):
            self._switch.sharded.enter(self._number, self._accelerator, self._world.agenda.now)
            return True
        return self._switch.ordered(order, self)
