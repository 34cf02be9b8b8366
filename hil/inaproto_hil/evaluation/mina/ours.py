"""Our own trees beside the published algorithm, MINA's and exclusive ones, with the downtime of each change.

The published algorithm is that of the simulator's extended revision, whose changes of trees cost nothing; it
is compared on the published requests. All else is a mean over streams of requests with seeds 1, 2, ...; of
each setting the score is followed by what it is a share of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from inaproto_controller.cluster.topology import Quota
from inaproto_hil.evaluation.mina.published import published
from inaproto_hil.evaluation.mina.rows import EXCLUSIVE, REBUILT, Outcomes, mean_of, scores
from inaproto_hil.evaluation.mina.runs import LEVERS, ClusterFound, OwnRun, Run
from inaproto_hil.evaluation.rows import Beside, Row
from inaproto_hil.evaluation.spread import spread

SETTING: Final = "1024 hosts, 2000 requests, least-fragments placement, .559 s for each exchange of a tree"
STREAMS_MIN: Final = 10
TRACES: Final = tuple(range(1, 7))
"""Traces of the extended revision's runs."""
_HARDER: Final = tuple(
    OwnRun(trace, speeds=speeds, quota=quota)
    for speeds, quota in (("cluster", Quota.SWITCH), ("sharing", Quota.LINK), ("sharing", Quota.SWITCH))
    for trace in (1, 2)
)
_PUBLISHED: Final = tuple(OwnRun(trace) for trace in TRACES)
_ABLATED: Final = (_HARDER[3], _HARDER[5])


def _streams(run: OwnRun, seeds: int) -> list[OwnRun]:
    return [replace(run, stream=1 + stream) for stream in range(max(STREAMS_MIN, seeds))]


def runs(seeds: int) -> Iterator[Run]:
    yield from _PUBLISHED
    for run in _PUBLISHED + _HARDER:
        yield from _streams(run, seeds)
        yield from _streams(replace(run, trees=EXCLUSIVE), seeds)
        yield replace(run, trees=EXCLUSIVE)
    for run in _HARDER:
        yield from _streams(replace(run, trees=REBUILT), seeds)
    for run in _ABLATED:
        for lever in LEVERS:
            yield from _streams(replace(run, without=lever), seeds)


def rows(outcomes: Outcomes, seeds: int) -> Iterator[Row]:
    extended = published("ref13_later_algorithm_link_quota")["traces"]
    theirs = {row["trace"]: row["mina"]["JCTScore"] for row in extended}
    for run in _PUBLISHED:
        row = _score(_name(run) + ", the published requests", outcomes, [run])
        yield replace(row, paper=theirs[run.trace], below=0.0, above=1.0)
    for run in _PUBLISHED + _HARDER:
        yield from _setting_rows(outcomes, run, seeds)
    for run in _ABLATED:
        for lever in LEVERS:
            without = _streams(replace(run, without=lever), seeds)
            yield _score(f"{_name(run)}, without {lever}", outcomes, without)


def _setting_rows(outcomes: Outcomes, run: OwnRun, seeds: int) -> Iterator[Row]:
    name, streams = _name(run), _streams(run, seeds)
    yield _score(name, outcomes, streams)
    found = _found(outcomes, streams)
    for what, values in (
        ("seconds that the mean job saves", [one.saved_mean for one in found]),
        ("share of all JCT that is saved", [one.saved_share for one in found]),
    ):
        seen = spread([value for value in values if value is not None])
        yield Row(f"{name}: {what}", seen.mean, half_width=seen.half_width, runs=seen.runs)
    exclusive = _streams(replace(run, trees=EXCLUSIVE), seeds)
    yield _score(f"{name}, exclusive trees for life", outcomes, exclusive)
    pairs = zip(found, _found(outcomes, exclusive), strict=True)
    least = min(scores([one]).mean - scores([other]).mean for one, other in pairs)
    yield Row(f"{name}: least lead over these", least, 0.0, 0.0, 1.0, runs=len(found))
    if run in _HARDER:
        rebuilt = _streams(replace(run, trees=REBUILT), seeds)
        yield _score(f"{name}, MINA's trees, all anew", outcomes, rebuilt)


def _name(run: OwnRun) -> str:
    return f"{run.speeds} speeds, one job a {run.quota.value}, trace {run.trace}"


def _found(outcomes: Outcomes, of: Sequence[OwnRun]) -> list[ClusterFound]:
    found = [outcomes[run] for run in of]
    return [one for one in found if isinstance(one, ClusterFound)]


def _score(what: str, outcomes: Outcomes, of: Sequence[OwnRun]) -> Row:
    found = _found(outcomes, of)
    seen = scores(found)
    fair = scores(_found(outcomes, [replace(run, trees=EXCLUSIVE, without=None) for run in of]))
    shown = Beside(
        mean_of([one.saved_mean for one in found]),
        mean_of([one.saved_share for one in found]),
        mean_of([one.seconds_mean for one in found]),
        mean_of([one.queued_mean for one in found]),
        mean_of([one.seconds_with_queue_mean for one in found]),
        sum(one.swaps for one in found) / sum(run.requests for run in of),
        fair.mean,
    )
    return Row(what, seen.mean, half_width=seen.half_width, runs=seen.runs, beside=shown)
