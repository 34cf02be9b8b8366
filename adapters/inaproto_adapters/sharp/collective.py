"""SHARP as ``inaproto.ports.Collective``: one per host process, with an attachment at a time or several."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from inaproto.core.collective.events import Phase
from inaproto.errors import ConfigError, LocalMisuse, Unsupported
from inaproto.ports import Attachment, CollectiveCapabilities, OutOfBand, RandomBits
from inaproto_adapters.sharp.abi import has_passed
from inaproto_adapters.sharp.attachment import SharpAttachment
from inaproto_adapters.sharp.config import SharpConfig
from inaproto_adapters.sharp.library import SharpLibrary, file_of, load

log = logging.getLogger("inaproto.sharp")

STATS: Final = "SHARP_COLL_STATS_DUMP_MODE"
"""Variable of the library."""
STATS_REFUSED: Final = "2"
"""Its ranks would talk while they leave."""


class SharpCollective:
    """See the module. It has never run on SHARP hardware (docs/sharp.md)."""

    def __init__(
        self, library: SharpLibrary, config: SharpConfig, bits: RandomBits = secrets.randbits
    ) -> None:
        self._library = library
        self._config = config
        self._bits = bits
        self._attachments: list[SharpAttachment] = []

    @property
    def capabilities(self) -> CollectiveCapabilities:
        """Equal at all hosts with the same settings; whether the switches do it is seen at each attach."""
        return self._config.capabilities

    async def attach(self, job: str, attempt: int, others: OutOfBand) -> Attachment:
        """See :class:`inaproto.ports.Collective`. The ranks vote: all of them get a place, or none."""
        attachment = await SharpAttachment.attached(self._library, self._config, job, others, self._bits)
        self._attachments = [its for its in self._attachments if its.view().phase is not Phase.DETACHED]
        self._attachments.append(attachment)
        return attachment

    async def aclose(self) -> None:
        """Give back what is held."""
        attachments, self._attachments = self._attachments, []
        for attachment in attachments:
            await attachment.release()


def open_sharp(text: str = "", **options: Any) -> SharpCollective:
    """``open`` of the adapter: fields of :class:`SharpConfig` as keywords, or as ``library=...;devices=...``.

    Raises ``Unsupported`` without the library, or where it lacks what each release of it has, and
    ``ConfigError`` for an option that cannot be used.
    """
    config = config_of(text, **options)
    if os.environ.get(STATS) == STATS_REFUSED:
        raise ConfigError(
            f"{STATS}={STATS_REFUSED}: the library would talk to the other hosts while it ends; unset it"
        )
    library = load(config.library)
    library.default_config()
    if missing := library.missing():
        raise Unsupported("SHARP", f"{library.path} has no {', '.join(missing)}: a newer release has")
    file = file_of(library)
    if file is None or not has_passed(file):
        log.warning("no passing 'inaproto sharp abi-check' is recorded for %s", file or library.path)
    return SharpCollective(library, config)


def config_of(text: str, **options: Any) -> SharpConfig:
    """Settings as text, and as keywords. Raises ``ConfigError`` for what cannot be used."""
    try:
        return SharpConfig(**_options(text), **options)
    except (TypeError, LocalMisuse) as error:
        raise ConfigError(f"sharp: {error}") from None


_TEXTS: Final[Mapping[str, Callable[[str], object]]] = {
    "library": str,
    "devices": str,
    "bfloat16": {"0": False, "1": True}.__getitem__,
    "aggregation": int,
}
"""What can be given as text, and how each is read."""


def _options(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(";") if text else ():
        name, equals, value = part.partition("=")
        if not equals or name not in _TEXTS or name in found:
            raise ConfigError(f"sharp: {part!r} is none of {', '.join(_TEXTS)}, each once, with = and ;")
        try:
            found[name] = _TEXTS[name](value)
        except (KeyError, ValueError):
            raise ConfigError(f"sharp: {name}: {value!r} cannot be used") from None
    return found
