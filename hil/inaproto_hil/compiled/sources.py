"""The source of what a world runs, and a hash of it, which is the same in a compiled copy.

Invariant: in a process that runs a compiled copy, ``fingerprint`` is that of the source it was made from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import inaproto
import inaproto_adapters

ENTRY_NAME: Final = "entry.json"
"""At the root of a compiled copy: what it was made of and with."""


def packages() -> dict[str, Path]:
    """Import name and folder of each package that has a part in a world."""
    return {package.__name__: Path(package.__path__[0]) for package in (inaproto, inaproto_adapters)}


def fingerprint() -> str:
    """Of all source files that a world runs."""
    entry = packages()["inaproto"].parent / ENTRY_NAME
    if entry.exists():
        return str(json.loads(entry.read_text(encoding="utf-8"))["fingerprint"])
    return fingerprint_of(packages())


def fingerprint_of(folders: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for root in folders.values():
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0")
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
