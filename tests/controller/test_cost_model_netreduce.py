"""NetReduce's cost models: equalities in fractions, and the reference tables in floating point."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from inaproto.cli import cli
from inaproto_controller.cost_model.netreduce import (
    ALGORITHMS,
    Cluster,
    Sizes,
    flat_ring,
    flat_ring_less_netreduce,
    flat_ring_less_tencent,
    netreduce_beats_flat_ring,
    netreduce_beats_tencent,
    parallel_netreduce,
    relaxed_threshold,
    tencent,
    tencent_beats_flat_ring,
    tencent_less_netreduce,
    tencent_stage_1_as_printed,
    tencent_stages,
    threshold,
    total,
)
from inaproto_controller.cost_model.netreduce_report import document, show
from inaproto_controller.cost_model.netreduce_simulation import Simulation, simulate, timed
from inaproto_controller.cost_model.netreduce_sweeps import (
    GB,
    MB,
    MS,
    SIZE,
    cluster_at,
    netreduce_crossovers,
    sweeps,
    tencent_crossovers,
    thresholds,
)

SIZE_EXACT = Fraction(1, 10)
SHAPES = [(n, gpus) for n in (2, 4, 8, 16) for gpus in (2 * n, 4 * n, 128 * n)]
SWEEP_TABLES = {  # ms, as the equations give them: the point of the sweep, then FR, TA, PN, PR
    "A": """
        15.75 15.562 34.244222 19.126111 23.131111
        25 15.562 26.022 15.015 19.020
        32 15.562 22.9595 13.48375 17.48875
        50 15.562 19.022 11.515 15.520
        75 15.562 16.688667 10.348333 14.353333
        100 15.562 15.522 9.765 13.770
        150 15.562 14.355333 9.181667 13.186667""",
    "B": """
        32 15.562 19.022 11.515 15.520
        64 15.876 21.030 11.515 17.528
        128 16.129 22.046 11.515 18.544
        256 16.4475 22.578 11.515 19.076
        512 16.99075 22.892 11.515 19.390
        1024 18.030375 23.145 11.515 19.643""",
    "C": """
        0.1 15.9004 22.0046 11.5015 18.5044
        1 16.129 22.046 11.515 18.544
        10 18.415 22.460 11.650 18.940
        100 41.275 26.600 13.000 22.900""",
}


def cluster_of(gpus: int, per_machine: int) -> Cluster:
    return Cluster(gpus, per_machine, Fraction(1, 10**5), Fraction(50), Fraction(25, 2))


@pytest.mark.parametrize(("n", "gpus"), SHAPES)
def test_corrected_brackets_add_up_and_printed_ones_do_not(n: int, gpus: int) -> None:
    cluster = cluster_of(gpus, n)
    corrected = tencent_stages(cluster, SIZE_EXACT)
    printed = [tencent_stage_1_as_printed(cluster, SIZE_EXACT), *corrected[1:]]
    assert total(corrected) == tencent(cluster, SIZE_EXACT)
    gap = tencent(cluster, SIZE_EXACT) - total(printed)
    assert gap == Fraction(2 * (n - 1) ** 2, n**2) * SIZE_EXACT / cluster.intra
    assert gap > 0


@pytest.mark.parametrize(("n", "gpus"), [(1, 2), (1, 6), (8, 24), *SHAPES])
def test_stages_add_up_to_every_time(n: int, gpus: int) -> None:
    cluster = cluster_of(gpus, n)
    for algorithm in ALGORITHMS:
        assert total(algorithm.stages(cluster, SIZE_EXACT)) == algorithm.time(cluster, SIZE_EXACT)


@pytest.mark.parametrize(("n", "gpus"), [(1, 2), (1, 6), (8, 24), *SHAPES])
def test_differences_are_those_of_the_times(n: int, gpus: int) -> None:
    cluster = cluster_of(gpus, n)
    for difference, one, other in (
        (tencent_less_netreduce(cluster), tencent, parallel_netreduce),
        (flat_ring_less_netreduce(cluster), flat_ring, parallel_netreduce),
        (flat_ring_less_tencent(cluster), flat_ring, tencent),
    ):
        alpha_coefficient, size_coefficient = difference
        assert alpha_coefficient * cluster.alpha + size_coefficient * SIZE_EXACT == one(
            cluster, SIZE_EXACT
        ) - other(cluster, SIZE_EXACT)


def test_thresholds() -> None:
    assert list(thresholds()) == [
        (32, Fraction(28, 15), Fraction(32, 15)),
        (64, Fraction(56, 31), Fraction(64, 31)),
        (128, Fraction(16, 9), Fraction(128, 63)),
        (256, Fraction(224, 127), Fraction(256, 127)),
        (1024, Fraction(128, 73), Fraction(1024, 511)),
    ]


def test_one_gpu_per_machine_has_no_threshold() -> None:
    """At n = 1 no byte passes inside a machine; (6) is not stated for it."""
    assert threshold(2, 1) == threshold(1024, 1) == 0
    with pytest.raises(ValueError, match="at least 2 GPUs per machine"):
        relaxed_threshold(32, 1)


def test_crossovers_of_netreduce() -> None:
    sizes = [found for _, found in netreduce_crossovers()]
    assert {found.when for found in sizes} == {"below"}
    megabytes = [float(found.size / MB) for found in sizes if found.size is not None]
    assert megabytes == pytest.approx([1.301538, 13.015385, 64.955913], abs=5e-7)


def test_crossovers_of_tencent() -> None:
    assert [found for _, found in tencent_crossovers()] == [
        Sizes("below", Fraction(8, 7) * MB),
        Sizes("below", Fraction(832, 245) * MB),
        Sizes("below", Fraction(832, 105) * MB),
        Sizes("below", Fraction(18944, 735) * MB),
        Sizes("always"),
        Sizes("always"),
    ]
    assert flat_ring_less_tencent(cluster_at(intra=100 * GB)).size_coefficient == 0


def test_times_are_equal_at_a_crossover_and_change_sides_there() -> None:
    cluster = cluster_at(gpus=128)
    found = tencent_beats_flat_ring(cluster)
    assert found.size is not None
    assert tencent(cluster, found.size) == flat_ring(cluster, found.size)
    assert tencent(cluster, found.size - 1) < flat_ring(cluster, found.size - 1)
    assert tencent(cluster, found.size + 1) > flat_ring(cluster, found.size + 1)


def test_netreduce_may_be_the_faster_one_above_a_crossover_only() -> None:
    """Two machines of 16 GPUs: TA has fewer hops."""
    cluster = cluster_at(gpus=32, per_machine=16)
    found = netreduce_beats_tencent(cluster)
    assert found.when == "above"
    assert found.size is not None
    assert tencent(cluster, found.size) == parallel_netreduce(cluster, found.size)
    assert tencent(cluster, found.size + 1) > parallel_netreduce(cluster, found.size + 1)


def test_crossovers_without_latency() -> None:
    cluster = replace(cluster_at(), alpha=Fraction(0))
    assert netreduce_beats_flat_ring(cluster) == Sizes("always")
    assert netreduce_beats_flat_ring(replace(cluster, intra=15 * GB)) == Sizes("never")
    assert tencent_beats_flat_ring(replace(cluster, per_machine=1)) == Sizes("never")  # they are the same


def test_one_gpu_per_machine() -> None:
    cluster = Cluster(6, 1, Fraction(1, 7), Fraction(3), Fraction(3))
    assert parallel_netreduce(cluster, Fraction(5)) == Fraction(1, 7) + Fraction(5, 3)
    assert tencent(cluster, Fraction(5)) == flat_ring(cluster, Fraction(5))


@pytest.mark.parametrize(("n", "gpus"), SHAPES)
def test_at_the_exact_threshold(n: int, gpus: int) -> None:
    cluster = replace(cluster_of(gpus, n), intra=threshold(gpus, n) * Fraction(25, 2))
    assert flat_ring_less_netreduce(cluster).size_coefficient == 0
    assert relaxed_threshold(gpus, n) > threshold(gpus, n)
    for alpha in (Fraction(1, 10**9), Fraction(1)):
        here = replace(cluster, alpha=alpha)
        assert parallel_netreduce(here, SIZE_EXACT) < flat_ring(here, SIZE_EXACT)
        assert netreduce_beats_flat_ring(here) == Sizes("always")


@pytest.mark.parametrize("panel", ["A", "B", "C"])
def test_reference_tables(panel: str) -> None:
    sweep = next(sweep for sweep in sweeps() if sweep.panel == panel)
    table = [[Fraction(word) for word in line.split()] for line in SWEEP_TABLES[panel].strip().splitlines()]
    assert len(table) == len(sweep.rows)
    for row, (value, *times) in zip(sweep.rows, table, strict=True):
        assert row.value == value
        here = row.cluster
        in_floats = Cluster(
            here.gpus, here.per_machine, float(here.alpha), float(here.intra), float(here.inter)
        )
        for algorithm, printed in zip(ALGORITHMS, times, strict=True):
            exact = row.seconds[algorithm.name]
            assert isinstance(exact, Fraction)
            assert abs(exact / MS - printed) <= Fraction(5, 10**7)
            assert algorithm.time(in_floats, float(SIZE)) == pytest.approx(float(exact), rel=1e-9, abs=0)


def test_pn_is_first_from_25_gb_per_s_on() -> None:
    for gpus in (32, 64, 128, 256, 512, 1024):
        for intra in (25, 32, 50, 75, 100, 150):
            times = {
                algorithm.name: algorithm.time(cluster_at(gpus=gpus, intra=intra * GB), SIZE)
                for algorithm in ALGORITHMS
            }
            assert min(times, key=lambda name: times[name]) == "PN"


def test_integers_stay_exact() -> None:
    cluster = Cluster(6, 2, 1, 7, 3)
    assert parallel_netreduce(cluster, 10) == 3 + Fraction(10, 7) + Fraction(10, 3)


def test_other_numbers_stay_what_they_are() -> None:
    numbers: Any = Decimal
    cluster = Cluster(32, 8, numbers("0.001"), numbers(50), numbers("12.5"))
    for algorithm in ALGORITHMS:
        assert isinstance(algorithm.time(cluster, numbers(100)), Decimal)
    assert parallel_netreduce(cluster, numbers(100)) == numbers("11.515")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"per_machine": 6, "gpus": 12}, "power of two, not 6"),
        ({"per_machine": 0}, "power of two, not 0"),
        ({"per_machine": -8}, "power of two, not -8"),
        ({"gpus": 8}, "multiple of 8 and more than that, not 8"),
        ({"gpus": 36}, "multiple of 8 and more than that, not 36"),
        ({"gpus": 0}, "multiple of 8 and more than that, not 0"),
        ({"intra": 0}, "bandwidths must be positive"),
        ({"inter": -1}, "bandwidths must be positive"),
        ({"inter": float("nan")}, "bandwidths must be positive"),
        ({"alpha": Fraction(-1, 10)}, "alpha must not be negative"),
    ],
)
def test_clusters_that_cannot_be(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(cluster_at(), **change)


def test_sizes_and_counts_that_cannot_be() -> None:
    for algorithm in ALGORITHMS:
        for of in (algorithm.time, algorithm.stages):
            with pytest.raises(ValueError, match="size must not be negative, but is -1"):
                of(cluster_at(), -1)
        assert algorithm.time(replace(cluster_at(), alpha=0), 0) == 0
    with pytest.raises(ValueError, match="size must not be negative"):
        tencent_stage_1_as_printed(cluster_at(), -1)
    for of_counts in (threshold, relaxed_threshold):
        with pytest.raises(ValueError, match="power of two, not 3"):
            of_counts(32, 3)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["model", *arguments], prog_name="inaproto")


def test_command_shows_tables() -> None:
    result = invoke("netreduce")
    assert result.exit_code == 0
    for words in (
        "Figure 7A: ms for 100 MB, P = 32, alpha = 1 us",
        "15.75  15.5620  34.2442  19.1261  23.1311  FR",
        "128/73 = 1.753425",
        "below 25.774150 MB",
        "(reduce to the master, as printed)",
        "“B_intra/B_inter >= 2.3”",
    ):
        assert words in result.output


def test_command_writes_json_and_keeps_stdout_for_it() -> None:
    result = invoke("netreduce", "--json", "-")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["version"] == 1
    assert "Figure 7A" in result.stderr
    assert [sweep["figure"] for sweep in report["sweeps"]] == ["7A", "7B", "7C"]
    first = report["sweeps"][0]["rows"][0]
    assert first["fastest"] == "FR"
    assert first["ms"]["FR"] == 15.562
    assert report["thresholds"][0]["exact"] == {"value": 28 / 15, "exact": "28/15"}
    assert report["crossovers"][3]["size_mb"]["exact"] == "8/7"
    assert report["crossovers"][-1] | {"when": "always", "size_mb": None} == report["crossovers"][-1]
    printed = report["stages"]["TA_stage_1_as_printed"]["ms"]
    assert (printed, report["stages"]["TA"][0]["ms"]) == (0.4435, 3.506)
    assert {one["key"]: one["figures"] for one in report["contradictions"]}["condition-6-by-numbers"] == {
        "printed": {"value": 2.3, "exact": "23/10"},
        "relaxed": {"value": 32 / 15, "exact": "32/15"},
        "exact": {"value": 28 / 15, "exact": "28/15"},
    }


def test_command_draws_figure_7(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    result = invoke("netreduce", "--plot", str(folder))
    assert result.exit_code == 0
    picture = folder / "netreduce-figure-7.svg"
    assert f"wrote {picture}" in result.output
    first = picture.read_bytes()
    assert first.startswith(b"<?xml")
    for words in ("FR: flat ring", "TA: Tencent all-reduce", "PN: parallel NetReduce", "PR: parallel rings"):
        assert f"<!-- {words} -->".encode() in first, "who has not read the paper knows no letters"
    assert first.count(b"<!-- ms for 100 MB -->") == 3, "each panel has its unit"
    assert b"<!-- Time of an all-reduce" in first
    invoke("netreduce", "--plot", str(folder))
    assert picture.read_bytes() == first, "one input, one picture"


def test_command_simulates_what_is_small_enough(tmp_path: Path) -> None:
    result = invoke("netreduce", "--simulate", "--gpus-max", "8", "--json", "-", "--plot", str(tmp_path))
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    rows = report["simulation"]["ring_against_ina"]
    assert [row["gpus"] for row in rows] == [2, 4, 8]
    assert rows[2]["speedup"] == pytest.approx(2 * 7 / 8, rel=0.01)
    assert rows[2]["ring"]["overlapped_to_model"] == pytest.approx(1, abs=0.01)
    assert all(row["simulated"] is None for sweep in report["sweeps"] for row in sweep["rows"])
    assert "A ring and a sum in the network" in result.stderr
    assert "Simulated 7A" not in result.stderr
    assert (tmp_path / "netreduce-ring-against-network.svg").read_bytes().startswith(b"<?xml")


def test_simulated_points_stand_beside_the_model() -> None:
    cluster = cluster_at()
    simulation = Simulation({cluster: {one.name: timed(one.name, cluster) for one in ALGORITHMS}})
    report = document(simulation)
    [panel_a, panel_b, panel_c] = [
        [row["simulated"] for row in sweep["rows"] if row["simulated"]] for sweep in report["sweeps"]
    ]
    assert panel_a == panel_b
    assert (len(panel_a), panel_c) == (1, [])
    found = panel_a[0]["PN"]
    assert found["model_ms"] == pytest.approx(11.515)
    assert found["staged_ms"] == pytest.approx(11.543, abs=5e-4)
    assert found["staged_to_model"] == found["staged_ms"] / found["model_ms"]
    assert found["overlapped_ms"] == pytest.approx(9.629, abs=5e-4)
    console = Console(record=True, width=120, file=io.StringIO())
    show(console, simulation)
    shown = console.export_text()
    assert "Simulated 7A, stage by stage; against the model" in shown
    assert "11.5430  +0.24%" in shown
    assert "9.6290 -16.38%" in shown
    assert "Simulated 7C" not in shown
    assert "A ring and a sum" not in shown


def test_simulation_tells_what_comes_next() -> None:
    told: list[str] = []
    simulation = simulate(gpus_max=4, tell=told.append)
    assert told == ["ring of 2", "ring of 4"]
    assert simulation.points == {}


def test_command_names_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = invoke("netreduce", "--plot", str(file / "below"))
    assert result.exit_code == 1
    assert "Not a directory" in result.output
    assert "Traceback" not in result.output


def test_help_says_what_the_algorithms_are_and_which_formulas_are_the_papers() -> None:
    assert "netreduce" in invoke("--help").output
    result = invoke("netreduce", "--help")
    assert result.exit_code == 0
    for words in ("FR  flat ring", "PN  parallel NetReduce", "equation (2)", "ours", "prints the first with"):
        assert words in result.output


def test_ctrl_c_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(**_: object) -> Simulation:
        raise KeyboardInterrupt

    monkeypatch.setattr("inaproto_controller.cost_model.netreduce_simulation.simulate", stopped)
    assert CliRunner().invoke(cli, ["model", "netreduce", "--simulate"]).exit_code == 130
