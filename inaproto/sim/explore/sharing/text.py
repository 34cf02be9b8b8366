"""Runs of the explored sharing group in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inaproto.core.sharing.events import FromPeer
from inaproto.wire.messages.sharing import Decision, EndTurn, Prepare, TellPeerDecision, Turn, Vote

if TYPE_CHECKING:
    from inaproto.sim.explore.sharing.states import State, Step
    from inaproto.sim.explore.sharing.world import SharingWorld


def describe(world: SharingWorld, run: Sequence[tuple[State, Step]]) -> list[str]:
    """Tell step by step what happens, and below it what it changes, a line each."""
    return ["\n".join(_tell(world, before, step)) for before, step in run]


def _tell(world: SharingWorld, before: State, step: Step) -> list[str]:
    after = next(state for other, state in world.successors(before) if other == step)
    lines = [_event(world, before, step)]
    for seat, (was, now) in enumerate(zip(before[4:], after[4:], strict=True)):
        if was != now and now >= 0:
            lines += _seat_changes(world, seat, was, now)
    if after[0] >= 0:
        now_is = world.view(after)
        was_is = None if before[0] < 0 else world.view(before)
        if was_is is None or (was_is.phase, was_is.term) != (now_is.phase, now_is.term):
            lines.append(f"the coordinator, term {now_is.term}, is {now_is.phase}")
    old = set(world.net(before))
    lines += [f"sent: {letter(world, number)}" for number in world.net(after) if number not in old]
    return lines


def _event(world: SharingWorld, before: State, step: Step) -> str:
    from inaproto.sim.explore.sharing import states as words

    names = [f"{seat.job}/{seat.host}" for seat in world.seats]
    match step.what:
        case words.DELIVER:
            return f"arrives: {letter(world, step.where)}"
        case words.REPEAT:
            return f"arrives, and will ARRIVE AGAIN: {letter(world, step.where)}"
        case words.LOSE:
            return f"LOST: {letter(world, step.where)}"
        case words.START | words.END:
            return f"seat {names[step.where]} {step.what}s an operation"
        case words.LEASE:
            return f"the timer of seat {names[step.where]} expires"
        case words.LEASE_EARLY:
            return f"the timer of seat {names[step.where]} expires EARLY"
        case words.LOST:
            return f"seat {names[step.where]} notices that the coordinator is gone"
        case words.TIMER_EARLY:
            return "the coordinator's timer expires EARLY"
        case words.TIMER | words.RESEND:
            return "the coordinator's timer expires"
        case words.WISH:
            wish = world.config.wishes[step.where]
            what = "until further notice" if wish.operations is None else f"for {wish.operations} operations"
            end = "" if wish.until is None else f", and until operation {wish.until} at most"
            return f"the planner wants job {wish.job} to have the turn, {what}{end}"
        case words.CRASH:
            return "the coordinator CRASHES"
        case words.CRASH_WRITTEN:
            return "the coordinator CRASHES; what it was writing is in the log"
        case words.RESTART:
            return "the coordinator restarts"
        case words.HOST_CRASH:
            return f"host h{step.where} CRASHES"
        case words.GONE:
            return f"the coordinator hears that seat {names[step.where]} is gone"
        case _:
            return step.what


def _seat_changes(world: SharingWorld, seat: int, was: int, now: int) -> list[str]:
    before, after = world.local(seat, was), world.local(seat, now)
    name = f"{world.seats[seat].job}/{world.seats[seat].host}"
    lines = []
    if after.running != before.running and after.running >= 0:
        path = f"INA, epoch {after.epoch}" if after.is_ina else "the fallback"
        lines.append(f"seat {name} runs operation {after.running} on {path}")
    if after.is_held and not before.is_held:
        lines.append(f"seat {name} holds operation {after.next} back: it is locked")
    if after.phase != before.phase:
        lines.append(f"seat {name} is {after.phase}")
    return lines


def letter(world: SharingWorld, number: int) -> str:
    one = world.letters[number]
    message: Any = one.event.message
    receiver = "the coordinator" if one.to < 0 else f"{world.seats[one.to].job}/{world.seats[one.to].host}"
    if isinstance(one.event, FromPeer):
        sender = f"{message.sender.job}/{message.sender.host}"
    else:
        sender = f"{message.seat.job}/{message.seat.host}" if one.to < 0 else "the coordinator"
    return f"{_content(message)} from {sender} to {receiver}"


def _content(message: Any) -> str:
    name = type(message).__name__
    if isinstance(message, EndTurn):
        return f"{name} (epoch {message.epoch}, before operation {message.until})"
    if not hasattr(message, "version"):
        return f"{name} (epoch {message.epoch})"
    said = f"{message.version.term}.{message.version.number}"
    if isinstance(message, Vote):
        return f"{name} {said} (next operation {message.index}{', in INA' * message.in_ina})"
    if isinstance(message, Prepare):
        what = [f"job {message.granted} begins"] if message.granted is not None else []
        what += [f"epoch {message.ended} ends"] if message.ended is not None else []
        return f"{name} {said} ({', '.join(what)})"
    decision = getattr(message, "decision", None)
    if decision is not None:
        return f"{name} {said} ({_decision(decision)})"
    return f"{name} {said}" + (" (it never will be committed)" * isinstance(message, TellPeerDecision))


def _decision(decision: Decision) -> str:
    what = [] if decision.granted is None else [_turn(decision.granted)]
    what += [f"epoch {decision.ended} ends before {decision.until}"] if decision.ended is not None else []
    return ", ".join(what)


def _turn(turn: Turn) -> str:
    until = "" if turn.until is None else f" to {turn.until - 1}"
    return f"job {turn.job} has epoch {turn.epoch} from operation {turn.first}{until}"
