"""Steps of an explored hand-over in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.sim.explore.successors.host import Event, Stage
from inaproto.sim.explore.successors.nic import host_of
from inaproto.units import S
from inaproto.wire.control_messages import Message

if TYPE_CHECKING:
    from inaproto.sim.explore.successors.world import State, Step, SuccessorsExplored


def told(world: SuccessorsExplored, state: State, step: Step) -> str:
    """What happens, and in lines below it what follows from it."""
    after = next(to for its, to in world.successors(state) if its == step)
    lines = [_first(world, state, step)]
    for number, machine in enumerate(world.hosts):
        if after[number] == state[number]:
            continue
        before, now = machine.at(state[number]), machine.at(after[number])
        for at, rank in enumerate(world.config.ranks[number]):
            old, new = before.processes[at], now.processes[at]
            lines += [
                f"rank {rank} has the result of all-reduce {index}" for index in range(old.done, new.done)
            ]
            if new.ended != old.ended:
                lines.append(f"rank {rank} ends: {new.ended}")
        phases = [its.core.phase.value if its.stage is Stage.UP else its.stage.value for its in (before, now)]
        if phases[0] != phases[1]:
            lines.append(f"h{number} is {phases[1]}")
    for number in range(len(world.hosts)):
        lines += _said(world, state, after, number)
    broken = world.violation(after)
    return "\n".join([*lines, *([broken] if broken else [])])


def _said(world: SuccessorsExplored, state: State, after: State, number: int) -> list[str]:
    from inaproto.sim.explore.successors.world import SAID, TOLD, WIRES

    lines: list[str] = []
    old = sum(len(its.words) for its in world.talks[state[SAID + number]])
    new = [word for its in world.talks[after[SAID + number]] for word in its.words]
    if len(new) > old:
        lines.append(f"h{number} says: " + ", ".join(_name(world.messages[word]) for word in new[old:]))
    before, now = world.queues[state[TOLD + number]], world.queues[after[TOLD + number]]
    if len(now) > len(before):
        lines.append(
            f"h{number} is told: " + ", ".join(_name(world.messages[it]) for it in now[len(before) :])
        )
    flying, flies = world.wires[state[WIRES + number]].flying, world.wires[after[WIRES + number]].flying
    if len(flies) > len(flying):
        sent = [world.sent[it] for it in flies[len(flying) :]]
        lines.append(
            f"h{number} sends: " + ", ".join(f"message {it.imm} to h{host_of(it.to)}" for it in sent)
        )
    return lines


def _first(world: SuccessorsExplored, state: State, step: Step) -> str:
    match step.what:
        case "host":
            return _event(world, step.host, step.event)
        case "dies" | "dies for good":
            ends = "dies" if step.what == "dies" else "dies, and no other will come"
            if step.event == ("nothing",):
                return f"the daemon of h{step.host} {ends}"
            doing = _event(world, step.host, step.event)
            return f"the daemon of h{step.host} {ends} while it does this: {doing} (place {step.which})"
        case "control hears":
            return f"the control plane hears of h{step.host}: {_name(world.messages[step.which])}"
        case "control notices":
            return f"the control plane notices that a session of h{step.host} is over"
        case "control wakes":
            return "the control plane has waited for long enough"
        case "switch sums":
            return "the switch adds the next message of all hosts"
        case _:
            return f"time passes, until {step.which / S:g} s after the start"


def _event(world: SuccessorsExplored, number: int, event: Event) -> str:
    host, (kind, *args) = f"h{number}", event
    match kind:
        case "calls":
            return f"rank {world.config.ranks[number][args[0]]} calls its next all-reduce"
        case "leaves":
            return f"rank {world.config.ranks[number][args[0]]} leaves"
        case "rejoins":
            return f"rank {world.config.ranks[number][args[0]]} comes back to {host}"
        case "hears":
            return f"{host} hears: {_name(args[0])}"
        case "lands":
            return f"message {args[0].imm} lands at {host}"
        case "acknowledged":
            return f"{host} hears that message {args[1]} is there"
        case "fails":
            return f"the NIC of {host} gives message {args[1]} up"
        case "wakes":
            return f"{host} has waited for long enough"
        case "gives_up":
            return f"the processes of {host} give up"
        case "starts":
            return f"a successor begins at {host}"
        case _:
            return f"{host} connects to the switch"


def _name(message: Message) -> str:
    told = [
        f"{name} {getattr(message, name)}"
        for name in ("code", "ring_id", "progress", "rank")
        if getattr(message, name, None) not in (None, "", 0)
    ]
    return message.TYPE + (f" ({', '.join(told)})" if told else "")
