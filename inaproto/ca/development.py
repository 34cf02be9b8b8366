"""An authority for daemons that run on one machine, made at the first start: nobody has to make certificates.

It lies, with its key, in the directory of the daemons' sockets, which is private to their user: whoever can
read it can connect to the UNIX socket there anyway. It is never used on an address that other machines reach.
"""

from __future__ import annotations

import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from inaproto.ca import authority
from inaproto.ca.identity import LISTENERS, Role
from inaproto.errors import ConfigError

DIRECTORY: Final = "development-ca"
RENEW_DAYS: Final = 30


def credentials(directory: Path, role: Role, name: str) -> Path:
    """The directory of the credentials of ``role`` ``name``, made where they are missing or run out soon.

    Raises ``ConfigError``. Daemons that start at once wait for each other.
    """
    root = directory / DIRECTORY
    authority.make_directory(root, "tls")
    try:
        lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"tls: cannot open {root}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held for some milliseconds
        found = (root / authority.CA_FILE).exists()
        signer = authority.load(root) if found else authority.create(root, name="development")
        out = root / f"{role.value}-{name}"
        if not _is_fresh(out / authority.CERTIFICATE_FILE):
            addresses = ("127.0.0.1", "::1", "localhost") if role in LISTENERS else ()
            signer.issue(role, name, directory=out, addresses=addresses)
        return out
    finally:
        os.close(lock)


def _is_fresh(path: Path) -> bool:
    try:
        return authority.read_certificate(path).days_left(datetime.now(UTC)) > RENEW_DAYS
    except ConfigError:
        return False
