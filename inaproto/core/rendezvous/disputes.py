"""What the ranks of a job say that they call, once it is known that they call different all-reduces.

Headers have a digest of a call (NetReduce 3.2), which tells that two differ and not how. So before the job
fails, its hosts are asked for the words of each call (docs/protocol.md 12.6). The job fails in any case,
after :data:`CALLS_NS` at the latest: with what was told by then, or with the evidence alone.

Invariant: a job in dispute ends by it, whatever its ring does meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from inaproto.units import MS, Instant
from inaproto.wire.control_messages import Calls

CALLS_NS: Final = 500 * MS
"""Hosts get this long to say what their ranks call. Those of an older release do not know the question."""
ADVICE: Final = "every rank must call the same ones in the same order, with the same shape, dtype and op"


@dataclass(slots=True)
class Dispute:
    """A job whose ranks call different all-reduces."""

    evidence: str
    """Who found it, and by what."""
    until: Instant
    told: dict[int, Calls] = field(default_factory=dict)
    """What each rank has said, by rank."""

    def _calls(self) -> list[tuple[int, dict[str, list[int]]]]:
        """All-reduces that were told of, in order, each with the ranks by what they call."""
        found: dict[int, dict[str, list[int]]] = {}
        for rank, told in sorted(self.told.items()):
            for op_index, call in enumerate(told.calls, told.first):
                found.setdefault(op_index, {}).setdefault(call, []).append(rank)
        return sorted(found.items())

    def difference(self) -> tuple[int, dict[str, list[int]]] | None:
        """The first all-reduce that ranks call differently, and the ranks by what they call; None: nobody has
        told of one."""
        return next((one for one in self._calls() if len(one[1]) > 1), None)

    def explain(self, job: str, name: Callable[[Sequence[int]], str]) -> str:
        """Why the job fails, for people; ``name`` gives ranks with their places."""
        difference = self.difference()
        if difference is not None:
            op_index, calls = difference
            return explain_difference(job, op_index, {call: name(ranks) for call, ranks in calls.items()})
        text = f"the ranks of job {job!r} called different all-reduces, seen at {self.evidence}"
        # The host of the rank whose call is another one is of an older release, and silent.
        for op_index, calls in self._calls()[:1]:
            for call, ranks in calls.items():
                text += f"; all-reduce {op_index} of {name(ranks)}: {call}"
        return f"{text}; {ADVICE}"


def explain_difference(job: str, op_index: int, who: dict[str, str]) -> str:
    """``who`` calls it how, by the call."""
    named = "; ".join(f"{ranks}: {call}" for call, ranks in who.items())
    return f"all-reduce {op_index} of job {job!r} differs between ranks: {named}; {ADVICE}"
