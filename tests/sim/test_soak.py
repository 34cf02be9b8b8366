from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inaproto.errors import ConfigError, Unsupported
from inaproto.sim.swarm import draw_world
from inaproto_hil.soak import campaign, replay, soak
from inaproto_hil.soak.block import Block, run_block
from inaproto_hil.soak.campaign import STATE_NAME, Campaign, Plan, open_campaign, parse_seeds
from inaproto_hil.soak.engines import InProcess, open_engine
from inaproto_hil.soak.parts import PRODUCT
from inaproto_hil.soak.tally import Tally, bin_start

VARIANT = "tests.sim.third_nak:installed"
QUICK = ["38", "33", "8"]
"""Seeds of small worlds; of these, with the variant, only the last fails."""


def run(*arguments: str) -> Result:
    command = soak if arguments[0] == "soak" else replay
    return CliRunner().invoke(command, arguments[1:], catch_exceptions=False)


def plan(stop: int | None, fingerprint: str = "f") -> Plan:
    return Plan(33, stop, None, "0.1.0", fingerprint)


def test_a_campaign_in_two_processes_prints_and_reports(tmp_path: Path) -> None:
    done = run("soak", "--seeds", "32:36", "--jobs", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    for said in ("seeds             4", "steps/s per core", "marks:", "passed: every rule", "too few seeds"):
        assert said in done.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"]
    assert report["finished"]
    assert report["seeds"] == 4
    assert report["failures"] == []
    assert report["core_steps"]["total"] == sum(report["core_steps"].values()) - report["core_steps"]["total"]
    page = (tmp_path / "report.html").read_text()
    assert page.count('src="data:image/svg+xml;base64,') == 5
    assert "http" not in page
    again = run("soak", "--seeds", "32:36", "--out", str(tmp_path), "--resume", "--jobs", "1")
    assert "for 0 seeds" in again.output


def test_marks_can_be_required() -> None:
    done = run("soak", "--seeds", "33:34", "--jobs", "1", "--require-marks")
    assert done.exit_code == 1
    assert "never: fault: " in done.output
    assert "declared marks were never seen" in done.output


def test_a_failing_seed_leaves_a_log_that_fails_again(tmp_path: Path) -> None:
    done = run("soak", "--seed", QUICK[2], "--with", VARIANT, "--out", str(tmp_path))
    assert done.exit_code == 1, done.output
    assert f"inaproto soak --seed {QUICK[2]} --with {VARIANT}" in done.output
    log = tmp_path / f"seed-{QUICK[2]}.jsonl"
    same = run("replay", str(log), "--with", VARIANT, "--svg", str(tmp_path / "out.svg"))
    assert same.exit_code == 0
    assert "fails at the same event" in same.output
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    fixed = run("replay", str(log))
    assert fixed.exit_code == 1
    assert "breaks no rule" in fixed.output
    assert f"add --with {VARIANT}" in fixed.output


def test_a_campaign_lists_its_failures(tmp_path: Path) -> None:
    seeds = f"{QUICK[2]}:{int(QUICK[2]) + 1}"
    done = run(
        "soak", "--seeds", seeds, "--jobs", "1", "--no-shrink", "--with", VARIANT, "--out", str(tmp_path)
    )
    assert done.exit_code == 1, done.output
    assert f"soak --seed {QUICK[2]} --with {VARIANT}    # no third NAK" in done.output
    (failure,) = json.loads((tmp_path / "report.json").read_text())["failures"]
    assert failure["rule"] == "no third NAK"
    assert Path(failure["log"]).exists()
    page = (tmp_path / "report.html").read_text()
    assert "no third NAK" in page
    assert page.count('src="data:image/svg+xml;base64,') == 6  # its sequence diagram too


def test_a_resumed_campaign_runs_each_seed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "BLOCK_SEEDS", 2)
    whole = Campaign(plan(39), None)
    whole.run(InProcess(), minutes=None, progress=lambda tally: None)
    assert whole.finished

    class StopsAfterTwo:
        def outcomes(self, work, tasks):  # type: ignore[no-untyped-def]
            for number, task in enumerate(tasks):
                if number == 2:
                    raise KeyboardInterrupt
                yield work(task)

    first = open_campaign(plan(39), tmp_path, resume=False)
    first.run(StopsAfterTwo(), minutes=None, progress=lambda tally: None)
    assert first.interrupted == "stopped by Ctrl-C"
    assert first.tally.seeds == 4
    with pytest.raises(ConfigError, match="not finished"):
        open_campaign(plan(39), tmp_path, resume=False)
    second = open_campaign(plan(39), tmp_path, resume=True)
    second.run(InProcess(), minutes=None, progress=lambda tally: None)
    assert second.finished
    assert without_times(second.tally) == without_times(whole.tally)


