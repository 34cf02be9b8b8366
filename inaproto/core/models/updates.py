"""Sums of updates, and what is inside a clock vector (docs/protocol.md 18.2).

Invariant: an :class:`Update` is the sum of the updates ``before[w] + 1`` to ``after[w]`` of each worker in
it, and is taken whole or not at all. So it is *inside* a vector that covers ``after``, it *goes on* from one
that has exactly ``before``, and if it does neither, a part of it is inside and it can never be taken.

The one exception is a removed worker, whose clock is ``REMOVED``: what it said after is dropped by the rule
above, with everything that it was added to; the other workers' parts are made again from logs further down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inaproto.wire.messages.arrays import Comparable, Numbers
from inaproto.wire.messages.clocks import Clocks
from inaproto.wire.messages.models import Push


@dataclass(frozen=True, slots=True, eq=False)
class Update(Comparable):
    """See :class:`~inaproto.wire.messages.models.Push`, which is one on its way."""

    clock: int
    before: Clocks
    after: Clocks
    delta: Numbers | None

    @classmethod
    def of(cls, push: Push) -> Update:
        return cls(push.clock, push.before, push.after, push.delta)

    def push(self, session: int) -> Push:
        return Push(session, self.clock, self.before, self.after, self.delta)


def added(left: Numbers | None, right: Numbers | None) -> Numbers | None:
    """``left + right``, a new array that nobody can write; None is nothing at all. Integers wrap."""
    if left is None or right is None:
        return right if left is None else left
    total: Numbers = left + right
    total.setflags(write=False)
    return total


def total(updates: Sequence[Update], clock: int) -> Update:
    """One update for several, each of which goes on from those before it; added left to right."""
    before: Clocks = updates[0].before
    after: Clocks = updates[0].after
    delta = updates[0].delta
    for update in updates[1:]:
        before = update.before.with_(before)
        after = after.with_(update.after)
        delta = added(delta, update.delta)
    return Update(clock, before, after, delta)


def goes_on(vector: Clocks, update: Update) -> bool:
    """Whether the update begins, for each worker in it, where the vector ends."""
    return all(vector.get(worker) == clock for worker, clock in update.before.items())


def rest_after(updates: Iterable[Update], base: Clocks) -> tuple[list[Update], Clocks] | None:
    """Find which of ``updates``, in the order in which they were made, are not inside ``base``, and where
    they lead.

    None: one of them is partly inside, or something before it is missing.
    """
    rest, vector = [], base
    for update in updates:
        if vector.covers(update.after):
            continue
        if not goes_on(vector, update):
            return None
        rest.append(update)
        vector = vector.with_(update.after)
    return rest, vector
