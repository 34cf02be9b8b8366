"""Element types of benchmarks, and what an all-reduce of :mod:`inaproto_hil.ranks.predictable` data is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int32": np.dtype(np.int32),
    "float16": np.dtype(np.float16),
    "float64": np.dtype(np.float64),
    "int64": np.dtype(np.int64),
}
_HALF: Final = (DTYPES["float16"], DTYPES["bfloat16"])

_FUNCTIONS: Final[dict[str, np.ufunc]] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
OPS: Final = tuple(_FUNCTIONS)


def reference(inputs: Sequence[NDArray[Any]], op: str) -> NDArray[Any]:
    """What an all-reduce of these inputs is, bit for bit: rank order, left to right, element type.

    Half types are widened to float32, combined there, and rounded once.
    """
    function = _FUNCTIONS[op]
    dtype = inputs[0].dtype
    total = inputs[0].astype(np.float32) if dtype in _HALF else inputs[0].copy()
    for other in inputs[1:]:
        function(total, other.astype(total.dtype, copy=False), out=total)
    return total.astype(dtype, copy=False)
