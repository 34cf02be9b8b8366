"""The store in PostgreSQL, for two controllers of which one leads (the extra ``postgresql``).

Who leads holds an advisory lock of the database by a session of its own, which ends with its process or its
connection; the other one asks for the lock again and again. A leader that was cut off can still believe that
it leads: its commits are refused by their term.

No clock of a machine decides who leads, but silence ends a session: the server ends one of which it hears
nothing (its leader hangs, or its machine is gone without a word), the controller one by which nothing is
answered (the server hangs, while its machine answers for it).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from inaproto.errors import ConfigError, InvariantBroken, Unsupported
from inaproto_controller.service.store.led import LedStore, Session
from inaproto_controller.service.store.records import Row, StoreLost

if TYPE_CHECKING:
    import psycopg

_ENCODINGS: Final = ("UTF8", "SQL_ASCII")
"""Of databases; the second has none, and keeps the bytes that it is given."""
_LOCK_KEY: Final = 0x696E6170726F746F
"""Any number, the same in all controllers: "inaproto"."""
_CONNECT_S: Final = 5
_STATEMENT_MS: Final = 5000
SILENT_S: Final = 10.0
"""A leader makes sure of its place every second; one that does not for so long has lost it. What it was in
the middle of is undone, else nobody could write."""
ANSWER_S: Final = 10.0
"""Longer than a statement may take."""


class PostgresqlStore(LedStore["_Postgresql"]):
    """``url``: as libpq takes it. The database must be there; its tables are made."""

    def __init__(self, url: str, *, silent_s: float = SILENT_S, answer_s: float = ANSWER_S) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise Unsupported(
                "a PostgreSQL store", f"{error}; mend it with: pip install 'inaproto[postgresql]'"
            ) from None
        try:
            fields = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise ConfigError(f"store: {str(error).strip()}") from None
        super().__init__()
        self._url = url
        self._silent_s, self._answer_s = silent_s, answer_s
        self._where = f"store {fields.get('dbname', 'postgres')} at {fields.get('host', 'localhost')}"
        self._lock: _Postgresql | None = None

    @property
    def where(self) -> str:
        return self._where

    def open_to_read(self) -> _Postgresql:
        return self._session()

    def lock(self) -> _Postgresql | None:
        if self._database is not None:
            self.resign()
        if self._lock is None:
            self._lock = self._session()
        ((locked,),) = self._lock.run("SELECT pg_try_advisory_lock(?)", (_LOCK_KEY,))
        if not locked:
            return None  # and the session is kept for the next try
        self._database = self._session()
        return self._database

    def _session(self) -> _Postgresql:
        return _Postgresql(self._url, self._where, self._silent_s, self._answer_s)

    def verify(self) -> None:
        if self._lock is not None:
            self._lock.run("SELECT 1")  # the lock is this session's
        super().verify()

    def resign(self) -> None:
        self._end()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class _Postgresql(Session):
    begin_reading = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, url: str, where: str, silent_s: float, answer_s: float) -> None:
        import psycopg

        self._where = where
        self._answer_s = answer_s
        self._is_silent = False
        self._errors = psycopg.Error
        self._broken = (psycopg.IntegrityError, psycopg.DataError)
        """Whoever leads next would get the same error again: it is no database that cannot be used now."""
        silent_ms = round(1000 * silent_s)
        timeouts = (
            f"-c statement_timeout={_STATEMENT_MS} -c idle_session_timeout={silent_ms} "
            f"-c idle_in_transaction_session_timeout={silent_ms}"
        )
        try:
            self._connection: psycopg.Connection[Any] = psycopg.connect(
                url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                application_name="inaproto controller",
                client_encoding="utf8",  # also of a database without one, whose text would be bytes
                options=f"{timeouts} -c synchronous_commit=on",
                keepalives_idle=5,
                keepalives_interval=2,
                keepalives_count=3,
                tcp_user_timeout=10_000,
            )
        except psycopg.Error as error:
            raise StoreLost(f"{where}: {_line(error)}") from None
        encoding = self._connection.info.parameter_status("server_encoding")
        if encoding not in _ENCODINGS:
            self._connection.close()
            raise ConfigError(
                f"{where}: the database has the encoding {encoding}, which lacks names that may be; make one "
                "with ENCODING 'UTF8' TEMPLATE template0"
            )
        self._watch = _Watch(answer_s, self._cut)

    def has_tables(self) -> bool:
        return self.run("SELECT to_regclass('control') IS NOT NULL") == [(True,)]

    def require_in_place(self) -> None:
        """The server sees to that."""

    def run(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        with self._asked(sql):
            cursor = self._connection.execute(_asked(sql), values)
            return cursor.fetchall() if cursor.description is not None else []

    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """The server hears all of them before the first is answered, so one answer is waited for."""
        with self._asked(sql), self._connection.cursor() as cursor:
            cursor.executemany(_asked(sql), rows)

    @contextmanager
    def _asked(self, sql: str) -> Iterator[None]:
        try:
            with self._watch.answered():
                yield
        except self._broken as error:
            raise InvariantBroken(f"{self._where}: {_line(error)}: {sql}") from None
        except self._errors as error:
            told = (
                f"the server has not answered for {self._answer_s:g} s" if self._is_silent else _line(error)
            )
            raise StoreLost(f"{self._where}: {told}") from None

    def _cut(self) -> None:
        """In another thread: who waits reads the end of the connection."""
        self._is_silent = True
        with (
            suppress(OSError, self._errors),
            socket.socket(fileno=os.dup(self._connection.fileno())) as connection,
        ):
            connection.shutdown(socket.SHUT_RDWR)

    def roll_back(self) -> None:
        with suppress(self._errors), self._watch.answered():
            self._connection.rollback()

    def close(self) -> None:
        self._watch.end()
        with suppress(self._errors):
            self._connection.close()


class _Watch:
    """One thread of a connection, which cuts it where an answer takes longer than ``answer_s``: what waits
    for the server then ends with an error of the connection."""

    def __init__(self, answer_s: float, cut: Callable[[], None]) -> None:
        self._answer_s, self._cut = answer_s, cut
        self._state = threading.Condition()
        self._late_at: float | None = None
        """When what is waited for now is late."""
        self._is_idle = self._is_over = False
        threading.Thread(target=self._run, name="store watch", daemon=True).start()

    @contextmanager
    def answered(self) -> Iterator[None]:
        with self._state:
            self._late_at = time.monotonic() + self._answer_s
            if self._is_idle:  # else it sleeps for no longer than that
                self._state.notify()
        try:
            yield
        finally:
            with self._state:
                self._late_at = None

    def end(self) -> None:
        with self._state:
            self._is_over = True
            self._state.notify()

    def _run(self) -> None:
        with self._state:
            while not self._is_over:
                left = None if self._late_at is None else self._late_at - time.monotonic()
                if left is not None and left <= 0:
                    self._late_at = None
                    self._cut()
                    continue
                self._is_idle = left is None
                self._state.wait(left)


def _asked(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
