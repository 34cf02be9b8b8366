"""What a store does while its controller leads, whatever the database: all by statements of its term."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Generic, TypeVar

from inaproto_controller.cluster.desired import Change, Desired
from inaproto_controller.service.store import records as store
from inaproto_controller.service.store.records import Deposed, Leadership, Row


class Session(ABC):
    """:class:`inaproto_controller.service.store.records.Database`, by what a database has of its own."""

    begin: ClassVar[str] = "BEGIN"

    @abstractmethod
    def has_tables(self) -> bool:
        """Raises ``ConfigError`` for a database of something else."""

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
    def transaction(self) -> Iterator[None]:
        self.run(self.begin)
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            self.roll_back()
            raise


S = TypeVar("S", bound=Session)


class LedStore(Generic[S]):
    """The part of :class:`inaproto_controller.service.store.records.Store` for which ``lead`` has set session
    and term."""

    def __init__(self) -> None:
        self._database: S | None = None
        self._term = 0

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

    def _begin(self, session: S, where: str) -> Leadership:
        """A term, by a session that is used from now on."""
        self._database = session
        has_tables = session.has_tables()
        store.prepare(session, has_tables=has_tables, store_id=lambda: secrets.token_hex(8), where=where)
        found = store.begin_term(session)
        self._term = found.term
        return found

    def _end(self) -> None:
        if self._database is not None:
            self._database.close()
        self._database = None
