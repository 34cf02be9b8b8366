"""Commands of ours that a command tells people to paste into a shell: they look where that one has looked."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

_PATH_OF_SUDO: Final = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")


def pasted(command: str, *arguments: str, **options: object) -> str:
    """``inaproto`` and ``command``, with those ``options`` that have been given, then ``arguments``.

    ``dir=Path("d")`` is ``--dir /here/d``, as the shell may be in another directory; a flag is ``True``.
    None, False and what is empty have not been given; of several values each has the option before it.
    """
    given = [word for name, value in options.items() for word in _words(name, value)]
    return shlex.join(["inaproto", *command.split(), *given, *arguments])


def pasted_again(command: str, context: click.Context, **options: object) -> str:
    """``command``, which is being run, with the options that it was given, and ``options``."""
    said = {
        option.opts[0].lstrip("-").replace("-", "_"): context.params[str(option.name)]
        for option in context.command.params
        if context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    }
    return pasted(command, **said, **options)


def as_root(command: str) -> str:
    """``command``, which is one of ours, by sudo; that finds no program in an environment such as .venv."""
    program = Path(os.path.abspath(sys.argv[0]))
    if program.name == "inaproto" and str(program.parent) not in _PATH_OF_SUDO:
        command = shlex.quote(str(program)) + command.removeprefix("inaproto")
    return f"sudo {command}"


def _words(name: str, value: object) -> Iterator[str]:
    for one in value if isinstance(value, tuple | list) else (value,):
        if one is None or one is False or one == "":
            continue
        yield f"--{name.replace('_', '-')}"
        if one is not True:
            yield os.path.abspath(one) if isinstance(one, Path) else str(one)
