from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inaproto.errors import ConfigError
from inaproto.sim.campaign.rules import rules
from inaproto.sim.frames.draw.swarm import draw_world
from inaproto.sim.kernel.violated import Violation
from inaproto.task_engines import InProcess
from inaproto_hil.soak import campaign, replay, soak
from inaproto_hil.soak.block import Block, Told, run_block
from inaproto_hil.soak.campaign import (
    STATE_NAME,
    STOPPED,
    TIME_IS_UP,
    Asked,
    Campaign,
    Plan,
    parse_seeds,
    resume_campaign,
)
from inaproto_hil.soak.differences import differences
from inaproto_hil.soak.parts import PRODUCT
from inaproto_hil.soak.tally import Failure, Tally, bin_start
from inaproto_hil.soak.verdict import State, Verdict
from tests.child_processes import children

VARIANT = "tests.sim.third_nak:installed"
QUICK = ["38", "33", "8"]
"""Seeds of small worlds; of these, with the variant, only the last fails."""
FAILURE = Failure(33, "one result", "rank 1 has other bytes", 12, 3400, "one_result")


def run(*arguments: str) -> Result:
    command = soak if arguments[0] == "soak" else replay
    return CliRunner().invoke(command, arguments[1:], catch_exceptions=False)


def plan(stop: int | None, fingerprint: str = "f") -> Plan:
    return Plan(33, stop, None, "0.1.0", fingerprint)


def asked(seeds: tuple[int, int | None] | None = None, fingerprint: str = "f") -> Asked:
    return Asked("0.1.0", fingerprint, seeds)


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
    for name in rules():
        assert f"<td>{name}</td>" in page
    again = run("soak", "--out", str(tmp_path), "--resume", "--jobs", "1")
    assert "for 0 seeds" in again.output
    longer = run("soak", "--seeds", "32:37", "--out", str(tmp_path), "--resume", "--jobs", "1")
    assert "for 1 seeds" in longer.output
    assert json.loads((tmp_path / "report.json").read_text())["seeds"] == 5


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


def test_a_failure_that_cannot_be_told_is_listed_all_the_same(tmp_path: Path) -> None:
    seeds = f"{QUICK[2]}:{int(QUICK[2]) + 1}"
    variant = f"{VARIANT}_without_drawings"
    done = run(
        "soak", "--seeds", seeds, "--jobs", "1", "--no-shrink", "--with", variant, "--out", str(tmp_path)
    )
    assert done.exit_code == 1, done.output
    assert "0 of 1 failures have logs" in done.output
    assert "ZeroDivisionError: nothing can be drawn" in done.output
    assert f"soak --seed {QUICK[2]} --with {variant}    # no third NAK" in done.output
    assert (tmp_path / "report.html").exists()


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

    first = Campaign(plan(39), tmp_path)
    first.run(StopsAfterTwo(), minutes=None, progress=lambda tally: None)
    assert (first.interrupted, first.at_once) == (STOPPED, True)
    assert first.tally.seeds == 4
    second = resume_campaign(tmp_path, asked())
    second.run(InProcess(), minutes=None, progress=lambda tally: None)
    assert second.finished
    assert without_times(second.tally) == without_times(whole.tally)


def test_a_longer_campaign_keeps_the_blocks_of_the_shorter(tmp_path: Path) -> None:
    short = Campaign(plan(43), tmp_path)
    short.next = 2
    short.write(at_once=True)
    longer = resume_campaign(tmp_path, asked((33, 60)))
    spans = [(block.first, block.stop) for block in longer.plan.blocks()]
    assert spans == [(33, 41), (41, 43), (43, 51), (51, 59), (59, 60)]
    longer.write(at_once=True)
    assert resume_campaign(tmp_path, asked()).plan == longer.plan


def without_times(tally: Tally) -> dict[str, object]:
    return tally.as_record() | {"blocks": [(first, steps) for first, steps, _ in tally.blocks]}


