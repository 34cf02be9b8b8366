"""Arrays in messages and records, and how records that have some compare.

Arrays are 1-d, of the model's elements and dtype, and not writeable. In a message they travel behind it
(:class:`inaproto.wire.messages.fields.Behind`), little-endian.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
"""1-d: of each element of the shard its weight, or what is added to it."""


class Comparable:
    """Equality and hash of a frozen dataclass by its fields, arrays by dtype and bytes."""

    __slots__ = ()

    def _key(self) -> tuple[object, ...]:
        values = (getattr(self, field.name) for field in fields(self) if field.compare)  # type: ignore[arg-type]
        return tuple((v.dtype.str, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._key()))
