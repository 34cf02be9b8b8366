"""The systemd units: systemd understands them, they give little away, and a drop-in gives what it names."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
UNITS: Final = sorted(path.name for path in DEPLOY.glob("*.service"))
DROP_INS: Final = sorted(path.name for path in DEPLOY.glob("*.conf"))
EXPOSURE_MAX: Final = 20
"""In tenths, of ``systemd-analyze security``: below 2 it says OK."""
SYSTEM_UNITS: Final = Path("/usr/lib/systemd/system")


def read(name: str) -> configparser.RawConfigParser:
    """Of an assignment that is repeated the last one counts here."""
    parser = configparser.RawConfigParser(strict=False, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read(DEPLOY / name)
    return parser


@pytest.fixture
def analyze(
    program: Callable[[str], Path], tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run systemd-analyze in a root that has the units and something in the place of the command."""
    command = program("systemd-analyze")
    (tmp_path / "usr/bin").mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / "usr/bin/inaproto")
    (tmp_path / "usr/lib/systemd/system").mkdir(parents=True)
    for target in (
        "network-online",
        "multi-user",
        "sysinit",
        "basic",
        "shutdown",
        "sockets",
        "timers",
        "paths",
    ):
        (tmp_path / f"usr/lib/systemd/system/{target}.target").write_text("[Unit]\n")
    (tmp_path / "lib").symlink_to("usr/lib")
    installed = tmp_path / "etc/systemd/system"
    installed.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(DEPLOY / unit, installed)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, f"--root={tmp_path}", "--man=no", "--recursive-errors=no", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say_of_a_unit(
    unit: str, analyze: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    instance = unit.replace("@", "@h0")
    done = analyze("verify", instance)
    assert (done.returncode, done.stdout) == (0, "")
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", instance)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", UNITS)
def test_a_wrong_configuration_is_not_tried_again(unit: str) -> None:
    service = read(unit)["Service"]
    assert service["RestartPreventExitStatus"] == "2"
    assert service["Restart"] in {"always", "on-failure"}
    assert (service["Type"], int(service["WatchdogSec"]) > 0) == ("notify", True)


@pytest.mark.parametrize("name", DROP_INS)
def test_capabilities_that_a_drop_in_gives_are_not_bound_away(name: str) -> None:
    service = read(name)["Service"]
    assert service.get("AmbientCapabilities", "") == service.get("CapabilityBoundingSet", "")
