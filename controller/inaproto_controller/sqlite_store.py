"""The store in a file: SQLite with a write-ahead log, synced at each commit."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError, InvariantBroken
from inaproto_controller import store
from inaproto_controller.desired import Change, Desired
from inaproto_controller.store import Deposed, Leadership, Row, StoreLost

_BUSY_S: Final = 5.0
"""Only a person at ``sqlite3`` can be in the way."""


class SqliteStore:
    """``path``: of the database; its directory must be there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1
        self._database: _Sqlite | None = None
        self._term = 0

    def lead(self) -> Leadership | None:
        self.resign()
        if not self._take_lock():
            return None
        try:
            self._database = _Sqlite(self.path)
            has_tables = self._database.has_tables()
            store.prepare(
                self._database,
                has_tables=has_tables,
                store_id=lambda: secrets.token_hex(8),
                where=f"store {self.path}",
            )
            found = store.begin_term(self._database)
        except BaseException:
            self.resign()
            raise
        self._term = found.term
        return found

    def _take_lock(self) -> bool:
        path = self.path.with_name(self.path.name + ".lock")
        try:
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"store {self.path}: cannot open {path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.resign()
            return False
        return True

    def _own(self) -> _Sqlite:
        if self._database is None:
            raise Deposed("this controller does not lead")
        return self._database

    def verify(self) -> None:
        store.verify_term(self._own(), self._term)

    def load(self) -> Desired:
        return store.load(self._own())

    def commit(self, changes: Sequence[Change], after: Desired) -> None:
        store.commit(self._own(), self._term, changes, after)

    def records(self) -> Mapping[str, bytes]:
        return store.records(self._own())

    def put_record(self, owner: str, body: bytes | None) -> None:
        store.put_record(self._own(), self._term, owner, body)

    def events(self) -> Sequence[tuple[int, str]]:
        return store.events(self._own())

    def keep_events(self, rows: Sequence[tuple[int, str]], gone: Sequence[int]) -> None:
        store.keep_events(self._own(), self._term, rows, gone)

    def resign(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock >= 0:
            os.close(self._lock)  # and with it the lock
            self._lock = -1


class _Sqlite:
    def __init__(self, path: Path) -> None:
        self._path = path
        umask = os.umask(0o077)  # hashes of tokens are in it
        try:
            # Of one thread at a time, but not always the same.
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                self._connection.execute(f"PRAGMA {pragma}")
        except sqlite3.Error as error:
            raise ConfigError(
                f"store {path}: {error}; name a file that is or can be a SQLite database"
            ) from None
        finally:
            os.umask(umask)

    def has_tables(self) -> bool:
        """Raises ``ConfigError`` for a database of something else."""
        names = {name for (name,) in self.run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if names and "control" not in names:
            raise ConfigError(f"store {self._path}: is a database of something else; name another file")
        return bool(names)

    def run(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.IntegrityError as error:
            raise InvariantBroken(f"store {self._path}: {error}: {sql}") from None
        except sqlite3.Error as error:
            raise StoreLost(f"store {self._path}: {error}") from None

    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        for row in rows:
            self.run(sql, row)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            raise

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()
