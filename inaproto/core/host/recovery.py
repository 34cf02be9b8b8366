"""Where a job goes on whose ring has ended (docs/protocol.md 13.3).

The ranks number their messages alike, from the job's start, and a rank's *progress* is how many results it
has. A rank has result m only if every rank has sent m, hence has every result up to m - N. So nobody lacks
more than the N results before the largest progress, and the rank that is ahead still has those in its
receive slots; and nobody has a later one, so all inputs from there on are intact.

The next ring therefore begins with those N messages, once more: the rank that is ahead, the *donor*, sends
the results it has, all others neutral elements (:mod:`inaproto.core.plan.neutral`), and whatever path the
ring takes reduces them to the same results. Who lacks one takes it, who has it lets it go. They are messages
like all others, so window, slots, checks and accelerators need to know nothing of it, and that ring may end
too.

A rank here is a position in the ring: that of a host, whatever number of the job's ranks it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recovery:
    """The next ring begins at message ``progress``; rank ``donor`` has the results before it."""

    progress: int
    donor: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """The ranks cannot go on together: rank ``behind`` is too far behind, as ``reason`` says of it."""

    behind: int
    reason: str


def decide(progress: Mapping[int, int], window_messages: int) -> Recovery | Refusal:
    """From the progress of every rank. The donor is the lowest rank of those that are ahead."""
    ahead = max(progress.values())
    behind = min(progress, key=lambda rank: (progress[rank], rank))
    if ahead - progress[behind] > window_messages:
        return Refusal(
            behind,
            f"has {progress[behind]} results and another host {ahead}: more than the window of "
            f"{window_messages} apart, which no fault of the network explains",
        )
    return Recovery(ahead, min(rank for rank, done in progress.items() if done == ahead))
