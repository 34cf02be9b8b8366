"""What ``inaproto bench simulate-growth`` reports: sizes, exponents with their intervals, and verdicts."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from inaproto.errors import ConfigError
from inaproto_controller.simulate.confidence import student_t
from inaproto_controller.simulate.scenario.scenario import load_scenario
from inaproto_hil.bench import bench
from inaproto_hil.bench.simulate_growth import Point, Work, exponent, sized

SCENARIO = """
until = 100.0
[cluster]
down = [2, 2, 4]
up = [1, 1, 2]
[stream]
count = 10
hosts = { 1 = 1, 2 = 2, 4 = 1 }
models = ["vit-large-4", "opt-125m-4"]
[arrivals]
process = "poisson"
rate = 4.0
[[compare]]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


COUNTS = ("events", "tree_builds", "restarts")


def test_another_size_is_as_full(scenario: Path) -> None:
    large = sized(load_scenario(scenario), 40, 30)
    assert large.cluster.hosts == 40
    assert large.file.cluster.tree().down == (2, 2, 10)
    assert large.file.arrivals.rate == pytest.approx(10.0)
    assert len(large.workload(0).requests) == 30
    with pytest.raises(ConfigError, match="6 hosts: of this cluster there are multiples of 4"):
        sized(load_scenario(scenario), 6, 30)


def test_the_exponent_is_that_of_the_power_law_and_its_interval_that_of_a_slope() -> None:
    exact = exponent([(size, 3e-6 * size**1.5) for size in (10, 100, 7000)])
    assert exact is not None
    assert (exact.value, exact.low, exact.high) == pytest.approx((1.5, 1.5, 1.5))
    two = exponent([(10, 1.0), (20, 2.0)])
    assert two is not None
    assert two.value == pytest.approx(1.0)
    assert two.low is None
    assert two.verdict(1.1) == "holds"
    assert exponent([(10, 1.0), (10, 2.0)]) is None
    assert exponent([(10, 1.0), (20, 0.0)]) is None
    costs = {1.0: 1.0, math.e: 3.0, math.e**2: 7.0}  # residuals of the line: by hand
    logs = [math.log(cost) for cost in costs.values()]
    slope = (logs[2] - logs[0]) / 2
    left = sum((log - sum(logs) / 3 - slope * (at - 1)) ** 2 for at, log in enumerate(logs))
    noisy = exponent(costs.items())
    assert noisy is not None
    assert noisy.low == pytest.approx(slope - student_t(1) * math.sqrt(left / 2))
    assert noisy.verdict(1.1) == "not sure"
    steep = exponent([(size, size**1.5) for size in (10, 100, 7000)])
    assert steep is not None
    assert steep.verdict(1.1) == "more"


def test_a_report_has_each_run_and_each_exponent(scenario: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "growth.svg"
    words = ["--hosts", "16,32", "--jobs", "10,20", "--base-hosts", "16", "--base-jobs", "10"]
    done = CliRunner().invoke(
        bench,
        [
            "simulate-growth",
            str(scenario),
            *words,
            "--exponent-max",
            "99",
            "--json",
            "-",
            "--plot",
            str(picture),
        ],
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert [(row["axis"], row["hosts"], row["jobs"]) for row in report["rows"]] == [
        ("hosts", 16, 10),
        ("hosts", 32, 10),
        ("jobs", 16, 10),
        ("jobs", 16, 20),
    ]
    assert all(row["cpu_s"] > 0 and row["process_bytes"] > row["memory_bytes"] >= 0 for row in report["rows"])
    assert [(row["axis"], row["measure"]) for row in report["exponents"]] == [
        ("hosts", "cpu_s"),
        ("hosts", "memory_bytes"),
        ("jobs", "cpu_s"),
        ("jobs", "memory_bytes"),
    ]
    assert {"cpu", "python", "versions"} <= set(report["env"])
    assert "95 % interval" in done.stderr
    assert picture.read_text().startswith("<?xml")


def test_who_interrupts_it_keeps_what_was_measured(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, float] = dict.fromkeys(("cpu_s", "memory_bytes", "process_bytes", *COUNTS), 1)

    def ends(points: Sequence[Point], *_: object, **__: object) -> Iterator[Point]:
        yield from points[:2]
        signal.raise_signal(signal.SIGTERM)

    class Local:
        def __init__(self, processes: int) -> None: ...

        def outcomes(self, _: object, works: list[Work]) -> Iterator[dict[str, float]]:
            yield from (told for _ in works)

    monkeypatch.setattr("inaproto_hil.bench.simulate_growth.track", ends)
    monkeypatch.setattr("inaproto_hil.bench.simulate_growth.Local", Local)
    words = ["--hosts", "16,32", "--jobs", "10,20", "--base-hosts", "16", "--base-jobs", "10"]
    done = CliRunner().invoke(bench, ["simulate-growth", str(scenario), *words, "--json", "-"])
    assert done.exit_code == 130, done.output
    report = json.loads(done.stdout)
    assert [row["hosts"] for row in report["rows"]] == [16, 32]
    assert report["interrupted"] is True
    assert {row["axis"] for row in report["exponents"] if row["exponent"] is not None} <= {"hosts"}


def test_what_cannot_be_sized_is_refused(scenario: Path) -> None:
    for words, said in (
        (["--hosts", "a"], "numbers, such as"),
        (["--jobs", "0"], "each at least 1"),
        (["--variant", "1"], "the scenario has 1, from 0"),
        (["--hosts", "6"], "multiples of 4"),
    ):
        done = CliRunner().invoke(bench, ["simulate-growth", str(scenario), *words])
        assert done.exit_code == 2
        assert said in done.stderr
    scenario.write_text(
        scenario.read_text().replace(
            "until = 100.0", "until = 100.0\n[[jobs]]\nmodel='vit-large-4'\nhosts=2\nsteps=3\n"
        )
    )
    done = CliRunner().invoke(bench, ["simulate-growth", str(scenario)])
    assert done.exit_code == 2
    assert "its jobs are to be a [stream]" in done.stderr
