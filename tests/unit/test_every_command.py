"""Every command that there is, found as a shell would: it helps, and believes no number that is none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import click
import pytest
from click.testing import CliRunner, Result

import inaproto.cli
from inaproto.cli import cli

NUMBERS: Final = (click.types.FloatParamType, click.FloatRange)
"""Types that Python's ``float`` reads; what ``int`` reads is neither infinite nor NaN."""
NO_NUMBERS: Final = ("nan", "inf", "-inf", "1e999")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, prog_name="inaproto")


class Found(NamedTuple):
    command: click.Command
    words: tuple[str, ...]
    """By which a shell calls it, behind ``inaproto``."""

    def __str__(self) -> str:
        return " ".join(("inaproto", *self.words))


def below(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[Found]:
    """It and, of a group, all commands in it."""
    yield Found(command, words)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from below(found, (*words, name))


@pytest.fixture(scope="module")
def commands() -> Iterator[list[Found]]:
    """Entry points are read once: they are looked for in each package that is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inaproto.cli, "_announced", cache(inaproto.cli._announced))
        found = every_command()
        for one in found:
            # Click keeps the option of a command's first call, and a test may have called it alone.
            one.command._help_option = None
        yield found


def every_command() -> list[Found]:
    found = list(below(cli))
    assert {"inaproto rtl fit", "inaproto bench sharp-moves", "inaproto ca"} <= {str(one) for one in found}
    return found


def test_each_command_helps_by_either_option(commands: list[Found]) -> None:
    failed = [
        f"{found} {option}"
        for found in commands
        for option in ("-h", "--help")
        if (told := invoke(*found.words, option)).exit_code != 0 or "Usage: " not in told.output
    ]
    assert failed == []


def test_options_that_a_command_hands_on_are_read_as_its_own() -> None:
    refused = invoke("rtl", "fit", "--limit", "nan")
    assert (refused.exit_code, "is not a finite number" in refused.output) == (2, True)


def test_no_option_believes_a_number_that_is_none(commands: list[Found]) -> None:
    believed = [
        f"{found} {option.opts[0]} {text}"
        for found in commands
        for option in found.command.params
        if isinstance(option, click.Option) and isinstance(option.type, NUMBERS)
        for text in NO_NUMBERS
        if not is_refused(found, option, text)
    ]
    assert believed == []


def test_where_a_report_cannot_be_written_is_said_before_the_work(
    commands: list[Found], tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "none" / "report.json")
    believed = [
        f"{found} {option.opts[0]}"
        for found in commands
        for option in found.command.params
        if isinstance(option, click.Option) and "--json" in option.opts and not option.is_flag
        if not is_refused(found, option, nowhere)
    ]
    assert believed == []
    refused = invoke("rtl", "fit", "--json", nowhere)
    assert (refused.exit_code, "there is no directory" in refused.output) == (2, True)


def test_a_folder_that_cannot_be_made_is_said_before_the_work(commands: list[Found], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "folder")
    made = [
        (found, option)
        for found in commands
        for option in found.command.params
        if (str(found), option.opts[0]) == ("inaproto rtl serve", "--dir")
        or (option.opts[0] in ("--out", "--logs", "--timeline") and option.type.name == "directory")
    ]
    believed = [
        f"{found} {option.opts[0]}" for found, option in made if not is_refused(found, option, nowhere)
    ]
    assert believed == []
    assert len(made) >= 10


def test_a_disk_that_is_full_at_the_end_takes_the_report_alone() -> None:
    done = invoke("model", "netreduce", "--json", "/dev/full")
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert "/dev/full cannot be written: No space left on device" in done.stderr
    assert done.stdout == invoke("model", "netreduce").stdout != ""


def is_refused(found: Found, option: click.Parameter, text: str) -> bool:
    """Its words are read, and no more: a command that believes them would begin its work."""
    try:
        found.command.make_context(str(found), [f"{option.opts[0]}={text}"])
    except click.BadParameter as error:
        return error.param is option and error.exit_code == 2
    return False
