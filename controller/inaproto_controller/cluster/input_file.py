"""Files that people give: read whole, with a bound, or refused by name."""

from __future__ import annotations

from pathlib import Path

from inaproto.errors import ConfigError


def read_bounded(path: Path, bytes_max: int) -> bytes:
    """Raises ``ConfigError`` for what cannot be read or is larger."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a name with a NUL
        raise ConfigError(f"{str(path)!r}: {error}") from None
    if len(data) > bytes_max:
        raise ConfigError(f"{path}: more than {bytes_max >> 20} MiB")
    return data
