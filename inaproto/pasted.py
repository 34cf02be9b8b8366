"""Commands of ours that a command tells people to paste into a shell: they look where that one has looked."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path


def pasted(command: str, *arguments: str, **options: object) -> str:
    """``inaproto`` and ``command``, with those ``options`` that have been given, then ``arguments``.

    ``dir=Path("d")`` is ``--dir /here/d``, as the shell may be in another directory; a flag is ``True``.
    None, False and what is empty have not been given; of several values each has the option before it.
    """
    given = [word for name, value in options.items() for word in _words(name, value)]
    return shlex.join(["inaproto", *command.split(), *given, *arguments])


def _words(name: str, value: object) -> Iterator[str]:
    for one in value if isinstance(value, tuple | list) else (value,):
        if one is None or one is False or one == "":
            continue
        yield f"--{name.replace('_', '-')}"
        if one is not True:
            yield os.path.abspath(one) if isinstance(one, Path) else str(one)
