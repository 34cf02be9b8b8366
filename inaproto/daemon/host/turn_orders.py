"""What the core of a host's job orders of its turns in the switches, and what it hears of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import assert_never

from inaproto.core.host import events
from inaproto.core.host.engines.two_paths import AskBinding, Bound, Drained, Wait
from inaproto.daemon.host.turns import Turns
from inaproto.units import Instant

TurnOrder = events.BeginTurns | events.EndTurns | events.ParkTurns | AskBinding | Bound | Drained


class TurnOrders:
    """Carries them out on ``turns``; ``feed`` steps the core.

    ``hurry``: what an operation waits for has a new, perhaps earlier, end.
    """

    def __init__(
        self,
        turns: Turns,
        *,
        feed: Callable[[events.HostEvent], object],
        clock: Callable[[], Instant],
        hurry: Callable[[], None],
    ) -> None:
        self._turns = turns
        self._feed, self._clock, self._hurry = feed, clock, hurry

    def perform(self, order: TurnOrder) -> None:
        turns, feed = self._turns, self._feed
        match order:
            case AskBinding(op_index):
                binding = turns.bind(op_index, self._clock())
                feed(events.BindingSaid(op_index, binding))
                if isinstance(binding, Wait):
                    self._hurry()
            case Bound(op_index, path):
                turns.bound(op_index, path)
            case Drained(op_index):
                turns.drained(op_index)
            case events.BeginTurns(message, hosts, next_operation):
                turns.begin(
                    ring_id=message.ring_id,
                    hosts=hosts,
                    next_operation=next_operation,
                    changed=self._binding_changed,
                    pool=message.pool,
                    stand=message.epoch,
                    differs=lambda op_index, host: feed(events.BindingDiffers(op_index, host)),
                )
            case events.EndTurns():
                turns.ring_ended()
            case events.ParkTurns(message):
                turns.park(partial(feed, events.TurnsParked(message)))
            case _:
                assert_never(order)

    def _binding_changed(self) -> None:
        self._feed(events.BindingChanged())
        self._hurry()  # what waited for it may have begun
