"""Commands to be pasted look where the one that prints them has looked."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from inaproto.pasted import as_root, pasted, pasted_again


def test_what_has_been_given_is_carried_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = pasted(
        "job watch", "train1", dir=Path("my ina"), controller=("http://127.0.0.1:9", "http://[::1]:9")
    )
    assert shlex.split(words) == [
        *("inaproto", "job", "watch", "--dir", str(tmp_path / "my ina")),
        *("--controller", "http://127.0.0.1:9", "--controller", "http://[::1]:9", "train1"),
    ]


def test_what_has_not_been_given_is_not_said() -> None:
    assert pasted("status", dir=None, socket=(), tls="", json=False) == "inaproto status"
    assert pasted("job list", all=True, host_dir=Path("/x")) == "inaproto job list --all --host-dir /x"


@click.command()
@click.option("--dir", "directory", type=click.Path(path_type=Path))
@click.option("--socket", "sockets", type=click.Path(path_type=Path), multiple=True)
@click.option("--skew-ms", type=float, default=500.0)
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def look(context: click.Context, /, **given: object) -> None:
    click.echo(pasted_again("look", context))


def test_a_command_can_be_said_again() -> None:
    words = ["--socket", "/a", "--socket", "/b c", "--json"]
    assert CliRunner().invoke(look, words).output == "inaproto look --socket /a --socket '/b c' --json\n"
    assert CliRunner().invoke(look, ["--dir", "/d", "--skew-ms", "3"]).output == (
        "inaproto look --dir /d --skew-ms 3.0\n"
    )
    assert CliRunner().invoke(look, []).output == "inaproto look\n"


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("/home/a b/.venv/bin/inaproto", "sudo '/home/a b/.venv/bin/inaproto' doctor --dir /x"),
        ("/usr/bin/inaproto", "sudo inaproto doctor --dir /x"),
        ("/usr/lib/python3/site-packages/inaproto/__main__.py", "sudo inaproto doctor --dir /x"),
    ],
)
def test_root_finds_the_program(monkeypatch: pytest.MonkeyPatch, program: str, expected: str) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert as_root("inaproto doctor --dir /x") == expected
