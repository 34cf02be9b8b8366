"""Metrics by Prometheus' conventions, collected one after the other: ``inaproto_*``, base units, ``_total``.

Invariant: no label has more than ``LABELS_MAX`` values, and none is a name that users give (of jobs, hosts,
pools): a daemon that runs for years makes no more series than one that was started just now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, islice
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

PREFIX: Final = "inaproto"
LABELS_MAX: Final = 64
OTHERS: Final = "others"


def few(counts: Mapping[str, float]) -> dict[str, float]:
    """Values by label; those past the first ``LABELS_MAX`` together."""
    found = dict(islice(counts.items(), LABELS_MAX))
    rest = sum(islice(counts.values(), LABELS_MAX, None))
    if len(counts) > LABELS_MAX:
        found[OTHERS] = found.get(OTHERS, 0) + rest
    return found


class Families:
    """Families of one daemon; ``daemon`` is part of the names of what only it has."""

    def __init__(self) -> None:
        self.made: list[Metric] = []

    def gauge(self, name: str, what: str, value: float) -> None:
        self.made.append(GaugeMetricFamily(f"{PREFIX}_{name}", what, value=value))

    def counter(self, name: str, what: str, value: float) -> None:
        """``name`` without ``_total``, which is added."""
        self.made.append(CounterMetricFamily(f"{PREFIX}_{name}", what, value=value))

    def gauges(self, name: str, what: str, label: str, values: Mapping[str, float]) -> None:
        family = GaugeMetricFamily(f"{PREFIX}_{name}", what, labels=[label])
        for value, count in few(values).items():
            family.add_metric([value], count)
        self.made.append(family)

    def counters(self, name: str, what: str, label: str, values: Mapping[str, float]) -> None:
        family = CounterMetricFamily(f"{PREFIX}_{name}", what, labels=[label])
        for value, count in few(values).items():
            family.add_metric([value], count)
        self.made.append(family)

    def table(
        self, name: str, what: str, labels: tuple[str, str], values: Mapping[tuple[str, str], float]
    ) -> None:
        """Gauges of two labels, both of few values that the code names."""
        family = GaugeMetricFamily(f"{PREFIX}_{name}", what, labels=labels)
        for pair, count in values.items():
            family.add_metric(pair, count)
        self.made.append(family)

    def histogram(self, name: str, what: str, buckets: Mapping[str, int], total: float) -> None:
        """``buckets``: counts by upper bound, ascending, of that bucket alone; the last one is ``inf``."""
        sums = accumulate(buckets.values())
        named = [
            ("+Inf" if bound == "inf" else bound, float(count))
            for bound, count in zip(buckets, sums, strict=True)
        ]
        self.made.append(HistogramMetricFamily(f"{PREFIX}_{name}", what, buckets=named, sum_value=total))

    def build(self, role: str, version: str) -> None:
        family = GaugeMetricFamily(
            f"{PREFIX}_build_info", "Which daemon this is.", labels=["role", "version"]
        )
        family.add_metric([role, version], 1)
        self.made.append(family)


def count_by(values: Iterable[str], known: Iterable[str]) -> dict[str, float]:
    """How often each of ``known`` is there, 0 included; the others together."""
    found: dict[str, float] = dict.fromkeys(known, 0)
    for value in values:
        name = value if value in found else OTHERS
        found[name] = found.get(name, 0) + 1
    return found
