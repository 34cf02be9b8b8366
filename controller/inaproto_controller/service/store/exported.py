"""A store as a file: what ``inaproto controller --export`` writes, and ``--import`` reads.

Lines of JSON, of no kind of database: a head (format, schema version, who wrote it), a line for each row of
each table, and an end with the number of rows and the SHA-256 of all lines before it. So a file that was cut
or changed is noticed before anything is written.

Invariant: an imported store uses no number again that its hosts and switches may know from what has happened
since the export. Terms, revisions, and numbers of jobs and grants go on far above those in the file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final

from inaproto.errors import ConfigError, InvariantBroken
from inaproto_controller.cluster.desired import Desired
from inaproto_controller.service.store import records as store
from inaproto_controller.service.store.records import Database, Row

WHAT: Final = "inaproto controller store"
FORMAT: Final = 1
LINE_BYTES_MAX: Final = 1 << 26
TERMS_AHEAD: Final = 1 << 20
JOBS_AHEAD: Final = 1 << 20
CHANGES_AHEAD: Final = 1 << 32
"""Of revisions and grants: more than a controller makes between two backups."""


@dataclass(frozen=True, slots=True)
class _Table:
    columns: tuple[str, ...]
    since: int = 1
    """Schema version from which on it is there."""
    bytes_in: str = ""
    """Column whose values are bytes."""


_TABLES: Final[Mapping[str, _Table]] = {
    "control": _Table(("one", "schema_version", "store_id", "term", "revision", "next_job", "next_grant")),
    "jobs": _Table(("number", "name", "is_live", "revision", "token_hash", "body")),
    "grants": _Table(("number", "job", "kind", "agent", "released")),
    "slots": _Table(("agent", "port", "number", "grant_number")),
    "records": _Table(("owner", "body"), bytes_in="body"),
    "events": _Table(("number", "body"), since=2),
}
"""In an order in which rows can be written."""


@dataclass(frozen=True, slots=True)
class Exported:
    """All rows of a store at one moment."""

    schema_version: int
    rows: Mapping[str, Sequence[Row]]
    """By table."""

    def said(self) -> str:
        """In words."""
        counts = [
            _count(len(self.rows.get(f"{one}s", ())), one) for one in ("job", "grant", "record", "event")
        ]
        return f"{', '.join(counts)}, schema version {self.schema_version}"


def _count(number: int, one: str) -> str:
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def take(database: Database, where: str) -> Exported:
    """What is in it, in a transaction that sees one moment. Raises ``ConfigError`` for a newer schema."""
    found = store.version_of(database, where)
    return Exported(
        found,
        {
            name: database.run(f"SELECT {', '.join(table.columns)} FROM {name} ORDER BY 1, 2")
            for name, table in _TABLES.items()
            if table.since <= found
        },
    )


def put(database: Database, exported: Exported, *, has_tables: bool, replace: bool, where: str) -> Desired:
    """Make the tables anew of ``exported``, by the schema of this program, in a transaction.

    Raises ``ConfigError`` where there is something that is not to be replaced, or the rows are no store.
    """
    term = 0
    if has_tables:
        before = take(database, where)
        ((term,),) = database.run("SELECT term FROM control")
        if not replace and any(before.rows.get(name) for name in _TABLES if name != "control"):
            raise ConfigError(
                f"{where}: is not empty ({before.said()}); name an empty one, or say --replace, which "
                "forgets all of that"
            )
        for name in reversed(list(before.rows)):
            database.run(f"DROP TABLE {name}")
    try:
        store.migrate(database, 0, exported.schema_version)
        for name, rows in exported.rows.items():
            columns = _TABLES[name].columns
            marks = ", ".join("?" * len(columns))
            database.many(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})", rows)
        store.migrate(database, exported.schema_version)
        ((exported_term,),) = database.run("SELECT term FROM control")
        database.run(
            "UPDATE control SET schema_version = ?, term = ?, revision = revision + ?, "
            "next_job = next_job + ?, next_grant = next_grant + ?",
            (
                len(store.SCHEMA),
                max(term, exported_term) + TERMS_AHEAD,
                CHANGES_AHEAD,
                JOBS_AHEAD,
                CHANGES_AHEAD,
            ),
        )
        return store.desired(database)
    except (InvariantBroken, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: the file is no store of a controller: {error}") from None


# --- the file


def lines_of(exported: Exported) -> Iterator[bytes]:
    """The file, by lines."""
    digest = hashlib.sha256()
    head = {
        "what": WHAT,
        "format": FORMAT,
        "schema_version": exported.schema_version,
        "inaproto": version("inaproto"),
        "exported_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    count = 0
    for fields in (head, *_rows(exported)):
        line = json.dumps(fields).encode() + b"\n"
        digest.update(line)
        count += 1
        yield line
    yield json.dumps({"rows": count - 1, "sha256": digest.hexdigest()}).encode() + b"\n"


def _rows(exported: Exported) -> Iterator[dict[str, Any]]:
    for name, rows in exported.rows.items():
        table = _TABLES[name]
        for row in rows:
            fields = dict(zip(table.columns, row, strict=True))
            if table.bytes_in:
                fields[table.bytes_in] = base64.b64encode(fields[table.bytes_in]).decode()
            yield {"table": name, "row": fields}


def read(lines: Iterable[bytes], file: str) -> Exported:
    """What :func:`lines_of` wrote. Raises ``ConfigError`` for anything else."""
    digest = hashlib.sha256()
    rows: dict[str, list[Row]] = {}
    schema_version, count, end = 0, 0, None
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("no object")
            if number == 1:
                schema_version = _version_in(fields, file)
                rows = {name: [] for name, table in _TABLES.items() if table.since <= schema_version}
            elif end is not None:
                raise ValueError("lines after the end")
            elif "sha256" in fields:
                end = fields
                continue
            else:
                rows[fields["table"]].append(_row(fields["table"], fields["row"]))
                count += 1
        except (ValueError, KeyError, TypeError, binascii.Error) as error:
            raise ConfigError(
                f"{file}: line {number} is none of an export of a controller's store ({error}); it is what "
                "inaproto controller --export wrote, or it is damaged"
            ) from None
        digest.update(line)
    if end is None:
        raise ConfigError(f"{file}: is cut off, its last line is missing; take another export")
    if end != {"rows": count, "sha256": digest.hexdigest()}:
        raise ConfigError(
            f"{file}: was changed after it was written, its SHA-256 is another; take another export"
        )
    if len(rows["control"]) != 1:
        raise ConfigError(
            f"{file}: is no store of a controller: it has {len(rows['control'])} rows of control"
        )
    return Exported(schema_version, rows)


def _version_in(head: Mapping[str, Any], file: str) -> int:
    """Raises ``ConfigError`` and ``ValueError``."""
    if head.get("what") != WHAT:
        raise ValueError("its head is missing")
    if head["format"] != FORMAT:
        raise ConfigError(
            f"{file}: has format {head['format']}, this program reads {FORMAT}; use a newer inaproto"
        )
    found = head["schema_version"]
    if type(found) is not int or found < 1:
        raise ValueError("its schema version is no number")
    store.require_known(found, file)
    return found


def _row(name: str, fields: Mapping[str, Any]) -> Row:
    """Raises ``ValueError``, ``KeyError`` and ``TypeError``."""
    table = _TABLES[name]
    if set(fields) != set(table.columns):
        raise ValueError(f"its columns are not those of {name}")
    found: list[Any] = []
    for column in table.columns:
        value = fields[column]
        if column == table.bytes_in:
            value = base64.b64decode(value, validate=True)
        elif value is not None and type(value) not in (int, str):
            raise ValueError(f"{column} is neither a number nor a text")
        found.append(value)
    return tuple(found)
