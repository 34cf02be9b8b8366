"""Runs of the explored ring in words: who sends what, what is lost, who gets it, what lies in the slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from inaproto.sim.explore.ring import steps as kinds
from inaproto.sim.explore.ring.packet_table import PATHS, Path
from inaproto.sim.explore.ring.steps import Step

if TYPE_CHECKING:
    from inaproto.sim.explore.ring.world import RingWorld, State

_FAULT_WORDS: Final[Mapping[int, str]] = {
    kinds.LOST: "lost",
    kinds.DOUBLED: "duplicated",
    kinds.COPY_LATE: "duplicated, the copy late",
    kinds.LATE: "late",
}


def describe(world: RingWorld, run: Sequence[tuple[State, Step]]) -> list[str]:
    """Tell step by step what happens, and below it, on a line each, what the switch's slots hold and what is
    sent."""
    teller = _Teller(world)
    return [teller.tell(before, step) for before, step in run]


class _Teller:
    def __init__(self, world: RingWorld) -> None:
        self._world = world
        self._sent_before: set[tuple[int, int, int]] = set()
        """(channel, message, offset)"""

    def tell(self, before: State, step: Step) -> str:
        world = self._world
        lines = [_event(world, before, step)]
        component, packet = world.local_event(before, step)
        sent = self._sent(before, step)
        if component == world.config.ranks:
            old = before[component]
            slots = _changed_slots(world, old, world.switch.step(old, packet)[0])
            lines += slots or ([] if sent else ["no slot changes, and nothing is sent"])
        return "\n".join(lines + sent)

    def _sent(self, before: State, step: Step) -> list[str]:
        world, lines = self._world, []
        for index, (channel, number) in enumerate(world.sent(before, step)):
            flow, path = divmod(channel, PATHS)
            what = world.packets.describe(number)
            successor = (flow + 1) % world.config.ranks
            sends = self._sends(channel, number)
            if path == Path.DATA:
                line = f"rank {flow} {sends} {what}"
            elif path == Path.RESULT:
                line = f"the switch {sends} the result of {what} to rank {successor}"
            else:
                line = f"rank {successor} {sends} the {what} to rank {flow}"
            struck = [_FAULT_WORDS[fault.what] for fault in step.faults if fault.number == index]
            lines.append(line + "".join(f": {word.upper()}" for word in struck))
        return lines

    def _sends(self, channel: int, number: int) -> str:
        """An acknowledgement is a new one each time: only data and results are sent again."""
        packet = self._world.packets[number]
        key = (channel, packet.message, packet.offset)
        if packet.offset < 0 or key not in self._sent_before:
            self._sent_before.add(key)
            return "sends"
        return "sends again"


def _event(world: RingWorld, before: State, step: Step) -> str:
    if step.what == kinds.BEGIN:
        return f"rank {step.where} starts the all-reduce"
    if step.what in (kinds.EXPIRE, kinds.EXPIRE_EARLY):
        early = " too early" if step.what == kinds.EXPIRE_EARLY else ""
        return f"the retransmission timer of rank {step.where} expires{early}"
    channel = step.where
    if step.what == kinds.ARRIVE_LATE:
        (channel, packet), how = world.late(before)[step.where], ", late,"
    else:
        packet = world.head(before, channel)
        how = ", long after the last go-back," if step.what == kinds.DELIVER_LATER else ""
    flow, path = divmod(channel, PATHS)
    what = world.packets.describe(packet)
    successor = (flow + 1) % world.config.ranks
    if path == Path.DATA:
        return f"{what} of rank {flow}{how} reaches the switch"
    if path == Path.RESULT:
        return f"the result of {what} of rank {flow}{how} reaches rank {successor}"
    return f"the {what} of rank {successor}{how} reaches rank {flow}"


def _changed_slots(world: RingWorld, before: int, after: int) -> list[str]:
    old, new = world.switch.slots(before), world.switch.slots(after)
    return [f"{name}: {text}" for name, text in new.items() if old[name] != text]
