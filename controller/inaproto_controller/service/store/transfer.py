"""``inaproto controller --export`` and ``--import``: from a store to a file, and back."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError, InaprotoError
from inaproto_controller.service.store import exported
from inaproto_controller.service.store.opening import open_store

STANDARD: Final = "-"
"""As a file: the standard output, or input."""


class FileLost(InaprotoError):
    """The file cannot be written or read now."""


def export(where: str, file: str) -> str:
    """The store at ``where`` goes to ``file``, as a whole or not at all; returns what was done, in words.

    Nobody but its owner may read the file: a secret is in it by which tokens of jobs can be made.
    Raises ``ConfigError``, ``StoreLost`` and ``FileLost``.
    """
    store = open_store(where)
    found = store.exported()
    lines = exported.lines_of(found)
    try:
        if file == STANDARD:
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
        else:
            _write(Path(file), b"".join(lines))
    except OSError as error:
        raise FileLost(f"--export: cannot write {file}: {error.strerror}; nothing was exported") from None
    return f"exported {store.where}: {found.said()}"


def import_(where: str, file: str, *, replace: bool) -> str:
    """The store at ``where`` becomes what ``file`` says; returns what was done, in words.

    Raises ``ConfigError``, ``StoreLost`` and ``FileLost``; then the store is as it was.
    """
    try:
        if file == STANDARD:
            found = exported.read(sys.stdin.buffer, "the standard input")
        else:
            with Path(file).open("rb") as lines:
                found = exported.read(lines, file)
    except OSError as error:
        raise FileLost(f"--import: cannot read {file}: {error.strerror}") from None
    store = open_store(where)
    store.import_(found, replace=replace)
    return f"imported {store.where}: {found.said()}"


def require_possible(export_to: object | None, import_from: object | None, *, replace: bool) -> None:
    """Raises ``ConfigError``."""
    if export_to is not None and import_from is not None:
        raise ConfigError("--export and --import: one at a time")
    if replace and import_from is None:
        raise ConfigError("--replace: is for --import")


def _write(path: Path, data: bytes) -> None:
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        half.replace(path)
    except OSError:
        half.unlink(missing_ok=True)
        raise
