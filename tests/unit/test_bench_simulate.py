"""What ``inaproto bench simulate`` reports."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from inaproto_hil.bench import bench
from inaproto_hil.bench.simulate import beyond_first, cases, exponent


def test_a_report_has_its_configuration_and_tells_compiling_from_running() -> None:
    words = ["simulate", "--no-large", "--rounds", "3", "--requests", "5", "--sizes", "5,10", "--json", "-"]
    done = CliRunner().invoke(bench, words)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert {"cpu", "python", "versions"} <= set(report["env"])
    names = [row["case"]["name"] for row in report["rows"]]
    assert names == ["baseline", "MINA", "ours", "MINA, 5", "MINA, 10"]
    for row in report["rows"]:
        low, high = row["cpu_s_spread"]
        assert 0 < low <= row["cpu_s"] <= high
        assert len(row["samples_s"]) == 3
        assert row["events"] > 5
        assert row["case"]["tree"]["hosts"] == 1024
    assert report["config"]["rounds"] == 3
    assert report["import_cpu_s"] > 0
    assert report["compile_or_load_cpu_s"] > 0
    assert report["exponent_over_events"] is not None
    assert "cost over events" in done.stderr


def test_the_exponent_is_that_of_the_power_law() -> None:
    assert exponent([(events, 3e-6 * events**1.5) for events in (10, 100, 7000)]) == pytest.approx(1.5)
    assert exponent([(10, 1.0)]) is None
    assert exponent([(10, 1.0), (20, 0.0), (40, 4.0)]) is None


def test_what_charges_for_exchanged_trees_says_so() -> None:
    charged = {case.name: case.config()["migration"]["total"] for case in cases()}
    assert charged["MINA"] == 0
    assert charged["ours"] == 0.559
    assert {case.tree.hosts for case in cases()} == {1024, 8192}


def test_sizes_that_are_none_are_refused() -> None:
    for sizes in ("a", "0"):
        done = CliRunner().invoke(bench, ["simulate", "--sizes", sizes])
        assert done.exit_code == 2


def test_an_empty_cluster_does_not_count_once_it_is_full() -> None:
    points = [(events, 2.0 + 3e-6 * (events - 1000)) for events in (1000, 2000, 4000, 8000)]
    assert exponent(points) != pytest.approx(1.0)
    assert exponent(beyond_first(points)) == pytest.approx(1.0)
    assert exponent(beyond_first(points[:2])) is None
