"""A PostgreSQL server for all tests of this folder that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controller.running_postgresql import running_postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    with running_postgresql() as url:
        yield url


@pytest.fixture
def postgresql(postgresql_server: str) -> str:
    """The URL of an empty database."""
    import psycopg

    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgresql_server
