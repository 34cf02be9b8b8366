"""Where promises are kept: one writer, whole commits, durable before anybody hears of them.

Who leads has a *term*, which grows with every leader. A commit is of a term and of the revision that it
makes; both are checked and changed by the statement that begins to write, so that a leader who was deposed,
or whose view is not that of the store, changes nothing. A store keeps a second controller from leading by a
lock that ends with its holder: of a file (SQLite), or of a database session (PostgreSQL).

Stores are used from one thread at a time; any call may wait for a disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Protocol, assert_never

from inaproto.errors import ConfigError, InaprotoError, LocalMisuse
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
)

Row = tuple[Any, ...]


class PutRecord(Protocol):
    """Writes the record that a core has to find again, or (None) forgets it; on disk when it returns.

    Writes of one owner are to be in order: the next one begins when this one has returned.
    """

    async def __call__(self, owner: str, body: bytes | None) -> None: ...


class StoreLost(InaprotoError):
    """The store cannot be used now. Whether a commit that was under way has been made is not known."""


class Deposed(StoreLost):
    """Another one leads, or has led; nothing was written."""


@dataclass(frozen=True, slots=True)
class Leadership:
    term: int
    store_id: str
    """Drawn when the store was made."""


class Store(Protocol):
    """Calls of one that does not lead raise ``Deposed``; all raise ``StoreLost``."""

    def lead(self) -> Leadership | None:
        """Begin a term; None: another one leads. Raises ``ConfigError`` for a store that is not ours."""
        ...

    def verify(self) -> None:
        """Returns if nobody else can lead."""
        ...

    def load(self) -> Desired: ...

    def commit(self, changes: Sequence[Change], after: Desired) -> None:
        """All of them or none; ``after`` is what they make. Returns when it is on disk.

        Raises ``InvariantBroken`` for a slot that is taken.
        """
        ...

    def records(self) -> Mapping[str, bytes]:
        """What protocol cores must find again, by owner."""
        ...

    def put_record(self, owner: str, body: bytes | None) -> None:
        """In the place of the one before; None: there is none any more.

        Raises ``LocalMisuse`` for an owner with a NUL, which not every database can store.
        """
        ...

    def events(self) -> Sequence[tuple[int, str]]:
        """What has happened, for people; by number, ascending."""
        ...

    def keep_events(self, rows: Sequence[tuple[int, str]], gone: Sequence[int]) -> None:
        """``rows`` in the place of those of their numbers, and none of ``gone`` any more."""
        ...

    def resign(self) -> None:
        """Let another one lead. Never fails."""
        ...


class Database(Protocol):
    """A connection. SQL has ``?`` where values go. Raises ``StoreLost`` and ``InvariantBroken``."""

    def run(self, sql: str, values: Sequence[object] = ()) -> list[Row]: ...
    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None: ...

    def transaction(self) -> AbstractContextManager[None]:
        """Made as a whole at its end, or undone by an exception."""
        ...


SCHEMA: Final[tuple[str, ...]] = (
    """
    CREATE TABLE control (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        schema_version BIGINT NOT NULL,
        store_id TEXT NOT NULL,
        term BIGINT NOT NULL,
        revision BIGINT NOT NULL,
        next_job BIGINT NOT NULL,
        next_grant BIGINT NOT NULL
    );
    CREATE TABLE jobs (
        number BIGINT PRIMARY KEY,
        name TEXT NOT NULL,
        is_live INTEGER NOT NULL,
        revision BIGINT NOT NULL,
        token_hash TEXT NOT NULL,
        body TEXT NOT NULL
    );
    CREATE UNIQUE INDEX jobs_live_name ON jobs (name) WHERE is_live = 1;
    CREATE TABLE grants (
        number BIGINT PRIMARY KEY,
        job BIGINT NOT NULL REFERENCES jobs (number),
        kind TEXT NOT NULL,
        agent TEXT NOT NULL,
        released BIGINT
    );
    CREATE TABLE slots (
        agent TEXT NOT NULL,
        port TEXT NOT NULL,
        number BIGINT NOT NULL,
        grant_number BIGINT NOT NULL REFERENCES grants (number),
        PRIMARY KEY (agent, port, number)
    );
    CREATE INDEX slots_of_grants ON slots (grant_number);
    CREATE TABLE records (owner TEXT PRIMARY KEY, body BYTEA NOT NULL);
    """,
    "CREATE TABLE events (number BIGINT PRIMARY KEY, body TEXT NOT NULL);",
    # Grants may be reservations from here on, which an older program cannot read.
    "CREATE INDEX grants_by_kind ON grants (kind);",
    # Grants may be places, and jobs may wish for a root, from here on: an older program knows neither.
    "CREATE INDEX grants_by_job ON grants (job);",
)
"""Statements by version, from 1: what makes it of the one before. Both databases take all of it."""


def prepare(database: Database, *, has_tables: bool, store_id: Callable[[], str], where: str) -> None:
    """Bring the tables to the version of this program. Raises ``ConfigError`` for a newer one."""
    with database.transaction():
        version = version_of(database, where) if has_tables else 0
        migrate(database, version)
        if not has_tables:
            row = (1, len(SCHEMA), store_id(), 0, 0, 1, 1)
            database.run("INSERT INTO control VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        elif version < len(SCHEMA):
            database.run("UPDATE control SET schema_version = ?", (len(SCHEMA),))


def version_of(database: Database, where: str) -> int:
    """Of its schema. Raises ``ConfigError`` for one that is newer than this program."""
    ((version,),) = database.run("SELECT schema_version FROM control")
    require_known(version, where)
    return int(version)


def require_known(version: int, where: str) -> None:
    """Raises ``ConfigError``."""
    if version > len(SCHEMA):
        raise ConfigError(
            f"{where}: has schema version {version}, this program knows {len(SCHEMA)}; it was "
            "written by a newer inaproto: use that one"
        )


def migrate(database: Database, version: int, until: int = len(SCHEMA)) -> None:
    """Tables of schema ``version`` (0: none) become those of ``until``."""
    for statements in SCHEMA[version:until]:
        for statement in statements.split(";")[:-1]:
            database.run(statement)


def begin_term(database: Database) -> Leadership:
    with database.transaction():
        database.run("UPDATE control SET term = term + 1, revision = revision + 1")
        ((term, store_id),) = database.run("SELECT term, store_id FROM control")
    return Leadership(term, store_id)


def verify_term(database: Database, term: int) -> None:
    ((found,),) = database.run("SELECT term FROM control")
    if found != term:
        raise Deposed(f"term {term} is over, it is term {found}")


def load(database: Database) -> Desired:
    with database.transaction():
        return desired(database)


def desired(database: Database) -> Desired:
    """In a transaction."""
    ((revision, next_job, next_grant),) = database.run("SELECT revision, next_job, next_grant FROM control")
    jobs = database.run("SELECT number, revision, token_hash, body FROM jobs ORDER BY number")
    grants = database.run("SELECT number, job, kind, agent, released FROM grants ORDER BY number")
    slots: dict[int, list[Slot]] = {}
    for agent, port, number, grant in database.run(
        "SELECT agent, port, number, grant_number FROM slots ORDER BY agent, port, number"
    ):
        slots.setdefault(grant, []).append(Slot(agent, port, number))
    return Desired(
        {number: _job(number, at, token, body) for number, at, token, body in jobs},
        {
            number: Grant(
                number=number,
                job=job,
                kind=GrantKind(kind),
                agent=agent,
                slots=tuple(slots.get(number, ())),
                released=released,
            )
            for number, job, kind, agent, released in grants
        },
        revision,
        next_job,
        next_grant,
    )


def commit(database: Database, term: int, changes: Sequence[Change], after: Desired) -> None:
    with database.transaction():
        found = database.run(
            "UPDATE control SET revision = ?, next_job = ?, next_grant = ? WHERE term = ? AND revision = ? "
            "RETURNING one",
            (after.revision, after.next_job, after.next_grant, term, after.revision - 1),
        )
        if not found:
            raise Deposed(f"term {term} is over, or revision {after.revision} has been made by another")
        for change in changes:
            _write(database, change, after)


def _write(database: Database, change: Change, after: Desired) -> None:
    match change:
        case SetJob(job):
            database.run(
                "INSERT INTO jobs (number, name, is_live, revision, token_hash, body) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET "
                "is_live = excluded.is_live, revision = excluded.revision, "
                "token_hash = excluded.token_hash, body = excluded.body",
                (
                    job.number,
                    job.spec.name,
                    int(job.state.is_live),
                    after.revision,
                    job.token_hash,
                    _body(job),
                ),
            )
        case Give(grant):
            database.run(
                "INSERT INTO grants (number, job, kind, agent) VALUES (?, ?, ?, ?)",
                (grant.number, grant.job, str(grant.kind), grant.agent),
            )
            database.many(
                "INSERT INTO slots (agent, port, number, grant_number) VALUES (?, ?, ?, ?)",
                [(*slot, grant.number) for slot in grant.slots],
            )
        case Release(number):
            database.run("UPDATE grants SET released = ? WHERE number = ?", (after.revision, number))
        case Free(number):
            database.run("DELETE FROM slots WHERE grant_number = ?", (number,))
            database.run("DELETE FROM grants WHERE number = ?", (number,))
        case Forget(number):
            database.run("DELETE FROM jobs WHERE number = ?", (number,))
        case _:
            assert_never(change)


def records(database: Database) -> dict[str, bytes]:
    return {
        owner: bytes(body) for owner, body in database.run("SELECT owner, body FROM records ORDER BY owner")
    }


def put_record(database: Database, term: int, owner: str, body: bytes | None) -> None:
    if "\0" in owner:
        raise LocalMisuse(f"record of {owner!r}: its owner has a name that cannot be stored")
    with database.transaction():
        _hold_term(database, term)
        if body is None:
            database.run("DELETE FROM records WHERE owner = ?", (owner,))
            return
        database.run(
            "INSERT INTO records (owner, body) VALUES (?, ?) "
            "ON CONFLICT (owner) DO UPDATE SET body = excluded.body",
            (owner, body),
        )


def _hold_term(database: Database, term: int) -> None:
    """Until the end of the transaction."""
    if not database.run("UPDATE control SET term = term WHERE term = ? RETURNING one", (term,)):
        raise Deposed(f"term {term} is over")


def events(database: Database) -> list[tuple[int, str]]:
    return [
        (number, body) for number, body in database.run("SELECT number, body FROM events ORDER BY number")
    ]


def keep_events(database: Database, term: int, rows: Sequence[tuple[int, str]], gone: Sequence[int]) -> None:
    with database.transaction():
        _hold_term(database, term)
        database.many(
            "INSERT INTO events (number, body) VALUES (?, ?) "
            "ON CONFLICT (number) DO UPDATE SET body = excluded.body",
            rows,
        )
        database.many("DELETE FROM events WHERE number = ?", [(number,) for number in gone])


def _body(job: Job) -> str:
    return json.dumps(
        {
            "hosts_wanted": job.spec.hosts,
            "ranks_per_host": job.spec.ranks_per_host,
            "name": job.spec.name,
            "model": job.spec.model,
            "on": job.spec.on,
            "elastic": job.spec.elastic,
            "state": job.state,
            "begun": job.begun,
            "why": job.why,
            "hosts": job.hosts,
            "tree": job.tree,
            "group": job.group,
            "root": job.root,
            "route": None if job.route is None else [job.route.tree, str(job.route.rate), job.route.why],
            "submitted_at": job.submitted_at,
            "submission_hash": job.submission_hash,
            "nonce": job.nonce,
            "expires_s": job.expires_s,
        }
    )


def _route(fields: Sequence[Any] | None) -> Route | None:
    if fields is None:
        return None
    tree, rate, why = fields
    if tree is not None:
        root, above, passing = tree
        tree = FabricTree(root, tuple((one, over) for one, over in above), tuple(passing))
    return Route(tree, Fraction(rate), why)


def _job(number: int, revision: int, token_hash: str, body: str) -> Job:
    fields = json.loads(body)
    tree = fields["tree"]
    return Job(
        number=number,
        spec=JobSpec(
            name=fields["name"],
            hosts=fields["hosts_wanted"],
            ranks_per_host=fields["ranks_per_host"],
            model=fields["model"],
            on=tuple(fields.get("on", ())),
            elastic=fields.get("elastic", False),
        ),
        token_hash=token_hash,
        state=JobState(fields["state"]),
        begun=fields.get("begun", 0),
        why=fields["why"],
        hosts=tuple(fields["hosts"]),
        tree=None if tree is None else TreeNames(tree[0], tuple(tree[1]), tuple(tree[2])),
        group=fields["group"],
        root=fields.get("root", ""),
        route=_route(fields.get("route")),
        submitted_at=fields["submitted_at"],
        submission_hash=fields.get("submission_hash", ""),
        nonce=fields.get("nonce", 0),
        expires_s=fields.get("expires_s", 0),
        revision=revision,
    )
