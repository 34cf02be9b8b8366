"""What is set for SHARP at a host, and which of our types and operations are which of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from inaproto.core.collective.events import SessionConfig
from inaproto.errors import ConfigError
from inaproto.ports import CollectiveCapabilities
from inaproto.units import S
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp.layout import DTYPES, OPS

OPERATION_BYTES_MAX: Final = 512 << 20
"""Most of one operation up to release 3.6; the streaming tree takes more since."""
DTYPE_NUMBERS: Final = {
    Dtype.F32: DTYPES["SHARP_DTYPE_FLOAT"],
    Dtype.I32: DTYPES["SHARP_DTYPE_INT"],
    Dtype.F16: DTYPES["SHARP_DTYPE_FLOAT_SHORT"],
    Dtype.BF16: DTYPES["SHARP_DTYPE_BFLOAT16"],
    Dtype.F64: DTYPES["SHARP_DTYPE_DOUBLE"],
    Dtype.I64: DTYPES["SHARP_DTYPE_LONG"],
}
OP_NUMBERS: Final = {Op.SUM: OPS["SHARP_OP_SUM"], Op.MAX: OPS["SHARP_OP_MAX"], Op.MIN: OPS["SHARP_OP_MIN"]}


def _one_try() -> SessionConfig:
    """Whoever attaches counts the attempts; and a release is over in a few of its seconds."""
    return SessionConfig(tries_max=1, call_ns=30 * S, unwind_ns=3 * S, drain_ns=3 * S)


@dataclass(frozen=True, slots=True)
class SharpConfig:
    """Settings of the adapter."""

    library: str = ""
    """Path of libsharp_coll; empty: where the system finds it."""
    devices: str = ""
    """``mlx5_0:1``, comma-separated; empty: the library's choice."""
    bfloat16: bool = False
    """Offer bfloat16, which not every switch adds; an attachment fails where it is not there."""
    aggregation: int = 0
    """0: the library's choice, 1: the low-latency tree, 2: the streaming tree."""
    operation_ns: int = 30 * S
    """For an all-reduce; then the context is lost."""
    session: SessionConfig = field(default_factory=_one_try)

    def __post_init__(self) -> None:
        if self.operation_ns < 1:
            raise ConfigError("operation_ns: at least 1")
        if self.aggregation not in (0, 1, 2):
            raise ConfigError(f"aggregation: 0, 1 or 2, not {self.aggregation}")

    @property
    def coll_timeout_ms(self) -> int:
        """The library's own, below that of the adapter."""
        return max(self.operation_ns * 4 // 5 // 1_000_000, 1)

    @property
    def capabilities(self) -> CollectiveCapabilities:
        """What is offered, equal at all hosts with the same settings."""
        dtypes = frozenset(Dtype) if self.bfloat16 else frozenset(Dtype) - {Dtype.BF16}
        return CollectiveCapabilities(
            name="sharp", dtypes=dtypes, ops=frozenset(OP_NUMBERS), operation_bytes_max=OPERATION_BYTES_MAX
        )

    def lacks(self, dtypes_mask: int, ops_mask: int) -> str:
        """What is offered and the switches do not do, in words; empty: nothing."""
        caps = self.capabilities
        missing = [its.name for its in sorted(caps.dtypes) if not dtypes_mask >> DTYPE_NUMBERS[its] & 1]
        missing += [its.name for its in sorted(caps.ops) if not ops_mask >> OP_NUMBERS[its] & 1]
        return f"the switches lack {', '.join(missing)}" if missing else ""
