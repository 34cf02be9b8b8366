"""A shared object that was built from one C source, loaded by ctypes."""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path


def open_library(source: Path, library: Path, stamp: str) -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why there is none.

    Its function ``stamp`` tells the CRC-32 of what it was built from: of all C files in the folder of
    ``source``, which may include the others, by name. There may be none.
    """
    if not library.exists():
        return None, "not built, which takes a C compiler: make venv, or a wheel that has them"
    try:
        found = ctypes.CDLL(str(library))
        built_from = getattr(found, stamp)
        built_from.restype = ctypes.c_uint32
        parts = [part.read_bytes() for part in sorted(source.parent.glob("*.c"))]
        if source.exists() and built_from() != zlib.crc32(b"".join(parts)):
            return None, "built from another source: make venv builds them anew"
    except (OSError, AttributeError) as error:
        return None, f"{library.name} cannot be loaded: {error}"
    return found, ""
