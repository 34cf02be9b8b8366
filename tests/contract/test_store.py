"""Every store keeps promises alike: one leader, whole commits, nothing of a term that is over."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pytest

from inaproto.errors import ConfigError, InvariantBroken, LocalMisuse
from inaproto.wire.messages.trees import FabricTree
from inaproto_controller.cluster.desired import (
    Change,
    Desired,
    Forget,
    Free,
    Give,
    Grant,
    GrantKind,
    Job,
    JobSpec,
    JobState,
    Release,
    Route,
    SetJob,
    Slot,
    TreeNames,
    applied,
)
from inaproto_controller.service.store.opening import open_store
from inaproto_controller.service.store.postgresql import PostgresqlStore
from inaproto_controller.service.store.records import (
    SCHEMA,
    Deposed,
    Leadership,
    Store,
    StoreLost,
)
from tests.controller.conftest import postgresql, postgresql_server  # noqa: F401  fixtures

OpenStore = Callable[[], Store]
HANDOVER_S = 30


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens the same store, as often as a test likes."""
    where = str(tmp_path / "store") if request.param == "sqlite" else request.getfixturevalue("postgresql")
    stores: list[Store] = []

    def open_it() -> Store:
        stores.append(open_store(where))
        return stores[-1]

    yield open_it
    for store in stores:
        store.resign()


