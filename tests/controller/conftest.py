"""A PostgreSQL server for all tests of this folder that want one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from inaproto.errors import Unsupported
from inaproto_controller.service.store import postgresql as postgresql_store
from inaproto_hil.rigs.postgresql_server import running_postgresql
from tests.conftest import end_without

PATIENT_S = 600
"""Longer than a busy machine needs, so only a hang meets it."""


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    with ExitStack() as stack:
        try:
            url = stack.enter_context(running_postgresql())
        except Unsupported as why:
            end_without("postgresql", why)
        yield url


@pytest.fixture
def postgresql(postgresql_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database. Stores that this process opens wait long for it, unless they are told how
    long: what else is tested is not to end because the machine was busy."""
    import psycopg

    patience = {"silent_s": PATIENT_S, "answer_s": PATIENT_S}
    monkeypatch.setattr(postgresql_store.PostgresqlStore.__init__, "__kwdefaults__", patience)
    monkeypatch.setattr(postgresql_store, "_STATEMENT_MS", 1000 * PATIENT_S)
    monkeypatch.setattr(postgresql_store, "_CONNECT_S", PATIENT_S)
    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgresql_server