def without_times(tally: Tally) -> dict[str, object]:
    return tally.as_record() | {"blocks": [(first, steps) for first, steps, _ in tally.blocks]}


def test_another_campaign_is_not_resumed(tmp_path: Path) -> None:
    Campaign(plan(39), tmp_path).write(at_once=True)
    for other, said in ((plan(40), "stop is 40, was 39"), (plan(39, "g"), "the program has changed")):
        with pytest.raises(ConfigError, match=said):
            open_campaign(other, tmp_path, resume=True)
    (tmp_path / STATE_NAME).write_text("{}")
    with pytest.raises(ConfigError, match="damaged"):
        open_campaign(plan(39), tmp_path, resume=True)
    with pytest.raises(ConfigError, match="there is no campaign"):
        open_campaign(plan(39), tmp_path / "elsewhere", resume=True)


def test_tallies_of_parts_add_up_to_that_of_the_whole() -> None:
    _, whole = run_block(Block(0, 33, 35))
    _, first = run_block(Block(0, 33, 34))
    _, second = run_block(Block(1, 34, 35))
    second.add(first)
    first_record, whole_record = second.as_record(), whole.as_record()
    del first_record["blocks"], whole_record["blocks"]
    assert first_record == whole_record
    assert Tally.from_record(json.loads(json.dumps(whole.as_record()))) == whole


def test_bins_hold_what_is_in_them() -> None:
    from inaproto_hil.soak.tally import _bin

    for value in (*range(1, 300), 10**6, 2**31, 2**31 + 1):
        number = int(_bin(value))
        assert bin_start(number) <= value < bin_start(number + 1)


def test_seeds() -> None:
    assert parse_seeds("2000") == (0, 2000)
    assert parse_seeds("10:20") == (10, 20)
    for wrong in ("", "0", "x", "5:5", "-1:4", "1:2:3"):
        with pytest.raises(ConfigError, match="write a count"):
            parse_seeds(wrong)


def test_wrong_options_are_said_without_a_traceback(tmp_path: Path) -> None:
    for arguments, said in (
        (("soak", "--seed", "a/b"), "write a number, or a word"),
        (("soak", "--with", "nothing"), "write MODULE:FUNCTION"),
        (("soak", "--with", "no.such:thing"), "root of the source"),
        (("soak", "--with", "tests.sim.third_nak:SEED"), "not a context manager"),
        (("soak", "--seed", "1", "--seeds", "4"), "--seed is one seed"),
        (("soak", "--digest"), "add --seed"),
        (("soak", "--resume"), "needs --out"),
        (("replay", str(tmp_path / "none")), "No such file"),
    ):
        done = run(*arguments)
        assert (done.exit_code, said in done.output) == (2, True), done.output


def test_ray_is_asked_for_by_name_if_it_is_not_here() -> None:
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(Unsupported, match=r"pip install 'inaproto\[ray\]'"):
            open_engine("ray", 1)


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    digests = set()
    for hash_seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", "from inaproto_hil.soak import soak; soak()", "--seed", "33", "--digest"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        digests.add(done.stdout)
    assert digests == {PRODUCT.run(draw_world(33)).digest + "\n"}
