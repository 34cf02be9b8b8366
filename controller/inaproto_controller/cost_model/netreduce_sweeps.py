"""The reference sweeps of NetReduce's Figure 7, its thresholds and crossovers, and where its text and its
equations disagree. All values are exact: fractions of bytes, seconds and bytes per second.

The paper does not say for which M it drew Figure 7; here it is 100 MB, the size its text speaks of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from inaproto_controller.cost_model import netreduce as model
from inaproto_controller.cost_model.netreduce import Cluster, Number, Sizes

GB: Final = 10**9
MB: Final = 10**6
US: Final = Fraction(1, 10**6)
MS: Final = Fraction(1, 1000)

SIZE: Final = Fraction(100 * MB)
PER_MACHINE: Final = 8
INTER: Final = Fraction(25, 2) * GB
PCIE_3_X16: Final = Fraction(63, 4) * GB


@dataclass(frozen=True, slots=True)
class Row:
    """The times of all algorithms, by name, at one point of a sweep."""

    value: Fraction
    """In the sweep's unit."""
    cluster: Cluster
    seconds: Mapping[str, Number]

    @property
    def fastest(self) -> str:
        return min(self.seconds, key=lambda name: self.seconds[name])


@dataclass(frozen=True, slots=True)
class Sweep:
    """One panel of Figure 7."""

    panel: str
    varied: str
    unit: str
    fixed: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A place where the paper's text does not follow from its equations, and what does."""

    key: str
    where: str
    printed: str
    holds: str
    figures: Mapping[str, Number] = field(default_factory=dict)


def cluster_at(
    *, gpus: int = 32, intra: Number = 50 * GB, alpha: Number = US, per_machine: int = PER_MACHINE
) -> Cluster:
    """The paper's cluster: 8 GPUs per machine, 100 Gbit/s between machines."""
    return Cluster(gpus, per_machine, alpha, intra, INTER)


def sweeps() -> tuple[Sweep, ...]:
    """Panels A, B and C."""
    intra = [Fraction(63, 4), *map(Fraction, (25, 32, 50, 75, 100, 150))]
    gpus = [32, 64, 128, 256, 512, 1024]
    alpha = [Fraction(1, 10), *map(Fraction, (1, 10, 100))]
    return (
        Sweep(
            "A",
            "B_intra",
            "GB/s",
            "P = 32, alpha = 1 us",
            tuple(_row(value, cluster_at(intra=value * GB)) for value in intra),
        ),
        Sweep(
            "B",
            "P",
            "GPUs",
            "B_intra = 50 GB/s, alpha = 1 us",
            tuple(_row(Fraction(value), cluster_at(gpus=value)) for value in gpus),
        ),
        Sweep(
            "C",
            "alpha",
            "us",
            "P = 128, B_intra = 50 GB/s",
            tuple(_row(value, cluster_at(gpus=128, alpha=value * US)) for value in alpha),
        ),
    )


def thresholds() -> Iterator[tuple[int, Fraction, Fraction]]:
    """P, and the exact and the relaxed B_intra/B_inter above which PN beats FR at every size."""
    for gpus in (32, 64, 128, 256, 1024):
        yield gpus, model.threshold(gpus, PER_MACHINE), model.relaxed_threshold(gpus, PER_MACHINE)


def netreduce_crossovers() -> Iterator[tuple[Cluster, Sizes]]:
    """Clusters below the threshold, and the sizes at which PN beats FR there."""
    for gpus, alpha in ((32, US), (32, 10 * US), (1024, US)):
        cluster = cluster_at(gpus=gpus, alpha=alpha, intra=PCIE_3_X16)
        yield cluster, model.netreduce_beats_flat_ring(cluster)


