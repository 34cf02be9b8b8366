"""Where results go: looked at before work begins, so that hours of it do not end in an error.

A folder holds the results of one campaign: no other one writes over them, and what is not a campaign's own is
never removed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from inaproto.errors import ConfigError
from inaproto_hil.soak.campaign import STATE_NAME

_OWN: Final = re.compile(r"(report\.(html|json)|state\.json|seed-[\w.+-]+\.(jsonl|svg))(\.part)?")


def check_file(option: str, path: Path) -> None:
    """Make sure that a file can be written at ``path``. Raises ``ConfigError``."""
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; make it first")
    _probe(option, path.parent)


def check_folder(option: str, folder: Path) -> None:
    """Make sure that ``folder`` is there, or can be made, and can be written to. Raises ``ConfigError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{option} {folder}: cannot make this folder: {error.strerror}; name another one"
        ) from None
    _probe(option, folder)


def check_default(folder: Path) -> None:
    """As ``check_folder``, of a folder that is made only if it is needed."""
    place = folder if folder.is_dir() else folder.parent
    if (folder.exists() and not folder.is_dir()) or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(
            f"no folder {folder} for the logs of failures can be made here; name one with --out"
        )


def _probe(option: str, folder: Path) -> None:
    probe = folder / f".inaproto-{os.getpid()}.part"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{option}: cannot write to {folder.absolute()}: {error.strerror}; name another place"
        ) from None


def claim(folder: Path, *, anew: bool) -> None:
    """For a new campaign. Raises ``ConfigError`` for what is there, but removes results if ``anew``."""
    names = sorted(path.name for path in folder.iterdir())
    own = [name for name in names if _OWN.fullmatch(name)]
    if not names or (anew and own):
        for name in own:
            (folder / name).unlink()
        return
    if own:
        resume = "--resume to go on with it, " if STATE_NAME in own else ""
        raise ConfigError(
            f"--out {folder} holds the results of a campaign ({', '.join(own[:4])}"
            f"{', ...' if len(own) > 4 else ''}): name another folder, or add {resume}"
            "--anew to remove these results first"
        )
    raise ConfigError(
        f"--out {folder} is not empty and holds no campaign ({names[0]} is there): name a new or empty folder"
    )
