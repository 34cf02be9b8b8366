"""One rank of ``inaproto bench allreduce``: sends predictable data, times operations, checks them.

Started by the benchmark with its plan as one JSON argument. Before each operation it prints
``{"at": ...}`` and waits for a line on stdin, so that all ranks begin together and one rank's checking
is not another rank's waiting; after each row it prints the row's samples.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, cast

from inaproto.errors import InaprotoError
from inaproto_hil.bench.comparison import turns
from inaproto_hil.bench.pattern import DTYPES, reference
from inaproto_hil.ranks.predictable import Pattern, differing

if TYPE_CHECKING:
    from inaproto.wire.control_messages import PathAsked


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What all ranks do; ``rows`` are pairs of dtype and element count."""

    job: str
    ranks: int
    op: str
    rows: list[tuple[str, int]]
    warmup: int
    iterations: int
    timeout_s: float
    paths: list[str] = field(default_factory=lambda: ["auto"])
    """Each is asked for by a job of its own; their operations take turns."""
    queued: int = 1
    """All-reduces that a rank calls before it waits for the first of them; times are of one."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> WorkerPlan:
        fields = json.loads(text)
        fields["rows"] = [(str(dtype), int(count)) for dtype, count in fields["rows"]]
        return cls(**fields)


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _barrier(row: int, iteration: int, path: str) -> None:
    _say(at=[row, iteration, path])
    if not sys.stdin.readline():
        sys.exit("the benchmark that started this rank is gone")


@dataclass(slots=True)
class _Results:
    """Results of one row on one path."""

    samples_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    wrong: int = 0
    wrong_example: str = ""
    paths: list[str] = field(default_factory=list)
    """Paths by which its operations were summed, each once."""


def run(plan: WorkerPlan, rank: int, sockets: list[str]) -> None:
    import inaproto

    communicators = {
        path: inaproto.connect_blocking(
            plan.job if len(plan.paths) == 1 else f"{plan.job}-{path}",
            rank,
            size=plan.ranks,
            socket=sockets,
            timeout=plan.timeout_s,
            path=cast("PathAsked", path),
        )
        for path in plan.paths
    }
    for row, (dtype_name, count) in enumerate(plan.rows):
        dtype = DTYPES[dtype_name]
        pattern = Pattern(count=count, ranks=plan.ranks)
        done = {path: _Results() for path in plan.paths}
        for iteration in range(-plan.warmup, plan.iterations):
            inputs = [
                pattern.values(rank=other, iteration=iteration).astype(dtype) for other in range(plan.ranks)
            ]
            expected = reference(inputs, plan.op)
            for path in turns(plan.paths, iteration):
                results, communicator = done[path], communicators[path]
                _barrier(row, iteration, path)
                cpu_before = time.process_time()
                called = time.perf_counter()
                works = [communicator.all_reduce(inputs[rank], op=plan.op) for _ in range(plan.queued)]
                reduced = [work.wait(plan.timeout_s) for work in works]
                ended = time.perf_counter()
                if iteration >= 0:
                    results.samples_s.append((ended - called) / plan.queued)
                    results.cpu_s += (time.process_time() - cpu_before) / plan.queued
                for result in reduced:
                    bad, words = differing(result, expected)
                    results.wrong += bad
                    where = f"rank {rank}, iteration {iteration}, path {path}"
                    results.wrong_example = results.wrong_example or (words and f"{where}: {words}")
                summed_by = communicator.statistics().recent[-1].path
                results.paths = sorted({*results.paths, summed_by})
        _say(row=row, done={path: asdict(results) for path, results in done.items()})
    for communicator in communicators.values():
        communicator.close()


def main() -> None:
    rank, sockets, plan = sys.argv[1:]
    try:
        run(WorkerPlan.decode(plan), int(rank), sockets.split(os.pathsep))
    except InaprotoError as error:
        sys.exit(f"rank {rank}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
