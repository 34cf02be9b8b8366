"""What somebody who is responsible for a cluster should look at, the worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from inaproto_controller.cluster.desired import Job, JobState
from inaproto_controller.service.history_records import COMMITTED, RoundSeen
from inaproto_controller.service.plan import BEHIND
from inaproto_controller.service.why_no_tree import wants_attention

SHOWN_MAX: Final = 12
NAMED_MAX: Final = 8
ROUNDS_LOOKED_AT: Final = 50
ROUNDS_MIN: Final = 10
"""Rounds of which something can be concluded; of fewer nothing is."""


@dataclass(frozen=True, slots=True)
class Item:
    kind: str
    """``bad`` or ``warn``."""
    text: str


def needs_attention(
    status: Mapping[str, Any],
    presences: Mapping[str, str],
    live: Sequence[Job],
    rounds: Sequence[RoundSeen],
    reasons: Mapping[int, str],
) -> list[Item]:
    """``live``: jobs that are not over; ``reasons``: why jobs have no tree, by number. Who waits for earlier
    jobs, and whose model gains nothing by a tree, has what is due."""
    found = []
    if not status["leads"]:
        found.append(
            Item(
                "bad",
                f"It does not lead: {status['problem']}. Ask the controller that leads, if there is one.",
            )
        )
    for presence, what in (("gone", "Silent for longer than the lease"), ("unknown", "Not heard of lately")):
        names = [name for name, one in presences.items() if one == presence]
        if names and status["leads"]:
            found.append(Item("bad" if presence == "gone" else "warn", f"{what}: {_named(names)}"))
    queued = (job for job in live if job.state in (JobState.QUEUED, JobState.SUBMITTED))
    waiting = (job for job in queued if job.why not in ("", BEHIND))
    found += [Item("warn", f"{job.spec.name} {job.why}") for job in waiting]
    by_reason: dict[str, list[str]] = {}
    for job in live:
        why = reasons.get(job.number, "")
        if lacks_tree(job) and wants_attention(why):
            by_reason.setdefault(why, []).append(job.spec.name)
    found += [Item("warn", f"Without a tree: {_named(names)}: {why}") for why, names in by_reason.items()]
    found += _rounds(rounds)
    if len(found) > SHOWN_MAX:
        found[SHOWN_MAX:] = [Item("warn", f"and {len(found) - SHOWN_MAX} more")]
    return found


def _rounds(rounds: Sequence[RoundSeen]) -> Iterable[Item]:
    """Pools at which most of the last rounds came to nothing."""
    last: dict[str, list[str]] = {}
    for one in rounds:
        if one.outcome:
            last.setdefault(one.pool, []).append(one.outcome)
    for pool, outcomes in last.items():
        looked = outcomes[-ROUNDS_LOOKED_AT:]
        aborted = Counter(outcome for outcome in looked if outcome != COMMITTED)
        if len(looked) >= ROUNDS_MIN and 2 * aborted.total() > len(looked):
            why, _ = aborted.most_common(1)[0]
            yield Item(
                "warn",
                f"{pool}: {aborted.total()} of its last {len(looked)} rounds were aborted, mostly: {why}",
            )


def lacks_tree(job: Job) -> bool:
    return job.tree is None and len(job.hosts) > 1


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
