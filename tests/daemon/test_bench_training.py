"""``inaproto bench training`` in small: an unchanged script on shaped links, by gloo and by real daemons."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from inaproto.errors import Unsupported
from inaproto_hil.bench.peers.tools import Tools
from inaproto_hil.bench.training.command import training_bench
from inaproto_hil.bench.training.places import layers, why_no_backend
from tests.conftest import end_without
from tests.namespaces import require_namespaces
from tests.peer_tools import tools_with

SMALL = ["--ranks", "2", "--link", "200M", "--models", "vgg", "--scale", "0.1", "--batch", "2"]
SHORT = ["--rounds", "2", "--turn", "0", "--steps", "1", "--check", "1"]


def bench(tmp_path: Path, tools: Tools, *words: str, code: int = 0) -> dict[str, Any]:
    file = tmp_path / "report.json"
    where = ["--tools-python", str(tools.python), "--json", str(file)]
    done = CliRunner().invoke(training_bench, [*SMALL, *SHORT, *where, *words])
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def test_gloo_trains_in_turns_and_each_part_alone(tmp_path: Path) -> None:
    require_namespaces()
    picture = tmp_path / "picture.svg"
    found = bench(tmp_path, tools_with("gloo"), "--only", "gloo", "--plot", str(picture))
    [row] = found["rows"]
    assert (row["model"], row["ranks"], row["contender"]) == ("vgg", 2, "gloo")
    assert len(row["samples_ms"]) == 2
    assert row["steps_counted"] >= 2
    assert min(row["step_ms_min"], row["compute_ms"], row["communication_ms"]) > 0
    assert row["agreement"]["checks"] >= 6
    assert (row["agreement"]["differing"], found["differing"], found["failures"]) == (0, 0, [])
    assert row["cpu_s_per_step"] > 0
    assert found["peers"]["gloo"]["version"].startswith("torch ")
    assert "<svg" in picture.read_text()


def test_the_same_script_trains_by_inaproto_and_has_the_same_weights_on_all_ranks(tmp_path: Path) -> None:
    require_namespaces()
    tools = tools_with("gloo")
    why = why_no_backend(tools, layers(Path(sys.executable)))
    if why is not None:
        end_without("inaproto.torch", Unsupported("inaproto.torch", why))
    found = bench(tmp_path, tools, "--no-parts")
    ours, gloo = found["rows"]
    assert (ours["contender"], ours["path"], gloo["contender"]) == ("inaproto", "switch", "gloo")
    assert (ours["agreement"]["differing"], gloo["agreement"]["differing"]) == (0, 0)
    assert ours["loss_difference"]["largest"] < 0.01
    assert ours["cpu_s_per_step_parts"]["switch"] > 0
    [ratio] = found["ratios"]
    assert (ratio["contender"], ratio["peer"], ratio["rounds"]) == ("inaproto", "gloo", 2)


def test_a_script_that_fails_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    require_namespaces()
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('no gradient today')\n")
    words = ["--only", "gloo", "--no-parts", "--script", str(script)]
    found = bench(tmp_path, tools_with("gloo"), *words, code=1)
    [failure] = found["failures"]
    assert failure.startswith("2 ranks, 200 Mbit/s: gloo, training: ")
    assert "no gradient today" in failure
