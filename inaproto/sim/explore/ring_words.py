"""Steps of the explored ring in words: who sends what, what is lost, who gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.explore.packet_table import PATHS, Path

if TYPE_CHECKING:
    from inaproto.sim.explore.ring_world import RingWorld, State, Step


def describe(world: RingWorld, before: State, step: Step) -> str:
    """What happens, and below it, on a line each, what is sent then."""
    return "\n".join([_event(world, before, step), *_sent(world, before, step)])


def _event(world: RingWorld, before: State, step: Step) -> str:
    from inaproto.sim.explore import ring_world as kinds

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


def _sent(world: RingWorld, before: State, step: Step) -> list[str]:
    from inaproto.sim.explore.ring_world import FAULT_WORDS

    lines = []
    for index, (channel, packet) in enumerate(world.sent(before, step)):
        flow, path = divmod(channel, PATHS)
        what = world.packets.describe(packet)
        successor = (flow + 1) % world.config.ranks
        if path == Path.DATA:
            line = f"rank {flow} sends {what}"
        elif path == Path.RESULT:
            line = f"the switch sends the result of {what} to rank {successor}"
        else:
            line = f"rank {successor} sends the {what} to rank {flow}"
        struck = [FAULT_WORDS[fault.what] for fault in step.faults if fault.number == index]
        lines.append(line + "".join(f": {word.upper()}" for word in struck))
    return lines
