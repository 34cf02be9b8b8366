"""What the acts of the demo share: how a run is staged, and what its outcomes say."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples.digits.display import Display, make_display
from inaproto_hil.cluster import ClusterError, signals_as_interrupt

TRAIN = Path(__file__).with_name("train.py")
EXTRA_ELEMENTS = 2
"""Loss and right answers ride along with the gradient (``model.EXTRA``)."""
FAILED, INTERRUPTED = 1, 130


@contextmanager
def on_stage(act: str) -> Iterator[Display]:
    """The display of a run. A run that fails or is interrupted ends the program, and says so."""
    try:
        with signals_as_interrupt(), make_display() as display:
            yield display
    except ClusterError as error:
        print(f"{act}: failed: {error}", file=sys.stderr)
        sys.exit(FAILED)
    except KeyboardInterrupt:
        print(f"{act}: interrupted; all its processes are ended", file=sys.stderr)
        sys.exit(INTERRUPTED)


def first_difference(ranks: Sequence[dict[str, Any]], reference: dict[str, Any]) -> int | None:
    """The first epoch (from 0) after which some rank's weights were not the reference's."""
    for epoch, expected in enumerate(reference["digests"]):
        if any(rank["digests"][epoch] != expected for rank in ranks):
            return epoch
    return None


def slowest_s(ranks: Sequence[dict[str, Any]]) -> list[float]:
    """For each step, the all-reduce of the rank that waited longest."""
    by_rank = ([step["sum_s"] for step in rank["steps"]] for rank in ranks)
    return [max(step) for step in zip(*by_rank, strict=True)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def two_digits(share: float) -> str:
    """Cut, not rounded: a summary must not promise more than was reached."""
    return f"{math.floor(share * 100) / 100:.2f}"


def digests(ranks: Sequence[dict[str, Any]], reference: dict[str, Any]) -> dict[str, str]:
    """Of the last weights, as ``summary.json`` has them."""
    by_rank = {f"rank{rank}": outcome["digest"] for rank, outcome in enumerate(ranks)}
    return {"one_process": reference["digest"], **by_rank}
