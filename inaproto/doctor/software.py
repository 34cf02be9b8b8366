"""Python and the packages on which speed or correctness hang."""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from inaproto.core import kernels
from inaproto.doctor.findings import Check, Finding, failed, ok, warning
from inaproto.doctor.site import Site

PYTHON_MIN: Final = (3, 11)
PACKAGES_MIN: Final = {"numpy": (2, 0), "trio": (0, 30), "msgpack": (1, 1)}
"""As pyproject.toml has them: pip may have been told to ignore it."""


def _look(site: Site) -> Iterator[Finding]:
    installed = {name: _version(name) for name in (*PACKAGES_MIN, "isal", "inaproto")}
    yield from look_at_versions(platform.python_version(), struct.calcsize("P") * 8, installed)
    yield from look_at_kernels(kernels.description())


def look_at_kernels(found: str) -> Iterator[Finding]:
    """``found`` as :func:`inaproto.core.kernels.description` has it."""
    if found.startswith(kernels.COMPILED):
        yield ok(f"kernels: {found}")
    else:
        mend = (
            "install a C compiler and run make venv, or install the wheel of this platform (docs/concepts.md)"
        )
        yield warning(f"kernels: {found}; a switch adds up a third as fast", mend)


def look_at_versions(python: str, bits: int, installed: dict[str, str]) -> Iterator[Finding]:
    """``installed`` maps packages to versions, empty for one that is missing."""
    if _numbers(python) < PYTHON_MIN or bits < 64:
        yield failed(
            f"Python {python}, {bits} bit", "install Python 3.11 or later, 64 bit, and make the venv anew"
        )
    mend = "pip install --require-hashes -r requirements.lock (deploy/README.md)"
    for name, least in PACKAGES_MIN.items():
        if _numbers(installed[name]) < least:
            wanted = ".".join(map(str, least))
            yield failed(f"{name} {installed[name] or 'is missing'}, wanted is {wanted} or later", mend)
    if not installed["isal"]:
        yield warning("isal is missing, ICRCs are computed by zlib, several times slower", mend)
    told = ", ".join(f"{name} {number}" for name, number in installed.items() if number)
    yield ok(f"Python {python}, {told}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    found = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


PYTHON: Final = Check("python", "daemons of other versions than those tested may be slow or wrong", _look)
