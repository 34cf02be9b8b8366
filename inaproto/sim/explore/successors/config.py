"""Size and faults of an explored hand-over; see :mod:`inaproto.sim.explore.successors.world`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from inaproto.core.host.config import HostConfig
from inaproto.core.host.operations import Operation
from inaproto.errors import ConfigError
from inaproto.units import OpIndex, S
from inaproto.wire.ina_header import Dtype, Op, signature

PATHS: Final = ("chain", "auto")
RANGES: Final = {
    "first": (0, 4),
    "second": (0, 4),
    "window": (1, 2),
    "ahead": (0, 1),
    "beside": (0, 1),
    "crashes": (0, 2),
    "gone": (0, 1),
    "expiries": (0, 2),
}
JOB: Final = "train"
BOOT: Final = "boot"
RECOVER_NS: Final = 2 * S
FAR_NS: Final = 1 << 60
"""No clock comes there: a wait that has no other end lasts for ever."""
MTU: Final = 256
LAST_BYTES: Final = 16
"""Tensor bytes of the last message of an all-reduce; all others are full."""


@dataclass(frozen=True)
class SuccessorsConfig:
    path: str = "chain"
    """Or ``auto``: summed in a switch."""
    first: int = 1
    """Messages of the first all-reduce; 0: its tensor is empty."""
    second: int = 1
    """The same of the second; 0: there is none."""
    window: int = 1
    """Messages in flight."""
    ahead: int = 0
    """1: a rank calls the second all-reduce before the first has ended."""
    beside: int = 0
    """1: the first host has two ranks."""
    crashes: int = 1
    """Host daemons that die, a successor included."""
    gone: int = 0
    """How many of them have no successor."""
    expiries: int = 0
    """How often time passes until a wait of somebody ends, though something else could happen before."""
    reduced: bool = True
    """One journal stands for all that read alike, once each has been checked."""

    def __post_init__(self) -> None:
        if self.path not in PATHS:
            raise ConfigError(f"path {self.path!r} does not exist; there are {', '.join(PATHS)}")
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be {least} to {most}, not {getattr(self, name)}")
        if self.gone > self.crashes:
            raise ConfigError(f"gone must be at most crashes, {self.crashes}, not {self.gone}")
        if self.ahead and not self.second:
            raise ConfigError("ahead must be 0 where there is no second all-reduce")

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """Those of each host."""
        return ((0, 1), (2,)) if self.beside else ((0,), (1,))

    @property
    def size(self) -> int:
        return sum(map(len, self.ranks))

    def host(self, number: int) -> HostConfig:
        return HostConfig(
            job=JOB,
            host=f"h{number}",
            mtu=MTU,
            message_packets=1,
            window_messages=self.window,
            stall_ns=FAR_NS,
            timeout_ns=0,
            recover_ns=RECOVER_NS,
        )

    @cached_property
    def tensor_bytes(self) -> int:
        return self.host(0).tensor_bytes

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        counts = (self.first, self.second) if self.second else (self.first,)
        sizes = [(count - 1) * self.tensor_bytes + LAST_BYTES if count else 0 for count in counts]
        return tuple(
            Operation(OpIndex(index), Dtype.I64, Op.SUM, nbytes, signature(Dtype.I64, Op.SUM, (nbytes // 8,)))
            for index, nbytes in enumerate(sizes)
        )

    @cached_property
    def parts(self) -> tuple[tuple[int, int, int], ...]:
        """By serial of the result: all-reduce, offset, bytes."""
        return tuple(
            (its.index, offset, min(self.tensor_bytes, its.nbytes - offset))
            for its in self.operations
            for offset in range(0, max(1, its.nbytes), self.tensor_bytes)
        )

    def input(self, rank: int, index: int) -> bytes:
        """What a rank gives to an all-reduce: no two of its elements are alike, nor two sums."""
        return _packed([_element(rank, index, at) for at in range(self.operations[index].nbytes // 8)])

    def result(self, index: int) -> bytes:
        """What all ranks are to have of it."""
        elements = range(self.operations[index].nbytes // 8)
        return _packed([sum(_element(rank, index, at) for rank in range(self.size)) for at in elements])


def _element(rank: int, index: int, at: int) -> int:
    return (index + 1 << 32) + (at + 1 << 16) + (1 << 4 * rank)


def _packed(elements: list[int]) -> bytes:
    return b"".join(element.to_bytes(8, "little") for element in elements)
