"""What a store does while its controller leads, whatever the database: all by statements of its term."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Generic, TypeVar

from inaproto.errors import ConfigError
from inaproto_controller.cluster.desired import Change, Desired
from inaproto_controller.service.store import records as store
from inaproto_controller.service.store.exported import Exported, put, take
from inaproto_controller.service.store.records import Deposed, Leadership, Row


class Session(ABC):
    """:class:`inaproto_controller.service.store.records.Database`, by what a database has of its own."""

    begin: ClassVar[str] = "BEGIN"
    begin_reading: ClassVar[str] = "BEGIN"
    """All that is read sees one moment, and nobody has to wait for it."""

    @abstractmethod
    def has_tables(self) -> bool:
        """Raises ``ConfigError`` for a database of something else."""

    @abstractmethod
    def require_in_place(self) -> None:
        """Raises ``StoreLost`` where what is written now will not be found again."""

    @abstractmethod
    def run(self, sql: str, values: Sequence[object] = ()) -> list[Row]: ...

    @abstractmethod
    def roll_back(self) -> None:
        """Never fails."""

    @abstractmethod
    def close(self) -> None:
        """Never fails."""

    @abstractmethod
    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """As :meth:`run` for each of ``rows``, with nothing to fetch, in about the time of one."""

    @contextmanager
    def transaction(self, *, reads: bool = False) -> Iterator[None]:
        """``reads``: nothing is written in it."""
        self.run(self.begin_reading if reads else self.begin)
        try:
            yield
            self.run("COMMIT")
            self.require_in_place()
        except BaseException:
            self.roll_back()
            raise


S = TypeVar("S", bound=Session)


class LedStore(ABC, Generic[S]):
    """The part of :class:`inaproto_controller.service.store.records.Store` for which ``lead`` has set session
    and term."""

    def __init__(self) -> None:
        self._database: S | None = None
        self._term = 0

    @property
    @abstractmethod
    def where(self) -> str:
        """In words."""

    @abstractmethod
    def open_to_read(self) -> S:
        """A session, whoever leads. Raises ``ConfigError`` where there is no store."""

    @abstractmethod
    def lock(self) -> S | None:
        """A session that keeps others from leading, until ``resign``; None: another one leads."""

    def exported(self) -> Exported:
        """All that is in it at one moment, whoever leads. Raises ``ConfigError`` and ``StoreLost``."""
        session = self.open_to_read()
        try:
            with session.transaction(reads=True):
                if not session.has_tables():
                    raise ConfigError(f"{self.where}: has nothing in it")
                return take(session, self.where)
        finally:
            session.close()

    def import_(self, exported: Exported, *, replace: bool) -> None:
        """Be what was exported. Raises ``ConfigError``, also while another one leads, and ``StoreLost``."""
        try:
            session = self.lock()
            if session is None:
                raise ConfigError(f"{self.where}: a controller leads with it; stop it first")
            with session.transaction():
                put(session, exported, has_tables=session.has_tables(), replace=replace, where=self.where)
        finally:
            self.resign()

    @abstractmethod
    def resign(self) -> None:
        """Let another one lead. Never fails."""

    def _own(self) -> S:
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

    def lead(self) -> Leadership | None:
        """Begin a term; None: another one leads. Raises ``ConfigError`` for a store that is not ours."""
        try:
            session = self.lock()
            return None if session is None else self._begin(session)
        except BaseException:
            self.resign()
            raise

    def _begin(self, session: S) -> Leadership:
        has_tables = session.has_tables()
        store.prepare(session, has_tables=has_tables, store_id=lambda: secrets.token_hex(8), where=self.where)
        found = store.begin_term(session)
        self._term = found.term
        return found

    def _end(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None