def job(number: int, **fields: object) -> Job:
    spec = JobSpec(name=f"job{number}", hosts=2, ranks_per_host=3, model="bert-base-4", on=("h1", "h0"))
    made = Job(
        number=number,
        spec=spec,
        token_hash=f"hash{number}",
        submission_hash=f"of who submitted {number}",
        nonce=(1 << 64) - number,
        expires_s=1 << 40,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def grant(number: int, *slots: Slot, job: int = 1) -> Grant:
    return Grant(number=number, job=job, kind=GrantKind.SEATS, agent="h0", slots=slots)


def lead(store: Store) -> Leadership:
    """A database hears a moment later that the session of who led before has ended."""
    deadline = time.monotonic() + HANDOVER_S
    while (found := store.lead()) is None:
        assert time.monotonic() < deadline
    return found


def commit(store: Store, desired: Desired, *changes: Change) -> Desired:
    after = applied(desired, changes)
    store.commit(changes, after)
    return after


def test_what_was_committed_is_there_for_the_next_leader(opened: OpenStore) -> None:
    store = opened()
    first = lead(store)
    tree = TreeNames("s", ("l", "s"), ("l - s",))
    placed = job(1, state=JobState.PLACED, hosts=("h0", "h1"), tree=tree, group=1, submitted_at=1.5, why="ü")
    placed = replace(placed, root="s")
    desired = commit(store, store.load(), SetJob(placed), SetJob(job(2)))
    desired = commit(store, desired, Give(grant(1, Slot("h0", "", 0), Slot("h0", "p", 1))), Give(grant(2)))
    desired = commit(store, desired, Give(replace(grant(3), kind=GrantKind.PLACE)))
    desired = commit(store, desired, Release(1))
    assert store.load() == desired
    store.resign()
    later = opened()
    second = lead(later)
    assert (second.term, second.store_id) == (first.term + 1, first.store_id)
    assert later.load() == replace(desired, revision=desired.revision + 1)


@pytest.mark.parametrize(
    "route",
    [
        Route(FabricTree("s", (("l", "s"), ("m", "l")), ("m",)), Fraction(7, 3)),
        Route(None, why="no switch has capacity left"),
    ],
    ids=["a tree", "none"],
)
def test_the_tree_of_a_plan_is_there_for_the_next_leader(opened: OpenStore, route: Route) -> None:
    store = opened()
    lead(store)
    commit(store, store.load(), SetJob(job(1, state=JobState.PLACED, hosts=("h0", "h1"), route=route)))
    store.resign()
    later = opened()
    lead(later)
    assert later.load().jobs[1].route == route


def test_numbers_are_never_used_again(opened: OpenStore) -> None:
    store = opened()
    lead(store)
    desired = commit(store, store.load(), SetJob(job(1, state=JobState.ENDED)), Give(grant(1)), Free(1))
    desired = commit(store, desired, Forget(1))
    assert not desired.jobs
    assert not desired.grants
    assert store.load() == desired
    assert (desired.next_job, desired.next_grant) == (2, 2)


def test_one_leads_at_a_time(opened: OpenStore) -> None:
    first, second = opened(), opened()
    lead(first)
    assert second.lead() is None
    assert second.lead() is None
    for call in (second.load, second.verify, second.records):
        with pytest.raises(Deposed):
            call()
    first.verify()
    first.resign()
    deadline = time.monotonic() + HANDOVER_S
    while second.lead() is None:  # a database hears a moment later that a session has ended
        assert time.monotonic() < deadline
    with pytest.raises(Deposed):
        first.verify()


def test_a_commit_is_whole(opened: OpenStore) -> None:
    """The second of two grants of a slot is refused by the store itself, and nothing of that commit stays."""
    store = opened()
    lead(store)
    desired = commit(store, store.load(), SetJob(job(1)), Give(grant(1, Slot("h0", "", 0))))
    bad = (SetJob(job(3)), Give(grant(2, Slot("h0", "", 0))))
    after = replace(desired, revision=desired.revision + 1)
    with pytest.raises(InvariantBroken):
        store.commit(bad, after)
    assert store.load() == desired
    assert 2 in commit(store, desired, SetJob(job(2))).jobs


def test_a_commit_of_another_view_is_refused(opened: OpenStore) -> None:
    store = opened()
    lead(store)
    old = store.load()
    commit(store, old, SetJob(job(1)))
    with pytest.raises(Deposed):
        commit(store, old, SetJob(job(2)))
    assert sorted(store.load().jobs) == [1]


def test_two_live_jobs_of_one_name_are_refused_by_the_store(opened: OpenStore) -> None:
    store = opened()
    lead(store)
    twin = replace(job(2), spec=job(1).spec)
    desired = commit(store, store.load(), SetJob(job(1)))
    with pytest.raises(InvariantBroken):
        commit(store, desired, SetJob(twin))
    desired = commit(store, desired, SetJob(job(1, state=JobState.ENDED)), SetJob(twin))
    assert store.load() == desired


def test_records_are_of_their_owner(opened: OpenStore) -> None:
    store = opened()
    lead(store)
    store.put_record("sharing/1", b"\x00one")
    store.put_record("sharing/1", b"\xfftwo")
    store.put_record("migration/1", b"three")
    assert store.records() == {"migration/1": b"three", "sharing/1": b"\xfftwo"}
    store.put_record("migration/1", None)
    store.resign()
    lead(store)
    assert store.records() == {"sharing/1": b"\xfftwo"}


def test_an_owner_that_cannot_be_stored_costs_nobody_his_place(opened: OpenStore) -> None:
    """Who takes it for a store that is lost leads again, and is asked the same."""
    store = opened()
    lead(store)
    with pytest.raises(LocalMisuse, match="cannot be stored"):
        store.put_record("sharing/a\0", b"")
    store.verify()
    store.put_record("sharing/a", b"one")
    assert store.records() == {"sharing/a": b"one"}


def test_what_a_database_never_takes_is_our_fault_not_that_of_the_store(opened: OpenStore) -> None:
    """No other leader could write it either, and this one is to end with it, not to try again for ever."""
    store = opened()
    lead(store)
    with pytest.raises(InvariantBroken):
        store.keep_events([(1, "\0" if isinstance(store, PostgresqlStore) else cast("str", object()))], [])
    store.verify()
    store.keep_events([(1, "one")], [])
    assert list(store.events()) == [(1, "one")]


def test_events_are_kept_by_number(opened: OpenStore) -> None:
    store = opened()
    lead(store)
    assert list(store.events()) == []
    store.keep_events([(2, "two"), (10, "ten ü")], [])
    store.keep_events([(2, "two again"), (1, "one")], [10, 77])
    store.resign()
    lead(store)
    assert list(store.events()) == [(1, "one"), (2, "two again")]


def test_many_events_are_kept_whole_or_not_at_all(opened: OpenStore) -> None:
    store = opened()
    lead(store)
    rows = [(number, f"event {number}") for number in range(1000)]
    store.keep_events(rows, [])
    store.keep_events([(1, "again")], list(range(500, 1000)))
    assert list(store.events()) == [(0, "event 0"), (1, "again"), *rows[2:500]]
    with pytest.raises(InvariantBroken):
        store.keep_events([(2, "again"), (3, cast("str", None))], [0])
    store.keep_events([], [])
    assert list(store.events()) == [(0, "event 0"), (1, "again"), *rows[2:500]]


def test_a_connection_has_one_watch_however_much_is_asked(postgresql: str) -> None:  # noqa: F811
    """A thread for each statement is more work than the statement."""
    others = set(threading.enumerate())
    store = open_store(postgresql)
    lead(store)
    started = {one for one in threading.enumerate() if one not in others}
    for number in range(50):
        store.keep_events([(number, "event")], [])
        assert {one for one in threading.enumerate() if one not in others} == started
    store.resign()
    for one in started:
        one.join(HANDOVER_S)
        assert not one.is_alive()


def test_a_server_that_does_not_answer_many_is_given_up(postgresql: str) -> None:  # noqa: F811
    """While another session holds the row."""
    import psycopg

    store = PostgresqlStore(postgresql, answer_s=0.5)
    lead(store)
    store.keep_events([(1, "one")], [])
    with psycopg.connect(postgresql) as connection:
        connection.execute("SELECT * FROM events FOR UPDATE")
        with pytest.raises(StoreLost, match=r"has not answered for 0\.5 s"):
            store.keep_events([(number, "again") for number in range(100)], [])
    store.resign()


def test_a_deposed_leader_writes_nothing(postgresql: str) -> None:  # noqa: F811
    """Its session with the lock is gone, that by which it writes is not: it does not know yet."""
    import psycopg

    first, second = open_store(postgresql), open_store(postgresql)
    lead(first)
    desired = first.load()
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    while second.lead() is None:
        pass  # a moment: the session ends when its process has
    assert second.load().revision == desired.revision + 1
    with pytest.raises(Deposed):
        commit(first, desired, SetJob(job(1)))
    with pytest.raises(Deposed):
        first.put_record("sharing/1", b"")
    with pytest.raises(Deposed):
        first.keep_events([(1, "")], [])
    with pytest.raises(StoreLost):
        first.verify()
    assert second.load().jobs == {}
    assert second.records() == {}
    assert list(second.events()) == []
    for store in (first, second):
        store.resign()


def test_a_leader_that_hangs_loses_its_place(postgresql: str) -> None:  # noqa: F811
    """Its sessions stand: it was stopped, or its machine lost power, of which the server hears nothing."""
    first, second = PostgresqlStore(postgresql, silent_s=1), open_store(postgresql)
    lead(first)
    desired = first.load()
    deadline = time.monotonic() + HANDOVER_S
    while second.lead() is None:
        assert time.monotonic() < deadline, "the leader that says nothing still has its lock"
    with pytest.raises(StoreLost):
        first.verify()
    with pytest.raises(StoreLost):
        commit(first, desired, SetJob(job(1)))
    assert second.load().jobs == {}
    for store in (first, second):
        store.resign()


def test_a_server_that_does_not_answer_is_given_up(postgresql: str) -> None:  # noqa: F811
    """Its machine answers for it, so no timer of TCP runs out."""
    import psycopg

    store = PostgresqlStore(postgresql, answer_s=0.5)
    lead(store)
    with psycopg.connect(postgresql, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'inaproto controller'"
        ).fetchall()
    for (pid,) in rows:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreLost, match=r"has not answered for 0\.5 s"):
            store.verify()
        with pytest.raises(StoreLost):
            store.put_record("sharing/1", b"")
        store.resign()
    finally:
        for (pid,) in rows:
            os.kill(pid, signal.SIGCONT)


