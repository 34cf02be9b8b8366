"""``inaproto simulate``: runs, JSON, options, and how it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from inaproto.cli import cli
from inaproto_controller.cluster import compiled
from inaproto_controller.simulate.cluster import simulate
from inaproto_controller.simulate.scenario.measures import MEASURES
from inaproto_controller.simulate.scenario.runs import Task, events, run_all, run_one
from inaproto_controller.simulate.scenario.scenario import load_scenario
from inaproto_controller.simulate.scenario.statistics import mean_of
from inaproto_controller.simulate.scenario.table import cell
from tests.child_processes import children
from tests.controller.scenarios import HOPELESS, SMALL, loaded, written


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["simulate", *map(str, arguments)])


def ran(*arguments: str | Path) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def document(*arguments: str | Path) -> Any:
    return json.loads(ran(*arguments, "--json", "-").stdout)


def test_help_teaches() -> None:
    text = ran("--help").output
    for word in (
        "[cluster]",
        "[[compare]]",
        "docs/planning.md",
        "examples/cluster.toml",
        "--timeline-window",
    ):
        assert word in text


def test_what_is_told_is_what_the_simulator_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    found = document(path)
    scenario = load_scenario(path)
    for number, variant in enumerate(scenario.variants):
        results = []
        for seed in (0, 1):
            requests, arrivals = scenario.workload(seed)
            results.append(simulate(scenario.setting(variant, seed), requests, arrivals=arrivals))
        told = found["variants"][number]
        assert [run["seed"] for run in told["runs"]] == [0, 1]
        assert [run["score"] for run in told["runs"]] == [result.score for result in results]
        assert [run["jct_s_mean"] for run in told["runs"]] == [result.seconds_mean for result in results]
        assert told["jobs"] == [job.as_dict() for job in results[0].jobs]
        assert len(told["moments"]) == len(results[0].moments)
        scores = [result.score for result in results]
        assert None not in scores
        assert told["measures"]["score"]["mean"] == pytest.approx(sum(map(float, map(str, scores))) / 2)
        assert sum(part["jobs"]["mean"] for part in told["by_model"].values()) >= 12


def test_the_same_seeds_give_the_same_json_in_as_many_processes_as_one_likes(tmp_path: Path) -> None:
    path = written(tmp_path)
    once = ran(path, "--json", "-", "--jobs", "1").stdout
    assert ran(path, "--json", "-", "--jobs", "1").stdout == once
    assert ran(path, "--json", "-", "--jobs", "2").stdout == once
    assert ran(path, "--json", "-", "--jobs", "1", "--seeds", "3").stdout != once


def test_all_that_stands_beside_a_score(tmp_path: Path) -> None:
    table = ran(written(tmp_path)).stdout
    for measure in MEASURES:
        assert measure.label in table
    assert "saved, by model" in table
    assert "first / exclusive / greedy" in table
    assert "±" in table
    assert "INA saves" in table


def test_json_goes_to_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    result = ran(written(tmp_path), "--json", path)
    assert json.loads(path.read_text())["report"] == "simulate"
    assert f"wrote {path}" in result.stdout


def test_a_limit_cuts_jobs_and_says_so(tmp_path: Path) -> None:
    found = document(written(tmp_path, "until = 3.0\n" + SMALL), "--seeds", "1")
    assert found["variants"][0]["measures"]["unfinished"]["mean"] > 0
    assert any("had not ended at the limit" in note for note in found["notes"])


# -- what is undefined


def test_a_score_of_nothing_to_gain_is_undefined_and_never_0(tmp_path: Path) -> None:
    path = written(tmp_path, HOPELESS)
    found = document(path)
    measures = found["variants"][0]["measures"]
    assert measures["score"] == {"mean": None, "ci95": None, "runs": 0, "undefined_runs": 1}
    assert found["variants"][0]["runs"][0]["score"] is None
    assert found["variants"][0]["by_model"]["vit-base-4"]["score"]["mean"] is None
    assert "score is undefined" in found["verdict"][0]
    assert any("INA score is undefined in 1 of 1 runs" in note for note in found["notes"])
    row = next(line for line in ran(path).stdout.splitlines() if line.startswith("INA score"))
    assert row.split()[2:] == ["undefined"]


def test_fairness_of_nothing_gained_is_undefined(tmp_path: Path) -> None:
    """And not that of the noise that rounding leaves."""
    variant = document(written(tmp_path, SMALL + '[[compare]]\ntrees = "none"\n'))["variants"][2]
    assert variant["measures"]["fairness"]["mean"] is None
    assert variant["measures"]["score"]["mean"] == pytest.approx(0, abs=1e-9)


def test_what_restarts_cost_is_not_called_the_cost_of_ina(tmp_path: Path) -> None:
    failing = "until = 200.0\n" + SMALL + "[failures]\nhost_mtbf = 60.0\nhost_mttr = 5.0\n"
    found = document(written(tmp_path, failing))
    assert found["variants"][0]["measures"]["restarts"]["mean"] > 0
    for line in found["verdict"][:2]:
        assert "Jobs that lost a host are left out of the score" in line
        assert "INA costs" not in line
    for variant in found["variants"]:
        assert 0 <= variant["measures"]["score"]["mean"] <= 1 + 1e-9


def test_a_score_of_jobs_that_all_lost_a_host_says_why_it_is_undefined(tmp_path: Path) -> None:
    """It said that no job was placed, and that none could be any faster."""
    (tmp_path / "lost.json").write_text(
        '{"version": 1, "events": [{"seconds": 0.1, "part": "host", "number": 0, "up": false},'
        ' {"seconds": 0.2, "part": "host", "number": 0, "up": true}]}'
    )
    lone = "[cluster]\ndown = [2]\nup = [1]\n[failures]\nfile = 'lost.json'\n"
    lone += "[[jobs]]\nmodel = 'opt-125m-4'\nhosts = 2\nsteps = 10\n"
    found = document(written(tmp_path, lone))
    said = {note.split(": ")[1]: note.split(": ", 2)[2] for note in found["notes"] if "undefined" in note}
    left_out = "no job was placed, or all that were lost a host."
    assert said["saved per job is undefined in 1 of 1 runs"] == left_out
    assert said["INA score is undefined in 1 of 1 runs"].endswith(", or those that could lost a host.")
    assert "job time (JCT)" not in str(said)


def test_the_best_of_many_may_be_two(tmp_path: Path) -> None:
    more = (
        '[[compare]]\nname = "one"\n[[compare]]\nname = "two"\n[[compare]]\nname = "none"\ntrees = "none"\n'
    )
    text = "[cluster]\ndegree = 4\n[[jobs]]\nmodel = 'opt-125m-4'\nhosts = 4\nsteps = 10\n" + more
    assert document(written(tmp_path, text))["verdict"][-1] == (
        "A user waits least, and the same, with one and with two."
    )


def test_what_rounding_leaves_is_nothing(tmp_path: Path) -> None:
    text = SMALL + '[[compare]]\nname = "never"\npolicy = "none"\n'
    result = ran(written(tmp_path, text))
    assert "never: INA saves nothing of the mean job" in result.stdout
    assert "-0.0" not in result.stdout


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    found = document(written(tmp_path), "--seeds", "1")
    assert found["variants"][0]["measures"]["score"]["ci95"] is None
    assert any("no confidence intervals" in note for note in found["notes"])


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=12))
def test_a_mean_is_that_of_the_defined(values: list[float | None]) -> None:
    found = mean_of(values)
    defined = [value for value in values if value is not None]
    assert (found.runs, found.undefined) == (len(defined), len(values) - len(defined))
    assert (found.mean is None) == (not defined)
    assert (found.half_width is None) == (len(defined) < 2)
    if not defined:
        assert all(cell(measure, found.as_dict()) == "undefined" for measure in MEASURES)
    else:
        assert all("undefined" not in cell(measure, found.as_dict()) for measure in MEASURES)


# -- options


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--timeline-jobs", "1"], "are for --timeline FILE"),
        (["--timeline", "-"], "--timeline: give a file"),
        (["--timeline", "t.svg", "--timeline-window", "2:1"], "write begin and end"),
        (["--timeline", "t.svg", "--timeline-jobs", "1,x"], "write job numbers"),
        (["--report", "/none/report.html"], "there is no directory /none"),
        (["--seeds", "0"], "--seeds"),
        (["--report", "out", "--json", "./out"], "--report: out is that of --json, too"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = run(written(tmp_path), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_report_does_not_replace_the_scenario(tmp_path: Path) -> None:
    path = written(tmp_path)
    result = run(path, "--report", path)
    assert result.exit_code == 2
    assert "is the scenario, too" in result.stderr
    assert path.read_text() == SMALL


def test_jobs_of_a_timeline_are_checked_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "inaproto_controller.simulate.scenario.runs.run_all", lambda *_, **__: pytest.fail("it ran")
    )
    result = run(written(tmp_path), "--timeline", tmp_path / "t.svg", "--timeline-jobs", "3,13")
    assert result.exit_code == 2
    assert "there is no job 13" in result.stderr


def test_a_timeline_that_is_refused_takes_nothing_else_along(tmp_path: Path) -> None:
    page, drawing = tmp_path / "page.html", tmp_path / "t.svg"
    result = run(
        written(tmp_path), "--report", page, "--timeline", drawing, "--timeline-window", "9000:9001s"
    )
    assert result.exit_code == 2
    assert page.exists()
    assert "INA score" in result.stdout


def test_files_are_written_though_nobody_reads_the_table(tmp_path: Path) -> None:
    page, drawing = tmp_path / "page.html", tmp_path / "t.svg"
    command: list[str | Path] = [sys.executable, "-m", "inaproto.cli", "simulate", written(tmp_path)]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        ended = subprocess.run(
            [*command, "--report", page, "--timeline", drawing],
            stdout=writes,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writes)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert page.exists()
    assert drawing.exists()


@pytest.mark.parametrize("option", ["--json", "--report", "--timeline"])
def test_a_full_disk_is_told_with_the_file(option: str, tmp_path: Path) -> None:
    result = run(written(tmp_path), option, "/dev/full")
    assert result.exit_code == 1
    assert "INA score" in result.stdout
    assert "Error: /dev/full cannot be written: No space left on device" in result.stderr


def test_a_bad_scenario_is_a_message(tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("hosts = 5", "hosts = 50"))
    result = run(path)
    assert result.exit_code == 2
    assert result.stderr == (
        f"inaproto: scenario {path}: jobs[0].hosts: 50 is not allowed: the cluster has 16\n"
    )


@pytest.mark.parametrize(
    ("module", "arguments", "said"),
    [
        ("pyarrow", ["--parquet", "jobs.parquet"], "pip install 'inaproto[parquet]'"),
        ("ray", ["--engine", "ray"], "pip install 'inaproto[ray]'"),
    ],
)
def test_what_is_optional_says_how_to_get_it(
    module: str, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    result = run(written(tmp_path), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_rows_for_parquet_are_all_jobs_of_all_runs(tmp_path: Path) -> None:
    from inaproto_controller.simulate.scenario.parquet import job_rows

    scenario = loaded(tmp_path)
    rows = list(job_rows(scenario, run_all(scenario, (0, 1), with_all_jobs=True)))
    assert len(rows) == 2 * 2 * 13
    assert {(row["variant"], row["seed"]) for row in rows} == {
        (variant.label, seed) for variant in scenario.variants for seed in (0, 1)
    }


def test_without_numba_it_says_that_it_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "IS_COMPILED", False)
    result = ran(written(tmp_path))
    assert "pip install 'inaproto[planning]'" in result.stderr


def test_events_are_counted_beforehand(tmp_path: Path) -> None:
    scenario = loaded(tmp_path)
    assert run_one(Task(scenario, 0, 0, False)).measures["events"] == events(scenario)


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_is_told_as_shares_that_ascend_to_1(jobs: int, tmp_path: Path) -> None:
    told: list[float] = []
    run_all(loaded(tmp_path), (0, 1), jobs=jobs, on_progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(told) == (4 if jobs == 2 else 4 + 4 * 13)


# -- how it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_what_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    path = written(tmp_path, SMALL.replace("steps = 40", "steps = 1000000"))
    command = [sys.executable, "-c", "from inaproto.cli import main; main()", "simulate", str(path)]
    with subprocess.Popen(
        [*command, "--jobs", "2", "--seeds", "1000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as simulating:
        try:
            while len(children(simulating.pid)) < 3:  # two, and what tracks their resources
                with pytest.raises(subprocess.TimeoutExpired):
                    simulating.wait(timeout=0.05)
            workers = [os.pidfd_open(child) for child in children(simulating.pid)]
            os.killpg(simulating.pid, number)
            _, said = simulating.communicate(timeout=600)
        finally:
            simulating.kill()
    assert simulating.returncode == (-9 if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert said == "inaproto: stopped\n"
    for worker in workers:  # readable when it has ended
        assert select.select([worker], [], [], 60)[0]
        os.close(worker)
