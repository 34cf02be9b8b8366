"""The arithmetic of the all-reduce benchmark: nccl-tests' columns, and data that shows every fault."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from inaproto_hil.bench import report
from inaproto_hil.bench.allreduce.worker import WorkerPlan
from inaproto_hil.bench.comparison import compared, turns
from inaproto_hil.bench.pattern import DTYPES, OPS, reference
from inaproto_hil.ranks.predictable import RANKS_MAX, Pattern, differing

ROW = report.Row(
    size_bytes=1 << 20,
    count=1 << 18,
    dtype="float32",
    op="sum",
    ranks=4,
    samples_s=(0.004, 0.002, 0.1),
    wrong=0,
    cpu_s=0.03,
)


def test_bandwidths_follow_the_median_sample() -> None:
    assert ROW.time_s == 0.004
    assert ROW.algbw == pytest.approx((1 << 20) / 0.004 / 1e9)
    assert ROW.busbw == pytest.approx((1 << 20) / 0.004 / 1e9 * 6 / 4)


def test_busbw_factor_for_two_ranks_is_one() -> None:
    row = replace(ROW, ranks=2)
    assert row.busbw == row.algbw


def test_cpu_time_is_per_gigabyte_of_vector_over_all_iterations() -> None:
    assert ROW.cpu_s_per_gb == pytest.approx(0.03 / (3 * (1 << 20) / 1e9))


def test_a_row_with_a_wrong_element_has_no_bandwidth() -> None:
    row = replace(ROW, wrong=1)
    assert row.algbw is None
    assert row.busbw is None
    assert row.cpu_s_per_gb is None
    assert report.table_line(row).split()[5:] == ["-", "-", "1", "-", "switch"]


def test_unknown_cpu_time_is_undefined_not_zero() -> None:
    assert replace(ROW, cpu_s=math.nan).cpu_s_per_gb is None


def test_percent_of_line_comes_from_algbw() -> None:
    row = replace(ROW, size_bytes=1_000_000, samples_s=(0.08,))
    assert row.pct_line(200e6) == pytest.approx(50.0)
    assert row.pct_line(None) is None


def test_bound_is_payload_over_frame_and_the_rings_share() -> None:
    bound = report.bounds(mtu=1024, ranks=4)
    assert bound["ina"] == pytest.approx(1024 / 1082)
    assert bound["ring"] == pytest.approx(4 / 6)


def test_table_has_the_columns_of_nccl_tests() -> None:
    first, second = report.header().splitlines()
    assert first.startswith("#")
    assert second.startswith("#")
    assert first.lstrip("# ").split()[:8] == list(report.COLUMNS)
    assert report.table_line(ROW).split()[:5] == ["1048576", "262144", "float32", "sum", "4000.0"]
    assert len(report.table_line(ROW)) == len(first) == len(second)


def test_document_is_versioned_json_with_every_sample() -> None:
    config = {"mtu": 1024, "hosts": 4}
    rows = [ROW, replace(ROW, wrong=2, wrong_example="rank 0")]
    text = json.dumps(report.document(config=config, env={}, rows=rows), allow_nan=False)
    found = json.loads(text)
    assert found["version"] == report.VERSION
    assert found["wrong"] == 2
    assert found["line_rate_bps"] is None
    assert found["rows"][0]["samples_us"] == pytest.approx([4000.0, 2000.0, 100000.0])
    assert found["rows"][0]["pct_line"] is None
    assert found["rows"][1]["algbw"] is None


@pytest.mark.parametrize(
    ("text", "nbytes"), [("64K", 65536), ("16M", 1 << 24), ("1g", 1 << 30), ("100", 100), ("4KiB", 4096)]
)
def test_sizes_are_read_in_units_of_1024(text: str, nbytes: int) -> None:
    assert report.parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "K", "1.5M", "64KK", "1T"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        report.parse_size(text)


def test_sizes_run_from_begin_to_end() -> None:
    assert report.sizes(1024, 5000, 2) == [1024, 2048, 4096]
    with pytest.raises(ValueError, match="above"):
        report.sizes(2, 1, 2)
    with pytest.raises(ValueError, match="factor"):
        report.sizes(1, 2, 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, RANKS_MAX])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", DTYPES)
def test_pattern_sums_are_exact_in_every_type(name: str, op: str, ranks: int) -> None:
    pattern = Pattern(count=1000, ranks=ranks)
    inputs = [pattern.values(rank=rank, iteration=3) for rank in range(ranks)]
    exact = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op].reduce(inputs)
    result = reference([values.astype(DTYPES[name]) for values in inputs], op)
    assert result.dtype == DTYPES[name]
    assert np.array_equal(result.astype(np.int64), exact.astype(np.int64))


def test_pattern_differs_by_rank_iteration_and_place() -> None:
    pattern = Pattern(count=1 << 16, ranks=4)
    one = pattern.values(rank=0, iteration=0)
    assert one.min() == -64
    assert one.max() == 63
    for other in (pattern.values(rank=1, iteration=0), pattern.values(rank=0, iteration=1)):
        assert np.mean(one == other) < 0.02
    packets = one.reshape(-1, 256)  # no packet's payload is another's
    assert len({packet.tobytes() for packet in packets}) == len(packets)


def test_half_types_are_rounded_once() -> None:
    bf16 = ml_dtypes.bfloat16
    inputs = [np.array([value], dtype=bf16) for value in (256, 1, 1)]  # 256 + 1 alone rounds back to 256
    assert float(reference(inputs, "sum")[0]) == 258


def test_differing_counts_elements_and_shows_the_first() -> None:
    expected = np.arange(5, dtype=np.int32)
    assert differing(expected.copy(), expected) == (0, "")
    result = expected.copy()
    result[2:4] = 9
    assert differing(result, expected) == (2, "element 2 is 9, expected 2")
    assert differing(expected.astype(np.int64), expected)[0] == 5


def test_worker_plan_survives_its_encoding() -> None:
    plan = WorkerPlan("bench", 4, "sum", [("float32", 10), ("int32", 20)], 1, 5, 60.0)
    assert WorkerPlan.decode(plan.encode()) == plan


# --- paths compared


def test_paths_take_turns_to_begin_a_round() -> None:
    assert [turns(["a", "b", "c"], iteration) for iteration in (-1, 0, 1, 2)] == [
        ["c", "a", "b"],
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
    ]


def test_ratios_are_of_the_times_of_one_round() -> None:
    """The second round was slow for both: no matter."""
    auto = replace(ROW, samples_s=(0.001, 0.1, 0.002))
    ring = replace(auto, samples_s=(0.002, 0.2, 0.006), asked="ring", path="ring")
    other = replace(auto, dtype="int32")
    [ratio] = compared([auto, ring, other])
    assert ratio.as_dict() == {
        "size": 1 << 20,
        "type": "float32",
        "path": "ring",
        "to": "auto",
        "median": pytest.approx(2.0),
        "min": pytest.approx(2.0),
        "max": pytest.approx(3.0),
        "rounds": 3,
    }
    words = "# float32 1048576 B: ring takes 2.00 x the time of auto (2.00 to 3.00, 3 rounds)"
    assert ratio.line() == words


def test_a_ratio_to_a_row_with_a_wrong_element_is_undefined() -> None:
    ring = replace(ROW, asked="ring", path="ring", wrong=1)
    [ratio] = compared([ROW, ring])
    assert ratio.as_dict()["median"] is None
    assert ratio.line() == "# float32 1048576 B: ring takes -: an element is wrong"


def test_a_row_says_what_was_asked_for_and_what_summed() -> None:
    row = replace(ROW, asked="auto", path="chain+switch").as_dict()
    assert (row["asked"], row["path"]) == ("auto", "chain+switch")
