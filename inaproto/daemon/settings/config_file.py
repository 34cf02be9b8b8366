"""The file of daemons' settings: one table for each daemon, of which one is read."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from inaproto.errors import ConfigError

CONFIG_BYTES_MAX: Final = 1 << 20


def read_table(file: Path, table: str) -> dict[str, Any]:
    """The fields of a daemon's table; none if the file does not have it. Raises ``ConfigError``."""
    try:
        with file.open("rb") as stream:
            data = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"configuration file {file}: cannot be read: {error.strerror}") from None
    if len(data) > CONFIG_BYTES_MAX:
        raise ConfigError(f"configuration file {file}: is longer than {CONFIG_BYTES_MAX} bytes")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration file {file}: is not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {file}: is not TOML: {error}") from None
    known = ("switch", "host", "server", "controller")
    for name in document:
        if name not in known:
            raise ConfigError(
                f"configuration file {file}: unknown table or field {name!r}{did_you_mean(name, known)}; "
                "fields belong into the table [switch], [host], [server] or [controller]"
            )
    section = document.get(table, {})
    if not isinstance(section, dict):
        raise ConfigError(f"configuration file {file}: {table!r} must be a table: write [{table}]")
    for name, value in section.items():
        if any("\0" in str(one) for one in (value if isinstance(value, list) else [value])):
            raise ConfigError(
                f"configuration file {file}: {table}.{name}: must not contain the character NUL"
            )
    return section


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Words behind a name that is not known; empty if none of the known ones is alike."""
    close = get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""
