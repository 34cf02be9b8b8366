"""Which of the two a campaign runs: the source as it is, or its compiled copy; and why."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from inaproto.errors import ConfigError, InvariantBroken, Unsupported
from inaproto_hil.compiled.build import NotBuilt, build, missing, open_cache
from inaproto_hil.compiled.sources import ENTRY_NAME

SEEDS_WORTH: Final = 2000
MINUTES_WORTH: Final = 5.0
"""From so many seeds, or so much time, a campaign pays for a minute of compiling."""


@dataclass(frozen=True, slots=True)
class Code:
    """What the worlds of a campaign are run by."""

    why: str
    folder: Path | None = None
    """Of the compiled copy; None: interpreted."""

    @property
    def kind(self) -> str:
        return "interpreted" if self.folder is None else "compiled"

    def __str__(self) -> str:
        return f"{self.kind} ({self.why})"

    def record(self) -> dict[str, Any]:
        """For ``json.dump``."""
        return {
            "kind": self.kind,
            **asdict(self),
            "folder": None if self.folder is None else str(self.folder),
        }


NO_CHOICE: Final = Code("nothing else was asked for")


def choose(
    asked: bool | None, *, against: str | None, is_worth_building: bool, say: Callable[[str], None]
) -> Code:
    """``asked``: compiled, interpreted, or None, whichever is better.

    ``against`` is what speaks against compiled code whether or not there is any; ``say`` tells a person what
    takes long. Raises ``ConfigError``, ``Unsupported`` or ``NotBuilt`` if compiled code is asked for and
    cannot be had.
    """
    if asked is False:
        return Code("--interpreted")
    if against is not None:
        if asked:
            raise ConfigError(f"--compiled: {against}")
        return Code(against)
    cache = open_cache()
    try:
        found = cache.find()
    except NotBuilt as bad:
        if asked is None:
            return Code(f"{_first_line(bad)}; --compiled tries again")
        found = None
    if found is None:
        if not (asked or is_worth_building):
            return Code("it is not compiled yet; --compiled, or a longer campaign, does that")
        lacking = missing()
        if lacking:
            if asked:
                raise Unsupported("--compiled", f"missing: {'; '.join(lacking)}")
            return Code(f"to compile it, this is missing: {'; '.join(lacking)}")
        say(f"compiling what the worlds run, which takes about a minute; kept in {cache.folder}")
        began = time.monotonic()
        try:
            found = build(cache)
        except (NotBuilt, OSError) as bad:
            if asked:
                raise
            say(f"not compiled, going on interpreted: {bad}")
            return Code(_first_line(bad))
        say(f"compiled in {time.monotonic() - began:.0f} s")
    return Code(_made_with(found), found)


def _made_with(folder: Path) -> str:
    entry = json.loads((folder / ENTRY_NAME).read_text(encoding="utf-8"))
    return f"{entry['modules']} modules by {entry['compiled_with']}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(":")


def is_worth(seeds: int | None, minutes: float | None) -> bool:
    """Whether a campaign of so many seeds (None: until its time is up) pays for compiling."""
    if minutes is not None and minutes < MINUTES_WORTH:
        return False
    return minutes is not None or (seeds or 0) >= SEEDS_WORTH


def require(folder: Path) -> None:
    """Raises ``InvariantBroken`` unless this process runs the compiled copy in ``folder``."""
    file = importlib.import_module("inaproto.sim.frames.world").__file__ or "nowhere"
    if not Path(file).is_relative_to(folder) or file.endswith(".py"):
        raise InvariantBroken(f"a worker process for compiled worlds has its code from {file}")
