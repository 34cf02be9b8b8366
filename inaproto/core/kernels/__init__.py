"""Compiled forms of the loops that see packets, and whether this process uses them.

Each has a twin in numpy, which stands where it is called and does the same, byte for byte: the twin says what
is meant, the kernel does it several times as fast. A tree without a compiler, or a machine for which no wheel
was built, runs the twins.

The library is looked for once, when this package is imported, as an extension module would be. ``choose`` is
for shells, before they make anything; accelerators and their regions ask when they are made.
"""

from __future__ import annotations

from inaproto.core.kernels.compiled import Compiled, load

__all__ = ["Compiled", "active", "choose", "description"]

COMPILED = "compiled"
NUMPY = "numpy"

_library, _reason = load()
_active: Compiled | None = _library
_why = _reason


def active() -> Compiled | None:
    """The kernels, for what is made from now on; None: the twins."""
    return _active


def choose(name: str) -> None:
    """Use ``compiled`` kernels or ``numpy``; empty: compiled ones if there are any.

    Raises ``ValueError`` for another name, or if there are no compiled ones.
    """
    global _active, _why  # noqa: PLW0603  one choice a process
    if name not in (COMPILED, NUMPY, ""):
        raise ValueError(f"kernels are {COMPILED} or {NUMPY}, not {name!r}")
    if name == COMPILED and _library is None:
        raise ValueError(f"there are no compiled kernels: {_reason}")
    _active = None if name == NUMPY else _library
    _why = "chosen" if name == NUMPY else _reason


def description() -> str:
    """What this process runs, for people: ``compiled (pclmul, avx2)`` or ``numpy: why``."""
    return f"{NUMPY}: {_why}" if _active is None else f"{COMPILED} ({_active.instructions})"
