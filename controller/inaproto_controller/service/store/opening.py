"""Which store a setting means: a file, or a database."""

from __future__ import annotations

from pathlib import Path

from inaproto.errors import ConfigError
from inaproto_controller.service.store.postgresql import PostgresqlStore
from inaproto_controller.service.store.sqlite import SqliteStore


def open_store(where: str) -> SqliteStore | PostgresqlStore:
    """A path: SQLite; ``postgresql://...``: that. Nothing is opened yet.

    Raises ``ConfigError``, and ``Unsupported`` where PostgreSQL's client is not installed.
    """
    scheme, colon, _ = where.partition("://")
    if not colon:
        return SqliteStore(Path(where))
    if scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"store: {where.rpartition('@')[2]!r}: a path, or postgresql://HOST/DATABASE")
    return PostgresqlStore(where)
