"""Copies of arrays that no cache can hold: by the compiled kernel, or its twin in numpy.

The kernel writes to memory what nobody reads soon. So lines are not fetched only to be overwritten, and what
is in the caches stays there (Intel 64 Optimization Reference Manual, non-temporal stores).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from inaproto.core import kernels
from inaproto.core.kernels.compiled import address_of

Bytes = NDArray[np.uint8]


def copy_past_caches(source: Bytes, target: Bytes) -> None:
    """Copy ``source`` to ``target``: uint8 ``(n,)``, contiguous, apart from each other."""
    compiled = kernels.active()
    if compiled is None or not target.size:
        np.copyto(target, source)
    else:
        compiled.copy(address_of(source), address_of(target), target.size)
