"""A PostgreSQL server for all tests of this folder that want one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from inaproto.errors import Unsupported
from inaproto_hil.rigs.postgresql_server import running_postgresql
from tests.conftest import end_without


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    with ExitStack() as stack:
        try:
            url = stack.enter_context(running_postgresql())
        except Unsupported as why:
            end_without("postgresql", why)
        yield url


@pytest.fixture
def postgresql(postgresql_server: str) -> str:
    """The URL of an empty database."""
    import psycopg

    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return postgresql_server
