"""``inaproto explore``: exit status, table, counterexample in words, JSON."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from inaproto.sim.explore.variants import VARIANTS
from inaproto_hil.explore import explore


def run(*arguments: str) -> Result:
    return CliRunner().invoke(explore, arguments, env={"COLUMNS": "200"})


def test_a_world_that_holds(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    result = run("--length", "1", "--losses", "1", "--messages", "3", "--json", str(path))
    assert result.exit_code == 0, result.output
    table = dict(line.split(maxsplit=1) for line in result.output.splitlines() if " " in line)
    report = json.loads(path.read_text())
    assert table["violations"].strip() == "0"
    assert table["states"].strip() == f"{report['states']:,}"
    assert report["violations"] == 0
    assert report["counterexample"] is None
    assert report["config"]["messages"] == 3
    assert report["local_states"]["switch"] > 1
    assert report["finished_states"] >= 1


def test_a_counterexample_is_told_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    result = run("--variant", "free-own-bit", "--losses", "1", "--json", str(path))
    assert result.exit_code == 1, result.output
    assert "a rule is broken: rank" in result.output
    assert "1. rank 0 starts the all-reduce" in result.output
    assert "rank 0 sends packet 0 of message 0 (PSN 6)" in result.output
    assert "the retransmission timer of rank" in result.output
    assert ": LOST" in result.output
    found = json.loads(path.read_text())["counterexample"]
    assert found["kind"] == "broken"
    assert f"A shortest run, {len(found['run'])} steps" in result.output


def test_a_world_too_large_is_no_verdict() -> None:
    result = run("--states-max", "100")
    assert result.exit_code == 2
    assert "no verdict: more than 100 states" in result.output


def test_a_size_that_cannot_be_is_misuse() -> None:
    result = run("--window", "3")
    assert result.exit_code == 2
    assert "window must be a power of two, not 3" in result.output


def test_a_file_that_cannot_be_written_is_refused_before_the_search(tmp_path: Path) -> None:
    result = run("--json", str(tmp_path / "none" / "verdict.json"))
    assert result.exit_code == 2
    assert "states" not in result.output


def test_the_help_names_every_variant_and_teaches_by_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name in VARIANTS:
        assert f"{name}:" in result.output
    assert "inaproto explore --variant free-own-bit --reorder" in result.output
