"""Manual pages of the command, a page for each subcommand, from what ``--help`` has.

What click-man makes of a command has no examples (click's epilog), leaves out commands that are entry points,
and lets lines that begin with a dot be taken for macros; hence these few lines of roff.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime

import click

_UNWRAPPED = "\b"
"""The line by which click marks a paragraph whose lines stay as they are."""

_SUMMARY_MAX = 1000
"""Letters: a summary is not cut."""


def man_pages(root: click.Command, name: str, version: str, epoch: int) -> dict[str, str]:
    """File name -> page, of a command and of all that are below it and not hidden."""
    pages = _contexts(_context(root, name, None))
    return {f"{_title(page)}.1": _page(page, version, epoch) for page in pages}


def _context(command: click.Command, name: str | None, parent: click.Context | None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    for command in _commands(context):
        yield from _contexts(_context(command, command.name, context))


def _commands(context: click.Context) -> list[click.Command]:
    group = context.command
    if not isinstance(group, click.Group):
        return []
    found = (group.get_command(context, name) for name in group.list_commands(context))
    return [command for command in found if command is not None and not command.hidden]


def _title(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context, version: str, epoch: int) -> str:
    command = context.command
    day = datetime.fromtimestamp(epoch, UTC).date().isoformat()
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{_title(context).upper()}" 1 "{day}" "inaproto {version}" "inaproto"',
        ".nh",  # a command that is hyphenated cannot be pasted
        ".ad l",
        ".SH NAME",
        f"{_escaped(_title(context))} \\- {_escaped(command.get_short_help_str(_SUMMARY_MAX).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_escaped(context.command_path)}",
        _escaped(usage),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    options = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)) is not None
    ]
    if options:
        lines.append(".SH OPTIONS")
        for names, text in options:
            # Between two of many choices a line may break: together they are longer than one.
            broken = _escaped(names).replace("|", "|\\:")
            lines += [".TP", f"\\fB{broken}\\fR", *_paragraphs(text)]
    below = _commands(context)
    if below:
        lines.append(".SH COMMANDS")
        for one in below:
            page = f"\\fB{_escaped(_title(context))}\\-{_escaped(one.name or '')}\\fR(1)"
            lines += [".TP", page, _escaped(one.get_short_help_str(_SUMMARY_MAX))]
    if command.epilog:
        lines += [".SH EXAMPLES", *_paragraphs(command.epilog)]
    if context.parent is not None:
        lines += [".SH SEE ALSO", f"\\fB{_escaped(_title(context.parent))}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _paragraphs(text: str) -> Iterator[str]:
    """Text of click's as roff: paragraphs are filled, but those that it leaves as they are."""
    for at, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        lines = paragraph.strip("\n").splitlines()
        if not lines:
            continue
        if at:
            yield ".PP" if not lines[0].startswith(_UNWRAPPED) else ".sp"
        if lines[0].strip() == _UNWRAPPED:
            yield ".nf"
            yield from map(_escaped, lines[1:])
            yield ".fi"
        else:
            yield from map(_escaped, lines)


def _escaped(line: str) -> str:
    """A line of text in which roff sees no request and no escape, and a hyphen that can be pasted."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
