"""What is waited for in an explored sharing group, and whether it can still come: then no timer expires.

Of the cores it is asked whether a round can succeed, so that those that cannot are not tried for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inaproto.core.sharing.events import SharingView
from inaproto.sim.explore.sharing.states import DOWN, Local, State
from inaproto.wire.messages.sharing import (
    Abort,
    Ask,
    AskPeer,
    Commit,
    Done,
    Drained,
    EndTurn,
    Rule,
    TellPeerDecision,
)

if TYPE_CHECKING:
    from inaproto.sim.explore.sharing.world import SharingWorld


def is_answer_due(world: SharingWorld, state: State, seat: int, local: Local) -> bool:
    for number in world.net(state):
        letter = world.letters[number]
        message = letter.event.message
        if getattr(message, "version", None) != local.version:
            continue
        if letter.to == seat and isinstance(message, Commit | Abort | TellPeerDecision):
            return True
        if isinstance(message, Ask) and message.seat == world.seats[seat] and state[0] != DOWN:
            return True
        if isinstance(message, AskPeer) and message.sender == world.seats[seat]:
            return True
    return False


def may_be_decided(world: SharingWorld, state: State, seat: int, local: Local) -> bool:
    """Whether the seat, which has voted, need only wait."""
    if state[0] != DOWN:
        view = world.view(state)
        if view.version == local.version and view.phase in ("preparing", "deciding"):
            return True
    return any(
        world.letters[number].to == seat
        and isinstance(world.letters[number].event.message, Commit | Abort)
        and world.letters[number].event.message.version == local.version  # type: ignore[union-attr]
        for number in world.net(state)
    )


def may_succeed(world: SharingWorld, state: State) -> bool:
    """Whether a round would be committed if nothing else happened."""
    round_ = vars(world.coordinator.cores[state[0]])["_rounds"].round
    asked = [world.seats.index(seat) for seat in round_.change.seats]
    if any(state[4 + seat] == DOWN for seat in asked):
        return False
    locals_ = {seat: world.local(seat, state[4 + seat]) for seat in asked}
    if any(local.is_closed or local.phase != "free" for local in locals_.values()):
        return False
    if world.config.rule is Rule.BY_INDEX:
        return True
    indices: dict[str, set[int]] = {}
    for seat, local in locals_.items():
        indices.setdefault(world.seats[seat].job, set()).add(local.next)
    is_used = any(local.is_ina for local in locals_.values())
    return not is_used and all(len(found) == 1 for found in indices.values())


def helps_to_repeat(world: SharingWorld, state: State, view: SharingView) -> bool:
    """Whether something that is waited for is no longer under way."""
    messages = [world.letters[number].event.message for number in world.net(state)]
    if view.phase == "committing":
        coming = {one.seat for one in messages if isinstance(one, Commit | Done)}
        return any(seat not in coming for seat in view.missing)
    coming = {one.seat for one in messages if isinstance(one, EndTurn | Drained)}
    for turn in view.turns:
        for seat in turn.undrained:
            number = world.seats.index(seat)
            at = state[4 + number]
            if at == DOWN or seat in coming:
                continue
            local = world.local(number, at)
            if not local.owes and turn.turn.until is not None and local.floor > turn.turn.epoch:
                return True
            stands = world.participants[number].cores[at].view().turn
            if stands is not None and stands.until != turn.turn.until:
                return True
    return False
