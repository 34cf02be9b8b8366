"""Who takes turns with whom, and when each job is looked at, until something changes again (MINA, section
III-D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from inaproto_controller.planning.trial.arrays import Kinds
from inaproto_controller.planning.trial.kernel import Bools, Floats, Ints, Slots, Turns
from inaproto_controller.simulate.group_order import GroupOrder, components, listed
from inaproto_controller.simulate.rivals import Rivals

_MARGIN_S: Final = 1e-6
"""Time by which a job that is behind is looked at before it can end, beside what rounding adds up to."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Slots whose operation runs on a tree that they have given up, and who needs its links."""

    blocker: Ints
    blocked: Ints
    is_granted: Bools
    """The tree of who needs the links was given no earlier than the holder's new one."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What several may use at a time, by slot; see ``Turns``."""

    numbers: Ints
    room: Ints
    uses: Ints
    uses_then: Ints

    @property
    def slots(self) -> Ints:
        """Slots of those who may have to do without."""
        return np.flatnonzero(
            (self.uses[:, 1] > self.uses[:, 0]) | (self.uses_then[:, 1] > self.uses_then[:, 0])
        )


def count_shared(
    now: Mapping[int, Sequence[tuple[int, int]]], then: Mapping[int, Sequence[tuple[int, int]]], slots: Slots
) -> Counted:
    """``now``, ``then``: of each slot, what its tree and the one that waits use, and how many may use it."""
    users: dict[int, set[int]] = {}
    capacities: dict[int, int] = {}
    for uses in (now, then):
        for slot, shared in uses.items():
            for number, capacity in shared:
                users.setdefault(number, set()).add(slot)
                capacities[number] = capacity
    scarce = [number for number, by in users.items() if len(by) > capacities[number]]
    places = {number: place for place, number in enumerate(scarce)}
    room = np.array([capacities[number] for number in scarce], np.int64)
    numbers: list[int] = []
    found = []
    for uses in (now, then):
        spans = np.zeros((len(slots.at), 2), np.int64)
        for slot, shared in uses.items():
            own = [places[number] for number, _ in shared if number in places]
            spans[slot] = len(numbers), len(numbers) + len(own)
            numbers += own
            if uses is now and slots.uses_ina[slot]:
                room[own] -= 1
        found.append(spans)
    return Counted(np.array(numbers, np.int64), room, *found)


def _soonest_ends(alone: Ints, slots: Slots, kinds: Kinds, *, uses_ina: bool, jitter: float) -> Floats:
    """(alone,): when these jobs have not ended yet, whatever they do until then."""
    kind = slots.kind[alone]
    fast = slots.has_tree[alone] & uses_ina
    least = np.where(fast, kinds.least[kind], kinds.least_plain[kind])
    this_step = kinds.least[kind]  # who has lost its tree may have had INA earlier in it
    if jitter:
        least = this_step = kinds.tables.duration[kind]
    left = slots.steps_max[alone] - slots.steps[alone] - 1
    soonest: Floats = slots.step_start[alone] + this_step + left * least
    events = (left + 1) * (2 * kinds.tables.operations[kind] + 1)
    return soonest - _MARGIN_S - events * np.spacing(soonest)


def take_turns(
    order: Ints,
    rivals: Rivals,
    slots: Slots,
    kinds: Kinds,
    blocks: Blocks,
    counted: Counted,
    *,
    by: GroupOrder,
    may_stay_behind: bool,
    is_pairwise: bool,
    uses_ina: bool,
    jitter: float,
) -> tuple[Turns, Ints]:
    """The second: (groups,) jobs. ``order``: (jobs,) slots in order of placement; ``is_pairwise``: those take
    turns whose trees exclude each other, not all of a group."""
    jobs, room = len(order), len(slots.at)
    roots = components(order, rivals.count, rivals.of)
    heads = np.array(listed(roots, by), np.int64)
    place = np.zeros(jobs, np.int64)
    place[heads] = np.arange(len(heads))
    group_of = place[roots]
    by_turn = np.argsort(group_of, kind="stable")
    sizes = np.bincount(group_of, minlength=len(heads))
    group, rank = np.zeros(room, np.int64), np.zeros(room, np.int64)
    group[order], rank[order[by_turn]] = group_of, np.arange(jobs)
    is_behind = np.zeros(room, np.bool_)
    due = slots.at.copy()
    if may_stay_behind:
        alone = order[(sizes == 1)[group_of]]
        alone = alone[~slots.waits[alone]]
        is_behind[alone] = True
        is_behind[blocks.blocked] = False
        is_behind[counted.slots] = False
        alone = alone[is_behind[alone]]
        soonest = _soonest_ends(alone, slots, kinds, uses_ina=uses_ina, jitter=jitter)
        due[alone] = np.maximum(soonest, due[alone])
    if is_pairwise:
        group[order] = np.arange(jobs)
        counts, members = rivals.count[order], rivals.listed(order)
        busy = np.zeros(0, np.int64)
    else:
        counts, members = sizes, order[by_turn]
        busy = np.bincount(group_of, weights=slots.uses_ina[order], minlength=len(heads)).astype(np.int64)
    turns = Turns(
        group=group,
        rank=rank,
        is_behind=is_behind,
        due=due,
        heap=order.copy(),
        member_first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        members=members,
        busy=busy,
        blocker=blocks.blocker,
        blocked=blocks.blocked,
        is_granted=blocks.is_granted,
        counted=counted.numbers,
        room=counted.room,
        uses=counted.uses,
        uses_then=counted.uses_then,
    )
    return turns, sizes
