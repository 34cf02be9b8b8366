"""A store becomes a file, and the file another store, of either kind and of any older version."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inaproto.errors import ConfigError
from inaproto_controller.cluster.desired import Desired, Give, GrantKind, JobState, Release, SetJob, Slot
from inaproto_controller.service.command import controller
from inaproto_controller.service.store import exported
from inaproto_controller.service.store.exported import CHANGES_AHEAD, JOBS_AHEAD, TERMS_AHEAD
from inaproto_controller.service.store.opening import open_store
from inaproto_controller.service.store.records import SCHEMA, Store
from tests.contract.test_store import commit, grant, job, lead
from tests.controller.conftest import postgresql, postgresql_server  # noqa: F401  fixtures

Place = Callable[[str, str], str]


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a store of a kind may be; of PostgreSQL there is one."""
    return lambda kind, name: (
        str(tmp_path / name) if kind == "sqlite" else request.getfixturevalue("postgresql")
    )


def run(*words: object) -> Result:
    return CliRunner().invoke(controller, list(map(str, words)))


def fill(store: Store) -> Desired:
    placed = job(1, state=JobState.RUNNING, hosts=("h0", "h1"), why="ü", submitted_at=1.5, group=1)
    desired = commit(store, store.load(), SetJob(placed), SetJob(job(2)))
    desired = commit(store, desired, Give(grant(1, Slot("h0", "", 0), Slot("h0", "p", 1))), Give(grant(2)))
    desired = commit(store, desired, Give(replace(grant(3), kind=GrantKind.PLACE)), Release(1))
    store.put_record("core/1", bytes(range(256)))
    store.put_record("core/2", b"")
    store.keep_events([(3, '{"at": 1}'), (70, "two")], [])
    return desired


@pytest.mark.parametrize("to", ["sqlite", "postgresql"])
@pytest.mark.parametrize("of", ["sqlite", "postgresql"])
def test_it_goes_from_any_kind_to_any_while_its_controller_leads(
    of: str, to: str, place: Place, tmp_path: Path
) -> None:
    where, there = place(of, "one"), place(to, "two")
    leader = open_store(where)
    term = lead(leader).term
    before = fill(leader)
    file = tmp_path / "backup"
    assert (found := run("--store", where, "--export", file)).exit_code == 0, found.output
    assert "2 jobs, 3 grants, 2 records, 2 events, schema version 4" in found.output
    assert file.stat().st_mode & 0o777 == 0o600, "whoever reads it can make tokens"
    commit(leader, before, SetJob(job(3)))
    leader.resign()
    again = ["--replace"] if where == there else []
    assert (found := run("--store", there, "--import", file, *again)).exit_code == 0, found.output
    store = open_store(there)
    assert lead(store).term > term + TERMS_AHEAD, "agents know the term of before"
    after = store.load()
    assert (after.jobs, after.grants) == (before.jobs, before.grants), "and not what came behind the export"
    assert after.revision > before.revision + CHANGES_AHEAD
    assert after.next_grant == before.next_grant + CHANGES_AHEAD
    assert after.next_job == before.next_job + JOBS_AHEAD
    assert store.records() == {"core/1": bytes(range(256)), "core/2": b""}
    assert list(store.events()) == [(3, '{"at": 1}'), (70, "two")]
    commit(store, after, SetJob(job(after.next_job)), Give(grant(after.next_grant)))
    store.resign()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_is_written_meanwhile_is_in_it_as_a_whole_or_not_at_all(kind: str, place: Place) -> None:
    leader, reader = open_store(place(kind, "one")), open_store(place(kind, "one"))
    lead(leader)
    before = fill(leader)
    session = reader.open_to_read()
    with session.transaction(reads=True):
        session.run("SELECT term FROM control")
        commit(leader, before, SetJob(job(3)), Give(grant(4, job=3)))
        leader.put_record("core/1", None)
        found = exported.take(session, "it")
    session.close()
    assert [row[0] for row in found.rows["jobs"]] == [1, 2]
    assert [row[0] for row in found.rows["grants"]] == [1, 2, 3]
    assert [row[0] for row in found.rows["records"]] == ["core/1", "core/2"]
    leader.resign()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_store_that_is_led_or_has_something_is_left_alone(kind: str, place: Place, tmp_path: Path) -> None:
    where, file = place(kind, "one"), tmp_path / "backup"
    leader = open_store(where)
    lead(leader)
    before = fill(leader)
    assert run("--store", where, "--export", file).exit_code == 0
    held = run("--store", where, "--import", file, "--replace")
    assert (held.exit_code, "a controller leads with it; stop it first" in held.output) == (2, True)
    leader.resign()
    lead(leader)
    leader.resign()
    full = run("--store", where, "--import", file)
    assert (full.exit_code, "is not empty (2 jobs, 3 grants" in full.output) == (2, True)
    lead(leader)
    assert leader.load().jobs == before.jobs
    leader.resign()


def test_a_store_that_only_began_may_be_written_over_when_that_is_said(tmp_path: Path) -> None:
    """So it is after a disk was lost: the controller was started, and made an empty one."""
    store = open_store(str(tmp_path / "one"))
    lead(store)
    before = fill(store)
    store.resign()
    assert run("--store", tmp_path / "one", "--export", tmp_path / "backup").exit_code == 0
    late = open_store(str(tmp_path / "two"))
    terms = [lead(late).term for _ in range(7)]
    late.put_record("secret", b"new")
    late.resign()
    found = run("--store", tmp_path / "two", "--import", tmp_path / "backup")
    assert "is not empty (0 jobs, 0 grants, 1 record, 0 events" in found.output
    assert run("--store", tmp_path / "two", "--import", tmp_path / "backup", "--replace").exit_code == 0
    assert lead(late).term > terms[-1] + TERMS_AHEAD
    assert (late.load().jobs, late.records().get("secret")) == (before.jobs, None)
    late.resign()


