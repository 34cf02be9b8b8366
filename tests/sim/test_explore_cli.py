"""``inaproto explore``: exit status, table, counterexample in words, JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inaproto.sim.explore import engine
from inaproto.sim.explore.ring import world as ring_world
from inaproto.sim.explore.ring.variants import VARIANTS
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
    assert (
        "no verdict: more than 100 states: choose a smaller world, or a larger --states-max" in result.output
    )


def test_a_step_with_too_many_outcomes_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_world, "OUTCOMES_MAX", 3)
    result = run("--losses", "2")
    assert result.exit_code == 2
    assert "one step sends 2 packets, which the faults can strike in more than 3 ways" in result.output


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
        assert f"\n    {name} " in result.output
    assert "inaproto explore --variant free-own-bit --reorder" in result.output
    assert "No fairness" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--length", "0"], "--length must be 1 to 8, not 0"),
        (["--psn-bits", "30"], "--psn-bits must be 2 to 24, not 30"),
        (["--psn-bits", "10"], "--psn-bits 10 is too large: it takes 513 messages of 2 packets"),
        (["--last-packets", "9"], "--last-packets must be 0 to 2, not 9"),
        (["--reorder", "--duplicates", "0"], "--duplicates must be at least 1 with reorder"),
        (["--states-max", "0"], "--states-max must be at least 1, not 0"),
        (["--variant", "nonsense"], "--variant 'nonsense' does not exist"),
    ],
    ids=" ".join,
)
def test_a_bad_value_is_one_line_that_names_the_option(arguments: list[str], error: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert f"Error: {error}" in result.output.splitlines()[-1]


def test_a_ring_too_short_to_use_anything_again_says_so(tmp_path: Path) -> None:
    path = tmp_path / "verdict.json"
    result = run("--length", "1", "--losses", "0", "--messages", "2", "--json", str(path))
    notes = json.loads(path.read_text())["notes"]
    assert notes == [
        "no slot is used again: 2 messages, and slots for 2; with --messages 9 it is",
        "no PSN is used again: 2 packets of each rank, 8 PSNs; with --messages 9 it is",
    ]
    assert [line for line in result.output.splitlines() if line.startswith("note: ")] == [
        f"note: {note}" for note in notes
    ]
    assert "note:" not in run("--length", "1", "--losses", "0").output


def test_a_verdict_of_no_violations_repeats_what_it_assumes() -> None:
    result = run("--length", "1", "--losses", "0")
    assert "assumed: FIFO paths; faults strike a packet when it is sent" in result.output


def test_json_alone_is_on_stdout_and_the_table_on_stderr() -> None:
    result = run("--length", "1", "--losses", "0", "--json", "-")
    assert json.loads(result.stdout)["violations"] == 0
    assert "violations" in result.stderr


def test_an_interrupt_is_neither_verdict_nor_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_c(self: engine.Progress, *args: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "PROGRESS_STATES", 1_000)
    monkeypatch.setattr(engine.Progress, "__init__", ctrl_c)
    result = run()
    assert result.exit_code == 130
    assert result.stdout == ""
    assert re.fullmatch(r"inaproto: interrupted after [\d,]+ states: no verdict\n", result.stderr)


def test_the_run_says_what_lies_in_the_slots_and_what_is_sent_again() -> None:
    result = run("--variant", "free-own-bit", "--losses", "1")
    assert "rank 1 sends again packet 0 of message 0 (PSN 6)" in result.output
    assert "slot 0: message 2, has ranks 0, 1 (1: from message 0)" in result.output
    assert "a wrong sum as the result of message 2 (rank 0's message 2 + rank 1's message 0)" in result.output
    assert "it has not sent its own message 2 yet" in result.output


@pytest.mark.parametrize(
    "sizes",
    [
        ("--length", "1", "--losses", "0", "--messages", "2"),
        ("--world", "sharing", "--jobs", "1", "--operations", "1", "--turns", "1", "--losses", "0"),
        ("--world", "migration", "--set", "faults=0"),
    ],
)
def test_a_disk_that_is_full_at_the_end_takes_the_verdict_as_json_alone(sizes: tuple[str, ...]) -> None:
    result = run(*sizes, "--json", "/dev/full")
    assert (result.exit_code, type(result.exception)) == (1, SystemExit)
    assert "/dev/full cannot be written: No space left on device" in result.stderr
    assert "violations" in result.stdout


def test_a_report_that_is_there_stays_until_there_is_another_one(tmp_path: Path) -> None:
    kept = tmp_path / "verdict.json"
    kept.write_text("kept")
    assert run("--states-max", "1", "--json", str(kept)).exit_code == 2
    assert kept.read_text() == "kept"