def test_a_file_that_somebody_holds_is_waited_for(tmp_path: Path) -> None:
    """It can be used, only not now: the controller goes on trying."""
    connection = sqlite3.connect(tmp_path / "store", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    store = open_store(str(tmp_path / "store"))
    with pytest.raises(StoreLost, match="locked"):
        store.lead()
    connection.close()
    lead(store)
    store.resign()


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    lead(store)
    store.resign()
    with sqlite3.connect(tmp_path / "store") as connection:
        connection.execute(f"UPDATE control SET schema_version = {len(SCHEMA) + 1}")
    connection.close()
    with pytest.raises(ConfigError, match="written by a newer inaproto"):
        store.lead()


def test_a_store_of_the_first_schema_gets_what_it_lacks(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    lead(store)
    desired = commit(store, store.load(), SetJob(job(1)))
    store.resign()
    with sqlite3.connect(tmp_path / "store") as connection:
        connection.execute("DROP INDEX grants_by_kind")
        connection.execute("DROP INDEX grants_by_job")
        connection.execute("DROP TABLE events")
        connection.execute("UPDATE control SET schema_version = 1")
    connection.close()
    lead(store)
    assert store.load().jobs == desired.jobs
    store.keep_events([(1, "one")], [])
    assert list(store.events()) == [(1, "one")]
    store.resign()


def test_jobs_of_a_store_from_before_wishes_have_none(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    lead(store)
    desired = commit(store, store.load(), SetJob(job(1)))
    store.resign()
    with sqlite3.connect(tmp_path / "store") as connection:
        connection.execute("DROP INDEX grants_by_job")
        connection.execute("UPDATE jobs SET body = json_remove(body, '$.root')")
        connection.execute("UPDATE control SET schema_version = 3")
    connection.close()
    lead(store)
    found = store.load()
    assert found.jobs == desired.jobs
    assert found.jobs[1].root == ""
    store.resign()


def test_files_that_are_no_store_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(ConfigError, match="can be a SQLite database"):
        open_store(str(tmp_path / "text")).lead()
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    with pytest.raises(ConfigError, match="of something else"):
        open_store(str(tmp_path / "other")).lead()
    with pytest.raises(ConfigError, match=r"cannot open .*No such file"):
        open_store(str(tmp_path / "none" / "store")).lead()
    with pytest.raises(ConfigError, match="a path, or postgresql://"):
        open_store("mysql://x:secret@y/z")


def test_a_database_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreLost, match="store none at"):
        open_store(f"postgresql:///none?host={tmp_path}").lead()


def test_tokens_are_for_nobody_else(tmp_path: Path) -> None:
    lead(open_store(str(tmp_path / "store")))
    assert {oct(path.stat().st_mode & 0o077) for path in tmp_path.iterdir()} == {"0o0"}


@pytest.fixture
def database_of(postgresql: str) -> Iterator[Callable[[str], str]]:  # noqa: F811
    """Makes a database with that encoding; returns its URL."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    made: list[str] = []

    def make(encoding: str) -> str:
        name = f"in_{encoding.lower()}"
        with psycopg.connect(postgresql, autocommit=True) as connection:
            how = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            connection.execute(f"CREATE DATABASE {name} {how}".encode())
        made.append(name)
        parts: dict[str, Any] = {**conninfo_to_dict(postgresql), "dbname": name}
        return make_conninfo(**parts)

    yield make
    with psycopg.connect(postgresql, autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII"])
def test_a_database_without_an_encoding_keeps_names_too(
    encoding: str, database_of: Callable[[str], str]
) -> None:
    """One that was made in the C locale: the next leader reads what this one has promised."""
    url = database_of(encoding)
    first = PostgresqlStore(url)
    lead(first)
    found = first.load()
    promised = replace(grant(1, Slot("h0", "", 0)), agent="h\u00e9\u4e2d")
    changes: list[Change] = [SetJob(job(1)), Give(promised)]
    after = applied(found, changes)
    first.commit(changes, after)
    first.resign()
    second = PostgresqlStore(url)
    lead(second)  # the server may not have heard yet that the first one's session has ended
    assert replace(second.load(), revision=after.revision) == after
    second.resign()


def test_a_database_whose_encoding_lacks_names_is_refused(database_of: Callable[[str], str]) -> None:
    store = PostgresqlStore(database_of("LATIN1"))
    with pytest.raises(ConfigError, match="has the encoding LATIN1"):
        store.lead()
    store.resign()
