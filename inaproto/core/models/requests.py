"""How many pull requests wait at a parent, and which a node makes next (MLNet 3.2; docs/protocol.md 18.5).

A request stays with the parent until the model's clock has come to it, though the process that wanted the
weights may be gone. So that what it holds is bounded, a child has no more than ``requests_max`` there; they
are answered in the order of their clocks, whatever the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inaproto.core.models.events import ShardSpec
from inaproto.wire.messages.clocks import WorkerId


def requests_max(shard: ShardSpec, workers: Collection[WorkerId]) -> int:
    """Requests that a child may have open that may push for ``workers``."""
    return shard.ahead_max * (len(workers) + 1)


def next_requests(needs: Sequence[int], asked: Sequence[int], at_most: int) -> list[int] | None:
    """Choose which of the model clocks ``needs`` the parent is asked for now; both ascending.

    The least come first. One that is later than all that wait can wait for them here. None: an earlier one
    would have to wait here, behind requests of processes that are gone: all are to be made anew, in another
    session.
    """
    wanted = [needed for needed in needs[:at_most] if needed not in asked]
    room = at_most - len(asked)
    if len(wanted) > room and wanted[0] < asked[-1]:
        return None
    return wanted[:room]
