"""What the acts of the demo share: how a run is staged, and what its outcomes say."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from examples.digits.display import Display, make_display
from examples.digits.watch import WireSample
from inaproto_hil.rigs.cluster import ClusterError, signals_as_interrupt

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


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Files in which the ranks, and the process that trains alone, leave what ``train.py`` writes."""

    ranks: Sequence[Path]
    reference: Path

    @staticmethod
    def prepared(folder: Path, ranks: int) -> Outcomes:
        """Those of an earlier run are gone."""
        made = Outcomes([folder / f"rank{rank}.json" for rank in range(ranks)], folder / "reference.json")
        for path in (*made.ranks, made.reference):
            path.unlink(missing_ok=True)
        return made

    def read(self) -> dict[str, Any]:
        """The fields of ``Trained`` that are in them."""
        return {
            "ranks": [json.loads(path.read_text()) for path in self.ranks],
            "reference": json.loads(self.reference.read_text()),
            "weights": [path.with_suffix(".weights").read_bytes() for path in self.ranks],
            "reference_weights": self.reference.with_suffix(".weights").read_bytes(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What the processes left behind, and what was seen of the wire."""

    ranks: list[dict[str, Any]]
    reference: dict[str, Any]
    weights: list[bytes]
    reference_weights: bytes
    wire: list[WireSample]

    @property
    def identical(self) -> bool:
        """Whether the weights of every rank are the reference's, byte for byte."""
        return all(weights == self.reference_weights for weights in self.weights)

    @property
    def first_different_epoch(self) -> int | None:
        """The first epoch (from 0) after which some rank's weights were not the reference's."""
        for epoch, expected in enumerate(self.reference["digests"]):
            if any(rank["digests"][epoch] != expected for rank in self.ranks):
                return epoch
        return None

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` says in every act: measured values only."""
        first, wire = self.ranks[0], asdict(self.wire[-1])
        del wire["at_s"]
        return {
            "identical": self.identical,
            "first_different_epoch": self.first_different_epoch,
            "accuracy": first["accuracy"][-1],
            "reference_accuracy": self.reference["accuracy"][-1],
            "parameters": first["parameters"],
            "allreduces": len(first["steps"]),
            "allreduce_bytes": 4 * (first["parameters"] + EXTRA_ELEMENTS),
            **wire,
            "weights_sha256": {
                "one_process": self.reference["digest"],
                **{f"rank{rank}": outcome["digest"] for rank, outcome in enumerate(self.ranks)},
            },
        }


def weights_differ(summary: Mapping[str, Any]) -> list[str]:
    """What is wrong with the weights of a run; empty when nothing is."""
    if summary["identical"]:
        return []
    where = summary["first_different_epoch"]
    return [f"the weights differ from those of one process, first after epoch {where}"]


def slowest_s(ranks: Sequence[dict[str, Any]]) -> list[float]:
    """For each step, the all-reduce of the rank that waited longest."""
    by_rank = ([step["sum_s"] for step in rank["steps"]] for rank in ranks)
    return [max(step) for step in zip(*by_rank, strict=True)]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: a value that was measured."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def two_digits(share: float) -> str:
    """Rounded, as pictures have it; 1 is only what is 1: a summary must not promise more than that."""
    return "0.99" if 0.995 <= share < 1 else f"{share:.2f}"
