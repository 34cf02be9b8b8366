"""Commands that pages show are ones that ``inaproto`` has: each is parsed, and none is run.

``tests/daemon/test_pasted_docs.py`` runs those that a reader tries first.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from inaproto.cli import cli

TREE: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    str(page.relative_to(TREE))
    for page in (TREE / "README.md", *(TREE / "docs").rglob("*.md"), *(TREE / "deploy").rglob("*.md"))
    if re.search(r"^```sh\n", page.read_text(), re.MULTILINE)
)
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENDS: Final = re.compile(r"&&?|\|\|?|;|[0-9]?[<>].*")
"""What a shell takes for the end of a command's words."""
_INNER: Final = re.compile(r'"?\$\(([^)]*)\)"?')
_BEFORE: Final = re.compile(r"&&?|\|\|?|;|sudo|exec|\w+=.*")
"""Behind what a word is a command."""


def commands(page: str) -> Iterator[list[str]]:
    """Words of each ``inaproto`` of a page's shell blocks, without its name and what stands for more."""
    for block in _BLOCK.findall((TREE / page).read_text()):
        for line in _INNER.sub(r" ; \1 ; ", block.replace("\\\n", " ")).splitlines():
            words = shlex.split(line.replace(";", " ; "), comments=True)
            for at, word in enumerate(words):
                if word == "inaproto" and (not at or _BEFORE.fullmatch(words[at - 1])):
                    rest = words[at + 1 :]
                    end = next((end for end, behind in enumerate(rest) if _ENDS.fullmatch(behind)), len(rest))
                    yield [behind for behind in rest[:end] if behind != "..."]


def parse(words: list[str]) -> None:
    """Raises ``click.ClickException``. Files that it names need not be there."""
    command: click.Command = cli
    context = click.Context(command, info_name="inaproto")
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, info_name=found.name, parent=context)
    try:
        command.make_context(command.name, words, parent=context.parent)
    except click.BadParameter as error:
        if "does not exist" not in str(error):
            raise


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_understood(page: str) -> None:
    for words in commands(page):
        try:
            parse(list(words))
        except click.exceptions.Exit:
            pass  # --help
        except click.ClickException as error:
            pytest.fail(f"{page}: inaproto {shlex.join(words)}: {error.format_message()}")


def test_what_a_shell_reads_is_what_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "A=1 sudo inaproto host --name h0 \\",
        "  --ip 1 ... > log &  # inaproto top",
        'eval "$(inaproto job env x)"; inaproto top',
        "useradd inaproto",
    ]
    (tmp_path / "page").write_text("\n".join(["```sh", *lines, "```", ""]))
    monkeypatch.setattr(f"{__name__}.TREE", tmp_path)
    assert list(commands("page")) == [["host", "--name", "h0", "--ip", "1"], ["job", "env", "x"], ["top"]]


def test_a_command_that_is_not_there_is_found_out() -> None:
    for wrong in ("hots --name h0", "host --nmae h0", "job turn", "run -n many -- true"):
        with pytest.raises(click.ClickException):
            parse(wrong.split())
