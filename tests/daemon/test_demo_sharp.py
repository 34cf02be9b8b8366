"""``inaproto demo sharp`` in small, and the bench of moves: every fallback is told, and nothing is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto_hil.bench import bench

RUN_S = 600
LAST_LINE = re.compile(
    r"equal_on_all_ranks=yes sharp_share=0\.\d\d fallbacks=\d+ migrations=2 hangs=0 silent=0"
)


@pytest.fixture(autouse=True)
def _has_a_compiler(program: Callable[[str], Path]) -> None:
    program("cc")


def test_whatever_sharp_does_all_ranks_have_one_result_and_no_fallback_is_silent(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("inaproto")), "demo", "sharp", "--steps", "5"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert LAST_LINE.fullmatch(lines[-1]), lines[-1]
    told = json.loads((tmp_path / "sharp.json").read_text())
    assert told["redone_by_code"]["red"]["lost"] >= 1, "its tree was lost"
    assert told["redone_by_code"]["blue"]["failed"] >= 1, "its lock was denied"
    assert {move["job"] for move in told["moves"]} == {"red", "blue"}
    assert "rank 1 (h3" in told["failures"]["blue"], "a named error, on all ranks"
    logs = "".join((tmp_path / f"h{host}.log").read_text() for host in range(4))
    for reason in ("lost, ECONN_TREE (-5)", "failed, ELOCK_FAILED (-18)"):
        assert re.search(rf"redone on all hosts by switch, without the collective: {re.escape(reason)}", logs)
    assert (tmp_path / "sharp.png").read_bytes().startswith(b"\x89PNG")


def test_jobs_swap_their_trees_and_no_all_reduce_is_lost(tmp_path: Path) -> None:
    report_at = tmp_path / "moves.json"
    done = CliRunner().invoke(
        bench, ["sharp-moves", "--swaps", "2", "--scale", "0.1", "--json", str(report_at)]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(report_at.read_text())
    assert report["is_right"]
    assert report["redone_by_code"] == {}, "a place is left with the operation that was voted on"
    rows = {row["what"]: row for row in report["rows"]}
    assert [rows[name]["samples"] for name in ("release", "acquire", "total")] == [4, 4, 4]
    for name in ("release", "acquire"):
        assert rows[name]["p50_ms"] >= rows[name]["library_ms"], "the library's own time is in it"
