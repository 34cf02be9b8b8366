"""Communication time of one all-reduce by NetReduce's model (section 3.4 and appendix A, equations (1)-(6)).

Four algorithms: flat ring (FR), Tencent all-reduce (TA), parallel NetReduce (PN) and parallel rings (PR).
Every time is ``hops * alpha + bytes over intra-machine links + bytes over a machine's NIC``.

Pure arithmetic, in whatever numbers the caller brings (``float``, ``Fraction``, anything with ``+ - * /``);
nothing is converted to float here, and one integer over another is a ``Fraction``. Units are the caller's:
with seconds, bytes and bytes per second, times are seconds.

Departures: the first bracket of equation (2) is printed with a factor 1/n too much; ``tencent_stages`` has it
right, ``tencent_stage_1_as_printed`` as printed. The paper gives no equation for PR; ``parallel_ring`` is
ours: reduce-scatter and all-gather as in PN, and between them n rings of P/n machines, each with 1/n of the
tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import Final, Literal, NamedTuple

Number = Fraction | float


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the times depend on beside the size: Table 4 of the paper.

    Raises ``ValueError`` unless ``per_machine`` is a power of two, ``gpus`` a larger multiple of it,
    bandwidths are positive and ``alpha`` is not negative.
    """

    gpus: int
    """P: GPUs of the job, at least two machines of them."""
    per_machine: int
    """n: GPUs of a machine."""
    alpha: Number
    """Latency of a hop."""
    intra: Number
    """B_intra: bandwidth between GPUs of a machine."""
    inter: Number
    """B_inter: bandwidth of a machine's NIC."""

    def __post_init__(self) -> None:
        _check_counts(self.gpus, self.per_machine)
        if not self.intra > 0 or not self.inter > 0:
            raise ValueError(f"bandwidths must be positive, not intra {self.intra} and inter {self.inter}")
        if not self.alpha >= 0:
            raise ValueError(f"alpha must not be negative, but is {self.alpha}")

    @property
    def machines(self) -> int:
        return self.gpus // self.per_machine

    @property
    def lg(self) -> int:
        """log2 of ``per_machine``."""
        return self.per_machine.bit_length() - 1


@dataclass(frozen=True, slots=True)
class Stage:
    """One addend of a time."""

    label: str
    latency: Number
    transfer: Number

    @property
    def time(self) -> Number:
        return self.latency + self.transfer


class Difference(NamedTuple):
    """``alpha_coefficient * alpha + size_coefficient * M``, the time of one algorithm less another's."""

    alpha_coefficient: Number
    size_coefficient: Number


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes at which one algorithm is strictly faster than another: at every one, at none, or those
    below or above the crossover ``size``."""

    when: Literal["always", "never", "below", "above"]
    size: Number | None = None


def flat_ring(cluster: Cluster, size: Number) -> Number:
    """FR, equation (1): one ring of all GPUs, at the pace of the NICs."""
    return total(flat_ring_stages(cluster, size))


def tencent(cluster: Cluster, size: Number) -> Number:
    """TA, the closed form of equation (2)."""
    _check_size(size)
    n, gpus = cluster.per_machine, cluster.gpus
    hops = 2 * cluster.machines + 3 * cluster.lg + n - 3
    return (
        hops * cluster.alpha
        + _over(4 * (n - 1) * size, n * cluster.intra)
        + _over(2 * (gpus - n) * size, gpus * cluster.inter)
    )


def parallel_netreduce(cluster: Cluster, size: Number) -> Number:
    """PN, the closed form of equation (3)."""
    _check_size(size)
    n = cluster.per_machine
    return (
        (2 * n - 1) * cluster.alpha
        + _over(2 * (n - 1) * size, n * cluster.intra)
        + _over(size, cluster.inter)
    )


def parallel_ring(cluster: Cluster, size: Number) -> Number:
    """PR: PN with rings of machines in place of the sum in the network. Not an equation of the paper."""
    return total(parallel_ring_stages(cluster, size))


def flat_ring_stages(cluster: Cluster, size: Number) -> list[Stage]:
    _check_size(size)
    steps = cluster.gpus - 1
    transfer = _over(steps * size, cluster.gpus * cluster.inter)
    return [
        Stage("reduce-scatter round the ring", steps * cluster.alpha, transfer),
        Stage("all-gather round the ring", steps * cluster.alpha, transfer),
    ]


def tencent_stages(cluster: Cluster, size: Number) -> list[Stage]:
    """The brackets of equation (2), the first one corrected: they add up to the closed form."""
    _check_size(size)
    n = cluster.per_machine
    inside = _over(2 * (n - 1) * size, n * cluster.intra)
    return [
        Stage("reduce to the master (Rabenseifner)", 2 * cluster.lg * cluster.alpha, inside),
        _ring_of_machines("ring of the masters", cluster, size),
        Stage("broadcast (van de Geijn)", (cluster.lg + n - 1) * cluster.alpha, inside),
    ]


def tencent_stage_1_as_printed(cluster: Cluster, size: Number) -> Stage:
    """The first bracket of equation (2) as the paper prints it: its transfer is n times too small."""
    _check_size(size)
    n = cluster.per_machine
    return Stage(
        "reduce to the master, as printed",
        2 * cluster.lg * cluster.alpha,
        _over(2 * (n - 1) * size, n * n * cluster.intra),
    )


def parallel_netreduce_stages(cluster: Cluster, size: Number) -> list[Stage]:
    """The brackets of equation (3)."""
    _check_size(size)
    return [
        _inside("reduce-scatter in the machine", cluster, size),
        Stage("sum in the network", cluster.alpha, _over(size, cluster.inter)),
        _inside("all-gather in the machine", cluster, size),
    ]


def parallel_ring_stages(cluster: Cluster, size: Number) -> list[Stage]:
    _check_size(size)
    return [
        _inside("reduce-scatter in the machine", cluster, size),
        _ring_of_machines("a ring for each local rank", cluster, size),
        _inside("all-gather in the machine", cluster, size),
    ]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One of the four, with where its formula comes from."""

    name: str
    title: str
    source: str
    time: Callable[[Cluster, Number], Number]
    stages: Callable[[Cluster, Number], list[Stage]]