def test_another_campaign_is_not_resumed(tmp_path: Path) -> None:
    Campaign(plan(39), tmp_path).write(at_once=True)
    for other, said in (
        (asked((33, 38)), "--seeds is 33:38, was 33:39; --resume can extend it"),
        (asked((30, 50)), "--seeds begins at 30, began at 33"),
        (asked(fingerprint="g"), "the program has changed"),
        (replace(asked(), variant="a:b"), "--with is a:b, was not given"),
    ):
        with pytest.raises(ConfigError, match=said):
            resume_campaign(tmp_path, other)
    (tmp_path / STATE_NAME).write_text("{}")
    with pytest.raises(ConfigError, match="damaged"):
        resume_campaign(tmp_path, asked())
    with pytest.raises(ConfigError, match="there is no campaign"):
        resume_campaign(tmp_path / "elsewhere", asked())


def test_results_are_not_written_over(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    for name in (STATE_NAME, "report.html", "seed-3.jsonl", "notes.txt"):
        (ours / name).write_text("kept")
    command = ("soak", "--seeds", "33:34", "--jobs", "1", "--out")
    refused = run(*command, str(ours))
    assert refused.exit_code == 2
    for said in ("holds the results of a campaign", "--resume", "--anew", "another folder"):
        assert said in refused.output
    assert (ours / "seed-3.jsonl").exists()
    assert run(*command, str(ours), "--anew").exit_code == 0
    assert not (ours / "seed-3.jsonl").exists()
    assert (ours / "notes.txt").read_text() == "kept"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("")
    for more in ((), ("--anew",)):
        refused = run(*command, str(foreign), *more)
        assert (refused.exit_code, "holds no campaign" in refused.output) == (2, True)
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]


def test_a_verdict_says_no_more_than_was_run() -> None:
    ours = Campaign(plan(39), None)
    ours.interrupted = TIME_IS_UP
    none = Verdict.of(ours, require_marks=None)
    assert (none.state, none.status) == (State.NONE, 1)
    assert "no verdict" in str(none)
    ours.tally.seeds = 4
    some = Verdict.of(ours, require_marks=None)
    assert (some.state, some.status) == (State.OPEN, 0)
    assert "no rule broken so far" in str(some)
    assert "passed" not in str(some)
    ours.interrupted = STOPPED
    assert Verdict.of(ours, require_marks=None).status == 130
    ours.tally.seeds, ours.interrupted = 6, ""
    assert Verdict.of(ours, require_marks=None).state is State.PASSED


