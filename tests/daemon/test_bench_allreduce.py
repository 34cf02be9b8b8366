"""``inaproto bench allreduce`` in small: real daemons, every element checked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from inaproto_hil.bench.report import COLUMNS
from inaproto_hil.rigs.cluster import inaproto_command

RUN_TIMEOUT_S = 600


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [inaproto_command(), "bench", "allreduce", "--hosts", "2", *options],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


def test_every_type_is_right_over_a_bad_wire() -> None:
    weather = "drop=0.01,duplicate=0.001,reorder=0.01"
    small = ("--begin", "4K", "--end", "64K", "--factor", "16", "--iterations", "2")
    done = run_bench(*small, "--dtype", "all", "--weather", weather, "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # nothing but the report goes to stdout
    assert found["wrong"] == 0
    assert [row["size"] for row in found["rows"]] == [4096, 65536] * 6
    assert {row["type"] for row in found["rows"]} == set(found["config"]["dtypes"])
    for row in found["rows"]:
        assert row["wrong"] == 0
        assert len(row["samples_us"]) == 2
        assert min(row["samples_us"]) > 0
        assert row["cpu_s_per_gb"] > 0
    assert found["env"]["cores_usable"] >= 1
    assert found["switch"]["totals"]["frames_lost"] > 0
    assert all(column in done.stderr for column in COLUMNS)


def test_messages_of_other_shapes_and_operations(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    shape = ("--mtu", "256", "--message-packets", "3", "--window", "4")
    done = run_bench("--begin", "5000", "--end", "5000", "--op", "max", *shape, "--json", str(path))
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert [row["wrong"] for row in found["rows"]] == [0, 0, 0]
    assert {row["redop"] for row in found["rows"]} == {"max"}
    assert found["bound"]["ina"] == 256 / (256 + 58)
    assert "# wrong elements: 0 OK" in done.stdout


def test_parallel_rings_share_the_traffic() -> None:
    small = ("--begin", "64K", "--end", "64K", "--iterations", "4", "--dtype", "float32", "--rings", "2")
    done = run_bench(*small, "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["wrong"], found["config"]["rings"]) == (0, 2)
    assert [row["path"] for row in found["rows"]] == ["switch"]
    first, second = found["rings"]
    assert [first["ring"], second["ring"]] == [0, 1]
    least = 2 * 5 * (64 << 10) / 2  # two hosts, five all-reduces, a half of each
    for name in ("bytes_sent", "bytes_received"):
        assert least < min(first[name], second[name])
        if not first["retransmits"] + second["retransmits"]:  # a busy machine is late, and sends more
            assert max(first[name], second[name]) < 1.2 * least
            assert abs(first[name] - second[name]) < 0.02 * least
    assert f"# ring 1: its NICs sent {second['bytes_sent']} bytes" in done.stderr


def test_a_refused_setting_is_named() -> None:
    done = run_bench("--mtu", "1000")
    assert done.returncode == 1
    assert "mtu" in done.stderr


def test_paths_are_compared_in_one_run() -> None:
    """End to end: processes whose jobs ask for the switch, the chain and the ring, over a bad wire."""
    small = ("--hosts", "3", "--begin", "64K", "--end", "64K", "--iterations", "3", "--dtype", "bfloat16")
    done = run_bench("--compare", *small, "--weather", "drop=0.01,reorder=0.01", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == 0
    assert [(row["asked"], row["path"]) for row in found["rows"]] == [
        ("auto", "switch"),
        ("chain", "chain"),
        ("ring", "ring"),
    ]
    assert [(ratio["path"], ratio["to"], ratio["rounds"]) for ratio in found["ratios"]] == [
        ("chain", "auto", 3),
        ("ring", "auto", 3),
    ]
    for ratio in found["ratios"]:
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]
    assert "bfloat16 65536 B: ring takes " in done.stderr


def test_one_path_is_asked_for() -> None:
    done = run_bench("--path", "ring", "--begin", "4K", "--end", "4K", "--dtype", "int32", "--json", "-")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["rows"]
    assert (row["asked"], row["path"], row["wrong"]) == ("ring", "ring", 0)
    refused = run_bench("--path", "ring", "--fabric", "memory")
    assert refused.returncode == 2
    assert "--path and --compare are for --fabric daemons" in refused.stderr
    assert "leave --path out" in run_bench("--path", "ring", "--compare").stderr


def test_all_reduces_that_are_queued_are_all_checked() -> None:
    small = ("--begin", "4K", "--end", "4K", "--iterations", "2", "--dtype", "int32", "--queued", "5")
    done = run_bench(*small, "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert (found["config"]["queued"], row["wrong"], len(row["samples_us"])) == (5, 0, 2)
    assert found["nics"]["h0"]["messages_received"] == 3 * 5, "the warm-up's too"
