"""The trace of one training step: when each gradient is ready, and how many bytes it has (MINA section V-A).

Seconds and bytes; sizes are integers, times are doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Self

from inaproto.errors import ConfigError

BYTES_LIMIT: Final = 1 << 63
"""Limit of an operation's size, exclusive."""


@dataclass(frozen=True, slots=True)
class ModelTrace:
    """One training step of a model."""

    name: str
    duration: float
    """From the start of a step until the framework begins to wait for results."""
    ready: tuple[float, ...]
    """When each gradient is ready, from the start of the step, ascending."""
    nbytes: tuple[int, ...]

    @classmethod
    def decode(cls, name: str, fields: Any) -> Self:
        """Raises ``ConfigError``: {"duration": s, "allreduces": [{"start": s, "size": bytes}, ...]}."""
        if not isinstance(fields, dict) or not isinstance(fields.get("allreduces"), list | tuple):
            raise ConfigError(f"model trace {name}: needs a duration, and a list of allreduces")
        try:
            operations = fields["allreduces"]
            trace = cls(
                name,
                float(fields["duration"]),
                tuple(float(one["start"]) for one in operations),
                tuple(int(one["size"]) for one in operations),
            )
            is_finite = all(map(isfinite, (trace.duration, *trace.ready)))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"model trace {name}: {error!r}") from None
        if not is_finite:
            raise ConfigError(f"model trace {name}: duration and starts must be finite")
        if max(trace.nbytes, default=0) >= BYTES_LIMIT:
            raise ConfigError(f"model trace {name}: an all-reduce of {BYTES_LIMIT} bytes or more")
        if not trace.ready or list(trace.ready) != sorted(trace.ready) or min(trace.ready) < 0:
            raise ConfigError(f"model trace {name}: needs all-reduces whose starts ascend from 0")
        if min(trace.nbytes) <= 0 or trace.duration < 0:
            raise ConfigError(f"model trace {name}: sizes and duration must be positive")
        return trace