def tencent_crossovers() -> Iterator[tuple[Cluster, Sizes]]:
    """Clusters, and the sizes at which TA beats FR there."""
    for gpus, intra in ((32, 50), (128, 50), (128, 100), (1024, 50), (32, 100), (32, 150)):
        cluster = cluster_at(gpus=gpus, intra=intra * GB)
        yield cluster, model.tencent_beats_flat_ring(cluster)


def contradictions() -> tuple[Contradiction, ...]:
    here = cluster_at()
    pcie = cluster_at(intra=PCIE_3_X16)
    wide = cluster_at(gpus=128, per_machine=32)
    right = model.tencent_stages(here, SIZE)[0].time
    printed = model.tencent_stage_1_as_printed(here, SIZE).time
    exact = {gpus: ratio for gpus, ratio, _ in thresholds()}
    return (
        Contradiction(
            "first-bracket-of-ta",
            "equation (2), first bracket",
            "2 (n-1)/n * M/(n B_intra)",
            "2 (n-1)/n * M/B_intra: only so do the brackets add up to the closed form, and to (4)",
            {
                "stage_1_ms_printed": printed / MS,
                "stage_1_ms_corrected": right / MS,
                "gap_ms": (right - printed) / MS,
            },
        ),
        Contradiction(
            "condition-6-by-numbers",
            "section 5, condition (6) at P = 32, n = 8",
            "B_intra/B_inter >= 2.3",
            "(6) gives 32/15 = 2.1333; the condition that (5) itself gives is 28/15 = 1.8667",
            {
                "printed": Fraction(23, 10),
                "relaxed": model.relaxed_threshold(32, 8),
                "exact": model.threshold(32, 8),
            },
        ),
        Contradiction(
            "pn-always-best",
            "section 3.4, on Figure 7",
            "with B_intra larger than 15.75 GB/s, PN always outperforms FR and TA",
            "PN is behind FR below the exact threshold once M exceeds the crossover; above it, it is first",
            {
                "fr_ms_at_15.75": model.flat_ring(pcie, SIZE) / MS,
                "pn_ms_at_15.75": model.parallel_netreduce(pcie, SIZE) / MS,
                "threshold_gb_per_s_p_32": exact[32] * INTER / GB,
                "threshold_gb_per_s_p_1024": exact[1024] * INTER / GB,
            },
        ),
        Contradiction(
            "independent-of-alpha",
            "section 3.4, on Figures 7B and 7C",
            "NetReduce's time does not vary with P and alpha; reduce-scatter and all-gather are one hop",
            "equation (3) does not depend on P, but charges (2n-1) alpha",
            {"alpha_coefficient_n_8": 2 * PER_MACHINE - 1},
        ),
        Contradiction(
            "p-above-3n",
            "appendix A, on equation (4)",
            "when P > 3n, (4) is always larger than 0, as n is usually no larger than 16",
            "M's part is never negative; alpha's is at n = 32, P = 128, and is not at n = 8 from P = 2n on",
            {
                "alpha_coefficient_n_32_p_128": model.tencent_less_netreduce(wide).alpha_coefficient,
                "alpha_coefficient_n_8_p_16": model.tencent_less_netreduce(
                    cluster_at(gpus=16)
                ).alpha_coefficient,
            },
        ),
        Contradiction(
            "size-of-figure-7",
            "Figure 7",
            "M is not given, nor are the values of the curves",
            "the sweeps here are for M = 100 MB; the curves cannot be compared point by point",
            {"size_bytes": SIZE},
        ),
        Contradiction(
            "bandwidth-of-nvlink",
            "section 3.4 and appendix A",
            "NVLink makes B_intra 150 GB/s in one place, at least 100 GB/s in the other",
            "both are in sweep A",
            {"section_3_4_gb_per_s": 150, "appendix_a_gb_per_s": 100},
        ),
    )


def _row(value: Fraction, cluster: Cluster) -> Row:
    times = {algorithm.name: algorithm.time(cluster, SIZE) for algorithm in model.ALGORITHMS}
    return Row(value, cluster, times)
