"""What the ranks of a host may do with each other's memory, and what is said where it is less.

``$INAPROTO_RANK_MEMORY`` bounds it: "write" (the default) lets ranks read each other's arrays and write sums
there, "read" lets them only read, and with "copy" everything goes through shared memory. What one rank may
not do, none does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Literal, cast, get_args

from inaproto.errors import ConfigError

MEMORY_VARIABLE: Final = "INAPROTO_RANK_MEMORY"
Access = Literal["write", "read", "copy"]

IS_BOUND: Final = -1
"""Beside numbers of :mod:`errno`: the variable does not let it."""
NO_KERNELS: Final = -2


def rank_memory(environment: Mapping[str, str]) -> Access:
    """What the environment allows; a variable that is empty counts as not set. Raises ``ConfigError``."""
    named = environment.get(MEMORY_VARIABLE) or "write"
    allowed: tuple[str, ...] = get_args(Access)
    if named not in allowed:
        raise ConfigError(f"${MEMORY_VARIABLE} is {named!r:.200}; it must be one of {', '.join(allowed)}")
    return cast("Access", named)


def why_rank_may_not(rank: int, verb: str, why: int) -> str:
    """What is said of a rank that may not "read" or "write to" the memory of the others."""
    if why == IS_BOUND:
        return f"rank {rank} may not {verb} the memory of the others: its {MEMORY_VARIABLE} forbids it"
    if why == NO_KERNELS:
        return f"rank {rank} may not {verb} the memory of the others: its kernels are not compiled"
    return f"rank {rank} may not {verb} the memory of the others: {os.strerror(why)}"
