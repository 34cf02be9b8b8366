"""The act ``upgrade``: every daemon of two really different builds is replaced while four hosts train."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inaproto.errors import Unsupported
from inaproto_hil.rigs.release import release_before
from tests.conftest import end_without

LAST = re.compile(r"identical=yes replaced=8 kills=(\d+) restarts_of_ranks=0 longest_stop_s=\d+\.\d\d")


@pytest.mark.parametrize("way", [(), ("--back",)], ids=["to this release", "to the release before"])
def test_every_daemon_is_replaced_under_training(tmp_path: Path, way: tuple[str, ...]) -> None:
    try:
        before = release_before()
    except Unsupported as why:
        end_without("the release before", why)
    command = [str(Path(sys.executable).with_name("inaproto")), "demo", "upgrade", "--kills", "4"]
    options = ["--steps", "4", "--timeout", "120", "--out", str(tmp_path), *way]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = LAST.fullmatch(done.stdout.splitlines()[-1])
    assert last is not None, done.stdout
    assert last[1] == "4"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["other_release"] == {"version": before.version, "commit": before.commit}
    assert [event["kind"] for event in summary["events"]] == ["replaced"] * 8 + ["killed"] * 4
    assert {event["daemon"] for event in summary["events"][:8]} == {
        *("controller", "spine", "leaf0", "leaf1"),
        *(f"h{host}" for host in range(4)),
    }
    assert (tmp_path / "upgrade.png").stat().st_size > 10_000
