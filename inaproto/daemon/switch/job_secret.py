"""The deployment's secret for tokens of jobs, as a file of the root switch and of the controller."""

from __future__ import annotations

from pathlib import Path

from inaproto.core.rendezvous.tokens import TokenIssuer
from inaproto.daemon.net.tls import require_private
from inaproto.errors import ConfigError, LocalMisuse


def tokens_of(file: Path | None) -> TokenIssuer | None:
    """What makes and checks tokens; ``file`` has the secret. Raises ``ConfigError``."""
    if file is None:
        return None
    try:
        require_private(file)
        return TokenIssuer([file.read_bytes()])
    except OSError as error:
        raise ConfigError(f"job_secret: {file}: {error.strerror}") from None
    except (ValueError, LocalMisuse) as error:
        raise ConfigError(f"job_secret: {error}; head -c 32 /dev/urandom makes one") from None
