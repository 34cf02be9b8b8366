"""What sums in the network saved against hosts that sum in a ring: by the cost model, and as it was measured.

**By the cost model** (NetReduce section 3.4, one GPU for each machine): a flat ring of the job's hosts,
equation (1), against a sum in the network, equation (3). Adding up inside a host costs the same on every
path, and is in neither. Both are linear in bytes, so a path is told by its operations and bytes.

**Measured**: all-reduces of one size that the network summed, against those of the same size, job and host
that the hosts summed. Sizes of which a job has had only one of both say nothing, and are left out. How long
an all-reduce took counts from when the one before it had ended. The uncertainty is that of a difference of
means (95 %), of the mean host: hosts wait for each other, so more of them are no more samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean
from typing import Any, Final

from inaproto_controller.cost_model.netreduce import Cluster, Number, flat_ring, parallel_netreduce
from inaproto_controller.report.records import FAST, HostRecord, Ring, Status

GBIT: Final = 1e9
ASSUMED_GBIT: Final = 100.0
ASSUMED_HOP_US: Final = 1.0
_CONFIDENCE: Final = 1.96
_LEAST: Final = 2
"""All-reduces of a size that each side must have."""
_OTHER_SIZES: Final = -1


@dataclass(frozen=True, slots=True)
class Links:
    bytes_per_s: float
    hop_s: float
    rate_source: str
    """``given``, ``measured`` between the job's hosts, or ``assumed``."""
    hop_source: str

    @property
    def source(self) -> str:
        """Of both figures; ``mixed`` where they are not of one."""
        return self.rate_source if self.rate_source == self.hop_source else "mixed"

    def __str__(self) -> str:
        rate, hop = f"{self.bytes_per_s * 8 / GBIT:.4g} Gbit/s", f"{self.hop_s * 1e6:.4g} us a hop"
        if self.rate_source == self.hop_source:
            return f"{rate} and {hop}, {self.rate_source}"
        return f"{rate}, {self.rate_source}, and {hop}, {self.hop_source}"


def links_of(
    rings: Sequence[Ring], switches: Iterable[Status], *, gbit: float | None, hop_us: float | None
) -> Links:
    """Each figure as it was given; else the worst that was measured between hosts of the job; else
    assumed."""
    hosts = {one.host for ring in rings for one in ring.hosts}
    measured = [
        one
        for switch in switches
        for one in switch.get("host_links", {}).get("measured", ())
        if hosts.issuperset(one["hosts"])
    ]
    rate, hop = (ASSUMED_GBIT * GBIT / 8, "assumed"), (ASSUMED_HOP_US / 1e6, "assumed")
    if measured:
        rate = min(one["rate_bps"] for one in measured) / 8, "measured"
        hop = max(one["latency_ns"] for one in measured) / 1e9, "measured"
    if gbit is not None:
        rate = gbit * GBIT / 8, "given"
    if hop_us is not None:
        hop = hop_us / 1e6, "given"
    return Links(rate[0], hop[0], rate[1], hop[1])


# -- by the cost model


def modelled(ring: Ring, links: Links) -> dict[str, dict[str, float] | None]:
    """By path: seconds that a ring of the hosts takes, and the network; None for a job of one host."""
    first = ring.first
    operations, nbytes = first.by_path("operations"), first.by_path("bytes")
    return {
        path: _seconds(ring.size, int(count), int(nbytes[path]), links) for path, count in operations.items()
    }


def _seconds(hosts: int, operations: int, nbytes: int, links: Links) -> dict[str, float] | None:
    if hosts < 2 or not operations:
        return None
    rate = Fraction(links.bytes_per_s)
    cluster = Cluster(hosts, 1, Fraction(links.hop_s), rate, rate)
    size: Number = Fraction(nbytes, operations)
    return {
        "ring_s": float(operations * flat_ring(cluster, size)),
        "network_s": float(operations * parallel_netreduce(cluster, size)),
    }


# -- measured


@dataclass(frozen=True, slots=True)
class _Sample:
    operations: int
    nbytes: int
    busy_s: float
    squared: float

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> _Sample:
        told = list(rows)
        return cls(
            sum(row["operations"] for row in told),
            sum(row["bytes"] for row in told),
            sum(row["busy_s"] for row in told),
            sum(row["busy_s_squared"] for row in told),
        )

    @property
    def mean(self) -> float:
        return self.busy_s / self.operations

    @property
    def error_squared(self) -> float:
        """Square of the standard error of the mean."""
        spread = max(0.0, self.squared - self.busy_s * self.mean) / (self.operations - 1)
        return spread / self.operations


def measured(ring: Ring) -> dict[str, Any] | None:
    """None: no size was summed both in the network and by hosts."""
    found = [one for one in map(_measured_on, ring.hosts) if one is not None]
    if not found:
        return None
    sizes = found[0]["sizes"] if len(found) == 1 else _mean_sizes(found)
    return {
        "saved_s": fmean(one["saved_s"] for one in found),
        "saved_s_95": fmean(one["saved_s_95"] for one in found),
        "network_s": fmean(one["network_s"] for one in found),
        "missed_s": fmean(one["missed_s"] for one in found),
        "bytes_compared": max(one["bytes_compared"] for one in found),
        "hosts": len(found),
        "against": sorted({path for one in found for path in one["against"]}),
        "sizes": sizes,
    }


def _measured_on(host: HostRecord) -> dict[str, Any] | None:
    sizes: list[dict[str, Any]] = []
    against: set[str] = set()
    saved = missed = network = error = 0.0
    compared = 0
    for nbytes in sorted({row["size"] for row in host.rows} - {_OTHER_SIZES}):
        rows = [row for row in host.rows if row["size"] == nbytes and row["path"] != "local"]
        by_hosts = [row for row in rows if row["path"] not in FAST]
        fast, slow = _Sample.of(row for row in rows if row["path"] in FAST), _Sample.of(by_hosts)
        if fast.operations < _LEAST or slow.operations < _LEAST:
            continue
        against |= {row["path"] for row in by_hosts}
        saved += fast.operations * (slow.mean - fast.mean)
        missed += slow.operations * (slow.mean - fast.mean)
        error += fast.operations**2 * (fast.error_squared + slow.error_squared)
        network += fast.busy_s
        compared += fast.nbytes
        sizes.append(
            {
                "size": nbytes,
                "network_operations": fast.operations,
                "network_mean_s": fast.mean,
                "hosts_operations": slow.operations,
                "hosts_mean_s": slow.mean,
            }
        )
    if not sizes:
        return None
    return {
        "saved_s": saved,
        "saved_s_95": _CONFIDENCE * math.sqrt(error),
        "missed_s": missed,
        "network_s": network,
        "bytes_compared": compared,
        "against": against,
        "sizes": sizes,
    }


def _mean_sizes(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each size that all hosts could compare: counts of the first host, times of the mean host."""
    others = [{row["size"]: row for row in one["sizes"]} for one in found]
    return [
        row
        | {key: fmean(one[row["size"]][key] for one in others) for key in ("network_mean_s", "hosts_mean_s")}
        for row in found[0]["sizes"]
        if all(row["size"] in one for one in others)
    ]
