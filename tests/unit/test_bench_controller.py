"""What ``inaproto bench controller`` makes of its rows: sizes, exponents with intervals, the picture."""

from __future__ import annotations

import random
from typing import Any

import pytest
from click.testing import CliRunner

from inaproto_hil.bench import bench
from inaproto_hil.bench.controller.curves import drawing, exponents
from inaproto_hil.bench.controller.measure import spread


def row(hosts: int, jobs: int, cost: float) -> dict[str, Any]:
    times = spread([cost])
    return {
        "hosts": hosts,
        "pair": False,
        "arrival": {"controller_cpu_s": cost},
        "jobs": {"count": jobs, "controller_cpu_s": cost, "durable_ms": times, "placed_ms": times},
        "turns": {"controller_cpu_s": cost, "round_ms": times},
        "moves": {"controller_cpu_s": 0.0, "move_ms": times},
        "loop": {"longest_cpu_s": 0.01},
        "restarts": {"all_back_s": times},
        "rss_bytes": 1 << 27,
    }


def test_exponents_are_found_with_their_intervals() -> None:
    choice = random.Random("exponents")
    rows = [row(hosts, 8, hosts**1.5 * choice.uniform(0.98, 1.02)) for hosts in (64, 128, 256, 512, 1024)]
    found = exponents(rows, "hosts")
    one = found["all agents arrive"]
    assert abs(one["exponent"] - 1.5) <= one["half_width"] < 0.05
    assert found["memory"] == {"exponent": 0.0, "half_width": 0.0}
    assert "moves of its tree" not in found, "what takes no time that is measured has no exponent"
    assert exponents(rows[:2], "hosts")["all agents arrive"]["half_width"] is None
    assert exponents([row(64, jobs, float(jobs)) for jobs in (2, 4, 8)], "jobs")["jobs come, run and end"][
        "exponent"
    ] == pytest.approx(1.0)


def test_percentiles_are_values_that_were_measured() -> None:
    assert spread(list(range(1, 201))) == {"n": 200, "p50": 100.5, "p95": 190, "p99": 198, "max": 200}


def test_a_picture_is_the_same_each_time() -> None:
    rows = [row(hosts, hosts // 4, float(hosts)) for hosts in (64, 128)]
    assert drawing(rows, "hosts") == drawing(rows, "hosts")
    assert drawing(rows, "jobs").startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--hosts", "many"), "write for example 1024"),
        (("--hosts", "64,256", "--jobs", "2,4,8"), "3 numbers for 2"),
        (("--hosts", "4", "--jobs", "8"), "at most one for each of the 4 hosts"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_anything_starts(words: tuple[str, ...], said: str) -> None:
    found = CliRunner().invoke(bench, ["controller", *words])
    assert found.exit_code == 2
    assert said in found.output
