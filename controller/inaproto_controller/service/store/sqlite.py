"""The store in a file: SQLite with a write-ahead log, synced at each commit."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError, InvariantBroken
from inaproto_controller.service.store.led import LedStore, Session
from inaproto_controller.service.store.records import Row, StoreLost

_BUSY_S: Final = 5.0
"""Only a person at ``sqlite3`` can be in the way."""
_PASSING: Final = frozenset(
    (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
)
"""Errors of a file that can be used, only not now."""

_SHORT: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EIO))
"""What a process or its machine lacks now and may have later."""
_DESCRIPTORS: Final = 4
"""A database with its log takes so many, at most."""


class SqliteStore(LedStore["_Sqlite"]):
    """``path``: of the database; its directory must be there."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._lock = -1
        self._was_there = False

    @property
    def where(self) -> str:
        return f"store {self.path}"

    def open_to_read(self) -> _Sqlite:
        if not self.path.is_file():
            raise ConfigError(f"{self.where}: there is no such file; name the store by --store or --dir")
        return _Sqlite(self.path)

    def lock(self) -> _Sqlite | None:
        self.resign()
        if self._was_there and not self.path.exists():  # an empty one would forget what was promised
            raise StoreLost(_gone(self.path))
        if not self._take_lock():
            return None
        self._database = _Sqlite(self.path)
        self._was_there = True
        return self._database

    def _take_lock(self) -> bool:
        path = _lock_of(self.path)
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            said = f"store {self.path}: cannot open {path}: {error.strerror}"
            raise (StoreLost(said) if error.errno in _SHORT else ConfigError(said)) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.resign()
            return False
        return True

    def verify(self) -> None:
        if self._lock >= 0 and not _is_at(_lock_of(self.path), os.fstat(self._lock)):
            raise StoreLost(f"store {self.path}: its lock is gone, another one could lead")
        if self._database is not None:
            self._database.require_in_place()
        super().verify()

    def resign(self) -> None:
        self._end()
        if self._lock >= 0:
            os.close(self._lock)  # and with it the lock
            self._lock = -1


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _lacks_descriptors() -> bool:
    """Whether fewer are left than a database takes, which does not say why it could not be opened."""
    with ExitStack() as opened:
        try:
            for _ in range(_DESCRIPTORS):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return error.errno in _SHORT
    return False


def _is_at(path: Path, file: os.stat_result) -> bool:
    """Whether ``path`` still is that file."""
    try:
        return os.path.samestat(path.stat(), file)
    except OSError:
        return False


def _gone(path: Path) -> str:
    return (
        f"store {path}: its file was taken away; bring it back, by inaproto controller --import perhaps, or "
        "start the controller anew with an empty store (docs/runbook.md)"
    )


class _Sqlite(Session):
    begin = "BEGIN IMMEDIATE"

    def __init__(self, path: Path) -> None:
        self._path = path
        umask = os.umask(0o077)  # hashes of tokens are in it
        try:
            # Of one thread at a time, but not always the same.
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                    self._connection.execute(f"PRAGMA {pragma}")
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            code = error.sqlite_errorcode & 0xFF
            if code in _PASSING or (code == sqlite3.SQLITE_CANTOPEN and _lacks_descriptors()):
                raise StoreLost(f"store {path}: {error}") from None
            raise ConfigError(
                f"store {path}: {error}; name a file that is or can be a SQLite database"
            ) from None
        finally:
            os.umask(umask)
        try:
            self._file = path.stat()
        except OSError:
            self._connection.close()
            raise StoreLost(_gone(path)) from None

    def require_in_place(self) -> None:
        if not _is_at(self._path, self._file):
            raise StoreLost(_gone(self._path))

    def has_tables(self) -> bool:
        """Raises ``ConfigError`` for a database of something else."""
        names = {name for (name,) in self.run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and "control" not in names:
            raise ConfigError(f"store {self._path}: is a database of something else; name another file")
        return bool(names)

    def run(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        with self._asked(sql):
            return self._connection.execute(sql, values).fetchall()

    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        with self._asked(sql):
            self._connection.executemany(sql, rows)

    @contextmanager
    def _asked(self, sql: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError) as error:
            raise InvariantBroken(f"store {self._path}: {error}: {sql}") from None
        except sqlite3.Error as error:
            raise StoreLost(f"store {self._path}: {error}") from None

    def roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.rollback()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()
