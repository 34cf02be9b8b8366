"""One rank of ``inaproto bench allreduce``: sends predictable data, times operations, checks them.

Started by the benchmark with its plan as one JSON argument. Before each operation it prints
``{"at": ...}`` and waits for a line on stdin, so that all ranks begin together and one rank's checking
is not another rank's waiting; after each row it prints the row's samples.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inaproto.errors import InaprotoError
from inaproto_hil.bench.pattern import DTYPES, Pattern, reference

if TYPE_CHECKING:
    from numpy.typing import NDArray


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

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> WorkerPlan:
        fields = json.loads(text)
        fields["rows"] = [(str(dtype), int(count)) for dtype, count in fields["rows"]]
        return cls(**fields)


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _barrier(row: int, iteration: int) -> None:
    _say(at=[row, iteration])
    if not sys.stdin.readline():
        sys.exit("the benchmark that started this rank is gone")


def differing(result: NDArray[Any], expected: NDArray[Any]) -> tuple[int, str]:
    """How many elements differ, and the first of them in words."""
    if result.dtype != expected.dtype or result.shape != expected.shape:
        shapes = f"{result.dtype}{result.shape}, expected {expected.dtype}{expected.shape}"
        return expected.size, f"the result is {shapes}"
    where = np.flatnonzero(result != expected)
    if not len(where):
        return 0, ""
    first = int(where[0])
    return len(where), f"element {first} is {result[first]}, expected {expected[first]}"


def run(plan: WorkerPlan, rank: int, socket: str) -> None:
    import inaproto

    communicator = inaproto.connect_blocking(
        plan.job, rank, size=plan.ranks, socket=socket, timeout=plan.timeout_s
    )
    for row, (dtype_name, count) in enumerate(plan.rows):
        dtype = DTYPES[dtype_name]
        pattern = Pattern(count=count, ranks=plan.ranks)
        samples, cpu_s, wrong, example = [], 0.0, 0, ""
        for iteration in range(-plan.warmup, plan.iterations):
            mine = pattern.values(rank=rank, iteration=iteration).astype(dtype)
            _barrier(row, iteration)
            cpu_before = time.process_time()
            called = time.perf_counter()
            result = communicator.all_reduce(mine, op=plan.op).wait(plan.timeout_s)
            ended = time.perf_counter()
            if iteration >= 0:
                samples.append(ended - called)
                cpu_s += time.process_time() - cpu_before
            inputs = [
                pattern.values(rank=other, iteration=iteration).astype(dtype) for other in range(plan.ranks)
            ]
            bad, words = differing(result, reference(inputs, plan.op))
            wrong += bad
            example = example or (words and f"rank {rank}, iteration {iteration}: {words}")
        _say(row=row, samples_s=samples, cpu_s=cpu_s, wrong=wrong, wrong_example=example)
    communicator.close()


def main() -> None:
    rank, socket, plan = sys.argv[1:]
    try:
        run(WorkerPlan.decode(plan), int(rank), socket)
    except InaprotoError as error:
        sys.exit(f"rank {rank}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
