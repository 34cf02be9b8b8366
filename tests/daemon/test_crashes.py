"""A slice of ``inaproto crashes``: real daemons, and controllers that are killed in the midst of things."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from inaproto_hil.crashes.moments import Aim, draw
from inaproto_hil.rigs.cluster import inaproto_command

TIMEOUT_S = 1800
SEED = 2331
"""Aims at a vote, a decision that gets lost, an answer and a write first; then at nothing."""


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_a_controller_that_is_killed_in_the_midst_of_things_keeps_its_word(tmp_path: Path) -> None:
    aims = [draw(SEED, number, file=True).aim for number in range(5)]
    assert aims == [Aim.VOTE, Aim.COMMIT, Aim.ANSWER, Aim.DISK, Aim.ANY]
    report = tmp_path / "report.json"
    argv = [inaproto_command(), "crashes", "--seed", str(SEED), "--kills", "5", "--baseline", "0"]
    # How long training stands still is not judged here: other tests run beside this one.
    argv += ["--lease-ms", "60000", "--agents", "12", "--out", str(tmp_path / "logs"), "--json", str(report)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert report.exists(), done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert found["violations"] == [], done.stdout
    assert [phase["kills"] for phase in found["phases"]] == [5]
    assert found["seen"]["welcomes"] > 5 * 12
    assert found["seen"]["promises checked"] > 0
    assert found["training"][-1]["stop"]["count"] > 0
    assert found["too_little"] == []
    assert done.returncode == int(found["training_stops"] == "no")