def old(path: Path, version: int) -> Desired:
    """A store as a program with schema ``version`` left it."""
    store = open_store(str(path))
    lead(store)
    fill(store)
    desired = store.load()
    store.resign()
    with sqlite3.connect(path) as connection:
        for lacks, statement in (
            (4, "DROP INDEX grants_by_job"),
            (4, "UPDATE jobs SET body = json_remove(body, '$.root')"),
            (3, "DROP INDEX grants_by_kind"),
            (2, "DROP TABLE events"),
        ):
            if version < lacks:
                connection.execute(statement)
        connection.execute(f"UPDATE control SET schema_version = {version}")
    connection.close()
    return desired


@pytest.mark.parametrize("version", range(1, len(SCHEMA)))
def test_an_export_of_an_older_version_is_migrated_forward(version: int, tmp_path: Path) -> None:
    before = old(tmp_path / "old", version)
    found = run("--store", tmp_path / "old", "--export", tmp_path / "backup")
    assert f"schema version {version}" in found.output
    with sqlite3.connect(tmp_path / "old") as connection:
        ((kept,),) = connection.execute("SELECT schema_version FROM control")
    connection.close()
    assert kept == version, "an export changes nothing"
    assert run("--store", tmp_path / "new", "--import", tmp_path / "backup").exit_code == 0
    with sqlite3.connect(tmp_path / "new") as connection:
        names = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")
        }
    connection.close()
    assert {"grants_by_kind", "grants_by_job"} <= names
    store = open_store(str(tmp_path / "new"))
    lead(store)
    assert (store.load().jobs, store.load().grants) == (before.jobs, before.grants)
    assert len(store.events()) == (0 if version < 2 else 2)
    store.resign()


def test_what_is_newer_is_refused_in_words(tmp_path: Path) -> None:
    old(tmp_path / "new", len(SCHEMA) + 1)
    found = run("--store", tmp_path / "new", "--export", tmp_path / "backup")
    assert (found.exit_code, "written by a newer inaproto: use that one" in found.output) == (2, True)
    assert not (tmp_path / "backup").exists()
    head = {"what": exported.WHAT, "format": 1, "schema_version": len(SCHEMA) + 1}
    (tmp_path / "backup").write_text(json.dumps(head))
    found = run("--store", tmp_path / "two", "--import", tmp_path / "backup")
    assert (found.exit_code, "written by a newer inaproto: use that one" in found.output) == (2, True)
    (tmp_path / "backup").write_text(json.dumps(head | {"format": 2}))
    found = run("--store", tmp_path / "two", "--import", tmp_path / "backup")
    assert (found.exit_code, "has format 2, this program reads 1" in found.output) == (2, True)
    assert not (tmp_path / "two").exists()


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    store = open_store(str(tmp_path / "one"))
    lead(store)
    fill(store)
    store.resign()
    assert run("--store", tmp_path / "one", "--export", tmp_path / "backup").exit_code == 0
    return tmp_path / "backup"


def test_any_line_that_is_lost_or_changed_is_noticed(backup: Path, tmp_path: Path) -> None:
    lines = backup.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        for changed in ([], [line.replace(b"1", b"2", 1)], [line[: len(line) // 2]], [line, line]):
            if changed == [line]:
                continue
            with pytest.raises(ConfigError, match=r"backup: "):
                exported.read([*lines[:number], *changed, *lines[number + 1 :]], "backup")
    backup.write_bytes(b"".join(lines[:-1]))
    found = run("--store", tmp_path / "two", "--import", backup)
    assert (found.exit_code, "is cut off, its last line is missing" in found.output) == (2, True)
    assert not (tmp_path / "two").exists()


def test_rows_that_are_no_store_leave_the_store_as_it_was(backup: Path, tmp_path: Path) -> None:
    """Somebody has made the file, with a right end."""
    with backup.open("rb") as lines:
        found = exported.read(lines, "backup")
    number, name, *_, body = found.rows["jobs"][0]
    for wrong in (
        {"jobs": [(number, name, 1, 1, "hash", "{}")]},
        {"jobs": [(number, name, 1, 1, "hash", body), (number, name, 1, 1, "hash", body)]},
        {"grants": [(1, 77, "seats", "h0", None)]},
    ):
        store = open_store(str(tmp_path / "one"))
        with pytest.raises(ConfigError, match="the file is no store of a controller"):
            store.import_(replace(found, rows={**found.rows, **wrong}), replace=True)
        lead(store)
        assert len(store.load().jobs) == 2
        store.resign()


def test_by_pipes_and_what_cannot_be(backup: Path, tmp_path: Path) -> None:
    piped = CliRunner().invoke(controller, ["--store", str(tmp_path / "one"), "--export", "-"])
    there = CliRunner().invoke(
        controller, ["--store", str(tmp_path / "two"), "--import", "-"], input=piped.stdout_bytes
    )
    assert there.exit_code == 0, there.output
    for words, said in (
        (("--export", "a", "--import", "b"), "one at a time"),
        (("--export", "a", "--replace"), "--replace: is for --import"),
        (("--dir", tmp_path / "none", "--export", "a"), "there is no such file"),
        (("--store", tmp_path / "three", "--import", tmp_path / "none"), "cannot read"),
        (("--store", tmp_path / "one", "--export", tmp_path / "none" / "a"), "nothing was exported"),
    ):
        found = run(*words)
        assert found.exit_code != 0
        assert said in found.output, found.output
    assert not (tmp_path / "three").exists()
