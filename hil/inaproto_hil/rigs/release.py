"""The release before this one, built from its commit: what daemons of a rolling upgrade are replaced by.

Which commit that is stands in ``CHANGELOG.md``, behind the version of the newest release: ``## 0.2.0 (date,
commit 0123abc...)``. It is built as a wheel, once, and unpacked below the user's cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

from inaproto.errors import Unsupported

_HEADING: Final = re.compile(
    r"^## (?P<version>\d+\.\d+\.\d+) \(.*commit (?P<commit>[0-9a-f]{40})\)$", re.MULTILINE
)
_CAPABILITY: Final = "the release before this one"
BUILD_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Release:
    """One that was unpacked at ``site``."""

    version: str
    commit: str
    site: Path

    @property
    def command(self) -> list[str]:
        """What stands for ``inaproto`` in a command line, with ``environment``."""
        return [sys.executable, "-m", "inaproto"]

    @property
    def environment(self) -> dict[str, str]:
        """It comes before what this Python has installed."""
        return {"PYTHONPATH": str(self.site)}


def named_in(changelog: str) -> tuple[str, str]:
    """Version and commit of the newest release. Raises ``Unsupported``."""
    found = _HEADING.search(changelog)
    if found is None:
        raise Unsupported(_CAPABILITY, "CHANGELOG.md names no release with its commit")
    return found["version"], found["commit"]


def release_before(tree: Path | None = None) -> Release:
    """Built anew if it is not in the cache. ``tree``: the checkout; by default the one that this is in.

    Raises ``Unsupported`` where there is no checkout, or one without that commit.
    """
    root = Path(__file__).resolve().parents[3] if tree is None else tree
    changelog = root / "CHANGELOG.md"
    if not changelog.exists():
        raise Unsupported(_CAPABILITY, f"it is built from a checkout, and {root} is none")
    version, commit = named_in(changelog.read_text())
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inaproto" / "releases" / commit
    )
    if not cache.is_dir():
        _build(root, commit, cache)
    return Release(version, commit, cache)


def _build(root: Path, commit: str, site: Path) -> None:
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent, prefix="build-") as made:
        source, wheels, unpacked = Path(made, "source"), Path(made, "wheels"), Path(made, "site")
        archive = _run(["git", "-C", str(root), "archive", "--format=zip", commit])
        with zipfile.ZipFile(BytesIO(archive)) as packed:
            packed.extractall(source)
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
        _run([sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(wheels), str(source)])
        (wheel,) = wheels.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(unpacked)
        if not site.is_dir():  # else somebody else was sooner
            shutil.move(unpacked, site)


def _run(command: list[str]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S).stdout
    except FileNotFoundError:
        raise Unsupported(_CAPABILITY, f"it needs {command[0]}") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it says nothing"]
        raise Unsupported(_CAPABILITY, f"{' '.join(command[:4])} failed: {last[0]}") from None
    except subprocess.TimeoutExpired:
        raise Unsupported(_CAPABILITY, f"{' '.join(command[:4])} took longer than {BUILD_S:.0f} s") from None
