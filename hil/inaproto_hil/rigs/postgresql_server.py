"""A PostgreSQL server of our own, at a UNIX socket, as a user that is not root.

Its data lie in memory, where there is room. On a disk that others write to, a statement waits for their
gigabytes, also without fsync: its write is throttled, and a new file waits for the journal. Stores give up a
server that takes so long.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inaproto.errors import Unsupported

START_S = 600
"""Longer than a busy machine needs, so only a hang meets it."""
USER = "postgres"
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 512 << 20
"""More than the server takes there. A container may have a few megabytes."""


def programs() -> Path:
    """Where ``initdb`` and ``pg_ctl`` are. Raises ``Unsupported``."""
    place = _place()
    if place is None:
        raise Unsupported("postgresql", "no initdb here; for example: apt install postgresql")
    return place


def _place() -> Path | None:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(
        (place for place in places if (place / "initdb").exists() and (place / "pg_ctl").exists()), None
    )


def _account() -> pwd.struct_passwd | None:
    """Whom the server runs as, where this is root, which it refuses to run as."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    account = names.get(USER, names.get("nobody"))
    if account is None:
        raise Unsupported("postgresql", "it does not run as root, and there is no other user")
    return account


def _home() -> Path:
    """Where its data lie."""
    if os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        return MEMORY
    return Path("/tmp")


@contextmanager
def running_postgresql() -> Iterator[str]:
    """The URL of an empty database; server and data are gone afterwards. Raises ``Unsupported``."""
    place, account = programs(), _account()
    with tempfile.TemporaryDirectory(prefix="inapg-", dir=_home()) as name:
        root = Path(name)
        if account is not None:
            os.chown(root, account.pw_uid, account.pw_gid)

        def run(*command: str | Path) -> None:
            subprocess.run(
                [str(part) for part in command],
                check=True,
                timeout=START_S,
                cwd=root,
                env={
                    "PATH": f"{place}:/usr/bin:/bin",
                    "LC_ALL": "C",
                    "HOME": name,
                    "PGCTLTIMEOUT": str(START_S),
                },
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else [],
                stdout=subprocess.DEVNULL,
            )

        data = root / "data"
        how = ("-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--wal-segsize=1")
        run(place / "initdb", "-D", data, *how)
        # fsync is off: what is killed here is controllers, not the machine.
        options = (
            f"-k {name} -c listen_addresses= -c fsync=off -c shared_buffers=16MB -c max_connections=40 "
            "-c min_wal_size=8MB -c max_wal_size=64MB"
        )
        run(place / "pg_ctl", "-D", data, "-l", root / "log", "-o", options, "-w", "start")
        try:
            yield f"postgresql://{USER}@/postgres?host={name}"
        finally:
            run(place / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