def test_nothing_run_is_no_success(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    done = run("soak", "--minutes", "1e-9", "--jobs", "1", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "no verdict: no seed was run" in done.output
    assert 'class="none"' in (tmp_path / "report.html").read_text()
    assert not recwarn.list


@pytest.mark.parametrize("signals", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGKILL]])
def test_nothing_is_left_of_a_campaign_that_is_stopped(signals: list[signal.Signals], tmp_path: Path) -> None:
    command = "from inaproto_hil.soak import campaign, soak; campaign.BLOCK_SEEDS = 1; soak()"
    soaking = subprocess.Popen(
        [
            sys.executable,
            "-c",
            command,
            "--seeds",
            "33:100000",
            "--jobs",
            "2",
            "--out",
            str(tmp_path),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert soaking.stderr is not None
    try:
        while not (tmp_path / STATE_NAME).exists():  # written after the first block
            with pytest.raises(subprocess.TimeoutExpired):
                soaking.wait(timeout=0.06)
        workers = [os.pidfd_open(child) for child in children(soaking.pid)]
        assert len(workers) >= 2
        os.killpg(soaking.pid, signals[0])
        if signals[1:]:
            assert "stopping: waiting for " in soaking.stderr.readline()
            os.killpg(soaking.pid, signals[1])
        soaking.communicate(timeout=600)
    finally:
        soaking.kill()
    assert soaking.returncode == (-9 if signals == [signal.SIGKILL] else 130)
    for worker in workers:  # readable when it has ended
        assert select.select([worker], [], [], 600)[0]
        os.close(worker)
    if soaking.returncode == 130:
        assert json.loads((tmp_path / STATE_NAME).read_text())["tally"]["seeds"] >= 1


def test_being_stopped_early_is_130_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    assert run("soak", "--seed", QUICK[0], "--log", str(log)).exit_code == 0

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inaproto.sim.frames.world.World.run", stopped)
    assert run("replay", str(log)).exit_code == 130
    assert run("soak", "--seed", QUICK[0]).exit_code == 130
    monkeypatch.undo()
    monkeypatch.setattr("inaproto_hil.soak.report.write_report", stopped)
    out = str(tmp_path / "out")
    drawing = run("soak", "--seeds", "33:34", "--jobs", "1", "--out", out)
    assert drawing.exit_code == 130
    assert "drawing the report" in drawing.output


def raises() -> None:
    raise RuntimeError("not today")


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
        (("soak", "--seed", "1", "--seeds", "4"), "--seed is one seed: leave --seeds out"),
        (("soak", "--digest"), "add --seed"),
        (("soak", "--resume"), "needs --out"),
        (("replay", str(tmp_path / "none")), "No such file"),
        (("soak", "--with", "tests.sim.test_soak:raises"), "calling it raised RuntimeError: not today"),
        (("soak", "--seed", "1:4"), "for a range write --seeds 1:4"),
        (("soak", "--seed", "1", "--jobs", "2", "--engine", "ray"), "leave --jobs and --engine out"),
        (("soak", "--seed", "1", "--digest", "--shrink"), "leave --shrink out"),
        (("soak", "--anew"), "needs --out"),
        (("soak", "--seed", "1", "--log", str(tmp_path / "no" / "log")), "there is no folder"),
        (("soak", "--seed", "1", "--log", str(tmp_path)), "is a directory"),
        (("soak", "--seeds", "1", "--out", "/dev/null/out"), "cannot be made"),
    ):
        done = run(*arguments)
        assert (done.exit_code, said in done.output) == (2, True), done.output


def test_a_log_of_a_world_that_cannot_be_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run("soak", "--seed", QUICK[0], "--log", str(log))
    header, *rest = log.read_text().splitlines(keepends=True)
    record = json.loads(header)
    record["config"]["jobs"][0]["mtu"] = 257
    log.write_text(json.dumps(record) + "\n" + "".join(rest))
    refused = run("replay", str(log))
    assert refused.exit_code == 2
    assert "MTU 257" in refused.output
    assert refused.output.count("\n") == 1
    assert run("replay", str(log), "--svg", str(tmp_path / "no" / "a.svg")).exit_code == 2


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


# --- measured, and run again


def test_a_measurement_says_what_it_measured() -> None:
    done = run("soak", "--measure", "--seeds", f"{QUICK[1]}:{int(QUICK[1]) + 1}")
    assert done.exit_code == 0
    assert done.output.startswith("run 1 of 5: ")
    assert done.output.rstrip().endswith(", one process")


def test_a_failure_that_only_the_campaign_saw_is_told_with_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = FAILURE.seed

    def fails(block: Block) -> tuple[Block, Tally]:
        tally = Tally()
        tally.add_world(seed, PRODUCT.run(draw_world(seed)))
        tally.failures.append(FAILURE)
        return block, tally

    monkeypatch.setattr(campaign, "run_block", fails)
    out = tmp_path / "out"
    done = run("soak", "--seeds", f"{seed}:{seed + 1}", "--jobs", "1", "--out", str(out))
    assert done.exit_code == 1
    both = "in the campaign: one result at event 12: rank 1 has other bytes; run again: no rule broken"
    assert f"seed {seed} is not the same twice: {both}" in done.output
    assert "FAILED: 1 of them did otherwise when run again" in done.output
    report = json.loads((out / "report.json").read_text())
    assert report["failures"][0]["differs"] == both
    assert both in (out / "report.html").read_text()


def test_failures_are_the_same_if_they_broke_the_same_rule_at_the_same_event() -> None:
    def again(violation: Violation | None) -> dict[int, str]:
        return differences([FAILURE], [Told(FAILURE.seed, "", "", "", violation=violation)])

    assert again(Violation("one result", "in other words", 12, 3400, "one_result")) == {}
    assert FAILURE.seed in again(Violation("one result", "rank 1 has other bytes", 13, 3400, "one_result"))
    assert FAILURE.seed in again(Violation("window", "rank 1 has other bytes", 12, 3400, "one_result"))
    assert differences([FAILURE], []) == {}