ALGORITHMS: Final = (
    Algorithm("FR", "flat ring", "equation (1)", flat_ring, flat_ring_stages),
    Algorithm("TA", "Tencent all-reduce", "equation (2), first bracket corrected", tencent, tencent_stages),
    Algorithm("PN", "parallel NetReduce", "equation (3)", parallel_netreduce, parallel_netreduce_stages),
    Algorithm("PR", "parallel rings", "ours, the paper has none", parallel_ring, parallel_ring_stages),
)


def tencent_less_netreduce(cluster: Cluster) -> Difference:
    """T_ta - T_pn, equation (4)."""
    n, gpus, intra, inter = cluster.per_machine, cluster.gpus, cluster.intra, cluster.inter
    return Difference(
        2 * cluster.machines + 3 * cluster.lg - n - 2,
        _over((gpus - 2 * n) * n * intra + 2 * (n - 1) * gpus * inter, n * gpus * intra * inter),
    )


def flat_ring_less_netreduce(cluster: Cluster) -> Difference:
    """T_fr - T_pn, equation (5)."""
    n, gpus, intra, inter = cluster.per_machine, cluster.gpus, cluster.intra, cluster.inter
    return Difference(
        2 * gpus - 2 * n - 1,
        _over((gpus - 2) * n * intra - 2 * (n - 1) * gpus * inter, n * gpus * intra * inter),
    )


def flat_ring_less_tencent(cluster: Cluster) -> Difference:
    """T_fr - T_ta, from equations (1) and (2)."""
    n, gpus, intra, inter = cluster.per_machine, cluster.gpus, cluster.intra, cluster.inter
    return Difference(
        2 * gpus + 1 - 2 * cluster.machines - 3 * cluster.lg - n,
        _over(2 * (n - 1) * (n * intra - 2 * gpus * inter), n * gpus * intra * inter),
    )


def threshold(gpus: int, per_machine: int) -> Fraction:
    """The least B_intra/B_inter with which PN is no slower than FR at any size: (5) solved exactly."""
    _check_counts(gpus, per_machine)
    if per_machine == 1:
        return Fraction(0)
    return Fraction(2 * (per_machine - 1) * gpus, (gpus - 2) * per_machine)


def relaxed_threshold(gpus: int, per_machine: int) -> Fraction:
    """Equation (6), which the paper states for n >= 2: sufficient, and larger than ``threshold``."""
    _check_counts(gpus, per_machine)
    if per_machine == 1:
        raise ValueError("equation (6) is stated for at least 2 GPUs per machine, not 1")
    return Fraction(2 * gpus, gpus - 2)


def netreduce_beats_flat_ring(cluster: Cluster) -> Sizes:
    """The sizes at which PN is faster than FR."""
    return _positive(flat_ring_less_netreduce(cluster), cluster.alpha)


def netreduce_beats_tencent(cluster: Cluster) -> Sizes:
    """The sizes at which PN is faster than TA."""
    return _positive(tencent_less_netreduce(cluster), cluster.alpha)


def tencent_beats_flat_ring(cluster: Cluster) -> Sizes:
    """The sizes at which TA is faster than FR."""
    return _positive(flat_ring_less_tencent(cluster), cluster.alpha)


def total(stages: list[Stage]) -> Number:
    return reduce(add, (stage.time for stage in stages))


def _positive(difference: Difference, alpha: Number) -> Sizes:
    """The sizes M > 0 at which the difference is positive."""
    constant, slope = difference.alpha_coefficient * alpha, difference.size_coefficient
    if constant > 0 > slope:
        return Sizes("below", -_over(constant, slope))
    if slope > 0 > constant:
        return Sizes("above", -_over(constant, slope))
    return Sizes("always" if constant > 0 or slope > 0 else "never")


def _inside(label: str, cluster: Cluster, size: Number) -> Stage:
    n = cluster.per_machine
    return Stage(label, (n - 1) * cluster.alpha, _over((n - 1) * size, n * cluster.intra))


def _ring_of_machines(label: str, cluster: Cluster, size: Number) -> Stage:
    machines = cluster.machines
    steps = machines - 1
    return Stage(label, 2 * steps * cluster.alpha, _over(2 * steps * size, machines * cluster.inter))


def _over(dividend: Number, divisor: Number) -> Number:
    if isinstance(dividend, int) and isinstance(divisor, int):
        return Fraction(dividend, divisor)
    return dividend / divisor


def _check_counts(gpus: int, per_machine: int) -> None:
    if per_machine < 1 or per_machine & (per_machine - 1):
        raise ValueError(f"GPUs per machine must be a power of two, not {per_machine}")
    if gpus <= per_machine or gpus % per_machine:
        raise ValueError(f"GPUs must be a multiple of {per_machine} and more than that, not {gpus}")


def _check_size(size: Number) -> None:
    if not size >= 0:
        raise ValueError(f"the size must not be negative, but is {size}")
