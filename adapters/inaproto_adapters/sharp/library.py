"""libsharp_coll, loaded by ctypes: each function gets its types when it is first called.

ctypes lets other threads run during a call. The library reads its SHARP_COLL_ variables when it is loaded, so
they have to be set before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from inaproto.errors import Unsupported
from inaproto_adapters.sharp.layout import CLASSES, DEFAULT_CONFIG, FUNCTIONS, Function, python_kind

NAMES: Final = ("libsharp_coll.so", "libsharp_coll.so.5", "libsharp_coll.so.4")
_FUNCTIONS: Final = {function.name: function for function in FUNCTIONS}
_REMEDY: Final = "it comes with HPC-X or DOCA-Host; give its path with --library"


class SharpLibrary:
    """The functions of one shared object."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._library = library
        self.path = path
        self._found: dict[str, Callable[..., Any]] = {}

    def has(self, name: str) -> bool:
        """Whether the library has that function."""
        return hasattr(self._library, name)

    def missing(self) -> list[str]:
        """The functions that every release has, and this library has not."""
        return [its.name for its in FUNCTIONS if not its.is_optional and not self.has(its.name)]

    def function(self, name: str) -> Callable[..., Any]:
        """The function ``sharp_coll_<name>``, with its types. Raises ``Unsupported`` where there is none."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self._resolve(_FUNCTIONS[f"sharp_coll_{name}"])
        return found

    def default_config(self) -> Any:
        """A copy of the library's default configuration. Raises ``Unsupported`` where it has none."""
        kind = CLASSES["sharp_coll_config"]
        try:
            default = kind.in_dll(self._library, DEFAULT_CONFIG)
        except ValueError:
            raise Unsupported("SHARP", f"{self.path} has no {DEFAULT_CONFIG}; {_REMEDY}") from None
        return kind.from_buffer_copy(default)

    def says(self, code: int) -> str:
        """The library's own words for a code."""
        words: bytes | None = self.function("strerror")(code)
        return "" if words is None else words.decode(errors="replace")

    def _resolve(self, function: Function) -> Callable[..., Any]:
        try:
            found: Any = getattr(self._library, function.name)
        except AttributeError:
            raise Unsupported(
                "SHARP", f"{self.path} has no {function.name}: it is too old for that"
            ) from None
        found.argtypes = [python_kind(kind) for kind in function.parameters]
        found.restype = python_kind(function.result)
        made: Callable[..., Any] = found
        return made


def load(path: str = "") -> SharpLibrary:
    """The library at ``path``, else that of the names there may be. Raises ``Unsupported``."""
    reasons: list[str] = []
    for name in (path,) if path else NAMES:
        try:
            return SharpLibrary(ctypes.CDLL(name), name)
        except OSError as error:
            reasons.append(str(error))
    raise Unsupported("SHARP", f"libsharp_coll cannot be loaded: {reasons[0]}; {_REMEDY}")


def file_of(library: SharpLibrary) -> Path | None:
    """The file that was loaded, or None where the system does not say."""
    if os.sep in library.path:
        return Path(library.path)
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    found = {line.split()[-1] for line in maps.splitlines() if "libsharp_coll" in line}
    return Path(min(found)) if found else None
