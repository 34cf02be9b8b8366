"""The cache of compiled copies: finding one that fits, or making it, which takes about a minute.

Invariants: a copy has its name only once it is whole and its worlds did what those of the source do, so a
folder that is there can be used; one process at a time makes copies, held by a lock that ends with it; a
copy that could not be made, or that did otherwise, leaves a note with the reason instead of a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from inaproto.errors import InaprotoError
from inaproto_hil.compiled import extensions
from inaproto_hil.compiled.sources import ENTRY_NAME, fingerprint_of, packages

KEPT: Final = 4
"""Copies in the cache, those used last."""
BUILD_S_MAX: Final = 900.0
_POLL_S: Final = 0.2
_BUILDING: Final = "building-"


class NotBuilt(InaprotoError):
    """There is no compiled copy, and why."""


class SourceChanged(NotBuilt):
    """While it was copied; that says nothing about either."""


@dataclass(frozen=True, slots=True)
class Cache:
    root: Path
    fingerprint: str
    """Of the source that is to be compiled."""

    @property
    def key(self) -> str:
        return key_of(self.fingerprint)

    @property
    def folder(self) -> Path:
        return self.root / self.key

    @property
    def note(self) -> Path:
        """Why this copy is not there, if that was found out."""
        return self.root / f"{self.key}.bad"

    def find(self) -> Path | None:
        """The folder of the copy, which counts as used now. Raises ``NotBuilt`` if it is known to be bad."""
        if self.folder.is_dir():
            with suppress(OSError):  # somebody else's
                os.utime(self.folder)
            return self.folder
        try:
            raise NotBuilt(self.note.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None


def default_root() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "inaproto" / "compiled"


def open_cache(root: Path | None = None) -> Cache:
    return Cache(root or default_root(), fingerprint_of(packages()))


def key_of(fingerprint: str) -> str:
    """Of the copy: whatever makes another one is in it, this package included."""
    own = {"compiled": Path(__file__).parent}
    made_with = [fingerprint, fingerprint_of(own), sys.version, sysconfig.get_config_var("EXT_SUFFIX")]
    made_with += [_version("mypy"), _version("setuptools"), extensions.compiler(), os.environ.get("CC")]
    return hashlib.sha256(json.dumps(made_with).encode()).hexdigest()[:24]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def missing() -> list[str]:
    """What has to be installed before anything can be compiled, in words."""
    lacking = []
    if sys.implementation.name != "cpython":
        lacking.append(f"CPython (this is {sys.implementation.name})")
    if extensions.compiler() is None:
        lacking.append("a C compiler (for example: apt install gcc)")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        lacking.append("Python.h (for example: apt install python3-dev)")
    tools = [name for name in ("mypyc", "setuptools") if importlib.util.find_spec(name) is None]
    if tools:
        lacking.append(f"{' and '.join(tools)} (pip install 'inaproto[compiled]')")
    return lacking


def build(cache: Cache, *, modules: Sequence[str] = (), check: bool = True) -> Path:
    """Make the copy, unless another process does so meanwhile; returns its folder. Raises ``NotBuilt``.

    ``modules`` are compiled alone, as tests do; else all that a world imports.
    """
    cache.root.mkdir(parents=True, exist_ok=True)
    with _lock(cache.root / "lock"):
        if cache.folder.is_dir():
            return cache.folder
        for left in cache.root.glob(f"{_BUILDING}*"):  # of processes that were killed
            shutil.rmtree(left, ignore_errors=True)
        source, making = (cache.root / f"{_BUILDING}{os.getpid()}-{name}" for name in ("source", "compiled"))
        try:
            _copy(source, cache.fingerprint)
            _make(source, making, modules)
            if check:
                _check(source, making)
            making.rename(cache.folder)
            cache.note.unlink(missing_ok=True)
        except SourceChanged:
            raise
        except NotBuilt as error:
            cache.note.write_text(str(error), encoding="utf-8")
            raise
        finally:
            for folder in (source, making):
                shutil.rmtree(folder, ignore_errors=True)
        _prune(cache)
    return cache.folder


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    until = time.monotonic() + BUILD_S_MAX
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise NotBuilt(f"another process has been compiling for long: {path} is locked") from None
                time.sleep(_POLL_S)
        yield


def _copy(folder: Path, fingerprint: str) -> None:
    """The source as it is now: what is compiled and compared stays the same, whoever goes on editing."""
    for name, source in packages().items():
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if fingerprint_of({name: folder / name for name in packages()}) != fingerprint:
        raise SourceChanged("the source was changed while it was copied; try again")
    (folder / ENTRY_NAME).write_text(json.dumps({"fingerprint": fingerprint}), encoding="utf-8")


def _make(source: Path, folder: Path, modules: Sequence[str]) -> None:
    began = time.monotonic()
    shutil.copytree(source, folder)
    jobs = len(os.sched_getaffinity(0))
    run_first_on_path(folder, "inaproto_hil.compiled.extensions", str(folder), str(jobs), *modules)
    for by_product in ("c", "build", extensions.CACHE_NAME):
        shutil.rmtree(folder / by_product, ignore_errors=True)
    entry = json.loads((source / ENTRY_NAME).read_text(encoding="utf-8")) | {
        "modules": len(list(folder.glob(f"*/**/*{sysconfig.get_config_var('EXT_SUFFIX')}"))),
        "compiled_with": f"mypyc {_version('mypy')}",
        "compile_s": round(time.monotonic() - began, 1),
    }
    (folder / ENTRY_NAME).write_text(json.dumps(entry), encoding="utf-8")


def _check(source: Path, folder: Path) -> None:
    """Its worlds do what those of the source do."""
    expected, got = (run_first_on_path(path, "inaproto_hil.compiled.check") for path in (source, folder))
    compare(folder, json.loads(expected), json.loads(got))


def compare(folder: Path, source: Mapping[str, Any], compiled: Mapping[str, Any]) -> None:
    """Of two answers of ``check``. Raises ``NotBuilt``."""
    file = compiled["file"]
    if not (Path(file).is_relative_to(folder) and file.endswith(sysconfig.get_config_var("EXT_SUFFIX"))):
        raise NotBuilt(f"what was run as the compiled copy is {file}")
    for world, expected in source["digests"].items():
        got = compiled["digests"].get(world)
        if got != expected:
            raise NotBuilt(
                f"the compiled copy does otherwise: world {world} is {got}, by the source {expected}"
            )


def run_first_on_path(folder: Path, module: str, *arguments: str) -> str:
    """What ``python -m module`` prints with ``folder`` first on its path, before this process's own."""
    path = os.pathsep.join([str(folder), *map(os.path.abspath, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # the compilers that it starts end with it
    )
    try:
        out, err = process.communicate(timeout=BUILD_S_MAX)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise NotBuilt(f"{module} took longer than {BUILD_S_MAX:.0f} s") from None
        raise
    if process.returncode:
        said = "\n".join((out + err).strip().splitlines()[-12:])
        raise NotBuilt(f"{module} ended with {process.returncode}:\n{said}")
    return out


def _prune(cache: Cache) -> None:
    copies = [path for path in cache.root.iterdir() if path.is_dir()]
    notes = list(cache.root.glob("*.bad"))
    for paths in (copies, notes):
        paths.sort(key=lambda path: -path.stat().st_mtime)
        for path in paths[KEPT:]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
