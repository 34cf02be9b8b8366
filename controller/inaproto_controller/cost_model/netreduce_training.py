"""NetReduce's trained models (sections 5.3 and 5.4, Tables 7 and 9) beside what its equations give for them.

Testbed 2 of the paper: machines with 100 Gbit/s and GPUs joined by NVLink, for which section 5.4 has 150
GB/s; batches of 32, 16-bit floats. The paper does not give alpha, which is 1 us here and counts for little.
Sizes are those of Table 7, which belong to 32-bit gradients: what was sent is not said. Computation is Table
7's iteration less its communication: nothing overlaps there. Table 9 has none, so that of Table 7 is taken,
of the ring's row: the same GPU, batch and precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from inaproto_controller.cost_model.netreduce import ALGORITHMS, Cluster, Number
from inaproto_controller.cost_model.netreduce_sweeps import GB, INTER, MB, MS, US

BATCH: Final = 32
NVLINK: Final = 150 * GB
FOUR_GPUS: Final = Cluster(4, 1, US, INTER, INTER)
"""Table 7: one GPU in each machine, so PN is NetReduce itself, and FR the ring of the machines."""
ALL_GPUS: Final = Cluster(32, 8, US, NVLINK, INTER)
"""Table 9."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One model as the paper measured it; milliseconds, and images a second of one GPU."""

    name: str
    size_mb: int
    iteration: Mapping[str, Fraction]
    """Of Table 7, by algorithm."""
    communication: Mapping[str, Fraction]
    images: Mapping[str, Fraction]
    """Of Table 9, by algorithm."""

    @property
    def compute(self) -> Fraction:
        """Of one GPU, milliseconds."""
        return self.iteration["FR"] - self.communication["FR"]


def _row(name: str, size_mb: int, ring: str, netreduce: str, images: str) -> Trained:
    (ring_whole, ring_part), (whole, part) = (map(Fraction, text.split()) for text in (ring, netreduce))
    return Trained(
        name,
        size_mb,
        {"FR": ring_whole, "PN": whole},
        {"FR": ring_part, "PN": part},
        dict(zip(("FR", "TA", "PN"), map(Fraction, images.split()), strict=True)),
    )


TRAINED: Final = (
    _row("AlexNet", 236, "60.62 47.12", "44.69 31.10", "307.5 328.8 519.2"),
    _row("VGG16", 528, "185.08 111.98", "148.63 74.64", "115.2 122.2 173.6"),
    _row("ResNet50", 98, "89.19 23.04", "83.42 19.29", "276.0 282.8 317.6"),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One model by one algorithm; milliseconds. What the paper does not print is None."""

    model: Trained
    table: int
    algorithm: str
    communication: Number
    """By the equations."""
    printed_communication: Fraction | None
    iteration: Number
    """Printed computation and the communication of the equations."""
    printed_iteration: Fraction

    @property
    def gain_key(self) -> tuple[str, int]:
        return self.model.name, self.table


def compared() -> list[Compared]:
    """Table 7, then Table 9, model by model."""
    seconds = {algorithm.name: algorithm.time for algorithm in ALGORITHMS}
    found = []
    for model in TRAINED:
        for name, printed in model.iteration.items():
            time = seconds[name](FOUR_GPUS, Fraction(model.size_mb * MB)) / MS
            communication = model.communication[name]
            found.append(Compared(model, 7, name, time, communication, model.compute + time, printed))
    for model in TRAINED:
        for name, images in model.images.items():
            time = seconds[name](ALL_GPUS, Fraction(model.size_mb * MB)) / MS
            found.append(Compared(model, 9, name, time, None, model.compute + time, 1000 * BATCH / images))
    return found


def gains(rows: list[Compared]) -> dict[tuple[str, int, str], tuple[Number, Fraction]]:
    """How many times as long as with NetReduce an iteration takes, by the equations and as printed.

    By model, table and the other algorithm.
    """
    best = {row.gain_key: row for row in rows if row.algorithm == "PN"}
    return {
        (*row.gain_key, row.algorithm): (
            row.iteration / best[row.gain_key].iteration,
            row.printed_iteration / best[row.gain_key].printed_iteration,
        )
        for row in rows
        if row.algorithm != "PN"
    }
